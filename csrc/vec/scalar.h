/* SPDX-License-Identifier: MIT
 * The vector vocabulary: the contract of every wrapper is written here and only here.
 * Used by kernels/.  This file is the one-lane implementation, which runs on every machine; the
 * others hold bodies only, of floats or of doubles.  It deliberately has no wrapper without a caller.
 *
 * vf is VF_LANES reals (vec/real.h), vm a truth value per lane.  No alignment is ever assumed.
 * Parts: (p, n) touches the first n reals only, 0 <= n <= VF_LANES; the other lanes load as 0. */
#define VF_LANES 1

/* The register block of the products in kernels/tile.tmpl.h: FA_MR rows of FA_NV vectors.  Eight
 * scalar sums leave room for operands in the sixteen registers that every x86-64 and Arm has. */
#define FA_MR 4
#define FA_NV 2

/* Rows of the register block of kernels/additive.tmpl.h, which has FA_NV vectors of keys too. */
#define FA_ADDITIVE_MR 2

typedef fa_real vf;
typedef int vm;

#ifndef FA_REAL_F64
/* 16-bit floats: IEEE binary16 and bfloat16.  Loads are exact, stores round to nearest, ties to even;
 * NaN stays NaN. */
FA_INLINE vf vf_load_f16(const uint16_t *p) { return fa_from_f16(*p); }
FA_INLINE vf vf_load_bf16(const uint16_t *p) { return fa_from_bf16(*p); }
FA_INLINE void vf_store_f16(uint16_t *p, vf a) { *p = fa_to_f16(a); }
FA_INLINE void vf_store_bf16(uint16_t *p, vf a) { *p = fa_to_bf16(a); }
/* 8-bit integers. */
FA_INLINE vf vf_load_i8(const int8_t *p) { return (vf)*p; }
#endif
/* All lanes x. */
FA_INLINE vf vf_set1(fa_real x) { return x; }
/* Lane i holds i. */
FA_INLINE vf vf_iota(void) { return 0.0f; }
FA_INLINE vf vf_load(const fa_real *p) { return *p; }
FA_INLINE void vf_store(fa_real *p, vf a) { *p = a; }
FA_INLINE vf vf_load_part(const fa_real *p, int n) { return n > 0 ? *p : 0.0f; }
FA_INLINE void vf_store_part(fa_real *p, vf a, int n) {
    if (n > 0) *p = a;
}
FA_INLINE vf vf_add(vf a, vf b) { return a + b; }
FA_INLINE vf vf_sub(vf a, vf b) { return a - b; }
FA_INLINE vf vf_mul(vf a, vf b) { return a * b; }
FA_INLINE vf vf_div(vf a, vf b) { return a / b; }
/* a * b + c, with one rounding where the machine has it in hardware, else with two. */
FA_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
/* a / b + c, the quotient within 2.5 ulp, for 1 <= b <= 2^126 (doubles: 2^1020) and finite a. */
FA_INLINE vf vf_add_quotient(vf a, vf b, vf c) { return (vf)((double)a / b + c); }
/* a > b ? a : b, so b where either is NaN. */
FA_INLINE vf vf_max(vf a, vf b) { return a > b ? a : b; }
/* The sign bit cleared; NaN stays NaN. */
FA_INLINE vf vf_abs(vf a) { return fa_real_abs(a); }
/* |a| with the sign of b, zeros and NaN included. */
FA_INLINE vf vf_copysign(vf a, vf b) { return fa_real_copysign(a, b); }
/* For |a| <= 2^21 (doubles: 2^50): a - n exactly, with n = a rounded to the nearest integer (ties to
 * even); and for -126 < n <= 128 (-1022 < n <= 1024) *half_pow2 = 2^(n - 1), for n = -126 (-1022) it is
 * 0.  Other a: no trap, both results arbitrary; NaN gives NaN.
 * The low bits of a + 2^23 * 1.5 + 126 are n + 126, in two's complement: the exponent of 2^(n - 1);
 * those of a + 2^52 * 1.5 + 1022 for doubles. */
FA_INLINE vf vf_fraction(vf a, vf *half_pow2) {
    const fa_real magic = (fa_real)(3 * ((int64_t)1 << (FA_REAL_DIGITS - 2)) + 1 - FA_REAL_MIN_EXP);
    union {
        fa_real f;
        fa_real_bits u;
    } t, p;
    t.f = a + magic;
    p.u = t.u << (FA_REAL_DIGITS - 1);
    *half_pow2 = p.f;
    return a - (t.f - magic);
}
/* a < b; false where either is NaN. */
FA_INLINE vm vm_lt(vf a, vf b) { return a < b; }
/* a == b; false where either is NaN. */
FA_INLINE vm vm_eq(vf a, vf b) { return a == b; }
/* Lane i is true where p[i] != 0; reads VF_LANES bytes. */
FA_INLINE vm vm_load_bytes(const uint8_t *p) { return *p != 0; }
/* m ? a : b per lane. */
FA_INLINE vf vf_select(vm m, vf a, vf b) { return m ? a : b; }
/* The sum (maximum) of the lanes, always in the same order of pairs: halves, then quarters, ... */
FA_INLINE fa_real vf_hsum(vf a) { return a; }
FA_INLINE fa_real vf_hmax(vf a) { return a; }
/* Lane i holds the sum of the lanes of v[i], for VF_LANES vectors, always in the same order; v is
 * used up. */
FA_INLINE vf vf_hsums(vf *v) { return v[0]; }
/* In place: lane j of rows[i] and lane i of rows[j] change places, for VF_LANES rows. */
FA_INLINE void vf_transpose(vf *rows) { (void)rows; }
