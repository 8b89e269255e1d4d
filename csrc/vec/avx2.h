/* SPDX-License-Identifier: MIT
 * The vector vocabulary on AVX2 + FMA: 8 lanes.  The contract of each wrapper is in vec/scalar.h.
 * Used by isa/avx2.c, inside its target region. */

#define VF_LANES 8

/* 6 x 16: 12 sums hide the 4-cycle latency of two FMA units (8 would do), and with 2 vectors of B
 * and 1 of A they fill 15 of 16 registers; loads are 8 per 12 FMA, under the 2 a cycle of the units. */
#define FA_MR 6
#define FA_NV 2

/* 2 x 16 in additive scores: 4 sums of quotients (each a chain of additions only) and 4 factors of
 * keys leave 8 registers for the operands in flight. */
#define FA_ADDITIVE_MR 2

/* Decode of floats: keys and values of the next tile are fetched in turn, into the second-level cache
 * (Zen 3: +10 to +18 %; with fewer bytes for the arithmetic -10 %).  Elsewhere it was not tried. */
#define FA_FETCH_PAIRS 1

typedef __m256 vf;
typedef __m256 vm;

FA_INLINE __m256i vm_first(int n) { /* the first n lanes: all ones */
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

FA_INLINE vf vf_set1(float x) { return _mm256_set1_ps(x); }
FA_INLINE vf vf_iota(void) { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
FA_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
FA_INLINE void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
FA_INLINE vf vf_load_part(const float *p, int n) { return _mm256_maskload_ps(p, vm_first(n)); }
FA_INLINE void vf_store_part(float *p, vf a, int n) { _mm256_maskstore_ps(p, vm_first(n), a); }
FA_INLINE vf vf_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
FA_INLINE vf vf_load_bf16(const uint16_t *p) {
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
FA_INLINE vf vf_load_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
FA_INLINE void vf_store_f16(uint16_t *p, vf a) {
    __m128i h = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128((__m128i *)(void *)p, h);
}
FA_INLINE void vf_store_bf16(uint16_t *p, vf a) {
    __m256i u = _mm256_castps_si256(a),
            odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    r = _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(quiet), nan));
    r = _mm256_srli_epi32(r, 16);
    r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(r));
}
FA_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
FA_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
FA_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
FA_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
FA_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
FA_INLINE vf vf_add_quotient(vf a, vf b, vf c) {
    /* A division takes 8 cycles on Intel, 4 on AMD; an estimate of 11.4 bits and one step of Newton's
     * take 2. */
    __m256 r = _mm256_rcp_ps(b);
    r = _mm256_fmadd_ps(r, _mm256_fnmadd_ps(b, r, _mm256_set1_ps(1.0f)), r);
    return _mm256_fmadd_ps(a, r, c);
}
FA_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
FA_INLINE vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
FA_INLINE vf vf_copysign(vf a, vf b) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, b));
}
FA_INLINE vf vf_fraction(vf a, vf *half_pow2) {
    const __m256 magic = _mm256_set1_ps(12583038.0f);
    __m256 t = _mm256_add_ps(a, magic);
    *half_pow2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
    return _mm256_sub_ps(a, _mm256_sub_ps(t, magic));
}
FA_INLINE vm vm_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
FA_INLINE vm vm_eq(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
FA_INLINE vm vm_load_bytes(const uint8_t *p) {
    __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(wide, _mm256_setzero_si256()));
}
FA_INLINE vf vf_select(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); }
FA_INLINE float vf_hsum(vf a) {
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
FA_INLINE float vf_hmax(vf a) {
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}
FA_INLINE vf vf_hsums(vf *v) {
    for (int i = 0; i < 4; i++) v[i] = _mm256_hadd_ps(v[2 * i], v[2 * i + 1]);
    for (int i = 0; i < 2; i++) v[i] = _mm256_hadd_ps(v[2 * i], v[2 * i + 1]);
    /* v[i] = halves of the sums of vectors 4 i .. 4 i + 3, each half in 128 bits */
    return _mm256_add_ps(_mm256_permute2f128_ps(v[0], v[1], 0x20),
                         _mm256_permute2f128_ps(v[0], v[1], 0x31));
}
FA_INLINE void vf_transpose(vf *rows) {
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        rows[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}
