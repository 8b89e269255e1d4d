/* SPDX-License-Identifier: MIT
 * Fetching memory that will be wanted soon, line by line between the arithmetic.
 * Used by the attention kernels.  It changes no value.
 *
 * Lines come in address order, which the hardware prefetcher takes up, and evenly, since a burst fills
 * the miss buffers and stalls the loads behind it.  Addresses past the end are harmless: a prefetch
 * never faults. */

/* At the end of a row's lines. */
FA_INLINE void next_row(fa_fetch *f) {
    if (f->run) {
        f->at = (++f->run)->k;
        f->lines_of_row_left = fa_ceil_div(f->run->n * f->row_bytes, FA_ALIGN);
    } else {
        f->at += f->jump;
        f->lines_of_row_left = f->lines_of_row;
    }
}

FA_INLINE void fetch_line(fa_fetch *f) {
    FA_PREFETCH(f->at);
    f->at += FA_ALIGN;
    if (--f->lines_of_row_left == 0) next_row(f);
}

/* The same for loops whose registers are few: what they need of it each time, apart from what they need
 * seldom. */
typedef struct fetch_cursor {
    const char *at;
    int64_t left;
} fetch_cursor;

FA_NOINLINE fetch_cursor FA_NAME(cursor_of_next_row)(fa_fetch *f, const char *at) {
    f->at = at;
    next_row(f);
    return (fetch_cursor){f->at, f->lines_of_row_left};
}

FA_INLINE void fetch_at_cursor(fetch_cursor *c, fa_fetch *f) {
    FA_PREFETCH(c->at);
    c->at += FA_ALIGN;
    if (--c->left == 0) *c = FA_NAME(cursor_of_next_row)(f, c->at);
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
