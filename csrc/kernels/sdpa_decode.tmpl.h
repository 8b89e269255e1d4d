/* SPDX-License-Identifier: MIT
 * Attention of few rows against keys and values as they lie: limited by memory bandwidth.
 * Used by ops/sdpa.c through the table.  Packs nothing: each key and value is read once for all rows.
 * While scores are made the tile's values are fetched, while values are summed the next keys: memory
 * is never idle. */

/* Scores of `n_rows` (a literal, 1, 2 or 4) rows against VF_LANES / n_rows keys: VF_LANES sums in
 * flight, reduced together.  The order of additions of one (row, key) does not depend on n_rows. */
FA_INLINE void dot_rows(int n_rows, const fa_tile *t, int i, int j, int n_keys, fa_fetch *ahead) {
    enum { MAX_ROWS = 4, VECTORS_OF_LINE = FA_ALIGN / (VF_LANES * (int)sizeof(float)) };
    const int per_row = VF_LANES / n_rows;
    const float *q = t->q + i * t->q_stride, *k[VF_LANES];
    vf acc[VF_LANES];
    for (int x = 0; x < per_row; x++) /* past the end the last key is read again */
        k[x] = t->k + (int64_t)(j + fa_min(x, n_keys - 1)) * t->k_stride;
    for (int x = 0; x < VF_LANES; x++) acc[x] = vf_set1(0.0f);
    int d = 0;
    for (; d + VF_LANES <= t->qk_size; d += VF_LANES) {
        vf qd[MAX_ROWS];
        for (int r = 0; r < n_rows; r++) qd[r] = vf_load(q + r * t->q_stride + d);
        for (int x = 0; x < per_row; x++) {
            vf kd = vf_load(k[x] + d);
            if ((d / VF_LANES * per_row + x) % VECTORS_OF_LINE == 0) fetch_line(ahead);
            for (int r = 0; r < n_rows; r++)
                acc[r * per_row + x] = vf_fma(qd[r], kd, acc[r * per_row + x]);
        }
    }
    if (d < t->qk_size) {
        int left = t->qk_size - d;
        for (int r = 0; r < n_rows; r++) {
            vf qd = vf_load_part(q + r * t->q_stride + d, left);
            for (int x = 0; x < per_row; x++)
                acc[r * per_row + x] =
                    vf_fma(qd, vf_load_part(k[x] + d, left), acc[r * per_row + x]);
        }
    }
    /* Rows of scores have room past the last key: whole groups are stored, the rest is masked later. */
    float sums[VF_LANES], *s = t->s + (int64_t)i * t->s_stride + j;
    vf_store(sums, vf_hsums(acc));
    for (int r = 0; r < n_rows; r++)
        memcpy(s + (int64_t)r * t->s_stride, sums + r * per_row, (size_t)per_row * sizeof *sums);
}

/* The same against up to VF_LANES keys. */
FA_INLINE void dot_keys(int n_rows, const fa_tile *t, int i, int j, int n_keys, fa_fetch *ahead) {
    for (int x = 0; x < n_keys; x += VF_LANES / n_rows)
        dot_rows(n_rows, t, i, j + x, fa_min(VF_LANES / n_rows, n_keys - x), ahead);
}

static void dot_block(const fa_tile *t) {
    for (int j = 0; j < t->n_keys; j += VF_LANES) {
        int n = fa_min(VF_LANES, t->n_keys - j), i = 0;
        fa_fetch ahead = fa_fetch_rows(t->v + j * t->v_stride, t->v_stride, t->v_size, VF_LANES);
#if VF_LANES >= 4
        for (; i + 4 <= t->n_rows; i += 4) dot_keys(4, t, i, j, n, &ahead);
        for (; i + 2 <= t->n_rows; i += 2) dot_keys(2, t, i, j, n, &ahead);
#endif
        for (; i < t->n_rows; i++) dot_keys(1, t, i, j, n, &ahead);
    }
}

enum { WIDE_KEYS = 4 }; /* 8 are not faster */

/* o[i, c..] = o * alpha + p v for mr rows (a literal) and one block of columns of values in place. */
FA_INLINE void value_columns(int mr, const fa_tile *t, int i, int c, const float *alpha,
                             fa_fetch *ahead) {
    enum { COLUMNS_OF_LINE = FA_ALIGN / (int)sizeof(float) };
    const float *p = t->s + (int64_t)i * t->s_stride, *v = t->v + c;
    int left = t->v_size - c;
    vf acc[FA_MR][FA_NV];
    for (int r = 0; r < mr; r++)
        for (int x = 0; x < FA_NV; x++) acc[r][x] = vf_set1(0.0f);
    for (int j = 0; j < t->n_keys; j++, v += t->v_stride) {
        vf vj[FA_NV];
        for (int x = 0; x < FA_NR; x += COLUMNS_OF_LINE) fetch_line(ahead);
        for (int x = 0; x < FA_NV; x++)
            vj[x] = left >= FA_NR ? vf_load(v + x * VF_LANES)
                                  : vf_load_part(v + x * VF_LANES,
                                                 fa_max(0, fa_min(VF_LANES, left - x * VF_LANES)));
        for (int r = 0; r < mr; r++) {
            vf pj = vf_set1(p[(int64_t)r * t->s_stride + j]);
            for (int x = 0; x < FA_NV; x++) acc[r][x] = vf_fma(pj, vj[x], acc[r][x]);
        }
    }
    for (int r = 0; r < mr; r++)
        for (int x = 0; x < FA_NV; x++) {
            float *o = t->o + (int64_t)(i + r) * t->o_stride + c + x * VF_LANES;
            vf_store(o, vf_fma(vf_load(o), vf_set1(alpha[i + r]), acc[r][x]));
        }
}

/* keys_next: meanwhile the next keys are fetched from memory; else the next columns from a cache. */
static void value_rows_in_place(const fa_tile *t, const row_groups *g, const float *alpha,
                                int keys_next) {
    fa_fetch ahead =
        fa_fetch_rows(t->k + t->n_keys * t->k_stride, t->k_stride, t->qk_size, t->n_keys);
    for (int c = 0; c < t->v_size; c += FA_NR) {
        if (!keys_next) ahead = fa_fetch_rows(t->v + c + FA_NR, t->v_stride, FA_NR, t->n_keys);
        for (int x = 0; x < g->n; x++) {
            int i = g->first[x];
#define FA_BODY(mr) value_columns(mr, t, i, c, alpha, &ahead)
            FA_ROWS_SWITCH(g->first[x + 1] - i, FA_BODY)
#undef FA_BODY
        }
    }
}

/* The same for one row and wide values: some keys at a time from end to end, so that memory is read in
 * the order in which it lies; the sums pass through a cache instead. */
FA_INLINE void value_keys(int n, const fa_tile *t, int j, vf factor) {
    const float *v = t->v + j * t->v_stride;
    vf p[WIDE_KEYS];
    for (int x = 0; x < n; x++) p[x] = vf_set1(t->s[j + x]);
    for (int c = 0; c < t->v_size; c += VF_LANES) {
        int left = t->v_size - c;
        vf sum = vf_mul(vf_load(t->o + c), factor);
        for (int x = 0; x < n; x++, v += t->v_stride)
            sum = vf_fma(p[x], left >= VF_LANES ? vf_load(v + c) : vf_load_part(v + c, left), sum);
        v -= n * t->v_stride;
        vf_store(t->o + c, sum);
    }
}

static void wide_values(const fa_tile *t, float alpha) {
    int j = 0;
    for (; j + WIDE_KEYS <= t->n_keys; j += WIDE_KEYS)
        value_keys(WIDE_KEYS, t, j, vf_set1(j ? 1.0f : alpha));
    for (; j < t->n_keys; j++) value_keys(1, t, j, vf_set1(j ? 1.0f : alpha));
}

static void FA_NAME(tile_decode)(const fa_tile *t) {
    float alpha[FA_MAX_ROW_BLOCK];
    row_groups groups;
    FA_ASSERT(t->n_rows <= FA_MAX_ROW_BLOCK && t->n_keys > 0);
    group_rows(t, &groups);
    dot_block(t);
    softmax_rows(t, alpha);
    value_rows_in_place(t, &groups, alpha, 1);
}

static void FA_NAME(scores_decode)(const fa_tile *t) {
    dot_block(t);
    finish_rows(t);
}
