# SPDX-License-Identifier: MIT
"""Local attention: each query looks at a window of keys around a place of its own.

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


def local_attention(
    query: ArrayLike,
    key: ArrayLike | AdditiveKeys,
    value: ArrayLike,
    *,
    centers: ArrayLike,
    half_width: float,
    sigma: float | None = None,
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
    r"""Attention of each query to the keys within `half_width` of its center.

    With ``centers=np.arange(queries)`` this is monotonic local attention (local-m), with centers
    predicted by a model and a `sigma` of ``half_width / 2`` predictive local attention (local-p),
    both of [1]_. Time and memory grow with queries times window, however many keys there are (but
    what a score does with each key once, a projection or a length, it does with all of them).

    Parameters
    ----------
    query : array_like (..., heads, queries, query_dim)
    key : array_like (..., kv_heads, keys, key_dim)
    value : array_like (..., kv_heads, keys, value_dim)
        As in `attention`.
    centers : array_like
        Broadcastable to ``(..., heads, queries)``, aligned on the right, in both layouts; real and
        finite, in units of keys. Centers may lie between keys and beyond the sequence.
    half_width : float
        At least 0: a row with center ``c`` sees key ``j`` only if ``c - half_width <= j <= c +
        half_width``.
    sigma : float, optional
        Above 0: each weight is multiplied by ``exp(-(j - c)**2 / (2 * sigma**2))`` after the
        softmax, and not normalised again. None, the default, leaves the weights.
    score
        As in `attention`.
    attn_mask, bias, is_causal, q_offset, kv_lengths, window, softcap, alibi_slopes, sinks
        As in `attention`. What they hide is hidden as well.
    layout, out, return_lse, return_weights
        As in `attention`.

    Returns
    -------
    out : ndarray (..., heads, queries, value_dim)
    lse : ndarray (..., heads, queries)
        If `return_lse`: that of the softmax, whatever `sigma` is.
    weights : ndarray (..., heads, queries, keys)
        If `return_weights`: the final ones, 0 outside of the window.

    Raises
    ------
    ValueError, TypeError, MemoryError
        As in `attention`.

    References
    ----------
    .. [1] Luong, Pham, Manning: Effective Approaches to Attention-based Neural Machine Translation
       (2015), arXiv:1508.04025.

    Examples
    --------
    >>> import numpy as np
    >>> import fastattn
    >>> rng = np.random.default_rng(0)
    >>> query, key = rng.standard_normal((2, 5, 16)), rng.standard_normal((2, 100, 16))
    >>> centers = [[3.5, 20.0, 21.2, 60.0, 99.0]]  # the same for both heads
    >>> out, weights = fastattn.local_attention(
    ...     query, key, key, centers=centers, half_width=4, sigma=2.0, return_weights=True
    ... )
    >>> np.flatnonzero(weights[0, 1])
    array([16, 17, 18, 19, 20, 21, 22, 23, 24])
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
            "sinks": sinks,
            "layout": layout,
            "out": out,
            "return_lse": return_lse,
            "return_weights": return_weights,
        },
    )
    _validate_selection.local(call, centers, half_width, sigma)
    _backend.compute(call)
    return call.finish()
