/* SPDX-License-Identifier: MIT
 * The walk of one task over its keys: chunk by chunk, tile by tile, row block by row block.
 * Used by ops/sdpa.c.  It decides which keys meet which rows; the kernels compute. */
#ifndef FA_VISIT_H
#define FA_VISIT_H

#include "ops/task.h"

/* What a walk over tiles is for. */
typedef enum fa_visit_mode {
    FA_ACCUMULATE,   /* update the state of the chunk */
    FA_ONLY_VISIBLE, /* the same for one row, taking the values of keys hidden from it as zeros */
    FA_WEIGHTS,      /* write the final weights */
    FA_SUMS,         /* update maxima and sums of the chunk, no outputs */
    FA_TOP,          /* find the key of the largest score; picks are -1 at first */
    FA_DRAW          /* draw a key by the final weights */
} fa_visit_mode;

/* An empty state for rows [first, first + n_rows): no key seen. */
void fa_clear_state(const fa_task *t, int first, int n_rows, char *row_max, char *row_sum, char *o);

/* The state of one chunk of keys, in part_max, part_sum, part_o. */
void fa_visit_chunk(const fa_task *t, int first, int n_rows, int64_t chunk, fa_visit_mode mode);

/* The state of all chunks, merged in order, in row_max, row_sum, o. */
void fa_visit_chunks(const fa_task *t, int first, int n_rows, fa_visit_mode mode);

#endif
