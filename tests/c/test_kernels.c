/* SPDX-License-Identifier: MIT
 * Tests of both kernel tables, of floats and of doubles, of every instruction set that this machine may
 * run: vector wrappers, elementary functions, and whole calls of fa_sdpa against a formula.  Run by hand and by CI, also under sanitizers, by
 * emulators and over SIMD Everywhere.  No Python and no threads of its own; the pool: test_base.c.
 *
 *     cc -std=c11 -O2 -DFA_ASSERTS -ffp-contract=off -Icsrc tests/c/test_kernels.c \
 *        csrc/[a-z]*[a-z]/[a-z]*.c -pthread -lm -o /tmp/test_kernels && /tmp/test_kernels [name]
 *
 * All buffers have the exact size, so that AddressSanitizer sees every read beyond an end. */
#define _GNU_SOURCE
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fastattn.h"
#include "ops/backend.h"
#include "ops/real.h"
#include "vec/half.h"

#define N_ELEMENTS(array) ((int)(sizeof(array) / sizeof *(array)))

#ifndef __has_feature /* gcc before 14 */
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
enum { SLOW = 4 }; /* the fewer cases */
#else
enum { SLOW = 1 };
#endif

static int backend;       /* the one under test, */
static int real_type;     /* and of its tables that of FA_F32 or FA_F64 */
static int64_t n_checked; /* values compared by the running test */

#define CHECK(cond, ...)                                                      \
    ((cond) ? (void)n_checked++                                               \
            : (fprintf(stderr, "%s:%d: %s: failed: %s: ", __FILE__, __LINE__, \
                       fa_backend_name(backend), #cond),                      \
               fprintf(stderr, real_type == FA_F64 ? "float64: " : ""),       \
               fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), _exit(1)))

static void *allocate(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) abort();
    return p;
}

/* ---- Random numbers, the same everywhere ---- */

static uint64_t seed;

static uint32_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

static int draw_below(int n) { return (int)(draw() % (uint32_t)n); }

/* ---- Reals: what the table under test computes with.  The tests hold them as doubles. ---- */

static int is_double(void) { return real_type == FA_F64; }
static int real_bytes(void) { return is_double() ? 8 : 4; }
static double round_real(double x) { return is_double() ? x : (float)x; }
static const fa_kernels *kernels(void) { return fa_backend_get(backend, real_type); }

static double draw_real(void) { /* about normal: mean 0, deviation 1.1; all bits in use */
    double sum = 0.0;
    for (int i = 0; i < 3; i++) sum += draw() * 0x1p-30 + draw() * 0x1p-61 - 1.0;
    return round_real(sum * 1.1);
}

static int same(double a, double b) {
    uint64_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y || (a != a && b != b);
}

static double from_half(int type, uint16_t h) {
    return type == FA_F16 ? fa_from_f16(h) : fa_from_bf16(h);
}

/* Number i of an array of any floating type, and its bytes. */
static double get(const void *p, int type, int64_t i) {
    if (type == FA_F16 || type == FA_BF16) return from_half(type, ((const uint16_t *)p)[i]);
    if (type == FA_I8) return ((const int8_t *)p)[i];
    return fa_real_at(p, i, type == FA_F64 ? 8 : 4);
}
static size_t bytes_of(int type) {
    return type == FA_F64 ? 8 : type == FA_F32 ? 4 : type == FA_I8 ? 1 : 2;
}

static void put(void *p, int type, int64_t i, double x) {
    if (type == FA_F16)
        ((uint16_t *)p)[i] = fa_to_f16((float)x);
    else if (type == FA_BF16)
        ((uint16_t *)p)[i] = fa_to_bf16((float)x);
    else if (type == FA_I8)
        ((int8_t *)p)[i] = (int8_t)(x == x ? x : 0.0);
    else
        fa_real_put(p, i, x, type == FA_F64 ? 8 : 4);
}

/* A copy of numbers in a type; the numbers it came from are rounded to it. */
static void *typed_copy(double *from, int64_t n, int type) {
    void *to = allocate((size_t)n * bytes_of(type));
    for (int64_t i = 0; i < n; i++) {
        put(to, type, i, from[i]);
        from[i] = get(to, type, i);
    }
    return to;
}

/* ---- Wrappers ---- */

static const double special_floats[] = {0.0,  -0.0,   1.0,  -1.0,   INFINITY, -INFINITY,
                                        NAN,  1e-40,  -3.5, 3.4e38, -3.4e38,  0x1.fffffep-1,
                                        1e10, -1e-20, 7.0,  -126.0};
static const double special_doubles[] = {0.0,      -0.0,      1.0,      -1.0,
                                         INFINITY, -INFINITY, NAN,      1e-310,
                                         -3.5,     1.7e308,   -1.7e308, 0x1.fffffffffffffp-1,
                                         1e100,    -1e-200,   7.0,      -1022.0};
enum { N_SPECIAL = N_ELEMENTS(special_floats), N_PAIRS = N_SPECIAL * N_SPECIAL };

static double special(int i) {
    return is_double() ? special_doubles[i] : (double)(float)special_floats[i];
}

/* Buffers of the exact size; beyond the end of `out` a guard. */
static void probe(const char *op, double *a, double *b, double *c, double *out, int64_t n) {
    enum { BEYOND = 8 };
    void *x = typed_copy(a, n, real_type), *y = typed_copy(b, n, real_type);
    void *z = typed_copy(c, n, real_type);
    void *result = allocate((size_t)(n + BEYOND) * bytes_of(real_type));
    for (int64_t i = 0; i < n + BEYOND; i++) put(result, real_type, i, 12345.0);
    CHECK(fa_probe(backend, real_type, op, x, y, z, result, n) == FA_OK, "%s", op);
    for (int64_t i = 0; i < n; i++) out[i] = get(result, real_type, i);
    for (int64_t i = n; i < n + BEYOND; i++)
        CHECK(get(result, real_type, i) == 12345.0, "%s writes beyond", op);
    free(x), free(y), free(z), free(result);
}

static double plain(const char *op, double a, double b, double c) {
    int fused = strcmp(fa_backend_name(backend), "scalar") != 0;
    if (!strcmp(op, "add")) return round_real(a + b);
    if (!strcmp(op, "sub")) return round_real(a - b);
    if (!strcmp(op, "mul")) return round_real(a * b);
    if (!strcmp(op, "div")) return round_real(a / b);
    if (!strcmp(op, "fma") && !fused) return round_real(round_real(a * b) + c);
    if (!strcmp(op, "fma"))
        return is_double() ? fma(a, b, c) : (double)fmaf((float)a, (float)b, (float)c);
    if (!strcmp(op, "max")) return a > b ? a : b;
    if (!strcmp(op, "abs")) return fabs(a);
    if (!strcmp(op, "copysign")) return copysign(a, b);
    if (!strcmp(op, "lt")) return a < b;
    if (!strcmp(op, "eq")) return a == b;
    return a < 0.0 ? b : c; /* select */
}

static void test_wrappers_lane_by_lane(void) {
    static const char *const ops[] = {"add", "sub", "mul",      "div", "fma",   "max",
                                      "abs", "lt",  "copysign", "eq",  "select"};
    static double a[N_PAIRS], b[N_PAIRS], c[N_PAIRS], out[N_PAIRS];
    for (int x = 0; x < N_ELEMENTS(ops); x++)
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < N_PAIRS; i++) {
                a[i] = round ? draw_real() : special(i / N_SPECIAL);
                b[i] = round ? draw_real() : special(i % N_SPECIAL);
                c[i] = round ? draw_real() : special((i * 7 + i / N_SPECIAL) % N_SPECIAL);
            }
            probe(ops[x], a, b, c, out, N_PAIRS);
            for (int i = 0; i < N_PAIRS; i++) {
                double want = plain(ops[x], a[i], b[i], c[i]);
                CHECK(same(out[i], want), "%s(%g, %g, %g) = %g, not %g", ops[x], a[i], b[i], c[i],
                      out[i], want);
            }
        }
    CHECK(fa_probe(backend, real_type, "no_such_operation", a, b, c, out, 1) == FA_BROKEN_CONTRACT,
          "refused");
}

static void test_rounding(void) {
    enum { MOST = 2 * 2046 + 1 };
    static double x[MOST], out[MOST], half[MOST];
    const double least = is_double() ? -1022.0 : -126.0;
    const int n = is_double() ? MOST : 2 * 254 + 1;
    for (int i = 0; i < n; i++) x[i] = least + 0.5 * i; /* halves: ties to even */
    probe("fraction", x, x, x, out, n);
    probe("half_pow2", x, x, x, half, n);
    for (int i = 0; i < n; i++) {
        double whole = rint(x[i]), want = whole == least ? 0.0 : ldexp(0.5, (int)whole);
        CHECK(out[i] == x[i] - whole, "fraction(%g) = %g", x[i], out[i]);
        CHECK(half[i] == want, "half_pow2(%g) = %g", x[i], half[i]);
    }
    const double unit = is_double() ? 0x1p27 : 0.5;
    for (int i = 0; i < n; i++) x[i] = (double)((int)draw() >> 10) * unit + 0.5 * draw_below(2);
    probe("fraction", x, x, x, out, n);
    for (int i = 0; i < n; i++)
        CHECK(out[i] == x[i] - rint(x[i]), "fraction(%g) = %g", x[i], out[i]);
}

static double pairwise(const double *x, int n, int want_max) { /* halves, then quarters, ... */
    double lanes[64];
    memcpy(lanes, x, (size_t)n * sizeof *x);
    for (int half = n / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) {
            double a = lanes[i], b = lanes[i + half];
            lanes[i] = want_max ? (a > b ? a : b) : round_real(a + b);
        }
    return lanes[0];
}

static void test_wrappers_across_lanes(void) {
    enum { N = 64 * 64 };
    static double x[N], out[N];
    int lanes;
    probe("lanes", x, x, x, out, 1);
    lanes = (int)out[0];
    CHECK(lanes >= 1 && lanes <= 64 && N % (lanes * lanes) == 0, "%d lanes", lanes);
    for (int i = 0; i < N; i++) x[i] = round_real(draw_real() * 100.0);
    for (int want_max = 0; want_max < 2; want_max++) {
        probe(want_max ? "hmax" : "hsum", x, x, x, out, N);
        for (int i = 0; i < N; i++)
            CHECK(same(out[i], pairwise(x + i / lanes * lanes, lanes, want_max)), "lane %d", i);
    }
    probe("iota", x, x, x, out, N);
    for (int i = 0; i < N; i++) CHECK(out[i] == i % lanes, "lane %d", i);
    probe("transpose", x, x, x, out, N);
    for (int i = 0; i < N; i++) {
        int row = i / lanes % lanes, col = i % lanes, block = i / (lanes * lanes);
        CHECK(same(out[i], x[(block * lanes + col) * lanes + row]), "place %d", i);
    }
    uint8_t *bytes = allocate(N);
    for (int i = 0; i < N; i++) bytes[i] = (uint8_t)(draw_below(2) ? draw() : 0);
    CHECK(fa_probe(backend, real_type, "bytes", bytes, x, x, out, N) == FA_OK, "bytes");
    for (int i = 0; i < N; i++) CHECK(get(out, real_type, i) == (bytes[i] != 0), "byte %d", i);
    free(bytes);
}

static void test_parts_touch_the_first_numbers_only(void) {
    for (int n = 0; n <= 33; n++) { /* the probe's own buffers and guard show the rest */
        double a[34], out[34];
        for (int i = 0; i < n; i++) a[i] = draw_real();
        probe("add", a, a, a, out, n);
        for (int i = 0; i < n; i++) CHECK(out[i] == round_real(a[i] + a[i]), "%d of %d", i, n);
    }
}

/* ---- Elementary functions ---- */

static double ulps(double got, long double want) {
    int digits = is_double() ? 52 : 23, least = is_double() ? -1022 : -126;
    int e = want == 0.0L ? least : ilogbl(want);
    return (double)(fabsl(got - want) / ldexpl(1.0L, (e < least ? least : e) - digits));
}

/* Numbers by their bits, evenly over all of the type, NaN and subnormals included. */
static double by_bits(uint64_t at) {
    uint64_t bits =
        at * 0x9e3779b97f4a7c15u; /* the golden ratio: evenly, and no bit stands still */
    double x;
    if (!is_double()) return fa_from_bits((uint32_t)(bits >> 32));
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A grid over the range that matters, then over all numbers. */
static void sweep(const char *op, double (*of_floats)(double),
                  long double (*of_doubles)(long double), double lo, double hi, double limit,
                  int (*edge)(double x, double *want)) {
    enum { BATCH = 4096, N_GRID = 1 << 18 };
    static double x[BATCH], out[BATCH];
    const uint64_t n_bits = is_double() ? 1 << 18 : 1 << 20, end = N_GRID + n_bits;
    double worst = 0.0;
    uint64_t at = 0;
    while (at < end) {
        int n = 0;
        for (; n < BATCH && at < end; n++, at++)
            x[n] = at < N_GRID ? lo + (hi - lo) * ((double)at / N_GRID) : by_bits(at - N_GRID);
        probe(op, x, x, x, out, n);
        for (int i = 0; i < n; i++) {
            double want;
            int kind = edge(x[i], &want);
            if (kind == 2) continue;
            if (kind == 1) {
                CHECK(same(out[i], want), "%s(%.17g) = %.17g, not %.17g", op, x[i], out[i], want);
                continue;
            }
            double error = ulps(out[i], is_double() ? of_doubles(x[i]) : of_floats(x[i]));
            CHECK(error <= limit, "%s(%.17g) = %.17g, %.3f ulp", op, x[i], out[i], error);
            if (error > worst) worst = error;
        }
    }
    printf("   %-8s %s%s: %.2f ulp\n", fa_backend_name(backend), op, is_double() ? " float64" : "",
           worst);
}

/* 1: the result must be `want` exactly; 2: it is arbitrary; 0: within the bound. */
static int power_edge(double x, double *want) {
    if (x > (is_double() ? 1023.5 : 127.5)) return 2;
    *want = x != x ? NAN : x == 0.0 ? 1.0 : 0.0;
    return x != x || x == 0.0 || x <= (is_double() ? -1021.5 : -125.5);
}

static int tangent_edge(double x, double *want) {
    *want = x != x || x == 0.0 ? x : copysign(1.0, x);
    return x != x || x == 0.0 || fabs(x) >= (is_double() ? 20.0 : 10.0);
}

static int twice_edge(double x, double *want) {
    *want = 1.0;
    return fabs(x) <= (is_double() ? 354.0 : 43.0) ? x == 0.0 : 2;
}

static double exp_twice(double x) { return exp(2.0 * x); }
static long double exp_twice_of_doubles(long double x) { return expl(2.0L * x); }

static void test_power_of_two(void) {
    const double most = is_double() ? 1023.0 : 127.0, least = 2.0 - most;
    double x[] = {0.0, -0.0, 1.0, -1.0, most, least, least - 0.5, least - 100.0, -INFINITY, NAN};
    const double want[] = {1.0, 1.0, 2.0, 0.5, exp2(most), exp2(least), 0.0, 0.0, 0.0, NAN};
    double out[N_ELEMENTS(x)];
    probe("exp2", x, x, x, out, N_ELEMENTS(x));
    for (int i = 0; i < N_ELEMENTS(x); i++)
        CHECK(same(out[i], want[i]), "exp2(%.9g) = %.9g", x[i], out[i]);
    sweep("exp2", exp2, exp2l, least - 0.5, most + 0.5, 2.0, power_edge);
}

static void test_hyperbolic_tangent(void) {
    const double end = is_double() ? 20.0 : 10.0;
    sweep("tanh", tanh, tanhl, -end, end, 3.0, tangent_edge);
}

static void test_exponential_of_twice(void) {
    const double end = is_double() ? 354.0 : 43.0;
    sweep("exp_twice", exp_twice, exp_twice_of_doubles, -end, end, 1.1, twice_edge);
}

/* ---- Packing ---- */

static void test_packing(void) {
    const fa_kernels *k = kernels();
    const int b = real_bytes();
    int nr = k->nr, sizes[] = {1, 2, nr - 1, nr, nr + 1, 2 * nr + 3};
    for (int x = 0; x < N_ELEMENTS(sizes); x++)
        for (int y = 0; y < N_ELEMENTS(sizes); y++) {
            int rows = sizes[x], cols = sizes[y], stride = cols + 2;
            if (rows == 0 || cols == 0) continue;
            size_t n_rows = (size_t)fa_round_up(rows, nr), n_cols = (size_t)fa_round_up(cols, nr);
            int n = (rows - 1) * stride + cols;
            double *data = allocate((size_t)n * sizeof *data);
            void *keys = allocate(n_rows * cols * (size_t)b);
            void *values = allocate(n_cols * rows * (size_t)b);
            uint8_t *hidden = allocate((size_t)rows);
            for (int i = 0; i < n; i++) data[i] = draw_real();
            void *given = typed_copy(data, n, real_type);
            for (int j = 0; j < rows; j++) hidden[j] = draw_below(3) == 0;
            k->typed[real_type].pack_keys(given, stride, rows, cols, keys);
            for (int j = 0; j < (int)n_rows; j++)
                for (int d = 0; d < cols; d++)
                    CHECK(fa_real_at(keys, (j / nr * cols + d) * nr + j % nr, b) ==
                              (j < rows ? data[j * stride + d] : 0.0),
                          "key %d of %d, element %d of %d", j, rows, d, cols);
            for (int with = 0; with < 2; with++) {
                k->typed[real_type].pack_values(given, stride, rows, cols, with ? hidden : NULL,
                                                values);
                for (int j = 0; j < rows; j++)
                    for (int c = 0; c < (int)n_cols; c++)
                        CHECK(fa_real_at(values, (c / nr * rows + j) * nr + c % nr, b) ==
                                  (c < cols && !(with && hidden[j]) ? data[j * stride + c] : 0.0),
                              "value %d of %d, column %d of %d", j, rows, c, cols);
            }
            free(data), free(given), free(keys), free(values), free(hidden);
        }
}

/* ---- Products with a weight ---- */

static void test_products(void) {
    for (int n = 0; n < 60; n++) {
        int n_rows = n % 5 ? 1 + draw_below(45) : 1, size = draw_below(70),
            n_cols = 1 + draw_below(90);
        int stride = size + n % 3, n_out = n_rows * n_cols;
        if (n == 7) n_rows = 500, n_cols = 3, n_out = 1500;
        int64_t n_in = n_rows * stride, n_weight = size * n_cols;
        double *rows = allocate((size_t)n_in * sizeof *rows);
        double *weight = allocate((size_t)n_weight * sizeof *weight);
        for (int i = 0; i < n_in; i++) rows[i] = draw_real();
        for (int i = 0; i < n_weight; i++) weight[i] = draw_real();
        void *in = typed_copy(rows, n_in, real_type), *by = typed_copy(weight, n_weight, real_type);
        void *out = allocate((size_t)(n_out + 1) * (size_t)real_bytes());
        memset(out, 0xff, (size_t)(n_out + 1) * (size_t)real_bytes()); /* NaN */
        fa_product_desc d = {
            {backend, 1 + n % 3, NULL}, real_type, in, stride, n_rows, size, by, n_cols, out};
        CHECK(fa_product(&d) == FA_OK, "status");
        for (int i = 0; i < n_out; i++) {
            double want = 0.0, volume = 0.0, got = get(out, real_type, i);
            for (int k = 0; k < size; k++) {
                double x = rows[i / n_cols * stride + k] * weight[k * n_cols + i % n_cols];
                want += x, volume += fabs(x);
            }
            double unit = is_double() ? 0x1p-52 : 0x1p-23;
            CHECK(fabs(got - want) <= unit * (2.0 + size / 8.0) * volume, "product %d: %g, not %g",
                  i, got, want);
        }
        double guard = get(out, real_type, n_out);
        CHECK(guard != guard, "guard");
        free(rows), free(weight), free(in), free(by), free(out);
    }
}

/* ---- Whole calls ---- */

typedef struct problem {
    int batch, q_heads, kv_heads, n_queries, n_keys, qk_size, v_size;
    int is_causal, window_left, window_right; /* windows: 0 = unbounded, else the size + 1 */
    int64_t q_offset;
    double softcap;
    int lengths, alibi, sinks, weights, n_threads; /* 0 or 1; threads: 0 = 1 */
    int bias_type, mask_type;                      /* 0 = none, else 1 + enum fa_type */
    int gap;                                       /* floats between rows, all NaN */
    int poison; /* NaN beyond the lengths and in one key and one value that some rows see */
    /* Additive scores: 1 = one attention_v, 2 = one a head; packed: from prepared keys; spread: factor
     * of queries and keys, 0 = 1, so that exponentials are near, wide or far. */
    int additive, packed;
    float spread;
    int key_factors; /* 0 or 1 */
    /* Local attention: 1 = centers one after another, 2 = anywhere, also beyond the keys. */
    int local;
    double half_width, sigma;
    int hard; /* 1 = the largest score, 2 = drawn */
    /* Types of value and out, and of key and query unless scores are additive: 0 = that of reals. */
    int type, is_mixed; /* mixed: the query is FA_F32 all the same */
    int bytes;          /* key and value are FA_I8, with factors */
} problem;

/* The arrays that are there in a type of their own; the doubles of `call` are what they hold. */
enum {
    Q,
    K,
    V,
    OUT,
    FACTORS,
    VALUE_FACTORS,
    MASK,
    BIAS,
    WEIGHTS,
    LSE,
    SLOPES,
    SINKS,
    ATTENTION_V,
    N_TYPED
};

typedef struct call {
    problem p;
    fa_sdpa_desc desc;
    intptr_t shape[1], lead[BIAS + 1]; /* byte strides of the batch */
    double *q, *k, *v, *out, *lse, *weights, *a, *factors, *value_factors, slopes[64], sinks[64];
    void *typed[N_TYPED];
    void *mask, *bias, *packed;
    double *centers, *draws;
    int64_t *picks;
    int64_t lengths[8];
} call;

enum { GUARD = 4 }; /* numbers between the rows of out, which must survive */

static double element(const fa_array *a, int64_t at) {
    return a->type == FA_BOOL ? ((const uint8_t *)a->data)[at] : get(a->data, a->type, at);
}

static int64_t size_of(int64_t rows, int64_t cols, int64_t gap) {
    return rows ? (rows - 1) * (cols + gap) + cols : 0;
}

static int result_type(const problem *p) { return p->type ? p->type : real_type; }

/* Rows of numbers; the array gets its memory and type later, by set_type. */
static fa_array make_rows(double **data, intptr_t *lead, int batch, int heads, int rows, int size,
                          int gap) {
    int64_t stride = size + gap, n = size_of((int64_t)batch * heads * rows, size, gap);
    *data = allocate((size_t)n * sizeof **data);
    for (int64_t i = 0; i < n; i++) (*data)[i] = i % stride < size ? draw_real() : NAN;
    *lead = (intptr_t)(stride * rows * heads); /* in elements so far */
    return (fa_array){*data, lead, stride * rows, stride, 1, -1};
}

static void set_type(call *c, int which, fa_array *a, double *data, int64_t n_rows, int size,
                     int gap, int type) {
    a->data = c->typed[which] = typed_copy(data, size_of(n_rows, size, gap), type);
    a->type = type;
    c->lead[which] *= (intptr_t)bytes_of(type);
}

/* A term (batch, 1, queries, keys), the same for all heads; every second element is unused where the
 * type is wide, so that strided terms are met too. */
static fa_array make_term(const problem *p, int kind, void **data, intptr_t *lead) {
    int type = kind - 1, step = type == FA_F64 ? 2 : 1;
    size_t bytes = type == FA_F64 ? 8 : type == FA_BOOL ? 1 : 4;
    int64_t n = (int64_t)p->batch * p->n_queries * p->n_keys;
    if (!kind) return (fa_array){0};
    *data = allocate((size_t)(n * step) * bytes);
    for (int64_t i = 0; i < n * step; i++) {
        double x = draw_below(5) == 0 ? -INFINITY : draw_real();
        if (type == FA_BOOL)
            ((uint8_t *)*data)[i] = (uint8_t)(draw_below(3) ? 1 + draw() % 255 : 0);
        if (type != FA_BOOL) put(*data, type, i, x);
    }
    int64_t row = (int64_t)p->n_keys * step;
    *lead = (intptr_t)(p->n_queries * row * (int64_t)bytes);
    return (fa_array){*data, lead, 0, row, step, type};
}

static void poison_keys(call *c) {
    const problem *p = &c->p;
    int64_t k_stride = c->desc.key.row_stride, v_stride = c->desc.value.row_stride;
    for (int b = 0; b < p->batch; b++)
        for (int h = 0; h < p->kv_heads; h++)
            for (int j = 0; j < p->n_keys; j++) {
                int64_t row = ((int64_t)b * p->kv_heads + h) * p->n_keys + j;
                int hidden = p->lengths && j >= c->lengths[b];
                if (hidden || j == p->n_keys / 2)
                    c->v[row * v_stride + draw_below(p->v_size)] = NAN;
                if (hidden || (j == p->n_keys - 2 && h == 0))
                    c->k[row * k_stride + draw_below(p->qk_size)] = NAN;
            }
}

static void make_additive(call *c) {
    const problem *p = &c->p;
    fa_sdpa_desc *d = &c->desc;
    int64_t q_rows = (int64_t)p->batch * p->q_heads * p->n_queries;
    int64_t k_rows = (int64_t)p->batch * p->kv_heads * p->n_keys;
    int n = p->qk_size * (p->additive == 2 ? p->q_heads : 1);
    c->a = allocate((size_t)n * sizeof *c->a);
    for (int i = 0; i < n; i++) c->a[i] = draw_real();
    d->attention_v = c->typed[ATTENTION_V] = typed_copy(c->a, n, real_type);
    /* some rows stand out, so that all reaches meet in one tile */
    for (int64_t r = 0; r < q_rows; r++)
        for (int x = 0; x < p->qk_size; x++)
            c->q[r * d->query.row_stride + x] *= p->spread * (r % 5 == 1 ? 30.0 : 1.0);
    for (int64_t r = 0; r < k_rows; r++)
        for (int x = 0; x < p->qk_size; x++)
            c->k[r * d->key.row_stride + x] *= p->spread * (r % 7 == 3 ? 30.0 : 1.0);
    d->scale = 1.0;
    d->attention_v_stride = p->additive == 2 ? p->qk_size : 0;
}

static void pack_keys(call *c) {
    const problem *p = &c->p;
    const fa_array *key = &c->desc.key;
    int64_t n_entries = (int64_t)p->batch * p->kv_heads;
    int64_t bytes = fa_additive_packed_bytes(backend, real_type, p->n_keys, p->qk_size);
    c->desc.packed_keys = c->packed = aligned_alloc(64, (size_t)(bytes * n_entries));
    CHECK(c->packed, "memory");
    for (int64_t e = 0; e < n_entries; e++)
        CHECK(fa_additive_pack(
                  backend, real_type, (const char *)key->data + e * key->head_stride * real_bytes(),
                  key->row_stride, p->n_keys, p->qk_size, (char *)c->packed + e * bytes) == FA_OK,
              "pack");
}

/* From the doubles to what the call reads and writes. */
/* From integers, which the typed copies hold, to what they stand for. */
static void multiply_rows(double *x, int64_t n_rows, int size, int gap, const double *factors) {
    for (int64_t r = 0; r < n_rows; r++)
        for (int i = 0; i < size; i++) x[r * (size + gap) + i] *= factors[r];
}

static void draw_integers(double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = draw_below(255) - 127;
}

/* Keys and values of integers, with factors of which some are 0, and some NaN. */
static void make_bytes(call *c) {
    const problem *p = &c->p;
    int64_t rows = (int64_t)p->batch * p->kv_heads * p->n_keys;
    c->desc.key_factors =
        make_rows(&c->factors, &c->lead[FACTORS], p->batch, p->kv_heads, 1, p->n_keys, 0);
    c->desc.value_factors = make_rows(&c->value_factors, &c->lead[VALUE_FACTORS], p->batch,
                                      p->kv_heads, 1, p->n_keys, 0);
    draw_integers(c->k, size_of(rows, p->qk_size, p->gap));
    draw_integers(c->v, size_of(rows, p->v_size, p->gap));
    for (int64_t r = 0; r < rows; r++) {
        int hidden = p->lengths && r % p->n_keys >= c->lengths[r / p->n_keys / p->kv_heads];
        c->factors[r] *= r % 11 == 3 ? 0.0 : 0.01;
        c->value_factors[r] *= 0.01;
        if (p->poison && (hidden || r % p->n_keys == p->n_keys / 2)) c->factors[r] = NAN;
        if (p->poison && (hidden || r % 5 == 1)) c->value_factors[r] = NAN;
    }
}

static void make_typed(call *c) {
    const problem *p = &c->p;
    fa_sdpa_desc *d = &c->desc;
    const int type = result_type(p), key_type = p->additive ? real_type : type;
    int64_t q_rows = (int64_t)p->batch * p->q_heads * p->n_queries;
    int64_t k_rows = (int64_t)p->batch * p->kv_heads * p->n_keys;
    set_type(c, Q, &d->query, c->q, q_rows, p->qk_size, p->gap, p->is_mixed ? real_type : key_type);
    set_type(c, K, &d->key, c->k, k_rows, p->qk_size, p->gap, p->bytes ? FA_I8 : key_type);
    set_type(c, V, &d->value, c->v, k_rows, p->v_size, p->gap, p->bytes ? FA_I8 : type);
    set_type(c, OUT, &d->out, c->out, q_rows, p->v_size, GUARD, type);
    if (p->key_factors || p->bytes)
        set_type(c, FACTORS, &d->key_factors, c->factors, p->batch * p->kv_heads, p->n_keys, 0,
                 real_type);
    if (p->bytes) {
        set_type(c, VALUE_FACTORS, &d->value_factors, c->value_factors, p->batch * p->kv_heads,
                 p->n_keys, 0, real_type);
        multiply_rows(c->k, k_rows, p->qk_size, p->gap, c->factors);
        multiply_rows(c->v, k_rows, p->v_size, p->gap, c->value_factors);
    }
    if (p->weights)
        d->weights = c->typed[WEIGHTS] = typed_copy(c->weights, q_rows * p->n_keys, type);
    if (!p->hard) d->lse = c->typed[LSE] = typed_copy(c->lse, q_rows, real_type);
    if (p->alibi) d->slopes = c->typed[SLOPES] = typed_copy(c->slopes, p->q_heads, real_type);
    if (p->sinks) d->sinks = c->typed[SINKS] = typed_copy(c->sinks, p->q_heads, real_type);
    if (p->packed) pack_keys(c);
}

/* Results as doubles. */
static void read_results(call *c) {
    const problem *p = &c->p;
    const int type = result_type(p);
    int64_t q_rows = (int64_t)p->batch * p->q_heads * p->n_queries;
    for (int64_t i = 0; i < size_of(q_rows, p->v_size, GUARD); i++)
        c->out[i] = get(c->typed[OUT], type, i);
    for (int64_t i = 0; p->weights && i < q_rows * p->n_keys; i++)
        c->weights[i] = get(c->typed[WEIGHTS], type, i);
    for (int64_t i = 0; !p->hard && i < q_rows; i++) c->lse[i] = get(c->typed[LSE], real_type, i);
}

/* What local and hard attention have besides. */
static void make_selection(call *c) {
    const problem *p = &c->p;
    size_t n_rows = (size_t)p->batch * p->q_heads * p->n_queries;
    if (p->key_factors) {
        c->desc.key_factors =
            make_rows(&c->factors, &c->lead[FACTORS], p->batch, p->kv_heads, 1, p->n_keys, 0);
    }
    if (p->local) {
        c->centers = allocate(n_rows * sizeof *c->centers);
        for (size_t i = 0; i < n_rows; i++)
            c->centers[i] = p->local == 1 ? (double)(i % (size_t)p->n_queries)
                                          : draw_below(16 * p->n_keys) / 8.0 - p->n_keys / 2;
        c->desc.centers = c->centers;
        c->desc.half_width = p->half_width;
        c->desc.sigma = p->sigma;
    }
    if (p->hard) {
        c->desc.picks = c->picks = allocate(n_rows * sizeof *c->picks);
        if (p->hard == 2) c->desc.draws = c->draws = allocate(n_rows * sizeof *c->draws);
        for (size_t i = 0; i < n_rows && c->draws; i++) c->draws[i] = draw() * 0x1p-32;
    }
}

static call *make_call(const problem *given) {
    call *c = allocate(sizeof *c);
    memset(c, 0, sizeof *c);
    problem *p = &c->p;
    fa_sdpa_desc *d = &c->desc;
    *p = *given;
    c->shape[0] = p->batch;
    *d = (fa_sdpa_desc){.exec = {backend, p->n_threads ? p->n_threads : 1, NULL},
                        .n_lead = 1,
                        .lead_shape = c->shape,
                        .n_batch = p->batch,
                        .n_q_heads = p->q_heads,
                        .n_kv_heads = p->kv_heads,
                        .n_queries = p->n_queries,
                        .n_keys = p->n_keys,
                        .qk_size = p->qk_size,
                        .v_size = p->v_size,
                        .q_offset = p->q_offset,
                        .scale = 1.0 / sqrt(p->qk_size),
                        .softcap = p->softcap,
                        .is_causal = p->is_causal,
                        .window_left = p->window_left - 1,
                        .window_right = p->window_right - 1};
    d->query =
        make_rows(&c->q, &c->lead[Q], p->batch, p->q_heads, p->n_queries, p->qk_size, p->gap);
    d->key = make_rows(&c->k, &c->lead[K], p->batch, p->kv_heads, p->n_keys, p->qk_size, p->gap);
    d->value = make_rows(&c->v, &c->lead[V], p->batch, p->kv_heads, p->n_keys, p->v_size, p->gap);
    d->out =
        make_rows(&c->out, &c->lead[OUT], p->batch, p->q_heads, p->n_queries, p->v_size, GUARD);
    d->attn_mask = make_term(p, p->mask_type, &c->mask, &c->lead[MASK]);
    d->bias = make_term(p, p->bias_type, &c->bias, &c->lead[BIAS]);
    size_t n_rows = (size_t)p->batch * p->q_heads * p->n_queries;
    /* what nothing writes stays NaN */
    c->lse = allocate(n_rows * sizeof *c->lse);
    for (size_t i = 0; i < n_rows; i++) c->lse[i] = NAN;
    for (size_t i = 0; i + GUARD < n_rows * (size_t)(p->v_size + GUARD); i++) c->out[i] = NAN;
    if (p->weights) c->weights = allocate(n_rows * (size_t)p->n_keys * sizeof *c->weights);
    for (size_t i = 0; p->weights && i < n_rows * (size_t)p->n_keys; i++) c->weights[i] = NAN;
    for (int b = 0; b < p->batch; b++) c->lengths[b] = draw_below(p->n_keys + 1);
    for (int h = 0; h < p->q_heads; h++) {
        c->slopes[h] = 0.1 + 0.05 * h;
        c->sinks[h] = h % 3 == 2 ? -INFINITY : draw_real();
    }
    if (p->lengths) d->kv_lengths = c->lengths;
    if (p->poison && !p->bytes) poison_keys(c);
    if (p->additive) make_additive(c);
    make_selection(c);
    if (p->bytes) make_bytes(c);
    make_typed(c);
    return c;
}

static void free_call(call *c) {
    free(c->q), free(c->k), free(c->v), free(c->out), free(c->lse), free(c->weights);
    free(c->mask), free(c->bias), free(c->packed), free(c->a), free(c->factors);
    free(c->value_factors);
    for (int x = 0; x < N_TYPED; x++) free(c->typed[x]);
    free(c->centers), free(c->draws), free(c->picks), free(c);
}

/* The score of one key and its size; 0 where the row may not see it. */
static int score(const call *c, int b, int h, int i, int j, double *s, double *size) {
    const problem *p = &c->p;
    const fa_sdpa_desc *d = &c->desc;
    int64_t position = i + p->q_offset, length = p->lengths ? c->lengths[b] : p->n_keys;
    int kv = h / (p->q_heads / p->kv_heads);
    const double *q = c->q + ((b * p->q_heads + h) * p->n_queries + i) * d->query.row_stride;
    const double *k = c->k + ((b * p->kv_heads + kv) * p->n_keys + j) * d->key.row_stride;
    double terms = 0.0;

    if (j >= length || (p->is_causal && j > position)) return 0;
    if (p->window_left && j < position - (p->window_left - 1)) return 0;
    if (p->window_right && j > position + (p->window_right - 1)) return 0;
    if (p->local) {
        double center = c->centers[((int64_t)b * p->q_heads + h) * p->n_queries + i];
        if (j < center - p->half_width || j > center + p->half_width) return 0;
    }
    for (int x = 0; x < 2; x++) {
        const fa_array *a = x ? &d->attn_mask : &d->bias;
        if (!a->data) continue;
        double term =
            element(a, ((int64_t)b * p->n_queries + i) * a->row_stride + j * a->col_stride);
        if (a->type == FA_BOOL ? term == 0.0 : term == -INFINITY) return 0;
        if (a->type != FA_BOOL) terms += term, *size += fabs(term);
    }
    if (p->alibi) {
        double fall = c->slopes[h] * fabs((double)(position - j));
        terms -= fall, *size += fall;
    }
    double dot = 0.0, dot_size = 0.0;
    for (int x = 0; x < p->qk_size; x++) {
        double product = q[x] * k[x] * d->scale;
        if (p->additive) { /* the bound: 2e-6 sum |a tanh| + 4 * 2^-24 sum |a|, or as many units */
            double a = c->a[(p->additive == 2 ? h * p->qk_size : 0) + x];
            product = a * tanh(q[x] + k[x]);
            dot_size += fabs(a) + 7.4 * fabs(product);
        }
        dot += product, dot_size += fabs(product);
    }
    if (p->key_factors) {
        double factor = c->factors[((int64_t)b * p->kv_heads + kv) * p->n_keys + j];
        dot *= factor, dot_size *= fabs(factor);
    }
    if (p->softcap > 0.0) {
        double bent = tanh(dot / p->softcap);
        dot = p->softcap * bent;
        dot_size = dot_size * (1.0 - bent * bent) + p->softcap * fabs(bent);
    }
    *s = dot + terms;
    *size += dot_size;
    return 1;
}

/* The rule of tests/check.py: a relative and an absolute tolerance, and what the result moves when
 * every score is off by four units in its last place. */
static void check_value(const call *c, const char *what, int64_t at, double got, double want,
                        double size, double slack) {
    const problem *p = &c->p;
    double limit = 2e-5 * fabs(want) + 2e-6 * fmax(1.0, size) + slack;
    if (is_double()) limit = 1e-13 * (fabs(want) + fmax(1.0, size)) + slack;
    if (p->type && strcmp(what, "lse") != 0) /* and the rounding of the result */
        limit += fabs(want) * (p->type == FA_F16 ? 0x1p-11 : 0x1p-8) + 0x1p-25;
    CHECK((want != want && got != got) || got == want || fabs(got - want) <= limit,
          "%s[%lld] = %.17g, not %.17g +- %.3g; queries %d keys %d heads %d/%d sizes %d %d", what,
          (long long)at, got, want, limit, p->n_queries, p->n_keys, p->q_heads, p->kv_heads,
          p->qk_size, p->v_size);
}

static void check_row(const call *c, int b, int h, int i, double *w, double *size) {
    const problem *p = &c->p;
    const double unit = is_double() ? 0x1p-51 : 0x1p-22;
    int64_t flat = ((int64_t)b * p->q_heads + h) * p->n_queries + i;
    int kv = h / (p->q_heads / p->kv_heads);
    double sink = p->sinks ? c->sinks[h] : -INFINITY, top = sink, total = 0.0, spread = 0.0;
    uint8_t *seen = allocate((size_t)p->n_keys);

    for (int j = 0; j < p->n_keys; j++) {
        w[j] = size[j] = 0.0;
        seen[j] = (uint8_t)score(c, b, h, i, j, &w[j], &size[j]);
        if (seen[j] && w[j] > top) top = w[j];
    }
    double base = top == -INFINITY ? 0.0 : top;
    for (int j = 0; j < p->n_keys; j++) {
        w[j] = seen[j] ? exp(w[j] - base) : 0.0;
        total += w[j];
    }
    total += exp(sink - base);
    for (int j = 0; j < p->n_keys; j++)
        if (seen[j]) w[j] /= total, spread += w[j] * size[j];
    if (sink != -INFINITY) spread += exp(sink - base) / total * fabs(sink);
    double lse = total == 0.0 ? -INFINITY : base + log(total);
    check_value(c, "lse", flat, c->lse[flat], lse, 1.0, unit * spread);
    for (int j = 0; p->sigma > 0.0 && j < p->n_keys; j++) {
        double distance = (j - c->centers[flat]) / p->sigma;
        w[j] *= exp(-0.5 * distance * distance);
    }
    for (int j = 0; c->weights && j < p->n_keys; j++) {
        double got = c->weights[flat * p->n_keys + j];
        CHECK(seen[j] || got == 0.0, "hidden key %d of row %lld", j, (long long)flat);
        check_value(c, "weights", flat * p->n_keys + j, got, w[j], 1.0,
                    unit * w[j] * (size[j] + spread));
    }
    const double *out = c->out + flat * (p->v_size + GUARD);
    for (int x = 0; x < p->v_size; x++) {
        double o = 0.0, volume = 0.0, slack = 0.0;
        const double *v =
            c->v + (int64_t)(b * p->kv_heads + kv) * p->n_keys * c->desc.value.row_stride;
        for (int j = 0; j < p->n_keys; j++, v += c->desc.value.row_stride) {
            if (!seen[j]) continue;
            o += w[j] * v[x], volume += w[j] * fabs(v[x]);
            slack += w[j] * size[j] * fabs(v[x]);
        }
        check_value(c, "out", flat, out[x], o, volume, unit * (slack + fabs(o) * spread));
    }
    if (flat + 1 < (int64_t)p->batch * p->q_heads * p->n_queries)
        for (int x = 0; x < GUARD; x++) CHECK(out[p->v_size + x] != out[p->v_size + x], "guard");
    free(seen);
}

/* Hard attention: whether the row's key is one that float scores may have led to, and its value. */
static void check_pick(const call *c, int b, int h, int i, double *w, double *size) {
    const problem *p = &c->p;
    const double unit = is_double() ? 0x1p-51 : 0x1p-22;
    int64_t flat = ((int64_t)b * p->q_heads + h) * p->n_queries + i, pick = c->picks[flat];
    int kv = h / (p->q_heads / p->kv_heads), first_nan = -1, any = 0;
    double top = -INFINITY, total = 0.0, before = 0.0, slack = 0.0;
    for (int j = 0; j < p->n_keys; j++) {
        size[j] = 0.0;
        if (!score(c, b, h, i, j, &w[j], &size[j])) w[j] = -INFINITY;
        any |= w[j] != -INFINITY;
        if (w[j] != w[j] && first_nan < 0) first_nan = j;
        if (w[j] > top) top = w[j];
        slack = fmax(slack, size[j]);
    }
    slack = unit * slack + (is_double() ? 1e-14 : 1e-6);
    const double *out = c->out + flat * (p->v_size + GUARD), *v = NULL;
    CHECK(pick >= -1 && pick < p->n_keys, "pick %lld", (long long)pick);
    if (pick >= 0)
        v = c->v + ((int64_t)(b * p->kv_heads + kv) * p->n_keys + pick) * c->desc.value.row_stride;
    if (!any || first_nan >= 0) {
        CHECK(pick == (any ? first_nan : -1), "row %lld picks %lld", (long long)flat,
              (long long)pick);
    } else if (p->hard == 1) {
        CHECK(w[pick] >= top - 2.0 * slack, "row %lld: %g, not %g", (long long)flat, w[pick], top);
    } else {
        for (int j = 0; j < p->n_keys; j++) {
            double weight = exp(w[j] - top);
            total += weight;
            if (j < pick) before += weight;
        }
        double u = c->draws[flat] * total,
               room = total * (2.0 * slack + (is_double() ? 1e-13 : 1e-5));
        CHECK(w[pick] > -INFINITY && before <= u + room && before + exp(w[pick] - top) >= u - room,
              "row %lld draws %lld", (long long)flat, (long long)pick);
    }
    for (int x = 0; x < p->v_size; x++) {
        double want = !any ? 0.0 : first_nan >= 0 ? NAN : v[x];
        CHECK(same(out[x], want), "row %lld: value %d", (long long)flat, x);
    }
}

/* Runs the call and compares all that it wrote; every `every`-th row only. */
static void check_call(const problem *p, int every) {
    call *c = make_call(p);
    double *w = allocate((size_t)p->n_keys * sizeof *w), *size = allocate((size_t)p->n_keys * 8);
    CHECK(fa_sdpa(&c->desc) == FA_OK, "status");
    read_results(c);
    for (int b = 0; b < p->batch; b++)
        for (int h = 0; h < p->q_heads; h++)
            for (int i = (h + b) % every; i < p->n_queries; i += every)
                (p->hard ? check_pick : check_row)(c, b, h, i, w, size);
    free(w), free(size);
    free_call(c);
}

static fa_sdpa_plan_info plan_of(const problem *p) {
    fa_sdpa_plan_info info;
    call *c = make_call(p);
    CHECK(fa_sdpa_plan_query(&c->desc, &info) == FA_OK, "plan");
    free_call(c);
    return info;
}

static void test_prefill_at_the_edges_of_tiles(void) {
    problem p = {1, 3, 1, 40, 700, 6, 9, .gap = 1};
    fa_sdpa_plan_info plan = plan_of(&p);
    const fa_kernels *k = kernels();
    int rows[] = {3,
                  4,
                  k->mr - 1,
                  k->mr,
                  k->mr + 1,
                  plan.row_block / 3,
                  plan.row_block / 3 + 1,
                  plan.row_block};
    int keys[] = {1,
                  2,
                  k->nr - 1,
                  k->nr,
                  k->nr + 1,
                  plan.key_tile - 1,
                  plan.key_tile,
                  plan.key_tile + 1,
                  2 * plan.key_tile + k->nr + 3};
    CHECK(!plan.is_decode && plan.row_block <= FA_MAX_ROW_BLOCK && plan.key_tile % k->nr == 0,
          "plan");
    for (int x = 0; x < N_ELEMENTS(rows); x++)
        for (int y = 0; y < N_ELEMENTS(keys); y++) {
            p.n_queries = fa_max(3, rows[x]); /* three heads share a key head: 9 rows and more */
            p.n_keys = fa_max(1, keys[y]);
            p.is_causal = (x + y) % 2;
            p.q_offset = p.n_keys - p.n_queries;
            check_call(&p, 3);
        }
    p = (problem){1, 1, 1, (int)plan.rows_per_task + 3, 40, 3, 2, .gap = 0};
    check_call(&p, 1);
}

static void test_decode_at_the_edges_of_tiles(void) {
    problem p = {2, 4, 4, 1, 1500, 20, 35, .gap = 3};
    fa_sdpa_plan_info plan = plan_of(&p);
    int keys[] = {1,
                  3,
                  7,
                  plan.key_tile - 1,
                  plan.key_tile,
                  plan.key_tile + 1,
                  100,
                  (int)plan.key_chunk - 1,
                  (int)plan.key_chunk,
                  (int)plan.key_chunk + 1,
                  2 * (int)plan.key_chunk + 5};
    CHECK(plan.is_decode, "plan");
    for (int y = 0; y < N_ELEMENTS(keys); y++)
        for (int group = 1; group <= 8; group += SLOW) {
            p.n_keys = keys[y];
            p.q_heads = 2 * group;
            p.kv_heads = 2;
            check_call(&p, 1);
        }
}

static void test_head_sizes(void) {
    static const int sizes[] = {1,  2,  3,  4,  5,  7,  8,  9,  15,  16,  17,  31, 32,
                                33, 47, 48, 63, 64, 65, 80, 96, 127, 128, 129, 257};
    for (int x = 0; x < N_ELEMENTS(sizes); x++)
        for (int decode = 0; decode < 2; decode++) {
            problem p = {1, 2, 1, decode ? 2 : 17, 37, sizes[x], 1, .gap = x % 2};
            p.v_size = sizes[N_ELEMENTS(sizes) - 1 - x];
            check_call(&p, 2);
            p.v_size = p.qk_size;
            p.weights = 1;
            check_call(&p, 4);
        }
}

static problem random_problem(void) {
    static const int term_types[] = {0, 1 + FA_F32, 1 + FA_BOOL, 1 + FA_F64};
    problem p = {.batch = 1 + draw_below(2), .kv_heads = 1 + draw_below(2)};
    p.q_heads = p.kv_heads * (1 + draw_below(3));
    p.n_queries = draw_below(2) ? 1 + draw_below(3) : 1 + draw_below(70);
    p.n_keys = draw_below(2) ? 1 + draw_below(40) : 1 + draw_below(400);
    p.qk_size = 1 + draw_below(40);
    p.v_size = 1 + draw_below(70);
    p.is_causal = draw_below(2);
    p.q_offset = draw_below(2) ? p.n_keys - p.n_queries : draw_below(9) - 4;
    if (draw_below(3) == 0) p.window_left = 1 + draw_below(50);
    if (draw_below(3) == 0) p.window_right = 1 + draw_below(20);
    if (draw_below(3) == 0) p.softcap = 1.5;
    p.lengths = draw_below(2);
    p.alibi = draw_below(3) == 0;
    p.sinks = draw_below(3) == 0;
    p.weights = draw_below(2);
    p.bias_type = draw_below(2) ? term_types[draw_below(2) * 3] : 0;
    p.mask_type = term_types[draw_below(4)];
    p.gap = draw_below(4);
    return p;
}

static void test_options(void) {
    for (int i = 0; i < 160 / SLOW; i++) {
        problem p = random_problem();
        check_call(&p, 1 + p.n_queries / 6);
    }
}

static void test_hidden_nan_stays_hidden(void) {
    for (int i = 0; i < 80 / SLOW; i++) {
        problem p = random_problem();
        p.poison = 1;
        if (i % 2) p.is_causal = 1, p.q_offset = 0, p.n_keys = p.n_queries + 2;
        check_call(&p, 1 + p.n_queries / 6);
    }
}

static void test_half_types(void) {
    for (int i = 0; i < 240 / SLOW; i++) {
        problem p = random_problem();
        p.type = i % 2 ? FA_F16 : FA_BF16;
        p.is_mixed = i % 5 == 0;
        p.poison = i % 4 == 3;
        if (i % 6 == 5) p.additive = 1, p.spread = 1.0f, p.softcap = 0.0, p.packed = i % 12 == 5;
        if (i % 8 == 7) p.n_keys = 1200;
        if (i % 7 == 0) p.local = 1 + i % 2, p.half_width = 20.5, p.sigma = 9.0;
        if (i % 10 == 1) p.hard = 1, p.weights = p.sinks = 0;
        check_call(&p, 1 + p.n_queries / 6);
    }
    for (int type = FA_F16; type <= FA_BF16; type++)
        for (int size = 1; size <= 40; size++) {
            problem p = {
                1, 2, 1, 1 + 30 * (size % 2), 70, size, size, .type = type, .gap = size % 3};
            check_call(&p, 4);
        }
}

/* Every number of the types, there and back, and the rounding of floats between them. */
static void test_half_conversions(void) {
    static double x[1 << 16], out[1 << 16];
    for (int type = FA_F16; type <= FA_BF16; type++) {
        const char *op = type == FA_F16 ? "f16" : "bf16";
        for (int i = 0; i < N_ELEMENTS(x); i++) x[i] = from_half(type, (uint16_t)i);
        probe(op, x, x, x, out, N_ELEMENTS(x));
        for (int i = 0; i < N_ELEMENTS(x); i++)
            CHECK(same(out[i], x[i]), "%s(%g) = %g", op, x[i], out[i]);
        for (int i = 0; i < N_ELEMENTS(x); i++) { /* halfway to the next number, and a bit beside */
            uint32_t step = type == FA_F16 ? 1u << 12 : 1u << 15;
            float half = (float)from_half(type, (uint16_t)i);
            x[i] = fa_from_bits(fa_bits(half) + step + (uint32_t)(i % 3) - 1u);
        }
        probe(op, x, x, x, out, N_ELEMENTS(x));
        for (int i = 0; i < N_ELEMENTS(x); i++) {
            uint16_t want;
            put(&want, type, 0, x[i]);
            CHECK(same(out[i], from_half(type, want)), "%s(%.9g) = %.9g", op, x[i], out[i]);
        }
    }
}

/* The same bits from one thread and from several. */
static void test_threads_change_no_bit(void) {
    for (int decode = 0; decode < 2; decode++) {
        problem p = {2,  6,  decode ? 2 : 6, decode ? 2 : 200, decode ? 2500 : 300,
                     24, 40, .weights = 1,   .sinks = 1,       .is_causal = !decode};
        uint64_t begin = seed;
        call *calls[2];
        for (int x = 0; x < 2; x++) {
            seed = begin;
            p.n_threads = x ? 3 : 1;
            calls[x] = make_call(&p);
            CHECK(fa_sdpa(&calls[x]->desc) == FA_OK, "status");
            read_results(calls[x]);
        }
        int64_t n_rows = (int64_t)p.batch * p.q_heads * p.n_queries, stride = p.v_size + GUARD;
        for (int64_t i = 0; i < n_rows * stride - GUARD; i++)
            CHECK(same(calls[0]->out[i], calls[1]->out[i]), "out %lld", (long long)i);
        for (int64_t i = 0; i < n_rows * p.n_keys; i++)
            CHECK(same(calls[0]->weights[i], calls[1]->weights[i]), "weight %lld", (long long)i);
        for (int64_t i = 0; i < n_rows; i++)
            CHECK(same(calls[0]->lse[i], calls[1]->lse[i]), "lse %lld", (long long)i);
        free_call(calls[0]), free_call(calls[1]);
    }
}

static void test_additive(void) {
    static const float spreads[] = {1e-3f, 1.0f, 12.0f, 100.0f};
    for (int x = 0; x < N_ELEMENTS(spreads); x++)
        for (int packed = 0; packed < 2; packed++)
            for (int n_queries = 1; n_queries < 60; n_queries += 13)
                for (int qk_size = 1; qk_size < 90; qk_size = 2 * qk_size + 3) {
                    /* emulators take their time for tanh */
                    if (is_double() && (x + packed + n_queries + qk_size / 2) % (4 * SLOW))
                        continue;
                    problem p = {
                        2, 4, 2, n_queries, 37 + 3 * qk_size, qk_size, 19, .packed = packed};
                    p.additive = 1 + n_queries % 2;
                    p.spread = spreads[x];
                    p.is_causal = n_queries == 27;
                    p.q_offset = p.is_causal ? 20 : 0;
                    p.window_left = n_queries == 40 ? 30 : 0;
                    p.mask_type = n_queries == 14 ? 1 + FA_BOOL : 0;
                    p.weights = n_queries == 14;
                    p.lengths = n_queries == 53;
                    p.sinks = n_queries == 53;
                    check_call(&p, 1 + n_queries / 4);
                }
    /* few rows and many keys: split */
    check_call(&(problem){1, 2, 1, 2, 1500, 33, 40, .additive = 2, .packed = 1, .spread = 1.0f}, 1);
    check_call(&(problem){1, 2, 1, 2, 1500, 33, 40, .additive = 1, .spread = 1.0f, .n_threads = 3},
               1);
    /* NaN that is hidden, and NaN that is seen */
    check_call(&(problem){2, 4, 2, 30, 90, 20, 19, .additive = 1, .spread = 1.0f, .lengths = 1,
                          .poison = 1, .weights = 1},
               1);
    check_call(&(problem){2, 4, 2, 3, 90, 20, 19, .additive = 1, .packed = 1, .spread = 1.0f,
                          .lengths = 1, .poison = 1},
               1);
}

static void test_integers(void) {
    for (int i = 0; i < 120 / SLOW; i++) {
        problem p = random_problem();
        p.bytes = 1;
        p.type = i % 3 == 0 ? 0 : i % 3 == 1 ? FA_F16 : FA_BF16;
        p.poison = i % 4 == 3;
        if (i % 8 == 7) p.n_keys = 1200; /* several chunks */
        check_call(&p, 1 + p.n_queries / 6);
    }
}

/* Moves the rows of an array, packed one after the other, into pages in some order. */
static void *into_pages(const fa_array *a, const problem *p, int size, const int32_t *pages,
                        int n_pages, int page_size, int64_t item) {
    int64_t row = size * item, page = p->kv_heads * page_size * row;
    char *to = allocate((size_t)(n_pages * page));
    memset(to, 0xff, (size_t)(n_pages * page)); /* NaN, in all floats */
    for (int h = 0; h < p->kv_heads; h++)
        for (int j = 0; j < p->n_keys; j++)
            memcpy(to + pages[j / page_size] * page + (h * page_size + j % page_size) * row,
                   (char *)a->data + (h * a->head_stride + j * a->row_stride) * item, (size_t)row);
    return to;
}

/* Keys in pages give what keys in one piece give: to the bit where tiles lie within pages. */
static void test_pages(void) {
    static const int page_sizes[] = {1, 3, 16, 17, 64, 256};
    for (int i = 0; i < 96 / SLOW; i++) {
        problem p = random_problem();
        p.batch = 1;
        p.lengths = p.weights = p.bias_type = p.mask_type = p.poison = 0;
        p.bytes = i % 4 == 3;
        p.type = i % 4 == 2 ? FA_F16 : 0;
        p.is_mixed = i % 8 == 2;
        if (real_type == FA_F64) p.bytes = p.type = p.is_mixed = 0;
        if (i % 8 >= 6) p.n_keys = 1200;
        call *c = make_call(&p);
        fa_sdpa_desc *d = &c->desc;
        int64_t cu_queries[] = {0, p.n_queries}, cu_keys[] = {0, p.n_keys}, first_page[] = {1};
        d->n_lead = 0;
        fa_varlen_desc v = {.call = *d,
                            .n_sequences = 1,
                            .cu_queries = cu_queries,
                            .cu_keys = cu_keys,
                            .first_page = first_page};
        int64_t n_out = size_of((int64_t)p.q_heads * p.n_queries, p.v_size, GUARD);
        double *whole = allocate((size_t)n_out * sizeof *whole);
        CHECK(fa_varlen(&v) == FA_OK, "status");
        read_results(c);
        memcpy(whole, c->out, (size_t)n_out * sizeof *whole);

        int page_size = page_sizes[draw_below(6)];
        int n_pages = 1 + (p.n_keys + page_size - 1) / page_size;
        int step = n_pages % 7 ? 7 : 1213; /* no page twice: a prime that does not divide n_pages */
        int32_t *pages = allocate((size_t)(n_pages + 1) * sizeof *pages);
        for (int x = 0; x <= n_pages; x++) pages[x] = (int32_t)((int64_t)x * step % n_pages);
        fa_array *arrays[] = {&v.call.key, &v.call.value, &v.call.key_factors,
                              &v.call.value_factors};
        intptr_t page_bytes[4];
        void *copies[4] = {0};
        for (int x = 0; x < (p.bytes ? 4 : 2); x++) {
            int size = x == 0 ? p.qk_size : x == 1 ? p.v_size : 1;
            fa_array a = *arrays[x];
            int64_t item = (int64_t)bytes_of(a.type);
            if (x >= 2) a.row_stride = 1;
            copies[x] = into_pages(&a, &p, size, pages + 1, n_pages, page_size, item);
            page_bytes[x] = (intptr_t)(p.kv_heads * page_size * size * item);
            *arrays[x] =
                (fa_array){copies[x], &page_bytes[x], (int64_t)page_size * size, size, 1, a.type};
        }
        v.call.page_size = page_size;
        v.call.pages = pages;
        CHECK(fa_varlen(&v) == FA_OK, "status");
        read_results(c);
        for (int64_t x = 0; x < n_out; x++) {
            double limit = page_size % 64 == 0 ? 0.0 : 3e-5 + 1e-3 * (p.type != 0);
            CHECK(c->out[x] == whole[x] || c->out[x] != c->out[x] ||
                      fabs(c->out[x] - whole[x]) <= limit * fmax(1.0, fabs(whole[x])),
                  "page size %d: %.9g, not %.9g", page_size, c->out[x], whole[x]);
            CHECK((c->out[x] != c->out[x]) == (whole[x] != whole[x]), "NaN");
        }
        for (int x = 0; x < 4; x++) free(copies[x]);
        free(pages), free(whole), free_call(c);
    }
}

/* Packed sequences with additive scores: one alone has the bits of a plain call. */
static void test_additive_sequences(void) {
    for (int i = 0; i < 48 / SLOW; i++) {
        problem p = random_problem();
        p.batch = 1;
        p.lengths = p.weights = p.bias_type = p.mask_type = 0;
        p.softcap = 0.0;
        p.spread = 1.0f;
        p.additive = 1 + i % 2;
        if (i % 4 == 3) p.n_keys = 1200;
        call *c = make_call(&p);
        int64_t cu_queries[] = {0, 0, p.n_queries}, cu_keys[] = {0, 0, p.n_keys};
        int64_t n_out = size_of((int64_t)p.q_heads * p.n_queries, p.v_size, GUARD);
        size_t n_bytes = (size_t)n_out * bytes_of(c->desc.out.type);
        double *whole = allocate((size_t)n_out * sizeof *whole);
        memset(c->typed[OUT], 0x55, n_bytes);
        CHECK(fa_sdpa(&c->desc) == FA_OK, "status");
        read_results(c);
        memcpy(whole, c->out, (size_t)n_out * sizeof *whole);
        memset(c->typed[OUT], 0x55, n_bytes);
        fa_varlen_desc v = {
            .call = c->desc, .n_sequences = 2, .cu_queries = cu_queries, .cu_keys = cu_keys};
        v.call.n_lead = 0;
        CHECK(fa_varlen(&v) == FA_OK, "status");
        read_results(c);
        for (int64_t x = 0; x < n_out; x++)
            CHECK(same(c->out[x], whole[x]), "%.9g, not %.9g", c->out[x], whole[x]);
        free(whole), free_call(c);
    }
}

static void test_local(void) {
    for (int i = 0; i < 120 / SLOW; i++) {
        problem p = random_problem();
        p.local = 1 + i % 2;
        p.half_width = draw_below(60) / 4.0;
        p.sigma = i % 3 ? 0.5 + draw_below(20) : 0.0;
        p.poison = i % 4 == 3;
        p.key_factors = i % 5 == 0;
        if (i % 6 == 5) p.additive = 1, p.spread = 1.0f, p.softcap = 0.0, p.packed = i % 12 == 5;
        if (i % 8 == 7) p.n_keys = 1200; /* several chunks */
        check_call(&p, 1 + p.n_queries / 6);
    }
}

static void test_hard(void) {
    for (int i = 0; i < 160 / SLOW; i++) {
        problem p = random_problem();
        p.hard = 1 + i % 2;
        p.weights = p.sinks = 0;
        p.poison = i % 4 == 3;
        p.key_factors = i % 5 == 0;
        if (i % 6 == 5) p.additive = 1, p.spread = 1.0f, p.softcap = 0.0, p.packed = i % 12 == 5;
        if (i % 8 == 7) p.n_keys = 1200;
        if (i % 7 == 0) p.local = 2, p.half_width = 6.5;
        check_call(&p, 1 + p.n_queries / 6);
    }
    /* equal keys: the first one, wherever it lies */
    problem p = {1, 2, 1, 9, 700, 16, 5, .hard = 1};
    call *c = make_call(&p);
    const size_t row = (size_t)(p.qk_size * real_bytes());
    for (int j = 1; j < p.n_keys; j++)
        memcpy((char *)c->typed[K] + (size_t)j * row, c->typed[K], row);
    CHECK(fa_sdpa(&c->desc) == FA_OK, "status");
    for (int i = 0; i < p.q_heads * p.n_queries; i++)
        CHECK(c->picks[i] == 0, "row %d picks %lld", i, (long long)c->picks[i]);
    free_call(c);
}

static int stop_at_once(void) { return 1; }

/* Planning millions of sequences takes a second: it may be stopped before any of them is computed. */
static void test_planning_of_sequences_can_be_stopped(void) {
    enum { N = 1 << 16 };
    int64_t *ends = allocate((N + 1) * sizeof *ends);
    float *in = allocate(N * sizeof *in), *out = allocate(N * sizeof *out);
    for (int i = 0; i <= N; i++) ends[i] = i;
    for (int i = 0; i < N; i++) in[i] = 0.0f, out[i] = 7.0f;
    fa_array rows = {
        .data = in, .head_stride = N, .row_stride = 1, .col_stride = 1, .type = FA_F32};
    fa_varlen_desc d = {
        .call = {.exec = {.backend = backend, .n_threads = 1, .interrupted = stop_at_once},
                 .n_batch = 1,
                 .n_q_heads = 1,
                 .n_kv_heads = 1,
                 .n_queries = N,
                 .n_keys = N,
                 .qk_size = 1,
                 .v_size = 1,
                 .query = rows,
                 .key = rows,
                 .value = rows,
                 .out = rows,
                 .scale = 1.0,
                 .window_left = -1,
                 .window_right = -1},
        .n_sequences = N,
        .cu_queries = ends,
        .cu_keys = ends,
    };
    d.call.out.data = out;
    CHECK(fa_varlen(&d) == FA_INTERRUPTED, "not stopped");
    for (int i = 0; i < N; i++) CHECK(out[i] == 7.0f, "sequence %d was computed", i);
    d.call.exec.interrupted = NULL;
    CHECK(fa_varlen(&d) == FA_OK, "failed");
    for (int i = 0; i < N; i++) CHECK(out[i] == 0.0f, "sequence %d: %g", i, (double)out[i]);
    free(ends);
    free(in);
    free(out);
}

typedef struct test {
    const char *name;
    void (*run)(void);
    int floats_only;
} test;
#define TEST(name) \
    { #name, test_##name, 0 }
#define FLOAT_TEST(name) \
    { #name, test_##name, 1 }

static const test tests[] = {
    TEST(wrappers_lane_by_lane),
    TEST(wrappers_across_lanes),
    TEST(rounding),
    TEST(parts_touch_the_first_numbers_only),
    TEST(power_of_two),
    TEST(hyperbolic_tangent),
    TEST(exponential_of_twice),
    FLOAT_TEST(half_conversions),
    TEST(packing),
    TEST(products),
    TEST(prefill_at_the_edges_of_tiles),
    TEST(decode_at_the_edges_of_tiles),
    TEST(head_sizes),
    TEST(options),
    TEST(hidden_nan_stays_hidden),
    FLOAT_TEST(half_types),
    TEST(threads_change_no_bit),
    TEST(additive),
    TEST(local),
    TEST(hard),
    FLOAT_TEST(integers),
    TEST(pages),
    TEST(additive_sequences),
    FLOAT_TEST(planning_of_sequences_can_be_stopped),
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    for (int i = 0; i < N_ELEMENTS(tests); i++) {
        if (argc > 1 && strcmp(argv[1], tests[i].name)) continue;
        double begin = now();
        char ran[64] = "";
        alarm(120);
        n_checked = 0;
        for (backend = 0; backend < fa_backend_count(); backend++) {
            if (!fa_backend_supported(backend)) continue;
            for (real_type = FA_F32; real_type <= (tests[i].floats_only ? FA_F32 : FA_F64);
                 real_type++) {
                seed = 20240607; /* the same data for every backend */
                tests[i].run();
            }
            strncat(ran, " ", sizeof ran - strlen(ran) - 1);
            strncat(ran, fa_backend_name(backend), sizeof ran - strlen(ran) - 1);
        }
        printf("ok %-40s %6.2f s, %9lld checks,%s\n", tests[i].name, now() - begin,
               (long long)n_checked, ran);
        fflush(stdout);
    }
    return 0;
}
