/* SPDX-License-Identifier: MIT
 * What every C file needs: attributes, restrict, assertions, small integer helpers.
 * Used by all of csrc/.  It knows compilers, nothing of attention. */
#ifndef FA_BASE_H
#define FA_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __FINITE_MATH_ONLY__
#if __FINITE_MATH_ONLY__
#error "fastattn needs infinities and NaN: never compile it with -ffast-math"
#endif
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define FA_INLINE static __forceinline
#define FA_NOINLINE static __declspec(noinline)
#define FA_RESTRICT __restrict
#define FA_LIKELY(x) (x)
#define FA_UNLIKELY(x) (x)
#define FA_PREFETCH(p) ((void)(p))
#define FA_PREFETCH_L2(p) ((void)(p))
#else
#define FA_INLINE static inline __attribute__((always_inline, unused))
#define FA_NOINLINE static __attribute__((noinline))
#define FA_RESTRICT __restrict__
#define FA_LIKELY(x) __builtin_expect(!!(x), 1)
#define FA_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define FA_PREFETCH(p) __builtin_prefetch(p)
#define FA_PREFETCH_L2(p) __builtin_prefetch(p, 0, 2)
#endif

/* Cache lines and the widest vector are both 64 bytes: all scratch is aligned to it. */
#define FA_ALIGN 64

/* FA_ASSERT states a contract between our own layers.  It is on in test builds
 * (-DFA_ASSERTS) and costs nothing in wheels; a user's mistake never reaches it. */
#ifdef FA_ASSERTS
#include <stdio.h>
#include <stdlib.h>
#define FA_ASSERT(cond) \
    ((cond)             \
         ? (void)0      \
         : (fprintf(stderr, "%s:%d: broken contract: %s\n", __FILE__, __LINE__, #cond), abort()))
#else
#define FA_ASSERT(cond) ((void)0)
#endif

FA_INLINE int64_t fa_min64(int64_t a, int64_t b) { return a < b ? a : b; }
FA_INLINE int64_t fa_max64(int64_t a, int64_t b) { return a > b ? a : b; }
FA_INLINE int fa_min(int a, int b) { return a < b ? a : b; }
FA_INLINE int fa_max(int a, int b) { return a > b ? a : b; }
FA_INLINE int64_t fa_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; } /* a >= 0, b > 0 */
FA_INLINE int64_t fa_round_up(int64_t a, int64_t b) { return fa_ceil_div(a, b) * b; }

#endif
