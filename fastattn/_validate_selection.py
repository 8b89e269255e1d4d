# SPDX-License-Identifier: MIT
"""Checks of hard and of local attention: what their calls have besides those of all scores.

For ``hard`` and ``local``, which complete a checked call with it; it computes no attention.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _check_arrays as arrays
from . import _check_options as check
from ._check_arrays import FLOAT64, INT64, float_dtype, ndarray
from ._validate import Hard, Local, SdpaCall


def local(call: SdpaCall, centers: Any, half_width: Any, sigma: Any) -> None:
    """Add checked windows to a call."""
    shape = call.out.shape[:-1]
    rank = 1 if call._is_flat else len(shape)
    a = arrays.as_array(centers, "centers")
    if a.dtype.kind not in "fiu" and float_dtype(a.dtype) is None:
        raise TypeError(f"centers: expected real numbers, got dtype {a.dtype}")
    fits = a.ndim <= rank and all(n in (1, m) for n, m in zip(a.shape[::-1], shape[::-1]))
    if not fits:
        raise ValueError(
            f"centers: expected a shape that broadcasts to {shape[-rank:]}, one number for each "
            f"query, got {a.shape}"
        )
    with np.errstate(all="ignore"):
        a = a.astype(FLOAT64)  # in any case fresh memory: the caller may change the array meanwhile
        is_finite = bool(np.isfinite(a).all())
        np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays behind
    if not is_finite:
        raise ValueError("centers: expected finite numbers, got NaN or infinity among them")
    half_width = check.real(half_width, "half_width")
    if half_width < 0.0:
        raise ValueError(f"half_width: expected a number of at least 0, got {half_width}")
    if sigma is not None:
        sigma = check.real(sigma, "sigma")
        if sigma <= 0.0:
            raise ValueError(f"sigma: expected a number above 0, or None, got {sigma}")
    call.local = Local()
    call.local.centers = np.ascontiguousarray(np.broadcast_to(a, shape))
    call.local.half_width = half_width
    call.local.sigma = 0.0 if sigma is None else sigma


def hard(call: SdpaCall, sample: Any, return_indices: Any) -> ndarray | None:
    """Make a call one that takes a single key, drawn with the generator if there is one.

    Returns the array that will tell the keys, of the caller's rank, if it is wanted.
    """
    if return_indices is not False and return_indices is not True:
        return_indices = check.flag(return_indices, "return_indices")
    if sample is not None and not isinstance(sample, np.random.Generator):
        raise TypeError(
            f"sample: expected a numpy.random.Generator or None, got {type(sample).__name__}"
        )
    shape = call.out.shape[:-1]
    call.hard = Hard()
    call.hard.indices = arrays.empty(shape, INT64)
    call.hard.draws = None if sample is None else sample.random(shape)
    if not return_indices:
        return None
    return call.hard.indices[0] if call._is_flat else call.hard.indices
