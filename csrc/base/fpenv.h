/* SPDX-License-Identifier: MIT
 * The floating-point environment of a thread: put away, set to the default, put back.
 * Used by pool.c around all tasks, so kernels may rely on the default; C code that computes outside
 * of tasks uses it too.  It knows only the registers that our arithmetic depends on.
 *
 *     fa_fpenv env = fa_fpenv_enter();  subnormals kept, round to nearest, no traps, no flags
 *     compute(...);
 *     fa_fpenv_leave(&env);             all as before, sticky flags included
 *
 * compute() must be a call that the compiler cannot look into (a function pointer, another file):
 * it may move arithmetic across a register write.  Pairs may nest. */
#ifndef FA_FPENV_H
#define FA_FPENV_H

#include "base/base.h"

#if defined(__x86_64__) || defined(__SSE2_MATH__) || (defined(_M_X64) && !defined(_M_ARM64EC)) || \
    (defined(_M_IX86_FP) && _M_IX86_FP >= 2)
#include <xmmintrin.h>

#define FA_MXCSR_DEFAULT 0x1f80u /* all six exceptions masked, everything else zero */

typedef struct fa_fpenv {
    unsigned mxcsr;
} fa_fpenv;

FA_INLINE fa_fpenv fa_fpenv_enter(void) {
    fa_fpenv env = {_mm_getcsr()};
    _mm_setcsr(FA_MXCSR_DEFAULT);
    return env;
}
FA_INLINE void fa_fpenv_leave(const fa_fpenv *env) { _mm_setcsr(env->mxcsr); }

#elif defined(__aarch64__) || defined(_M_ARM64)

/* Default: control and status both zero. */
typedef struct fa_fpenv {
    uint64_t fpcr, fpsr;
} fa_fpenv;

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#define FA_FPCR 0x5a20 /* op0 3, op1 3, CRn 4, CRm 4, op2 0 */
#define FA_FPSR 0x5a21
FA_INLINE void fa_fpenv_leave(const fa_fpenv *env) {
    _WriteStatusReg(FA_FPCR, (__int64)env->fpcr);
    _WriteStatusReg(FA_FPSR, (__int64)env->fpsr);
}
FA_INLINE fa_fpenv fa_fpenv_enter(void) {
    fa_fpenv env = {(uint64_t)_ReadStatusReg(FA_FPCR), (uint64_t)_ReadStatusReg(FA_FPSR)};
    fa_fpenv zero = {0, 0};
    fa_fpenv_leave(&zero);
    return env;
}
#else
FA_INLINE void fa_fpenv_leave(const fa_fpenv *env) {
    __asm__ __volatile__("msr fpcr, %0\n\tmsr fpsr, %1"
                         :
                         : "r"(env->fpcr), "r"(env->fpsr)
                         : "memory");
}
FA_INLINE fa_fpenv fa_fpenv_enter(void) {
    fa_fpenv env, zero = {0, 0};
    __asm__ __volatile__("mrs %0, fpcr\n\tmrs %1, fpsr"
                         : "=r"(env.fpcr), "=r"(env.fpsr)
                         :
                         : "memory");
    fa_fpenv_leave(&zero);
    return env;
}
#endif

#else
#include <fenv.h>

typedef struct fa_fpenv {
    fenv_t env;
} fa_fpenv;

FA_INLINE fa_fpenv fa_fpenv_enter(void) {
    fa_fpenv env;
    fegetenv(&env.env);
    fesetenv(FE_DFL_ENV);
    return env;
}
FA_INLINE void fa_fpenv_leave(const fa_fpenv *env) { fesetenv(&env->env); }

#endif
#endif
