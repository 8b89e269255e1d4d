# SPDX-License-Identifier: MIT
"""Rows times a weight, plus a bias: one product of a BLAS for all rows there are.

For the layers where speed counts: the bits of a row may depend on how many there are (see
``_projection`` for products where they do not). It checks nothing.
"""

from __future__ import annotations

import math

import numpy as np

_BLOCK = 1 << 16  # numbers that are worked on at once: they stay in a cache


def flat(x: np.ndarray, acc: np.dtype) -> np.ndarray:
    """``(..., size)`` as a matrix of `acc`; a view where that can be."""
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return rows if rows.dtype == acc else rows.astype(acc)


def linear(rows: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """``rows @ weight + bias`` of matrices of one dtype, in fresh memory."""
    with np.errstate(all="ignore"):  # rows of padding may hold anything
        result = np.matmul(rows, weight)
        if bias is not None:
            result += bias
        np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays behind
    return result


def row_blocks(rows: np.ndarray) -> list[np.ndarray]:
    """Views of some rows each, for what passes over them more than once."""
    step = max(1, _BLOCK // max(1, rows.shape[-1]))
    return [rows[first : first + step] for first in range(0, len(rows), step)]
