/* SPDX-License-Identifier: MIT
 * All kernels in order, and the table that leaves the file.
 * Used by isa/<isa>.c and isa/<isa>_f64.c after a vector header; FA_ISA names the instruction set and
 * the reals.  Holds no algorithm. */

#include "vec/math.tmpl.h"

#include "kernels/fetch.tmpl.h"
#include "kernels/tile.tmpl.h"

#include "kernels/mask.tmpl.h"

#include "kernels/softmax.tmpl.h"

#include "kernels/careful.tmpl.h"
#include "kernels/elements.tmpl.h"
#include "kernels/pick.tmpl.h"

#include "kernels/additive.tmpl.h"

#include "kernels/probe.tmpl.h"

extern const fa_kernels FA_NAME(fa_kernels);
const fa_kernels FA_NAME(fa_kernels) = {
    .name = FA_STRING(FA_ISA),
    .mr = FA_MR,
    .nr = FA_NR,
    .real_bytes = (int)sizeof(fa_real),
#ifdef FA_REAL_F64
    .typed = {[FA_F64] = FA_TYPED_KERNELS(f64)},
#else
    .typed = {[FA_F32] = FA_TYPED_KERNELS(f32),
              [FA_F16] = FA_TYPED_KERNELS(f16),
              [FA_BF16] = FA_TYPED_KERNELS(bf16),
              [FA_I8] = {FA_READERS(i8)}},
    .ceiling_fma = FA_NAME(ceiling_fma),
    .ceiling_div = FA_NAME(ceiling_div),
    .ceiling_read = FA_NAME(ceiling_read),
#endif
    .product = FA_NAME(product),
    .products = FA_NAME(products),
    .additive = FA_NAME(additive),
    .additive_row = FA_NAME(additive_row),
    .pack_additive_keys = FA_NAME(pack_additive_keys),
    .finish_scores = FA_NAME(finish_scores),
    .softmax = FA_NAME(softmax),
    .add_values = FA_NAME(add_values),
    .weights = FA_NAME(weights),
    .top = FA_NAME(top),
    .draw = FA_NAME(draw),
    .hidden_keys = FA_NAME(hidden_keys),
    .merge_row = FA_NAME(merge_row),
    .careful_keys = FA_NAME(careful_keys),
    .careful_finish = FA_NAME(careful_finish),
    .probe = FA_NAME(probe),
};
