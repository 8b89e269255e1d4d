# SPDX-License-Identifier: MIT
"""Two texts side by side: checked, and how well their tokens match, some rows at a time.

For ``abcnn``. It keeps nothing of what it hands out, and never holds more than a block of the
differences of all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import _check_arrays as arrays
from . import _sequences

_BLOCK = 1 << 17  # differences at once: half a MiB of float32, which most caches hold


class Texts:
    """Two texts, checked, and their matrix, some rows at a time."""

    def __init__(
        self, x: Any, y: Any, x_lengths: Any, y_lengths: Any, dtype: Any = None, dim: Any = None
    ) -> None:
        sizes = None if dim is None else (dim, dim)
        self.x, self.y = _sequences.pair(x, y, ("x", "y"), dtype, sizes)
        self.dtype = arrays.float_dtype(self.x.dtype)
        self.acc = arrays.FLOAT64 if self.dtype == arrays.FLOAT64 else arrays.FLOAT32
        lead, n_x, n_y = self.x.shape[:-2], self.x.shape[-2], self.y.shape[-2]
        x_lengths = _sequences.lengths(x_lengths, "x_lengths", lead, n_x, "x")
        y_lengths = _sequences.lengths(y_lengths, "y_lengths", lead, n_y, "y")
        self.x_real = np.broadcast_to(_sequences.real(x_lengths, n_x), (*lead, n_x))
        self.y_real = np.broadcast_to(_sequences.real(y_lengths, n_y), (*lead, n_y))

    def matches(self) -> Iterator[tuple[tuple, slice, np.ndarray]]:
        """(entry, rows, their matrix (rows, y_length)); all rows of all entries, once."""
        n_x, n_y, dim = self.x.shape[-2], *self.y.shape[-2:]
        step = max(1, _BLOCK // max(1, n_y * dim))
        for entry in np.ndindex(self.x.shape[:-2]):
            x, y = (text[entry].astype(self.acc, order="C") for text in (self.x, self.y))
            for first in range(0, n_x, step):
                rows = slice(first, min(first + step, n_x))
                real = self.x_real[entry][rows, None] & self.y_real[entry]
                with np.errstate(all="ignore"):
                    apart = x[rows, None, :] - y
                    apart *= apart
                    match = 1 / (1 + np.sqrt(apart.sum(axis=-1)))
                yield entry, rows, np.where(real, match, self.acc.type(0))
