/* SPDX-License-Identifier: MIT
 * One row in double precision, two passes, key by key: the way out where the fast path ends without a
 * finite state.  Used by ops/sdpa.c for such rows only; finite inputs of usual size never come here.
 *
 * It settles what the fast path leaves open: rows that see no key, scores or biases near the end of
 * the float range (which overflow in units of log2), outputs whose sum overflows before the division,
 * and NaN or infinity in data that the row does see, which it hands on.  It never touches a key or
 * a value that the row may not see. */

static double careful_score(const fa_careful *c, int64_t key, int *allowed) {
    double terms = 0.0, dot = 0.0;
    *allowed = careful_terms(c->scoring, c->row, key, &terms);
    if (!*allowed) return 0.0;
    for (int d = 0; d < c->qk_size; d++) dot += (double)c->q[d] * c->k[key * c->k_stride + d];
    dot *= c->scoring->scale;
    if (fabs(dot) > FLT_MAX) dot = dot > 0.0 ? INFINITY : -INFINITY; /* as in float */
    if (c->scoring->has_cap) dot = c->scoring->softcap * tanh(dot / c->scoring->softcap);
    return saturate(dot + terms);
}

static void FA_NAME(careful_row)(const fa_careful *c) {
    int64_t lo = fa_max64(0, c->row->key_lo), hi = fa_min64(c->n_keys, c->row->key_hi);
    double top = -INFINITY, total = 0.0;
    int allowed, any = 0, nan = 0;
    for (int64_t j = lo; j < hi && !nan; j++) {
        double s = careful_score(c, j, &allowed);
        if (!allowed) continue;
        any = 1;
        nan = s != s;
        if (s > top) top = s;
    }
    if (c->sink && *c->sink > top) top = *c->sink;
    if (c->weights)
        for (int64_t j = 0; j < c->n_keys; j++) c->weights[j] = 0.0f;
    for (int x = 0; x < c->v_size; x++) c->acc[x] = 0.0;

    for (int64_t j = lo; j < hi && any && !nan; j++) {
        double s = careful_score(c, j, &allowed);
        if (!allowed) continue;
        double p = exp(s - top);
        total += p;
        if (c->weights) c->weights[j] = (float)p;
        for (int x = 0; x < c->v_size; x++) c->acc[x] += p * c->v[j * c->v_stride + x];
    }
    if (c->sink && *c->sink != -INFINITY) total += exp(*c->sink - top);
    if (nan) total = NAN;

    for (int x = 0; x < c->v_size; x++) c->out[x] = (float)(any ? c->acc[x] / total : 0.0);
    if (any && nan)
        for (int x = 0; x < c->v_size; x++) c->out[x] = NAN;
    if (c->weights)
        for (int64_t j = lo; j < hi && any; j++) {
            double ignored = 0.0;
            if (careful_terms(c->scoring, c->row, j, &ignored))
                c->weights[j] = (float)(c->weights[j] / total);
        }
    if (c->lse) *c->lse = (float)(total == 0.0 ? -INFINITY : top + log(total));
}
