/* SPDX-License-Identifier: MIT
 * One task of a call, from its rows to their outputs.
 * Used by ops/sdpa.c and ops/varlen.c, which say what the tasks are. */
#ifndef FA_SDPA_H
#define FA_SDPA_H

#include "ops/task.h"

/* Task `index` of job->plan, which splits no keys. */
void fa_rows_task(const fa_job *job, int64_t index, fa_worker *worker);

/* Threads worth waking for so much work: each should have some microseconds of it. */
int fa_useful_threads(double cost_ns, int64_t n_tasks, int n_threads);

/* Scratch of `shared` bytes and `each` more for as many threads as there is memory for, at most
 * *n_threads: less memory, fewer threads, the same result.  NULL if not even one. */
char *fa_take_scratch(size_t shared, size_t each, int *n_threads);

#endif
