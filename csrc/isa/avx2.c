/* SPDX-License-Identifier: MIT
 * The kernels compiled for AVX2 + FMA + F16C (Haswell, Zen and newer).
 * Used through the table fa_kernels__avx2.  Holds no code of its own. */
#include "base/region.h"
#include "kernels/kernels.h"
#include "vec/real.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>

#define FA_ISA avx2
FA_REGION_BEGIN("avx2,fma,f16c")
#include "vec/avx2.h"

#include "kernels/all.tmpl.h"
FA_REGION_END
#else
typedef int fa_isa_avx2_is_not_of_this_architecture; /* ISO C wants a declaration in every file */
#endif
