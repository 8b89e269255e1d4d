/* SPDX-License-Identifier: MIT
 * From raw products to final scores, on one row of a tile: softcap, bias, float and bool masks, ALiBi,
 * causality, window and length.  Used by the attention kernels.  Scores are in units of log2.
 *
 * What a row may not see becomes exactly -inf, by selection and never by addition: whatever a hidden
 * key holds, NaN too, is gone.  Sums that overflow here to -inf or NaN are not wrong yet: such rows
 * end without a finite state and are done again by careful.tmpl.h. */

#define FA_TERM_CHUNK 64 /* a multiple of every VF_LANES */

/* Finite numbers beyond the range of reals become its ends; infinities and NaN stay. */
static double saturate(double x) {
    if (x > FA_REAL_MAX && x < HUGE_VAL) return FA_REAL_MAX;
    if (x < -FA_REAL_MAX && x > -HUGE_VAL) return -FA_REAL_MAX;
    return x;
}

/* The same for a sum of two numbers, which may be beyond the range of doubles. */
static double saturated_sum(double a, double b) {
    double sum = a + b;
    int overflows = fabs(sum) > DBL_MAX && fabs(a) <= DBL_MAX && fabs(b) <= DBL_MAX;
    return overflows ? copysign(DBL_MAX, sum) : sum;
}

/* Element `at` of an array.  Finite values beyond the range saturate: only a given -inf masks. */
static fa_real number_at(const void *p, int type, int64_t at) {
    switch (type) {
    case FA_F64: return (fa_real)saturate(((const double *)p)[at]);
    case FA_F16: return fa_from_f16(((const uint16_t *)p)[at]);
    case FA_BF16: return fa_from_bf16(((const uint16_t *)p)[at]);
    case FA_I8: return ((const int8_t *)p)[at];
    default: return ((const float *)p)[at];
    }
}

/* s[j] += unit * term[j], and -inf where the term is. */
static void add_float_term(fa_real *s, int n, const char *term, int type, int64_t stride,
                           int64_t first, fa_real unit) {
    const vf factor = vf_set1(unit), hidden = vf_set1(-INFINITY);
    fa_real chunk[FA_TERM_CHUNK];
    for (int j = 0; j < n; j += FA_TERM_CHUNK) {
        int n_chunk = fa_min(FA_TERM_CHUNK, n - j);
        const fa_real *from = (const fa_real *)(const void *)term + first + j;
        if (type != FA_REAL_TYPE || stride != 1 || n_chunk % VF_LANES) {
            for (int i = 0; i < n_chunk; i++)
                chunk[i] = number_at(term, type, (first + j + i) * stride);
            for (int i = n_chunk; i % VF_LANES; i++) chunk[i] = 0.0f;
            from = chunk;
        }
        for (int i = 0; i < n_chunk; i += VF_LANES) {
            vf b = vf_load(from + i), x = vf_fma(b, factor, vf_load(s + j + i));
            vf_store(s + j + i, vf_select(vm_eq(b, hidden), hidden, x));
        }
    }
}

/* s[j] = -inf where the mask is false. */
static void apply_bool_mask(fa_real *s, int n, const char *mask, int64_t stride, int64_t first) {
    const uint8_t *m = (const uint8_t *)mask;
    uint8_t chunk[FA_TERM_CHUNK];
    for (int j = 0; j < n; j += FA_TERM_CHUNK) {
        int n_chunk = fa_min(FA_TERM_CHUNK, n - j);
        const uint8_t *from = m + first + j;
        if (stride != 1 || n_chunk % VF_LANES) {
            for (int i = 0; i < n_chunk; i++) chunk[i] = m[(first + j + i) * stride];
            for (int i = n_chunk; i % VF_LANES; i++) chunk[i] = 0;
            from = chunk;
        }
        for (int i = 0; i < n_chunk; i += VF_LANES)
            vf_store(s + j + i,
                     vf_select(vm_load_bytes(from + i), vf_load(s + j + i), vf_set1(-INFINITY)));
    }
}

/* s[j] += slope * |position - (first + j)| */
static void add_alibi(fa_real *s, int n, fa_real slope, int64_t position, int64_t first) {
    const vf step = vf_set1((fa_real)VF_LANES), factor = vf_set1(slope);
    vf distance = vf_sub(vf_set1((fa_real)(position - first)), vf_iota());
    for (int j = 0; j < n; j += VF_LANES) {
        vf_store(s + j, vf_fma(vf_abs(distance), factor, vf_load(s + j)));
        distance = vf_sub(distance, step);
    }
}

static void apply_cap(fa_real *s, int n, fa_real cap_factor) {
    const vf factor = vf_set1(cap_factor);
    for (int j = 0; j < n; j += VF_LANES) vf_store(s + j, vf_mul(vf_tanh(vf_load(s + j)), factor));
}

/* s[j] *= factor[j] */
static void apply_factors(fa_real *s, int n, const fa_real *factor) {
    for (int j = 0; j < n; j += VF_LANES) {
        int left = n - j;
        vf f = left >= VF_LANES ? vf_load(factor + j) : vf_load_part(factor + j, left);
        vf_store(s + j, vf_mul(vf_load(s + j), f));
    }
}

/* Row i of the tile: raw products -> scores; lanes past the tile's keys become -inf. */
static void finish_row_scores(const fa_tile *t, int i) {
    const fa_scoring *sc = t->scoring;
    const fa_row *row = &t->rows[i];
    fa_real *s = scores_of(t, i);
    int n = t->n_keys, n_padded = (int)fa_round_up(n, VF_LANES);
    int lo = (int)fa_max64(0, fa_min64(n, row->key_lo - t->key_first));
    int hi = (int)fa_max64(lo, fa_min64(n, row->key_hi - t->key_first));

    if (t->key_factors) apply_factors(s, n, t->key_factors);
    if (sc->has_cap) apply_cap(s, n, (fa_real)sc->cap_factor);
    for (int x = 0; x < 2; x++) {
        if (!row->term[x]) continue;
        if (sc->term_type[x] == FA_BOOL)
            apply_bool_mask(s, n, row->term[x], sc->term_stride[x], t->key_first);
        else
            add_float_term(s, n, row->term[x], sc->term_type[x], sc->term_stride[x], t->key_first,
                           (fa_real)sc->unit);
    }
    if (row->slope != 0.0)
        add_alibi(s, n, (fa_real)(-sc->unit * row->slope), row->position, t->key_first);
    for (int j = 0; j < lo; j++) s[j] = -INFINITY;
    for (int j = hi; j < n_padded; j++) s[j] = -INFINITY;
}

static void FA_NAME(finish_scores)(const fa_tile *t) {
    for (int i = 0; i < t->n_rows; i++) finish_row_scores(t, i);
}

/* Adds the float terms of one key in double, natural units.  Returns 0 where the row may not see it. */
static int careful_terms(const fa_scoring *sc, const fa_row *row, int64_t key, double *sum) {
    if (key < row->key_lo || key >= row->key_hi) return 0;
    for (int x = 0; x < 2; x++) {
        int64_t at = key * sc->term_stride[x];
        if (!row->term[x]) continue;
        if (sc->term_type[x] == FA_BOOL) {
            if (!((const uint8_t *)row->term[x])[at]) return 0;
        } else {
            fa_real term = number_at(row->term[x], sc->term_type[x], at);
            if (term == -INFINITY) return 0;
            *sum = saturated_sum(*sum, term);
        }
    }
    if (row->slope != 0.0) {
        double fall = row->slope * fabs((double)(row->position - key));
        *sum = saturated_sum(*sum, -fmax(-DBL_MAX, fmin(fall, DBL_MAX)));
    }
    return 1;
}

static void FA_NAME(hidden_keys)(const fa_scoring *sc, const fa_row *row, int64_t key_first,
                                 int n_keys, uint8_t *hidden) {
    for (int j = 0; j < n_keys; j++) {
        double ignored = 0.0;
        hidden[j] = !careful_terms(sc, row, key_first + j, &ignored);
    }
}
