/* SPDX-License-Identifier: MIT
 * Rows that the fast path could not finish, done again in double, whatever their scores are.
 * Used by ops/sdpa.c and ops/pick.c.  The arithmetic is in kernels/careful.tmpl.h. */
#ifndef FA_CAREFUL_H
#define FA_CAREFUL_H

#include "ops/task.h"

/* Row i of the task: its out, lse and weights. */
void fa_careful_row(const fa_task *t, int i);

/* Row i of the task in hard attention: its key, or -1, and whether that key's score is NaN. */
int64_t fa_careful_pick(const fa_task *t, int i, int *is_nan);

#endif
