/* SPDX-License-Identifier: MIT
 * Implements ops/plan.h: every tile size, split rule and threshold, with its reason.
 * No size depends on the number of threads or on the data, and none that a row's bits depend on (its
 * row block, the key tiles and chunks) on the batch: so neither do the bits. */
#include "ops/plan.h"

enum {
    /* Up to so many rows the keys are read in place: packing a tile costs about as much as 8 rows of
     * products with it. */
    DECODE_ROWS = 8,
    /* Decode: keys of one tile of float32 (small, so that fetching and arithmetic alternate finely: 16 beats 32
     * and 64 by 5 to 15 %), keys of one chunk, most chunks, and the number of heads from which on
     * heads alone keep the threads busy. */
    DECODE_TILE = 16,
    DECODE_CHUNK = 512,
    DECODE_MAX_CHUNKS = 64,
    DECODE_HEADS = 32,
    /* Bytes of partial states that may be kept; beyond, heads alone must do. */
    DECODE_MOST_PARTIAL = 8 << 20,
    /* Prefill: a block of rows shares one key panel in L1; the packed K and V tiles live in L2.  Blocks
     * are as even as can be: a block of a few rows costs as much as one of many. */
    PREFILL_ROW_BLOCK = 48,
    PREFILL_MAX_TILE = 256,
    PREFILL_TILE_BYTES = 64 * 1024,
    /* Rows of a task, which pack each tile once: the more the better (packing is 8 % of the time with
     * 192, 2 % with 768), as long as there are tasks enough for many threads, and as long as queries
     * and outputs, which pass by tile after tile, stay near. */
    PREFILL_TASKS = 48,
    PREFILL_MIN_ROWS = 192,
    PREFILL_MAX_ROWS = 768,
    PREFILL_ROWS_BYTES = 256 * 1024,
    /* Additive scores with few rows: a score costs some hundred operations instead of some ten. */
    ADDITIVE_TILE = 64,
    ADDITIVE_CHUNK = 256,
    /* Sums longer than this many keys are cut and merged, so that rounding errors do not pile up. */
    PREFILL_CHUNK = 8192
};

int fa_type_bytes(int type) {
    static const int bytes[] = {
        [FA_F32] = 4, [FA_F64] = 8, [FA_F16] = 2, [FA_BF16] = 2, [FA_I8] = 1, [FA_BOOL] = 1};
    return bytes[type];
}

/* Whether chunks are tasks of their own: heads alone would not do, and the states are few. */
static int may_split(const fa_sdpa_desc *d, const fa_kernels *k, const fa_plan *p) {
    int64_t n_reals = p->n_heads * p->n_chunks * p->n_rows * (d->v_size + 32);
    return p->n_heads < DECODE_HEADS && p->n_chunks > 1 &&
           n_reals <= DECODE_MOST_PARTIAL / k->real_bytes;
}

static void cut_decode(const fa_sdpa_desc *d, const fa_kernels *k, fa_plan *p) {
    int64_t smallest = fa_ceil_div(fa_max64(1, d->n_keys), DECODE_MAX_CHUNKS);
    p->row_block = (int)fa_max64(1, p->n_rows);
    p->rows_per_task = fa_max64(1, p->n_rows);
    /* The shorter the numbers, the more of the time are fixed costs: docs/benchmarks.md. */
    static const int tiles[] = {
        [FA_F32] = 2, [FA_F64] = 1, [FA_F16] = 4, [FA_BF16] = 4, [FA_I8] = 8};
    p->key_tile = DECODE_TILE * tiles[d->key.type];
    p->key_chunk = fa_max64(DECODE_CHUNK, fa_round_up(smallest, DECODE_CHUNK));
    p->n_chunks = fa_max64(1, fa_ceil_div(d->n_keys, p->key_chunk));
    p->split_keys = may_split(d, k, p);
}

static void cut_prefill(const fa_sdpa_desc *d, const fa_kernels *k, fa_plan *p) {
    int64_t widest = fa_max64(1, fa_max64(d->qk_size, d->v_size)) * k->real_bytes;
    int64_t tile = fa_min64(PREFILL_MAX_TILE, PREFILL_TILE_BYTES / widest);
    int64_t rows = fa_ceil_div(p->n_heads * p->n_rows, PREFILL_TASKS);
    rows = fa_max64(PREFILL_MIN_ROWS, fa_min64(rows, PREFILL_MAX_ROWS));
    rows = fa_min64(rows, PREFILL_ROWS_BYTES / widest);
    p->key_tile = (int)fa_max64(k->nr, tile / k->nr * k->nr);
    int64_t n_blocks = fa_max64(1, fa_ceil_div(p->n_rows, PREFILL_ROW_BLOCK));
    p->row_block = (int)fa_max64(1, fa_ceil_div(p->n_rows, n_blocks));
    p->rows_per_task = fa_max64(p->row_block, rows / p->row_block * p->row_block);
    p->key_chunk = fa_round_up(PREFILL_CHUNK, p->key_tile);
    p->n_chunks = fa_max64(1, fa_ceil_div(d->n_keys, p->key_chunk));
    p->split_keys = 0;
}

/* Additive scores always take packed keys; with few rows values stay in place and keys are split. */
static void cut_additive(const fa_sdpa_desc *d, const fa_kernels *k, fa_plan *p) {
    cut_prefill(d, k, p);
    p->pack_keys = !d->packed_keys;
    if (!p->is_decode) return;
    int64_t smallest = fa_ceil_div(fa_max64(1, d->n_keys), DECODE_MAX_CHUNKS);
    p->row_block = (int)fa_max64(1, p->n_rows);
    p->rows_per_task = fa_max64(1, p->n_rows);
    p->key_tile = (int)fa_round_up(fa_min(p->key_tile, ADDITIVE_TILE), k->nr);
    p->key_chunk = fa_round_up(fa_max64(ADDITIVE_CHUNK, smallest), p->key_tile);
    p->n_chunks = fa_max64(1, fa_ceil_div(d->n_keys, p->key_chunk));
    p->split_keys = may_split(d, k, p);
}

fa_factors fa_plan_factors(const fa_sdpa_desc *d) {
    int64_t line = FA_ALIGN / (int64_t)sizeof(float); /* or two, of doubles */
    if (!d->attention_v) return (fa_factors){0, 0, 0};
    int64_t n_groups = fa_ceil_div(d->qk_size + 1, FA_ADDITIVE_GROUP);
    return (fa_factors){d->attention_v_stride ? d->n_q_heads : 1, fa_round_up(d->qk_size + 1, line),
                        fa_round_up(n_groups + 2, line)};
}

void fa_plan_whole_heads(fa_plan *p) {
    p->split_keys = 0;
    p->n_tasks = p->n_heads * p->n_row_tasks;
}

void fa_plan_sdpa(const fa_sdpa_desc *d, const fa_kernels *k, fa_plan *p) {
    p->group = d->n_kv_heads > 0 ? d->n_q_heads / d->n_kv_heads : 0;
    p->n_rows = p->group * d->n_queries;
    p->n_heads = d->n_batch * d->n_kv_heads;
    p->is_decode = p->n_rows <= DECODE_ROWS;
    p->pack_keys = !p->is_decode;
    if (d->attention_v)
        cut_additive(d, k, p);
    else if (p->is_decode)
        cut_decode(d, k, p);
    else
        cut_prefill(d, k, p);
    p->n_row_tasks = fa_ceil_div(p->n_rows, p->rows_per_task);
    p->n_tasks = p->n_heads * p->n_row_tasks * (p->split_keys ? p->n_chunks : 1);
    if (d->picks) fa_plan_whole_heads(p); /* states of another kind, which cannot be merged */
    p->heavy_rows_last = d->is_causal && p->n_row_tasks > 1;

    double width =
        d->centers ? fmin(2.0 * d->half_width + 1.0, (double)d->n_keys) : (double)d->n_keys;
    double pairs = (double)p->n_heads * (double)p->n_rows * width;
    double size = (double)(d->qk_size + d->v_size);
    double bytes = (double)p->n_heads * (double)d->n_keys * size * k->real_bytes;
    p->cost_ns = pairs * size * 0.02 + bytes * 0.05;                    /* 100 GFLOP/s, 20 GB/s */
    if (d->attention_v) p->cost_ns += pairs * (double)d->qk_size * 0.1; /* 10 G tanh/s */
}

void fa_plan_scoring(const fa_sdpa_desc *d, fa_scoring *sc) {
    sc->has_cap = d->softcap > 0.0;
    /* Where the largest score is all that is wanted, scores that are equal must stay so. */
    sc->unit = d->picks && !d->draws ? 1.0 : FA_LOG2E;
    sc->q_factor = sc->has_cap ? d->scale / d->softcap : d->scale * sc->unit;
    sc->cap_factor = d->softcap * sc->unit;
    sc->scale = d->scale;
    sc->softcap = d->softcap;
    sc->sigma = d->centers ? d->sigma : 0.0;
    sc->gauss = 0.0;
    if (sc->sigma > 0.0)
        sc->gauss = -fmax(DBL_MIN, fmin(FA_LOG2E / (2.0 * sc->sigma * sc->sigma), DBL_MAX));
    sc->term_type[0] = d->bias.type;
    sc->term_type[1] = d->attn_mask.type;
    sc->term_stride[0] = d->bias.col_stride;
    sc->term_stride[1] = d->attn_mask.col_stride;
}

static size_t take(size_t *at, size_t count, size_t item_bytes) {
    size_t begin = *at;
    *at += (size_t)fa_round_up((int64_t)(count * item_bytes), FA_ALIGN);
    return begin;
}

/* Of one key and value. */
static int64_t gathered_bytes(const fa_sdpa_desc *d) {
    return d->qk_size * fa_type_bytes(d->key.type) + d->v_size * fa_type_bytes(d->value.type);
}

void fa_plan_layout(const fa_sdpa_desc *d, const fa_kernels *k, const fa_plan *p, fa_layout *l) {
    size_t rows = (size_t)fa_min64(p->rows_per_task, fa_max64(1, p->n_rows)), at = 0;
    size_t tile = (size_t)fa_round_up(p->key_tile, k->nr), f = (size_t)k->real_bytes;
    int several = p->n_chunks > 1;
    l->q_stride = fa_round_up(d->qk_size + (d->attention_v != NULL), FA_ALIGN / k->real_bytes);
    l->o_stride = fa_round_up(d->v_size, k->nr);
    l->s_stride = (int)tile + FA_ALIGN / k->real_bytes; /* rows fall into different cache sets */

    l->rows = take(&at, rows, sizeof(fa_row));
    l->q = take(&at, rows * (size_t)l->q_stride, f);
    l->row_max = take(&at, rows, f);
    l->row_sum = take(&at, rows, f);
    l->o = take(&at, rows * (size_t)l->o_stride, f);
    l->part_max = several ? take(&at, rows, f) : l->row_max;
    l->part_sum = several ? take(&at, rows, f) : l->row_sum;
    l->part_o = several ? take(&at, rows * (size_t)l->o_stride, f) : l->o;
    l->scores = take(&at, (size_t)p->row_block * (size_t)l->s_stride, f);
    l->alpha = take(&at, FA_MAX_ROW_BLOCK, f);
    size_t key_size = (size_t)(d->attention_v ? fa_round_up(d->qk_size, 2) : d->qk_size);
    l->k_panels = take(&at, p->pack_keys ? tile * key_size : 0, f);
    l->reach = take(&at, d->attention_v && p->pack_keys ? tile : 0, 1);
    l->v_panels = take(&at, tile * (size_t)l->o_stride, f);
    l->hidden = take(&at, tile, 1);
    l->finished = take(&at, rows, 1);
    /* sums, and a query, a key and a value of 16-bit numbers as floats */
    l->careful =
        take(&at, (size_t)(d->v_size + d->qk_size + fa_ceil_div(d->v_size, 2)), sizeof(double));
    size_t keys = (size_t)p->key_tile;
    l->gathered = take(&at, d->page_size > 0 ? keys * (size_t)gathered_bytes(d) : 0, 1);
    l->factors = take(&at, d->key_factors.data || d->value_factors.data ? 2 * keys : 0, f);
    l->picks = take(&at, d->picks ? rows : 0, sizeof(int64_t));
    l->draws = take(&at, d->picks ? rows : 0, sizeof(double));
    l->size = at;
}
