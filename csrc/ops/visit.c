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

/* The keys of a tile as it is looked at: where their numbers lie, and how far rows are apart. */
typedef struct tile_keys {
    fa_piece at;
    int64_t k_stride, v_stride;
} tile_keys;

static void copy_rows(char *to, const char *from, int64_t step, size_t bytes, int64_t n) {
    for (int64_t j = 0; j < n; j++, to += bytes, from += step) memcpy(to, from, bytes);
}

/* The rows of a tile from several pages, one after the other. */
static void gather_rows(const fa_task *t, int64_t key, int n_keys, tile_keys *keys) {
    const fa_sdpa_desc *d = t->job->desc;
    const size_t k_bytes = (size_t)d->qk_size * (size_t)fa_type_bytes(d->key.type);
    const size_t v_bytes = (size_t)d->v_size * (size_t)fa_type_bytes(d->value.type);
    char *k = t->gathered, *v = k + (size_t)n_keys * k_bytes;
    keys->at.key = k;
    keys->at.value = v;
    keys->k_stride = d->qk_size;
    keys->v_stride = d->v_size;
    for (fa_piece p; n_keys > 0; key += p.n_keys, n_keys -= (int)p.n_keys) {
        p = fa_task_piece(t, key);
        p.n_keys = fa_min64(p.n_keys, n_keys);
        copy_rows(k, p.key, t->key_bytes, k_bytes, p.n_keys);
        copy_rows(v, p.value, t->value_bytes, v_bytes, p.n_keys);
        k += (size_t)p.n_keys * k_bytes;
        v += (size_t)p.n_keys * v_bytes;
    }
}

/* The same for their factors, of which there are few. */
static void gather_factors(const fa_task *t, int64_t key, int n_keys, tile_keys *keys) {
    char *k = t->factors, *v = fa_task_reals(t, k, n_keys);
    int64_t done = 0;
    for (fa_piece p; done < n_keys; done += p.n_keys) {
        p = fa_task_piece(t, key + done);
        p.n_keys = fa_min64(p.n_keys, n_keys - done);
        size_t bytes = (size_t)p.n_keys * (size_t)t->real_bytes;
        if (p.key_factors) memcpy(fa_task_reals(t, k, done), p.key_factors, bytes);
        if (p.value_factors) memcpy(fa_task_reals(t, v, done), p.value_factors, bytes);
    }
    if (keys->at.key_factors) keys->at.key_factors = k;
    if (keys->at.value_factors) keys->at.value_factors = v;
}

/* The values of a tile in place with the hidden ones zeroed; the keys stay where they are. */
static void hide_values(const fa_task *t, int64_t key, int n_keys, tile_keys *keys) {
    const fa_sdpa_desc *d = t->job->desc;
    size_t bytes = (size_t)d->v_size * (size_t)fa_type_bytes(d->value.type);
    char *to = t->v_panels;
    for (int j = 0; j < n_keys; j++, to += bytes) {
        if (t->hidden[j])
            memset(to, 0, bytes);
        else
            memcpy(to, fa_task_piece(t, key + j).value, bytes);
    }
    keys->at.value = t->v_panels;
    keys->v_stride = d->v_size;
}

static void hide_factors(const fa_task *t, int n_keys, tile_keys *keys) {
    const size_t bytes = (size_t)t->real_bytes;
    char *factors = fa_task_reals(t, t->factors, n_keys);
    for (size_t j = 0; j < (size_t)n_keys; j++)
        if (t->hidden[j])
            memset(factors + j * bytes, 0, bytes);
        else /* from elsewhere, or from where they are */
            memmove(factors + j * bytes, keys->at.value_factors + j * bytes, bytes);
    keys->at.value_factors = factors;
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

/* Factors from key `begin` of a tile on, if there are any. */
static const void *factors_from(const fa_task *t, const char *factors, int begin) {
    return factors ? factors + begin * t->real_bytes : NULL;
}

/* The runs of a tile in place, and those after it, which are most often the next tile's. */
typedef struct tile_runs {
    fa_run runs[2][FA_MAX_RUNS];
    int now, n_next;
    int64_t next_key, n_next_keys;
    fa_fetch fetch;
} tile_runs;

static void put_in_place(const fa_task *t, fa_tile *tile, tile_runs *r) {
    int64_t after = tile->key_first + tile->n_keys;
    if (tile->key_first == r->next_key && tile->n_keys == r->n_next_keys) {
        r->now = !r->now;
        tile->n_runs = r->n_next;
    } else {
        tile->n_runs = fa_task_runs(t, tile->key_first, tile->n_keys, r->runs[r->now]);
    }
    fa_run *next = r->runs[!r->now];
    r->next_key = after;
    r->n_next_keys = fa_min64(tile->n_keys, t->job->desc->n_keys - after);
    r->n_next = fa_task_runs(t, after, r->n_next_keys, next);
    /* After the last tile nothing is wanted; what is fetched all the same should be somewhere. */
    if (r->n_next == 0) next[r->n_next++] = r->runs[r->now][0];
    tile->runs = r->runs[r->now];
    tile->next = next;
    tile->n_next = r->n_next;
    tile->fetch = &r->fetch;
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
    tile_runs runs;
    runs.now = 0, runs.next_key = -1;

    /* Tiles end at multiples of key_tile and begin at multiples of nr, wherever the task's own range
     * begins: it depends on how many rows the task has, on which no bit may depend. */
    for (int64_t key = lo / k->nr * k->nr, next; key < hi; key = next) {
        next = fa_min64(hi, (key / j->plan.key_tile + 1) * j->plan.key_tile);
        int n = (int)(next - key);
        if (d->centers && !is_wanted(t, first, n_rows, key, n)) continue;
        const uint8_t *hidden = NULL;
        tile_keys keys = {fa_task_piece(t, key), d->key.row_stride, d->value.row_stride};
        if (keys.at.n_keys < n) { /* several pages */
            if (keys.at.key_factors || keys.at.value_factors) gather_factors(t, key, n, &keys);
            if (!in_place) gather_rows(t, key, n, &keys);
        }
        if (mode == FA_ONLY_VISIBLE) {
            k->hidden_keys(&j->scoring, &t->rows[first], key, n, t->hidden);
            hidden = t->hidden;
            if (keys.at.value_factors) hide_factors(t, n, &keys);
        }
        const char *panels = t->k_panels;
        const uint8_t *reach = t->own_keys.reach;
        if (d->packed_keys) {
            panels = fa_task_reals(t, t->packed.panels, key * key_size);
            reach = t->packed.reach + key;
        } else if (additive) {
            k->pack_additive_keys(keys.at.key, d->key.row_stride, n, (int)d->qk_size, t->own_keys);
        } else if (!in_place) {
            of_keys->pack_keys(keys.at.key, keys.k_stride, n, (int)d->qk_size, t->k_panels);
        }
        if (!in_place) {
            if (!on_scores)
                of_values->pack_values(keys.at.value, keys.v_stride, n, v_size, hidden,
                                       t->v_panels);
        } else if (hidden) {
            hide_values(t, key, n, &keys);
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
                .k = panels + begin * key_size * k->real_bytes,
                .k_stride = d->key.row_stride,
                .v = fa_task_reals(t, t->v_panels, (int64_t)begin * k->nr),
                .v_stride = in_place ? d->value.row_stride : (int64_t)n * k->nr,
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
                .key_factors = factors_from(t, keys.at.key_factors, begin),
                .value_factors = factors_from(t, keys.at.value_factors, begin),
                .raw_k = keys.at.key + begin * t->key_bytes,
                .raw_k_stride = d->key.row_stride,
                .picks = t->picks + row,
                .draws = t->draws + row,
            };
            if (in_place) put_in_place(t, &tile, &runs);
            (additive ? k->additive : keys_in_place ? of_keys->dots : k->products)(&tile);
            if (!on_scores) {
                fa_run hidden_run;
                k->softmax(&tile, t->alpha);
                if (in_place && hidden) {
                    hidden_run =
                        (fa_run){NULL, keys.at.value + begin * keys.v_stride * v_item, tile.n_keys};
                    tile.runs = &hidden_run;
                    tile.n_runs = 1;
                    tile.v_stride = keys.v_stride;
                }
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
