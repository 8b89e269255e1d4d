/* SPDX-License-Identifier: MIT
 * The vector vocabulary on AVX2 + FMA for doubles: 4 lanes.  The contract of each wrapper is in
 * vec/scalar.h.  Used by isa/avx2_f64.c, inside its target region. */

#define VF_LANES 4

/* 6 x 8 and 2 x 8: as many vectors as for floats, for the same reasons (vec/avx2.h). */
#define FA_MR 6
#define FA_NV 2
#define FA_ADDITIVE_MR 2

typedef __m256d vf;
typedef __m256d vm;

FA_INLINE __m256i vm_first(int n) { /* the first n lanes: all ones */
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}

FA_INLINE vf vf_set1(double x) { return _mm256_set1_pd(x); }
FA_INLINE vf vf_iota(void) { return _mm256_setr_pd(0, 1, 2, 3); }
FA_INLINE vf vf_load(const double *p) { return _mm256_loadu_pd(p); }
FA_INLINE void vf_store(double *p, vf a) { _mm256_storeu_pd(p, a); }
FA_INLINE vf vf_load_part(const double *p, int n) { return _mm256_maskload_pd(p, vm_first(n)); }
FA_INLINE void vf_store_part(double *p, vf a, int n) { _mm256_maskstore_pd(p, vm_first(n), a); }
FA_INLINE vf vf_add(vf a, vf b) { return _mm256_add_pd(a, b); }
FA_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_pd(a, b); }
FA_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_pd(a, b); }
FA_INLINE vf vf_div(vf a, vf b) { return _mm256_div_pd(a, b); }
FA_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_pd(a, b, c); }
/* There is no estimate of 1 / b for doubles here. */
FA_INLINE vf vf_add_quotient(vf a, vf b, vf c) { return _mm256_add_pd(_mm256_div_pd(a, b), c); }
FA_INLINE vf vf_max(vf a, vf b) { return _mm256_max_pd(a, b); }
FA_INLINE vf vf_abs(vf a) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), a); }
FA_INLINE vf vf_copysign(vf a, vf b) {
    __m256d sign = _mm256_set1_pd(-0.0);
    return _mm256_or_pd(_mm256_andnot_pd(sign, a), _mm256_and_pd(sign, b));
}
FA_INLINE vf vf_fraction(vf a, vf *half_pow2) {
    const __m256d magic = _mm256_set1_pd(6755399441056766.0);
    __m256d t = _mm256_add_pd(a, magic);
    *half_pow2 = _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(t), 52));
    return _mm256_sub_pd(a, _mm256_sub_pd(t, magic));
}
FA_INLINE vm vm_lt(vf a, vf b) { return _mm256_cmp_pd(a, b, _CMP_LT_OQ); }
FA_INLINE vm vm_eq(vf a, vf b) { return _mm256_cmp_pd(a, b, _CMP_EQ_OQ); }
FA_INLINE vm vm_load_bytes(const uint8_t *p) {
    int32_t four; /* exactly so many bytes may be read */
    memcpy(&four, p, sizeof four);
    __m256i wide = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
    return _mm256_castsi256_pd(_mm256_cmpgt_epi64(wide, _mm256_setzero_si256()));
}
FA_INLINE vf vf_select(vm m, vf a, vf b) { return _mm256_blendv_pd(b, a, m); }
FA_INLINE double vf_hsum(vf a) {
    __m128d h = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(h, _mm_unpackhi_pd(h, h)));
}
FA_INLINE double vf_hmax(vf a) {
    __m128d h = _mm_max_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_max_sd(h, _mm_unpackhi_pd(h, h)));
}
FA_INLINE vf vf_hsums(vf *v) {
    for (int i = 0; i < 2; i++) v[i] = _mm256_hadd_pd(v[2 * i], v[2 * i + 1]);
    /* v[i] = halves of the sums of vectors 2 i and 2 i + 1, each half in 128 bits */
    return _mm256_add_pd(_mm256_permute2f128_pd(v[0], v[1], 0x20),
                         _mm256_permute2f128_pd(v[0], v[1], 0x31));
}
FA_INLINE void vf_transpose(vf *rows) {
    __m256d t[4];
    for (int i = 0; i < 4; i += 2) {
        t[i] = _mm256_unpacklo_pd(rows[i], rows[i + 1]);
        t[i + 1] = _mm256_unpackhi_pd(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        rows[i] = _mm256_permute2f128_pd(t[i], t[i + 2], 0x20);
        rows[i + 2] = _mm256_permute2f128_pd(t[i], t[i + 2], 0x31);
    }
}
