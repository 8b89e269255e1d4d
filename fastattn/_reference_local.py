# SPDX-License-Identifier: MIT
"""Local attention with NumPy: the windows, and the Gaussian.

For ``_reference``, which computes the rest. Everything here is per row: an array of centers comes
in, arrays of the same shape (or with an axis of keys) go out.
"""

from __future__ import annotations

import numpy as np

_FAR = float(1 << 60)  # beyond any key, and still an int64
_MOST_ROWS = 64


def windows(centers: np.ndarray, half_width: float) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last key that each row may see; they may lie beyond the sequence."""
    first, last = np.ceil(centers - half_width), np.floor(centers + half_width)
    first, last = np.clip(first, -_FAR, _FAR), np.clip(last, -_FAR, _FAR)
    return first.astype(np.int64), last.astype(np.int64)


def near_rows(
    centers: np.ndarray, half_width: float, n_keys: int, most_scores: int
) -> list[np.ndarray]:
    """The rows of one head, in blocks whose windows lie so close that few keys are between them;
    blocks of more than one row have about `most_scores` scores, at most."""
    order = np.argsort(centers, kind="stable")
    reach = max(64.0, 2.0 * half_width)
    keys = min(float(n_keys), reach + 2.0 * half_width + 1.0)
    most_rows = max(1, min(_MOST_ROWS, int(most_scores / keys)))
    starts: list[int] = []
    for n, center in enumerate(centers[order]):
        if not starts or n - starts[-1] >= most_rows or center - centers[order[starts[-1]]] > reach:
            starts.append(n)
    return np.split(order, starts[1:]) if starts else []


def gaussian(centers: np.ndarray, sigma: float, keys: slice, dtype: np.dtype) -> np.ndarray:
    """What the weights of some keys are multiplied by: (..., keys)."""
    distance = np.arange(keys.start, keys.stop) - centers[..., None]
    return np.exp(-0.5 * (distance / sigma) ** 2).astype(dtype)
