/* SPDX-License-Identifier: MIT
 * The vector vocabulary on AVX-512 (F, BW, DQ, VL): 16 lanes.  The contract of each wrapper is in
 * vec/scalar.h.  Used by isa/avx512.c, inside its target region. */

#define VF_LANES 16

/* 14 x 32: 28 sums, 2 vectors of B and 1 of A fill 31 of 32 registers.  Two FMA units of 4 cycles
 * want 8 sums in flight; 28 FMA take 14 cycles, and their 14 broadcasts and 2 vectors of B are 16
 * loads, 1.14 a cycle where the units have 2.  A broadcast costs no arithmetic unit here, and 32
 * columns divide the usual head sizes, so more rows, not wider ones, fill the registers.  A key panel
 * is 128 bytes per element of the head: 16 KiB at 128, half of the smallest first-level cache. */
#define FA_MR 14
#define FA_NV 2

/* 4 x 32 in additive scores: 8 sums and 4 factors of keys of 32 registers. */
#define FA_ADDITIVE_MR 4

typedef __m512 vf;
typedef __mmask16 vm;

FA_INLINE __mmask16 vm_first(int n) { return (__mmask16)((1u << n) - 1u); } /* the first n lanes */

FA_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
FA_INLINE vf vf_iota(void) {
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
FA_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
FA_INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
FA_INLINE vf vf_load_part(const float *p, int n) { return _mm512_maskz_loadu_ps(vm_first(n), p); }
FA_INLINE void vf_store_part(float *p, vf a, int n) { _mm512_mask_storeu_ps(p, vm_first(n), a); }
FA_INLINE vf vf_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
FA_INLINE vf vf_load_bf16(const uint16_t *p) {
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
FA_INLINE vf vf_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
FA_INLINE void vf_store_f16(uint16_t *p, vf a) {
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
FA_INLINE void vf_store_bf16(uint16_t *p, vf a) {
    __m512i u = _mm512_castps_si512(a),
            odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    r = _mm512_mask_blend_epi32(nan, r, _mm512_or_si512(u, _mm512_set1_epi32(0x400000)));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}
FA_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
FA_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
FA_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
FA_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
FA_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
FA_INLINE vf vf_add_quotient(vf a, vf b, vf c) {
    /* A division takes 16 cycles; an estimate of 14 bits and one step of Newton's take 4. */
    __m512 r = _mm512_rcp14_ps(b);
    r = _mm512_fmadd_ps(r, _mm512_fnmadd_ps(b, r, _mm512_set1_ps(1.0f)), r);
    return _mm512_fmadd_ps(a, r, c);
}
FA_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
FA_INLINE vf vf_abs(vf a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
FA_INLINE vf vf_copysign(vf a, vf b) {
    __m512 sign = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, b));
}
FA_INLINE vf vf_fraction(vf a, vf *half_pow2) {
    /* scalef takes two micro-operations, and so would a difference; these are one each. */
    __m512 t = _mm512_add_ps(a, _mm512_set1_ps(12583038.0f));
    *half_pow2 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23));
    return _mm512_reduce_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
FA_INLINE vm vm_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
FA_INLINE vm vm_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
FA_INLINE vm vm_load_bytes(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return _mm_test_epi8_mask(bytes, bytes);
}
FA_INLINE vf vf_select(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
FA_INLINE __m256 upper_half(vf a) {
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
}
FA_INLINE float vf_hsum(vf a) {
    __m256 q = _mm256_add_ps(_mm512_castps512_ps256(a), upper_half(a));
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(q), _mm256_extractf128_ps(q, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
FA_INLINE float vf_hmax(vf a) {
    __m256 q = _mm256_max_ps(_mm512_castps512_ps256(a), upper_half(a));
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(q), _mm256_extractf128_ps(q, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}
FA_INLINE __m512 add_pairs(__m512 a, __m512 b) { /* within 128 bits: a b a b */
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
FA_INLINE __m512 add_pairs2(__m512 a, __m512 b) { /* within 128 bits: a a b b */
    __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
FA_INLINE __m512 add_quarters(__m512 a, __m512 b) { /* quarters: a a b b */
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}
FA_INLINE vf vf_hsums(vf *v) {
    for (int i = 0; i < 8; i++) v[i] = add_pairs(v[2 * i], v[2 * i + 1]);
    for (int i = 0; i < 4; i++) v[i] = add_pairs2(v[2 * i], v[2 * i + 1]);
    for (int i = 0; i < 2; i++) v[i] = add_quarters(v[2 * i], v[2 * i + 1]);
    return add_quarters(v[0], v[1]);
}
FA_INLINE void vf_transpose(vf *rows) {
    __m512 t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    /* u[i + c], quarter L = element 4 L + c of rows i .. i + 3 */
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xEE);
        u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    for (int c = 0; c < 4; c++) { /* quarters of four vectors change places */
        __m512 a = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x44);
        __m512 b = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x44);
        __m512 d = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xEE);
        __m512 e = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xEE);
        rows[c] = _mm512_shuffle_f32x4(a, b, 0x88);
        rows[4 + c] = _mm512_shuffle_f32x4(a, b, 0xDD);
        rows[8 + c] = _mm512_shuffle_f32x4(d, e, 0x88);
        rows[12 + c] = _mm512_shuffle_f32x4(d, e, 0xDD);
    }
}
