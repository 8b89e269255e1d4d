# SPDX-License-Identifier: MIT
"""Hard attention: each query takes the value of one key.

For users: the signature and what it means. ``_validate_selection`` checks what is special about
it, the backends compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _backend, _validate_selection
from .scores import checked

if TYPE_CHECKING:
    from typing import Literal

    import numpy as np
    from numpy.typing import ArrayLike

    from .additive_keys import AdditiveKeys
    from .scores import Score


def hard_attention(
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
    layout: Literal["bhsd", "bshd"] = "bhsd",
    out: np.ndarray | None = None,
    sample: np.random.Generator | None = None,
    return_indices: bool = False,
) -> Any:
    r"""Attention of each query to a single key: the best one, or one drawn by the weights.

    The scores of a row are looked at block by block, as in `attention`; no matrix of scores is ever
    in memory. Drawing a key is the stochastic hard attention of [1]_.

    Parameters
    ----------
    query : array_like (..., heads, queries, query_dim)
    key : array_like (..., kv_heads, keys, key_dim)
    value : array_like (..., kv_heads, keys, value_dim)
        As in `attention`.
    score
        As in `attention`.
    attn_mask, bias, is_causal, q_offset, kv_lengths, window, softcap, alibi_slopes
        As in `attention`.
    layout, out
        As in `attention`.
    sample : numpy.random.Generator, optional
        Draws the key of each row with the probability of its weight in `attention`. One number a
        row is taken from the generator, by ``sample.random((..., heads, queries))``; the row's key
        is the first at which the sum of the weights so far exceeds it. Without it the key is the
        one of the largest score, and the first one if several are equal.
    return_indices : bool
        Also return which keys they are.

    Returns
    -------
    out : ndarray (..., heads, queries, value_dim)
        The values of these keys, in the layout, the number of axes and the dtype of `query`; 0 for
        a row that sees no key.
    indices : ndarray of int64 (..., heads, queries)
        If `return_indices`: the keys; -1 for a row that sees none. In a row with a NaN score, the
        first key that has one, and the row is NaN.

    Raises
    ------
    ValueError, TypeError, MemoryError
        As in `attention`.

    References
    ----------
    .. [1] Xu et al.: Show, Attend and Tell (2015), arXiv:1502.03044.

    Examples
    --------
    >>> import numpy as np
    >>> import fastattn
    >>> key = np.eye(4)
    >>> out, indices = fastattn.hard_attention(key[[2, 0]], key, key * 7, return_indices=True)
    >>> indices
    array([2, 0])
    >>> out
    array([[0., 0., 7., 0.],
           [7., 0., 0., 0.]])
    """
    call = checked(
        score,
        query,
        key,
        value,
        {
            "attn_mask": attn_mask,
            "bias": bias,
            "is_causal": is_causal,
            "q_offset": q_offset,
            "kv_lengths": kv_lengths,
            "window": window,
            "softcap": softcap,
            "alibi_slopes": alibi_slopes,
            "sinks": None,
            "layout": layout,
            "out": out,
            "return_lse": False,
            "return_weights": False,
        },
    )
    indices = _validate_selection.hard(call, sample, return_indices)
    _backend.compute(call)
    return call.finish() if indices is None else (call.finish(), indices)
