# SPDX-License-Identifier: MIT
"""Which sequence owns which pages: the bookkeeping of a paged cache.

For ``paged``; after the block tables of PagedAttention (Kwon et al. 2023, arXiv:2309.06180). It
holds no token and checks no type.

A `Book` is never changed: each step makes a new one, so that a step that fails, at any point,
leaves the old one as it was. Its larger arrays are shared by the two, and written only where the
old one does not look: table entries beyond a sequence's own pages, owners of free pages, the list
of free pages beyond its end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._check_arrays import INT64, ndarray

INT32 = np.dtype(np.int32)


class Book(NamedTuple):
    page_size: int
    ids: ndarray  # int64, ascending: the sequences there are,
    rows: ndarray  # int64: and the row of each in `lengths` and `table`
    lengths: ndarray  # int64 (rows,): tokens
    table: ndarray  # int32 (rows, most pages of a sequence), C-contiguous: its pages in order
    owners: ndarray  # int32 (pages,): of how many sequences
    free: ndarray  # int32 (pages,): the first n_free are free, the last of them is taken next
    n_free: int
    next_id: int


class Extension(NamedTuple):
    """More tokens for some sequences: the book with them, and what is to be written where."""

    book: Book
    copies: tuple[ndarray, ndarray]  # pages that are shared, and who takes their place
    pages: ndarray  # of each new token, sequence by sequence,
    places: ndarray  # and its place in the page


def new(n_pages: int, page_size: int) -> Book:
    empty = np.empty(0, INT64)
    free = np.arange(n_pages, dtype=INT32)[::-1].copy()  # page 0 first
    table = np.empty((0, 0), INT32)
    return Book(page_size, empty, empty, empty, table, np.zeros(n_pages, INT32), free, n_pages, 0)


def find(book: Book, ids: ndarray) -> tuple[ndarray, int | None]:
    """The row of each of the ids, and the first id that there is not."""
    is_possible = (ids >= 0) & (ids < book.next_id)
    if not is_possible.all():
        return ids, int(ids[np.argmin(is_possible)])
    ids = ids.astype(INT64)
    at = np.searchsorted(book.ids, ids)
    known = at < len(book.ids)
    known[known] = book.ids[at[known]] == ids[known]
    if not known.all():
        return at, int(ids[np.argmin(known)])
    return book.rows[at], None


def n_pages_of(book: Book, lengths: ndarray) -> ndarray:
    return -(-lengths // book.page_size)


def add(book: Book, twin: int | None = None) -> tuple[Book, int]:
    """A new sequence, without tokens or with those of row `twin`; and its id."""
    is_used = np.zeros(len(book.lengths) + 1, bool)
    is_used[book.rows] = True
    row = int(np.argmin(is_used))
    lengths, table, owners = book.lengths.copy(), book.table, book.owners
    if row == len(lengths):
        lengths, table = _more_rows(lengths, table)
    lengths[row] = 0
    if twin is not None:
        lengths[row] = lengths[twin]
        pages = table[twin, : n_pages_of(book, lengths[twin])]
        table[row, : len(pages)] = pages
        owners = owners.copy()
        owners[pages] += 1
    made = book._replace(
        ids=np.append(book.ids, book.next_id),
        rows=np.append(book.rows, row),
        lengths=lengths,
        table=table,
        owners=owners,
        next_id=book.next_id + 1,
    )
    return made, book.next_id


def _more_rows(lengths: ndarray, table: ndarray) -> tuple[ndarray, ndarray]:
    n = max(8, 2 * len(lengths))
    longer, higher = np.zeros(n, INT64), np.zeros((n, table.shape[1]), INT32)
    longer[: len(lengths)] = lengths
    higher[: len(lengths)] = table
    return longer, higher


def remove(book: Book, row: int) -> Book:
    """Without that sequence."""
    kept = book.rows != row
    book = truncate(book, np.array([row]), np.zeros(1, INT64))
    return book._replace(ids=book.ids[kept], rows=book.rows[kept])


def truncate(book: Book, rows: ndarray, wanted: ndarray) -> Book:
    """With so many of the first tokens of each of these sequences, which all differ."""
    lengths, owners = book.lengths.copy(), book.owners.copy()
    first, stop = n_pages_of(book, wanted), n_pages_of(book, lengths[rows])
    given_up = book.table[_spread(rows, first, stop)]
    np.subtract.at(owners, given_up, 1)
    freed = np.unique(given_up)
    freed = freed[owners[freed] == 0]
    n_free = book.n_free + len(freed)
    book.free[book.n_free : n_free] = freed
    lengths[rows] = wanted
    return book._replace(lengths=lengths, owners=owners, n_free=n_free)


def extend(book: Book, rows: ndarray, counts: ndarray) -> Extension:
    """With so many more tokens for each of these sequences, which all differ.

    A page that others share is not written: the sequence gets a copy of its own, unless all
    others get theirs in this step.
    """
    size, lengths = book.page_size, book.lengths.copy()
    before, after = lengths[rows], lengths[rows] + counts
    first, stop = n_pages_of(book, before), n_pages_of(book, after)
    into = np.flatnonzero((before % size != 0) & (counts > 0))  # those that begin within a page
    last = book.table[rows[into], first[into] - 1]
    copied = _to_copy(last, book.owners)
    shared, sharers = last[copied], into[copied]

    n_more = int((stop - first).sum())
    n_new = len(shared) + n_more
    if n_new > book.n_free:
        raise MemoryError(
            f"append: needs {n_new} more pages of {size} tokens, and {book.n_free} of "
            f"{len(book.free)} are free"
        )
    n_free = book.n_free - n_new
    pages = book.free[n_free : book.n_free]
    own, more = pages[: len(shared)], pages[len(shared) :]
    table, owners = book.table, book.owners
    most = int(stop.max(initial=0))
    if most > table.shape[1]:
        wider = np.zeros((len(table), max(most, 2 * table.shape[1])), INT32)
        wider[:, : table.shape[1]] = table
        table = wider
    if len(shared):
        if table is book.table:
            table = table.copy()
        table[rows[sharers], first[sharers] - 1] = own
        owners = owners.copy()
        np.subtract.at(owners, shared, 1)
    table[_spread(rows, first, stop)] = more
    owners[pages] = 1
    lengths[rows] = after

    row_of, token = _spread(rows, before, after)
    extended = book._replace(lengths=lengths, table=table, owners=owners, n_free=n_free)
    return Extension(extended, (shared, own), table[row_of, token // size], token % size)


def _to_copy(pages: ndarray, owners: ndarray) -> ndarray:
    """Which of those who are about to write into these pages must not: all, but for one where no
    one else would be left."""
    order = np.argsort(pages, kind="stable")
    in_order = pages[order]
    rank = np.arange(len(pages)) - np.searchsorted(in_order, in_order)  # among those of a page
    return order[owners[in_order] - rank > 1]


def _spread(rows: ndarray, first: ndarray, stop: ndarray) -> tuple[ndarray, ndarray]:
    """Each row as often as there are numbers from `first` to `stop`, and these numbers."""
    counts = stop - first
    ends = np.cumsum(counts)
    n = int(ends[-1]) if len(ends) else 0
    numbers = np.arange(n) - np.repeat(ends - counts, counts) + np.repeat(first, counts)
    return np.repeat(rows, counts), numbers
