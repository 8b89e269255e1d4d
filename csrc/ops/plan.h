/* SPDX-License-Identifier: MIT
 * How a call is cut: pure functions of the shape, the options and the machine's register block.
 * Used by ops/sdpa.c and, through fa_sdpa_plan_query, by tests.  Reads no data, knows no thread count. */
#ifndef FA_PLAN_H
#define FA_PLAN_H

#include "fastattn.h"
#include "kernels/kernels.h"

/* Bytes of one number of a type. */
int fa_type_bytes(int type);

/* The rows of one (batch entry, kv head) are the queries of all heads of its group, position by
 * position: row r is query r / group of head r % group.  A task takes rows_per_task of them, in blocks
 * of row_block, through the keys in chunks of key_chunk (merged in order) and tiles of key_tile. */
typedef struct fa_plan {
    int is_decode; /* few rows: values are read in place, and keys too unless scores are additive */
    int pack_keys; /* the keys of a tile are packed by the task */
    int64_t group, n_rows; /* heads per kv head; rows per (batch entry, kv head) */
    int64_t n_heads;       /* batch entries * kv heads */
    int64_t rows_per_task, n_row_tasks;
    int64_t key_chunk, n_chunks;
    int split_keys; /* chunks are tasks of their own; their partial states are kept */
    int row_block, key_tile;
    int64_t n_tasks;
    int heavy_rows_last; /* causal: the last rows see most keys and go first */
    double cost_ns;      /* rough time on one core: small calls wake no thread */
} fa_plan;

void fa_plan_sdpa(const fa_sdpa_desc *desc, const fa_kernels *kernels, fa_plan *plan);

/* No chunk is a task of its own any more: heads take all their chunks, to the same bits. */
void fa_plan_whole_heads(fa_plan *plan);

/* The factors of the call in the units of the kernels. */
void fa_plan_scoring(const fa_sdpa_desc *desc, fa_scoring *scoring);

/* Where things lie in the scratch of one thread, in bytes, each 64-byte aligned. */
typedef struct fa_layout {
    size_t rows, q, row_max, row_sum, o; /* the task's rows and their state */
    size_t part_max, part_sum, part_o;   /* the state of one chunk, where there are several */
    size_t scores, alpha, k_panels, v_panels, reach, hidden, finished, careful, picks, draws;
    size_t gathered, factors;   /* of a tile */
    size_t size;                /* the last offset */
    int64_t q_stride, o_stride; /* reals */
    int s_stride;
} fa_layout;

/* Additive scores: one row of factors (fa_row.minus_2a, a_sums) has so many reals of each; the last of
 * the sums is that of |a|, the one before it what rounding took from all others. */
typedef struct fa_factors {
    int64_t n_rows, n_minus_2a, n_sums;
} fa_factors;

fa_factors fa_plan_factors(const fa_sdpa_desc *desc);

void fa_plan_layout(const fa_sdpa_desc *desc, const fa_kernels *kernels, const fa_plan *plan,
                    fa_layout *layout);

#endif
