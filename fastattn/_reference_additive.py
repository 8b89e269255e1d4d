# SPDX-License-Identifier: MIT
"""Additive scores with NumPy: the tanh of every sum, as the formula says.

For ``_backend``, like ``_reference``, which does all that comes after the scores.
It never holds more than a block of tanh values, and uses no identity to save any of them.
"""

from __future__ import annotations

import numpy as np

from . import _reference
from ._reference import Entry, compute
from ._validate_additive import AdditiveCall
from ._validate_varlen import VarlenCall

_BLOCK = 1 << 17  # values of tanh at once: half a MiB of float32, which most caches hold


def additive(call: AdditiveCall) -> None:
    """Fill ``call.out`` and, where asked for, ``call.lse`` and ``call.weights``."""
    compute(call, _AdditiveEntry)


def varlen(call: VarlenCall) -> None:
    """The same for each of its sequences."""
    _reference.varlen(call, _AdditiveEntry)


class _AdditiveEntry(Entry):
    """An entry whose scores are ``sum_u a_u tanh(q_iu + k_ju)``."""

    call: AdditiveCall

    def _scores(self, heads: slice, rows: slice | np.ndarray, key: np.ndarray) -> np.ndarray:
        query = self.query[heads, rows]
        n_heads, n_rows, size = query.shape
        n_keys = key.shape[0]
        scores = np.empty((n_heads, n_rows, n_keys), self.acc)
        vectors = np.broadcast_to(self.call.attention_v, (self.query.shape[0], size))[heads]
        key_block = max(1, min(n_keys, _BLOCK // max(1, size)))
        row_block = max(1, _BLOCK // max(1, key_block * size))
        for head, vector in enumerate(vectors):
            for first_row in range(0, n_rows, row_block):
                some_rows = slice(first_row, first_row + row_block)
                for first_key in range(0, n_keys, key_block):
                    some_keys = slice(first_key, first_key + key_block)
                    # a sum beyond the float range is infinite, and its tanh is 1
                    terms = query[head, some_rows, None, :] + key[some_keys]
                    np.tanh(terms, out=terms)
                    terms *= vector
                    # NumPy adds by pairs along the last axis: the error grows with log(size)
                    scores[head, some_rows, some_keys] = terms.sum(axis=-1)
        return scores
