# SPDX-License-Identifier: MIT
"""The public functions: signatures, defaults and what they mean.

For users, through the package's own name; and for the layers built on top.
``_validate`` checks, ``_backend`` chooses, the backends compute. The only logic here is which way a
call takes: one without options may go the short way, which checks and computes in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _backend, _validate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    import numpy as np
    from numpy.typing import ArrayLike


def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    attn_mask: ArrayLike | None = None,
    *,
    bias: ArrayLike | None = None,
    is_causal: bool = False,
    scale: float | None = None,
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
    r"""Attention with dot-product scores: ``softmax(scale * query @ key^T + ...) @ value``.

    The scores of a row are computed, used and forgotten block by block; the matrix of all of them
    is never in memory unless `return_weights` asks for it.

    Parameters
    ----------
    query : array_like (..., heads, queries, dim)
        float16, bfloat16 (the dtype of the ``ml_dtypes`` package), float32 or float64. Also
        ``(heads, queries, dim)`` and ``(queries, dim)``. Any strides, alignment and byte order.
    key : array_like (..., kv_heads, keys, dim)
        As many axes and the same dtype as `query`. `kv_heads` divides `heads`: query head ``h``
        uses key head ``h // (heads // kv_heads)`` (grouped-query and multi-query attention).
        Leading axes of query, key and value broadcast against each other, without copies.
    value : array_like (..., kv_heads, keys, value_dim)
        `value_dim` is free.
    attn_mask : array_like, optional
        Broadcastable to ``(..., heads, queries, keys)``, aligned on the right, with no more axes
        than `query`; for a `query` of two axes, to ``(queries, keys)``. bool: True where a row
        may attend. Float: added to the scores, and -inf hides. Integers are refused. The order of
        its axes is the same in both layouts.
    bias : array_like, optional
        Float, added to the scores, shaped like `attn_mask`; both may be given.
    is_causal : bool
        A row sees keys up to its own position: ``j <= i + q_offset``.
    scale : float, optional
        Factor of the dot products, any finite number; ``1 / sqrt(dim)`` by default.
    q_offset : int, array_like of int, or "lower_right"
        Position of the first query among the keys, for causality, windows and ALiBi: row ``i`` is
        at ``p = i + q_offset``. One for all, or one a batch entry (of a shape that broadcasts to
        the leading axes). 0, the default, is the upper-left alignment; ``"lower_right"`` puts the
        last query at the last key, ``length - queries``. Where that is negative, the first rows
        see nothing.
    kv_lengths : int or array_like of int, optional
        How many of the keys are real, 0 to `keys`; one for all, or one a batch entry. Whatever lies
        beyond is never used.
    window : int or (left, right), optional
        A row sees ``p - left <= j <= p + right``: counts of keys besides the one at ``p``. -1 or
        None is unbounded, an int stands for both sides.
    softcap : float, optional
        Scores become ``softcap * tanh(score / softcap)`` before anything is added; 0 and None
        leave them.
    alibi_slopes : array_like (heads,) or (..., heads), optional
        Float; ``slope * |p - j|`` is subtracted from the scores.
    sinks : array_like (heads,), optional
        Float; one more score a head that takes weight and has no value. -inf is no sink.
    layout : {"bhsd", "bshd"}
        Order of the axes of query, key, value and out: ``(..., heads, queries, dim)`` or
        ``(..., queries, heads, dim)``.
    out : ndarray, optional
        Where to write the result: shape and dtype of the result, writable. It may overlap the
        inputs, but not itself.
    return_lse : bool
        Also return the logarithm of each row's sum of exponentials.
    return_weights : bool
        Also return the weights.

    Returns
    -------
    out : ndarray (..., heads, queries, value_dim)
        In the layout, the number of axes and the dtype of `query`. The array given as `out`, if
        one was.
    lse : ndarray (..., heads, queries)
        If `return_lse`: natural logarithm of the sum of ``exp(score)`` over the keys that the row
        sees, and the sink; float32, or float64 for float64 arrays. See `merge_attention`.
    weights : ndarray (..., heads, queries, keys)
        If `return_weights`: in the dtype of `query`, exactly 0 where a row does not see a key.

    Raises
    ------
    ValueError
        Shapes or values do not fit; the message names the argument, what was expected and what
        was given. Nothing has been written then.
    TypeError
        A dtype or a type does not fit.
    MemoryError
        There is not enough memory.

    Notes
    -----
    For row ``i`` at position ``p = i + q_offset``::

        s[j]    = scale * (q_i . k_j)
        s[j]    = softcap * tanh(s[j] / softcap)                          if softcap > 0
        s[j]   += bias[i, j] + float attn_mask[i, j] - slope * |p - j|
        visible = j < kv_length and bool attn_mask[i, j] and (not is_causal or j <= p)
                  and p - left <= j <= p + right and no float term is -inf
        out_i   = sum over visible j of exp(s[j]) v_j / Z
        Z       = sum over visible j of exp(s[j])  +  exp(sink)

    A row that sees no key is 0, with weights 0, and its lse is -inf (or the sink). Only masks hide
    keys, never small scores: -1e9 is a number like any other. Terms too large for the dtype of
    the scores count as its largest number. What a row does not see may be NaN, infinite or
    uninitialised; NaN in what it does see makes it NaN.

    Scores are float32, or float64 for float64 arrays. The streaming form is that of
    FlashAttention [1]_ and of the online softmax [2]_; grouped heads are those of [3]_, slopes
    those of ALiBi [4]_, sinks those of StreamingLLM [5]_ in the form used by gpt-oss; the order of
    the steps is that of the ONNX ``Attention`` operator (opset 25).

    References
    ----------
    .. [1] Dao, Fu, Ermon, Rudra, Re: FlashAttention (2022), arXiv:2205.14135.
    .. [2] Milakov, Gimelshein: Online normalizer calculation for softmax (2018), arXiv:1805.02867.
    .. [3] Ainslie et al.: GQA (2023), arXiv:2305.13245.
    .. [4] Press, Smith, Lewis: Train Short, Test Long (2021), arXiv:2108.12409.
    .. [5] Xiao et al.: Efficient Streaming Language Models with Attention Sinks (2023),
       arXiv:2309.17453.

    Examples
    --------
    >>> import numpy as np
    >>> import fastattn
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((1, 8, 5, 64), dtype=np.float32)
    >>> key = rng.standard_normal((1, 2, 7, 64), dtype=np.float32)  # 4 query heads share a key head
    >>> value = rng.standard_normal((1, 2, 7, 16), dtype=np.float32)
    >>> out, lse = fastattn.scaled_dot_product_attention(
    ...     query, key, value, is_causal=True, q_offset="lower_right", return_lse=True
    ... )
    >>> out.shape, lse.shape
    ((1, 8, 5, 16), (1, 8, 5))
    """
    if (
        attn_mask is None
        and bias is None
        and kv_lengths is None
        and window is None
        and alibi_slopes is None
        and sinks is None
        and out is None
        and return_lse is False
        and return_weights is False
        and type(q_offset) is int
        and q_offset == 0
        and type(softcap) is float
        and softcap == 0.0
        and type(layout) is str
        and layout == "bhsd"
    ):
        result = _backend.sdpa_plain(query, key, value, is_causal, scale)
        if result is not None:
            return result
    call = _validate.sdpa(
        query,
        key,
        value,
        attn_mask,
        bias,
        is_causal,
        scale,
        q_offset,
        kv_lengths,
        window,
        softcap,
        alibi_slopes,
        sinks,
        layout,
        out,
        return_lse,
        return_weights,
    )
    _backend.sdpa(call)
    return call.finish()


def merge_attention(
    outs: Sequence[ArrayLike] | np.ndarray, lses: Sequence[ArrayLike] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Merge the results of attention over parts of the keys into the result over all of them.

    Exact up to rounding, for any number of parts: each part's weight is ``exp(lse)``. So a long
    sequence can be attended to in pieces, or a shared prefix once for many.

    Parameters
    ----------
    outs : sequence of array_like (..., queries, value_dim)
        One result for each part of the keys, all of one shape and dtype (float16, bfloat16,
        float32 or float64). One array with the parts along its first axis will do.
    lses : sequence of array_like (..., queries)
        The lse that came with each result: natural logarithms, of any of these dtypes. -inf marks
        rows for which the part had no visible key; what its result holds there does not matter.

    Returns
    -------
    out : ndarray (..., queries, value_dim)
        In the dtype of `outs`; 0 in rows where every part was empty.
    lse : ndarray (..., queries)
        float32, or float64 for float64 results; -inf in rows where every part was empty.

    Raises
    ------
    ValueError
        There is no part, their numbers differ, or a shape does not fit.
    TypeError
        A dtype does not fit.

    Notes
    -----
    The parts must not share keys, and a sink must be given to one of them only. The axes of an
    lse are those of its result without the last: results in the layout ``"bshd"`` have to be
    given as ``out.swapaxes(-3, -2)``. Logarithms to base 2, as FlashInfer returns them, need a
    factor ``log(2)``.

    Examples
    --------
    >>> import numpy as np
    >>> import fastattn
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 6, 8))  # (heads, sequence, dim)
    >>> parts = [
    ...     fastattn.scaled_dot_product_attention(q, k[:, keys], v[:, keys], return_lse=True)
    ...     for keys in (slice(0, 4), slice(4, 6))
    ... ]
    >>> out, lse = fastattn.merge_attention(*zip(*parts))
    >>> bool(np.allclose(out, fastattn.scaled_dot_product_attention(q, k, v)))
    True
    """
    return _backend.merge(*_validate.merge(outs, lses))
