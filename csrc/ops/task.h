/* SPDX-License-Identifier: MIT
 * One task of an attention call: from its place in the call to pointers and rows.
 * Used by ops/sdpa.c.  Together with it, the only place where strides of arrays are multiplied out. */
#ifndef FA_TASK_H
#define FA_TASK_H

#include "base/pool.h"
#include "ops/plan.h"

/* What all tasks of one call share. */
typedef struct fa_job {
    const fa_sdpa_desc *desc;
    const fa_kernels *kernels;
    fa_plan plan;
    fa_layout layout;
    fa_scoring scoring;
    int n_threads; /* that may take part */
    char *scratch; /* layout.size bytes per slot */
    /* Of reals.  Additive scores: fa_plan_factors(desc).n_rows rows of minus_2a, a_sums; split_keys: per
     * task rows * (o_stride + 2): outputs, then maxima, then sums. */
    const char *factors;
    char *partial;
} fa_job;

/* One task: its place in the call, and the scratch of the thread that runs it. */
typedef struct fa_task {
    const fa_job *job;
    fa_worker *worker;
    int real_bytes; /* those of the kernels */
    int64_t batch, kv_head, first_row;
    int n_rows;
    const char *key, *value; /* key 0 of this batch entry and kv head (in pages: of page 0) */
    const char *key_factor, *value_factor; /* the same, or NULL */
    int64_t key_bytes, value_bytes;        /* from one row to the next */
    /* Query 0 of this batch entry and of the first head of the group: query, out, bias, attn_mask. */
    char *query, *out, *term[2];
    int64_t key_lo, key_hi; /* keys that any row may see, by range */
    fa_row *rows;
    /* Of reals. */
    char *q, *row_max, *row_sum, *o, *part_max, *part_sum, *part_o, *scores, *alpha, *k_panels,
        *v_panels;
    uint8_t *hidden, *finished; /* a byte per key of a tile; a byte per row */
    char *gathered;             /* keys and values of a tile from several pages; */
    char *factors;              /* their factors, reals */
    fa_additive_keys own_keys;  /* additive scores: where tiles are packed; */
    fa_additive_keys packed;    /* or all keys, packed before */
    double *careful;
    int64_t *picks; /* hard attention: a row's key so far, and what is left of its number */
    double *draws;
    fa_ahead *ahead; /* NULL, or what to fetch meanwhile */
} fa_task;

/* Fills the task: scratch of the worker, rows, scaled queries, key range. */
void fa_task_begin(const fa_job *job, fa_worker *worker, int64_t head, int64_t row_task,
                   fa_task *t);

/* What task (head, row_task) will read first, to be fetched while `t` computes: short tasks would else
 * spend a quarter of their time waiting for memory. */
void fa_task_look_ahead(const fa_task *t, int64_t head, int64_t row_task, fa_ahead *ahead);

/* Row i of the task: its query, its output, and its index in a C-contiguous (batch, heads, queries). */
const void *fa_task_query(const fa_task *t, int i);
void *fa_task_out(const fa_task *t, int i);
int64_t fa_task_flat_row(const fa_task *t, int i);

/* The lse of row i, and its weights for key 0. */
void *fa_task_lse(const fa_task *t, int i);
char *fa_task_weights(const fa_task *t, int i);

/* Keys that lie one after the other: those from `first` on, as far as they do. */
typedef struct fa_piece {
    const char *key, *value;
    const char *key_factors, *value_factors; /* reals, or NULL */
    int64_t n_keys;
} fa_piece;

fa_piece fa_task_piece(const fa_task *t, int64_t first);

/* The same for all of n keys, in place; returns how many runs they are. */
int fa_task_runs(const fa_task *t, int64_t first, int64_t n, fa_run *runs);

/* Reals of the task: `n` of them after `from`. */
FA_INLINE char *fa_task_reals(const fa_task *t, char *from, int64_t n) {
    return from + n * t->real_bytes;
}

#endif
