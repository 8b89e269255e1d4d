/* SPDX-License-Identifier: MIT
 * The kernels of doubles compiled for AVX2 + FMA (Haswell, Zen and newer).
 * Used through the table fa_kernels__avx2_f64.  Holds no code of its own. */
#define FA_REAL_F64
#include "base/region.h"
#include "kernels/kernels.h"
#include "vec/real.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>

#define FA_ISA avx2_f64
FA_REGION_BEGIN("avx2,fma")
#include "vec/avx2_f64.h"

#include "kernels/all.tmpl.h"
FA_REGION_END
#else
typedef int
    fa_isa_avx2_f64_is_not_of_this_architecture; /* ISO C wants a declaration in every file */
#endif
