/* SPDX-License-Identifier: MIT
 * What kernels are: their argument structs, and the table of one instruction set.
 * Used by kernels/ (which fills the table) and ops/ (which calls through it).  "Reals" are floats in one
 * table of an instruction set and doubles in the other: here they are bytes, so that ops/ need not know.
 * Kernels allocate nothing, start no thread and report no error; sizes inside a tile are int. */
#ifndef FA_KERNELS_H
#define FA_KERNELS_H

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "base/types.h"
#include "vec/half.h"

/* The most rows that one tile may have. */
#define FA_MAX_ROW_BLOCK 64

#define FA_LOG2E 1.44269504088896340736
#define FA_LN2 0.69314718055994530942

/* The float terms and masks of one call that are the same for all its rows. */
typedef struct fa_scoring {
    double unit;     /* of scores, per natural unit: log2(e), or 1 if no exponential follows */
    double q_factor; /* multiplies the query: scores come out in that unit, docs/numerics.md */
    int has_cap;     /* score = cap_factor * tanh(score) comes first; q_factor has 1 / softcap */
    double cap_factor;
    int term_type[2];       /* enum fa_type of the bias and of the attn_mask */
    int64_t term_stride[2]; /* their step from one key to the next, in elements */
    double scale, softcap;  /* as the user gave them: for the careful path */
    double gauss;           /* 0, or weights are multiplied by 2^(gauss * (j - center)^2), < 0 */
    double sigma;           /* the same as the user gave it */
} fa_scoring;

/* One query row. */
typedef struct fa_row {
    const char *term[2];    /* its bias and its attn_mask at key 0, or NULL */
    double slope;           /* ALiBi, natural units; 0 = none */
    double sink;            /* natural units; -inf = none */
    int64_t position;       /* p = row + q_offset */
    int64_t key_lo, key_hi; /* keys that causality, window, center and length leave: [lo, hi) */
    double center;          /* of the Gaussian */
    int is_alone;           /* shares too few keys with its neighbours: see ops/task.c */
    /* Additive scores: the row's attention_v times -2, its sums over FA_ADDITIVE_GROUP numbers each,
     * what their rounding took in all (and the sum of |a|), the original, and how far the query lies
     * out (enum fa_reach).  All of them reals. */
    const void *minus_2a, *a_sums, *a_rest, *a;
    const void *query; /* as given */
    int reach;
} fa_row;

/* Numbers of a query or key (their absolute values), by what e^(2x) can bear: kernels/additive.tmpl.h. */
enum fa_reach {
    FA_NEAR = 0, /* products of two such exponentials can be multiplied once more */
    FA_WIDE,     /* the exponential exists, products must be clamped */
    FA_FAR       /* beyond, or NaN: no exponential is used */
};
#define FA_ADDITIVE_GROUP 4
#define FA_ADDITIVE_BLOCK 16 /* whole groups */
/* Up to so many numbers tanh itself is taken: rounding errors of so few do not cancel each other. */
#define FA_ADDITIVE_FEW 16
/* Beyond so many too: rounding errors of that many blocks would add up. */
#define FA_ADDITIVE_MOST 2048

/* Keys of additive attention as a run of whole panels. */
typedef struct fa_additive_keys {
    /* panels[j / nr][u][j % nr] = e^(2 key[j, u]), 1 in far keys; round_up(u_size, 2) rows of u, the
     * last one 0 if u_size is odd. */
    void *panels;
    uint8_t *reach; /* per key: enum fa_reach */
} fa_additive_keys;

/* Keys and values that lie one after the other, in place. */
typedef struct fa_run {
    const void *k, *v;
    int n;
} fa_run;
/* The most runs of a tile: in pages of one key, all its keys. */
#define FA_MAX_RUNS 128

/* Rows of memory that will be wanted soon, fetched a few cache lines at a time between the arithmetic. */
typedef struct fa_fetch {
    const char *at;
    int64_t hop, both; /* bytes to the next line, and to the one after that */
    int64_t jump;      /* bytes from the end of a row's lines to the next row */
    int64_t n_lines;   /* that are left */
    int64_t lines_of_row, lines_of_row_left;
    const fa_run *run; /* NULL, or keys without gaps: as one row, so to say */
    int n_runs;        /* after this one */
    int64_t row_bytes; /* of a key */
} fa_fetch;

/* n rows of `size` bytes, `stride` bytes apart. */
FA_INLINE fa_fetch fa_fetch_rows(const void *rows, int64_t stride, int64_t size, int64_t n) {
    int64_t lines = fa_ceil_div(fa_max64(size, 1), FA_ALIGN);
    return (fa_fetch){.at = rows,
                      .hop = FA_ALIGN,
                      .both = 2 * FA_ALIGN,
                      .jump = stride - lines * FA_ALIGN,
                      .n_lines = lines * n,
                      .lines_of_row = lines,
                      .lines_of_row_left = lines};
}

/* Takes up f->run, with a line of its values after each line of its keys or without. */
FA_INLINE void fa_fetch_run(fa_fetch *f, int in_pairs) {
    f->at = f->run->k;
    f->lines_of_row_left = fa_ceil_div(f->run->n * f->row_bytes, FA_ALIGN) << in_pairs;
    if (in_pairs) f->hop = (int64_t)((intptr_t)f->run->v - (intptr_t)f->run->k);
}

/* The keys of n_runs runs, or keys and values in turn, if rows of both are equally long and far apart. */
FA_INLINE fa_fetch fa_fetch_runs(const fa_run *runs, int n_runs, int64_t stride, int64_t size,
                                 int in_pairs) {
    fa_fetch f = fa_fetch_rows(runs->k, stride, size, 0);
    f.both = FA_ALIGN << !in_pairs;
    f.row_bytes = size;
    if (in_pairs) f.lines_of_row *= 2;
    f.run = runs;
    f.n_runs = n_runs - 1;
    fa_fetch_run(&f, in_pairs);
    if (stride != size) { /* never in pages: row after row, without an end */
        f.run = NULL;
        f.lines_of_row_left = f.lines_of_row;
    }
    return f;
}

/* What the next task will read. */
typedef struct fa_ahead {
    fa_fetch rows[4];
    int n, now, lines_per_step;
    int in_products; /* one line in each step of a product instead, */
    int64_t wait;    /* after so many products: not too early */
} fa_ahead;

/* A block of query rows against a run of keys. */
typedef struct fa_tile {
    const fa_scoring *scoring;
    int n_rows, n_keys;
    int64_t key_first; /* index of the tile's first key */
    int qk_size, v_size;
    const void *q; /* n_rows rows of reals, already multiplied by q_factor */
    int64_t q_stride;
    const void *k; /* panels of reals made by pack_keys */
    const void *v; /* panels of reals made by pack_values */
    /* Or keys and values in place: n_runs runs of rows.  next are those that will be wanted after
     * them, at least one. */
    const fa_run *runs, *next;
    int n_runs, n_next;
    fa_fetch *fetch;            /* for the kernels: how far the dot products came */
    int64_t k_stride, v_stride; /* of rows; of panels of values */
    int k_item, v_item;         /* bytes of one number of what lies in place */
    int keys_in_place;
    int is_single; /* the block has one row, and not only because one of several is visited */
    const fa_row *rows;
    void *s; /* scratch for the scores: rows of s_stride >= round_up(n_keys, nr) + padding */
    int s_stride;
    /* The streaming state of each row, updated: maximum (log2 units), sum, and the output sums. */
    void *row_max, *row_sum;
    void *o; /* rows of o_stride = round_up(v_size, nr) */
    int o_stride;
    const void *key_factors,
        *value_factors; /* reals, of the tile's keys, or NULL: see fastattn.h */
    fa_ahead *ahead;    /* packed keys: NULL, or what is fetched meanwhile */
    /* Additive scores: k points into panels, reach to the tile's keys, raw_k to their rows as given. */
    const uint8_t *reach;
    const void *raw_k;
    int64_t raw_k_stride;
    /* Hard attention: each row's key so far, and what is left of the number drawn (< 0: found). */
    int64_t *picks;
    double *draws;
} fa_tile;

/* One row, computed in double from the arrays themselves. */
typedef struct fa_careful {
    const fa_scoring *scoring;
    const fa_row *row;
    int qk_size, v_size;
    const void *q, *k,
        *v; /* the user's rows, and the types of their numbers; k, v begin with key `first` */
    int q_type, k_type, v_type, out_type;
    int64_t first;
    const void *key_factors, *value_factors; /* reals, from key `first` on, or NULL */
    void *scratch; /* for rows of shorter types: 2 * qk_size + v_size reals */
    const void *a; /* additive scores: attention_v; else NULL */
    int64_t k_stride, v_stride;
    double sink;         /* -inf: none */
    void *out, *weights; /* weights may be NULL; its numbers are 0 at first */
    void *lse;           /* or NULL */
    /* The state; begins as the sink, 0, v_size zeros, 0, 0. */
    double top, total, *acc;
    int any, nan; /* was a key seen, was a score NaN */
    int64_t pick; /* begins as -1: the first key of the largest score, then the one drawn */
    double draw;  /* hard attention: what is left of the number drawn, in units of total */
} fa_careful;

typedef enum fa_careful_pass {
    FA_CAREFUL_MAX,
    FA_CAREFUL_SUM,
    FA_CAREFUL_WEIGHTS,
    FA_CAREFUL_DRAW
} fa_careful_pass;

/* The kernels that read or write the user's own numbers, for one element type. */
typedef struct fa_typed_kernels {
    /* panels[j / nr][d][j % nr] = k[j * k_stride + d]; the last panel is filled up with zeros. */
    void (*pack_keys)(const void *k, int64_t k_stride, int n_keys, int qk_size, void *panels);
    /* panels[c / nr][j][c % nr] = v[j * v_stride + c]; columns past v_size are zeros.
     * hidden: NULL, or n_keys bytes: rows with a nonzero byte are packed as zeros and not read. */
    void (*pack_values)(const void *v, int64_t v_stride, int n_keys, int v_size,
                        const uint8_t *hidden, void *panels);
    /* Raw scores of the tile, against keys of this type in place. */
    void (*dots)(const fa_tile *tile);
    /* o = o * alpha + s v, with values of this type in place. */
    void (*values)(const fa_tile *tile, const void *alpha);
    /* dst[d] = src[d] * factor; and added to what is there */
    void (*scale_row)(const void *src, double factor, int n, void *dst);
    void (*add_row)(const void *src, double factor, int n, void *dst);
    /* Takes the sink (log2 units, -inf = none) into the state and writes out = o / sum.
     * Returns 1 if max, sum and all of o / sum are finite and sum > 0, else 0. */
    int (*finish_row)(void *row_max, void *row_sum, const void *o, double sink, int v_size,
                      void *out);
    /* dst[d] = src[d] */
    void (*store_row)(const void *src, int n, void *dst);
} fa_typed_kernels;

/* The kernels of one instruction set and of floats or doubles.  A tile goes through them step by step:
 * raw scores, the softmax (or another use of final scores), the sum of the values. */
typedef struct fa_kernels {
    const char *name;
    int mr, nr;     /* the register block: rows, keys (or value columns) */
    int real_bytes; /* 4: reals are floats; 8: doubles */

    /* By enum fa_type: FA_F32, FA_F16, FA_BF16 and the first four of FA_I8 where reals are floats, else
     * FA_F64 alone. */
    fa_typed_kernels typed[FA_I8 + 1];

    /* c[i, 0..nr) = sum_k a[i, k] b[k, 0..nr), each one chain of multiply-adds in the order of k. */
    void (*product)(const void *a, int64_t a_stride, int64_t n_rows, const void *b,
                    int64_t b_stride, int n, void *c, int64_t c_stride);
    /* Raw scores of the tile against packed keys: products, and additive scores. */
    void (*products)(const fa_tile *tile);
    void (*additive)(const fa_tile *tile);
    /* Raw scores become final: terms and masks, in place. */
    void (*finish_scores)(const fa_tile *tile);
    /* One step of the streaming softmax: from raw scores to weights that are not normalised; maximum and
     * sum of the state are updated, alpha gets what its outputs must be multiplied by. */
    void (*softmax)(const fa_tile *tile, void *alpha);
    /* o = o * alpha + s v, with packed values. */
    void (*add_values)(const fa_tile *tile, const void *alpha);
    /* Final scores turned into final weights, from the final row_max and row_sum (sink included); */
    void (*weights)(const fa_tile *tile);
    /* or looked through for the largest: row_max and picks are updated, row_sum becomes NaN if a
     * score is; */
    void (*top)(const fa_tile *tile);
    /* or turned into weights and drawn from: picks and draws are updated. */
    void (*draw)(const fa_tile *tile);
    /* e[u] = e^(2 q[u]) padded with a 0 to an even number, all 1 where the query is far; returns its
     * enum fa_reach. */
    int (*additive_row)(const void *q, int n, void *e);
    /* n_keys keys into panels and reach. */
    void (*pack_additive_keys)(const void *k, int64_t k_stride, int n_keys, int u_size,
                               fa_additive_keys to);
    /* hidden[j] = 1 where the row may not see key key_first + j, by its terms and its range. */
    void (*hidden_keys)(const fa_scoring *scoring, const fa_row *row, int64_t key_first, int n_keys,
                        uint8_t *hidden);
    /* (max, sum, o) of one row += those of another set of keys, exactly, in this order. */
    void (*merge_row)(void *row_max, void *row_sum, void *o, const void *max2, const void *sum2,
                      const void *o2, int n);
    /* Keys [lo, hi) of the careful row in one pass; then, before the weights, out and lse. */
    void (*careful_keys)(fa_careful *c, int64_t lo, int64_t hi, fa_careful_pass pass);
    void (*careful_finish)(fa_careful *c);

    /* For benchmarks (floats only) and tests: see fastattn.h. */
    double (*ceiling_fma)(int64_t n_rounds);
    double (*ceiling_div)(int64_t n_rounds);
    double (*ceiling_read)(const float *data, int64_t n);
    int (*probe)(const char *op, const void *a, const void *b, const void *c, void *out, int64_t n);
} fa_kernels;

#endif
