/* SPDX-License-Identifier: MIT
 * The driver of scaled dot-product attention: descriptor -> plan -> tasks -> merge.
 * Used through fa_sdpa.  The walk over the keys is in ops/visit.c, the arithmetic in the kernels. */
#include "base/fpenv.h"
#include "base/scratch.h"
#include "ops/additive.h"
#include "ops/backend.h"
#include "ops/careful.h"
#include "ops/pick.h"
#include "ops/real.h"
#include "ops/sdpa.h"
#include "ops/visit.h"

static int finish_row(const fa_task *t, int i) {
    return t->job->kernels->typed[t->job->desc->out.type].finish_row(
        fa_task_reals(t, t->row_max, i), fa_task_reals(t, t->row_sum, i),
        fa_task_reals(t, t->o, i * t->job->layout.o_stride), t->rows[i].sink * FA_LOG2E,
        (int)t->job->desc->v_size, fa_task_out(t, i));
}

/* The lse of a row that is finished. */
static double lse_of(const fa_task *t, int i, double sum) {
    double top = fa_real_at(t->row_max, i, t->real_bytes), sink = t->rows[i].sink;
    /* The sink alone is its own lse: on the way to log2 and back it would lose its last digit. */
    return sum == 1.0 && top == (t->real_bytes == 4 ? (float)(sink * FA_LOG2E) : sink * FA_LOG2E)
               ? sink
               : top * FA_LN2 + log(sum);
}

/* From the state of all keys to out, lse and weights.  Rows that end without a finite result are done
 * again: first with the values of hidden keys taken as zeros (0 * NaN is NaN; this gives the bits of
 * clean data), and, if that was not it, in double. */
static void finish_rows(const fa_task *t) {
    const fa_sdpa_desc *d = t->job->desc;
    const int bytes = t->real_bytes;
    uint8_t *done = t->finished;
    if (fa_pool_poll(t->worker)) return; /* given up: the state may be incomplete */
    for (int i = 0; i < t->n_rows; i++) {
        done[i] = (uint8_t)finish_row(t, i);
        if (!done[i] && fa_pool_poll(t->worker)) return;
        double sum = fa_real_at(t->row_sum, i, bytes);
        if (!done[i] && sum > 0.0 && sum <= DBL_MAX) {
            fa_visit_chunks(t, i, 1, FA_ONLY_VISIBLE);
            done[i] = (uint8_t)finish_row(t, i);
            sum = fa_real_at(t->row_sum, i, bytes);
        }
        if (done[i] && d->lse) fa_real_put(fa_task_lse(t, i), 0, lse_of(t, i, sum), bytes);
    }
    if (d->weights) {
        for (int i = 0; i < t->n_rows && !fa_pool_poll(t->worker); i++)
            memset(fa_task_weights(t, i), 0,
                   (size_t)d->n_keys * (size_t)fa_type_bytes(d->out.type));
        fa_visit_chunks(t, 0, t->n_rows, FA_WEIGHTS);
    }
    for (int i = 0; i < t->n_rows; i++) {
        if (done[i]) continue;
        if (fa_pool_poll(t->worker)) return;
        fa_careful_row(t, i);
    }
}

/* Head by head, so that the keys and values of a head stay in the caches; of causal heads the last
 * rows first, which see most keys: so the last tasks of the call are short ones. */
static int64_t row_task_of(const fa_plan *p, int64_t index) {
    int64_t row_task = index % p->n_row_tasks;
    return p->heavy_rows_last ? p->n_row_tasks - 1 - row_task : row_task;
}

void fa_rows_task(const fa_job *j, int64_t index, fa_worker *worker) {
    const fa_plan *p = &j->plan;
    fa_task t;
    fa_ahead ahead;
    fa_task_begin(j, worker, index / p->n_row_tasks, row_task_of(p, index), &t);
    index += j->n_threads; /* if all threads are equally fast, this one's next */
    if (!p->is_decode && !j->desc->attention_v && index < p->n_tasks) {
        fa_task_look_ahead(&t, index / p->n_row_tasks, row_task_of(p, index), &ahead);
        t.ahead = &ahead;
    }
    if (j->desc->picks) {
        fa_pick_rows(&t);
        return;
    }
    fa_visit_chunks(&t, 0, t.n_rows, FA_ACCUMULATE);
    finish_rows(&t);
}

static void rows_task(void *ctx, int64_t index, fa_worker *worker) {
    fa_rows_task(ctx, index, worker);
}

/* The kept state of one chunk of one head: outputs of all rows, then maxima, then sums. */
static char *partial_state(const fa_job *j, int64_t head, int64_t chunk) {
    return j->partial + (head * j->plan.n_chunks + chunk) * j->plan.n_rows *
                            (j->layout.o_stride + 2) * j->kernels->real_bytes;
}

static void chunk_task(void *ctx, int64_t index, fa_worker *worker) {
    const fa_job *j = ctx;
    int64_t head = index / j->plan.n_chunks, chunk = index % j->plan.n_chunks;
    fa_task t;
    fa_task_begin(j, worker, head, 0, &t);
    t.part_o = partial_state(j, head, chunk);
    t.part_max = fa_task_reals(&t, t.part_o, j->plan.n_rows * j->layout.o_stride);
    t.part_sum = fa_task_reals(&t, t.part_max, j->plan.n_rows);
    fa_visit_chunk(&t, 0, t.n_rows, chunk, FA_ACCUMULATE);
}

static void merge_task(void *ctx, int64_t head, fa_worker *worker) {
    const fa_job *j = ctx;
    int64_t stride = j->layout.o_stride, n = j->plan.n_rows;
    fa_task t;
    fa_task_begin(j, worker, head, 0, &t);
    fa_clear_state(&t, 0, t.n_rows, t.row_max, t.row_sum, t.o);
    for (int64_t chunk = 0; chunk < j->plan.n_chunks; chunk++) {
        char *o = partial_state(j, head, chunk), *row_max = fa_task_reals(&t, o, n * stride);
        for (int i = 0; i < t.n_rows; i++)
            j->kernels->merge_row(fa_task_reals(&t, t.row_max, i), fa_task_reals(&t, t.row_sum, i),
                                  fa_task_reals(&t, t.o, i * stride), fa_task_reals(&t, row_max, i),
                                  fa_task_reals(&t, row_max, n + i),
                                  fa_task_reals(&t, o, i * stride), (int)stride);
    }
    finish_rows(&t);
}

int fa_useful_threads(double cost_ns, int64_t n_tasks, int n_threads) {
    const double worth_ns = 5000.0;
    double most = cost_ns / worth_ns;
    int64_t n = fa_min64(n_threads, n_tasks);
    return (int)fa_max64(1, most < (double)n ? (int64_t)most : n);
}

char *fa_take_scratch(size_t shared, size_t each, int *n_threads) {
    for (; *n_threads >= 1; *n_threads /= 2) {
        char *block = fa_scratch_take(shared + each * (size_t)*n_threads);
        if (block) return block;
    }
    return NULL;
}

int fa_sdpa(const fa_sdpa_desc *desc) {
    fa_job job = {.desc = desc, .kernels = fa_backend_get(desc->exec.backend, desc->out.type)};
    if (!job.kernels || desc->exec.n_threads < 1) return FA_BROKEN_CONTRACT;
    if (desc->n_batch == 0 || desc->n_q_heads == 0 || desc->n_queries == 0) return FA_OK;
    fa_fpenv env = fa_fpenv_enter(); /* tasks do the same */
    fa_plan_sdpa(desc, job.kernels, &job.plan);
    fa_plan_layout(desc, job.kernels, &job.plan, &job.layout);
    fa_plan_scoring(desc, &job.scoring);
    fa_fpenv_leave(&env);

    size_t partial = 0, item = (size_t)job.kernels->real_bytes;
    if (job.plan.split_keys)
        partial = (size_t)(job.plan.n_tasks * job.plan.n_rows * (job.layout.o_stride + 2)) * item;
    fa_factors factors = fa_plan_factors(desc);
    size_t factor_bytes = (size_t)(factors.n_rows * (factors.n_minus_2a + factors.n_sums)) * item;
    partial = (size_t)fa_round_up((int64_t)(partial + factor_bytes), FA_ALIGN);
    int n_threads = fa_useful_threads(job.plan.cost_ns, job.plan.n_tasks, desc->exec.n_threads);
    char *block = fa_take_scratch(partial, job.layout.size, &n_threads);
    if (!block) return FA_NO_MEMORY;
    job.n_threads = n_threads;
    job.factors = block;
    if (desc->attention_v) {
        env = fa_fpenv_enter();
        fa_additive_factors(desc, job.kernels->real_bytes, block);
        fa_fpenv_leave(&env);
    }
    job.partial = block + factor_bytes;
    job.scratch = block + partial;

    int status;
    if (job.plan.split_keys) {
        status = fa_pool_run(job.plan.n_tasks, chunk_task, &job, n_threads, desc->exec.interrupted);
        if (status == FA_OK)
            status =
                fa_pool_run(job.plan.n_heads, merge_task, &job, n_threads, desc->exec.interrupted);
    } else {
        status = fa_pool_run(job.plan.n_tasks, rows_task, &job, n_threads, desc->exec.interrupted);
    }
    fa_scratch_give(block);
    return status;
}

int fa_sdpa_plan_query(const fa_sdpa_desc *desc, fa_sdpa_plan_info *info) {
    const fa_kernels *kernels = fa_backend_get(desc->exec.backend, desc->out.type);
    fa_plan p;
    fa_layout l;
    if (!kernels) return FA_BROKEN_CONTRACT;
    fa_plan_sdpa(desc, kernels, &p);
    fa_plan_layout(desc, kernels, &p, &l);
    *info = (fa_sdpa_plan_info){
        .is_decode = p.is_decode,
        .n_tasks = p.n_tasks,
        .rows_per_task = p.rows_per_task,
        .key_chunk = p.key_chunk,
        .row_block = p.row_block,
        .key_tile = p.key_tile,
        .scratch_bytes = (int64_t)l.size,
    };
    return FA_OK;
}
