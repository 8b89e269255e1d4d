/* SPDX-License-Identifier: MIT
 * The kernels of doubles compiled one lane wide, for every machine.
 * Used through the table fa_kernels__scalar_f64.  Holds no code of its own. */
#define FA_REAL_F64
#include "base/region.h"
#include "kernels/kernels.h"
#include "vec/real.h"

#define FA_ISA scalar_f64
#include "vec/scalar.h"

#include "kernels/all.tmpl.h"
