/* SPDX-License-Identifier: MIT
 * Additive scores (Bahdanau, Cho & Bengio 2015): s = sum_u a_u tanh(q_u + k_u), in units of log2.
 * Used by ops/sdpa.c through the table.  From the scores on it is attention as any other.
 *
 * tanh(x + y) = 1 - 2 / (1 + e^(2x) e^(2y)): the exponentials are taken once per query and once per
 * key, and what is left per pair and u is a product and a share of a division, since
 * a1 / d1 + a2 / d2 = (a1 d2 + a2 d1) / (d1 d2).
 *
 * Three ways to the same score, chosen per number by the query's own reach and the key's own reach
 * (enum fa_reach), so that no other row and no hidden key changes a bit:
 *   near, near   d = 1 + e f as it is: d1 d2 < 2^124 (doubles: 2^1020)
 *   wide         the same, d clamped to 2^62 (2^510), where tanh is 1: near pairs keep their bits under it,
 *                so a whole panel may be clamped for the sake of one key
 *   far          tanh itself, for this row and key: also where sum |a| > 1024 asks for relative accuracy
 * Errors: docs/numerics.md. */

/* Up to where a number is near, and up to where wide: e^(8 near) < 2^124 and e^(2 wide) < 2^126, for
 * doubles 2^1020 and 2^1022; and products that may be multiplied with each other. */
#ifdef FA_REAL_F64
#define FA_NEAR_LIMIT 88.0
#define FA_WIDE_LIMIT 354.0
#define FA_MOST_PRODUCT 0x1p510
#else
#define FA_NEAR_LIMIT 10.5f
#define FA_WIDE_LIMIT 43.0f
#define FA_MOST_PRODUCT 0x1p62f
#endif

#if FA_ADDITIVE_MR == 2
#define FA_ADDITIVE_SWITCH(n, body) \
    switch (n) { FA_ROWS_CASE(1, body) FA_ROWS_CASE(2, body) default : break; }
#elif FA_ADDITIVE_MR == 4
#define FA_ADDITIVE_SWITCH(n, body) \
    switch (n) { FA_ROWS_4(body) default : break; }
#else
#error "give FA_ADDITIVE_SWITCH the rows of this instruction set's register block"
#endif

#ifdef FA_REAL_F64 /* whose bound is far away */
FA_INLINE vf query_spread_of(int u) { return (void)u, vf_set1(2.0); }
FA_INLINE vf key_spread_of(int u) { return (void)u, vf_set1(2.0); }
#else
/* Twice the factors of the exponentials of floats: those of unit u's query and key are u % 16 of each, and their
 * products are 1 (to 2^-38).  So units that hold the same numbers are not rounded the same way: their
 * errors would add up instead of averaging out.  Numbers between the half and the double, drawn one in
 * each 16th of that range (of the logarithm), such that the inverse is a float too. */
enum { N_SPREAD = 16 };
static const float query_spread[N_SPREAD] = {
    0x1.dca682p+0f, 0x1.486616p+1f, 0x1.1b0e8p+1f,  0x1.010962p+1f, 0x1.34ea72p+1f, 0x1.8c20bcp+0f,
    0x1.a8866ep+0f, 0x1.2aaab4p+1f, 0x1.c23c64p+0f, 0x1.67cad2p+1f, 0x1.729784p+0f, 0x1.bb5316p+0f,
    0x1.84f62p+0f,  0x1.0c8bacp+1f, 0x1.500aap+1f,  0x1.f175dep+0f};
static const float key_spread[N_SPREAD] = {
    0x1.12fc5p+1f,  0x1.8f1fep+0f,  0x1.cf0f2cp+0f, 0x1.fdef6p+0f,  0x1.a84bfep+0f, 0x1.4ae21p+1f,
    0x1.34bfecp+1f, 0x1.b6db6p+0f,  0x1.231e56p+1f, 0x1.6c4c92p+0f, 0x1.61aed2p+1f, 0x1.27a83p+1f,
    0x1.50fabcp+1f, 0x1.e814bcp+0f, 0x1.860c0cp+0f, 0x1.077b76p+1f};

/* Of units u, u + 1, ... and of unit u. */
FA_INLINE vf query_spread_of(int u) { return vf_load(query_spread + u % N_SPREAD); }
FA_INLINE vf key_spread_of(int u) { return vf_set1(key_spread[u % N_SPREAD]); }
#endif

/* sum += the quotient of the terms u and u + 1. */
FA_INLINE void add_pair_of_terms(int mr, int clamped, const fa_tile *t, int i, const fa_real *panel,
                                 int u, vf sum[FA_ADDITIVE_MR][FA_NV]) {
    const vf one = vf_set1(1.0f), most = vf_set1(FA_MOST_PRODUCT);
    const fa_real *e = (const fa_real *)t->q + i * t->q_stride + u;
    const fa_real *f = panel + (int64_t)u * FA_NR;
    vf f1[FA_NV], f2[FA_NV];
    for (int v = 0; v < FA_NV; v++) {
        f1[v] = vf_load(f + v * VF_LANES);
        f2[v] = vf_load(f + FA_NR + v * VF_LANES);
    }
    for (int r = 0; r < mr; r++, e += t->q_stride) {
        const fa_real *a = (const fa_real *)t->rows[i + r].minus_2a + u;
        vf e1 = vf_set1(e[0]), e2 = vf_set1(e[1]);
        vf a1 = vf_set1(a[0]), a2 = vf_set1(a[1]);
        for (int v = 0; v < FA_NV; v++) {
            vf d1 = vf_fma(e1, f1[v], one), d2 = vf_fma(e2, f2[v], one);
            if (clamped) {
                d1 = vf_select(vm_lt(d1, most), d1, most);
                d2 = vf_select(vm_lt(d2, most), d2, most);
            }
            sum[r][v] = vf_add_quotient(vf_fma(a1, d2, vf_mul(a2, d1)), vf_mul(d1, d2), sum[r][v]);
        }
    }
}

/* s[i, 0..NR) for mr rows (a literal) and one panel.  Terms are added up in groups of four, each from the
 * sum of its a down: so what is rounded stays small, also where all terms are alike and their
 * roundings too.  Groups are added up in blocks, and blocks in the total, so that many alike do not
 * lose digits one after the other. */
FA_INLINE void additive_rows(int mr, int clamped, const fa_tile *t, int i, const fa_real *panel,
                             fa_real *s) {
    const int n = (int)fa_round_up(t->qk_size, 2);
    vf total[FA_ADDITIVE_MR][FA_NV];
    for (int r = 0; r < mr; r++)
        for (int v = 0; v < FA_NV; v++)
            total[r][v] = vf_set1(*(const fa_real *)t->rows[i + r].a_rest);
    for (int begin = 0; begin < n; begin += FA_ADDITIVE_BLOCK) {
        int end = fa_min(n, begin + FA_ADDITIVE_BLOCK);
        vf sum[FA_ADDITIVE_MR][FA_NV], group[FA_ADDITIVE_MR][FA_NV];
        for (int r = 0; r < mr; r++)
            for (int v = 0; v < FA_NV; v++) sum[r][v] = vf_set1(0.0f);
        for (int u = begin; u < end; u += FA_ADDITIVE_GROUP) {
            for (int r = 0; r < mr; r++)
                for (int v = 0; v < FA_NV; v++)
                    group[r][v] =
                        vf_set1(((const fa_real *)t->rows[i + r].a_sums)[u / FA_ADDITIVE_GROUP]);
            add_pair_of_terms(mr, clamped, t, i, panel, u, group);
            if (u + 2 < end) add_pair_of_terms(mr, clamped, t, i, panel, u + 2, group);
            for (int r = 0; r < mr; r++)
                for (int v = 0; v < FA_NV; v++) sum[r][v] = vf_add(sum[r][v], group[r][v]);
        }
        for (int r = 0; r < mr; r++)
            for (int v = 0; v < FA_NV; v++) total[r][v] = vf_add(total[r][v], sum[r][v]);
    }
    for (int r = 0; r < mr; r++)
        for (int v = 0; v < FA_NV; v++)
            vf_store(s + r * t->s_stride + v * VF_LANES,
                     vf_mul(total[r][v], vf_set1((fa_real)t->scoring->unit)));
}

/* One row and key by tanh itself.  Sums are short ones: in one long sum, numbers of a size would be
 * rounded the same way again and again. */
static fa_real additive_direct(const fa_real *q, const fa_real *k, const fa_real *a, int n) {
    enum { LONGEST = 16 * VF_LANES };
    double total = 0.0;
    for (int u = 0; u < n;) {
        vf sum = vf_set1(0.0f);
        int end = fa_min(n, u + LONGEST);
        for (; u + VF_LANES <= end; u += VF_LANES)
            sum = vf_fma(vf_load(a + u), vf_tanh(vf_add(vf_load(q + u), vf_load(k + u))), sum);
        if (u < end) {
            int left = end - u;
            vf x = vf_add(vf_load_part(q + u, left), vf_load_part(k + u, left));
            sum = vf_fma(vf_load_part(a + u, left), vf_tanh(x), sum);
            u = end;
        }
        total += (double)vf_hsum(sum);
    }
    return (fa_real)total;
}

static void FA_NAME(additive)(const fa_tile *t) {
    const int64_t panel_size = fa_round_up(t->qk_size, 2) * FA_NR;
    int any_far = 0;
    for (int j = 0; j < t->n_keys; j += FA_NR) {
        const fa_real *panel = (const fa_real *)t->k + j / FA_NR * panel_size;
        int keys_reach = FA_NEAR;
        for (int x = j; x < fa_min(j + FA_NR, t->n_keys); x++) {
            any_far |= t->reach[x] == FA_FAR;
            if (t->reach[x] == FA_WIDE) keys_reach = FA_WIDE;
        }
        for (int i = 0; i < t->n_rows; i += FA_ADDITIVE_MR) {
            fa_real *s = scores_of(t, i) + j;
            int n = fa_min(FA_ADDITIVE_MR, t->n_rows - i), clamped = keys_reach == FA_WIDE;
            for (int r = 0; r < n; r++) clamped |= t->rows[i + r].reach == FA_WIDE;
            if (clamped) {
#define FA_BODY(mr) additive_rows(mr, 1, t, i, panel, s)
                FA_ADDITIVE_SWITCH(n, FA_BODY)
#undef FA_BODY
            } else {
#define FA_BODY(mr) additive_rows(mr, 0, t, i, panel, s)
                FA_ADDITIVE_SWITCH(n, FA_BODY)
#undef FA_BODY
            }
        }
    }
    for (int i = 0; i < t->n_rows; i++) {
        const fa_row *row = &t->rows[i];
        if (row->reach != FA_FAR && !any_far) continue;
        int lo = (int)fa_max64(0, row->key_lo - t->key_first);
        int hi = (int)fa_min64(t->n_keys, row->key_hi - t->key_first);
        for (int j = lo; j < hi; j++)
            if (row->reach == FA_FAR || t->reach[j] == FA_FAR)
                scores_of(t, i)[j] =
                    (fa_real)t->scoring->unit *
                    additive_direct(row->query, (const fa_real *)t->raw_k + j * t->raw_k_stride,
                                    row->a, t->qk_size);
    }
}

/* The reach of n numbers, by their largest absolute value. */
static int reach_of(const fa_real *x, int n) {
    vf near = vf_set1(FA_NEAR_LIMIT), wide = vf_set1(FA_WIDE_LIMIT), one = vf_set1(1.0f);
    vf beyond_near = vf_set1(0.0f), beyond_wide = beyond_near;
    for (int u = 0; u < n; u += VF_LANES) {
        vf size = vf_abs(u + VF_LANES <= n ? vf_load(x + u) : vf_load_part(x + u, n - u));
        /* NaN compares false: it is not within any limit */
        beyond_near = vf_select(vm_lt(size, near), beyond_near, one);
        beyond_wide = vf_select(vm_lt(size, wide), beyond_wide, one);
    }
    return vf_hmax(beyond_wide) > 0.0f ? FA_FAR : vf_hmax(beyond_near) > 0.0f ? FA_WIDE : FA_NEAR;
}

static int FA_NAME(additive_row)(const void *query, int n, void *exponentials) {
    const fa_real *q = query;
    fa_real *e = exponentials;
    int reach = reach_of(q, n);
    for (int u = 0; u < n; u += VF_LANES) {
        int left = fa_min(VF_LANES, n - u);
        vf x = reach == FA_FAR ? vf_set1(0.0f) : vf_load_part(q + u, left);
        vf_store_part(e + u, vf_exp_twice(x, query_spread_of(u)), left);
    }
    if (n % 2) e[n] = 0.0f;
    return reach;
}

static void FA_NAME(pack_additive_keys)(const void *keys, int64_t k_stride, int n_keys, int u_size,
                                        fa_additive_keys to) {
    const fa_real *k = keys;
    const int64_t n_rows = fa_round_up(u_size, 2);
    for (int j = 0; j < n_keys; j++) to.reach[j] = (uint8_t)reach_of(k + j * k_stride, u_size);
    for (int j = 0; j < fa_round_up(n_keys, FA_NR); j += VF_LANES) {
        fa_real *panel = (fa_real *)to.panels + j / FA_NR * n_rows * FA_NR + j % FA_NR;
        for (int u = 0; u < u_size; u += VF_LANES) {
            int nu = fa_min(VF_LANES, u_size - u);
            vf rows[VF_LANES];
            for (int i = 0; i < VF_LANES; i++) {
                int is_used = j + i < n_keys && to.reach[j + i] != FA_FAR;
                rows[i] = is_used ? vf_load_part(k + (j + i) * k_stride + u, nu) : vf_set1(0.0f);
            }
            vf_transpose(rows);
            for (int i = 0; i < nu; i++)
                vf_store(panel + (int64_t)(u + i) * FA_NR,
                         vf_exp_twice(rows[i], key_spread_of(u + i)));
        }
        if (u_size % 2) vf_store(panel + (int64_t)u_size * FA_NR, vf_set1(0.0f));
    }
}
