/* SPDX-License-Identifier: MIT
 * Implements ops/pick.h.
 * Used by ops/sdpa.c.  The largest score is found in one walk over the keys, a key is drawn in two:
 * one for the sum of the weights, one up to where the number drawn is reached. */
#include "ops/pick.h"

#include "ops/careful.h"
#include "ops/real.h"
#include "ops/visit.h"

static void walk(const fa_task *t) {
    const double *draws = t->job->desc->draws;
    for (int i = 0; i < t->n_rows; i++) {
        t->picks[i] = -1;
        t->draws[i] = draws ? draws[fa_task_flat_row(t, i)] : 0.0;
    }
    if (draws)
        fa_visit_chunks(t, 0, t->n_rows, FA_SUMS);
    else
        fa_clear_state(t, 0, t->n_rows, t->row_max, t->row_sum, t->o);
    fa_visit_chunks(t, 0, t->n_rows, draws ? FA_DRAW : FA_TOP);
}

/* Whether scores and sums stayed finite; where only the largest score was looked for, the sum is 0. */
static int is_found(const fa_task *t, int i) {
    int bytes = t->real_bytes;
    double sum = fa_real_at(t->row_sum, i, bytes), top = fa_real_at(t->row_max, i, bytes);
    int sum_is_good = t->job->desc->draws ? sum > 0.0 && sum <= DBL_MAX : sum == 0.0;
    return fabs(top) <= DBL_MAX && sum_is_good;
}

static void fill_with_nan(const fa_task *t, void *out) {
    const fa_sdpa_desc *d = t->job->desc;
    int64_t item = fa_type_bytes(d->out.type);
    fa_real_put(t->scores, 0, NAN, t->real_bytes);
    for (int64_t x = 0; x < d->v_size; x++)
        t->job->kernels->typed[d->out.type].store_row(t->scores, 1, (char *)out + x * item);
}

void fa_pick_rows(const fa_task *t) {
    const fa_sdpa_desc *d = t->job->desc;
    const size_t bytes = (size_t)d->v_size * (size_t)fa_type_bytes(d->out.type);
    walk(t);
    for (int i = 0; i < t->n_rows; i++) {
        int is_nan = 0;
        int64_t pick = t->picks[i];
        if (!is_found(t, i)) {
            if (fa_pool_poll(t->worker)) return;
            pick = fa_careful_pick(t, i, &is_nan);
        }
        void *out = fa_task_out(t, i);
        if (pick < 0)
            memset(out, 0, bytes);
        else
            memcpy(out, t->value + pick * t->value_bytes, bytes);
        if (is_nan) fill_with_nan(t, out);
        d->picks[fa_task_flat_row(t, i)] = pick;
    }
}
