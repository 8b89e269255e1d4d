/* SPDX-License-Identifier: MIT
 * Packing: tiles of keys and values become panels of reals.
 * Used by ops/visit.c through the table, a copy for each element type.  It multiplies nothing. */

static void FA_TYPED(pack_keys)(const void *keys, int64_t k_stride, int n_keys, int qk_size,
                                void *to_panels) {
    const fa_element *k = keys;
    fa_real *panels = to_panels;
    for (int j = 0; j < n_keys; j += VF_LANES) {
        fa_real *to = panels + (int64_t)(j / FA_NR) * FA_NR * qk_size + j % FA_NR;
        int n = fa_min(VF_LANES, n_keys - j);
        for (int d = 0; d < qk_size; d += VF_LANES) {
            int nd = fa_min(VF_LANES, qk_size - d);
            vf rows[VF_LANES];
            for (int i = 0; i < VF_LANES; i++) rows[i] = vf_set1(0.0f);
            for (int i = 0; i < n; i++) {
                const fa_element *from = k + (j + i) * k_stride + d;
                FA_PREFETCH(from + VF_LANES * k_stride); /* the next rows: they may be far */
                rows[i] = nd == VF_LANES ? ve_load(from) : ve_load_part(from, nd);
            }
            vf_transpose(rows);
            for (int i = 0; i < nd; i++) vf_store(to + (int64_t)(d + i) * FA_NR, rows[i]);
        }
    }
    /* Whole vectors of the last panel that hold no key. */
    for (int j = (int)fa_round_up(n_keys, VF_LANES); j % FA_NR; j += VF_LANES)
        for (int d = 0; d < qk_size; d++)
            vf_store(panels + (int64_t)(j / FA_NR) * FA_NR * qk_size + (int64_t)d * FA_NR +
                         j % FA_NR,
                     vf_set1(0.0f));
}

static void FA_TYPED(pack_values)(const void *values, int64_t v_stride, int n_keys, int v_size,
                                  const uint8_t *hidden, void *to_panels) {
    enum { ROWS_AHEAD = 16 }; /* fetched before their turn */
    const fa_element *v = values;
    fa_real *panels = to_panels;
    for (int j = 0; j < n_keys; j++) {
        const fa_element *from = v + j * v_stride;
        int n = hidden && hidden[j] ? 0 : v_size; /* a hidden row is not read */
        for (int c = 0; c < v_size; c += FA_ALIGN / (int)sizeof *v)
            FA_PREFETCH(from + ROWS_AHEAD * v_stride + c);
        for (int c = 0; c < v_size; c += FA_NR) {
            fa_real *to = panels + (int64_t)(c / FA_NR) * FA_NR * n_keys + (int64_t)j * FA_NR;
            for (int x = 0; x < FA_NR; x += VF_LANES) {
                int left = n - c - x;
                vf_store(to + x, left >= VF_LANES ? ve_load(from + c + x)
                                                  : ve_load_part(from + c + x, fa_max(0, left)));
            }
        }
    }
}
