/* SPDX-License-Identifier: MIT
 * The vector vocabulary on 64-bit NEON for doubles: 2 lanes.  The contract of each wrapper is in
 * vec/scalar.h.  Used by isa/neon_f64.c.  Speed was not measured yet. */

#define VF_LANES 2

/* 5 x 8 and 2 x 8: as many vectors as for floats, for the same reasons (vec/neon.h). */
#define FA_MR 5
#define FA_NV 4
#define FA_ADDITIVE_MR 2

typedef float64x2_t vf;
typedef uint64x2_t vm;

FA_INLINE vf vf_set1(double x) { return vdupq_n_f64(x); }
FA_INLINE vf vf_iota(void) {
    static const double lanes[2] = {0.0, 1.0};
    return vld1q_f64(lanes);
}
FA_INLINE vf vf_load(const double *p) { return vld1q_f64(p); }
FA_INLINE void vf_store(double *p, vf a) { vst1q_f64(p, a); }
FA_INLINE vf vf_load_part(const double *p, int n) {
    if (n >= 2) return vld1q_f64(p);
    return n == 1 ? vld1q_lane_f64(p, vdupq_n_f64(0.0), 0) : vdupq_n_f64(0.0);
}
FA_INLINE void vf_store_part(double *p, vf a, int n) {
    if (n >= 2)
        vst1q_f64(p, a);
    else if (n == 1)
        vst1q_lane_f64(p, a, 0);
}
FA_INLINE vf vf_add(vf a, vf b) { return vaddq_f64(a, b); }
FA_INLINE vf vf_sub(vf a, vf b) { return vsubq_f64(a, b); }
FA_INLINE vf vf_mul(vf a, vf b) { return vmulq_f64(a, b); }
FA_INLINE vf vf_div(vf a, vf b) { return vdivq_f64(a, b); }
FA_INLINE vf vf_fma(vf a, vf b, vf c) { return vfmaq_f64(c, a, b); }
FA_INLINE vf vf_add_quotient(vf a, vf b, vf c) { return vaddq_f64(vdivq_f64(a, b), c); }
FA_INLINE vf vf_max(vf a, vf b) { return vbslq_f64(vcgtq_f64(a, b), a, b); } /* fmax keeps NaN */
FA_INLINE vf vf_abs(vf a) { return vabsq_f64(a); }
FA_INLINE vf vf_copysign(vf a, vf b) { return vbslq_f64(vdupq_n_u64((uint64_t)1 << 63), b, a); }
FA_INLINE vf vf_fraction(vf a, vf *half_pow2) {
    const float64x2_t magic = vdupq_n_f64(6755399441056766.0);
    float64x2_t t = vaddq_f64(a, magic);
    *half_pow2 = vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(t), 52));
    return vsubq_f64(a, vsubq_f64(t, magic));
}
FA_INLINE vm vm_lt(vf a, vf b) { return vcltq_f64(a, b); }
FA_INLINE vm vm_eq(vf a, vf b) { return vceqq_f64(a, b); }
FA_INLINE vm vm_load_bytes(const uint8_t *p) {
    uint64x2_t lanes = vcombine_u64(vcreate_u64(p[0]), vcreate_u64(p[1]));
    return vtstq_u64(lanes, lanes);
}
FA_INLINE vf vf_select(vm m, vf a, vf b) { return vbslq_f64(m, a, b); }
FA_INLINE double vf_hsum(vf a) { return vgetq_lane_f64(a, 0) + vgetq_lane_f64(a, 1); }
FA_INLINE double vf_hmax(vf a) {
    double x = vgetq_lane_f64(a, 0), y = vgetq_lane_f64(a, 1);
    return x > y ? x : y;
}
FA_INLINE vf vf_hsums(vf *v) { return vpaddq_f64(v[0], v[1]); }
FA_INLINE void vf_transpose(vf *rows) {
    float64x2_t a = vtrn1q_f64(rows[0], rows[1]), b = vtrn2q_f64(rows[0], rows[1]);
    rows[0] = a;
    rows[1] = b;
}
