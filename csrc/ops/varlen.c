/* SPDX-License-Identifier: MIT
 * Packed sequences of any lengths: one task after another, whatever sequence it is of.
 * Used through fa_varlen.  A sequence is planned and computed as a call of its own (ops/sdpa.c); here is
 * only which tasks there are, and in which order. */
#include <stdlib.h>

#include "base/fpenv.h"
#include "base/scratch.h"
#include "ops/additive.h"
#include "ops/backend.h"
#include "ops/sdpa.h"

/* The tasks of one sequence: those before `end` that are of no part before. */
typedef struct part {
    double cost; /* of one task */
    int64_t sequence, n_tasks, end;
} part;

typedef struct run {
    const fa_varlen_desc *desc;
    const fa_kernels *kernels;
    fa_scoring scoring;
    const part *parts;
    int64_t n_parts;
    size_t slot_bytes;
    int n_threads;
    char *factors; /* additive scores: those of attention_v, the same for all sequences */
    char *scratch;
} run;

static void move_rows(fa_array *a, int64_t row) {
    a->data = (char *)a->data + row * a->row_stride * fa_type_bytes(a->type);
}

static void move_factors(fa_array *a, int64_t key, int real_bytes) {
    if (a->data) a->data = (char *)a->data + key * real_bytes;
}

/* The call that sequence s is. */
static void make_job(const run *r, int64_t s, fa_sdpa_desc *d, fa_job *job) {
    const fa_varlen_desc *v = r->desc;
    int64_t query = v->cu_queries[s], key = v->cu_keys[s];
    *d = v->call;
    d->n_queries = v->cu_queries[s + 1] - query;
    d->n_keys = v->cu_keys[s + 1] - key;
    move_rows(&d->query, query);
    move_rows(&d->out, query);
    if (d->page_size > 0) {
        d->pages += v->first_page[s];
    } else {
        move_rows(&d->key, key);
        move_rows(&d->value, key);
        move_factors(&d->key_factors, key, r->kernels->real_bytes);
        move_factors(&d->value_factors, key, r->kernels->real_bytes);
    }
    if (d->lse) d->lse = (char *)d->lse + query * r->kernels->real_bytes;
    d->lse_head_stride = v->call.n_queries;
    if (v->q_offsets) d->q_offset = v->q_offsets[s];
    if (d->slopes)
        d->slopes = (const char *)d->slopes + s * v->slopes_stride * r->kernels->real_bytes;
    *job = (fa_job){.desc = d,
                    .kernels = r->kernels,
                    .scoring = r->scoring,
                    .n_threads = r->n_threads,
                    .factors = r->factors,
                    .scratch = r->scratch};
    fa_plan_sdpa(d, r->kernels, &job->plan);
    fa_plan_whole_heads(&job->plan);
    fa_plan_layout(d, r->kernels, &job->plan, &job->layout);
}

static void sequence_task(void *ctx, int64_t index, fa_worker *worker) {
    const run *r = ctx;
    fa_sdpa_desc d;
    fa_job job;
    int64_t lo = 0, hi = r->n_parts - 1; /* the first part that ends beyond the index */
    while (lo < hi) {
        int64_t middle = (lo + hi) / 2;
        if (r->parts[middle].end > index)
            hi = middle;
        else
            lo = middle + 1;
    }
    const part *p = &r->parts[lo];
    make_job(r, p->sequence, &d, &job);
    job.layout.size = r->slot_bytes;
    fa_rows_task(&job, index - (p->end - p->n_tasks), worker);
}

static int by_cost(const void *a, const void *b) {
    const part *x = a, *y = b;
    return x->cost < y->cost ? 1 : x->cost > y->cost ? -1 : 0;
}

/* Millions of sequences take a second to plan: who waits may want to stop. */
static int is_given_up(const fa_exec *exec, int64_t n_done, fa_fpenv *env) {
    enum { EVERY = 1 << 16 };
    if (!exec->interrupted || (n_done + 1) % EVERY) return 0;
    fa_fpenv_leave(env); /* Python code may run: in the environment that it chose */
    int stop = exec->interrupted();
    *env = fa_fpenv_enter();
    return stop;
}

/* Fills the parts, longest tasks first: so that no long one is left when all others are done.
 * Returns the cost of all, or -1 if told to stop. */
static double make_parts(run *r, part *parts, fa_fpenv *env) {
    double cost = 0.0;
    int64_t end = 0;
    for (int64_t s = 0; s < r->desc->n_sequences; s++) {
        fa_sdpa_desc d;
        fa_job job;
        if (is_given_up(&r->desc->call.exec, s, env)) return -1.0;
        if (r->desc->cu_queries[s] == r->desc->cu_queries[s + 1]) continue;
        make_job(r, s, &d, &job);
        cost += job.plan.cost_ns;
        if (job.layout.size > r->slot_bytes) r->slot_bytes = job.layout.size;
        parts[r->n_parts++] =
            (part){job.plan.cost_ns / (double)job.plan.n_tasks, s, job.plan.n_tasks, 0};
    }
    qsort(parts, (size_t)r->n_parts, sizeof *parts, by_cost);
    for (int64_t x = 0; x < r->n_parts; x++) parts[x].end = end += parts[x].n_tasks;
    return cost;
}

/* The scratch of the call: factors of additive scores, then a part for each thread. */
static int take_scratch(run *r) {
    const fa_sdpa_desc *d = &r->desc->call;
    fa_factors f = fa_plan_factors(d);
    int64_t n_reals = f.n_rows * (f.n_minus_2a + f.n_sums);
    size_t shared = (size_t)fa_round_up(n_reals * r->kernels->real_bytes, FA_ALIGN);
    char *block = fa_take_scratch(shared, r->slot_bytes, &r->n_threads);
    if (!block) return FA_NO_MEMORY;
    r->factors = block;
    r->scratch = block + shared;
    if (d->attention_v) {
        fa_fpenv env = fa_fpenv_enter();
        fa_additive_factors(d, r->kernels->real_bytes, block);
        fa_fpenv_leave(&env);
    }
    return FA_OK;
}

int fa_varlen(const fa_varlen_desc *desc) {
    run r = {.desc = desc, .kernels = fa_backend_get(desc->call.exec.backend, desc->call.out.type)};
    if (!r.kernels || desc->call.exec.n_threads < 1) return FA_BROKEN_CONTRACT;
    if (desc->n_sequences == 0 || desc->call.n_q_heads == 0) return FA_OK;
    part *parts = fa_scratch_take((size_t)desc->n_sequences * sizeof *parts);
    if (!parts) return FA_NO_MEMORY;
    fa_fpenv env = fa_fpenv_enter(); /* tasks do the same */
    fa_plan_scoring(&desc->call, &r.scoring);
    double cost = make_parts(&r, parts, &env);
    fa_fpenv_leave(&env);
    int status = cost < 0.0 ? FA_INTERRUPTED : FA_OK;
    if (status == FA_OK && r.n_parts > 0) {
        int64_t n_tasks = parts[r.n_parts - 1].end;
        r.parts = parts;
        r.n_threads = fa_useful_threads(cost, n_tasks, desc->call.exec.n_threads);
        status = take_scratch(&r);
        if (status == FA_OK) {
            status =
                fa_pool_run(n_tasks, sequence_task, &r, r.n_threads, desc->call.exec.interrupted);
            fa_scratch_give(r.factors);
        }
    }
    fa_scratch_give(parts);
    return status;
}
