/* SPDX-License-Identifier: MIT
 * Rows times a weight matrix, for the projections of queries: many entries with few rows each.
 * Used through fa_product.  A BLAS would take the entries one by one (then each reads the whole weight)
 * or all at once (then a row's bits depend on how many there are); here neither is so. */
#include "base/pool.h"
#include "base/scratch.h"
#include "ops/backend.h"

enum { TASK_ROWS = 192 }; /* with one block of columns of the weight */

typedef struct job {
    const fa_product_desc *desc;
    const fa_kernels *kernels;
    int64_t n_blocks; /* of columns */
    char *scratch;    /* for blocks that are not full: columns and results, per slot */
    size_t slot_bytes;
} job;

static void product_task(void *ctx, int64_t index, fa_worker *worker) {
    const job *j = ctx;
    const fa_product_desc *d = j->desc;
    const fa_kernels *k = j->kernels;
    int64_t col = index % j->n_blocks * k->nr, row = index / j->n_blocks * TASK_ROWS;
    int64_t n_rows = fa_min64(TASK_ROWS, d->n_rows - row), n_cols = d->n_cols - col;
    const int64_t b = k->real_bytes;
    const char *rows = (const char *)d->rows + row * d->row_stride * b;
    const char *weight = (const char *)d->weight + col * b;
    char *out = (char *)d->out + (row * d->n_cols + col) * b;
    if (n_cols >= k->nr) {
        k->product(rows, d->row_stride, n_rows, weight, d->n_cols, (int)d->size, out, d->n_cols);
        return;
    }
    char *block = j->scratch + (size_t)fa_worker_slot(worker) * j->slot_bytes;
    char *results = block + d->size * k->nr * b;
    k->typed[d->type].pack_values(weight, d->n_cols, (int)d->size, (int)n_cols, NULL, block);
    k->product(rows, d->row_stride, n_rows, block, k->nr, (int)d->size, results, k->nr);
    for (int64_t i = 0; i < n_rows; i++)
        memcpy(out + i * d->n_cols * b, results + i * k->nr * b, (size_t)(n_cols * b));
}

int fa_product(const fa_product_desc *d) {
    job j = {.desc = d, .kernels = fa_backend_get(d->exec.backend, d->type)};
    if (!j.kernels || d->exec.n_threads < 1) return FA_BROKEN_CONTRACT;
    j.n_blocks = fa_ceil_div(d->n_cols, j.kernels->nr);
    int64_t n_tasks = j.n_blocks * fa_ceil_div(d->n_rows, TASK_ROWS);
    double worth = (double)d->n_rows * (double)d->n_cols * (double)d->size * 0.02 / 5000.0;
    if (n_tasks == 0) return FA_OK;
    int n_threads = (int)fa_min64(d->exec.n_threads, n_tasks);
    if (worth < (double)n_threads) n_threads = (int)fa_max64(1, (int64_t)worth);
    j.slot_bytes = (size_t)((d->size + TASK_ROWS) * j.kernels->nr * j.kernels->real_bytes);
    if (d->n_cols % j.kernels->nr) {
        j.scratch = fa_scratch_take((size_t)n_threads * j.slot_bytes);
        if (!j.scratch) return FA_NO_MEMORY;
    }
    int status = fa_pool_run(n_tasks, product_task, &j, n_threads, d->exec.interrupted);
    fa_scratch_give(j.scratch);
    return status;
}
