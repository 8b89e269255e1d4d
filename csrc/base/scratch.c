/* SPDX-License-Identifier: MIT
 * The cache of scratch blocks; the contract is in scratch.h.
 * Used by ops/.  Slots are atomic pointers: whoever swaps a block out owns it, so nothing is locked
 * and nothing is read that another thread might free. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200112L /* posix_memalign */
#endif
#include "base/scratch.h"

#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"

#ifdef _WIN32
#include <malloc.h>
#endif

/* In front of every block; as long as the alignment, to keep it. */
typedef union header {
    size_t bytes; /* of the block, without the header */
    char padding[FA_ALIGN];
} header;

enum { N_SLOTS = 16 };
#define MIB ((size_t)1 << 20)
/* Sizes are rounded up to this, so that slowly growing calls fit again. */
#define GRAIN_BYTES ((size_t)4096)

static fa_atomic_ptr slots[N_SLOTS]; /* header * or NULL */

/* The largest block that slot i keeps: 64 MiB, then half as much each, never under 1 MiB. */
static size_t slot_bytes(int i) { return i < 6 ? 64 * MIB >> i : MIB; }

#ifdef _WIN32
static void *allocate(size_t bytes) { return _aligned_malloc(bytes, FA_ALIGN); }
static void release(void *p) { _aligned_free(p); }
#else
static void *allocate(size_t bytes) {
    void *p;
    return posix_memalign(&p, FA_ALIGN, bytes) ? NULL : p;
}
static void release(void *p) { free(p); }
#endif

/* A cached block of at least `bytes`, or NULL.  Blocks too small in slots that would keep a larger
 * one are freed on the way: so the cache grows with the demand, but a large call does not empty the
 * slots of the small ones. */
static header *take_cached(size_t bytes) {
    for (int i = N_SLOTS - 1; i >= 0; i--) {
        if (slot_bytes(i) < bytes || fa_is_null_relaxed(&slots[i])) continue;
        header *h = fa_swap_ptr(&slots[i], NULL);
        if (h && h->bytes >= bytes) return h;
        if (h) release(h);
    }
    return NULL;
}

void *fa_scratch_take(size_t bytes) {
    if (bytes > SIZE_MAX - sizeof(header) - GRAIN_BYTES) return NULL;
    size_t rounded = (bytes / GRAIN_BYTES + (bytes % GRAIN_BYTES || !bytes)) * GRAIN_BYTES;
    header *h = take_cached(rounded);
    if (!h) {
        h = allocate(sizeof *h + rounded);
        if (!h) return NULL;
        h->bytes = rounded;
    }
#ifdef FA_ASSERTS
    memset(h + 1, 0xff, bytes);
#endif
    return h + 1;
}

void fa_scratch_give(void *block) {
    if (!block) return;
    header *h = (header *)block - 1;
    for (int i = N_SLOTS - 1; i >= 0; i--) /* the smallest slot that will do */
        if (slot_bytes(i) >= h->bytes && fa_is_null_relaxed(&slots[i]) &&
            fa_cas_ptr(&slots[i], NULL, h))
            return;
    release(h);
}
