/* SPDX-License-Identifier: MIT
 * All kernels in order, and the table that leaves the file.
 * Used by isa/<isa>.c after a vector header; FA_ISA names the instruction set.  Holds no algorithm. */

#include "vec/math.tmpl.h"

#include "kernels/fetch.tmpl.h"
#include "kernels/tile.tmpl.h"

#include "kernels/mask.tmpl.h"

#include "kernels/softmax.tmpl.h"

#include "kernels/pick.tmpl.h"

#include "kernels/careful.tmpl.h"
#include "kernels/sdpa_decode.tmpl.h"
#include "kernels/sdpa_prefill.tmpl.h"

#include "kernels/additive.tmpl.h"

#include "kernels/probe.tmpl.h"

extern const fa_kernels FA_NAME(fa_kernels);
const fa_kernels FA_NAME(fa_kernels) = {
    .name = FA_STRING(FA_ISA),
    .mr = FA_MR,
    .nr = FA_NR,
    .pack_keys = FA_NAME(pack_keys),
    .pack_values = FA_NAME(pack_values),
    .product = FA_NAME(product),
    .scale_row = FA_NAME(scale_row),
    .tile_prefill = FA_NAME(tile_prefill),
    .tile_decode = FA_NAME(tile_decode),
    .tile_additive = FA_NAME(tile_additive),
    .scores_prefill = FA_NAME(scores_prefill),
    .scores_decode = FA_NAME(scores_decode),
    .scores_additive = FA_NAME(scores_additive),
    .weights = FA_NAME(weights),
    .top = FA_NAME(top),
    .draw = FA_NAME(draw),
    .additive_row = FA_NAME(additive_row),
    .pack_additive_keys = FA_NAME(pack_additive_keys),
    .hidden_keys = FA_NAME(hidden_keys),
    .merge_row = FA_NAME(merge_row),
    .finish_row = FA_NAME(finish_row),
    .careful_keys = FA_NAME(careful_keys),
    .careful_finish = FA_NAME(careful_finish),
    .ceiling_fma = FA_NAME(ceiling_fma),
    .ceiling_div = FA_NAME(ceiling_div),
    .ceiling_read = FA_NAME(ceiling_read),
    .probe = FA_NAME(probe),
};
