# SPDX-License-Identifier: MIT
# The formulas of all kinds of scores in wide floats, and random scores of each kind.
# Used by test_scores.py and the tests of hard, local and cosine attention.
# It never calls fastattn to find an expected value; the additive formula is check_additive.py's.
"""score="..." and the objects of fastattn.scores, as functions for the oracle of check.py."""

from __future__ import annotations

import check_additive
import numpy as np
from check import SCORE_ERROR, accumulator, draw

from fastattn import scores

KINDS = ["dot", "scaled", "cosine", "general", "location"]
ALL_KINDS = [*KINDS, "additive", "concat"]


def _dot(q, k):
    return q @ k.swapaxes(-1, -2), abs(q) @ abs(k).swapaxes(-1, -2)


def _unit(x):
    """Rows of length 1, and zeros for zeros, whatever their size."""
    top = abs(x).max(axis=-1, keepdims=True, initial=0)
    x = x / np.where(top == 0, 1, top)
    length = np.sqrt((x**2).sum(axis=-1, keepdims=True))
    return x / np.where(length == 0, 1, length)


def _plain(score, dtype):
    acc = accumulator(dtype)

    def of(parameter, wide):
        return np.asarray(parameter).astype(acc).astype(wide)

    def scaled(q, k, wide):
        return tuple(x / np.sqrt(wide(q.shape[-1])) for x in _dot(q, k))

    def general(q, k, wide):
        weight = of(score.weight, wide)
        size = abs(q) @ abs(weight) @ abs(k).swapaxes(-1, -2)
        return q @ weight @ k.swapaxes(-1, -2), 2 * size

    def cosine(q, k, wide):
        temperature = getattr(score, "temperature", 1.0)
        s, size = _dot(_unit(q), _unit(k))
        return s / temperature, (2 + size) / temperature

    def location(q, k, wide):
        weight = of(score.weight, wide)[:, : k.shape[2]]
        return q @ weight, 2 * (abs(q) @ abs(weight))

    def additive(q, k, wide):
        if isinstance(score, scores.Concat):
            halves = np.split(np.asarray(score.weight), [q.shape[-1]])
            parameters = (score.attention_v, *halves, None)
        else:
            parameters = (
                score.attention_v, score.query_weight, score.key_weight, score.hidden_bias
            )  # fmt: skip
        s, error = check_additive.scores(q, k, *parameters, wide, dtype)
        return s, error / SCORE_ERROR[acc.name]

    kinds = {"dot": lambda q, k, wide: _dot(q, k), "scaled_dot": scaled, "cosine": cosine}
    kinds |= {scores.General: general, scores.Cosine: cosine, scores.Location: location}
    kinds |= {scores.Additive: additive, scores.Concat: additive}
    return kinds[score if isinstance(score, str) else type(score)]


def wide_scores(score, dtype, softcap=0.0):
    """The score function for check.attend: (N, H, S, dim) to scores and their sizes."""
    plain = _plain(score, dtype)

    def capped(q, k, wide):
        s, size = plain(q, k, wide)
        bent = np.tanh(s / softcap)
        return softcap * bent, size * (1 - bent**2) + softcap * abs(bent)

    return capped if softcap else plain


def some_score(rng, kind, dtype, dim, key_dim, keys):
    """(score, size of its keys) of the kind, for queries of size `dim`."""
    return {
        "dot": lambda: ("dot", dim),
        "scaled": lambda: ("scaled_dot", dim),
        "cosine": lambda: (scores.Cosine(0.3), dim),
        "general": lambda: (scores.General(draw(rng, (dim, key_dim), dtype, 0.4)), key_dim),
        "location": lambda: (scores.Location(draw(rng, (dim, keys + 2), dtype)), key_dim),
        "additive": lambda: (
            scores.Additive(
                draw(rng, 11, dtype), draw(rng, (dim, 11), dtype, 0.4),
                draw(rng, (key_dim, 11), dtype, 0.4), draw(rng, 11, dtype),
            ),
            key_dim,
        ),
        "concat": lambda: (
            scores.Concat(draw(rng, (dim + key_dim, 11), dtype, 0.4), draw(rng, 11, dtype)),
            key_dim,
        ),
    }[kind]()  # fmt: skip
