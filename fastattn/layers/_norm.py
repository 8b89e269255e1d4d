# SPDX-License-Identifier: MIT
"""Layer normalisation (Ba, Kiros, Hinton 2016, arXiv:1607.06450), in place.

For the Transformer layers. Rows are done some at a time, so that what is made on the way stays in a
cache. It checks nothing.
"""

from __future__ import annotations

import numpy as np

from ._linear import row_blocks


def normalize(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, eps: float) -> None:
    """Make each row of a matrix ``(row - mean) / sqrt(variance + eps) * weight + bias``.

    The variance is that of the row's own numbers (divided by how many there are).
    """
    size = x.shape[1]
    if size == 0:
        return
    with np.errstate(all="ignore"):  # rows of padding may hold anything
        for rows in row_blocks(x):
            rows -= rows.mean(axis=1, keepdims=True)
            variance = np.einsum("ij,ij->i", rows, rows)
            variance /= size
            variance += eps
            np.sqrt(variance, out=variance)
            rows /= variance[:, None]
            rows *= weight
            if bias is not None:
                rows += bias
        np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays behind
