/* SPDX-License-Identifier: MIT
 * Few rows against keys and values as they lie: limited by memory bandwidth.
 * Used by ops/visit.c through the table, a copy for each element type.  Packs nothing: each key and
 * value is read once for all rows.
 * Memory is never idle: while scores are made the tile's values are fetched, while values are summed the
 * next keys; or all the while the next tile's keys and values in turn (fetches_pairs). */

#undef FA_VECTORS_OF_LINE
#define FA_VECTORS_OF_LINE (FA_ALIGN / (VF_LANES * (int)sizeof(fa_element)))

/* One vector of each row and key: acc += q k.  step: how many came before. */
FA_INLINE void FA_TYPED(dot_step)(int n_rows, const fa_real *q, int64_t q_stride,
                                  const fa_element *const *k, int d, int step, vf *acc,
                                  fa_fetch *ahead) {
    enum { MAX_ROWS = 4 };
    const int per_row = VF_LANES / n_rows;
    vf qd[MAX_ROWS];
    for (int r = 0; r < n_rows; r++) qd[r] = vf_load(q + r * q_stride);
    for (int x = 0; x < per_row; x++) {
        vf kd = ve_load(k[x] + d);
        if ((step * per_row + x) % FA_VECTORS_OF_LINE == 0) fetch_line(ahead);
        for (int r = 0; r < n_rows; r++)
            acc[r * per_row + x] = vf_fma(qd[r], kd, acc[r * per_row + x]);
    }
}

/* Scores of `n_rows` (a literal, 1, 2 or 4) rows against VF_LANES / n_rows keys: VF_LANES sums in
 * flight, reduced together.  The order of additions of one (row, key) does not depend on n_rows. */
FA_INLINE void FA_TYPED(dot_rows)(int n_rows, const fa_tile *t, int i, const fa_element *keys,
                                  int j, int n_keys, fa_fetch *ahead) {
    /* Of a turn: which of them fetch a line is then known beforehand.  Floats fetch in all of them. */
    enum { STEPS = sizeof(fa_element) < sizeof(float) ? 4 : 1 };
    const int has_pattern = STEPS * (VF_LANES / n_rows) % FA_VECTORS_OF_LINE == 0;
    const int per_row = VF_LANES / n_rows;
    const fa_real *q = (const fa_real *)t->q + i * t->q_stride;
    const fa_element *k[VF_LANES];
    vf acc[VF_LANES];
    k[0] = keys;
    for (int x = 1; x < per_row; x++) /* past the end the last key is read again */
        k[x] = k[x - 1] + (x < n_keys ? t->k_stride : 0);
    for (int x = 0; x < VF_LANES; x++) acc[x] = vf_set1(0.0f);
    int d = 0;
    for (; d + STEPS * VF_LANES <= t->qk_size; d += STEPS * VF_LANES)
        for (int x = 0; x < STEPS; x++) FA_TYPED(dot_step)
    (n_rows, q + d + x * VF_LANES, t->q_stride, k, d + x * VF_LANES,
     has_pattern ? x : d / VF_LANES + x, acc, ahead);
    for (; d + VF_LANES <= t->qk_size; d += VF_LANES) FA_TYPED(dot_step)
    (n_rows, q + d, t->q_stride, k, d, d / VF_LANES, acc, ahead);
    if (d < t->qk_size) {
        int left = t->qk_size - d;
        for (int r = 0; r < n_rows; r++) {
            vf qd = vf_load_part(q + r * t->q_stride + d, left);
            for (int x = 0; x < per_row; x++)
                acc[r * per_row + x] =
                    vf_fma(qd, ve_load_part(k[x] + d, left), acc[r * per_row + x]);
        }
    }
    /* Rows of scores have room past the last key: whole groups are stored, the rest is masked later. */
    fa_real sums[VF_LANES], *s = scores_of(t, i) + j;
    vf_store(sums, vf_hsums(acc));
    for (int r = 0; r < n_rows; r++)
        memcpy(s + (int64_t)r * t->s_stride, sums + r * per_row, (size_t)per_row * sizeof *sums);
}

/* The same against up to VF_LANES keys. */
FA_INLINE void FA_TYPED(dot_keys)(int n_rows, const fa_tile *t, int i, const fa_element *keys,
                                  int j, int n_keys, fa_fetch *ahead) {
    for (int x = 0; x < n_keys; x += VF_LANES / n_rows) FA_TYPED(dot_rows)
    (n_rows, t, i, keys + x * t->k_stride, j + x, fa_min(VF_LANES / n_rows, n_keys - x), ahead);
}

/* All rows with up to VF_LANES keys of one run; scores go to s[j] and on. */
FA_INLINE void FA_TYPED(dot_block)(const fa_tile *t, const fa_element *keys, int j, int n,
                                   fa_fetch *ahead) {
    int i = 0;
#if VF_LANES >= 4
    for (; i + 4 <= t->n_rows; i += 4) FA_TYPED(dot_keys)(4, t, i, keys, j, n, ahead);
    for (; i + 2 <= t->n_rows; i += 2) FA_TYPED(dot_keys)(2, t, i, keys, j, n, ahead);
#endif
    for (; i < t->n_rows; i++) FA_TYPED(dot_keys)(1, t, i, keys, j, n, ahead);
}

static void FA_TYPED(dots)(const fa_tile *t) {
    const int64_t v_bytes = t->v_stride * t->v_item, v_size = (int64_t)t->v_size * t->v_item;
    const int in_pairs = fetches_pairs(t);
    fa_fetch ahead = fetch_next(t);
    for (int x = 0, first = 0; x < t->n_runs; first += t->runs[x++].n) {
        const fa_run *run = &t->runs[x];
        for (int j = 0; j < run->n; j += VF_LANES) {
            if (!in_pairs)
                ahead =
                    fa_fetch_rows((const char *)run->v + j * v_bytes, v_bytes, v_size, VF_LANES);
            FA_TYPED(dot_block)
            (t, (const fa_element *)run->k + j * t->k_stride, first + j,
             fa_min(VF_LANES, run->n - j), &ahead);
        }
    }
    *t->fetch = ahead;
}

/* o[i, c..] = o * alpha + p v for mr rows (a literal) and one block of columns of values in place. */
FA_INLINE void FA_TYPED(value_columns)(int mr, int is_whole, const fa_tile *t, int i, int c,
                                       const fa_real *alpha, fa_fetch *ahead) {
    enum { /* of a key: a line of memory or more, or less */
           BYTES = FA_NR * (int)sizeof(fa_element),
           LINES = BYTES > FA_ALIGN ? BYTES / FA_ALIGN : 1,
           KEYS_OF_LINE = BYTES < FA_ALIGN ? FA_ALIGN / BYTES : 1
    };
    const fa_real *p = scores_of(t, i);
    int left = t->v_size - c;
    vf acc[FA_MR][FA_NV];
    for (int r = 0; r < mr; r++)
        for (int x = 0; x < FA_NV; x++) acc[r][x] = vf_set1(0.0f);
    fetch_cursor cursor = cursor_of(ahead);
    for (const fa_run *run = t->runs; run < t->runs + t->n_runs; p += run++->n) {
        const fa_element *v = (const fa_element *)run->v + c;
        for (int j = 0; j < run->n; j++, v += t->v_stride) {
            vf vj[FA_NV];
            if (j % KEYS_OF_LINE == 0)
                for (int x = 0; x < LINES; x++) fetch_at_cursor(&cursor, ahead);
            for (int x = 0; x < FA_NV; x++)
                vj[x] = is_whole ? ve_load(v + x * VF_LANES)
                                 : ve_load_part(v + x * VF_LANES,
                                                fa_max(0, fa_min(VF_LANES, left - x * VF_LANES)));
            for (int r = 0; r < mr; r++) {
                vf pj = vf_set1(p[(int64_t)r * t->s_stride + j]);
                for (int x = 0; x < FA_NV; x++) acc[r][x] = vf_fma(pj, vj[x], acc[r][x]);
            }
        }
    }
    put_cursor(&cursor, ahead);
    for (int r = 0; r < mr; r++)
        for (int x = 0; x < FA_NV; x++) {
            fa_real *o = (fa_real *)t->o + (int64_t)(i + r) * t->o_stride + c + x * VF_LANES;
            vf_store(o, vf_fma(vf_load(o), vf_set1(alpha[i + r]), acc[r][x]));
        }
}

/* The same for one row and wide values: some keys at a time from end to end, so that memory is read in
 * the order in which it lies; the sums pass through a cache instead. */
FA_INLINE void FA_TYPED(value_keys)(int n, const fa_tile *t, int j, vf factor) {
    const fa_element *v = (const fa_element *)t->runs->v + j * t->v_stride;
    const fa_real *s = t->s;
    fa_real *o = t->o;
    vf p[4];
    for (int x = 0; x < n; x++) p[x] = vf_set1(s[j + x]);
    for (int c = 0; c < t->v_size; c += VF_LANES) {
        int left = t->v_size - c;
        vf sum = vf_mul(vf_load(o + c), factor);
        for (int x = 0; x < n; x++, v += t->v_stride)
            sum = vf_fma(p[x], left >= VF_LANES ? ve_load(v + c) : ve_load_part(v + c, left), sum);
        v -= n * t->v_stride;
        vf_store(o + c, sum);
    }
}

static void FA_TYPED(wide_values)(const fa_tile *t, fa_real alpha) {
    int j = 0;
    for (; j + 4 <= t->n_keys; j += 4) /* 8 at a time are not faster */
        FA_TYPED(value_keys)(4, t, j, vf_set1(j ? 1.0f : alpha));
    for (; j < t->n_keys; j++) FA_TYPED(value_keys)(1, t, j, vf_set1(j ? 1.0f : alpha));
}

/* o = o * alpha + s v for a block of rows and values in place.  Where keys are packed, the next columns
 * are fetched meanwhile. */
static void FA_TYPED(values)(const fa_tile *t, const void *factors) {
    const fa_real *alpha = factors;
    row_groups g;
    if (!t->keys_in_place && t->is_single && t->v_size > 2 * FA_NR) {
        FA_TYPED(wide_values)(t, alpha[0]);
        return;
    }
    FA_ASSERT(t->n_rows <= 8);
    group_rows(t, &g);
    fa_fetch ahead = t->keys_in_place && fetches_pairs(t) ? *t->fetch : fetch_next(t);
    for (int c = 0; c < t->v_size; c += FA_NR) {
        if (!t->keys_in_place)
            ahead = fa_fetch_rows((const fa_element *)t->runs->v + c + FA_NR,
                                  t->v_stride * (int64_t)sizeof(fa_element),
                                  FA_NR * (int64_t)sizeof(fa_element), t->n_keys);
        for (int x = 0; x < g.n; x++) {
            int i = g.first[x];
            int mr = g.first[x + 1] - i;
            if (t->v_size - c >= FA_NR) {
#define FA_BODY(mr) FA_TYPED(value_columns)(mr, 1, t, i, c, alpha, &ahead)
                FA_FEW_ROWS_SWITCH(mr, FA_BODY)
#undef FA_BODY
            } else {
#define FA_BODY(mr) FA_TYPED(value_columns)(mr, 0, t, i, c, alpha, &ahead)
                FA_FEW_ROWS_SWITCH(mr, FA_BODY)
#undef FA_BODY
            }
        }
    }
}
