# SPDX-License-Identifier: MIT
"""One step's windows, taken out of a memory: for what else would be done with every key.

For ``luong`` with scores that project keys, or a memory that is converted. Which keys a window has
is decided here then, as ``local_attention`` decides it. It computes no attention.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._forms import Form


def places(form: Form, centers: np.ndarray, half_width: float) -> np.ndarray | None:
    """The keys that may be in the window of each entry, (..., 1, 1, n); None if that is all.

    Their number depends on the width alone, so that no entry's bits depend on another's window.
    """
    n = form.n_keys if half_width >= form.n_keys else math.floor(2.0 * half_width) + 1
    if n >= form.n_keys:
        return None
    first = np.clip(np.ceil(centers - half_width), 0, form.n_keys - n).astype(np.int64)
    return first[..., None] + np.arange(n)


def take(form: Form, memory: np.ndarray, places: np.ndarray) -> np.ndarray:
    """These keys of (..., 1, keys, dim)."""
    memory = np.broadcast_to(memory, (*form.lead, *memory.shape[-3:]))
    return np.take_along_axis(memory, places.swapaxes(-1, -2), axis=-2)


def masks(
    form: Form,
    centers: np.ndarray,
    half_width: float,
    lengths: np.ndarray | None,
    mask: np.ndarray | None,
    places: np.ndarray,
) -> dict[str, Any]:
    """The options that hide of these keys what is outside of windows and sequences, or masked."""
    c = centers[..., None]
    sees = (places >= c - half_width) & (places <= c + half_width)
    if lengths is not None:
        sees &= places < lengths[..., None, None, None]
    made: dict[str, Any] = {"kv_lengths": None, "attn_mask": sees}
    if mask is not None:
        mask = np.broadcast_to(mask, (*form.lead, 1, 1, form.n_keys))
        mask = np.take_along_axis(mask, places, axis=-1)
        if mask.dtype.kind == "b":
            sees &= mask
        else:
            made["bias"] = mask
    return made


def spread(form: Form, weights: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Weights of these keys as weights of all: (..., 1, 1, keys)."""
    result = np.zeros((*form.lead, 1, 1, form.n_keys), weights.dtype)
    np.put_along_axis(result, places, weights, axis=-1)
    return result
