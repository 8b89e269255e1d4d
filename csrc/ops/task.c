/* SPDX-License-Identifier: MIT
 * Implements ops/task.h.
 * Used by ops/sdpa.c.  Computes no attention; the scaled copy of the queries is the only data it writes. */
#include "ops/task.h"

#include "ops/additive.h"
#include "ops/real.h"

enum { SHORT_WINDOW = 32 }; /* so many keys more cost little, whichever way they are taken */

static char *lead_offset(const fa_sdpa_desc *d, const fa_array *a, int64_t batch) {
    char *p = a->data;
    for (int x = d->n_lead - 1; x >= 0; x--) {
        p += (batch % d->lead_shape[x]) * a->lead_bytes[x];
        batch /= d->lead_shape[x];
    }
    return p;
}

/* Row 0 of head 0 of a batch entry; moved by rows and heads with moved(). */
static char *moved(const fa_array *a, char *from, int64_t head, int64_t row) {
    return from + (head * a->head_stride + row * a->row_stride) * fa_type_bytes(a->type);
}

static char *first_of(const fa_sdpa_desc *d, const fa_array *a, int64_t batch, int64_t head) {
    return a->data ? moved(a, lead_offset(d, a, batch), head, 0) : NULL;
}

static const char *in_page(const fa_array *a, const char *first, int64_t page, int64_t offset) {
    if (!first) return NULL;
    return first + page * a->lead_bytes[0] + offset * fa_type_bytes(a->type);
}

fa_piece fa_task_piece(const fa_task *t, int64_t first) {
    const fa_sdpa_desc *d = t->job->desc;
    fa_piece p = {.n_keys = d->n_keys - first};
    if (d->page_size == 0) {
        p.key = t->key + first * t->key_bytes;
        p.value = t->value + first * t->value_bytes;
        p.key_factors = t->key_factor ? t->key_factor + first * t->real_bytes : NULL;
        p.value_factors = t->value_factor ? t->value_factor + first * t->real_bytes : NULL;
    } else {
        int64_t page = d->pages[first / d->page_size], row = first % d->page_size;
        p.n_keys = fa_min64(p.n_keys, d->page_size - row);
        p.key = in_page(&d->key, t->key, page, row * d->key.row_stride);
        p.value = in_page(&d->value, t->value, page, row * d->value.row_stride);
        p.key_factors = in_page(&d->key_factors, t->key_factor, page, row);
        p.value_factors = in_page(&d->value_factors, t->value_factor, page, row);
    }
    return p;
}

int fa_task_runs(const fa_task *t, int64_t key, int64_t n, fa_run *runs) {
    const fa_sdpa_desc *d = t->job->desc;
    int n_runs = 0;
    if (d->page_size == 0) {
        runs[0] = (fa_run){t->key + key * t->key_bytes, t->value + key * t->value_bytes, (int)n};
        return n > 0;
    }
    int64_t page = key / d->page_size, row = key % d->page_size;
    for (; n > 0; page++, row = 0) {
        int64_t here = fa_min64(n, d->page_size - row), at = d->pages[page];
        FA_ASSERT(n_runs < FA_MAX_RUNS);
        runs[n_runs++] =
            (fa_run){in_page(&d->key, t->key, at, row * d->key.row_stride),
                     in_page(&d->value, t->value, at, row * d->value.row_stride), (int)here};
        n -= here;
    }
    return n_runs;
}

/* Row i: which head of the group, and which query.  One division, and none without groups. */
static int64_t split_row(const fa_task *t, int i, int64_t *query) {
    int64_t row = t->first_row + i, group = t->job->plan.group;
    *query = group == 1 ? row : row / group;
    return row - *query * group;
}

const void *fa_task_query(const fa_task *t, int i) {
    int64_t query, head = split_row(t, i, &query);
    return moved(&t->job->desc->query, t->query, head, query);
}

void *fa_task_out(const fa_task *t, int i) {
    int64_t query, head = split_row(t, i, &query);
    return moved(&t->job->desc->out, t->out, head, query);
}

int64_t fa_task_flat_row(const fa_task *t, int i) {
    const fa_sdpa_desc *d = t->job->desc;
    int64_t query, head = split_row(t, i, &query) + t->kv_head * t->job->plan.group;
    return (t->batch * d->n_q_heads + head) * d->n_queries + query;
}

void *fa_task_lse(const fa_task *t, int i) {
    const fa_sdpa_desc *d = t->job->desc;
    int64_t query, head = split_row(t, i, &query) + t->kv_head * t->job->plan.group;
    int64_t stride = d->lse_head_stride ? d->lse_head_stride : d->n_queries;
    return fa_task_reals(t, d->lse, (t->batch * d->n_q_heads + head) * stride + query);
}

char *fa_task_weights(const fa_task *t, int i) {
    const fa_sdpa_desc *d = t->job->desc;
    int64_t at = fa_task_flat_row(t, i) * d->n_keys;
    return (char *)d->weights + at * fa_type_bytes(d->out.type);
}

static void describe_factors(const fa_task *t, int64_t head, fa_row *row) {
    const fa_sdpa_desc *d = t->job->desc;
    fa_factors f = fa_plan_factors(d);
    const int bytes = t->real_bytes;
    const char *factors =
        t->job->factors + (f.n_rows > 1 ? head : 0) * (f.n_minus_2a + f.n_sums) * bytes;
    row->a = (const char *)d->attention_v + head * d->attention_v_stride * bytes;
    row->minus_2a = factors;
    row->a_sums = factors + f.n_minus_2a * bytes;
    row->a_rest = factors + (f.n_minus_2a + f.n_sums - 2) * bytes;
}

/* A key's index, or one far beyond all keys. */
static int64_t to_index(double x) {
    const double far = 1152921504606846976.0; /* 2^60 */
    return x > far ? (int64_t)far : x < -far ? -(int64_t)far : (int64_t)x;
}

static void describe_row(const fa_task *t, int i, fa_row *row) {
    const fa_sdpa_desc *d = t->job->desc;
    const fa_array *terms[2] = {&d->bias, &d->attn_mask};
    const int bytes = t->real_bytes;
    int64_t query, in_group = split_row(t, i, &query);
    int64_t head = t->kv_head * t->job->plan.group + in_group;
    int64_t p = query + (d->q_offsets ? d->q_offsets[t->batch] : d->q_offset);
    int64_t lo = 0, hi = d->kv_lengths ? d->kv_lengths[t->batch] : d->n_keys;
    if (d->is_causal) hi = fa_min64(hi, p + 1);
    if (d->window_right >= 0) hi = fa_min64(hi, p + d->window_right + 1);
    if (d->window_left >= 0) lo = fa_max64(lo, p - d->window_left);
    if (d->centers) {
        row->center = d->centers[(t->batch * d->n_q_heads + head) * d->n_queries + query];
        lo = fa_max64(lo, to_index(ceil(row->center - d->half_width)));
        hi = fa_min64(hi, to_index(floor(row->center + d->half_width)) + 1);
    }
    row->position = p;
    row->is_alone = 0;
    row->key_hi = fa_max64(0, hi);
    row->key_lo = fa_min64(lo, row->key_hi);
    row->slope =
        d->slopes ? fa_real_at(d->slopes, t->batch * d->slopes_batch_stride + head, bytes) : 0.0;
    row->sink = d->sinks ? fa_real_at(d->sinks, head, bytes) : -INFINITY;
    if (d->attention_v) describe_factors(t, head, row);
    for (int x = 0; x < 2; x++)
        row->term[x] = t->term[x] ? moved(terms[x], t->term[x], in_group, query) : NULL;
}

/* Local attention: rows of a block whose windows lie far apart are computed one by one, not all of them
 * over all keys between.  A key costs a row alone about four times as much as a row of a full block. */
static void mark_scattered(fa_task *t) {
    const int block = t->job->plan.row_block;
    for (int first = 0; first < t->n_rows; first += block) {
        int stop = fa_min(t->n_rows, first + block);
        int64_t lo = INT64_MAX, hi = 0, seen = 0, n = 0;
        for (int i = first; i < stop; i++) {
            const fa_row *row = &t->rows[i];
            if (row->key_lo == row->key_hi) continue;
            lo = fa_min64(lo, row->key_lo);
            hi = fa_max64(hi, row->key_hi);
            seen += row->key_hi - row->key_lo + SHORT_WINDOW;
            n++;
        }
        for (int i = first; i < stop; i++) t->rows[i].is_alone = n > 0 && n * (hi - lo) > 4 * seen;
    }
}

/* Packed keys lie as the key itself would if it were compact: its own leading axes, then its heads. */
static fa_additive_keys packed_keys_of(const fa_task *t) {
    const fa_sdpa_desc *d = t->job->desc;
    int64_t bytes = fa_additive_packed_bytes(d->exec.backend, d->key.type, d->n_keys, d->qk_size);
    int64_t entry = 0, step = 1, batch = t->batch;
    for (int x = d->n_lead - 1; x >= 0; x--) {
        if (d->key.lead_bytes[x] != 0) { /* a broadcast axis was packed once */
            entry += batch % d->lead_shape[x] * step;
            step *= d->lead_shape[x];
        }
        batch /= d->lead_shape[x];
    }
    char *from = (char *)(uintptr_t)d->packed_keys + (entry * d->n_kv_heads + t->kv_head) * bytes;
    return fa_additive_split(t->job->kernels, from, d->n_keys, d->qk_size);
}

/* How far |a| may go in all until only tanh itself is accurate enough: docs/numerics.md. */
#define FA_MOST_ATTENTION_V 1024.0

static void make_exponentials(const fa_task *t, const void *query, void *e, fa_row *row) {
    const fa_sdpa_desc *d = t->job->desc;
    const fa_kernels *k = t->job->kernels;
    row->query = query;
    row->reach = k->additive_row(query, (int)d->qk_size, e);
    int is_few_or_many = d->qk_size <= FA_ADDITIVE_FEW || d->qk_size > FA_ADDITIVE_MOST;
    double volume = fa_real_at(row->a_rest, 1, t->real_bytes);
    if (is_few_or_many || volume > FA_MOST_ATTENTION_V) row->reach = FA_FAR;
}

void fa_task_begin(const fa_job *j, fa_worker *worker, int64_t head, int64_t row_task, fa_task *t) {
    const fa_sdpa_desc *d = j->desc;
    const fa_layout *l = &j->layout;
    char *base = j->scratch + (size_t)fa_worker_slot(worker) * l->size;
    t->job = j;
    t->worker = worker;
    t->real_bytes = j->kernels->real_bytes;
    t->batch = head / d->n_kv_heads;
    t->kv_head = head % d->n_kv_heads;
    t->first_row = row_task * j->plan.rows_per_task;
    t->n_rows = (int)fa_min64(j->plan.rows_per_task, j->plan.n_rows - t->first_row);
    t->key = first_of(d, &d->key, t->batch, t->kv_head);
    t->value = first_of(d, &d->value, t->batch, t->kv_head);
    t->key_factor = first_of(d, &d->key_factors, t->batch, t->kv_head);
    t->value_factor = first_of(d, &d->value_factors, t->batch, t->kv_head);
    t->key_bytes = d->key.row_stride * fa_type_bytes(d->key.type);
    t->value_bytes = d->value.row_stride * fa_type_bytes(d->value.type);
    t->query = first_of(d, &d->query, t->batch, t->kv_head * j->plan.group);
    t->out = first_of(d, &d->out, t->batch, t->kv_head * j->plan.group);
    t->term[0] = first_of(d, &d->bias, t->batch, t->kv_head * j->plan.group);
    t->term[1] = first_of(d, &d->attn_mask, t->batch, t->kv_head * j->plan.group);
    t->rows = (fa_row *)(void *)(base + l->rows);
    t->q = base + l->q;
    t->row_max = base + l->row_max;
    t->row_sum = base + l->row_sum;
    t->o = base + l->o;
    t->part_max = base + l->part_max;
    t->part_sum = base + l->part_sum;
    t->part_o = base + l->part_o;
    t->scores = base + l->scores;
    t->alpha = base + l->alpha;
    t->k_panels = base + l->k_panels;
    t->v_panels = base + l->v_panels;
    t->hidden = (uint8_t *)base + l->hidden;
    t->finished = (uint8_t *)base + l->finished;
    t->gathered = base + l->gathered;
    t->factors = base + l->factors;
    t->own_keys = (fa_additive_keys){t->k_panels, (uint8_t *)base + l->reach};
    if (d->packed_keys) t->packed = packed_keys_of(t);
    t->careful = (double *)(void *)(base + l->careful);
    t->picks = (int64_t *)(void *)(base + l->picks);
    t->draws = (double *)(void *)(base + l->draws);
    t->ahead = NULL;
    t->key_lo = d->n_keys;
    t->key_hi = 0;
    for (int i = 0; i < t->n_rows; i++) {
        describe_row(t, i, &t->rows[i]);
        const void *query = fa_task_query(t, i);
        void *q = fa_task_reals(t, t->q, i * l->q_stride);
        if (d->attention_v)
            make_exponentials(t, query, q, &t->rows[i]);
        else
            j->kernels->typed[d->query.type].scale_row(query, j->scoring.q_factor, (int)d->qk_size,
                                                       q);
        if (t->rows[i].key_lo < t->rows[i].key_hi) {
            t->key_lo = fa_min64(t->key_lo, t->rows[i].key_lo);
            t->key_hi = fa_max64(t->key_hi, t->rows[i].key_hi);
        }
    }
    if (d->centers) mark_scattered(t);
}

static void add_rows(fa_ahead *ahead, const fa_array *a, const char *first, int64_t size,
                     int64_t n) {
    int64_t item = fa_type_bytes(a->type);
    if (size * n > 0)
        ahead->rows[ahead->n++] = fa_fetch_rows(first, a->row_stride * item, size * item, n);
}

void fa_task_look_ahead(const fa_task *t, int64_t head, int64_t row_task, fa_ahead *ahead) {
    const fa_job *j = t->job;
    const fa_sdpa_desc *d = j->desc;
    const fa_kernels *k = j->kernels;
    int64_t batch = head / d->n_kv_heads, kv_head = head % d->n_kv_heads;
    int64_t first = row_task * j->plan.rows_per_task;
    int64_t n_rows = fa_min64(j->plan.rows_per_task, j->plan.n_rows - first);
    int64_t n_keys = fa_min64(j->plan.key_tile, d->n_keys);
    ahead->n = ahead->now = 0;
    if (j->plan.group == 1) { /* else the rows are of several heads */
        add_rows(ahead, &d->query,
                 moved(&d->query, first_of(d, &d->query, batch, kv_head), 0, first), d->qk_size,
                 n_rows);
        add_rows(ahead, &d->out, moved(&d->out, first_of(d, &d->out, batch, kv_head), 0, first),
                 d->v_size, n_rows);
    }
    if (d->page_size == 0 && (batch != t->batch || kv_head != t->kv_head)) {
        add_rows(ahead, &d->key, first_of(d, &d->key, batch, kv_head), d->qk_size, n_keys);
        add_rows(ahead, &d->value, first_of(d, &d->value, batch, kv_head), d->v_size, n_keys);
    }
    int64_t lines = 0, seen = fa_max64(0, t->key_hi - t->key_lo);
    for (int x = 0; x < ahead->n; x++) lines += ahead->rows[x].n_lines;
    /* One step for each product of a register block; a little early, since masks leave some out. */
    int64_t strips = fa_ceil_div(seen, j->plan.key_tile) * fa_ceil_div(d->v_size, k->nr);
    int64_t steps = fa_ceil_div(t->n_rows, k->mr) * (fa_ceil_div(seen, k->nr) + strips);
    ahead->lines_per_step = (int)fa_ceil_div(lines * 5 / 4, fa_max64(1, steps));
    /* More than some lines at once fill the miss buffers and stall what comes after them. */
    ahead->in_products = ahead->lines_per_step > 24;
    ahead->wait = steps - fa_ceil_div(lines * 2, fa_max64(1, d->qk_size));
    if (ahead->lines_per_step > 64) ahead->n = 0; /* not to be had in time */
}
