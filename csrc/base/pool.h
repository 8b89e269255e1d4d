/* SPDX-License-Identifier: MIT
 * The thread pool: one function, the parallel form of a plain loop.
 * Used by ops/.  It knows no attention, allocates nothing per call, and its workers never touch Python. */
#ifndef FA_POOL_H
#define FA_POOL_H

#include "base/base.h"

/* One participant of one fa_pool_run: handed to every task it runs. */
typedef struct fa_worker fa_worker;

typedef void (*fa_task_fn)(void *ctx, int64_t index, fa_worker *worker);

/* Parallel version of
 *
 *     for (int64_t i = 0; i < n_tasks; i++) {
 *         fn(ctx, i, worker);
 *         if (fa_pool_poll(worker)) break;
 *     }
 *
 * Tasks are handed out in rising order of i, each to exactly one thread, each exactly once; all that
 * were begun are done on return.  At most n_threads threads take part, the caller always being one of
 * them; fewer may (no thread could be created, other calls keep the workers busy): the result must not
 * depend on it.  n_threads == 1 or n_tasks <= 1 runs on the caller alone and touches no pool state.
 * Any number of threads may call at once and share the workers; a task must not call fa_pool_run.
 *
 * Tasks run in the default floating-point environment on every thread; the caller's own is back on
 * return, and while `interrupted` runs.
 *
 * interrupted: see fa_exec.  It must return (no thread exit, no longjmp: workers use the caller's
 * stack), and may itself call fa_pool_run.  Returns FA_OK or FA_INTERRUPTED; the latter also in a child
 * that `interrupted` forked, since the tasks of the helpers stayed with the parent. */
int fa_pool_run(int64_t n_tasks, fa_task_fn fn, void *ctx, int n_threads, int (*interrupted)(void));

/* Number of this participant: 0 <= slot < min(n_threads, n_tasks).  No two tasks of one fa_pool_run
 * that run at the same time have the same slot: it picks the scratch. */
int fa_worker_slot(const fa_worker *worker);

/* To be called by long tasks every few milliseconds: nonzero when the call is being given up, and the
 * task should return at once.  On the calling thread it also asks `interrupted`, at most every 50 ms;
 * on others it is one relaxed load. */
int fa_pool_poll(fa_worker *worker);

/* See fastattn.h, which hands them to Python. */
int fa_pool_n_workers(void);
void fa_pool_shutdown(void);

#endif
