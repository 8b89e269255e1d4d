# SPDX-License-Identifier: MIT
"""Additive attention: signatures, defaults and what they mean.

For users, through the package's own name; and for the layers built on top.
``_validate_additive`` checks and projects, ``_backend`` chooses, the backends compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _backend, _validate_additive
from .additive_keys import AdditiveKeys

if TYPE_CHECKING:
    from typing import Literal

    import numpy as np
    from numpy.typing import ArrayLike


def additive_attention(
    query: ArrayLike,
    key: ArrayLike | AdditiveKeys,
    value: ArrayLike,
    attention_v: ArrayLike | None,
    *,
    query_weight: ArrayLike | None = None,
    key_weight: ArrayLike | None = None,
    hidden_bias: ArrayLike | None = None,
    attn_mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    is_causal: bool = False,
    q_offset: ArrayLike | Literal["lower_right"] = 0,
    kv_lengths: ArrayLike | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    sinks: ArrayLike | None = None,
    layout: Literal["bhsd", "bshd"] = "bhsd",
    out: np.ndarray | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
) -> Any:
    """Attention with additive (Bahdanau) scores: ``softmax(v @ tanh(q Wq + k Wk + b)) @ value``.

    The values of tanh are computed, summed and forgotten block by block: neither the tensor of all
    of them nor the matrix of scores is ever in memory (but the weights, if `return_weights` asks).

    Parameters
    ----------
    query : array_like (..., heads, queries, query_dim)
        float16, bfloat16 (the dtype of the ``ml_dtypes`` package), float32 or float64. Also
        ``(heads, queries, query_dim)`` and ``(queries, query_dim)``. Any strides, alignment and
        byte order. Without `query_weight` it is projected already, and `query_dim` is `hidden`.
    key : array_like (..., kv_heads, keys, key_dim) or AdditiveKeys
        As many axes and the same dtype as `query`. `kv_heads` divides `heads`: query head ``h``
        uses key head ``h // (heads // kv_heads)``. Leading axes of query, key and value broadcast
        against each other, without copies. Without `key_weight` it is projected already, and
        `key_dim` is `hidden`. `prepare_additive_keys` projects keys once for many calls.
    value : array_like (..., kv_heads, keys, value_dim)
        `value_dim` is free, like `query_dim` and `key_dim` with weights.
    attention_v : array_like (hidden,) or (heads, hidden), or None
        Float: the vector that weighs the values of tanh, one for all or one a query head. None
        stands for ones.
    query_weight, key_weight : array_like (query_dim, hidden) and (key_dim, hidden), optional
        Float: the projections, those of all heads. C order is read in place.
    hidden_bias : array_like (hidden,), optional
        Float, added before tanh.
    attn_mask, bias, is_causal, q_offset, kv_lengths, window, sinks
        As in `scaled_dot_product_attention`.
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
    ValueError
        Shapes or values do not fit; the message names the argument, what was expected and what
        was given. Nothing has been written then. Also `key_weight` or `hidden_bias` beside
        prepared keys, which contain them.
    TypeError
        A dtype or a type does not fit.
    MemoryError
        There is not enough memory.

    Notes
    -----
    For row ``i`` at position ``p = i + q_offset`` [1]_::

        s[j]    = sum over u of attention_v[u] * tanh((q_i Wq)[u] + (k_j Wk)[u] + hidden_bias[u])
        s[j]   += bias[i, j] + float attn_mask[i, j]
        visible = j < kv_length and bool attn_mask[i, j] and (not is_causal or j <= p)
                  and p - left <= j <= p + right and no float term is -inf
        out_i   = sum over visible j of exp(s[j]) v_j / Z
        Z       = sum over visible j of exp(s[j])  +  exp(sink)

    There is no ``1 / sqrt(dim)``. Rows that see nothing, terms too large for the dtype, NaN, and
    what is hidden are treated as in `scaled_dot_product_attention`.

    Projections and scores are computed in float32, or float64 for float64 arrays, and parameters
    of other dtypes are converted. Every finite input is valid: tanh of a sum beyond the range of
    the dtype is 1 or -1; a projection (of a query, or of a key with the bias) beyond that range
    counts as its largest number. Concat scores, ``v . tanh([q; k] W)`` [2]_, are these with the
    two halves of W as weights.

    Beyond inputs and results, memory holds the projections and a block of tanh values.

    References
    ----------
    .. [1] Bahdanau, Cho, Bengio: Neural Machine Translation by Jointly Learning to Align and
       Translate (2015), arXiv:1409.0473.
    .. [2] Luong, Pham, Manning: Effective Approaches to Attention-based Neural Machine Translation
       (2015), arXiv:1508.04025.

    Examples
    --------
    >>> import numpy as np
    >>> import fastattn
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((2, 1, 3, 20), dtype=np.float32)  # decoder states
    >>> key = rng.standard_normal((2, 1, 7, 30), dtype=np.float32)  # encoder states
    >>> out, weights = fastattn.additive_attention(
    ...     query,
    ...     key,
    ...     key,
    ...     rng.standard_normal(16),
    ...     query_weight=rng.standard_normal((20, 16)),
    ...     key_weight=rng.standard_normal((30, 16)),
    ...     kv_lengths=[7, 4],
    ...     return_weights=True,
    ... )
    >>> out.shape, weights.shape
    ((2, 1, 3, 30), (2, 1, 3, 7))
    """
    options = {
        "attn_mask": attn_mask,
        "bias": bias,
        "is_causal": is_causal,
        "q_offset": q_offset,
        "kv_lengths": kv_lengths,
        "window": window,
        "sinks": sinks,
        "layout": layout,
        "out": out,
        "return_lse": return_lse,
        "return_weights": return_weights,
    }
    call = _validate_additive.additive(
        query, key, value, attention_v, query_weight, key_weight, hidden_bias, options
    )
    _backend.additive(call)
    return call.finish()


def prepare_additive_keys(
    key: ArrayLike,
    *,
    key_weight: ArrayLike | None = None,
    hidden_bias: ArrayLike | None = None,
    layout: Literal["bhsd", "bshd"] = "bhsd",
) -> AdditiveKeys:
    """Project the keys of `additive_attention` once, for every step of a decoder.

    Parameters
    ----------
    key : array_like (..., kv_heads, keys, key_dim)
        As for `additive_attention`; it is copied.
    key_weight : array_like (key_dim, hidden), optional
        Float: the projection. Without it the key is projected already.
    hidden_bias : array_like (hidden,), optional
        Float, added before tanh.
    layout : {"bhsd", "bshd"}
        Order of the axes of `key`; that of the calls that will use it.

    Returns
    -------
    AdditiveKeys
        Accepted by `additive_attention` in place of its key, without `key_weight` and
        `hidden_bias` then. The results have the bits of those with the key itself.

    Raises
    ------
    ValueError
        Shapes do not fit.
    TypeError
        A dtype or a type does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import fastattn
    >>> rng = np.random.default_rng(0)
    >>> memory = rng.standard_normal((2, 1, 7, 30), dtype=np.float32)
    >>> keys = fastattn.prepare_additive_keys(memory, key_weight=rng.standard_normal((30, 16)))
    >>> state = rng.standard_normal((2, 1, 1, 16), dtype=np.float32)
    >>> fastattn.additive_attention(state, keys, memory, np.ones(16)).shape
    (2, 1, 1, 30)
    """
    return _validate_additive.keys(key, key_weight, hidden_bias, layout)
