# SPDX-License-Identifier: MIT
"""What 8-bit caches keep: each token of each head as integers of at most 127, times a scale.

For the caches. It decides nothing about storage, and undoes nothing: the kernels multiply.
"""

from __future__ import annotations

import numpy as np

from ._check_arrays import FLOAT32, ndarray

INT8 = np.dtype(np.int8)
_MOST = 127


def quantized(rows: ndarray) -> tuple[ndarray, ndarray]:
    """Rows ``(..., dim)`` of floats as int8 of the same shape, and float32 scales ``(..., 1)``.

    A scale is the largest absolute value of its row over 127, a number the nearest multiple of it
    (ties to even), so within ``max|x| / 254`` (rows below 1e-36, whose scales are subnormal, within
    1e-38 more). Rows of zeros have scale 0. Rows that hold NaN or
    infinity have scale NaN: they are NaN as a whole.
    """
    with np.errstate(all="ignore"):
        x = rows.astype(FLOAT32, copy=False)
        scales = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
        scales[~np.isfinite(scales)] = np.nan
        scales /= FLOAT32.type(_MOST)
        # not times 1 / scale, which would round twice; 0 / 0 is no integer, and neither is NaN
        numbers = np.nan_to_num(x / scales, copy=False, nan=0.0)
        np.clip(np.rint(numbers, out=numbers), -_MOST, _MOST, out=numbers)
        quantized = numbers.astype(INT8)
        np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays behind
    return quantized, scales
