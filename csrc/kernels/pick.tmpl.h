/* SPDX-License-Identifier: MIT
 * Hard attention: one key a row, the one of the largest score or one drawn by the weights.
 * Used by ops/pick.c through the table, on tiles of final scores.  It reads no value. */

static int has_nan(const fa_real *s, int n) {
    vf found = vf_set1(0.0f);
    for (int j = 0; j < n; j += VF_LANES) {
        vf x = vf_load(s + j);
        found = vf_select(vm_eq(x, x), found, vf_set1(1.0f));
    }
    return vf_hmax(found) > 0.0f;
}

static void FA_NAME(top)(const fa_tile *t) {
    fa_real *row_max = t->row_max, *row_sum = t->row_sum;
    int n = (int)fa_round_up(t->n_keys, VF_LANES); /* the rest of the last vector is -inf */
    for (int i = 0; i < t->n_rows; i++) {
        const fa_real *s = scores_of(t, i);
        fa_real top = row_top(s, n);
        if (has_nan(s, n)) row_sum[i] = NAN;
        if (!(top > row_max[i])) continue;
        int j = 0;
        while (s[j] != top) j++;
        row_max[i] = top;
        t->picks[i] = t->key_first + j;
    }
}

/* The walk goes tile by tile on their sums, and key by key only where the number drawn runs out.  A
 * number that rounding leaves over after the last key falls to the last key that has weight. */
static void FA_NAME(draw)(const fa_tile *t) {
    FA_NAME(weights)(t);
    for (int i = 0; i < t->n_rows; i++) {
        const fa_real *s = scores_of(t, i);
        double left = t->draws[i];
        int last = t->n_keys - 1;
        if (left < 0.0) continue; /* found in an earlier tile */
        vf sums = vf_set1(0.0f);
        for (int j = 0; j < t->n_keys; j += VF_LANES) sums = vf_add(sums, vf_load(s + j));
        fa_real sum = vf_hsum(sums);
        t->draws[i] = left - (double)sum;
        if (t->draws[i] < 0.0) {
            int j = 0;
            for (; j < last && (left -= s[j]) >= 0.0; j++) {
            }
            last = j;
        }
        while (last >= 0 && !(s[last] > 0.0f)) last--;
        if (last >= 0) t->picks[i] = t->key_first + last;
    }
}
