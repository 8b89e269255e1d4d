/* SPDX-License-Identifier: MIT
 * Implements ops/visit.h.
 * Used by ops/sdpa.c.  It finishes nothing: the states it leaves become outputs there. */
#include "ops/visit.h"

#include "ops/real.h"

void fa_clear_state(const fa_task *t, int first, int n_rows, char *row_max, char *row_sum,
                    char *o) {
    const int bytes = t->real_bytes;
    size_t o_bytes = (size_t)t->job->layout.o_stride * (size_t)bytes;
    for (int i = first; i < first + n_rows; i++) {
        fa_real_put(row_max, i, -INFINITY, bytes);
        fa_real_put(row_sum, i, 0.0, bytes);
        memset(o + (size_t)i * o_bytes, 0, o_bytes);
    }
}

/* The value rows of a decode tile with the hidden ones zeroed; the keys stay where they are. */
static void copy_visible_values(const fa_task *t, const char *values, int n_keys) {
    const fa_sdpa_desc *d = t->job->desc;
    size_t item = (size_t)fa_type_bytes(d->value.type), bytes = (size_t)d->v_size * item;
    for (int j = 0; j < n_keys; j++) {
        char *to = t->v_panels + (size_t)j * (size_t)t->job->layout.o_stride * item;
        if (t->hidden[j])
            memset(to, 0, bytes);
        else
            memcpy(to, values + j * t->value_bytes, bytes);
    }
}

/* The part of a tile of n keys that some row of the task's row block sees.  It is the same when only
 * one row of the block is visited, so that the row's bits are the same. */
static void trim_tile(const fa_task *t, int block, int64_t key, int n, int *begin, int *end) {
    int64_t lo = INT64_MAX, hi = 0;
    int size = t->rows[block].is_alone ? 1 : t->job->plan.row_block;
    int nr = t->job->kernels->nr, stop = fa_min(t->n_rows, block + size);
    for (int i = block; i < stop; i++) {
        if (t->rows[i].key_lo == t->rows[i].key_hi) continue;
        lo = fa_min64(lo, t->rows[i].key_lo);
        hi = fa_max64(hi, t->rows[i].key_hi);
    }
    *end = (int)fa_max64(0, fa_min64(n, hi - key));
    *begin = lo >= key + *end ? *end : (int)(fa_max64(0, lo - key) / nr * nr);
}

/* Walks that look at final scores, and need no state of their own. */
static int is_on_scores(fa_visit_mode mode) {
    return mode == FA_WEIGHTS || mode == FA_TOP || mode == FA_DRAW;
}

static void store_weights(const fa_task *t, const fa_tile *tile, int first) {
    int type = t->job->desc->out.type, item = fa_type_bytes(type);
    for (int i = 0; i < tile->n_rows; i++)
        t->job->kernels->typed[type].store_row(
            fa_task_reals(t, tile->s, (int64_t)i * tile->s_stride), tile->n_keys,
            fa_task_weights(t, first + i) + tile->key_first * item);
}

/* Whether any of the rows may see one of the keys. */
static int is_wanted(const fa_task *t, int first, int n_rows, int64_t key, int n_keys) {
    for (int i = first; i < first + n_rows; i++)
        if (t->rows[i].key_lo < key + n_keys && t->rows[i].key_hi > key) return 1;
    return 0;
}

/* Walks rows [first, first + n_rows) of the task over keys [lo, hi), tile by tile. */
static void visit_tiles(const fa_task *t, int first, int n_rows, int64_t lo, int64_t hi,
                        fa_visit_mode mode) {
    const fa_job *j = t->job;
    const fa_sdpa_desc *d = j->desc;
    const fa_kernels *k = j->kernels;
    const fa_typed_kernels *of_keys = &k->typed[d->key.type], *of_values = &k->typed[d->value.type];
    const fa_layout *l = &j->layout;
    const int v_item = fa_type_bytes(d->value.type);
    const int additive = d->attention_v != NULL, alone = t->rows[first].is_alone;
    const int in_place = j->plan.is_decode || alone, keys_in_place = in_place && !additive;
    const int64_t key_size = additive ? fa_round_up(d->qk_size, 2) : d->qk_size;
    const int block_rows = alone ? 1 : j->plan.row_block;
    const int on_scores = is_on_scores(mode), v_size = mode == FA_SUMS ? 0 : (int)d->v_size;
    const int64_t poll_after = 1 << 24; /* products: a millisecond or so */
    int64_t n_products = 0;

    /* Tiles end at multiples of key_tile and begin at multiples of nr, wherever the task's own range
     * begins: it depends on how many rows the task has, on which no bit may depend. */
    for (int64_t key = lo / k->nr * k->nr, next; key < hi; key = next) {
        next = fa_min64(hi, (key / j->plan.key_tile + 1) * j->plan.key_tile);
        int n = (int)(next - key);
        if (d->centers && !is_wanted(t, first, n_rows, key, n)) continue;
        const char *keys = t->key + key * t->key_bytes, *values = t->value + key * t->value_bytes;
        int64_t v_row = d->value.row_stride;
        const uint8_t *hidden = NULL;
        if (mode == FA_ONLY_VISIBLE) {
            k->hidden_keys(&j->scoring, &t->rows[first], key, n, t->hidden);
            hidden = t->hidden;
        }
        const char *panels = t->k_panels;
        const uint8_t *reach = t->own_keys.reach;
        if (d->packed_keys) {
            panels = fa_task_reals(t, t->packed.panels, key * key_size);
            reach = t->packed.reach + key;
        } else if (additive) {
            k->pack_additive_keys(keys, d->key.row_stride, n, (int)d->qk_size, t->own_keys);
        } else if (!in_place) {
            of_keys->pack_keys(keys, d->key.row_stride, n, (int)d->qk_size, t->k_panels);
        }
        if (!in_place) {
            if (!on_scores) of_values->pack_values(values, v_row, n, v_size, hidden, t->v_panels);
        } else if (hidden) {
            copy_visible_values(t, values, n);
            values = t->v_panels;
            v_row = l->o_stride;
        }
        for (int block = first / block_rows * block_rows; block < first + n_rows;
             block += block_rows) {
            int begin, end, row = fa_max(block, first);
            trim_tile(t, block, key, n, &begin, &end);
            if (begin >= end) continue;
            fa_tile tile = {
                .scoring = &j->scoring,
                .n_rows = fa_min(block + block_rows, first + n_rows) - row,
                .n_keys = end - begin,
                .key_first = key + begin,
                .qk_size = (int)d->qk_size,
                .v_size = v_size,
                .q = fa_task_reals(t, t->q, row * l->q_stride),
                .q_stride = l->q_stride,
                .k = keys_in_place ? keys + begin * t->key_bytes
                                   : panels + begin * key_size * k->real_bytes,
                .k_stride = d->key.row_stride,
                .v = in_place ? values + begin * v_row * v_item
                              : fa_task_reals(t, t->v_panels, (int64_t)begin * k->nr),
                .v_stride = in_place ? v_row : (int64_t)n * k->nr,
                .k_item = fa_type_bytes(d->key.type),
                .v_item = v_item,
                .keys_in_place = keys_in_place,
                .is_single = block_rows == 1,
                .rows = t->rows + row,
                .s = t->scores,
                .s_stride = l->s_stride,
                .row_max = fa_task_reals(t, on_scores ? t->row_max : t->part_max, row),
                .row_sum = fa_task_reals(t, on_scores ? t->row_sum : t->part_sum, row),
                .o = fa_task_reals(t, t->part_o, row * l->o_stride),
                .o_stride = (int)l->o_stride,
                .ahead = t->ahead,
                .reach = reach + begin,
                .raw_k = keys + begin * t->key_bytes,
                .raw_k_stride = d->key.row_stride,
                .picks = t->picks + row,
                .draws = t->draws + row,
            };
            (additive ? k->additive : keys_in_place ? of_keys->dots : k->products)(&tile);
            if (!on_scores) {
                k->softmax(&tile, t->alpha);
                (in_place ? of_values->values : k->add_values)(&tile, t->alpha);
                continue;
            }
            k->finish_scores(&tile);
            (mode == FA_TOP ? k->top : mode == FA_DRAW ? k->draw : k->weights)(&tile);
            if (mode == FA_WEIGHTS) store_weights(t, &tile, row);
        }
        n_products += (int64_t)n_rows * n * (d->qk_size + d->v_size + 16);
        if (n_products < poll_after) continue;
        if (fa_pool_poll(t->worker)) return;
        n_products = 0;
    }
}

/* Walks one chunk of the keys, as far as the rows see any of [lo, hi). */
static void visit_chunk(const fa_task *t, int first, int n_rows, int64_t lo, int64_t hi,
                        int64_t chunk, fa_visit_mode mode) {
    int64_t size = t->job->plan.key_chunk;
    if (!is_on_scores(mode)) fa_clear_state(t, first, n_rows, t->part_max, t->part_sum, t->part_o);
    visit_tiles(t, first, n_rows, fa_max64(lo, chunk * size), fa_min64(hi, (chunk + 1) * size),
                mode);
}

/* The same for all chunks, merged in order. */
static void visit_range(const fa_task *t, int first, int n_rows, int64_t lo, int64_t hi,
                        fa_visit_mode mode) {
    const fa_layout *l = &t->job->layout;
    int several = t->job->plan.n_chunks > 1;
    /* Chunks beyond the range would change nothing. */
    int64_t chunk = several ? lo / t->job->plan.key_chunk : 0;
    int64_t stop = several ? fa_ceil_div(hi, t->job->plan.key_chunk) : 1;
    if (several && !is_on_scores(mode))
        fa_clear_state(t, first, n_rows, t->row_max, t->row_sum, t->o);
    for (int n = 0; chunk < stop; chunk++, n++) {
        if (n > 0 && fa_pool_poll(t->worker)) return;
        visit_chunk(t, first, n_rows, lo, hi, chunk, mode);
        if (!several || is_on_scores(mode)) continue;
        for (int i = first; i < first + n_rows; i++)
            t->job->kernels->merge_row(
                fa_task_reals(t, t->row_max, i), fa_task_reals(t, t->row_sum, i),
                fa_task_reals(t, t->o, i * l->o_stride), fa_task_reals(t, t->part_max, i),
                fa_task_reals(t, t->part_sum, i), fa_task_reals(t, t->part_o, i * l->o_stride),
                (int)l->o_stride);
    }
}

/* The keys [*lo, *hi) that rows [first, stop) see, if any. */
static void key_range(const fa_task *t, int first, int stop, int64_t *lo, int64_t *hi) {
    *lo = t->job->desc->n_keys;
    *hi = 0;
    for (int i = first; i < stop; i++) {
        if (t->rows[i].key_lo == t->rows[i].key_hi) continue;
        *lo = fa_min64(*lo, t->rows[i].key_lo);
        *hi = fa_max64(*hi, t->rows[i].key_hi);
    }
}

/* Local attention goes over the windows only: rows alone one by one, other blocks together as long as
 * their windows meet, so that what lies between windows costs nothing, whatever the centers are.
 * From `first`, the end of the rows that go together, and their keys.  Blocks are looked at as a whole,
 * even if one row is visited, so that its bits are the same. */
static int next_rows(const fa_task *t, int first, int stop, int64_t *lo, int64_t *hi) {
    const int size = t->job->plan.row_block, alone = t->rows[first].is_alone;
    const int64_t tile = t->job->plan.key_tile;
    int next = alone ? first + 1 : first / size * size + size;
    key_range(t, alone ? first : first / size * size, fa_min(next, t->n_rows), lo, hi);
    for (int64_t from, to; !alone && next < stop && !t->rows[next].is_alone; next += size) {
        key_range(t, next, fa_min(next + size, t->n_rows), &from, &to);
        if (from > *hi + tile || to < *lo - tile) break;
        *lo = fa_min64(*lo, from);
        *hi = fa_max64(*hi, to);
    }
    return fa_min(next, stop);
}

void fa_visit_chunk(const fa_task *t, int first, int n_rows, int64_t chunk, fa_visit_mode mode) {
    int stop = first + n_rows;
    int64_t lo = t->key_lo, hi = t->key_hi;
    for (int next = stop; first < stop; first = next) {
        if (t->job->desc->centers) next = next_rows(t, first, stop, &lo, &hi);
        visit_chunk(t, first, next - first, lo, hi, chunk, mode);
    }
}

void fa_visit_chunks(const fa_task *t, int first, int n_rows, fa_visit_mode mode) {
    const fa_sdpa_desc *d = t->job->desc;
    const int64_t poll_after = 1 << 24; /* as in visit_tiles, which sees some rows at a time */
    int stop = first + n_rows;
    int64_t lo = t->key_lo, hi = t->key_hi, n_products = 0;
    for (int next = stop; first < stop; first = next) {
        if (d->centers) next = next_rows(t, first, stop, &lo, &hi);
        visit_range(t, first, next - first, lo, hi, mode);
        n_products += (next - first) * fa_max64(0, hi - lo) * (d->qk_size + d->v_size + 16);
        if (n_products < poll_after) continue;
        if (fa_pool_poll(t->worker)) return;
        n_products = 0;
    }
}
