/* SPDX-License-Identifier: MIT
 * AVX-512 on machines without it: the intrinsics of vec/avx512.h as functions over AVX2, by SIMD
 * Everywhere.  Included by isa/avx512.c in a build with `-DFA_SIMDE -Itests/c -mavx2 -mfma`, whose
 * backend avx512 asks for AVX2 only.  It shows what the instructions mean, not how fast they are. */
#ifndef AVX512_SIMDE_H
#define AVX512_SIMDE_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include "vec/half.h"

/* What version 0.7.4 lacks, by Intel's description of each. */
static inline simde__m512 fa_maskz_loadu_ps(simde__mmask16 k, const float *p) {
    float lanes[16] = {0};
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) lanes[i] = p[i];
    return simde_mm512_loadu_ps(lanes);
}
static inline void fa_mask_storeu_ps(float *p, simde__mmask16 k, simde__m512 a) {
    float lanes[16];
    simde_mm512_storeu_ps(lanes, a);
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) p[i] = lanes[i];
}
static inline simde__m512d fa_maskz_loadu_pd(simde__mmask8 k, const double *p) {
    double lanes[8] = {0};
    for (int i = 0; i < 8; i++)
        if (k >> i & 1) lanes[i] = p[i];
    return simde_mm512_loadu_pd(lanes);
}
static inline void fa_mask_storeu_pd(double *p, simde__mmask8 k, simde__m512d a) {
    double lanes[8];
    simde_mm512_storeu_pd(lanes, a);
    for (int i = 0; i < 8; i++)
        if (k >> i & 1) p[i] = lanes[i];
}
static inline simde__mmask16 fa_test_epi8_mask(simde__m128i a, simde__m128i b) {
    uint8_t x[16], y[16];
    unsigned k = 0;
    simde_mm_storeu_si128((simde__m128i *)x, a);
    simde_mm_storeu_si128((simde__m128i *)y, b);
    for (int i = 0; i < 16; i++) k |= (unsigned)((x[i] & y[i]) != 0) << i;
    return (simde__mmask16)k;
}
static inline simde__m512
fa_rcp14_ps(simde__m512 a) { /* as wrong as the instruction may be: 2^-14 */
    float lanes[16];
    simde_mm512_storeu_ps(lanes, a);
    for (int i = 0; i < 16; i++)
        lanes[i] = (float)((1.0 + (i % 2 ? 0x1p-14 : -0x1p-14)) / lanes[i]);
    return simde_mm512_loadu_ps(lanes);
}
static inline simde__m512 fa_reduce_ps(simde__m512 a, int rounding) { /* imm8 with scale 1 */
    float lanes[16];
    simde_mm512_storeu_ps(lanes, a);
    (void)rounding; /* to nearest is the only one in use */
    for (int i = 0; i < 16; i++) lanes[i] -= nearbyintf(lanes[i]);
    return simde_mm512_loadu_ps(lanes);
}
static inline simde__m512d fa_reduce_pd(simde__m512d a, int rounding) { /* the same */
    double lanes[8];
    simde_mm512_storeu_pd(lanes, a);
    (void)rounding;
    for (int i = 0; i < 8; i++) lanes[i] -= nearbyint(lanes[i]);
    return simde_mm512_loadu_pd(lanes);
}
static inline simde__m512 fa_cvtph_ps(simde__m256i a) {
    uint16_t from[16];
    float lanes[16];
    simde_mm256_storeu_si256((simde__m256i *)from, a);
    for (int i = 0; i < 16; i++) lanes[i] = fa_from_f16(from[i]);
    return simde_mm512_loadu_ps(lanes);
}
static inline simde__m256i fa_cvtps_ph(simde__m512 a, int rounding) { /* to nearest */
    uint16_t to[16];
    float lanes[16];
    (void)rounding;
    simde_mm512_storeu_ps(lanes, a);
    for (int i = 0; i < 16; i++) to[i] = fa_to_f16(lanes[i]);
    return simde_mm256_loadu_si256((const simde__m256i *)to);
}
static inline simde__m512i fa_cvtepu16_epi32(simde__m256i a) {
    uint16_t from[16];
    uint32_t to[16];
    simde_mm256_storeu_si256((simde__m256i *)from, a);
    for (int i = 0; i < 16; i++) to[i] = from[i];
    return simde_mm512_loadu_si512(to);
}
static inline simde__m512i fa_cvtepi8_epi32(simde__m128i a) {
    int8_t from[16];
    int32_t to[16];
    simde_mm_storeu_si128((simde__m128i *)from, a);
    for (int i = 0; i < 16; i++) to[i] = from[i];
    return simde_mm512_loadu_si512(to);
}
static inline simde__m512 fa_cvtepi32_ps(simde__m512i a) {
    int32_t from[16];
    float to[16];
    simde_mm512_storeu_si512(from, a);
    for (int i = 0; i < 16; i++) to[i] = (float)from[i];
    return simde_mm512_loadu_ps(to);
}
static inline simde__m256i fa_cvtepi32_epi16(simde__m512i a) {
    uint32_t from[16];
    uint16_t to[16];
    simde_mm512_storeu_si512(from, a);
    for (int i = 0; i < 16; i++) to[i] = (uint16_t)from[i];
    return simde_mm256_loadu_si256((const simde__m256i *)to);
}
#define _mm512_cvtepu16_epi32(a) fa_cvtepu16_epi32(a)
#define _mm512_cvtepi8_epi32 fa_cvtepi8_epi32
#define _mm512_cvtepi32_ps fa_cvtepi32_ps
#define _mm512_cvtepi32_epi16(a) fa_cvtepi32_epi16(a)
#define _mm512_cvtph_ps(a) fa_cvtph_ps(a)
#define _mm512_cvtps_ph(a, imm) fa_cvtps_ph(a, imm)
#define _mm512_rcp14_ps(a) fa_rcp14_ps(a)
#define _mm512_reduce_ps(a, imm) fa_reduce_ps(a, imm)
#define _mm512_reduce_pd(a, imm) fa_reduce_pd(a, imm)
#define _mm512_maskz_loadu_pd(k, p) fa_maskz_loadu_pd(k, p)
#define _mm512_mask_storeu_pd(p, k, a) fa_mask_storeu_pd(p, k, a)
#define _mm512_maskz_loadu_ps(k, p) fa_maskz_loadu_ps(k, p)
#define _mm512_mask_storeu_ps(p, k, a) fa_mask_storeu_ps(p, k, a)
#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4(a, b, imm) simde_mm512_shuffle_f32x4(a, b, imm)
#undef _mm512_shuffle_f64x2
#define _mm512_shuffle_f64x2(a, b, imm) simde_mm512_shuffle_f64x2(a, b, imm)
#define _mm_test_epi8_mask(a, b) fa_test_epi8_mask(a, b)

#endif
