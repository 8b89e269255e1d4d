/* SPDX-License-Identifier: MIT
 * Implements ops/careful.h: the passes over the keys, and when to give up.
 * Used by ops/sdpa.c and ops/pick.c.  It decides no score; usual inputs never come here. */
#include "ops/careful.h"

static fa_careful begin(const fa_task *t, int i) {
    const fa_sdpa_desc *d = t->job->desc;
    return (fa_careful){
        .scoring = &t->job->scoring,
        .row = &t->rows[i],
        .qk_size = (int)d->qk_size,
        .v_size = (int)d->v_size,
        .q = fa_task_query(t, i),
        .a = d->attention_v ? t->rows[i].a : NULL,
        .q_type = d->query.type,
        .k_type = d->key.type,
        .v_type = d->value.type,
        .out_type = d->out.type,
        .k_stride = d->key.row_stride,
        .v_stride = d->value.row_stride,
        .sink = t->rows[i].sink,
        .top = t->rows[i].sink,
        .acc = t->careful,
        .scratch = t->careful + d->v_size,
        .pick = -1,
    };
}

/* One pass over the keys in the row's range, giving up between pieces if told to. */
static void pass_keys(const fa_task *t, fa_careful *c, fa_careful_pass pass) {
    const fa_sdpa_desc *d = t->job->desc;
    const int64_t work =
        d->attention_v ? 1 << 19 : 1 << 22; /* some milliseconds: tanh takes longer */
    const int64_t piece = 1 + work / (d->qk_size + d->v_size + 64);
    int64_t hi = fa_min64(d->n_keys, c->row->key_hi);
    for (int64_t j = fa_max64(0, c->row->key_lo), next; j < hi; j = next) {
        fa_piece p = fa_task_piece(t, j);
        next = fa_min64(hi, j + fa_min64(piece, p.n_keys));
        c->first = j;
        c->k = p.key;
        c->v = p.value;
        c->key_factors = p.key_factors;
        c->value_factors = p.value_factors;
        t->job->kernels->careful_keys(c, j, next, pass);
        if (fa_pool_poll(t->worker)) return;
    }
}

void fa_careful_row(const fa_task *t, int i) {
    const fa_sdpa_desc *d = t->job->desc;
    fa_careful c = begin(t, i);
    c.out = fa_task_out(t, i);
    if (d->lse) c.lse = fa_task_lse(t, i);
    if (d->weights) c.weights = fa_task_weights(t, i);
    for (int x = 0; x < c.v_size; x++) c.acc[x] = 0.0;
    pass_keys(t, &c, FA_CAREFUL_MAX);
    if (c.any && !c.nan) pass_keys(t, &c, FA_CAREFUL_SUM);
    t->job->kernels->careful_finish(&c);
    if (!c.weights) return;
    /* Keys that are hidden have weight 0 all the same, the others become NaN.  Beyond the row's range
     * the fast path may have left NaN, where other rows of the block look. */
    c.nan = 0;
    memset(c.weights, 0, (size_t)d->n_keys * (size_t)fa_type_bytes(d->out.type));
    if (c.any) pass_keys(t, &c, FA_CAREFUL_WEIGHTS);
}

int64_t fa_careful_pick(const fa_task *t, int i, int *is_nan) {
    const double *draws = t->job->desc->draws;
    fa_careful c = begin(t, i);
    c.v_size = 0;
    pass_keys(t, &c, FA_CAREFUL_MAX);
    *is_nan = c.nan;
    /* An infinite score leaves nothing to be drawn: the first one takes all weight. */
    if (!draws || !c.any || c.nan || fabs(c.top) > DBL_MAX) return c.pick;
    pass_keys(t, &c, FA_CAREFUL_SUM);
    c.draw = draws[fa_task_flat_row(t, i)] * c.total;
    pass_keys(t, &c, FA_CAREFUL_DRAW);
    return c.pick;
}
