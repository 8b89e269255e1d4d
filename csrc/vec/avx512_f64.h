/* SPDX-License-Identifier: MIT
 * The vector vocabulary on AVX-512 (F, BW, DQ, VL) for doubles: 8 lanes.  The contract of each wrapper
 * is in vec/scalar.h.  Used by isa/avx512_f64.c, inside its target region. */

#define VF_LANES 8

/* 14 x 16 and 4 x 16: as many vectors as for floats, for the same reasons (vec/avx512.h). */
#define FA_MR 14
#define FA_NV 2
#define FA_ADDITIVE_MR 4

typedef __m512d vf;
typedef __mmask8 vm;

FA_INLINE __mmask8 vm_first(int n) { return (__mmask8)((1u << n) - 1u); } /* the first n lanes */

FA_INLINE vf vf_set1(double x) { return _mm512_set1_pd(x); }
FA_INLINE vf vf_iota(void) { return _mm512_setr_pd(0, 1, 2, 3, 4, 5, 6, 7); }
FA_INLINE vf vf_load(const double *p) { return _mm512_loadu_pd(p); }
FA_INLINE void vf_store(double *p, vf a) { _mm512_storeu_pd(p, a); }
FA_INLINE vf vf_load_part(const double *p, int n) { return _mm512_maskz_loadu_pd(vm_first(n), p); }
FA_INLINE void vf_store_part(double *p, vf a, int n) { _mm512_mask_storeu_pd(p, vm_first(n), a); }
FA_INLINE vf vf_add(vf a, vf b) { return _mm512_add_pd(a, b); }
FA_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_pd(a, b); }
FA_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_pd(a, b); }
FA_INLINE vf vf_div(vf a, vf b) { return _mm512_div_pd(a, b); }
FA_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_pd(a, b, c); }
/* An estimate of 14 bits would take two steps of Newton's, and end further from the quotient. */
FA_INLINE vf vf_add_quotient(vf a, vf b, vf c) { return _mm512_add_pd(_mm512_div_pd(a, b), c); }
FA_INLINE vf vf_max(vf a, vf b) { return _mm512_max_pd(a, b); }
FA_INLINE vf vf_abs(vf a) { return _mm512_andnot_pd(_mm512_set1_pd(-0.0), a); }
FA_INLINE vf vf_copysign(vf a, vf b) {
    __m512d sign = _mm512_set1_pd(-0.0);
    return _mm512_or_pd(_mm512_andnot_pd(sign, a), _mm512_and_pd(sign, b));
}
FA_INLINE vf vf_fraction(vf a, vf *half_pow2) {
    __m512d t = _mm512_add_pd(a, _mm512_set1_pd(6755399441056766.0));
    *half_pow2 = _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(t), 52));
    return _mm512_reduce_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
FA_INLINE vm vm_lt(vf a, vf b) { return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ); }
FA_INLINE vm vm_eq(vf a, vf b) { return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ); }
FA_INLINE vm vm_load_bytes(const uint8_t *p) {
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return (__mmask8)_mm_test_epi8_mask(bytes, bytes);
}
FA_INLINE vf vf_select(vm m, vf a, vf b) { return _mm512_mask_blend_pd(m, b, a); }
FA_INLINE double vf_hsum(vf a) {
    __m256d q = _mm256_add_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1));
    __m128d h = _mm_add_pd(_mm256_castpd256_pd128(q), _mm256_extractf128_pd(q, 1));
    return _mm_cvtsd_f64(_mm_add_sd(h, _mm_unpackhi_pd(h, h)));
}
FA_INLINE double vf_hmax(vf a) {
    __m256d q = _mm256_max_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1));
    __m128d h = _mm_max_pd(_mm256_castpd256_pd128(q), _mm256_extractf128_pd(q, 1));
    return _mm_cvtsd_f64(_mm_max_sd(h, _mm_unpackhi_pd(h, h)));
}
FA_INLINE __m512d add_pairs(__m512d a, __m512d b) { /* within 128 bits: a b */
    return _mm512_add_pd(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
}
FA_INLINE __m512d add_quarters(__m512d a, __m512d b) { /* quarters: a a b b */
    return _mm512_add_pd(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xDD));
}
FA_INLINE vf vf_hsums(vf *v) {
    for (int i = 0; i < 4; i++) v[i] = add_pairs(v[2 * i], v[2 * i + 1]);
    for (int i = 0; i < 2; i++) v[i] = add_quarters(v[2 * i], v[2 * i + 1]);
    return add_quarters(v[0], v[1]);
}
FA_INLINE void vf_transpose(vf *rows) {
    __m512d t[8];
    /* t[i + c], quarter L = element 2 L + c of rows i and i + 1 */
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_pd(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_pd(rows[i], rows[i + 1]);
    }
    for (int c = 0; c < 2; c++) { /* quarters of four vectors change places */
        __m512d a = _mm512_shuffle_f64x2(t[c], t[2 + c], 0x44);
        __m512d b = _mm512_shuffle_f64x2(t[4 + c], t[6 + c], 0x44);
        __m512d d = _mm512_shuffle_f64x2(t[c], t[2 + c], 0xEE);
        __m512d e = _mm512_shuffle_f64x2(t[4 + c], t[6 + c], 0xEE);
        rows[c] = _mm512_shuffle_f64x2(a, b, 0x88);
        rows[2 + c] = _mm512_shuffle_f64x2(a, b, 0xDD);
        rows[4 + c] = _mm512_shuffle_f64x2(d, e, 0x88);
        rows[6 + c] = _mm512_shuffle_f64x2(d, e, 0xDD);
    }
}
