/* SPDX-License-Identifier: MIT
 * The few atomic operations that csrc/base needs, by one spelling for every compiler.
 * Used by pool.c, scratch.c and cpu.c.  It is no general library: an operation without a caller
 * is not here.
 *
 * Loads and read-modify-writes are sequentially consistent, stores release, unless the name ends in
 * _relaxed.  (An ordered load costs nothing on x86 and next to nothing on arm64; an ordered store
 * would cost a full barrier on x86, and nobody needs one.)  Counters wrap.  fa_add, fa_and, fa_or
 * and fa_swap_ptr return the old value; fa_cas and fa_cas_ptr return whether they replaced it. */
#ifndef FA_ATOMIC_H
#define FA_ATOMIC_H

#include "base/base.h"

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>

/* Interlocked functions are full barriers.  Plain volatile accesses are not reordered by an x86
 * processor as far as acquire and release go, so only the compiler needs a fence there. */
#if defined(_M_ARM64)
#define FA_FENCE() __dmb(_ARM64_BARRIER_ISH)
#else
#define FA_FENCE() _ReadWriteBarrier()
#endif

typedef struct {
    volatile long v;
} fa_atomic32;
typedef struct {
    volatile __int64 v;
} fa_atomic64;
typedef struct {
    void *volatile v;
} fa_atomic_ptr;

FA_INLINE int32_t fa_load_relaxed(const fa_atomic32 *a) { return a->v; }
FA_INLINE int32_t fa_load(const fa_atomic32 *a) {
    int32_t value = a->v;
    FA_FENCE();
    return value;
}
FA_INLINE void fa_store(fa_atomic32 *a, int32_t value) {
    FA_FENCE();
    a->v = value;
}
FA_INLINE int32_t fa_add(fa_atomic32 *a, int32_t n) { return _InterlockedExchangeAdd(&a->v, n); }
FA_INLINE int32_t fa_and(fa_atomic32 *a, int32_t mask) { return _InterlockedAnd(&a->v, mask); }
FA_INLINE int32_t fa_or(fa_atomic32 *a, int32_t mask) { return _InterlockedOr(&a->v, mask); }
FA_INLINE int fa_cas(fa_atomic32 *a, int32_t expected, int32_t desired) {
    return _InterlockedCompareExchange(&a->v, desired, expected) == expected;
}
FA_INLINE int64_t fa_add64_relaxed(fa_atomic64 *a, int64_t n) {
#if defined(_M_IX86) /* no 64-bit exchange-and-add there; a torn read only costs one more round */
    int64_t seen = a->v, found;
    while ((found = _InterlockedCompareExchange64(&a->v, seen + n, seen)) != seen) seen = found;
    return seen;
#else
    return _InterlockedExchangeAdd64(&a->v, n);
#endif
}
FA_INLINE int fa_is_null_relaxed(const fa_atomic_ptr *a) { return a->v == NULL; }
FA_INLINE void *fa_swap_ptr(fa_atomic_ptr *a, void *p) {
    return _InterlockedExchangePointer(&a->v, p);
}
FA_INLINE int fa_cas_ptr(fa_atomic_ptr *a, void *expected, void *desired) {
    return _InterlockedCompareExchangePointer(&a->v, desired, expected) == expected;
}

#else
#include <stdatomic.h>

typedef struct {
    _Atomic int32_t v;
} fa_atomic32;
typedef struct {
    _Atomic int64_t v;
} fa_atomic64;
typedef struct {
    void *_Atomic v;
} fa_atomic_ptr;

FA_INLINE int32_t fa_load_relaxed(const fa_atomic32 *a) {
    return atomic_load_explicit(&a->v, memory_order_relaxed);
}
FA_INLINE int32_t fa_load(const fa_atomic32 *a) { return atomic_load(&a->v); }
FA_INLINE void fa_store(fa_atomic32 *a, int32_t value) {
    atomic_store_explicit(&a->v, value, memory_order_release);
}
FA_INLINE int32_t fa_add(fa_atomic32 *a, int32_t n) { return atomic_fetch_add(&a->v, n); }
FA_INLINE int32_t fa_and(fa_atomic32 *a, int32_t mask) { return atomic_fetch_and(&a->v, mask); }
FA_INLINE int32_t fa_or(fa_atomic32 *a, int32_t mask) { return atomic_fetch_or(&a->v, mask); }
FA_INLINE int fa_cas(fa_atomic32 *a, int32_t expected, int32_t desired) {
    return atomic_compare_exchange_strong(&a->v, &expected, desired);
}
FA_INLINE int64_t fa_add64_relaxed(fa_atomic64 *a, int64_t n) {
    return atomic_fetch_add_explicit(&a->v, n, memory_order_relaxed);
}
FA_INLINE int fa_is_null_relaxed(const fa_atomic_ptr *a) {
    return atomic_load_explicit(&a->v, memory_order_relaxed) == NULL;
}
FA_INLINE void *fa_swap_ptr(fa_atomic_ptr *a, void *p) { return atomic_exchange(&a->v, p); }
FA_INLINE int fa_cas_ptr(fa_atomic_ptr *a, void *expected, void *desired) {
    return atomic_compare_exchange_strong(&a->v, &expected, desired);
}

#endif

/* Tells the processor that this thread waits for another: for the body of a spin loop. */
FA_INLINE void fa_pause(void) {
#if defined(_MSC_VER) && !defined(__clang__)
#if defined(_M_ARM64)
    __isb(_ARM64_BARRIER_SY);
#else
    _mm_pause();
#endif
#elif defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb"); /* about 10 ns; "yield" is no delay at all on most of them */
#endif
}

#endif
