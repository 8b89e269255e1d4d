/* SPDX-License-Identifier: MIT
 * The exact merge of partial results: each row is the mean of its parts, weighted by e^lse.
 * Used through fa_merge.  Weights are computed in double, rows are added up in float. */
#include <math.h>

#include "base/pool.h"
#include "base/scratch.h"
#include "ops/backend.h"
#include "ops/sdpa.h"

enum { TASK_NUMBERS = 1 << 15 }; /* of a part, in one task: some microseconds */

typedef struct job {
    const fa_merge_desc *desc;
    const fa_typed_kernels *kernels;
    int64_t task_rows;
    float *scratch; /* a row per slot */
} job;

static void merge_row(const fa_merge_desc *d, const fa_typed_kernels *k, int64_t row, float *sum) {
    const int64_t at = row * d->size * fa_type_bytes(d->type);
    double top = -INFINITY, total = 0.0;
    for (int64_t p = 0; p < d->n_parts; p++) {
        double lse = d->parts[p].lse[row];
        if (lse > top || lse != lse) top = lse; /* NaN stays: nothing is larger */
    }
    const double base = top == -INFINITY ? 0.0 : top;
    for (int64_t p = 0; p < d->n_parts; p++) total += exp(d->parts[p].lse[row] - base);
    memset(sum, 0, (size_t)d->size * sizeof *sum);
    for (int64_t p = 0; p < d->n_parts; p++) {
        float lse = d->parts[p].lse[row];
        if (lse == -INFINITY) continue;
        k->add_row((const char *)d->parts[p].out + at, (float)(exp(lse - base) / total),
                   (int)d->size, sum);
    }
    k->store_row(sum, (int)d->size, (char *)d->out + at);
    d->lse[row] = (float)(base + log(total));
}

static void merge_task(void *ctx, int64_t index, fa_worker *worker) {
    const job *j = ctx;
    const fa_merge_desc *d = j->desc;
    float *sum = j->scratch + fa_worker_slot(worker) * fa_round_up(d->size, FA_ALIGN);
    int64_t stop = fa_min64(d->n_rows, (index + 1) * j->task_rows);
    for (int64_t row = index * j->task_rows; row < stop; row++) merge_row(d, j->kernels, row, sum);
}

int fa_merge(const fa_merge_desc *d) {
    const fa_kernels *kernels = fa_backend_get(d->exec.backend);
    if (!kernels || d->exec.n_threads < 1) return FA_BROKEN_CONTRACT;
    if (d->n_rows == 0) return FA_OK;
    job j = {.desc = d, .kernels = &kernels->typed[d->type]};
    j.task_rows = fa_max64(1, TASK_NUMBERS / fa_max64(1, d->size * d->n_parts));
    int64_t n_tasks = fa_ceil_div(d->n_rows, j.task_rows);
    double cost = (double)d->n_rows * (double)d->n_parts * ((double)d->size * 0.2 + 40.0);
    int n_threads = fa_useful_threads(cost, n_tasks, d->exec.n_threads);
    j.scratch = (float *)(void *)fa_take_scratch(
        0, (size_t)fa_round_up(d->size, FA_ALIGN) * sizeof(float), &n_threads);
    if (!j.scratch) return FA_NO_MEMORY;
    int status = fa_pool_run(n_tasks, merge_task, &j, n_threads, d->exec.interrupted);
    fa_scratch_give(j.scratch);
    return status;
}
