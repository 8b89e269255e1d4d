/* SPDX-License-Identifier: MIT
 * Implements ops/additive.h and the packing functions of fastattn.h.
 * Used by additive calls only.  It walks no keys and computes no score. */
#include "ops/additive.h"

#include "base/fpenv.h"
#include "ops/backend.h"
#include "ops/real.h"

/* *sum += x; what rounding took from the sum goes to *rest (Knuth's two-sum). */
static void add_exactly(double x, double *sum, double *rest) {
    double total = *sum + x, part = total - *sum;
    *rest += (*sum - (total - part)) + (x - part);
    *sum = total;
}

void fa_additive_factors(const fa_sdpa_desc *d, int real_bytes, void *factors) {
    fa_factors f = fa_plan_factors(d);
    for (int64_t row = 0; row < f.n_rows; row++) {
        const int64_t a = row * d->attention_v_stride, to = row * (f.n_minus_2a + f.n_sums);
        const int64_t sums = to + f.n_minus_2a;
        double volume = 0.0, rest = 0.0;
        for (int64_t x = 0; x < f.n_sums; x++) {
            double sum = 0.0;
            int64_t end = fa_min64((x + 1) * FA_ADDITIVE_GROUP, d->qk_size);
            for (int64_t u = x * FA_ADDITIVE_GROUP; u < end; u++) {
                double one = fa_real_at(d->attention_v, a + u, real_bytes);
                add_exactly(one, &sum, &rest);
                volume += fabs(one);
            }
            fa_real_put(factors, sums + x, sum, real_bytes);
            rest += sum - fa_real_at(factors, sums + x, real_bytes);
        }
        fa_real_put(factors, sums + f.n_sums - 2, rest, real_bytes);
        fa_real_put(factors, sums + f.n_sums - 1, fmin(volume, FLT_MAX), real_bytes);
        for (int64_t u = 0; u < f.n_minus_2a; u++) {
            double one = u < d->qk_size ? fa_real_at(d->attention_v, a + u, real_bytes) : 0.0;
            fa_real_put(factors, to + u, -2.0 * one, real_bytes);
        }
    }
}

static int64_t panel_bytes(const fa_kernels *k, int64_t n_keys, int64_t u_size) {
    return fa_round_up(n_keys, k->nr) * fa_round_up(u_size, 2) * k->real_bytes;
}

fa_additive_keys fa_additive_split(const fa_kernels *k, void *packed, int64_t n_keys,
                                   int64_t u_size) {
    int64_t at = fa_round_up(panel_bytes(k, n_keys, u_size), FA_ALIGN);
    return (fa_additive_keys){packed, (uint8_t *)packed + at};
}

int64_t fa_additive_packed_bytes(int backend, int type, int64_t n_keys, int64_t u_size) {
    const fa_kernels *k = fa_backend_get(backend, type);
    if (!k) return 0;
    return fa_round_up(panel_bytes(k, n_keys, u_size), FA_ALIGN) + fa_round_up(n_keys, FA_ALIGN);
}

int fa_additive_pack(int backend, int type, const void *key, int64_t row_stride, int64_t n_keys,
                     int64_t u_size, void *packed) {
    const fa_kernels *k = fa_backend_get(backend, type);
    const int64_t piece = 1024 * k->nr; /* tiles count their keys in int */
    if (!k) return FA_BROKEN_CONTRACT;
    fa_additive_keys to = fa_additive_split(k, packed, n_keys, u_size);
    fa_fpenv env = fa_fpenv_enter();
    for (int64_t j = 0; j < n_keys; j += piece) {
        fa_additive_keys part = {(char *)to.panels + j * fa_round_up(u_size, 2) * k->real_bytes,
                                 to.reach + j};
        k->pack_additive_keys((const char *)key + j * row_stride * k->real_bytes, row_stride,
                              (int)fa_min64(piece, n_keys - j), (int)u_size, part);
    }
    fa_fpenv_leave(&env);
    return FA_OK;
}
