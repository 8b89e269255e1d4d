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
        if (f->run) {
            f->at = (++f->run)->k;
            f->lines_of_row_left = fa_ceil_div(f->run->n * f->row_bytes, FA_ALIGN);
        } else {
            f->at += f->jump;
            f->lines_of_row_left = f->lines_of_row;
        }
    }
}

/* Before a product of n_steps steps: fetches some lines, or, where so many would be a burst and lie in
 * one piece, returns where they begin, for the product to fetch one in each step; else NULL.
 * n_steps is 0 for products that cannot. */
FA_INLINE const char *fetch_step(fa_ahead *a, int n_steps) {
    const char *lines = NULL;
    if (!a || a->now == a->n) return NULL;
    fa_fetch *f = &a->rows[a->now];
    int n = a->lines_per_step;
    if (a->in_products && f->jump == 0) {
        if (a->wait-- > 0 || n_steps == 0) return NULL;
        lines = f->at;
        n = n_steps;
        f->at += (int64_t)n * FA_ALIGN;
    } else {
        for (int x = 0; x < n; x++) fetch_line(f);
    }
    f->n_lines -= n;
    a->now += f->n_lines <= 0;
    return lines;
}
