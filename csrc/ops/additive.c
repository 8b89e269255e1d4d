/* SPDX-License-Identifier: MIT
 * Implements ops/additive.h and the packing functions of fastattn.h.
 * Used by additive calls only.  It walks no keys and computes no score. */
#include "ops/additive.h"

#include "base/fpenv.h"
#include "ops/backend.h"

void fa_additive_factors(const fa_sdpa_desc *d, float *factors) {
    fa_factors f = fa_plan_factors(d);
    for (int64_t row = 0; row < f.n_rows; row++, factors += f.n_minus_2a + f.n_sums) {
        const float *a = d->attention_v + row * d->attention_v_stride;
        float *sums = factors + f.n_minus_2a;
        double volume = 0.0, rest = 0.0;
        for (int64_t x = 0; x < f.n_sums; x++) {
            double sum = 0.0;
            int64_t end = fa_min64((x + 1) * FA_ADDITIVE_GROUP, d->qk_size);
            for (int64_t u = x * FA_ADDITIVE_GROUP; u < end; u++) {
                sum += a[u];
                volume += fabs((double)a[u]);
            }
            sums[x] = (float)sum;
            rest += sum - sums[x];
        }
        sums[f.n_sums - 2] = (float)rest;
        sums[f.n_sums - 1] = (float)fmin(volume, FLT_MAX);
        for (int64_t u = 0; u < f.n_minus_2a; u++)
            factors[u] = u < d->qk_size ? -2.0f * a[u] : 0.0f;
    }
}

static int64_t panel_bytes(const fa_kernels *k, int64_t n_keys, int64_t u_size) {
    return fa_round_up(n_keys, k->nr) * fa_round_up(u_size, 2) * (int64_t)sizeof(float);
}

fa_additive_keys fa_additive_split(const fa_kernels *k, void *packed, int64_t n_keys,
                                   int64_t u_size) {
    int64_t at = fa_round_up(panel_bytes(k, n_keys, u_size), FA_ALIGN);
    return (fa_additive_keys){(float *)packed, (uint8_t *)packed + at};
}

int64_t fa_additive_packed_bytes(int backend, int64_t n_keys, int64_t u_size) {
    const fa_kernels *k = fa_backend_get(backend);
    if (!k) return 0;
    return fa_round_up(panel_bytes(k, n_keys, u_size), FA_ALIGN) + fa_round_up(n_keys, FA_ALIGN);
}

int fa_additive_pack(int backend, const float *key, int64_t row_stride, int64_t n_keys,
                     int64_t u_size, void *packed) {
    const fa_kernels *k = fa_backend_get(backend);
    const int64_t piece = 1024 * k->nr; /* tiles count their keys in int */
    if (!k) return FA_BROKEN_CONTRACT;
    fa_additive_keys to = fa_additive_split(k, packed, n_keys, u_size);
    fa_fpenv env = fa_fpenv_enter();
    for (int64_t j = 0; j < n_keys; j += piece) {
        fa_additive_keys part = {to.panels + j * fa_round_up(u_size, 2), to.reach + j};
        k->pack_additive_keys(key + j * row_stride, row_stride, (int)fa_min64(piece, n_keys - j),
                              (int)u_size, part);
    }
    fa_fpenv_leave(&env);
    return FA_OK;
}
