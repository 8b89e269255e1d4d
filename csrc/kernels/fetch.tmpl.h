/* SPDX-License-Identifier: MIT
 * Fetching memory that will be wanted soon, line by line between the arithmetic.
 * Used by the attention kernels.  It changes no value.
 *
 * Lines come in address order, which the hardware prefetcher takes up, and evenly, since a burst fills
 * the miss buffers and stalls the loads behind it.  Addresses past the end are harmless: a prefetch
 * never faults. */

FA_INLINE void fetch_line(fa_fetch *f) {
    FA_PREFETCH(f->at);
    f->at += FA_ALIGN;
    if (--f->lines_of_row_left == 0) {
        f->at += f->jump;
        f->lines_of_row_left = f->lines_of_row;
    }
}

FA_INLINE void fetch_step(fa_ahead *a) {
    if (!a || a->now == a->n) return;
    fa_fetch *f = &a->rows[a->now];
    for (int x = 0; x < a->lines_per_step; x++) fetch_line(f);
    f->n_lines -= a->lines_per_step;
    a->now += f->n_lines <= 0;
}
