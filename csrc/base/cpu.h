/* SPDX-License-Identifier: MIT
 * What this processor can do and this operating system lets us do.
 * Used by ops/backend.c to see which backends run here.  It chooses none, reads no environment. */
#ifndef FA_CPU_H
#define FA_CPU_H

#include "base/base.h"

/* A feature counts only when its instructions exist and the system saves its registers. */
enum {
    FA_CPU_FMA = 1 << 0,  /* with 256-bit registers */
    FA_CPU_F16C = 1 << 1, /* likewise */
    FA_CPU_AVX2 = 1 << 2,
    FA_CPU_AVX512 = 1 << 3, /* F, BW, DQ and VL together; implies AVX2 */
    FA_CPU_NEON = 1 << 4    /* 64-bit Advanced SIMD with FMA: every arm64 processor */
};

/* What the x86 processor says of itself; zeros elsewhere. */
typedef struct fa_cpu_raw {
    uint32_t max_leaf;  /* CPUID 0: EAX */
    uint32_t leaf1_ecx; /* CPUID 1: ECX */
    uint32_t leaf7_ebx; /* CPUID 7, subleaf 0: EBX; looked at only if max_leaf >= 7 */
    uint64_t xcr0;      /* XGETBV 0; looked at only if leaf1_ecx says that it exists */
} fa_cpu_raw;

/* Pure: the same registers give the same features on any machine. */
int fa_cpu_decode(const fa_cpu_raw *raw);

/* The features of this machine: read once, then one load.  Any thread, any time. */
int fa_cpu_features(void);

/* Writes the names of the features in `bits`, best last, one blank between ("fma avx2"), like
 * snprintf: at most n bytes with the terminator; returns the full length without it. */
int fa_cpu_feature_names(int bits, char *buf, size_t n);

#endif
