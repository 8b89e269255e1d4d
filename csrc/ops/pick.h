/* SPDX-License-Identifier: MIT
 * Hard attention: each row takes the value of one key.
 * Used by ops/sdpa.c for the tasks of such calls. */
#ifndef FA_PICK_H
#define FA_PICK_H

#include "ops/task.h"

/* Finds the keys of all rows of the task, and writes picks and out. */
void fa_pick_rows(const fa_task *t);

#endif
