/* SPDX-License-Identifier: MIT
 * Attention of a block of many rows against packed keys and values: limited by arithmetic.
 * Used by ops/sdpa.c through the table.  Chooses no tile size and reads nothing unpacked. */

static void FA_NAME(tile_prefill)(const fa_tile *t) {
    float alpha[FA_MAX_ROW_BLOCK];
    FA_ASSERT(t->n_rows <= FA_MAX_ROW_BLOCK && t->n_keys > 0);
    score_block(t);
    for (int i = 0; i < t->n_rows; i++) {
        finish_scores(t, i);
        alpha[i] =
            softmax_step(t->s + (int64_t)i * t->s_stride, (int)fa_round_up(t->n_keys, VF_LANES),
                         &t->row_max[i], &t->row_sum[i]);
    }
    value_block(t, alpha);
}

static void FA_NAME(weights_prefill)(const fa_tile *t) {
    score_block(t);
    for (int i = 0; i < t->n_rows; i++) {
        finish_scores(t, i);
        softmax_weights(t->s + (int64_t)i * t->s_stride, t->n_keys, t->row_max[i], t->row_sum[i]);
    }
}
