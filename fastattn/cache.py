# SPDX-License-Identifier: MIT
"""A cache of keys and values: what a decoder has seen, kept for the steps to come.

For users, through the package's own name. ``_validate_cache`` checks, ``_backend`` chooses, the
backends compute, on views of the storage. No attention is computed in this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _backend, _storage, _validate_cache
from . import _check_options as check

if TYPE_CHECKING:
    from typing import Literal

    from numpy.typing import ArrayLike, DTypeLike


class KVCache:
    """Keys and values of a batch of growing sequences, each in one piece of memory.

    A step of a decoder appends the keys and values of its new tokens and attends to all of them::

        cache.append(key, value)
        out = cache.attend(query)

    That is `scaled_dot_product_attention` of the query with the whole sequences, without their
    copies. Entries of the batch may have different lengths.

    Parameters
    ----------
    batch : int
        Number of sequences.
    num_kv_heads : int
        Number of key and value heads; it must divide that of the queries.
    head_size : int
        Size of a key and of a query.
    value_head_size : int, optional
        Size of a value; `head_size` by default.
    capacity : int
        For how many tokens a sequence there is to be storage from the beginning. What does not
        fit makes it grow.
    dtype : str or dtype
        ``"float32"``, ``"float64"``, ``"float16"``, ``"bfloat16"`` (which needs the package
        ``ml_dtypes``) or ``"int8"``, or a NumPy dtype of these.

    Raises
    ------
    ValueError
        A size is below 0.
    TypeError
        A size is no integer, or the dtype is none of these.
    ImportError
        ``"bfloat16"`` without ``ml_dtypes``.
    MemoryError
        There is not enough memory.

    Notes
    -----
    The keys of a head lie in one piece, and so do its values. When the storage is full, it becomes
    at least twice as large: all growing together copies fewer than two tokens for each that is
    appended [1]_. The old storage is in memory until the new one is filled.

    An int8 cache keeps each token of each head as integers times a float32 scale, the largest of
    the absolute values over 127: about half the memory of float16, and less time for a decoding
    step over a long context. Each number is within ``max|x| / 254`` of what was appended.
    Scores and sums are float32, as with the other dtypes. A row with NaN or infinity in it becomes
    NaN as a whole.

    A call that fails leaves the cache as it was. Any number of threads may attend at the same
    time; while one appends, reorders, truncates or resets, no other may use the cache. Copies and
    pickles are caches of their own, with what is in this one.

    References
    ----------
    .. [1] Cormen, Leiserson, Rivest, Stein: Introduction to Algorithms, dynamic tables.

    Examples
    --------
    Two prompts, of 5 and 3 tokens, then a token at a time:

    >>> import numpy as np
    >>> import fastattn
    >>> rng = np.random.default_rng(0)
    >>> def tokens(heads, n):
    ...     return rng.standard_normal((2, heads, n, 64), dtype=np.float32)
    >>> cache = fastattn.KVCache(batch=2, num_kv_heads=2, head_size=64)
    >>> past = cache.lengths
    >>> cache.append(tokens(2, 5), tokens(2, 5), lengths=[5, 3])
    >>> out = cache.attend(tokens(8, 5), q_offset=past)  # out[1, :, 3:] belongs to padding
    >>> for step in range(4):
    ...     cache.append(tokens(2, 1), tokens(2, 1))
    ...     out = cache.attend(tokens(8, 1), window=(127, 0))
    >>> out.shape, cache.lengths
    ((2, 8, 1, 64), array([9, 7]))
    >>> cache
    KVCache(2, 2, 64, value_head_size=64, capacity=10, dtype='float32')
    """

    __slots__ = ("__weakref__", "_filled", "_store")

    # Each is replaced as a whole when it changes, so that no failure leaves a half of one.
    _store: _storage.Storage
    _filled: _storage.Filling

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_size: int,
        *,
        value_head_size: int | None = None,
        capacity: int = 0,
        dtype: DTypeLike = "float32",
    ) -> None:
        n_batch = _validate_cache.size(batch, "batch")
        n_heads = _validate_cache.size(num_kv_heads, "num_kv_heads")
        k_size = v_size = _validate_cache.size(head_size, "head_size")
        if value_head_size is not None:
            v_size = _validate_cache.size(value_head_size, "value_head_size")
        capacity = _validate_cache.size(capacity, "capacity")
        kind = _validate_cache.element_type(dtype)
        self._filled = _storage.filling(np.zeros(n_batch, np.int64))
        self._store = _storage.empty((n_batch, n_heads, capacity), k_size, v_size, kind)

    @property
    def lengths(self) -> np.ndarray:
        """How many tokens each entry has: int64 ``(batch,)``, a copy."""
        return self._filled[0].copy()

    @property
    def capacity(self) -> int:
        """How many tokens an entry may have before the storage grows."""
        return self._store[0].shape[2]

    @property
    def dtype(self) -> np.dtype:
        """That of the keys and values."""
        return self._store[0].dtype

    def append(self, key: ArrayLike, value: ArrayLike, *, lengths: ArrayLike | None = None) -> None:
        """Copy new tokens behind those that each entry has.

        Parameters
        ----------
        key : array_like (batch, num_kv_heads, tokens, head_size)
            In the dtype of the cache (float32, float16 or bfloat16 for int8). Any strides,
            alignment and byte order: what is ``(batch, tokens, heads, dim)`` can be given as
            ``key.swapaxes(1, 2)``.
        value : array_like (batch, num_kv_heads, tokens, value_head_size)
            As many tokens, in the same dtype.
        lengths : int or array_like of int (batch,), optional
            How many of the tokens are real, 0 to `tokens`, counted from the first one; all by
            default. The others are padding and never used.

        Raises
        ------
        ValueError
            A shape or a length does not fit.
        TypeError
            A dtype or a type does not fit. Nothing is rounded on the way in but for int8: convert
            first.
        MemoryError
            There is not enough memory to grow.
        """
        tokens = _validate_cache.tokens(key, value, self._store)
        n_tokens = tokens[0].shape[2]
        before = self._filled
        if lengths is None:
            counts = n_tokens
        else:
            counts = check.counts(
                lengths, "lengths", before[0].shape, n_tokens, "the number of tokens given"
            )
        after = _storage.filling(before[0] + counts)
        storage = _storage.with_room(self._store, before[1], after[1])
        _storage.write(storage, _storage.stored(tokens, storage), before, after)
        self._store = storage
        self._filled = after

    def attend(
        self,
        query: ArrayLike,
        *,
        attn_mask: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        is_causal: bool = True,
        scale: float | None = None,
        q_offset: ArrayLike | Literal["lower_right"] = "lower_right",
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
        """Attention of queries to all that was appended; nothing of it is copied.

        Parameters
        ----------
        query : array_like (batch, heads, queries, head_size)
            In the dtype of the cache; or float32 with a float16 or bfloat16 cache; or float32,
            float16 or bfloat16 with an int8 cache. One query entry may meet all entries of the
            cache, and the one entry of a cache (a shared prefix) any number of query entries.
        is_causal : bool
            True unless told otherwise.
        q_offset : int, array_like of int, or "lower_right"
            Position of the first query. By default the last query of an entry is at the entry's
            last token. Queries of prompts padded on the right begin at the lengths before they
            were appended: ``q_offset=past``, see the example of the class.
        kv_lengths : int or array_like of int (batch,), optional
            Attend only to so many of an entry's first tokens; at most as many as it has.
        attn_mask, bias, scale, window, softcap, alibi_slopes, sinks
            As in `scaled_dot_product_attention`, where `keys` is the length of the longest entry.
        layout : {"bhsd", "bshd"}
            Order of the axes of query and out.
        out, return_lse, return_weights
            As in `scaled_dot_product_attention`.

        Returns
        -------
        out : ndarray (batch, heads, queries, value_head_size)
            In the dtype of `query`.
        lse : ndarray (batch, heads, queries)
            If `return_lse`.
        weights : ndarray (batch, heads, queries, keys)
            If `return_weights`. All as in `scaled_dot_product_attention` of the query with the
            sequences as they were appended, padded to the longest one: with the same bits on the
            compiled backends.

        Raises
        ------
        ValueError, TypeError, MemoryError
            As in `scaled_dot_product_attention`.

        Notes
        -----
        A float32 query is not rounded to the dtype of the cache. Scores and sums are float32 in
        any case, and so are the result and the weights then.
        """
        lengths, n_keys, is_ragged = self._filled
        storage = tuple(store[:, :, :n_keys] for store in self._store)
        options = {
            "attn_mask": attn_mask,
            "bias": bias,
            "is_causal": is_causal,
            "scale": scale,
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
        call = _validate_cache.attend(query, storage, lengths, is_ragged, options)
        _backend.sdpa(call)
        return call.finish()

    def reorder(self, indices: ArrayLike) -> None:
        """Make each entry what another one is: entry ``b`` becomes ``indices[b]`` (beam search).

        Parameters
        ----------
        indices : array_like of int (batch,)
            0 to ``batch - 1``, repeated as often as you like. The lengths go along.

        Raises
        ------
        ValueError
            The shape does not fit, or there is no such entry.
        TypeError
            They are no integers.
        MemoryError
            There is not enough memory for a copy of the entries that move.
        """
        lengths = self._filled[0]
        sources = _validate_cache.entries(indices, len(lengths))
        filled = _storage.filling(lengths[sources])
        _storage.move(self._store, sources, filled[1])
        self._filled = filled

    def truncate(self, lengths: ArrayLike) -> None:
        """Forget the last tokens, such as those that a speculation got wrong.

        Parameters
        ----------
        lengths : int or array_like of int (batch,)
            How many tokens to keep, 0 to the length that the entry has. The storage stays.

        Raises
        ------
        ValueError
            A length is negative or above that of its entry, or the shape does not fit.
        TypeError
            They are no integers.
        """
        now = self._filled[0]
        self._filled = _storage.filling(_validate_cache.at_most(lengths, "lengths", now, now.shape))

    def reset(self) -> None:
        """Forget all tokens; the storage stays."""
        self._filled = _storage.filling(np.zeros_like(self._filled[0]))

    def __repr__(self) -> str:
        key, value = self._store[:2]
        n_batch, n_heads, capacity, size = key.shape
        return (
            f"KVCache({n_batch}, {n_heads}, {size}, value_head_size={value.shape[3]}, "
            f"capacity={capacity}, dtype={key.dtype.name!r})"
        )

    def __reduce__(self) -> tuple:
        tokens = _storage.compact(self._store, self._filled)
        return _restored, (type(self), self.capacity, tokens, self.lengths)


def _restored(
    kind: type[KVCache], capacity: int, tokens: _storage.Storage, lengths: np.ndarray
) -> KVCache:
    """A cache of its own with these tokens."""
    key, value = tokens[:2]
    n_batch, n_heads, _, size = key.shape
    cache = kind(
        n_batch,
        n_heads,
        size,
        value_head_size=value.shape[3],
        capacity=capacity,
        dtype=key.dtype,
    )
    filled = _storage.filling(lengths.copy())
    _storage.write(cache._store, tokens, cache._filled, filled)
    cache._filled = filled
    return cache
