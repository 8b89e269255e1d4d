/* SPDX-License-Identifier: MIT
 * The kernels compiled for NEON (every 64-bit Arm: it needs no target region).
 * Used through the table fa_kernels__neon.  Holds no code of its own. */
#include "base/region.h"
#include "kernels/kernels.h"
#include "vec/real.h"

#if (defined(__aarch64__) && !defined(__ARM_BIG_ENDIAN)) || defined(_M_ARM64)
#include <arm_neon.h>

#define FA_ISA neon
#include "vec/neon.h"

#include "kernels/all.tmpl.h"
#else
typedef int fa_isa_neon_is_not_of_this_architecture; /* ISO C wants a declaration in every file */
#endif
