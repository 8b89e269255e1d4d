/* SPDX-License-Identifier: MIT
 * Additive attention outside the walk over the keys: factors of attention_v, and packed keys.
 * Used by ops/sdpa.c and ops/task.c.  Scores are computed in kernels/additive.tmpl.h. */
#ifndef FA_ADDITIVE_H
#define FA_ADDITIVE_H

#include "ops/plan.h"

/* Fills fa_plan_factors(desc).n_rows rows: attention_v times -2, padded with zeros, then its sums. */
void fa_additive_factors(const fa_sdpa_desc *desc, int real_bytes, void *factors);

/* The two parts of what fa_additive_pack made. */
fa_additive_keys fa_additive_split(const fa_kernels *kernels, void *packed, int64_t n_keys,
                                   int64_t u_size);

#endif
