# SPDX-License-Identifier: MIT
"""A cache in pages: many sequences of any lengths that share one piece of memory, and beginnings.

For users, through the package's own name. ``_validate_paged`` checks, ``_pages`` keeps the books,
``_backend`` chooses, the backends compute, on the pages as they lie. No attention is computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _backend, _pages, _storage, _validate_cache, _validate_paged

if TYPE_CHECKING:
    from typing import Literal

    from numpy.typing import ArrayLike, DTypeLike


class PagedKVCache:
    """Keys and values of sequences that come and go, in pages of one piece of memory [1]_.

    A server keeps the conversations of many users in it: none reserves memory for what it may grow
    to, and those that begin with the same tokens (a system prompt, samples of one prompt, beams)
    share the pages of these. A step appends a token to each and attends, all in one call::

        cache.append(ids, key, value)
        out = cache.attend(ids, query)

    Tokens of several sequences are given packed, one sequence after the other, as in
    `varlen_attention`.

    Parameters
    ----------
    num_pages : int
        All pages that there will ever be. Memory is used as it is written.
    page_size : int
        Tokens in a page, at least 1. 16 to 256 are usual: small ones waste less, large ones are
        faster (a decoding step takes some per cent longer than over one piece from 64 on, 10 to 30
        per cent with 16, most with the shortest dtypes).
    num_kv_heads : int
        Number of key and value heads; it must divide that of the queries.
    head_size : int
        Size of a key and of a query.
    value_head_size : int, optional
        Size of a value; `head_size` by default.
    dtype : str or dtype
        ``"float32"``, ``"float64"``, ``"float16"``, ``"bfloat16"`` (which needs the package
        ``ml_dtypes``) or ``"int8"``; see `KVCache` for what the last one keeps.

    Raises
    ------
    ValueError
        A size is below 0, or `page_size` below 1.
    TypeError
        A size is no integer, or the dtype is none of these.
    ImportError
        ``"bfloat16"`` without ``ml_dtypes``.
    MemoryError
        There is not enough memory.

    Notes
    -----
    A call that fails leaves the cache as it was. Any number of threads may attend at the same
    time; while one does anything else, no other may use the cache. Copies and pickles are caches
    of their own, with all that is in this one.

    References
    ----------
    .. [1] Kwon et al.: Efficient Memory Management for Large Language Model Serving with
       PagedAttention (2023), arXiv:2309.06180.

    Examples
    --------
    A prompt of 5 tokens, two samples of how it goes on, and another sequence:

    >>> import numpy as np
    >>> import fastattn
    >>> rng = np.random.default_rng(0)
    >>> def tokens(n, heads):
    ...     return rng.standard_normal((n, heads, 64), dtype=np.float32)
    >>> cache = fastattn.PagedKVCache(num_pages=8, page_size=4, num_kv_heads=2, head_size=64)
    >>> a = cache.add_sequence()
    >>> cache.append(a, tokens(5, 2), tokens(5, 2))
    >>> out = cache.attend(a, tokens(5, 8))
    >>> b, c = cache.fork(a), cache.add_sequence()
    >>> for step in range(4):
    ...     cache.append([a, b, c], tokens(3, 2), tokens(3, 2))
    ...     out = cache.attend([a, b, c], tokens(3, 8))
    >>> out.shape, cache.lengths([a, b, c]), cache.num_free_pages
    ((3, 8, 64), array([9, 9, 4]), 2)
    >>> cache.free(b)
    >>> cache
    PagedKVCache(8, 4, 2, 64, value_head_size=64, dtype='float32')
    """

    __slots__ = ("__weakref__", "_book", "_store")

    _store: _storage.Storage  # arrays (pages, kv_heads, page_size, dim)
    _book: _pages.Book  # replaced as a whole: no failure leaves a half of one

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_size: int,
        *,
        value_head_size: int | None = None,
        dtype: DTypeLike = "float32",
    ) -> None:
        n_pages = _validate_cache.size(num_pages, "num_pages")
        n_tokens = _validate_cache.size(page_size, "page_size", at_least=1)
        n_heads = _validate_cache.size(num_kv_heads, "num_kv_heads")
        k_size = v_size = _validate_cache.size(head_size, "head_size")
        if value_head_size is not None:
            v_size = _validate_cache.size(value_head_size, "value_head_size")
        kind = _validate_cache.element_type(dtype)
        self._store = _storage.empty((n_pages, n_heads, n_tokens), k_size, v_size, kind)
        self._book = _pages.new(n_pages, n_tokens)

    @property
    def num_pages(self) -> int:
        """How many pages there are."""
        return len(self._book.free)

    @property
    def num_free_pages(self) -> int:
        """How many of them belong to no sequence."""
        return self._book.n_free

    @property
    def page_size(self) -> int:
        """How many tokens a page has room for."""
        return self._book.page_size

    @property
    def dtype(self) -> np.dtype:
        """That of the keys and values."""
        return self._store[0].dtype

    def lengths(self, ids: ArrayLike) -> np.ndarray:
        """How many tokens each of these sequences has: int64 ``(ids,)``.

        Parameters
        ----------
        ids : int or array_like of int (ids,)

        Raises
        ------
        ValueError, TypeError
            There is no such sequence, or they are no integers.
        """
        return self._book.lengths[_validate_paged.rows(ids, self._book)]

    def add_sequence(self) -> int:
        """Begin a sequence without tokens, and return its id, which no other ever has."""
        self._book, name = _pages.add(self._book)
        return name

    def fork(self, id: int) -> int:
        """Begin a sequence with the tokens of another one, and return its id.

        Both share the pages that there are. None is copied but a last page that is not full, when
        one of them goes on.

        Raises
        ------
        ValueError, TypeError
            There is no such sequence, or `id` is no integer.
        """
        twin = _validate_paged.row(id, self._book)
        self._book, name = _pages.add(self._book, twin)
        return name

    def free(self, id: int) -> None:
        """Forget a sequence. Pages that no other one shares become free.

        Raises
        ------
        ValueError, TypeError
            There is no such sequence, or `id` is no integer.
        """
        self._book = _pages.remove(self._book, _validate_paged.row(id, self._book))

    def truncate(self, ids: ArrayLike, lengths: ArrayLike) -> None:
        """Forget the last tokens, such as those that a speculation got wrong.

        Parameters
        ----------
        ids : int or array_like of int (ids,)
            Each at most once.
        lengths : int or array_like of int (ids,)
            How many tokens to keep, 0 to the length that the sequence has. Pages that are not
            needed any more, and that no other sequence shares, become free.

        Raises
        ------
        ValueError
            A length is negative or above that of its sequence, or there is no such sequence.
        TypeError
            They are no integers.
        """
        rows, wanted = _validate_paged.truncate(ids, lengths, self._book)
        self._book = _pages.truncate(self._book, rows, wanted)

    def append(
        self,
        ids: ArrayLike,
        key: ArrayLike,
        value: ArrayLike,
        *,
        cu_seqlens: ArrayLike | None = None,
    ) -> None:
        """Copy new tokens behind those that the sequences have.

        Parameters
        ----------
        ids : int or array_like of int (ids,)
            Each at most once.
        key : array_like (tokens, num_kv_heads, head_size)
            The tokens of the first of the ids, then those of the second, and so on. In the dtype
            of the cache (float32, float16 or bfloat16 for int8). Any strides and byte order.
        value : array_like (tokens, num_kv_heads, value_head_size)
            As many tokens, in the same dtype.
        cu_seqlens : array_like of int (ids + 1,), optional
            Where the tokens of each begin and end, from 0 to the number of tokens. By default
            there are as many of each.

        Raises
        ------
        ValueError
            A shape does not fit, or there is no such sequence.
        TypeError
            A dtype or a type does not fit. Nothing is rounded on the way in but for int8.
        MemoryError
            More pages are needed than are free.
        """
        rows, counts, tokens = _validate_paged.append(
            ids, key, value, cu_seqlens, self._book, self._store
        )
        tokens = _storage.stored(tokens, self._store)
        extension = _pages.extend(self._book, rows, counts)
        old, own = extension.copies
        for store, new in zip(self._store, tokens):  # pages that no sequence has yet
            store[own] = store[old]
            store[extension.pages, :, extension.places] = new
        self._book = extension.book

    def attend(
        self,
        ids: ArrayLike,
        query: ArrayLike,
        *,
        cu_seqlens_q: ArrayLike | None = None,
        is_causal: bool = True,
        scale: float | None = None,
        q_offset: ArrayLike | Literal["lower_right"] = "lower_right",
        window: int | tuple[int | None, int | None] | None = None,
        softcap: float | None = 0.0,
        alibi_slopes: ArrayLike | None = None,
        sinks: ArrayLike | None = None,
        out: np.ndarray | None = None,
        return_lse: bool = False,
    ) -> Any:
        """Attention of queries to all tokens of their sequences, which are read where they lie.

        Parameters
        ----------
        ids : int or array_like of int (ids,)
            In any order, and as often as you like.
        query : array_like (tokens, heads, head_size)
            Those for the first of the ids, then those for the second, and so on. In the dtype of
            the cache; or float32 with a float16 or bfloat16 cache; or float32, float16 or bfloat16
            with an int8 cache.
        cu_seqlens_q : array_like of int (ids + 1,), optional
            Where the queries of each begin and end. By default there are as many of each.
        is_causal : bool
            True unless told otherwise.
        q_offset : int, array_like of int (ids,), or "lower_right"
            Position of a sequence's first query. By default its last query is at its last token.
        scale, window, softcap, alibi_slopes, sinks, out, return_lse
            As in `varlen_attention`.

        Returns
        -------
        out : ndarray (tokens, heads, value_head_size)
            In the dtype of `query`.
        lse : ndarray (heads, tokens)
            If `return_lse`.

        Raises
        ------
        ValueError, TypeError, MemoryError
            As in `varlen_attention`; and there is no such sequence.
        """
        options = {
            "is_causal": is_causal,
            "scale": scale,
            "window": window,
            "softcap": softcap,
            "sinks": sinks,
            "out": out,
            "return_lse": return_lse,
        }
        call = _validate_paged.attend(
            ids, query, cu_seqlens_q, q_offset, alibi_slopes, options, self._book, self._store
        )
        _backend.varlen(call)
        return call.finish()

    def __repr__(self) -> str:
        n_pages, n_heads, n_tokens, size = self._store[0].shape
        return (
            f"PagedKVCache({n_pages}, {n_tokens}, {n_heads}, {size}, "
            f"value_head_size={self._store[1].shape[3]}, dtype={self.dtype.name!r})"
        )

    def __reduce__(self) -> tuple:
        book = self._book._replace(owners=self._book.owners.copy(), free=self._book.free.copy())
        used = np.flatnonzero(np.isin(np.arange(self.num_pages), book.free[: book.n_free]) == 0)
        shapes = [(store.shape, store.dtype) for store in self._store]
        return _restored, (type(self), book, used, shapes, [s[used] for s in self._store])


def _restored(
    kind: type[PagedKVCache], book: _pages.Book, used: np.ndarray, shapes: list, tokens: list
) -> PagedKVCache:
    """A cache of its own with these pages."""
    cache = kind.__new__(kind)
    cache._store = tuple(np.zeros(shape, dtype) for shape, dtype in shapes)
    for store, pages in zip(cache._store, tokens):
        store[used] = pages
    cache._book = book._replace(
        table=book.table.copy(), owners=book.owners.copy(), free=book.free.copy()
    )
    return cache
