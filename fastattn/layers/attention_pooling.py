# SPDX-License-Identifier: MIT
"""Attention pooling: one vector for a whole sequence, by a query of the layer's own.

For users, through ``fastattn.layers``, and for ``hierarchical``. It keeps and checks weights;
``attention`` and, for packed sequences, ``varlen_attention`` compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _check_arrays as arrays
from .. import _check_options as check
from .. import _validate_varlen, scores
from ..varlen import varlen_attention
from . import _sequences, _token_weights
from ._weights import Weights, checked_input

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class AttentionPooling:
    r"""Sum of the vectors of a sequence, weighted by attention: ``c = sum_t alpha_t x_t``.

    It takes the place of the last state or the mean of a recurrent network's outputs, or of max
    pooling over those of a convolution [1]_, [2]_. With ``alpha = softmax(score)``::

        "dot":       score_t = (x_t @ weight) . query
        "additive":  score_t = query . tanh(x_t @ weight + bias)

    Parameters
    ----------
    score : {"dot", "additive"}
    query : array_like (query_dim,) or (units,), optional
        What the sequence is asked, learned. With ``"dot"`` it may be given at each call instead.
    weight : array_like (dim, query_dim) or (dim, units)
        Float; optional with ``"dot"``, where `query_dim` is `dim` without it.
    bias : array_like (units,), optional
        For ``"additive"`` only.
    final_tanh : bool
        The result is ``tanh(c)``.

    Attributes
    ----------
    dtype : numpy.dtype or None
        That of all weights, and of inputs and outputs. None without any weights: it is then that
        of `x`.

    Raises
    ------
    ValueError, TypeError
        A weight is missing or superfluous, its shape does not fit, or the dtypes differ; the
        message names it.

    References
    ----------
    .. [1] Yang et al.: Hierarchical Attention Networks for Document Classification (2016), NAACL,
       doi:10.18653/v1/N16-1174.
    .. [2] Lin et al.: A Structured Self-attentive Sentence Embedding (2017), arXiv:1703.03130.

    Examples
    --------
    >>> import numpy as np
    >>> from fastattn.layers import AttentionPooling
    >>> rng = np.random.default_rng(0)
    >>> pooling = AttentionPooling(
    ...     score="additive", query=rng.standard_normal(8), weight=rng.standard_normal((5, 8))
    ... )
    >>> pooling
    AttentionPooling(score='additive', dim=5, units=8)
    >>> x = rng.standard_normal((2, 7, 5))
    >>> pooled, weights = pooling(x, lengths=[7, 3], return_weights=True)
    >>> pooled.shape, weights.shape
    ((2, 5), (2, 7))
    >>> pooling(x.reshape(14, 5), cu_seqlens=[0, 7, 10]).shape  # packed: 7 tokens, and 3
    (2, 5)
    """

    __slots__ = ("_name", "_sizes", "_final_tanh", "_dtype", "_kind", "_own")

    _kind: Any  # the score, as `attention` knows it
    _own: np.ndarray | None  # the query of all calls, in the form that the score takes

    def __init__(
        self,
        *,
        score: str = "dot",
        query: ArrayLike | None = None,
        weight: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        final_tanh: bool = False,
    ) -> None:
        if not isinstance(score, str):
            raise TypeError(f"score: expected 'dot' or 'additive', got {type(score).__name__}")
        if score not in ("dot", "additive"):
            raise ValueError(f"score: expected 'dot' or 'additive', got {score!r}")
        self._name = str(score)
        self._final_tanh = check.flag(final_tanh, "final_tanh")
        if score == "dot" and bias is not None:
            raise ValueError(f"bias: expected None with score 'dot', got {type(bias).__name__}")
        for name, given in (("query", query), ("weight", weight)):
            if score == "additive" and given is None:
                raise ValueError(f"{name}: expected an array with score 'additive', got None")
        weights = Weights({"query": query, "weight": weight, "bias": bias})
        self._dtype = weights.dtype if query is not None or weight is not None else None
        make = self._make_dot if score == "dot" else self._make_additive
        self._kind, self._own = make(weights)
        self._sizes = dict(weights.sizes)

    @staticmethod
    def _make_dot(weights: Weights) -> tuple[Any, np.ndarray | None]:
        weight = weights.take("weight", "dim", "query_dim")
        query = weights.take("query", "dim" if weight is None else "query_dim")
        if query is None:
            if weight is None:
                return "dot", None
            return scores.General(np.ascontiguousarray(weight.T)), None
        # (x W) . q is x . (W q): one product with each token. As the one row of a matrix, which a
        # query of 1 picks, it keeps all its digits also where tokens have 16 bits.
        vector = query if weight is None else weight.astype(np.float64) @ query
        vector = arrays.saturated(vector, weights.acc)
        return scores.General(vector[None]), np.ones(1, weights.dtype)

    @staticmethod
    def _make_additive(weights: Weights) -> tuple[Any, np.ndarray]:
        weight = weights.take("weight", "dim", "units")
        query = weights.take("query", "units")
        bias = weights.take("bias", "units")
        # attention_v has the place of the query, and the query of the score is nothing
        own = np.zeros(weights.sizes["units"], weights.dtype)
        return scores.Additive(query, key_weight=weight, hidden_bias=bias), own

    def __call__(
        self,
        x: ArrayLike,
        query: ArrayLike | None = None,
        *,
        lengths: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        cu_seqlens: ArrayLike | None = None,
        return_weights: bool = False,
    ) -> Any:
        """Pool sequences.

        Parameters
        ----------
        x : array_like (..., length, dim)
            In the dtype of the layer; with `cu_seqlens` all sequences packed one after the other,
            ``(tokens, dim)``.
        query : array_like (..., query_dim), optional
            For a ``"dot"`` layer without a query: one a sequence, from another model.
        lengths : int or array_like of int (...), optional
            How many tokens of each sequence are real. What comes after may be anything.
        mask : array_like of bool (..., length), optional
            True = takes part.
        cu_seqlens : array_like of int (sequences + 1,), optional
            Where packed sequences end, after a 0: see `varlen_attention`. Neither `lengths` nor
            `mask` may be given then.
        return_weights : bool
            Also return the weights alpha.

        Returns
        -------
        pooled : ndarray (..., dim)
            With `cu_seqlens` ``(sequences, dim)``. 0 for a sequence without tokens.
        weights : ndarray (..., length)
            If `return_weights`; 0 for tokens that take no part. With `cu_seqlens` ``(tokens,)``.

        Raises
        ------
        ValueError, TypeError
            An argument does not fit; the message names it.
        """
        x = _sequences.sequence(x, "x", self._dtype, self._sizes.get("dim"))
        return_weights = check.flag(return_weights, "return_weights")
        if cu_seqlens is not None:
            for name, given in (("lengths", lengths), ("mask", mask)):
                if given is not None:
                    raise ValueError(
                        f"{name}: expected None with cu_seqlens, got {type(given).__name__}"
                    )
            return self._packed(x, query, cu_seqlens, return_weights)
        lead, n = x.shape[:-2], x.shape[-2]
        queries = self._queries(query, lead, x)
        lengths = _sequences.lengths(lengths, "lengths", lead, n, "x")
        mask = _sequences.taking_part(mask, "mask", x.shape[:-1])
        keys = x[..., None, :, :]  # one head
        got = scores.attention(
            queries[..., None, None, :],
            keys,
            keys,
            score=self._kind,
            kv_lengths=lengths,
            attn_mask=None if mask is None else mask[..., None, None, :],
            return_weights=return_weights,
        )
        if not return_weights:
            return self._finished(got[..., 0, 0, :])
        return self._finished(got[0][..., 0, 0, :]), got[1][..., 0, 0, :]

    def _packed(self, x: np.ndarray, query: Any, cu_seqlens: Any, return_weights: bool) -> Any:
        if x.ndim != 2:
            raise ValueError(f"x: expected 2 axes (tokens, dim) with cu_seqlens, got {x.shape}")
        ends = _validate_varlen.ends(cu_seqlens, "cu_seqlens", len(x), "x")
        n = len(ends) - 1
        queries = np.broadcast_to(self._queries(query, (n,), x), (n, self._query_size(x)))
        keys = x[:, None, :]  # one head
        pooled = varlen_attention(
            queries[:, None, :], keys, keys, np.arange(n + 1), ends, score=self._kind
        )
        pooled = self._finished(pooled[:, 0, :])
        if not return_weights:
            return pooled
        return pooled, _token_weights.of_tokens(x, queries, ends, self._kind)

    def _query_size(self, x: np.ndarray) -> int:
        return self._sizes.get("query_dim", x.shape[1]) if self._own is None else self._own.size

    def _queries(self, query: Any, lead: tuple, x: np.ndarray) -> np.ndarray:
        """One a sequence, or one with leading axes of size 1."""
        if self._own is not None:
            if query is not None:
                more = " (BahdanauAttention takes one)" if self._name == "additive" else ""
                raise ValueError(
                    f"query: expected None at the call of a layer that has its own{more}, got "
                    f"{type(query).__name__}"
                )
            return self._own.reshape((1,) * len(lead) + (-1,))
        if query is None:
            raise ValueError("query: expected an array, as the layer has no query, got None")
        dtype = arrays.float_dtype(x.dtype)
        query = checked_input(query, "query", dtype, self._sizes.get("query_dim", x.shape[-1]))
        if query.shape[:-1] != lead:
            raise ValueError(
                f"query: expected shape {(*lead, query.shape[-1])}, one a sequence, got "
                f"{query.shape}"
            )
        return query

    def _finished(self, pooled: np.ndarray) -> np.ndarray:
        if not self._final_tanh:
            return pooled
        acc = np.float64 if pooled.dtype == np.float64 else np.float32
        return np.tanh(pooled.astype(acc)).astype(pooled.dtype)

    @property
    def dtype(self) -> Any:
        return self._dtype

    def __repr__(self) -> str:
        sizes = "".join(f", {name}={n}" for name, n in self._sizes.items())
        tanh = ", final_tanh=True" if self._final_tanh else ""
        return f"AttentionPooling(score={self._name!r}{sizes}{tanh})"
