/* SPDX-License-Identifier: MIT
 * The backends compiled in, from isa/isa_list.h: index, name, needs, kernel tables.
 * Used by the drivers of ops/.  Keeps no current backend: the caller passes an index. */
#ifndef FA_BACKEND_H
#define FA_BACKEND_H

#include "fastattn.h"
#include "kernels/kernels.h"

/* The kernels of a backend for calls whose result has this type: doubles for FA_F64, else floats.  NULL
 * where there is no backend of that index or this machine cannot run it. */
const fa_kernels *fa_backend_get(int index, int type);

#endif
