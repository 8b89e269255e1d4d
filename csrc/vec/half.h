/* SPDX-License-Identifier: MIT
 * One number of a 16-bit float type: IEEE binary16 and bfloat16, by their bits.
 * Used by vec/ where there are no instructions for it, and by kernels/ where speed does not matter. */
#ifndef FA_HALF_H
#define FA_HALF_H

#include <string.h>

#include "base/base.h"

FA_INLINE uint32_t fa_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
FA_INLINE float fa_from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Exact: subnormals, infinities and NaN included. */
FA_INLINE float fa_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u) return fa_from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x400u) return fa_from_bits(sign | ((rest << 13) + 0x38000000u));
    return fa_from_bits(sign | fa_bits((float)rest * 0x1p-24f));
}
FA_INLINE float fa_from_bf16(uint16_t h) { return fa_from_bits((uint32_t)h << 16); }

/* To nearest, ties to even; beyond the range to infinity; NaN stays NaN. */
FA_INLINE uint16_t fa_to_bf16(float x) {
    uint32_t u = fa_bits(x);
    if (x != x) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
FA_INLINE uint16_t fa_to_f16(float x) {
    uint32_t u = fa_bits(x), rest = u & 0x7fffffffu;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    if (rest > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x1ffu));
    if (rest >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and more */
    if (rest < 0x38800000u) { /* below 2^-14: the sum has the subnormal's bits at its end */
        float sum = fa_from_bits(rest) + 0.5f;
        return (uint16_t)(sign | (fa_bits(sum) - 0x3f000000u));
    }
    rest += 0xfffu + (rest >> 13 & 1u);
    return (uint16_t)(sign | (rest - 0x38000000u) >> 13);
}

#endif
