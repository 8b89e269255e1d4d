/* SPDX-License-Identifier: MIT
 * One row in double precision, two passes, key by key: the way out where the fast path ends without a
 * finite state.  Used by ops/sdpa.c for such rows only; finite inputs of usual size never come here.
 *
 * The driver walks the keys in ranges, first for the maximum, then for the sums, and last, if asked
 * for, for the weights; between ranges it may give up.
 *
 * It settles what the fast path leaves open: rows that see no key, scores or biases near the end of
 * the float range (which overflow in units of log2), outputs whose sum overflows before the division,
 * and NaN or infinity in data that the row does see, which it hands on.  It never touches a key or
 * a value that the row may not see. */

/* n numbers of an array from `at` on as floats: as it lies, or copied to `scratch`. */
static const float *floats_of(const void *p, int type, int64_t at, int n, float *scratch) {
    if (type == FA_F32) return (const float *)p + at;
    for (int x = 0; x < n; x++) scratch[x] = number_at(p, type, at + x);
    return scratch;
}

/* 1 / |k|, 0 for zeros; neither overflows with floats. */
static double inverse_length(const float *k, int n) {
    double sum = 0.0;
    for (int d = 0; d < n; d++) sum += (double)k[d] * k[d];
    return sum == 0.0 ? 0.0 : 1.0 / sqrt(sum);
}

static void put_number(void *p, int type, int64_t at, float x) {
    switch (type) {
    case FA_F16: ((uint16_t *)p)[at] = fa_to_f16(x); break;
    case FA_BF16: ((uint16_t *)p)[at] = fa_to_bf16(x); break;
    default: ((float *)p)[at] = x; break;
    }
}

static double careful_score(const fa_careful *c, const float *q, int64_t key, int *allowed) {
    const int n = c->qk_size;
    double terms = 0.0, dot = 0.0;
    *allowed = careful_terms(c->scoring, c->row, key, &terms);
    if (!*allowed) return 0.0;
    const int64_t at = key - c->first;
    const float *k = floats_of(c->k, c->k_type, at * c->k_stride, n, c->scratch + n);
    if (c->a)
        for (int u = 0; u < n; u++) dot += c->a[u] * tanh((double)q[u] + k[u]);
    else
        for (int d = 0; d < n; d++) dot += (double)q[d] * k[d];
    dot *= c->scoring->scale;
    if (c->key_factors) {
        double factor = c->key_factors[at];
        dot *= factor == factor || c->k_type == FA_I8 ? factor : inverse_length(k, n);
    }
    if (fabs(dot) > FLT_MAX) dot = dot > 0.0 ? INFINITY : -INFINITY; /* as in float */
    if (c->scoring->has_cap) dot = c->scoring->softcap * tanh(dot / c->scoring->softcap);
    return saturate(dot + terms);
}

/* The factor of the weight of one key in local attention. */
static double careful_gaussian(const fa_careful *c, int64_t key) {
    return c->scoring->sigma > 0.0 ? gaussian(c->scoring, c->row, key) : 1.0;
}

static void FA_NAME(careful_keys)(fa_careful *c, int64_t lo, int64_t hi, fa_careful_pass pass) {
    const float *q = floats_of(c->q, c->q_type, 0, c->qk_size, c->scratch);
    for (int64_t j = lo; j < hi && !c->nan; j++) {
        int allowed;
        double s = careful_score(c, q, j, &allowed);
        if (!allowed) continue; /* its weight is 0 already */
        if (pass == FA_CAREFUL_MAX) {
            c->nan = s != s;
            if (!c->any || c->nan || s > c->top) c->pick = j;
            c->any = 1;
            if (s > c->top) c->top = s;
            continue;
        }
        double p = exp(s - c->top);
        if (pass == FA_CAREFUL_WEIGHTS) {
            put_number(c->weights, c->out_type, j, (float)(p / c->total * careful_gaussian(c, j)));
        } else if (pass == FA_CAREFUL_SUM) {
            c->total += p;
            p *= careful_gaussian(c, j);
            if (c->value_factors) p *= c->value_factors[j - c->first];
            const float *v = floats_of(c->v, c->v_type, (j - c->first) * c->v_stride, c->v_size,
                                       c->scratch + 2 * c->qk_size);
            for (int x = 0; x < c->v_size; x++) c->acc[x] += p * v[x];
        } else if (c->draw >= 0.0 && p > 0.0) {
            c->draw -= p;
            c->pick = j;
        }
    }
}

static void FA_NAME(careful_finish)(fa_careful *c) {
    if (c->sink != -INFINITY) c->total += exp(c->sink - c->top);
    if (c->nan) c->total = NAN;
    for (int x = 0; x < c->v_size; x++) {
        double o = c->any ? c->acc[x] / c->total : 0.0;
        /* no negative zero, as in finish_row */
        put_number(c->out, c->out_type, x, c->nan ? NAN : (float)o + 0.0f);
    }
    if (c->lse) *c->lse = (float)(c->total == 0.0 ? -INFINITY : c->top + log(c->total));
}
