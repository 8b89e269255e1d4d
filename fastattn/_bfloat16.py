# SPDX-License-Identifier: MIT
"""bfloat16 numbers without a package for them: two bytes that say what they are.

For tensors of frameworks, whose bfloat16 NumPy does not know (``integrations``), and for what
computes with them in NumPy. Compiled kernels take arrays of `BFLOAT16` as they lie; users' own
arrays have the dtype of ``ml_dtypes``, with which this one never meets in a call.
"""

from __future__ import annotations

import numpy as np


class bfloat16(np.void):
    """The upper half of a float32. NumPy moves such elements, and computes nothing with them."""


BFLOAT16 = np.dtype((bfloat16, 2))


def widened(a: np.ndarray) -> np.ndarray:
    """The same values in float32, repeating axes still repeat; other dtypes are left alone."""
    if a.dtype.type is not bfloat16:
        return a
    once = a[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in a.strides)]
    wide = (once.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return wide if wide.shape == a.shape else np.broadcast_to(wide, a.shape)


def round_to(out: np.ndarray, wide: np.ndarray) -> None:
    """Write float32 numbers to an array of `BFLOAT16`: the nearest, or of two the even one."""
    bits = wide.view(np.uint32)
    upper = bits >> 16
    # half of the last place, less one bit where that place is even: only a tie feels it
    rounded = (bits + (0x7FFF + (upper & 1))) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded[is_nan] = upper[is_nan] | 0x40  # which rounding would carry into infinity, or cut off
    out.view(np.uint16)[...] = rounded
