/* SPDX-License-Identifier: MIT
 * All kernels of one element type; types that are read only have no ve_store.
 * Used by kernels/elements.tmpl.h. */

#include "kernels/pack.tmpl.h"

#include "kernels/in_place.tmpl.h"

#ifdef ve_store
#include "kernels/rows.tmpl.h"
#endif
