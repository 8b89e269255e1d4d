/* SPDX-License-Identifier: MIT
 * The instruction sets, best first: the single registration point.
 * Used by ops/backend.c, isa/ and, through it, by every test and benchmark.
 *
 * X(name, needs): the table fa_kernels__<name> is defined by isa/<name>.c,
 * and may run where the CPU and the OS offer all feature bits of `needs` (base/cpu.h). */
#ifndef FA_ISA_LIST_H
#define FA_ISA_LIST_H

#if defined(__x86_64__) || defined(_M_X64)
#define FA_LIST_X86(X) X(avx2, FA_CPU_AVX2 | FA_CPU_FMA)
#else
#define FA_LIST_X86(X)
#endif

#define FA_ISA_LIST(X) \
    FA_LIST_X86(X)     \
    X(scalar, 0)

#endif
