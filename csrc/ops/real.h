/* SPDX-License-Identifier: MIT
 * One number of an array of reals: floats or doubles, by their bytes (fa_kernels.real_bytes).
 * Used by ops/, whose code is the same for both; kernels know what they have. */
#ifndef FA_OPS_REAL_H
#define FA_OPS_REAL_H

#include <string.h>

#include "base/base.h"

FA_INLINE double fa_real_at(const void *reals, int64_t i, int real_bytes) {
    return real_bytes == 8 ? ((const double *)reals)[i] : ((const float *)reals)[i];
}

/* Rounds x to the reals' type. */
FA_INLINE void fa_real_put(void *reals, int64_t i, double x, int real_bytes) {
    if (real_bytes == 8)
        ((double *)reals)[i] = x;
    else
        ((float *)reals)[i] = (float)x;
}

#endif
