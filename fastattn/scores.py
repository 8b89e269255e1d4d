# SPDX-License-Identifier: MIT
"""Kinds of scores, and the function that takes any of them.

For users: ``fastattn.attention(..., score=fastattn.scores.General(W))``. ``_validate_scores``
turns each kind into a call that a backend knows. No score is computed in this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _backend, _validate_scores

if TYPE_CHECKING:
    from typing import Literal

    import numpy as np
    from numpy.typing import ArrayLike

    from ._validate import SdpaCall
    from ._validate_scores import Ends
    from .additive_keys import AdditiveKeys

__all__ = ["Additive", "Concat", "Cosine", "General", "Location", "Score", "attention"]


class Score:
    """What scores have in common: they make a checked call of the arguments of `attention`.

    `ends` tells where the queries and the keys of packed sequences end, if they are that.
    """

    def _call(
        self, query: Any, key: Any, value: Any, options: dict[str, Any], ends: Ends | None = None
    ) -> SdpaCall:
        raise NotImplementedError


@dataclass(frozen=True)
class _Dot(Score):
    scale: Any

    def _call(
        self, query: Any, key: Any, value: Any, options: dict[str, Any], ends: Ends | None = None
    ) -> SdpaCall:
        return _validate_scores.dot(query, key, value, self.scale, options)


@dataclass(frozen=True, eq=False)
class General(Score):
    """``q^T W k`` (Luong, Pham, Manning 2015, arXiv:1508.04025); the sizes may differ.

    Parameters
    ----------
    weight : array_like (query_dim, key_dim)
        Float, that of all heads.
    """

    weight: ArrayLike

    def _call(
        self, query: Any, key: Any, value: Any, options: dict[str, Any], ends: Ends | None = None
    ) -> SdpaCall:
        return _validate_scores.general(query, key, value, self.weight, options, ends)


@dataclass(frozen=True, eq=False)
class Cosine(Score):
    """``q . k / (|q| |k|) / temperature``; with a vector of zeros the score is 0.

    Parameters
    ----------
    temperature : float
        Above 0.
    """

    temperature: float = 1.0

    def _call(
        self, query: Any, key: Any, value: Any, options: dict[str, Any], ends: Ends | None = None
    ) -> SdpaCall:
        return _validate_scores.cosine(query, key, value, self.temperature, options)


@dataclass(frozen=True, eq=False)
class Location(Score):
    """``(W q)_j`` (Luong, Pham, Manning 2015): the score of key j depends on the query alone.

    The key only tells how many there are; the value may be given for it.

    Parameters
    ----------
    weight : array_like (query_dim, columns)
        Float, that of all heads; column j is for key j. There may be more columns than keys.
    """

    weight: ArrayLike

    def _call(
        self, query: Any, key: Any, value: Any, options: dict[str, Any], ends: Ends | None = None
    ) -> SdpaCall:
        return _validate_scores.location(query, key, value, self.weight, options, ends)


@dataclass(frozen=True, eq=False)
class Additive(Score):
    """``v . tanh(q Wq + k Wk + b)`` (Bahdanau, Cho, Bengio 2015, arXiv:1409.0473).

    Parameters
    ----------
    attention_v, query_weight, key_weight, hidden_bias
        As in `additive_attention`, which computes it. The key may be an `AdditiveKeys`.
    """

    attention_v: ArrayLike | None
    query_weight: ArrayLike | None = None
    key_weight: ArrayLike | None = None
    hidden_bias: ArrayLike | None = None

    def _call(
        self, query: Any, key: Any, value: Any, options: dict[str, Any], ends: Ends | None = None
    ) -> SdpaCall:
        return _validate_scores.additive(
            query,
            key,
            value,
            self.attention_v,
            self.query_weight,
            self.key_weight,
            self.hidden_bias,
            options,
            ends,
        )


@dataclass(frozen=True, eq=False)
class Concat(Score):
    """``v . tanh([q; k] W)`` (Luong, Pham, Manning 2015): additive, with the two halves of W.

    Parameters
    ----------
    weight : array_like (query_dim + key_dim, hidden)
        Float: first the rows for the query, then those for the key.
    attention_v : array_like (hidden,) or (heads, hidden), or None
        As in `additive_attention`.
    """

    weight: ArrayLike
    attention_v: ArrayLike | None

    def _call(
        self, query: Any, key: Any, value: Any, options: dict[str, Any], ends: Ends | None = None
    ) -> SdpaCall:
        return _validate_scores.concat(
            query, key, value, self.weight, self.attention_v, options, ends
        )


_NAMED: dict[str, Score] = {"dot": _Dot(1.0), "scaled_dot": _Dot(None), "cosine": Cosine()}


def attention(
    query: ArrayLike,
    key: ArrayLike | AdditiveKeys,
    value: ArrayLike,
    *,
    score: Literal["dot", "scaled_dot", "cosine"] | Score = "scaled_dot",
    attn_mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    is_causal: bool = False,
    q_offset: ArrayLike | Literal["lower_right"] = 0,
    kv_lengths: ArrayLike | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    softcap: float | None = 0.0,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    layout: Literal["bhsd", "bshd"] = "bhsd",
    out: np.ndarray | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
) -> Any:
    """Attention with any kind of score: ``softmax(score(query, key)) @ value``.

    Parameters
    ----------
    query : array_like (..., heads, queries, query_dim)
    key : array_like (..., kv_heads, keys, key_dim)
    value : array_like (..., kv_heads, keys, value_dim)
        As in `scaled_dot_product_attention`.
    score : {"dot", "scaled_dot", "cosine"} or Score
        ``q . k``, ``q . k / sqrt(dim)``, ``q . k / (|q| |k|)``, or an object of
        ``fastattn.scores``: `General`, `Cosine`, `Location`, `Additive`, `Concat`. `query_dim` and
        `key_dim` are equal but for general, additive, concat and location scores.
    attn_mask, bias, is_causal, q_offset, kv_lengths, window, softcap, alibi_slopes, sinks
        As in `scaled_dot_product_attention`. Additive and concat scores take neither softcap nor
        slopes.
    layout, out, return_lse, return_weights
        As in `scaled_dot_product_attention`.

    Returns
    -------
    out : ndarray (..., heads, queries, value_dim)
    lse : ndarray (..., heads, queries)
        If `return_lse`.
    weights : ndarray (..., heads, queries, keys)
        If `return_weights`. All as in `scaled_dot_product_attention`.

    Raises
    ------
    ValueError, TypeError, MemoryError
        As in `scaled_dot_product_attention`, with the names of the score's parameters as well.

    Notes
    -----
    The scores of all kinds are computed block by block. Float parameters of any dtype are
    converted to that of the scores.

    Examples
    --------
    >>> import numpy as np
    >>> import fastattn
    >>> rng = np.random.default_rng(0)
    >>> query, key = rng.standard_normal((2, 3, 20)), rng.standard_normal((2, 7, 30))
    >>> score = fastattn.scores.General(rng.standard_normal((20, 30)))
    >>> fastattn.attention(query, key, key, score=score).shape
    (2, 3, 30)
    """
    options = {
        "attn_mask": attn_mask,
        "bias": bias,
        "is_causal": is_causal,
        "q_offset": q_offset,
        "kv_lengths": kv_lengths,
        "window": window,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "layout": layout,
        "out": out,
        "return_lse": return_lse,
        "return_weights": return_weights,
    }
    call = checked(score, query, key, value, options)
    _backend.compute(call)
    return call.finish()


def checked(score: Any, query: Any, key: Any, value: Any, options: dict[str, Any]) -> SdpaCall:
    """The checked call of any kind of score; `options` are the others of `attention`, by name."""
    return known(score)._call(query, key, value, options)


def known(score: Any, scale: Any = None) -> Score:
    """The kind of score that the argument is; only the scaled dot product can have a scale."""
    kind = _NAMED.get(score) if isinstance(score, str) else score
    if not isinstance(kind, Score):
        raise _validate_scores.unknown(score, list(_NAMED))
    if scale is None:
        return kind
    if kind is not _NAMED["scaled_dot"]:
        raise ValueError(f"scale: expected None with score {score!r:.40}, got {scale!r:.40}")
    return _Dot(scale)
