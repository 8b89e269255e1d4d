/* SPDX-License-Identifier: MIT
 * The kernels that read or write the user's own numbers, once for each element type: FA_E names it,
 * fa_element is what lies in memory, ve_* are the wrappers that convert.
 * Used by kernels/all.tmpl.h.  Holds no algorithm. */

#define FA_TYPED_(name, e) FA_NAME(name##_##e)
#define FA_TYPED_OF(name, e) FA_TYPED_(name, e)
#define FA_TYPED(name) FA_TYPED_OF(name, FA_E)

/* Their place in the table of kernels. */
#define FA_READERS(e)                                                             \
    .pack_keys = FA_NAME(pack_keys_##e), .pack_values = FA_NAME(pack_values_##e), \
    .dots = FA_NAME(dots_##e), .values = FA_NAME(values_##e)
#define FA_TYPED_KERNELS(e)                                                                        \
    {                                                                                              \
        FA_READERS(e), .scale_row = FA_NAME(scale_row_##e), .add_row = FA_NAME(add_row_##e),       \
                       .finish_row = FA_NAME(finish_row_##e), .store_row = FA_NAME(store_row_##e), \
    }

#ifdef FA_REAL_F64
#define FA_E f64
#else
#define FA_E f32
#endif
#define fa_element fa_real
#define ve_load vf_load
#define ve_load_part vf_load_part
#define ve_store vf_store
#define ve_store_part vf_store_part

#include "kernels/typed.tmpl.h"
#undef FA_E
#undef fa_element
#undef ve_load
#undef ve_load_part
#undef ve_store
#undef ve_store_part

#ifndef FA_REAL_F64
/* Parts of shorter numbers go through memory of our own: heads whose size is no multiple of the lanes. */
#define fa_element uint16_t
#define ve_load_part FA_TYPED(load_part)
#define ve_store_part FA_TYPED(store_part)

#define FA_E f16
#define ve_load vf_load_f16
#define ve_store vf_store_f16

#include "kernels/parts.tmpl.h"

#include "kernels/typed.tmpl.h"
#undef FA_E
#undef ve_load
#undef ve_store

#define FA_E bf16
#define ve_load vf_load_bf16
#define ve_store vf_store_bf16

#include "kernels/parts.tmpl.h"

#include "kernels/typed.tmpl.h"
#undef FA_E
#undef fa_element
#undef ve_load
#undef ve_store

/* Keys and values of a cache, in units of their factors: read only. */
#define FA_E i8
#define fa_element int8_t
#define ve_load vf_load_i8

#include "kernels/parts.tmpl.h"

#include "kernels/typed.tmpl.h"
#undef FA_E
#undef fa_element
#undef ve_load
#undef ve_load_part
#undef ve_store_part
#endif
