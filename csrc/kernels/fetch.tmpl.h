/* SPDX-License-Identifier: MIT
 * Fetching memory that will be wanted soon, line by line between the arithmetic.
 * Used by the attention kernels.  It changes no value.
 *
 * Lines come in address order, which the hardware prefetcher takes up, and evenly, since a burst fills
 * the miss buffers and stalls the loads behind it.  Addresses past the end are harmless: a prefetch
 * never faults. */

#ifdef FA_FETCH_PAIRS
#define FA_FETCH_LINE FA_PREFETCH_L2 /* two tiles are more than the first level holds */
#else
#define FA_FETCH_PAIRS 0
#define FA_FETCH_LINE FA_PREFETCH
#endif

/* At the end of a row's lines, or of a pair of rows. */
FA_INLINE void next_row(fa_fetch *f) {
    if (!f->run) {
        f->at += f->jump;
        f->lines_of_row_left = f->lines_of_row;
    } else if (f->n_runs-- > 0) {
        f->run++;
        fa_fetch_run(f, f->both == FA_ALIGN);
    } else { /* nothing is left: the last line again and again */
        f->at = f->run->k;
        f->hop = f->both = 0;
        f->lines_of_row_left = INT64_MAX;
    }
}

FA_INLINE void fetch_line(fa_fetch *f) {
    FA_FETCH_LINE(f->at);
    f->at += f->hop;
    f->hop = f->both - f->hop;
    if (--f->lines_of_row_left == 0) next_row(f);
}

/* The same for loops whose registers are few: what they need of it each time, apart from what they need
 * seldom. */
typedef struct fetch_cursor {
    const char *at;
    int64_t hop, left;
} fetch_cursor;

FA_INLINE fetch_cursor cursor_of(const fa_fetch *f) {
    return (fetch_cursor){f->at, f->hop, f->lines_of_row_left};
}

FA_INLINE void put_cursor(const fetch_cursor *c, fa_fetch *f) {
    f->at = c->at;
    f->hop = c->hop;
    f->lines_of_row_left = c->left;
}

FA_NOINLINE fetch_cursor FA_NAME(cursor_of_next_row)(fa_fetch *f, const char *at) {
    f->at = at;
    next_row(f);
    return cursor_of(f);
}

FA_INLINE void fetch_at_cursor(fetch_cursor *c, fa_fetch *f) {
    FA_FETCH_LINE(c->at);
    c->at += c->hop;
    c->hop = f->both - c->hop;
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

/* In place: whether the next tile's keys and values can be fetched in turn. */
FA_INLINE int fetches_pairs(const fa_tile *t) {
    return FA_FETCH_PAIRS && t->k_item == 4 && t->k_stride * t->k_item == t->v_stride * t->v_item &&
           t->qk_size * t->k_item == t->v_size * t->v_item;
}

/* The next tile's keys and values, or its keys alone. */
FA_INLINE fa_fetch fetch_next(const fa_tile *t) {
    return fa_fetch_runs(t->next, t->n_next, t->k_stride * t->k_item,
                         (int64_t)t->qk_size * t->k_item, fetches_pairs(t));
}
