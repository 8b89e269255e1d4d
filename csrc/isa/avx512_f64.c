/* SPDX-License-Identifier: MIT
 * The kernels of doubles compiled for AVX-512 F, BW, DQ and VL (Skylake server, Zen 4 and newer).
 * Used through the table fa_kernels__avx512_f64.  Holds no code of its own. */
#define FA_REAL_F64
#include "base/region.h"
#include "kernels/kernels.h"
#include "vec/real.h"

#if defined(__x86_64__) || defined(_M_X64)
#ifdef FA_SIMDE /* a test build whose intrinsics are functions over AVX2: see tests/c */
#include <avx512_simde.h>
#define FA_TARGET "avx2,fma,f16c"
#else
#include <immintrin.h>
#define FA_TARGET "avx512f,avx512bw,avx512dq,avx512vl"
#endif

#define FA_ISA avx512_f64
FA_REGION_BEGIN(FA_TARGET)
#include "vec/avx512_f64.h"

#include "kernels/all.tmpl.h"
FA_REGION_END
#else
typedef int
    fa_isa_avx512_f64_is_not_of_this_architecture; /* ISO C wants a declaration in every file */
#endif
