/* SPDX-License-Identifier: MIT
 * Target regions: code between FA_REGION_BEGIN and FA_REGION_END may use an instruction set that the
 * rest of the file may not.  Used by isa/ only.  No per-file compiler flag exists. */
#ifndef FA_REGION_H
#define FA_REGION_H

#include "base/base.h"

/* System headers must be included BEFORE the region: their functions must not be compiled for it. */
#define FA_PRAGMA(x) _Pragma(#x)
#if defined(__clang__)
#define FA_REGION_BEGIN(features) \
    FA_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define FA_REGION_END FA_PRAGMA(clang attribute pop)
#elif defined(__GNUC__)
#define FA_REGION_BEGIN(features) FA_PRAGMA(GCC push_options) FA_PRAGMA(GCC target(features))
#define FA_REGION_END FA_PRAGMA(GCC pop_options)
#else /* MSVC compiles every intrinsic everywhere */
#define FA_REGION_BEGIN(features)
#define FA_REGION_END
#endif

/* FA_NAME(sdpa_tile) is sdpa_tile__avx2 where FA_ISA is avx2: one grep lists all variants. */
#define FA_PASTE_(name, isa) name##__##isa
#define FA_PASTE(name, isa) FA_PASTE_(name, isa)
#define FA_NAME(name) FA_PASTE(name, FA_ISA)

#define FA_STRING_(x) #x
#define FA_STRING(x) FA_STRING_(x)

#endif
