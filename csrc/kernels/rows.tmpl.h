/* SPDX-License-Identifier: MIT
 * Single rows on their way in and out: the scaled query, the finished output, the weights.
 * Used by ops/ through the table, a copy for each element type.  Their numbers are reals in between. */

/* dst[d] = src[d] * factor */
static void FA_TYPED(scale_row)(const void *query, double factor, int n, void *scaled) {
    const fa_element *src = query;
    fa_real *dst = scaled;
    vf f = vf_set1((fa_real)factor);
    int d = 0;
    for (; d + VF_LANES <= n; d += VF_LANES) vf_store(dst + d, vf_mul(ve_load(src + d), f));
    if (d < n) vf_store_part(dst + d, vf_mul(ve_load_part(src + d, n - d), f), n - d);
}

/* dst[d] += src[d] * factor */
static void FA_TYPED(add_row)(const void *part, double factor, int n, void *sum_so_far) {
    const fa_element *src = part;
    fa_real *dst = sum_so_far;
    vf f = vf_set1((fa_real)factor);
    int d = 0;
    for (; d + VF_LANES <= n; d += VF_LANES)
        vf_store(dst + d, vf_fma(ve_load(src + d), f, vf_load(dst + d)));
    if (d == n) return;
    vf sum = vf_fma(ve_load_part(src + d, n - d), f, vf_load_part(dst + d, n - d));
    vf_store_part(dst + d, sum, n - d);
}

static void FA_TYPED(store_row)(const void *from, int n, void *to) {
    const fa_real *src = from;
    fa_element *dst = to;
    int d = 0;
    for (; d + VF_LANES <= n; d += VF_LANES) ve_store(dst + d, vf_load(src + d));
    if (d < n) ve_store_part(dst + d, vf_load_part(src + d, n - d), n - d);
}

static int FA_TYPED(finish_row)(void *row_max, void *row_sum, const void *row_o, double row_sink,
                                int v_size, void *result) {
    fa_element *out = result;
    fa_real *m = row_max, *l = row_sum;
    const fa_real *o = row_o, sink = (fa_real)row_sink;
    fa_real old = *m, factor = 1.0f;
    if (sink > old) {
        *m = sink;
        factor = exp2_one(old - sink);
        *l = *l * factor + 1.0f;
    } else if (sink != -INFINITY) { /* NaN too */
        *l += exp2_one(sink - exponent_base(old));
    }
    /* One division a row: a quotient of its own for each number costs as much as 16 products. */
    vf f = vf_set1(factor / *l), bad = vf_set1(0.0f);
    for (int c = 0; c < v_size; c += VF_LANES) {
        /* + 0: no negative zero, whose sign would tell how many hidden keys were multiplied. */
        vf x = vf_fma(vf_load(o + c), f, vf_set1(0.0f));
        bad = vf_fma(x, vf_set1(0.0f), bad); /* NaN from then on if x is not finite */
        if (v_size - c >= VF_LANES)
            ve_store(out + c, x);
        else
            ve_store_part(out + c, x, v_size - c);
    }
    return fa_real_abs(*m) <= FA_REAL_MAX && *l > 0.0f && *l <= FA_REAL_MAX && vf_hsum(bad) == 0.0f;
}
