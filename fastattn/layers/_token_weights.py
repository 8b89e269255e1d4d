# SPDX-License-Identifier: MIT
"""The weights of packed tokens: a softmax over each sequence on its own.

For ``attention_pooling``, when weights are asked for: the packed call itself returns none. Scores
are made again, token by token, and normalised by their own sums: so weights add up to 1 however
large the scores are. It never makes an array of sequences times tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import scores
from .._check_arrays import FLOAT32, FLOAT64, float_dtype
from .._projection import project

_BLOCK = 1 << 16  # numbers that are worked on at once: they stay in a cache


def of_tokens(x: np.ndarray, queries: np.ndarray, ends: np.ndarray, score: Any) -> np.ndarray:
    """Weights (tokens,) in the dtype of `x` (tokens, dim), 0 past the last sequence.

    `queries` (sequences, size) are those of the call with this score: dot products of any kind,
    or additive ones.
    """
    dtype = float_dtype(x.dtype)
    acc = FLOAT64 if dtype == FLOAT64 else FLOAT32
    used = int(ends[-1])
    sequences = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    result = np.zeros(len(x), dtype)
    with np.errstate(all="ignore"):
        if isinstance(score, scores.Additive):
            vector = np.asarray(score.attention_v, np.float64)
            size = vector.size
            hidden = project(x[None, :used], score.key_weight, score.hidden_bias, acc, ends)[0]
        else:
            weight = score.weight if isinstance(score, scores.General) else None
            queries = project(queries[:, None], weight, None, acc)[:, 0]  # each alone
            size = x.shape[1]
        logits = np.empty(used)
        step = max(1, _BLOCK // max(1, size))
        for first in range(0, used, step):
            some = slice(first, min(first + step, used))
            if isinstance(score, scores.Additive):
                bent = np.tanh(hidden[some]).astype(np.float64, copy=False)
                logits[some] = np.einsum("tu,u->t", bent, vector)  # bits that need no neighbours
            else:
                of_each = queries[sequences[some]].astype(np.float64)
                logits[some] = np.einsum("td,td->t", x[some].astype(np.float64), of_each)
        result[:used] = _softmax(logits, ends)
        np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays behind
    return result


def _softmax(logits: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Over each of the sequences that end there; a NaN stays in its own."""
    lengths = np.diff(ends)
    lengths = lengths[lengths > 0]  # an empty one would get its neighbour's first number
    if len(lengths) == 0:
        return logits
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    top = np.maximum.reduceat(logits, starts)
    weights = np.exp(logits - np.repeat(top, lengths))
    return weights / np.repeat(np.add.reduceat(weights, starts), lengths)
