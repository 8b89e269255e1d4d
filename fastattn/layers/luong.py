# SPDX-License-Identifier: MIT
"""Luong's attention of a decoder to its encoder's states: four scores, global or local.

For users, as ``fastattn.layers.LuongAttention``; thin code over ``attention`` and
``local_attention``. The rules of its many weights are in ``_luong_weights``, and the recurrent
cells around it stay in the user's framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _check_arrays as arrays
from .. import _check_options as check
from .._projection import project
from ..local import local_attention
from ..scores import Concat, General, attention
from . import _luong_windows as windows
from ._forms import Form, memory_array
from ._layer import Layer, rounded
from ._luong_weights import checked_weights
from ._weights import accumulator, checked_input

if TYPE_CHECKING:
    from typing import Literal

    from numpy.typing import ArrayLike, DTypeLike


class LuongAttention(Layer):
    """Attention with the scores and the windows of Luong, Pham and Manning [1]_.

    Parameters
    ----------
    score : {"dot", "general", "concat", "location"}
        ``h . s``, ``h W s``, ``v . tanh([h; s] W)`` or ``(h W)[j]``, where ``h`` is the query and
        ``s`` the memory at ``j``.
    weight : array_like, optional
        ``W``, for all but "dot": (query_dim, key_dim), (query_dim + key_dim, units) or (query_dim,
        columns), with at least as many columns as there will be keys. float16, bfloat16, float32
        or float64; the others have the same dtype.
    attention_v : array_like (units,), optional
        ``v``, for "concat".
    combine_weight : array_like (value_dim + query_dim, out), optional
        With it the result is the attentional state ``tanh([context; h] @ combine_weight)``, else
        the context. (`value_dim` is the size of the memory.)
    mode : {"global", "local-m", "local-p"}
        All keys; those within `half_width` of the query's own position; or of a position ``p =
        length * sigmoid(position_v . tanh(h @ position_weight))`` that is predicted, where the
        weights are multiplied by ``exp(-(j - p)**2 / (2 * sigma**2))`` after the softmax, ``sigma =
        half_width / 2``, and not normalised again.
    half_width : float, optional
        For the local modes, above 0 for "local-p".
    position_weight : array_like (query_dim, n), optional
    position_v : array_like (n,), optional
        For "local-p".
    dtype : str or dtype, optional
        That of a layer without any weights; float32 by default.

    Raises
    ------
    ValueError
        A shape does not fit, or a weight is missing or is not one of the score or the mode.
    TypeError
        A weight has another dtype than the first, or none of the four.

    Notes
    -----
    float16 and bfloat16 are computed in float32 and rounded at the end; positions in float64. The
    weights are copied. The local modes take time and memory for the keys of the windows alone,
    but for "concat" with a sequence of queries, which projects each key once.

    References
    ----------
    .. [1] Luong, Pham, Manning: Effective Approaches to Attention-based Neural Machine Translation
       (2015), arXiv:1508.04025.

    Examples
    --------
    >>> import numpy as np
    >>> import fastattn.layers
    >>> rng = np.random.default_rng(0)
    >>> layer = fastattn.layers.LuongAttention(
    ...     score="general",
    ...     weight=rng.standard_normal((20, 30)),
    ...     combine_weight=rng.standard_normal((30 + 20, 20)),
    ...     mode="local-m",
    ...     half_width=2,
    ... )
    >>> layer
    LuongAttention(score='general', mode='local-m', half_width=2.0, combine=True, dtype='float64')
    >>> encoded = rng.standard_normal((2, 9, 30))
    >>> state, weights = layer(
    ...     rng.standard_normal((2, 20)), encoded, position=4, return_weights=True
    ... )
    >>> state.shape, np.flatnonzero(weights[0])
    ((2, 20), array([2, 3, 4, 5, 6]))
    >>> layer(rng.standard_normal((2, 5, 20)), encoded).shape  # at positions 0 to 4
    (2, 5, 20)
    """

    _score: str
    _mode: str
    _half_width: float | None
    _weight: np.ndarray | None  # of "location": (columns, query_dim), in the layer's dtype
    _attention_v: np.ndarray | None
    _combine_weight: np.ndarray | None
    _position_weight: np.ndarray | None  # float64, as is the next
    _position_v: np.ndarray | None
    _query_dim: int | None  # None where no weight tells it, as below
    _key_dim: int | None
    _both_dims: int | None  # query_dim + key_dim

    def __init__(
        self,
        *,
        score: Literal["dot", "general", "concat", "location"] = "dot",
        weight: ArrayLike | None = None,
        attention_v: ArrayLike | None = None,
        combine_weight: ArrayLike | None = None,
        mode: Literal["global", "local-m", "local-p"] = "global",
        half_width: float | None = None,
        position_weight: ArrayLike | None = None,
        position_v: ArrayLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        given = {
            "weight": weight,
            "attention_v": attention_v,
            "combine_weight": combine_weight,
            "position_weight": position_weight,
            "position_v": position_v,
        }
        self._set(**checked_weights(score, mode, half_width, given, dtype))

    def __call__(
        self,
        query: ArrayLike,
        memory: ArrayLike,
        *,
        memory_lengths: ArrayLike | None = None,
        position: ArrayLike = 0,
        attn_mask: ArrayLike | None = None,
        return_weights: bool = False,
    ) -> Any:
        """The context, or the attentional state, of one step or of a sequence of steps.

        Parameters
        ----------
        query : array_like (..., query_dim) or (..., queries, query_dim)
            One axis fewer than the memory: one step of each entry. As many: all steps at once.
        memory : array_like (..., keys, key_dim)
        memory_lengths : int or array_like of int, optional
            How many of the keys are real, 0 to `keys`: one for all or one an entry. What lies
            beyond is never used.
        position : int or array_like of int
            Of the (first) query, for "local-m": one for all or one an entry. 0 in the other modes.
        attn_mask : array_like, optional
            Broadcastable to the shape of the weights; bool: **True where a key may be attended
            to** (where a mask has True for padding, give ``~mask``), float: added to the scores.
        return_weights : bool
            Also return the weights.

        Returns
        -------
        out : ndarray (..., size) or (..., queries, size)
            Of size key_dim, or the columns of `combine_weight`. The context is 0 where there is no
            key to attend to.
        weights : ndarray (..., keys) or (..., queries, keys)
            If `return_weights`: those that the memory was summed with.

        Raises
        ------
        ValueError, TypeError
            A shape, a value or a dtype does not fit; the message begins with the argument's name.
        """
        q = checked_input(query, "query", self._dtype, self._query_dim)
        key = checked_input(memory_array(memory), "memory", self._dtype, self._memory_dim(q))
        form = Form(q, key.shape)
        if self._score == "location" and form.n_keys > self._weight.shape[0]:
            raise ValueError(
                f"memory: expected at most {self._weight.shape[0]} keys, as many as weight has "
                f"columns, got {form.n_keys}"
            )
        lengths = form.lengths(memory_lengths)
        mask = form.mask(attn_mask)
        return_weights = check.flag(return_weights, "return_weights")
        start = self._start(position, form)
        key = key[..., None, :, :]
        centers = None if self._mode == "global" else self._centers(form, lengths, start)
        context, weights = self._context(form, key, lengths, centers, mask, return_weights)
        out = self._combined(form, context)
        if not return_weights:
            return form.result(out)
        return form.result(out), form.result(rounded(weights, self._dtype))

    def _memory_dim(self, q: np.ndarray) -> int | None:
        if self._key_dim is not None:
            return self._key_dim
        if self._score == "dot":
            return q.shape[-1]
        if self._both_dims is None:
            return None
        if q.shape[-1] > self._both_dims:
            raise ValueError(
                f"query: expected a last axis of at most {self._both_dims}, that of query and "
                f"memory together, got shape {q.shape}"
            )
        return self._both_dims - q.shape[-1]

    def _start(self, position: Any, form: Form) -> Any:
        """The position of the first query: an int, or an array of those of the entries."""
        start = check.per_entry(position, "position", form.lead, "integers")
        if self._mode != "local-m" and np.any(start != 0):
            raise ValueError(f"position: expected 0 in the mode {self._mode!r}, got {position!r}")
        if isinstance(start, int):
            return max(-check.FAR, min(start, check.FAR))  # beyond, there are no keys
        return start.reshape(form.lead)[..., None, None]

    def _centers(self, form: Form, lengths: np.ndarray | None, start: Any) -> np.ndarray:
        """Of each query's window, in float64: (..., 1, queries)."""
        if self._mode == "local-m":
            centers = np.asarray(start, np.float64) + np.arange(form.n_queries)
            return np.broadcast_to(centers, (*form.lead, 1, form.n_queries))
        length = form.n_keys if lengths is None else lengths[..., None, None]
        hidden = project(form.query, self._position_weight, None, arrays.FLOAT64)
        with np.errstate(all="ignore"):
            inner = (np.tanh(hidden) * self._position_v).sum(axis=-1)
            centers = length * (0.5 + 0.5 * np.tanh(0.5 * inner))  # sigmoid that cannot overflow
            np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays
        # NaN comes from the query, whose scores are NaN with the keys of any window
        centers = np.where(np.isfinite(centers), centers, 0.0)
        return np.broadcast_to(centers, (*form.lead, 1, form.n_queries))

    def _context(
        self,
        form: Form,
        key: np.ndarray,
        lengths: np.ndarray | None,
        centers: np.ndarray | None,
        mask: np.ndarray | None,
        return_weights: bool,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Context and weights with the axis of the head; for the attentional state in float32."""
        widens = self._combine_weight is not None and self._dtype.itemsize == 2
        sigma = self._half_width / 2 if self._mode == "local-p" else None
        half_width = self._half_width
        options = {"kv_lengths": lengths, "attn_mask": mask, "return_weights": return_weights}
        places = None
        if centers is not None and form.is_step and (widens or self._score == "concat"):
            places = windows.places(form, centers, half_width)
        if places is not None:
            # what would be done with each key is done with those of the windows alone
            options.update(windows.masks(form, centers, half_width, lengths, mask, places))
            key = windows.take(form, key, places)
            centers = centers - places[..., 0]
            half_width = 2.0 * half_width + 1.0  # all: those that are seen are masked
        q = form.query
        if widens:
            acc = accumulator(self._dtype)
            q, key = q.astype(acc), key.astype(acc)
        value, score = key, self._scoring(q, key)
        if self._score == "location":
            columns = self._weight[: form.n_keys]
            if places is not None:
                columns = columns[places[..., 0, :]]
            key = _with_axes(columns.astype(q.dtype, copy=False), q.ndim)
        if centers is None:
            result = attention(q, key, value, score=score, **options)
        else:
            options.update(centers=centers, half_width=half_width, sigma=sigma)
            result = local_attention(q, key, value, score=score, **options)
        if not return_weights:
            return result, None
        context, weights = result
        if places is not None:
            weights = windows.spread(form, weights, places)
        return context, weights

    def _scoring(self, q: np.ndarray, key: np.ndarray) -> Any:
        if self._score == "general":
            return General(self._weight)
        if self._score == "concat":
            return Concat(self._weight, self._attention_v)
        return "dot"  # of "location", too: with the columns of the weight as keys

    def _combined(self, form: Form, context: np.ndarray) -> np.ndarray:
        """The attentional state, if the layer makes it: tanh([context; h] @ combine_weight)."""
        if self._combine_weight is None:
            return context
        acc = accumulator(self._dtype)
        q = np.broadcast_to(form.query, (*context.shape[:-1], form.query.shape[-1]))
        both = np.concatenate([context, q.astype(acc, copy=False)], axis=-1)
        state = project(both, self._combine_weight, None, acc)
        return rounded(np.tanh(state), self._dtype)

    def _facts(self) -> dict[str, Any]:
        return {
            "score": self._score,
            "mode": self._mode,
            "half_width": self._half_width,
            "combine": self._combine_weight is not None,
        }


def _with_axes(array: np.ndarray, rank: int) -> np.ndarray:
    return array.reshape((1,) * (rank - array.ndim) + array.shape)
