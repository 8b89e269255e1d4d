/* SPDX-License-Identifier: MIT
 * Attention of a block of many rows against packed keys and values: limited by arithmetic.
 * Used by ops/sdpa.c through the table.  Chooses no tile size and reads nothing unpacked. */

static void FA_NAME(tile_prefill)(const fa_tile *t) {
    float alpha[FA_MAX_ROW_BLOCK];
    row_groups groups;
    FA_ASSERT(t->n_rows <= FA_MAX_ROW_BLOCK && t->n_keys > 0);
    group_rows(t, &groups);
    score_block(t, &groups);
    softmax_rows(t, alpha);
    value_block(t, &groups, alpha);
}

static void FA_NAME(scores_prefill)(const fa_tile *t) {
    row_groups groups;
    group_rows(t, &groups);
    score_block(t, &groups);
    finish_rows(t);
}
