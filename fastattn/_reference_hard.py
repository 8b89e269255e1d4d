# SPDX-License-Identifier: MIT
"""Hard attention with NumPy: one key for each row of a block of scores.

For ``_reference``, which makes the scores and hides what must not be seen.
"""

from __future__ import annotations

import numpy as np


def pick(
    scores: np.ndarray,
    hidden: np.ndarray | None,
    values: np.ndarray,
    first_key: int,
    draws: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The keys (heads, rows), -1 for none, and their values (heads, rows, dim).

    `scores` is (heads, rows, keys), -inf where `hidden`; the first of the keys is `first_key`, and
    `values` (keys, dim) are theirs. `draws` (heads, rows) are numbers of [0, 1), or None for the
    largest score.
    """
    if scores.shape[-1] == 0:
        shape = scores.shape[:-1]
        return np.full(shape, -1), np.zeros((*shape, values.shape[-1]), values.dtype)
    seen = np.broadcast_to(True, scores.shape) if hidden is None else ~hidden
    seen = np.broadcast_to(seen, scores.shape)
    at = scores.argmax(axis=-1)  # the first NaN, if there is one
    top = np.take_along_axis(scores, at[..., None], axis=-1)[..., 0]
    # a row may see nothing but scores that are -inf themselves
    at = np.where(top == -np.inf, seen.argmax(axis=-1), at)
    if draws is not None:  # a row with an infinite score has nothing to draw
        at = np.where(np.isfinite(top), _drawn(scores, top, draws), at)
    is_empty = ~seen.any(axis=-1)
    out = values[at]
    out[np.isnan(top)] = np.nan
    out[is_empty] = 0
    return np.where(is_empty, -1, first_key + at), out


def _drawn(scores: np.ndarray, top: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Where the sum of the weights first exceeds the number of the row."""
    weights = np.exp((scores - top[..., None]).astype(np.float64))
    sums = weights.cumsum(axis=-1)
    is_past = sums > (draws * sums[..., -1])[..., None]
    # what rounding leaves over falls to the last key that has weight
    last = weights.shape[-1] - 1 - (weights[..., ::-1] > 0.0).argmax(axis=-1)
    return np.where(is_past.any(axis=-1), is_past.argmax(axis=-1), last)
