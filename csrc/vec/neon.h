/* SPDX-License-Identifier: MIT
 * The vector vocabulary on 64-bit NEON: 4 lanes.  The contract of each wrapper is in vec/scalar.h.
 * Used by isa/neon.c.  Speed was not measured yet. */

#define VF_LANES 4

/* 5 x 16: 20 sums hide 4 cycles of latency on as many as four FMA pipes (16 would do), and with 4
 * vectors of B and 5 numbers of A they fill 29 of 32 registers.  All numbers of A count: an FMA takes
 * them from a lane, where each was loaded on its own, and compilers load them early (gcc 12 spills
 * sums at 6 x 16 and 8 x 12).  9 loads, 4 of them in pairs, per 20 FMA.  16 columns divide the usual
 * head sizes, where 12 leave a part of the last panel of values empty. */
#define FA_MR 5
#define FA_NV 4

/* 2 x 16 in additive scores: 8 sums and 8 factors of keys of 32 registers. */
#define FA_ADDITIVE_MR 2

typedef float32x4_t vf;
typedef uint32x4_t vm;

FA_INLINE vf vf_set1(float x) { return vdupq_n_f32(x); }
FA_INLINE vf vf_iota(void) {
    static const float lanes[4] = {0.0f, 1.0f, 2.0f, 3.0f};
    return vld1q_f32(lanes);
}
FA_INLINE vf vf_load(const float *p) { return vld1q_f32(p); }
FA_INLINE void vf_store(float *p, vf a) { vst1q_f32(p, a); }
FA_INLINE vf vf_load_part(const float *p, int n) {
    const float32x2_t none = vdup_n_f32(0.0f);
    switch (n) {
    case 0: return vdupq_n_f32(0.0f);
    case 1: return vcombine_f32(vld1_lane_f32(p, none, 0), none);
    case 2: return vcombine_f32(vld1_f32(p), none);
    case 3: return vcombine_f32(vld1_f32(p), vld1_lane_f32(p + 2, none, 0));
    default: return vld1q_f32(p);
    }
}
FA_INLINE void vf_store_part(float *p, vf a, int n) {
    if (n >= 4) {
        vst1q_f32(p, a);
        return;
    }
    if (n >= 2) vst1_f32(p, vget_low_f32(a));
    if (n == 1) vst1q_lane_f32(p, a, 0);
    if (n == 3) vst1q_lane_f32(p + 2, a, 2);
}
FA_INLINE vf vf_load_f16(const uint16_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
FA_INLINE vf vf_load_bf16(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
FA_INLINE vf vf_load_i8(const int8_t *p) {
    int32_t lanes;
    memcpy(&lanes, p, sizeof lanes);
    int8x8_t b = vreinterpret_s8_s32(vdup_n_s32(lanes));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(b))));
}
FA_INLINE void vf_store_f16(uint16_t *p, vf a) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}
FA_INLINE void vf_store_bf16(uint16_t *p, vf a) {
    uint32x4_t u = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    uint32x4_t r = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
    r = vbslq_u32(vceqq_f32(a, a), r, vorrq_u32(u, vdupq_n_u32(0x400000)));
    vst1_u16(p, vshrn_n_u32(r, 16));
}
FA_INLINE vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
FA_INLINE vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
FA_INLINE vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
FA_INLINE vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
FA_INLINE vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
FA_INLINE vf vf_add_quotient(vf a, vf b, vf c) { return vaddq_f32(vdivq_f32(a, b), c); }
FA_INLINE vf vf_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); } /* fmax keeps NaN */
FA_INLINE vf vf_abs(vf a) { return vabsq_f32(a); }
FA_INLINE vf vf_copysign(vf a, vf b) { return vbslq_f32(vdupq_n_u32(0x80000000u), b, a); }
FA_INLINE vf vf_fraction(vf a, vf *half_pow2) {
    const float32x4_t magic = vdupq_n_f32(12583038.0f);
    float32x4_t t = vaddq_f32(a, magic);
    *half_pow2 = vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(t), 23));
    return vsubq_f32(a, vsubq_f32(t, magic));
}
FA_INLINE vm vm_lt(vf a, vf b) { return vcltq_f32(a, b); }
FA_INLINE vm vm_eq(vf a, vf b) { return vceqq_f32(a, b); }
FA_INLINE vm vm_load_bytes(const uint8_t *p) {
    uint32_t four; /* exactly so many bytes may be read */
    memcpy(&four, p, sizeof four);
    uint16x8_t wide = vmovl_u8(vcreate_u8(four));
    uint32x4_t lanes = vmovl_u16(vget_low_u16(wide));
    return vtstq_u32(lanes, lanes);
}
FA_INLINE vf vf_select(vm m, vf a, vf b) { return vbslq_f32(m, a, b); }
FA_INLINE float vf_hsum(vf a) {
    float32x2_t h = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
FA_INLINE float vf_hmax(vf a) {
    float32x2_t low = vget_low_f32(a), high = vget_high_f32(a);
    float32x2_t h = vbsl_f32(vcgt_f32(low, high), low, high);
    float x = vget_lane_f32(h, 0), y = vget_lane_f32(h, 1);
    return x > y ? x : y;
}
FA_INLINE vf vf_hsums(vf *v) { return vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])); }
FA_INLINE void vf_transpose(vf *rows) {
    float32x4_t a = vtrn1q_f32(rows[0], rows[1]), b = vtrn2q_f32(rows[0], rows[1]);
    float32x4_t c = vtrn1q_f32(rows[2], rows[3]), d = vtrn2q_f32(rows[2], rows[3]);
    rows[0] = vcombine_f32(vget_low_f32(a), vget_low_f32(c));
    rows[1] = vcombine_f32(vget_low_f32(b), vget_low_f32(d));
    rows[2] = vcombine_f32(vget_high_f32(a), vget_high_f32(c));
    rows[3] = vcombine_f32(vget_high_f32(b), vget_high_f32(d));
}
