# SPDX-License-Identifier: MIT
"""Every check of the paged cache: which sequences, what is appended, who attends.

For ``paged``; queries are checked by ``_validate_varlen`` as if the keys lay packed. It keeps
nothing and copies no tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _check_arrays as arrays
from . import _check_options as check
from . import _pages, _validate_cache, _validate_varlen
from ._check_arrays import INT64, ndarray
from ._storage import Storage
from ._validate import SdpaCall
from ._validate_varlen import VarlenCall


class PagedCall(VarlenCall):
    """One checked call of sequences whose keys lie in pages, as the backends see it.

    As `VarlenCall`, but ``key`` and ``value`` are all pages ``(pages, kv_heads, page_size, dim)``,
    their factors ``(pages, kv_heads, 1, page_size)``; ``cu_keys`` says how many keys each has.
    """

    __slots__ = ()

    def _entry(self, s: int) -> SdpaCall:
        n_keys = int(self.cu_keys[s + 1] - self.cu_keys[s])
        n_pages = -(-n_keys // self.key.shape[2])
        first = int(self.first_pages[s])
        pages = self.pages[first : first + n_pages]
        call = self._entry_of_queries(s)
        call.key, call.value = (
            _in_a_row(array[pages])[:, :n_keys] for array in (self.key, self.value)
        )
        if self.key_factors is not None:
            call.key_factors, call.value_factors = (
                _in_a_row(array[pages].swapaxes(2, 3))[:, :n_keys].swapaxes(1, 2)
                for array in (self.key_factors, self.value_factors)
            )
        return call


def _in_a_row(pages: ndarray) -> ndarray:
    """(pages, heads, rows, dim) as (heads, rows, dim)."""
    n_pages, n_heads, n_rows, size = pages.shape
    return pages.swapaxes(0, 1).reshape(n_heads, n_pages * n_rows, size)


def rows(ids: Any, book: _pages.Book, name: str = "ids") -> ndarray:
    """The rows in the book of one id or several."""
    a = check.integers(ids, name)
    if a.ndim > 1:
        raise ValueError(f"{name}: expected one id, or 1 axis of them, got shape {a.shape}")
    found, unknown = _pages.find(book, np.atleast_1d(a))
    if unknown is not None:
        raise ValueError(f"{name}: expected sequences of this cache, got {unknown}")
    return found


def row(id: Any, book: _pages.Book) -> int:
    """The row of one id."""
    n = check.integer(id, "id")
    if not 0 <= n < book.next_id:
        raise ValueError(f"id: expected a sequence of this cache, got {n}")
    return int(rows(n, book, "id")[0])


def _distinct_rows(ids: Any, book: _pages.Book) -> ndarray:
    found = rows(ids, book)
    distinct, counts = np.unique(found, return_counts=True)
    if len(distinct) != len(found):
        twice = int(np.atleast_1d(ids)[found == distinct[np.argmax(counts)]][0])
        raise ValueError(f"ids: expected each sequence once, got {twice} more often")
    return found


def truncate(ids: Any, lengths: Any, book: _pages.Book) -> tuple[ndarray, ndarray]:
    found = _distinct_rows(ids, book)
    now = book.lengths[found]
    wanted = _validate_cache.at_most(lengths, "lengths", now, now.shape)
    return found, np.broadcast_to(wanted, now.shape)


def append(
    ids: Any, key: Any, value: Any, cu_seqlens: Any, book: _pages.Book, store: Storage
) -> tuple[ndarray, ndarray, tuple[ndarray, ndarray]]:
    """Rows, how many tokens each gets, and these, packed."""
    found = _distinct_rows(ids, book)
    k, v = (arrays.as_array(x, name) for x, name in ((key, "key"), (value, "value")))
    _validate_cache.check_dtypes(k, v, store)
    for name, array, pages in (("key", k, store[0]), ("value", v, store[1])):
        _, n_heads, _, dim = pages.shape
        if array.ndim != 3 or array.shape[1:] != (n_heads, dim):
            raise ValueError(
                f"{name}: expected shape (tokens, {n_heads}, {dim}), got {array.shape}"
            )
    if len(v) != len(k):
        raise ValueError(f"value: expected {len(k)} tokens to match key, got {len(v)}")
    ends = _ends(cu_seqlens, "cu_seqlens", len(found), len(k), "key")
    used = int(ends[-1])
    if used != len(k):
        raise ValueError(
            f"cu_seqlens: expected {len(k)} at the end, the number of tokens of key, got {used}"
        )
    return found, np.diff(ends), (k, v)


def _ends(x: Any, name: str, n: int, n_tokens: int, of: str) -> ndarray:
    """Where the tokens of each of n sequences end, after a 0."""
    if x is not None:
        ends = _validate_varlen.ends(x, name, n_tokens, of)
        if len(ends) != n + 1:
            raise ValueError(
                f"{name}: expected {n + 1} numbers, one more than ids, got {len(ends)}"
            )
        return ends
    if n == 0 and n_tokens == 0:
        return np.zeros(1, INT64)
    if n == 0 or n_tokens % n != 0:
        raise ValueError(
            f"{of}: expected as many tokens for each of {n} ids, or {name}, got {n_tokens} tokens"
        )
    return np.arange(n + 1, dtype=INT64) * (n_tokens // n)


def attend(
    ids: Any,
    query: Any,
    cu_seqlens_q: Any,
    q_offset: Any,
    alibi_slopes: Any,
    options: dict[str, Any],
    book: _pages.Book,
    store: Storage,
) -> PagedCall:
    """A checked call of packed queries with the pages of their sequences."""
    found = rows(ids, book)
    q = arrays.as_array(query, "query")
    _, n_heads, page_size, size = store[0].shape
    dtype = _validate_cache.query_dtype(q, store[0].dtype)
    if q.ndim != 3:
        raise ValueError(f"query: expected 3 axes (tokens, heads, dim), got shape {q.shape}")
    if q.shape[2] != size:
        raise ValueError(f"query: expected head size {size}, that of the cache, got {q.shape[2]}")
    _validate_cache.check_heads(q.shape[1], n_heads)
    ends_k = np.zeros(len(found) + 1, INT64)
    np.cumsum(book.lengths[found], out=ends_k[1:])
    shape = int(ends_k[-1]), n_heads
    call = _validate_varlen.varlen(
        q,
        _validate_cache.stand_in((*shape, size), dtype),
        _validate_cache.stand_in((*shape, store[1].shape[3]), dtype),
        _ends(cu_seqlens_q, "cu_seqlens_q", len(found), len(q), "query"),
        ends_k,
        q_offset,
        alibi_slopes,
        options,
        call_type=PagedCall,
    )
    call.key, call.value = store[:2]
    if len(store) == 4:
        call.key_factors, call.value_factors = (scales.swapaxes(2, 3) for scales in store[2:])
    call.pages = book.table.reshape(-1)
    call.first_pages = found * book.table.shape[1]
    return call
