/* SPDX-License-Identifier: MIT
 * Working memory for one call, from a small process-wide cache: steady use calls no allocator.
 * Used by ops/, once per call; kernels are given pieces of the block.  This is the only allocator
 * in csrc/, and it makes nothing that Python sees. */
#ifndef FA_SCRATCH_H
#define FA_SCRATCH_H

#include "base/base.h"

/* Returns at least `bytes` bytes (0 is allowed) aligned to FA_ALIGN, or NULL when memory is short.
 * The contents are arbitrary: left over from earlier calls; all ones (NaN) under FA_ASSERTS.
 *
 * Any thread may take and any other give back, at the same time as others: no locks, so neither a
 * fork nor a signal at a bad moment can block anyone.  A block that another thread of the parent
 * holds at a fork is lost to the child.
 *
 * The cache keeps at most 16 blocks and 136 MiB: one of up to 64 MiB, one of up to 32, 16, 8, 4 and
 * 2, and ten of up to 1 MiB.  What finds no place there is freed at once. */
void *fa_scratch_take(size_t bytes);

/* Gives back a block from fa_scratch_take, once.  NULL is ignored. */
void fa_scratch_give(void *block);

#endif
