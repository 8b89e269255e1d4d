# SPDX-License-Identifier: MIT
"""The two forms of a decoder's call: one query for each entry of the batch, or a sequence of them.

For ``bahdanau`` and ``luong``: what they are called with becomes what the functions of the package
take, with an axis of one head, and their results become what the caller expects.
It computes no attention and knows no scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _check_arrays as arrays
from .. import _check_options as check


class Form:
    """One call's axes, checked.

    Attributes
    ----------
    is_step : bool
        There is one query an entry, and it has no axis.
    query : ndarray (..., 1, queries, query_dim)
    lead : tuple of int
        The leading axes of the result.
    n_queries, n_keys : int
    """

    __slots__ = ("is_step", "lead", "n_keys", "n_queries", "query")

    def __init__(self, query: np.ndarray, memory_shape: tuple[int, ...]) -> None:
        rank = len(memory_shape)
        if query.ndim not in (rank - 1, rank):
            raise ValueError(
                f"query: expected {rank - 1} axes (one step) or {rank} (a sequence of steps) for "
                f"a memory of shape {memory_shape}, got shape {query.shape}"
            )
        self.is_step = query.ndim == rank - 1
        self.query = query[..., None, None, :] if self.is_step else query[..., None, :, :]
        self.n_queries = self.query.shape[-2]
        self.n_keys = memory_shape[-2]
        self.lead = broadcast_lead("query", self.query.shape[:-3], "memory", memory_shape[:-2])

    def lengths(self, x: Any) -> np.ndarray | None:
        """`memory_lengths` with the leading axes of the result."""
        if x is None:
            return None
        most = self.n_keys
        counts = check.counts(x, "memory_lengths", self.lead, most, "the number of keys")
        return counts.reshape(self.lead)

    def mask(self, x: Any) -> np.ndarray | None:
        """`attn_mask` with an axis for the head, and in a step one for the query."""
        if x is None:
            return None
        mask = checked_mask(x, "attn_mask", self.weights_shape)
        if self.is_step:
            return mask if mask.ndim == 0 else mask[..., None, None, :]
        return mask if mask.ndim < 2 else mask[..., None, :, :]

    @property
    def weights_shape(self) -> tuple[int, ...]:
        """That of the weights, as the caller sees them."""
        rows = () if self.is_step else (self.n_queries,)
        return (*self.lead, *rows, self.n_keys)

    def result(self, out: np.ndarray) -> np.ndarray:
        """Without the axes that were added."""
        return out[..., 0, 0, :] if self.is_step else out[..., 0, :, :]


def memory_array(x: Any, name: str = "memory") -> np.ndarray:
    """What must have at least the axes of keys and features."""
    array = arrays.as_array(x, name)
    if array.ndim < 2:
        raise ValueError(
            f"{name}: expected at least 2 axes (..., keys, features), got shape {array.shape}"
        )
    return array


def broadcast_lead(name: str, lead: tuple, other: str, other_lead: tuple) -> tuple[int, ...]:
    """The leading axes of both."""
    if lead == other_lead:
        return lead
    try:
        return np.broadcast_shapes(lead, other_lead)
    except ValueError:
        raise ValueError(
            f"{name}: expected leading axes that broadcast with those of {other}, {other_lead}, "
            f"got {lead}"
        ) from None


def checked_mask(x: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A mask, bool or float, that broadcasts to `shape`."""
    mask = arrays.as_array(x, name)
    if (
        mask.dtype.kind != "b"
        and arrays.float_dtype(mask.dtype) is None
        and mask.dtype.type is not np.longdouble
    ):
        raise TypeError(
            f"{name}: expected dtype bool (True: may attend) or float (added), got {mask.dtype}"
        )
    fits = mask.ndim <= len(shape)
    fits = fits and all(n in (1, m) for n, m in zip(mask.shape[::-1], shape[::-1]))
    if not fits:
        raise ValueError(f"{name}: expected a shape that broadcasts to {shape}, got {mask.shape}")
    return mask
