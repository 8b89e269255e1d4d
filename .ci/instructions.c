/* SPDX-License-Identifier: MIT
 * A fixed set of calls of fa_sdpa on one thread, for .ci/instructions.py, which counts their instructions.
 * Used by it under callgrind, which dumps its counters whenever fa_sdpa returns.
 * It checks no result and takes no time: tests/c/test_kernels.c and bench/ do. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fastattn.h"
#include "vec/half.h"

/* head size of keys and values alike; 0 = off everywhere. */
typedef struct call {
    const char *name;
    int batch, q_heads, kv_heads, n_queries, n_keys, size;
    int is_causal, window_left; /* window_left: keys seen before the row's own, plus 1 */
    int bias, mask, alibi, sinks, ragged, weights;
    int bad_hidden, bad_visible; /* NaN in the value of a key that a mask hides, or that rows see */
    double softcap;
    int additive; /* 1 = packs its keys, 2 = takes packed keys */
    double half_width;
    /* scattered: 1 = anywhere; block by block (2) or row by row (3) at one end or the other */
    int scattered, hard; /* hard: 1 = the largest score, 2 = drawn */
    int type;            /* of query, key, value and out; 0 = FA_F32 */
} call;

/* Small, because every instruction is emulated, but of several tiles, row blocks (prefill) or chunks
 * (decode), with a rest of each.  The first one is also run before the counting, to warm up. */
static const call calls[] = {
    {"smallest", 1, 1, 1, 1, 1, .size = 64},
    {"prefill", 1, 1, 1, 200, 600, .size = 64},
    {"prefill causal", 1, 1, 1, 400, 400, .size = 64, .is_causal = 1},
    {"prefill D128", 1, 1, 1, 200, 300, .size = 128},
    {"prefill D40", 1, 1, 1, 100, 300, .size = 40},
    {"short", 2, 3, 3, 128, 128, .size = 64},
    {"decode", 2, 8, 2, 1, 1100, .size = 128},
    {"decode one row", 1, 2, 2, 1, 1100, .size = 64},
    {"all options", 1, 2, 1, 100, 300, .size = 64, .bias = 1, .mask = 1, .alibi = 1,
     .softcap = 20.0},
    {"window", 1, 1, 1, 500, 500, .size = 64, .is_causal = 1, .window_left = 65},
    {"ragged sinks", 3, 2, 2, 70, 300, .size = 64, .ragged = 1, .sinks = 1},
    {"weights", 1, 2, 2, 70, 300, .size = 64, .weights = 1},
    {"hidden NaN", 1, 1, 1, 100, 300, .size = 64, .mask = 1, .bad_hidden = 1},
    {"visible NaN", 1, 1, 1, 20, 300, .size = 64, .bad_visible = 1},
    {"additive", 1, 1, 1, 70, 100, .size = 128, .additive = 1},
    {"additive decode", 4, 1, 1, 1, 50, .size = 256, .additive = 2},
    {"local", 1, 1, 1, 300, 300, .size = 64, .half_width = 16.0},
    {"local scattered", 1, 1, 1, 100, 3000, .size = 64, .half_width = 16.0, .scattered = 1},
    {"local far apart", 1, 1, 1, 192, 300000, .size = 4, .half_width = 2.0, .scattered = 2},
    {"local two ends", 1, 1, 1, 192, 300000, .size = 4, .half_width = 2.0, .scattered = 3},
    {"prefill f16", 1, 1, 1, 100, 300, .size = 64, .type = FA_F16},
    {"decode f16", 2, 8, 2, 1, 1100, .size = 128, .type = FA_F16},
    {"decode bf16", 2, 8, 2, 1, 1100, .size = 128, .type = FA_BF16},
    {"prefill f64", 1, 1, 1, 100, 300, .size = 64, .type = FA_F64},
    {"decode f64", 2, 8, 2, 1, 1100, .size = 128, .type = FA_F64},
    {"additive f64", 1, 1, 1, 70, 100, .size = 128, .additive = 1, .type = FA_F64},
    {"hard", 1, 1, 1, 100, 300, .size = 64, .hard = 1},
    {"hard drawn", 1, 1, 1, 100, 300, .size = 64, .hard = 2},
};

/* Whole pages: instructions must not depend on where an array happens to lie.  Never freed. */
static void *allocate(size_t bytes) {
    void *p = aligned_alloc(4096, (bytes + 4096) / 4096 * 4096);
    if (!p) abort();
    return p;
}

static float draw(void) { /* uniform in [-2, 2), the same numbers everywhere */
    static uint32_t seed = 1;
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) * 0x1p-22f - 2.0f;
}

static float *draw_many(size_t n) {
    float *p = allocate(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = draw();
    return p;
}

static intptr_t lead_bytes[8]; /* the batch strides of the arrays of one call */
static int n_arrays;

/* C-contiguous (batch, heads, rows, cols) over `data`; lead == 0: all batch entries are the same. */
static fa_array array(void *data, int type, int heads, int rows, int cols, int lead) {
    intptr_t item = type == FA_BOOL ? 1 : (intptr_t)sizeof(float);
    fa_array a = {data, &lead_bytes[n_arrays++], (int64_t)rows * cols, cols, 1, type};
    lead_bytes[n_arrays - 1] = lead ? (intptr_t)heads * rows * cols * item : 0;
    return a;
}

static fa_array floats(int batch, int heads, int rows, int cols) {
    float *data = draw_many((size_t)batch * (size_t)heads * (size_t)rows * (size_t)cols);
    return array(data, FA_F32, heads, rows, cols, 1);
}

/* Every row of every head sees about five keys of six, and never key 7. */
static fa_array bool_mask(const call *c) {
    size_t n = (size_t)c->q_heads * (size_t)c->n_queries * (size_t)c->n_keys;
    uint8_t *data = allocate(n);
    for (size_t i = 0; i < n; i++) data[i] = draw() < 1.3f && i % (size_t)c->n_keys != 7;
    return array(data, FA_BOOL, c->q_heads, c->n_queries, c->n_keys, 0);
}

/* The same array in another type. */
static void convert(fa_array *a, size_t n, int type) {
    const float *from = a->data;
    char *to = allocate(n * sizeof(double));
    for (size_t i = 0; i < n; i++) {
        if (type == FA_F64)
            ((double *)(void *)to)[i] = from[i];
        else
            ((uint16_t *)(void *)to)[i] = type == FA_F16 ? fa_to_f16(from[i]) : fa_to_bf16(from[i]);
    }
    intptr_t *lead = &lead_bytes[a->lead_bytes - lead_bytes];
    *lead = type == FA_F64 ? *lead * 2 : *lead / 2;
    a->data = to;
    a->type = type;
}

static void make_additive(const call *c, fa_sdpa_desc *d) {
    d->scale = 1.0;
    fa_array a = {draw_many((size_t)c->size), lead_bytes, 0, 0, 1, FA_F32};
    if (c->type == FA_F64) convert(&a, (size_t)c->size, c->type);
    d->attention_v = a.data;
    if (c->additive < 2) return;
    int64_t bytes = fa_additive_packed_bytes(d->exec.backend, FA_F32, c->n_keys, c->size);
    char *packed = allocate((size_t)(bytes * c->batch * c->kv_heads));
    const float *key = d->key.data;
    for (int x = 0; x < c->batch * c->kv_heads; x++)
        fa_additive_pack(d->exec.backend, FA_F32, key + (int64_t)x * c->n_keys * c->size, c->size,
                         c->n_keys, c->size, packed + x * bytes);
    d->packed_keys = packed;
}

static double *make_numbers(const call *c, double range) { /* one a row, from 0 to below `range` */
    size_t n = (size_t)c->batch * (size_t)c->q_heads * (size_t)c->n_queries;
    double *p = allocate(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = (draw() + 2.0) / 4.0 * range;
    return p;
}

static int run(const call *c, int backend) {
    static const float slopes[] = {0.25f, 0.0625f}, sinks[] = {1.0f, -INFINITY};
    static const int64_t lengths[] = {300, 0, 123};
    const intptr_t shape[] = {c->batch};
    size_t n_rows = (size_t)c->batch * (size_t)c->q_heads * (size_t)c->n_queries;
    n_arrays = 0;
    fa_sdpa_desc d = {.exec = {backend, 1, NULL},
                      .n_lead = 1,
                      .lead_shape = shape,
                      .n_batch = c->batch,
                      .n_q_heads = c->q_heads,
                      .n_kv_heads = c->kv_heads,
                      .n_queries = c->n_queries,
                      .n_keys = c->n_keys,
                      .qk_size = c->size,
                      .v_size = c->size,
                      .scale = 1.0 / sqrt(c->size),
                      .softcap = c->softcap,
                      .is_causal = c->is_causal,
                      .window_left = c->window_left - 1,
                      .window_right = -1};
    d.query = floats(c->batch, c->q_heads, c->n_queries, c->size);
    d.key = floats(c->batch, c->kv_heads, c->n_keys, c->size);
    d.value = floats(c->batch, c->kv_heads, c->n_keys, c->size);
    d.out = floats(c->batch, c->q_heads, c->n_queries, c->size);
    if (c->bias) d.bias = floats(c->batch, c->q_heads, c->n_queries, c->n_keys);
    if (c->mask) d.attn_mask = bool_mask(c);
    if (c->alibi) d.slopes = slopes;
    if (c->sinks) d.sinks = sinks;
    if (c->ragged) d.kv_lengths = lengths;
    if (c->weights) d.weights = draw_many(n_rows * (size_t)c->n_keys);
    if (c->bad_hidden || c->bad_visible) ((float *)d.value.data)[7 * c->size] = NAN;
    if (c->type) {
        size_t key_numbers = (size_t)c->batch * (size_t)c->kv_heads * (size_t)c->n_keys;
        convert(&d.query, n_rows * (size_t)c->size, c->type);
        convert(&d.key, key_numbers * (size_t)c->size, c->type);
        convert(&d.value, key_numbers * (size_t)c->size, c->type);
        convert(&d.out, n_rows * (size_t)c->size, c->type);
    }
    if (c->additive) make_additive(c, &d);
    if (c->half_width > 0.0) {
        double *centers = make_numbers(c, c->n_keys);
        for (size_t i = 0; i < n_rows && c->scattered != 1; i++) {
            size_t end = c->scattered == 2 ? i / 48 % 2 : i % 2;
            centers[i] = c->scattered ? (double)end * (c->n_keys - 1) : (double)i;
        }
        d.centers = centers;
        d.half_width = c->half_width;
        d.sigma = c->half_width / 2.0;
    }
    if (c->hard) d.picks = allocate(n_rows * sizeof *d.picks);
    if (c->hard == 2) d.draws = make_numbers(c, 1.0);
    if (!c->hard) d.lse = draw_many(2 * n_rows); /* or as many doubles */
    return fa_sdpa(&d);
}

/* instructions BACKEND: prints the names of the calls in order, the warm-up's included. */
int main(int argc, char **argv) {
    for (int b = 0; argc == 2 && b < fa_backend_count(); b++) {
        if (strcmp(fa_backend_name(b), argv[1]) != 0 || !fa_backend_supported(b)) continue;
        int status = run(&calls[0], b);
        printf("warm-up\n");
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
            status |= run(&calls[i], b);
            printf("%s\n", calls[i].name);
        }
        return status;
    }
    fprintf(stderr, "this machine cannot run the backend %s\n", argc == 2 ? argv[1] : "(none)");
    return 2;
}
