# SPDX-License-Identifier: MIT
"""What layers are called with: sequences, pairs of them, how long they really are, masks.

For the layers of this package, beside ``_weights``. Every message names the layer's own argument.
It computes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _check_arrays as arrays
from .. import _check_options as check
from ._weights import checked_input


def sequence(x: Any, name: str, dtype: Any, size: int | None = None) -> np.ndarray:
    """An array (..., length, size) in the dtype of a layer; None takes any of either."""
    array = arrays.as_array(x, name)
    if dtype is None:
        dtype = arrays.float_dtype(array.dtype)
        if dtype is None:
            raise TypeError(f"{name}: expected dtype {arrays.DTYPES}, got {array.dtype}")
    array = checked_input(array, name, dtype, size)
    if array.ndim < 2:
        raise ValueError(
            f"{name}: expected at least 2 axes (length, features), got shape {array.shape}"
        )
    return array


def pair(
    x: Any, y: Any, names: tuple[str, str], dtype: Any = None, sizes: tuple[Any, Any] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of one dtype with the same leading axes.

    `dtype` None takes any; `sizes` None takes any that are equal, else they are those of the last
    axes.
    """
    x = sequence(x, names[0], dtype, None if sizes is None else sizes[0])
    y = sequence(y, names[1], None, None if sizes is None else sizes[1])
    for_both, found = arrays.float_dtype(x.dtype), arrays.float_dtype(y.dtype)
    if found != for_both:
        raise TypeError(f"{names[1]}: expected dtype {for_both} to match {names[0]}, got {found}")
    if sizes is None and y.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"{names[1]}: expected a last axis of size {x.shape[-1]} to match {names[0]}, got "
            f"shape {y.shape}"
        )
    if y.shape[:-2] != x.shape[:-2]:
        raise ValueError(
            f"{names[1]}: expected leading axes {x.shape[:-2]} to match {names[0]}, got shape "
            f"{y.shape}"
        )
    return x, y


def lengths(given: Any, name: str, lead: tuple, most: int, of: str) -> np.ndarray | None:
    """How long each sequence of `of` really is, as int64 of shape `lead`; None for all of it."""
    if given is None:
        return None
    return check.counts(given, name, lead, most, f"the length of {of}").reshape(lead)


def real(lengths: np.ndarray | None, n: int) -> np.ndarray:
    """Which of n places are within the lengths: bool (..., n)."""
    places = np.arange(n)
    return np.ones(n, bool) if lengths is None else places < lengths[..., None]


def taking_part(mask: Any, name: str, shape: tuple) -> np.ndarray | None:
    """A bool mask as a view of this shape."""
    if mask is None:
        return None
    array = arrays.as_array(mask, name)
    if array.dtype.kind != "b":
        raise TypeError(f"{name}: expected dtype bool (True: takes part), got {array.dtype}")
    fits = array.ndim <= len(shape)
    if not fits or any(n not in (1, m) for n, m in zip(array.shape[::-1], shape[::-1])):
        raise ValueError(f"{name}: expected a shape that broadcasts to {shape}, got {array.shape}")
    return np.broadcast_to(array, shape)
