/* SPDX-License-Identifier: MIT
 * The kernels compiled one lane wide, for every machine.
 * Used through the table fa_kernels__scalar.  Holds no code of its own. */
#include "base/region.h"
#include "kernels/kernels.h"
#include "vec/real.h"

#define FA_ISA scalar
#include "vec/scalar.h"

#include "kernels/all.tmpl.h"
