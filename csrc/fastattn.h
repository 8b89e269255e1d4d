/* SPDX-License-Identifier: MIT
 * THE C API of fastattn: status codes, descriptors, entry points.
 * Used by the Cython module, which includes no other header of csrc/.
 * It allocates no output, calls no Python, reads no environment and keeps no current backend. */
#ifndef FASTATTN_H
#define FASTATTN_H

#include <stdint.h>

#include "base/types.h"

/* A strided array (*lead, heads, rows, cols).  All arrays of one call have the same leading shape;
 * a broadcast axis has stride 0.  data == NULL: the array is absent. */
typedef struct fa_array {
    void *data;                 /* element [0, ..., 0] */
    const intptr_t *lead_bytes; /* n_lead strides in BYTES, borrowed from the array object */
    int64_t head_stride;        /* strides in elements, any sign */
    int64_t row_stride;
    int64_t col_stride; /* 1 for query, key, value and out; anything for masks */
    int type;           /* enum fa_type */
} fa_array;

/* Who computes, and how it may be stopped. */
typedef struct fa_exec {
    int backend;              /* index into the backend table */
    int n_threads;            /* at most so many threads, the caller included; >= 1 */
    int (*interrupted)(void); /* NULL, or called now and then by the calling thread: nonzero stops.
                               * It must return: no thread exit, no longjmp. */
} fa_exec;

/* One call of scaled dot-product attention.  With h' = h / (n_q_heads / n_kv_heads), for every
 * batch entry b, head h and row i (p = i + q_offset):
 *
 *     s[j]    = scale * (query[b,h,i] . key[b,h',j]);   s = softcap * tanh(s / softcap) if softcap > 0
 *     s[j]   += bias[b,h,i,j] + float attn_mask[b,h,i,j] - slopes[b,h] * |p - j|
 *     allowed = j < kv_length && bool attn_mask && (!is_causal || j <= p)
 *               && p - window_left <= j <= p + window_right && no float term is -inf
 *     out[b,h,i] = sum_allowed exp(s[j]) value[b,h',j] / Z,    lse = log(Z),
 *     Z = sum_allowed exp(s[j]) + exp(sinks[h]);   a row without allowed keys: out 0, lse log(Z).
 *
 * Sizes may be zero.  Data of keys that no row may see is never used, whatever it holds.
 * out, lse and weights overlap no input. */
typedef struct fa_sdpa_desc {
    fa_exec exec;
    int n_lead;                 /* number of leading axes */
    const intptr_t *lead_shape; /* n_lead sizes; their product is n_batch */
    int64_t n_batch, n_q_heads, n_kv_heads, n_queries, n_keys, qk_size, v_size;
    /* FA_F64 all four, or FA_F32, FA_F16 or FA_BF16 each; col_stride 1.  Reals, below, are doubles in
     * the first case and floats in the second.  key and value also FA_I8, both, with factors. */
    fa_array query, key, value, out;
    fa_array attn_mask, bias; /* (*lead, n_q_heads, n_queries, n_keys) or absent */
    void *lse;                /* reals: C-contiguous (*lead, n_q_heads, n_queries) or NULL */
    int64_t lse_head_stride;  /* 0: n_queries */
    void *weights; /* C-contiguous (*lead, n_q_heads, n_queries, n_keys) or NULL; as out */
    const int64_t *q_offsets; /* n_batch values, or NULL: q_offset for all; |value| <= 2^60 */
    int64_t q_offset;
    const int64_t *kv_lengths; /* n_batch values in [0, n_keys], or NULL: n_keys for all */
    const void *slopes;        /* finite reals; slopes[b * slopes_batch_stride + h]; or NULL */
    int64_t slopes_batch_stride;
    const void *sinks; /* n_q_heads reals, -inf = none; or NULL */
    double scale;
    double softcap; /* 0: off */
    /* Additive scores, if attention_v is there: s[j] = sum_u attention_v[h,u] tanh(query[b,h,i,u] +
     * key[b,h',j,u]), u < qk_size; scale is 1 and softcap 0 then.  attention_v holds finite reals,
     * one row for all heads or one for each (attention_v_stride 0 or at least qk_size).  query and key are
     * of reals then. */
    const void *attention_v;
    int64_t attention_v_stride;
    const void *packed_keys;           /* what fa_additive_pack made of key, or NULL */
    int is_causal;                     /* 0 or 1 */
    int64_t window_left, window_right; /* -1: unbounded; <= 2^60 */
    /* Reals (*lead, n_kv_heads, 1, n_keys) or absent: s[j] is multiplied by key_factors[j], before the
     * softcap, value[j] by value_factors[j].  NaN is what it is with keys of FA_I8; with others it stands
     * for 1 / |key| (0 for zeros) where products with that key may leave the range of reals: rows that
     * see it are computed key by key, in double. */
    fa_array key_factors, value_factors;
    /* Keys and values in pages, if page_size > 0: key j is row j % page_size of page pages[j / page_size].
     * key, value and their factors are (pages, n_kv_heads, page_size, size) and (pages, n_kv_heads, 1,
     * page_size) then: lead_bytes[0] is their step from page to page, though n_lead is 0 and n_batch 1. */
    int64_t page_size;
    const int32_t *pages;
    /* Local attention, if centers is there: C-contiguous (*lead, n_q_heads, n_queries), finite.  A row
     * also sees no key but c - half_width <= j <= c + half_width; with sigma > 0 its weights are
     * multiplied by exp(-(j - c)^2 / (2 sigma^2)) after the softmax.  Z and lse are those before. */
    const double *centers;
    double half_width, sigma; /* >= 0, finite */
    /* Hard attention, if picks is there: C-contiguous (*lead, n_q_heads, n_queries), written.  A row
     * picks one key, and its out is that key's value: the first key of the largest score, or, with
     * draws (numbers of [0, 1), shaped like picks), the first at which the sum of the weights exceeds
     * the row's number.  No key: -1, out 0; a NaN score: the first such key, out NaN.
     * lse, weights and sinks are NULL then. */
    int64_t *picks;
    const double *draws;
} fa_sdpa_desc;

/* Computes the call above.  Thread-safe; the floating-point environment of the caller is the same
 * afterwards.  Bits do not depend on n_threads, on the batch or on alignment. */
int fa_sdpa(const fa_sdpa_desc *desc);

/* Sequences of any lengths, packed one after the other: sequence s has the queries [cu_queries[s],
 * cu_queries[s + 1]) and the keys [cu_keys[s], cu_keys[s + 1]) of `call`, whose n_lead is 0, n_batch 1,
 * and n_queries and n_keys how many there are in all; or, in pages, as many keys, which lie in
 * pages[first_page[s]], pages[first_page[s] + 1], ...  Each is computed as a call of its own, to the same
 * bits.  weights, attn_mask, bias, kv_lengths, packed_keys, centers and picks are absent. */
typedef struct fa_varlen_desc {
    fa_sdpa_desc call;
    int64_t n_sequences;
    const int64_t *cu_queries, *cu_keys; /* n_sequences + 1 each: from 0, never decreasing */
    const int64_t *q_offsets;            /* n_sequences, or NULL: call.q_offset for all */
    int64_t slopes_stride;     /* of call.slopes, from one sequence to the next: 0 or heads */
    const int64_t *first_page; /* n_sequences places in call.pages, if call.page_size > 0 */
} fa_varlen_desc;
int fa_varlen(const fa_varlen_desc *desc);

/* Partial results over disjoint keys become the result over all of them: exact, with weights e^lse.  All
 * arrays are C-contiguous; a part with lse -inf in a row adds nothing there, whatever its out holds. */
typedef struct fa_merge_part {
    const void *out; /* (n_rows, size), of the type of the result */
    const void *lse; /* (n_rows,) reals: doubles for FA_F64, else floats */
} fa_merge_part;
typedef struct fa_merge_desc {
    fa_exec exec;
    const fa_merge_part *parts;
    int64_t n_parts, n_rows, size;
    int type; /* FA_F32, FA_F64, FA_F16 or FA_BF16 */
    void *out, *lse;
} fa_merge_desc;
int fa_merge(const fa_merge_desc *desc);

/* The keys of one (batch entry, kv head) as additive attention wants them: packed once, used by any
 * number of calls with the same backend and type (FA_F32 or FA_F64), at any time and from any thread.
 * `packed_keys` of a call is the packed form of all (*lead of the key, kv head) one after the other,
 * fa_additive_packed_bytes apart, each aligned to 64 bytes; the leading axes are those of the
 * descriptor's key. */
int64_t fa_additive_packed_bytes(int backend, int type, int64_t n_keys, int64_t u_size);
int fa_additive_pack(int backend, int type, const void *key, int64_t row_stride, int64_t n_keys,
                     int64_t u_size, void *packed);

/* out = rows @ weight: each element one chain of multiply-adds, so that its bits do not depend on how
 * many rows there are.  out overlaps nothing; size and n_cols fit an int. */
typedef struct fa_product_desc {
    fa_exec exec;
    int type;         /* of all arrays: FA_F32 or FA_F64 */
    const void *rows; /* (n_rows, size), row_stride apart */
    int64_t row_stride, n_rows, size;
    const void *weight; /* C-contiguous (size, n_cols) */
    int64_t n_cols;
    void *out; /* C-contiguous (n_rows, n_cols) */
} fa_product_desc;
int fa_product(const fa_product_desc *desc);

/* How a call would be cut, for tests and show_config: sizes only, data pointers are not read. */
typedef struct fa_sdpa_plan_info {
    int is_decode;
    int64_t n_tasks, rows_per_task, key_chunk;
    int row_block, key_tile;
    int64_t scratch_bytes; /* per thread */
} fa_sdpa_plan_info;
int fa_sdpa_plan_query(const fa_sdpa_desc *desc, fa_sdpa_plan_info *info);

/* The backends compiled in, best first. */
int fa_backend_count(void);
const char *fa_backend_name(int index);
void fa_backend_needs(int index, char *text, int n_text); /* names of the CPU features it needs */
int fa_backend_supported(int index);                      /* does this CPU and this OS run it? */

/* The thread pool: number of live workers (callers not counted), and its end (it restarts on use).
 * The shutdown waits at most for the task that each worker is in; calls in flight go on on their own
 * threads.  It must not be called from a task, nor while holding a lock that a task needs. */
int fa_pool_n_workers(void);
void fa_pool_shutdown(void);

/* Compiler name and version, and whether FA_ASSERT is on. */
const char *fa_compiler(void);
int fa_asserts_enabled(void);

/* The machine's ceilings, for benchmarks.  fma: runs n_rounds of independent FMA chains on every
 * thread and returns the floating-point operations done (all threads); div: the same with divisions,
 * returns how many; read: reads the buffer once, split over the threads, and returns a sum of it.
 * The caller takes the time. */
double fa_ceiling_fma(const fa_exec *exec, int64_t n_rounds);
double fa_ceiling_div(const fa_exec *exec, int64_t n_rounds);
double fa_ceiling_read(const fa_exec *exec, const float *data, int64_t n_floats);

/* Test hook: runs one vector operation of a backend over arrays of type FA_F32 or FA_F64:
 * out[i] = op(a[i], b[i], c[i]).
 * Returns FA_BROKEN_CONTRACT for an unknown name.  n is any size. */
int fa_probe(int backend, int type, const char *op, const void *a, const void *b, const void *c,
             void *out, int64_t n);

#endif
