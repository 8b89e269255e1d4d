/* SPDX-License-Identifier: MIT
 * All kernels of one element type.
 * Used by kernels/elements.tmpl.h. */

#include "kernels/pack.tmpl.h"

#include "kernels/in_place.tmpl.h"

#include "kernels/rows.tmpl.h"
