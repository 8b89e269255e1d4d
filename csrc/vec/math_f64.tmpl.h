/* SPDX-License-Identifier: MIT
 * Elementary functions of doubles.  The contracts are those of vec/math.tmpl.h with other numbers.
 * Used by vec/math.tmpl.h.  No tables, no branches, no libm. */

/* 2^x.  Error <= 2 ulp; 2^0 = 1 exactly; x <= -1021.5 (-inf too) gives exactly 0; NaN stays NaN.  For
 * x <= 1023.5 only: above it the result is arbitrary.
 * 2^r = 1 + r P(r), P of degree 10 minimising the relative error (Remez: 0.03 * 2^-53).  What is
 * computed is 2 * 2^r and 2^(n - 1), which is 0 at n = -1022. */
FA_INLINE vf vf_exp2(vf x) {
    vf scale, r = vf_fraction(vf_max(vf_set1(-1022.0), x), &scale);
    vf p = vf_set1(0x1.e79bad2ff5cabp-31);
    p = vf_fma(p, r, vf_set1(0x1.e61b4fbb13d20p-27));
    p = vf_fma(p, r, vf_set1(0x1.b5267ce60a310p-23));
    p = vf_fma(p, r, vf_set1(0x1.62bfc79d3e11bp-19));
    p = vf_fma(p, r, vf_set1(0x1.ffcbfba97e823p-16));
    p = vf_fma(p, r, vf_set1(0x1.4309130ed8d08p-12));
    p = vf_fma(p, r, vf_set1(0x1.5d87fe78cd6d3p-9));
    p = vf_fma(p, r, vf_set1(0x1.3b2ab6fba011ap-6));
    p = vf_fma(p, r, vf_set1(0x1.c6b08d7049fe8p-4));
    p = vf_fma(p, r, vf_set1(0x1.ebfbdff82c5a4p-2));
    p = vf_fma(p, r, vf_set1(0x1.62e42fefa39efp+0));
    p = vf_fma(p, r, vf_set1(2.0));
    return vf_mul(p, scale);
}

/* tanh x, odd to the bit, +-1 at large |x|, NaN stays NaN; error <= 3 ulp everywhere, near 0 too.
 * Below 0.625: |x| + |x|^3 P(x^2), P of degree 10 minimising the relative error (Remez:
 * 0.09 * 2^-53).  Above: (1 - e) / (1 + e) with e = exp(-2 |x|). */
FA_INLINE vf vf_tanh(vf x) {
    vf z = vf_mul(x, x), big = vf_abs(x);
    vf p = vf_set1(-0x1.0da7411f68967p-16);
    p = vf_fma(p, z, vf_set1(0x1.43912f18069cdp-14));
    p = vf_fma(p, z, vf_set1(-0x1.df55801dc16f6p-13));
    p = vf_fma(p, z, vf_set1(0x1.336613bd3a76dp-11));
    p = vf_fma(p, z, vf_set1(-0x1.7d68a353369aep-10));
    p = vf_fma(p, z, vf_set1(0x1.d6cf28127e3d3p-9));
    p = vf_fma(p, z, vf_set1(-0x1.226e162c17555p-7));
    p = vf_fma(p, z, vf_set1(0x1.664f477adc17cp-6));
    p = vf_fma(p, z, vf_set1(-0x1.ba1ba1b50652ep-5));
    p = vf_fma(p, z, vf_set1(0x1.111111110accep-3));
    p = vf_fma(p, z, vf_set1(-0x1.55555555554ffp-2));
    p = vf_fma(vf_mul(p, z), big, big);
    vf e = vf_exp2(vf_mul(big, vf_set1(-2.8853900817779268))); /* -2 log2(e) */
    vf one = vf_set1(1.0);
    vf q = vf_div(vf_sub(one, e), vf_add(one, e));
    return vf_copysign(vf_select(vm_lt(big, vf_set1(0.625)), p, q), x);
}

/* factor * e^(2x) for |x| <= 354, given twice the factor, which is 1; error <= 1.1 ulp.  Other x:
 * arbitrary.
 * 2x = n ln2 + r with ln2 in two parts, the first of 32 bits, so that n times it is exact;
 * e^r = 1 + (r + r^2 P(r)), Taylor to r^13: 4e-18 at |r| = ln2 / 2. */
FA_INLINE vf vf_exp_twice(vf x, vf twice_factor) {
    vf scale, x2 = vf_add(x, x), in_log2 = vf_mul(x2, vf_set1(1.4426950408889634));
    vf n = vf_sub(in_log2, vf_fraction(in_log2, &scale));
    vf r = vf_sub(vf_sub(x2, vf_mul(n, vf_set1(0x1.62e42feep-1))),
                  vf_mul(n, vf_set1(0x1.a39ef35793c76p-33)));
    vf p = vf_set1(0x1.6124613a86d09p-33); /* 1 / 13! */
    p = vf_fma(p, r, vf_set1(0x1.1eed8eff8d898p-29));
    p = vf_fma(p, r, vf_set1(0x1.ae64567f544e4p-26));
    p = vf_fma(p, r, vf_set1(0x1.27e4fb7789f5cp-22));
    p = vf_fma(p, r, vf_set1(0x1.71de3a556c734p-19));
    p = vf_fma(p, r, vf_set1(0x1.a01a01a01a01ap-16));
    p = vf_fma(p, r, vf_set1(0x1.a01a01a01a01ap-13));
    p = vf_fma(p, r, vf_set1(0x1.6c16c16c16c17p-10));
    p = vf_fma(p, r, vf_set1(0x1.1111111111111p-7));
    p = vf_fma(p, r, vf_set1(0x1.5555555555555p-5));
    p = vf_fma(p, r, vf_set1(0x1.5555555555555p-3));
    p = vf_fma(p, r, vf_set1(0.5));
    p = vf_fma(p, vf_mul(r, r), r);
    return vf_mul(vf_fma(p, twice_factor, twice_factor), scale); /* scale is half of 2^n */
}
