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

/* Values are made smaller by so much, so that no weighted sum of doubles overflows; sums of floats
 * cannot. */
#ifdef FA_REAL_F64
#define FA_CAREFUL_SHRINK 0x1p-40
#else
#define FA_CAREFUL_SHRINK 1.0
#endif

/* n numbers of an array from `at` on as reals: as it lies, or copied to `scratch`. */
static const fa_real *reals_of(const void *p, int type, int64_t at, int n, fa_real *scratch) {
    if (type == FA_REAL_TYPE) return (const fa_real *)p + at;
    for (int x = 0; x < n; x++) scratch[x] = number_at(p, type, at + x);
    return scratch;
}

/* The largest |k[d]|, NaN if one is. */
static double largest_of(const fa_real *k, int n) {
    double top = 0.0;
    for (int d = 0; d < n; d++) {
        double size = fabs((double)k[d]);
        if (size > top || size != size) top = size;
    }
    return top;
}

/* scale * (q . k) / |k|, 0 for zeros; k is brought to about 1, where no square leaves the range. */
static double careful_cosine(const fa_careful *c, const fa_real *q, const fa_real *k) {
    const double top = largest_of(k, c->qk_size);
    double dot = 0.0, square = 0.0;
    if (top == 0.0) return 0.0;
    for (int d = 0; d < c->qk_size; d++) {
        double kd = k[d] / top;
        dot += q[d] * c->scoring->scale * kd;
        square += kd * kd;
    }
    return dot / sqrt(square);
}

/* scale * (q . k); of doubles, products may leave the range that they do not leave if the scale comes
 * first, as in the fast path. */
static double careful_dot(const fa_careful *c, const fa_real *q, const fa_real *k) {
    const double scale = c->scoring->scale;
    double dot = 0.0, other = 0.0;
    for (int d = 0; d < c->qk_size; d++) dot += (double)q[d] * k[d];
    if (fabs(dot) <= DBL_MAX) return dot * scale;
    for (int d = 0; d < c->qk_size; d++) other += q[d] * scale * k[d];
    return other;
}

static double careful_additive(const fa_careful *c, const fa_real *q, const fa_real *k) {
    const fa_real *a = c->a;
    double sum = 0.0;
    for (int u = 0; u < c->qk_size; u++) sum += a[u] * tanh((double)q[u] + k[u]);
    return sum;
}

static void put_number(void *p, int type, int64_t at, fa_real x) {
    switch (type) {
#ifndef FA_REAL_F64
    case FA_F16: ((uint16_t *)p)[at] = fa_to_f16(x); break;
    case FA_BF16: ((uint16_t *)p)[at] = fa_to_bf16(x); break;
#endif
    default: ((fa_real *)p)[at] = x; break;
    }
}

static double careful_score(const fa_careful *c, const fa_real *q, int64_t key, int *allowed) {
    const int n = c->qk_size;
    const fa_real *factors = c->key_factors;
    double terms = 0.0, dot;
    *allowed = careful_terms(c->scoring, c->row, key, &terms);
    if (!*allowed) return 0.0;
    const int64_t at = key - c->first;
    const fa_real *k = reals_of(c->k, c->k_type, at * c->k_stride, n, (fa_real *)c->scratch + n);
    if (factors && factors[at] != factors[at] && c->k_type != FA_I8) {
        dot = careful_cosine(c, q, k);
    } else {
        dot = c->a ? careful_additive(c, q, k) : careful_dot(c, q, k);
        if (factors) dot *= factors[at];
    }
    if (fabs(dot) > FA_REAL_MAX) dot = dot > 0.0 ? INFINITY : -INFINITY; /* as in the fast path */
    if (c->scoring->has_cap) dot = c->scoring->softcap * tanh(dot / c->scoring->softcap);
    return saturate(saturated_sum(dot, terms));
}

/* The factor of the weight of one key in local attention. */
static double careful_gaussian(const fa_careful *c, int64_t key) {
    return c->scoring->sigma > 0.0 ? gaussian(c->scoring, c->row, key) : 1.0;
}

static void FA_NAME(careful_keys)(fa_careful *c, int64_t lo, int64_t hi, fa_careful_pass pass) {
    const fa_real *q = reals_of(c->q, c->q_type, 0, c->qk_size, c->scratch);
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
            put_number(c->weights, c->out_type, j,
                       (fa_real)(p / c->total * careful_gaussian(c, j)));
        } else if (pass == FA_CAREFUL_SUM) {
            c->total += p;
            p *= careful_gaussian(c, j) * FA_CAREFUL_SHRINK;
            if (c->value_factors) p *= ((const fa_real *)c->value_factors)[j - c->first];
            const fa_real *v = reals_of(c->v, c->v_type, (j - c->first) * c->v_stride, c->v_size,
                                        (fa_real *)c->scratch + 2 * c->qk_size);
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
        double o = c->any ? c->acc[x] / (c->total * FA_CAREFUL_SHRINK) : 0.0;
        /* no negative zero, as in finish_row */
        put_number(c->out, c->out_type, x, c->nan ? NAN : (fa_real)o + 0.0f);
    }
    if (c->lse)
        *(fa_real *)c->lse = (fa_real)(c->total == 0.0 ? -INFINITY : c->top + log(c->total));
}
