/* SPDX-License-Identifier: MIT
 * Windows onto the vector layer: one operation over arrays, for tests, and the machine's ceilings,
 * for benchmarks.  Used through the table by fa_probe and fa_ceiling_*.  No attention in here. */

#ifndef FA_REAL_F64
static vf through_f16(vf a) {
    uint16_t lanes[VF_LANES];
    vf_store_f16(lanes, a);
    return vf_load_f16(lanes);
}
static vf through_bf16(vf a) {
    uint16_t lanes[VF_LANES];
    vf_store_bf16(lanes, a);
    return vf_load_bf16(lanes);
}

static vf from_i8(vf a) {
    float lanes[VF_LANES];
    int8_t bytes[VF_LANES];
    vf_store(lanes, a);
    for (int i = 0; i < VF_LANES; i++) bytes[i] = (int8_t)lanes[i];
    return vf_load_i8(bytes);
}
#endif

/* out[i] = op(a[i], b[i], c[i]); operations across lanes see VF_LANES of them at a time. */
FA_INLINE int probe_vector(const char *op, vf a, vf b, vf c, vf *out) {
#define FA_PROBE(name, value)    \
    if (strcmp(op, name) == 0) { \
        *out = (value);          \
        return 1;                \
    }
    vf half;
    FA_PROBE("add", vf_add(a, b))
    FA_PROBE("sub", vf_sub(a, b))
    FA_PROBE("mul", vf_mul(a, b))
    FA_PROBE("div", vf_div(a, b))
    FA_PROBE("fma", vf_fma(a, b, c))
    FA_PROBE("max", vf_max(a, b))
    FA_PROBE("abs", vf_abs(a))
    FA_PROBE("copysign", vf_copysign(a, b))
    FA_PROBE("fraction", vf_fraction(a, &half))
    FA_PROBE("half_pow2", (vf_fraction(a, &half), half))
#ifndef FA_REAL_F64
    FA_PROBE("f16", through_f16(a))
    FA_PROBE("bf16", through_bf16(a))
    FA_PROBE("i8", from_i8(a))
#endif
    FA_PROBE("lt", vf_select(vm_lt(a, b), vf_set1(1.0f), vf_set1(0.0f)))
    FA_PROBE("eq", vf_select(vm_eq(a, b), vf_set1(1.0f), vf_set1(0.0f)))
    FA_PROBE("select", vf_select(vm_lt(a, vf_set1(0.0f)), b, c))
    FA_PROBE("iota", vf_iota())
    FA_PROBE("hsum", vf_set1(vf_hsum(a)))
    FA_PROBE("hmax", vf_set1(vf_hmax(a)))
    FA_PROBE("exp2", vf_exp2(a))
    FA_PROBE("exp_twice", vf_exp_twice(a, vf_set1(2.0f)))
    FA_PROBE("add_quotient", vf_add_quotient(a, b, c))
    FA_PROBE("tanh", vf_tanh(a))
#undef FA_PROBE
    return 0;
}

static int FA_NAME(probe)(const char *op, const void *first, const void *second, const void *third,
                          void *result, int64_t n) {
    const fa_real *a = first, *b = second, *c = third;
    fa_real *out = result;
    vf r = vf_set1(0.0f);
    if (strcmp(op, "lanes") == 0) { /* out[i] = VF_LANES */
        for (int64_t i = 0; i < n; i++) out[i] = (fa_real)VF_LANES;
        return 1;
    }
    if (strcmp(op, "transpose") == 0) { /* blocks of VF_LANES rows of VF_LANES numbers */
        for (int64_t i = 0; i + VF_LANES * VF_LANES <= n; i += VF_LANES * VF_LANES) {
            vf rows[VF_LANES];
            for (int x = 0; x < VF_LANES; x++) rows[x] = vf_load(a + i + x * VF_LANES);
            vf_transpose(rows);
            for (int x = 0; x < VF_LANES; x++) vf_store(out + i + x * VF_LANES, rows[x]);
        }
        return 1;
    }
    if (strcmp(op, "hsums") == 0) { /* the same blocks: sums of the rows */
        for (int64_t i = 0; i + VF_LANES * VF_LANES <= n; i += VF_LANES * VF_LANES) {
            vf rows[VF_LANES];
            for (int x = 0; x < VF_LANES; x++) rows[x] = vf_load(a + i + x * VF_LANES);
            vf_store(out + i / VF_LANES, vf_hsums(rows));
        }
        return 1;
    }
    if (strcmp(op, "bytes") ==
        0) { /* a holds bytes: out[i] = 1 where byte i is set, whole vectors */
        const uint8_t *bytes = (const uint8_t *)(const void *)a;
        for (int64_t i = 0; i + VF_LANES <= n; i += VF_LANES)
            vf_store(out + i, vf_select(vm_load_bytes(bytes + i), vf_set1(1.0f), vf_set1(0.0f)));
        return 1;
    }
    if (!probe_vector(op, r, r, r, &r)) return 0;
    for (int64_t i = 0; i < n; i += VF_LANES) {
        int left = (int)fa_min64(VF_LANES, n - i);
        probe_vector(op, vf_load_part(a + i, left), vf_load_part(b + i, left),
                     vf_load_part(c + i, left), &r);
        vf_store_part(out + i, r, left);
    }
    return 1;
}

#ifndef FA_REAL_F64
/* Independent chains: 12 hide 4 cycles of latency on up to three FMA units, and fit into 16 registers;
 * where the register block shows that there are more registers, 16 do it on four.  (gcc unrolls no
 * loop of more than 16 rounds on its own.) */
static double FA_NAME(ceiling_fma)(int64_t n_rounds) {
    enum { CHAINS = FA_MR * FA_NV > 12 ? 16 : 12 };
    vf acc[CHAINS], a = vf_set1(0.999999f), b = vf_set1(1e-6f), sum = vf_set1(0.0f);
    for (int i = 0; i < CHAINS; i++) acc[i] = vf_set1((fa_real)i);
    for (int64_t n = 0; n < n_rounds; n++)
        for (int i = 0; i < CHAINS; i++) acc[i] = vf_fma(a, b, acc[i]);
    for (int i = 0; i < CHAINS; i++) sum = vf_add(sum, acc[i]);
    volatile fa_real keep = vf_hsum(sum);
    (void)keep;
    return 2.0 * CHAINS * VF_LANES * (double)n_rounds;
}

/* Chains of x -> b / x: two steps lead back to x, so the numbers stay as they are.  8 hide the latency
 * (11 to 18 cycles on x86, a new division every 3 to 16). */
static double FA_NAME(ceiling_div)(int64_t n_rounds) {
    enum { CHAINS = 8 };
    vf x[CHAINS], b = vf_set1(1.7f), sum = vf_set1(0.0f);
    for (int i = 0; i < CHAINS; i++) x[i] = vf_set1(1.1f + (fa_real)i);
    for (int64_t n = 0; n < n_rounds; n++)
        for (int i = 0; i < CHAINS; i++) x[i] = vf_div(b, x[i]);
    for (int i = 0; i < CHAINS; i++) sum = vf_add(sum, x[i]);
    volatile fa_real keep = vf_hsum(sum);
    (void)keep;
    return (double)(CHAINS * VF_LANES) * (double)n_rounds;
}

static double FA_NAME(ceiling_read)(const fa_real *data, int64_t n) {
    enum { STREAMS = 8 };
    vf acc[STREAMS];
    int64_t i = 0;
    for (int x = 0; x < STREAMS; x++) acc[x] = vf_set1(0.0f);
    for (; i + STREAMS * VF_LANES <= n; i += STREAMS * VF_LANES)
        for (int x = 0; x < STREAMS; x++) acc[x] = vf_add(acc[x], vf_load(data + i + x * VF_LANES));
    for (; i < n; i++) acc[0] = vf_add(acc[0], vf_set1(data[i]));
    for (int x = 1; x < STREAMS; x++) acc[0] = vf_add(acc[0], acc[x]);
    return (double)vf_hsum(acc[0]);
}
#endif
