/* SPDX-License-Identifier: MIT
 * Attention of a block of many rows against packed keys and values: limited by arithmetic.
 * Used by ops/sdpa.c through the table.  Chooses no tile size and reads nothing unpacked. */

static void FA_NAME(tile_prefill)(const fa_tile *t) {
    float alpha[FA_MAX_ROW_BLOCK];
    FA_ASSERT(t->n_rows <= FA_MAX_ROW_BLOCK && t->n_keys > 0);
    score_block(t);
    softmax_rows(t, alpha);
    value_block(t, alpha);
}

static void FA_NAME(weights_prefill)(const fa_tile *t) {
    score_block(t);
    weights_rows(t);
}
