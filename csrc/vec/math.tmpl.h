/* SPDX-License-Identifier: MIT
 * Elementary functions in the vector vocabulary, written once for floats and (vec/math_f64.tmpl.h) once
 * for doubles.  Bounds: docs/numerics.md.  Used by the kernels.  No tables, no branches, no libm. */

#ifdef FA_REAL_F64
#include "vec/math_f64.tmpl.h"
#else

/* 2^x.  Error <= 2 ulp; 2^0 = 1 exactly; x <= -125.5 (-inf too) gives exactly 0, so no subnormal is
 * ever made; NaN stays NaN.  For x <= 127.5 only: above it the result is arbitrary (the kernels
 * subtract the row maximum first).
 * 2^x = 2^n 2^r with r in [-0.5, 0.5]; 2^r = 1 + r P(r), P of degree 4 minimising the error in ulp of
 * the result (1.05 before rounding: linear programming over Chebyshev nodes with the constant term
 * fixed to 1, then a search over the last bits of the coefficients against every float of
 * 1/8 <= |x| <= 1/2: 1.87 fused, 1.99 not).  What is computed is 2 * 2^r and 2^(n - 1), which is 0
 * at n = -126: so small x need no selection, only a limit. */
FA_INLINE vf vf_exp2(vf x) {
    vf scale, r = vf_fraction(vf_max(vf_set1(-126.0f), x), &scale);
    vf p = vf_set1(0x1.5aafe2p-9f);
    p = vf_fma(p, r, vf_set1(0x1.3ced0cp-6f));
    p = vf_fma(p, r, vf_set1(0x1.c6ba04p-4f));
    p = vf_fma(p, r, vf_set1(0x1.ebf9bp-2f));
    p = vf_fma(p, r, vf_set1(0x1.62e426p0f));
    p = vf_fma(p, r, vf_set1(2.0f));
    return vf_mul(p, scale);
}

/* tanh x, odd to the bit, +-1 at large |x|, NaN stays NaN; error <= 3 ulp everywhere, near 0 too.
 * Below 0.625: |x| + |x|^3 P(x^2), P of degree 4 minimising the relative error (0.07 * 2^-24, Remez).
 * Above: (1 - e) / (1 + e) with e = exp(-2 |x|), where nothing cancels badly any more. */
FA_INLINE vf vf_tanh(vf x) {
    vf z = vf_mul(x, x), big = vf_abs(x);
    vf p = vf_set1(-0x1.75e1d8p-8f);
    p = vf_fma(p, z, vf_set1(0x1.52269ep-6f));
    p = vf_fma(p, z, vf_set1(-0x1.b83c5ap-5f));
    p = vf_fma(p, z, vf_set1(0x1.110726p-3f));
    p = vf_fma(p, z, vf_set1(-0x1.555532p-2f));
    p = vf_fma(vf_mul(p, z), big, big);
    vf e = vf_exp2(vf_mul(big, vf_set1(-2.88539008f))); /* -2 log2(e) */
    vf one = vf_set1(1.0f);
    vf q = vf_div(vf_sub(one, e), vf_add(one, e));
    return vf_copysign(vf_select(vm_lt(big, vf_set1(0.625f)), p, q), x);
}

/* factor * e^(2x) for |x| <= 43 and half <= factor <= 2, given twice the factor; error <= 1.1 ulp: the
 * exponent is split before it is rounded, so that large x lose nothing.  Other x: arbitrary.
 * 2x = n ln2 + r with ln2 in two parts, the first of 9 bits, so that n times it is exact without a
 * fused multiply-add; e^r = 1 + (r + r^2 P(r)), Taylor to r^7: 5e-9 at |r| = ln2 / 2. */
FA_INLINE vf vf_exp_twice(vf x, vf twice_factor) {
    vf scale, x2 = vf_add(x, x), in_log2 = vf_mul(x2, vf_set1(1.44269504f));
    vf n = vf_sub(in_log2, vf_fraction(in_log2, &scale));
    vf r =
        vf_sub(vf_sub(x2, vf_mul(n, vf_set1(0.693359375f))), vf_mul(n, vf_set1(-2.12194440e-4f)));
    vf p = vf_set1(1.98412698e-4f);
    p = vf_fma(p, r, vf_set1(1.38888889e-3f));
    p = vf_fma(p, r, vf_set1(8.33333333e-3f));
    p = vf_fma(p, r, vf_set1(4.16666667e-2f));
    p = vf_fma(p, r, vf_set1(1.66666667e-1f));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, vf_mul(r, r), r);
    return vf_mul(vf_fma(p, twice_factor, twice_factor), scale); /* scale is half of 2^n */
}

#endif

/* 2^x for one number: kernels use it where a value belongs to a whole row. */
FA_INLINE fa_real exp2_one(fa_real x) {
    fa_real lanes[VF_LANES];
    vf_store(lanes, vf_exp2(vf_set1(x)));
    return lanes[0];
}
