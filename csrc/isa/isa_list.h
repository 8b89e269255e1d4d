/* SPDX-License-Identifier: MIT
 * The instruction sets, best first: the single registration point.
 * Used by ops/backend.c, isa/ and, through it, by every test and benchmark.
 *
 * X(name, needs): the tables fa_kernels__<name> and fa_kernels__<name>_f64 are defined by isa/<name>.c
 * and isa/<name>_f64.c, and may run where the CPU and the OS offer all feature bits of `needs`
 * (base/cpu.h). */
#ifndef FA_ISA_LIST_H
#define FA_ISA_LIST_H

#ifdef FA_SIMDE /* a test build: see isa/avx512.c */
#define FA_NEEDS_AVX512 (FA_CPU_AVX2 | FA_CPU_FMA)
#else
#define FA_NEEDS_AVX512 FA_CPU_AVX512
#endif

#if defined(__x86_64__) || defined(_M_X64)
#define FA_ISA_LIST(X)                              \
    X(avx512, FA_NEEDS_AVX512)                      \
    X(avx2, FA_CPU_AVX2 | FA_CPU_FMA | FA_CPU_F16C) \
    X(scalar, 0)
#elif (defined(__aarch64__) && !defined(__ARM_BIG_ENDIAN)) || defined(_M_ARM64)
#define FA_ISA_LIST(X)   \
    X(neon, FA_CPU_NEON) \
    X(scalar, 0)
#else
#define FA_ISA_LIST(X) X(scalar, 0)
#endif

#endif
