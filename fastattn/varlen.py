# SPDX-License-Identifier: MIT
"""Attention over packed sequences: a ragged batch without padding.

For users: the signature and what it means. ``_validate_varlen`` checks, the backends compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _backend, _validate_varlen
from .scores import known

if TYPE_CHECKING:
    from typing import Literal

    import numpy as np
    from numpy.typing import ArrayLike

    from .scores import Score


def varlen_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    *,
    score: Literal["dot", "scaled_dot", "cosine"] | Score = "scaled_dot",
    is_causal: bool = False,
    scale: float | None = None,
    q_offset: ArrayLike | Literal["lower_right"] = 0,
    window: int | tuple[int | None, int | None] | None = None,
    softcap: float | None = 0.0,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    out: np.ndarray | None = None,
    return_lse: bool = False,
) -> Any:
    r"""Attention within each of many sequences that lie packed one after the other.

    Nothing is padded: the cost is that of the sequences as they are, and long and short ones share
    the threads evenly. The form of the arguments is that of FlashAttention's functions for
    sequences of variable length [1]_.

    Parameters
    ----------
    query : array_like (query_tokens, heads, dim)
        float16, bfloat16, float32 or float64. Any strides, alignment and byte order: a view of
        packed projections is read where it lies.
    key : array_like (key_tokens, kv_heads, dim)
        `kv_heads` divides `heads`, as in `scaled_dot_product_attention`. Prepared keys of additive
        attention are not taken.
    value : array_like (key_tokens, kv_heads, value_dim)
    cu_seqlens_q, cu_seqlens_k : array_like of int (sequences + 1,)
        Cumulative lengths: sequence ``s`` has the queries ``cu_seqlens_q[s]`` to
        ``cu_seqlens_q[s + 1] - 1`` and the keys ``cu_seqlens_k[s]`` to ``cu_seqlens_k[s + 1] - 1``.
        They begin with 0 and never decrease; sequences may be empty. Tokens past the last one
        belong to no sequence: such keys are never read, such queries get zeros.
    score : {"dot", "scaled_dot", "cosine"} or Score
        As in `attention`, in each sequence: column ``j`` of `scores.Location` is for its key ``j``.
    is_causal, window, softcap, sinks
        As in `scaled_dot_product_attention`, within each sequence. Additive and concat scores take
        neither softcap nor slopes.
    scale : float, optional
        Of ``"scaled_dot"``, 1 / sqrt(dim) by default; other scores take none.
    q_offset : int, array_like of int (sequences,), or "lower_right"
        Position of a sequence's first query among its keys; ``"lower_right"`` puts its last query
        at its last key.
    alibi_slopes : array_like (heads,) or (sequences, heads), optional
    out : ndarray (query_tokens, heads, value_dim), optional
        As in `scaled_dot_product_attention`.
    return_lse : bool
        Also return the logarithm of each row's sum of exponentials.

    Returns
    -------
    out : ndarray (query_tokens, heads, value_dim)
        In the dtype of `query`. The array given as `out`, if one was.
    lse : ndarray (heads, query_tokens)
        If `return_lse`; -inf for queries of no sequence.

    Raises
    ------
    ValueError, TypeError, MemoryError
        As in `scaled_dot_product_attention`, with the names of the score's parameters as well.

    Notes
    -----
    Each sequence gets what `scaled_dot_product_attention`, or `attention` with its `score`,
    computes for it alone, on the compiled backends to the last bit.

    References
    ----------
    .. [1] Dao: FlashAttention-2 (2023), arXiv:2307.08691, ``flash_attn_varlen_func``.

    Examples
    --------
    >>> import numpy as np
    >>> import fastattn
    >>> rng = np.random.default_rng(0)
    >>> tokens = rng.standard_normal((11, 3, 4, 16), dtype=np.float32)  # packed q, k, v of 4 heads
    >>> ends = [0, 5, 5, 11]  # sequences of 5, 0 and 6 tokens
    >>> out = fastattn.varlen_attention(*tokens.swapaxes(0, 1), ends, ends, is_causal=True)
    >>> out.shape
    (11, 4, 16)
    """
    kind = known(score, scale)
    call = _validate_varlen.varlen(
        query,
        key,
        value,
        cu_seqlens_q,
        cu_seqlens_k,
        q_offset,
        alibi_slopes,
        {
            "is_causal": is_causal,
            "window": window,
            "softcap": softcap,
            "sinks": sinks,
            "out": out,
            "return_lse": return_lse,
        },
        kind._call,
    )
    _backend.varlen(call)
    return call.finish()
