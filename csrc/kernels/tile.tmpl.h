/* SPDX-License-Identifier: MIT
 * The register-blocked products of one tile of packed keys and values.
 * Used by ops/visit.c through the table, and by the other kernels.  Knows nothing of softmax or masks.
 *
 * Both products of attention have the form C[mr x NR] = A[mr x n] B[n x NR]: A is read a number at a
 * time and broadcast, B comes in rows of NR contiguous reals (panels: one after the other), C stays in registers.  Each element of
 * C is one chain of fused multiply-adds over n, so its bits do not depend on mr or on its place.
 * lines: NULL (a literal), or memory of which a cache line is fetched in each of the n steps. */

#define FA_NR (FA_NV * VF_LANES)

FA_INLINE void block_product(int mr, const fa_real *a, int64_t a_stride, const fa_real *b,
                             int64_t b_stride, int n, const char *lines, vf c[FA_MR][FA_NV]) {
    for (int i = 0; i < mr; i++)
        for (int v = 0; v < FA_NV; v++) c[i][v] = vf_set1(0.0f);
    for (int k = 0; k < n; k++) {
        vf bk[FA_NV];
        for (int v = 0; v < FA_NV; v++) bk[v] = vf_load(b + k * b_stride + v * VF_LANES);
        if (lines) FA_PREFETCH(lines + k * (int64_t)FA_ALIGN);
        for (int i = 0; i < mr; i++) {
            vf ai = vf_set1(a[i * a_stride + k]);
            for (int v = 0; v < FA_NV; v++) c[i][v] = vf_fma(ai, bk[v], c[i][v]);
        }
    }
}

/* s[i, 0..NR) = q[i] . panel, for mr rows (mr is a literal at every call). */
FA_INLINE void score_rows(int mr, const fa_real *q, int64_t q_stride, const fa_real *panel,
                          int qk_size, const char *lines, fa_real *s, int s_stride) {
    vf c[FA_MR][FA_NV];
    block_product(mr, q, q_stride, panel, FA_NR, qk_size, lines, c);
    for (int i = 0; i < mr; i++)
        for (int v = 0; v < FA_NV; v++) vf_store(s + i * s_stride + v * VF_LANES, c[i][v]);
}

/* o[i, 0..NR) = o[i] * alpha[i] + p[i] . panel: the rescaling of the streaming softmax rides along. */
FA_INLINE void value_rows(int mr, const fa_real *p, int p_stride, const fa_real *panel, int n_keys,
                          const fa_real *alpha, fa_real *o, int o_stride) {
    vf c[FA_MR][FA_NV];
    block_product(mr, p, p_stride, panel, FA_NR, n_keys, NULL, c);
    for (int i = 0; i < mr; i++)
        for (int v = 0; v < FA_NV; v++) {
            fa_real *at = o + i * o_stride + v * VF_LANES;
            vf_store(at, vf_fma(vf_load(at), vf_set1(alpha[i]), c[i][v]));
        }
}

/* Runs body(mr) for a literal mr <= FA_MR equal to n. */
#define FA_ROWS_CASE(mr, body) \
    case mr:                   \
        body(mr);              \
        break;
#define FA_ROWS_4(body) \
    FA_ROWS_CASE(1, body) FA_ROWS_CASE(2, body) FA_ROWS_CASE(3, body) FA_ROWS_CASE(4, body)
#define FA_ROWS_5(body) FA_ROWS_4(body) FA_ROWS_CASE(5, body)
#define FA_ROWS_6(body) FA_ROWS_5(body) FA_ROWS_CASE(6, body)
#define FA_ROWS_8(body) FA_ROWS_6(body) FA_ROWS_CASE(7, body) FA_ROWS_CASE(8, body)
#define FA_ROWS_10(body) FA_ROWS_8(body) FA_ROWS_CASE(9, body) FA_ROWS_CASE(10, body)
#define FA_ROWS_14(body) \
    FA_ROWS_10(body)     \
    FA_ROWS_CASE(11, body) FA_ROWS_CASE(12, body) FA_ROWS_CASE(13, body) FA_ROWS_CASE(14, body)
#if FA_MR == 4
#define FA_ROWS_CASES FA_ROWS_4
#elif FA_MR == 5
#define FA_ROWS_CASES FA_ROWS_5
#elif FA_MR == 6
#define FA_ROWS_CASES FA_ROWS_6
#elif FA_MR == 14
#define FA_ROWS_CASES FA_ROWS_14
#else
#error "give FA_ROWS_CASES the rows of this instruction set's register block"
#endif
#define FA_ROWS_SWITCH(n, body) \
    switch (n) { FA_ROWS_CASES(body) default : break; }
/* The same where there are no more than 8 rows: each case costs time to compile, and bytes. */
#if FA_MR > 8
#define FA_FEW_ROWS_SWITCH(n, body) \
    switch (n) { FA_ROWS_8(body) default : break; }
#else
#define FA_FEW_ROWS_SWITCH FA_ROWS_SWITCH
#endif

/* The rows of a tile in groups of at most FA_MR, as even as can be: a group of one or two rows keeps
 * few sums in flight and costs nearly as much as a full one. */
typedef struct row_groups {
    int n, first[FA_MAX_ROW_BLOCK + 1];
    /* How many of the tile's keys any row of the group may see: the others need not be multiplied.
     * (Their scores stay as they were and must be hidden; their weights are zeros.) */
    int n_keys[FA_MAX_ROW_BLOCK];
} row_groups;

static void group_rows(const fa_tile *t, row_groups *g) {
    g->n = (int)fa_ceil_div(t->n_rows, FA_MR);
    for (int x = 0, i = 0; x < g->n; x++) {
        int64_t seen = 0;
        g->first[x] = i;
        for (int stop = i + (t->n_rows - i + g->n - x - 1) / (g->n - x); i < stop; i++)
            seen = fa_max64(seen, t->rows[i].key_hi - t->key_first);
        g->n_keys[x] = (int)fa_min64(seen, t->n_keys);
    }
    g->first[g->n] = t->n_rows;
}

/* Row i of the tile's scores. */
FA_INLINE fa_real *scores_of(const fa_tile *t, int i) {
    return (fa_real *)t->s + (int64_t)i * t->s_stride;
}

/* s = q k^T for a block of rows and packed keys.  Panels outside, rows inside: one panel stays in
 * the first-level cache while all rows of the block pass over it. */
static void FA_NAME(products)(const fa_tile *t) {
    row_groups groups, *g = &groups;
    FA_ASSERT(t->n_rows <= FA_MAX_ROW_BLOCK && t->n_keys > 0);
    group_rows(t, g);
    for (int j = 0; j < t->n_keys; j += FA_NR) {
        const fa_real *panel = (const fa_real *)t->k + (int64_t)j * t->qk_size;
        for (int x = 0; x < g->n; x++) {
            int i = g->first[x];
            const fa_real *q = (const fa_real *)t->q + i * t->q_stride;
            fa_real *s = scores_of(t, i) + j;
            if (j >= g->n_keys[x]) continue;
            const char *lines = fetch_step(t->ahead, t->qk_size);
            int mr = g->first[x + 1] - i;
            if (lines) {
#define FA_BODY(mr) score_rows(mr, q, t->q_stride, panel, t->qk_size, lines, s, t->s_stride)
                FA_ROWS_SWITCH(mr, FA_BODY)
#undef FA_BODY
            } else {
#define FA_BODY(mr) score_rows(mr, q, t->q_stride, panel, t->qk_size, NULL, s, t->s_stride)
                FA_ROWS_SWITCH(mr, FA_BODY)
#undef FA_BODY
            }
        }
    }
}

/* o = o * alpha + s v for a block of rows and packed values; panels have v_stride reals. */
static void FA_NAME(add_values)(const fa_tile *t, const void *factors) {
    const fa_real *alpha = factors;
    row_groups groups, *g = &groups;
    group_rows(t, g);
    for (int c = 0; c < t->v_size; c += FA_NR) {
        const fa_real *panel = (const fa_real *)t->v + (c / FA_NR) * t->v_stride;
        for (int x = 0; x < g->n; x++) {
            int i = g->first[x], n = g->n_keys[x];
            const fa_real *p = scores_of(t, i);
            fa_real *o = (fa_real *)t->o + i * t->o_stride + c;
            fetch_step(t->ahead, 0);
#define FA_BODY(mr) value_rows(mr, p, t->s_stride, panel, n, alpha + i, o, t->o_stride)
            FA_ROWS_SWITCH(g->first[x + 1] - i, FA_BODY)
#undef FA_BODY
        }
    }
}

/* c[i, 0..NR) = a[i] b, for any number of rows. */
static void FA_NAME(product)(const void *a, int64_t a_stride, int64_t n_rows, const void *b,
                             int64_t b_stride, int n, void *c, int64_t c_stride) {
    for (int64_t i = 0; i < n_rows; i += FA_MR) {
        vf sums[FA_MR][FA_NV];
        const fa_real *rows = (const fa_real *)a + i * a_stride;
        fa_real *to = (fa_real *)c + i * c_stride;
#define FA_BODY(mr)                                                \
    block_product(mr, rows, a_stride, b, b_stride, n, NULL, sums); \
    for (int r = 0; r < mr; r++)                                   \
        for (int v = 0; v < FA_NV; v++) vf_store(to + r * c_stride + v * VF_LANES, sums[r][v])
        FA_ROWS_SWITCH((int)fa_min64(FA_MR, n_rows - i), FA_BODY)
#undef FA_BODY
    }
}
