/* SPDX-License-Identifier: MIT
 * The real numbers of a set of kernels: float, or double where FA_REAL_F64 is defined.
 * Used by isa/ before the vector headers, and so by vec/ and kernels/, which name no other type for their
 * scores, sums and packed numbers.  ops/ knows only how many bytes one has (fa_kernels.real_bytes). */
#ifndef FA_REAL_H
#define FA_REAL_H

#include "base/base.h"

#ifdef FA_REAL_F64
typedef double fa_real;
typedef uint64_t fa_real_bits;
#define FA_REAL_TYPE FA_F64
#define FA_REAL_MAX DBL_MAX
#define FA_REAL_MIN DBL_MIN
#define FA_REAL_MIN_EXP DBL_MIN_EXP
#define FA_REAL_DIGITS DBL_MANT_DIG
#define fa_real_abs fabs
#define fa_real_copysign copysign
#else
typedef float fa_real;
typedef uint32_t fa_real_bits;
#define FA_REAL_TYPE FA_F32
#define FA_REAL_MAX FLT_MAX
#define FA_REAL_MIN FLT_MIN
#define FA_REAL_MIN_EXP FLT_MIN_EXP
#define FA_REAL_DIGITS FLT_MANT_DIG
#define fa_real_abs fabsf
#define fa_real_copysign copysignf
#endif

#endif
