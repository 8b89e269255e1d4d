/* SPDX-License-Identifier: MIT
 * The two small vocabularies that every layer shares: status codes and element types.
 * Used by all of csrc/ and, through fastattn.h, by the Cython module.  Holds no struct and no function. */
#ifndef FA_TYPES_H
#define FA_TYPES_H

enum fa_status {
    FA_OK = 0,
    FA_NO_MEMORY,      /* scratch could not be had: nothing was written */
    FA_INTERRUPTED,    /* the interrupt callback asked to stop: outputs are partly written */
    FA_BROKEN_CONTRACT /* our own layers disagree: a bug of fastattn, never of the user */
};

/* Element types: those of query and out are floats; keys and values may be 8-bit integers, masks truth
 * values; masks and biases may have any of them. */
enum fa_type { FA_F32 = 0, FA_F64, FA_F16, FA_BF16, FA_I8, FA_BOOL };

#endif
