/* SPDX-License-Identifier: MIT
 * Reads and decodes the processor's features; the only code with cpuid and xgetbv.
 * Used by ops/backend.c through cpu.h.  It chooses no backend.
 *
 * Bit numbers: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID, and
 * volume 1, chapters 13 (XCR0), 14.3 and 15.2-15.4 (the order of these checks). */
#include "base/cpu.h"

#include "base/atomic.h"

#if defined(__x86_64__) || defined(__i386__) || (defined(_M_X64) && !defined(_M_ARM64EC)) || \
    defined(_M_IX86)
#define FA_X86
#if defined(_MSC_VER) && !defined(__clang__)
#include <immintrin.h>
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

enum {
    LEAF1_ECX_FMA = 1 << 12,
    LEAF1_ECX_OSXSAVE = 1 << 27,
    LEAF1_ECX_AVX = 1 << 28,
    LEAF1_ECX_F16C = 1 << 29,
    LEAF7_EBX_AVX2 = 1 << 5,
    XCR0_AVX = 0x06,    /* SSE and the upper halves of ymm */
    XCR0_AVX512 = 0xe6, /* and opmask, the upper halves of zmm, zmm16-31 */
    FEATURES_KNOWN = 1 << 30
};
#define LEAF7_EBX_AVX512 0xc0030000u /* VL 31, BW 30, DQ 17, F 16 */

int fa_cpu_decode(const fa_cpu_raw *raw) {
    uint32_t ecx = raw->leaf1_ecx;
    /* Beyond the highest leaf Intel processors repeat another leaf's data. */
    uint32_t ebx = raw->max_leaf >= 7 ? raw->leaf7_ebx : 0;
    uint64_t saved = ecx & LEAF1_ECX_OSXSAVE ? raw->xcr0 : 0;
    int bits = 0;

    if (!(ecx & LEAF1_ECX_AVX) || (saved & XCR0_AVX) != XCR0_AVX) return 0;
    if (ecx & LEAF1_ECX_FMA) bits |= FA_CPU_FMA;
    if (ecx & LEAF1_ECX_F16C) bits |= FA_CPU_F16C;
    if (!(ebx & LEAF7_EBX_AVX2)) return bits;
    bits |= FA_CPU_AVX2;
    if ((ebx & LEAF7_EBX_AVX512) == LEAF7_EBX_AVX512 && (saved & XCR0_AVX512) == XCR0_AVX512)
        bits |= FA_CPU_AVX512;
    return bits;
}

#ifdef FA_X86

#if defined(_MSC_VER) && !defined(__clang__)
static void cpuid(uint32_t leaf, uint32_t reg[4]) { __cpuidex((int *)reg, (int)leaf, 0); }
static uint64_t xgetbv0(void) { return _xgetbv(0); }
#else
static void cpuid(uint32_t leaf, uint32_t reg[4]) {
    __cpuid_count(leaf, 0, reg[0], reg[1], reg[2], reg[3]);
}
static uint64_t xgetbv0(void) {
    uint32_t low, high;
    __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}
#endif

static int read_features(void) {
    fa_cpu_raw raw = {0};
    uint32_t reg[4]; /* eax, ebx, ecx, edx */
    cpuid(0, reg);
    raw.max_leaf = reg[0];
    cpuid(1, reg);
    raw.leaf1_ecx = reg[2];
    if (raw.max_leaf >= 7) {
        cpuid(7, reg);
        raw.leaf7_ebx = reg[1];
    }
    if (raw.leaf1_ecx & LEAF1_ECX_OSXSAVE) raw.xcr0 = xgetbv0(); /* else an illegal instruction */
    return fa_cpu_decode(&raw);
}

#elif defined(__aarch64__) || defined(_M_ARM64)
static int read_features(void) { return FA_CPU_NEON; }
#else
static int read_features(void) { return 0; }
#endif

int fa_cpu_features(void) {
    /* cpuid costs microseconds in a virtual machine.  Threads that race here write the same. */
    static fa_atomic32 cached;
    int32_t bits = fa_load_relaxed(&cached);
    if (!bits) fa_store(&cached, bits = read_features() | FEATURES_KNOWN);
    return bits & ~FEATURES_KNOWN;
}

int fa_cpu_feature_names(int bits, char *buf, size_t n) {
    static const char *const names[] = {"fma", "f16c", "avx2", "avx512", "neon"}; /* by bit */
    size_t length = 0;
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        if (!(bits >> i & 1)) continue;
        for (const char *c = length ? " " : ""; *c; c++, length++)
            if (length + 1 < n) buf[length] = *c;
        for (const char *c = names[i]; *c; c++, length++)
            if (length + 1 < n) buf[length] = *c;
    }
    if (n) buf[length < n ? length : n - 1] = '\0';
    return (int)length;
}
