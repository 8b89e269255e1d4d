/* SPDX-License-Identifier: MIT
 * The exact merge of partial results: each row is the mean of its parts, weighted by e^lse.
 * Used through fa_merge.  Weights are computed in double, rows are added up in reals. */
#include <math.h>

#include "base/pool.h"
#include "base/scratch.h"
#include "ops/backend.h"
#include "ops/real.h"
#include "ops/sdpa.h"

enum { TASK_NUMBERS = 1 << 15 }; /* of a part, in one task: some microseconds */

typedef struct job {
    const fa_merge_desc *desc;
    const fa_typed_kernels *kernels;
    int real_bytes;
    int64_t task_rows;
    char *scratch; /* a row per slot */
} job;

static void merge_row(const job *j, int64_t row, void *sum) {
    const fa_merge_desc *d = j->desc;
    const int b = j->real_bytes;
    const int64_t at = row * d->size * fa_type_bytes(d->type);
    double top = -INFINITY, total = 0.0;
    for (int64_t p = 0; p < d->n_parts; p++) {
        double lse = fa_real_at(d->parts[p].lse, row, b);
        if (lse > top || lse != lse) top = lse; /* NaN stays: nothing is larger */
    }
    const double base = top == -INFINITY ? 0.0 : top;
    for (int64_t p = 0; p < d->n_parts; p++)
        total += exp(fa_real_at(d->parts[p].lse, row, b) - base);
    memset(sum, 0, (size_t)d->size * (size_t)b);
    for (int64_t p = 0; p < d->n_parts; p++) {
        double lse = fa_real_at(d->parts[p].lse, row, b);
        if (lse == -INFINITY) continue;
        j->kernels->add_row((const char *)d->parts[p].out + at, exp(lse - base) / total,
                            (int)d->size, sum);
    }
    j->kernels->store_row(sum, (int)d->size, (char *)d->out + at);
    fa_real_put(d->lse, row, base + log(total), b);
}

static void merge_task(void *ctx, int64_t index, fa_worker *worker) {
    const job *j = ctx;
    const fa_merge_desc *d = j->desc;
    char *sum =
        j->scratch + fa_worker_slot(worker) * fa_round_up(d->size, FA_ALIGN) * j->real_bytes;
    int64_t stop = fa_min64(d->n_rows, (index + 1) * j->task_rows);
    for (int64_t row = index * j->task_rows; row < stop; row++) merge_row(j, row, sum);
}

int fa_merge(const fa_merge_desc *d) {
    const fa_kernels *kernels = fa_backend_get(d->exec.backend, d->type);
    if (!kernels || d->exec.n_threads < 1) return FA_BROKEN_CONTRACT;
    if (d->n_rows == 0) return FA_OK;
    job j = {.desc = d, .kernels = &kernels->typed[d->type], .real_bytes = kernels->real_bytes};
    j.task_rows = fa_max64(1, TASK_NUMBERS / fa_max64(1, d->size * d->n_parts));
    int64_t n_tasks = fa_ceil_div(d->n_rows, j.task_rows);
    double cost = (double)d->n_rows * (double)d->n_parts * ((double)d->size * 0.2 + 40.0);
    int n_threads = fa_useful_threads(cost, n_tasks, d->exec.n_threads);
    j.scratch = fa_take_scratch(0, (size_t)fa_round_up(d->size, FA_ALIGN) * (size_t)j.real_bytes,
                                &n_threads);
    if (!j.scratch) return FA_NO_MEMORY;
    int status = fa_pool_run(n_tasks, merge_task, &j, n_threads, d->exec.interrupted);
    fa_scratch_give(j.scratch);
    return status;
}
