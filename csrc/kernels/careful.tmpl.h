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

/* 1 / |k|, 0 for zeros; neither overflows with floats. */
static double inverse_length(const fa_careful *c, int64_t key) {
    double sum = 0.0;
    for (int d = 0; d < c->qk_size; d++) {
        double x = number_at(c->k, c->k_type, key * c->k_stride + d);
        sum += x * x;
    }
    return sum == 0.0 ? 0.0 : 1.0 / sqrt(sum);
}

static void put_number(void *p, int type, int64_t at, float x) {
    switch (type) {
    case FA_F16: ((uint16_t *)p)[at] = fa_to_f16(x); break;
    case FA_BF16: ((uint16_t *)p)[at] = fa_to_bf16(x); break;
    default: ((float *)p)[at] = x; break;
    }
}

static double careful_score(const fa_careful *c, int64_t key, int *allowed) {
    double terms = 0.0, dot = 0.0;
    *allowed = careful_terms(c->scoring, c->row, key, &terms);
    if (!*allowed) return 0.0;
    for (int d = 0; d < c->qk_size; d++) {
        double q = number_at(c->q, c->q_type, d);
        double k = number_at(c->k, c->k_type, key * c->k_stride + d);
        dot += c->a ? c->a[d] * tanh(q + k) : q * k;
    }
    dot *= c->scoring->scale;
    if (c->row->key_factors) {
        double factor = c->row->key_factors[key];
        dot *= factor == factor ? factor : inverse_length(c, key);
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
    for (int64_t j = lo; j < hi && !c->nan; j++) {
        int allowed;
        double s = careful_score(c, j, &allowed);
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
            for (int x = 0; x < c->v_size; x++)
                c->acc[x] += p * number_at(c->v, c->v_type, j * c->v_stride + x);
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
