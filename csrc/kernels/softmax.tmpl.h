/* SPDX-License-Identifier: MIT
 * The streaming softmax: per row a maximum m, a sum l and output sums O over the keys seen so far
 * (Milakov & Gimelshein 2018; Rabe & Staats 2021; FlashAttention, Dao et al. 2022).
 * Used by the attention kernels.  Scores are in units of log2, hidden keys are -inf.
 *
 * No constant stands for minus infinity.  While m is -inf nothing was seen; 0 then takes its place in
 * exponents, so that 2^(-inf - 0) = 0 and no NaN is made.  NaN scores pass the maximum unseen and come
 * back as NaN in l and O: exactly the rows that must be NaN end without a finite state. */

FA_INLINE fa_real exponent_base(fa_real row_max) { return row_max == -INFINITY ? 0.0f : row_max; }

/* The largest of n scores; rows are padded to whole vectors.  A NaN score loses: see vf_max. */
FA_INLINE fa_real row_top(const fa_real *s, int n) {
    vf top = vf_set1(-INFINITY), top2 = top;
    int j = 0;
    for (; j + 2 * VF_LANES <= n; j += 2 * VF_LANES) {
        top = vf_max(vf_load(s + j), top);
        top2 = vf_max(vf_load(s + j + VF_LANES), top2);
    }
    if (j < n) top = vf_max(vf_load(s + j), top);
    return vf_hmax(vf_max(top, top2));
}

/* s -> 2^(s - base) for n scores; returns their sum. */
FA_INLINE fa_real row_exp2(fa_real *s, int n, fa_real base) {
    vf b = vf_set1(base), sum = vf_set1(0.0f);
    for (int j = 0; j < n; j += VF_LANES) {
        vf p = vf_exp2(vf_sub(vf_load(s + j), b));
        vf_store(s + j, p);
        sum = vf_add(sum, p);
    }
    return vf_hsum(sum);
}

/* exp(-(key - center)^2 / (2 sigma^2)), whatever the numbers. */
static double gaussian(const fa_scoring *sc, const fa_row *row, int64_t key) {
    double distance = ((double)key - row->center) / sc->sigma;
    return exp(-0.5 * distance * distance);
}

/* Products of weights and Gaussians that would be subnormal become 0: the processor takes its time for
 * each of those, and again where it meets a value.  All of it is exact but the one product. */
FA_INLINE vf faded(vf weight, vf factor) {
#ifdef FA_REAL_F64
    const vf up = vf_set1(0x1p511), down = vf_set1(0x1p-1022);
#else
    const vf up = vf_set1(0x1p63f), down = vf_set1(0x1p-126f);
#endif
    vf product = vf_mul(vf_mul(weight, up), vf_mul(factor, up));
    return vf_mul(vf_select(vm_lt(product, vf_set1(1.0f)), vf_set1(0.0f), product), down);
}

/* The scoring's gauss as a normal number. */
FA_INLINE fa_real gauss_of(const fa_scoring *sc) {
    double size = -sc->gauss;
    size = size < FA_REAL_MIN ? FA_REAL_MIN : size > FA_REAL_MAX ? FA_REAL_MAX : size;
    return (fa_real)-size;
}

/* s[j] *= 2^(gauss * (first + j - center)^2): what local attention does to weights, not to sums. */
static void apply_gaussian(const fa_tile *t, int i) {
    const fa_scoring *sc = t->scoring;
    const double center = t->rows[i].center, whole = rint(center);
    fa_real *s = scores_of(t, i);
    if (fabs(center) > 1e15 || sc->sigma < 1e-15) { /* squares of floats would not do */
        for (int j = 0; j < t->n_keys; j++)
            s[j] *= (fa_real)gaussian(sc, &t->rows[i], t->key_first + j);
        return;
    }
    /* Whole steps from a whole number are exact: each distance is rounded once, and by its own size. */
    const vf gauss = vf_set1(gauss_of(sc)), step = vf_set1((fa_real)VF_LANES);
    const vf rest = vf_set1((fa_real)(center - whole));
    vf steps = vf_add(vf_set1((fa_real)((double)t->key_first - whole)), vf_iota());
    for (int j = 0; j < t->n_keys; j += VF_LANES) {
        vf distance = vf_sub(steps, rest);
        vf factor = vf_exp2(vf_mul(vf_mul(distance, distance), gauss));
        vf_store(s + j, faded(vf_load(s + j), factor));
        steps = vf_add(steps, step);
    }
}

/* One step for all rows of a tile of raw products: s -> 2^(s - m'), m and l are updated, and alpha gets
 * the factors 2^(m - m') by which sums over earlier keys must be multiplied.  What is one number a row
 * is done for many rows at once, so that no row waits for another. */
static void FA_NAME(softmax)(const fa_tile *t, void *factors) {
    fa_real *alpha = factors, *row_max = t->row_max, *row_sum = t->row_sum;
    fa_real top[FA_MAX_ROW_BLOCK], sum[FA_MAX_ROW_BLOCK];
    int n = (int)fa_round_up(t->n_keys, VF_LANES);
    for (int i = 0; i < t->n_rows; i++) {
        finish_row_scores(t, i);
        top[i] = row_top(scores_of(t, i), n);
    }
    for (int i = 0; i < t->n_rows; i += VF_LANES) {
        int n_lanes = fa_min(VF_LANES, t->n_rows - i);
        vf old = vf_load_part(row_max + i, n_lanes), none = vf_set1(-INFINITY);
        vf m = vf_max(vf_load_part(top + i, n_lanes), old);
        vf base = vf_select(vm_eq(m, none), vf_set1(0.0f), m); /* as exponent_base */
        vf_store_part(row_max + i, m, n_lanes);
        vf_store_part(top + i, base, n_lanes);
        vf_store_part(alpha + i, vf_exp2(vf_sub(old, base)), n_lanes);
    }
    for (int i = 0; i < t->n_rows; i++) sum[i] = row_exp2(scores_of(t, i), n, top[i]);
    if (t->scoring->gauss != 0.0)
        for (int i = 0; i < t->n_rows; i++) apply_gaussian(t, i);
    if (t->value_factors)
        for (int i = 0; i < t->n_rows; i++)
            apply_factors(scores_of(t, i), t->n_keys, t->value_factors);
    for (int i = 0; i < t->n_rows; i += VF_LANES) {
        int n_lanes = fa_min(VF_LANES, t->n_rows - i);
        vf old = vf_load_part(row_sum + i, n_lanes), f = vf_load_part(alpha + i, n_lanes);
        vf_store_part(row_sum + i, vf_fma(old, f, vf_load_part(sum + i, n_lanes)), n_lanes);
    }
}

/* From final scores and the final state: s -> 2^(s - m) / l. */
static void FA_NAME(weights)(const fa_tile *t) {
    const fa_real *row_max = t->row_max, *row_sum = t->row_sum;
    for (int i = 0; i < t->n_rows; i++) {
        fa_real *s = scores_of(t, i);
        const vf base = vf_set1(exponent_base(row_max[i])), total = vf_set1(row_sum[i]);
        for (int j = 0; j < t->n_keys; j += VF_LANES)
            vf_store(s + j, vf_div(vf_exp2(vf_sub(vf_load(s + j), base)), total));
        if (t->scoring->gauss != 0.0) apply_gaussian(t, i);
    }
}

static void FA_NAME(merge_row)(void *row_max, void *row_sum, void *row_o, const void *max2,
                               const void *sum2, const void *row_o2, int n) {
    fa_real *m = row_max, *l = row_sum, *o = row_o;
    const fa_real *o2 = row_o2;
    fa_real m2 = *(const fa_real *)max2, top = *m > m2 ? *m : m2, base = exponent_base(top);
    fa_real f1 = exp2_one(*m - base), f2 = exp2_one(m2 - base);
    vf g1 = vf_set1(f1), g2 = vf_set1(f2);
    *m = top;
    *l = *l * f1 + *(const fa_real *)sum2 * f2;
    for (int c = 0; c < n; c += VF_LANES) /* rows are padded to whole vectors */
        vf_store(o + c, vf_fma(vf_load(o + c), g1, vf_mul(vf_load(o2 + c), g2)));
}
