# SPDX-License-Identifier: MIT
# A paged cache beside a plain model of it: lists of tokens, names of pages.
# Used by test_paged*.py; the expected values are those of check_varlen.py.
# It never calls fastattn to find an expected value.
"""Paged caches for tests."""

from __future__ import annotations

import itertools

import numpy as np
from check import accumulator, assert_close, draw
from check_int8 import draw_tokens, stored
from check_varlen import cumulated, expected_varlen

import fastattn

LOWER = {"is_causal": True, "q_offset": "lower_right"}  # what attend does unless told otherwise


class Tracked:
    """A PagedKVCache and what it should hold, changed by the same calls and compared."""

    def __init__(self, kind, num_pages, page_size, *, kv_heads=2, dim=5, dv=7):
        dtype, self.tokens, self.query = kind
        self.cache = fastattn.PagedKVCache(
            num_pages, page_size, kv_heads, dim, value_head_size=dv, dtype=dtype
        )
        self.dtype, self.sizes = np.dtype(dtype), ((kv_heads, dim), (kv_heads, dv))
        self.num_pages, self.page_size = num_pages, page_size
        self.held = {}  # id -> (keys, values) as they are stored, in float64
        self.pages = {}  # id -> names of its pages; a shared page has one name
        self.names, self.known = itertools.count(), set()

    def draw(self, rng, n):
        return tuple(draw_tokens(rng, (n, *size), self.tokens) for size in self.sizes)

    def length(self, id):
        return len(self.held[id][0])

    def n_free(self):
        return self.num_pages - len({page for own in self.pages.values() for page in own})

    def _new(self, id, held, pages):
        assert type(id) is int and id not in self.known
        self.known.add(id)
        self.held[id], self.pages[id] = held, pages
        return id

    def add(self):
        held = tuple(np.zeros((0, *size)) for size in self.sizes)
        return self._new(self.cache.add_sequence(), held, [])

    def filled(self, rng, *lengths):
        """New sequences of these lengths."""
        ids = [self.add() for _ in lengths]
        self.append(rng, ids, lengths)
        return ids

    def fork(self, id):
        return self._new(self.cache.fork(id), self.held[id], list(self.pages[id]))

    def free(self, id):
        self.cache.free(id)
        del self.held[id], self.pages[id]

    def truncate(self, ids, lengths):
        self.cache.truncate(ids, lengths)
        for id, n in zip(ids, lengths):
            self.held[id] = tuple(x[:n] for x in self.held[id])
            del self.pages[id][-(-n // self.page_size) :]

    def pages_after(self, ids, counts):
        """The pages of each sequence after an append. A page with several owners, partly filled,
        is replaced by a copy for the one that appends."""
        after = {id: list(own) for id, own in self.pages.items()}
        for id, n in zip(ids, counts):
            own = after[id]
            if n and self.length(id) % self.page_size:
                if sum(own[-1] in other for other in after.values()) > 1:
                    own[-1] = next(self.names)
            while len(own) * self.page_size < self.length(id) + n:
                own.append(next(self.names))
        return after

    def pages_taken(self, ids, counts):
        """How many free pages an append needs: at least, where the last owner of a page writes in
        place even if the others go away in the same call; at most, where each owner copies it."""
        after = self.pages_after(ids, counts)
        few = self.n_free() - self.num_pages + len({page for own in after.values() for page in own})
        alone = (self.pages_after([id], [n])[id] for id, n in zip(ids, counts))
        return few, sum(len(set(own) - set(self.pages[id])) for id, own in zip(ids, alone))

    def append(self, rng, ids, counts, key=None, value=None):
        """Append so many tokens to each; keys and values are drawn unless given."""
        if key is None:
            key, value = self.draw(rng, int(np.sum(counts)))
        ends = cumulated(counts)
        self.cache.append(ids, key, value, cu_seqlens=ends)
        self.pages = self.pages_after(ids, counts)
        for id, start, stop in zip(ids, ends, ends[1:]):
            new = (stored(x[start:stop], self.dtype) for x in (key, value))
            self.held[id] = tuple(np.concatenate(x) for x in zip(self.held[id], new))

    def check_state(self):
        """Lengths and free pages are those of the model."""
        ids = list(self.held)
        lengths = self.cache.lengths(ids)
        assert lengths.dtype == np.int64
        assert lengths.tolist() == [self.length(id) for id in ids]
        assert self.cache.num_free_pages == self.n_free()

    def packed(self, ids):
        """(keys, values, cu_seqlens_k) of the sequences, as they are stored."""
        none = [np.zeros((0, *size)) for size in self.sizes]
        k, v = (np.concatenate([none[n], *(self.held[id][n] for id in ids)]) for n in (0, 1))
        return k, v, cumulated([self.length(id) for id in ids])

    def queries(self, rng, n):
        kv_heads, dim = self.sizes[0]
        return draw(rng, (n, 2 * kv_heads, dim), self.query)

    def check(self, rng, ids, counts, query=None, context="", **options):
        """Attend with so many queries of each into a poisoned `out`; compare and return both."""
        query = self.queries(rng, int(np.sum(counts))) if query is None else query
        ends = cumulated(counts)
        k, v, cu_k = self.packed(ids)
        want = expected_varlen(query, k, v, ends, cu_k, **LOWER | options)
        out = np.full(want.out.shape, np.nan, query.dtype)
        options = dict(options, out=out, return_lse=True)
        got = self.cache.attend(ids, query, cu_seqlens_q=ends, **options)
        assert isinstance(got, tuple) and len(got) == 2 and got[0] is out
        assert_close(out, want.out, slack=want.out_slack, size=want.size, context=f"out {context}")
        assert got[1].dtype == accumulator(query.dtype)
        assert_close(got[1], want.lse, slack=want.lse_slack, context=f"lse {context}")
        return got


def poison(tracked, number=np.nan):
    """Fill the free pages with tokens of this number and free them again."""
    n_free = tracked.cache.num_free_pages
    n = n_free * tracked.page_size
    id = tracked.add()
    tokens = (np.full((n, *size), number, tracked.tokens) for size in tracked.sizes)
    tracked.cache.append(id, *tokens)
    assert tracked.cache.num_free_pages == 0
    tracked.free(id)
    assert tracked.cache.num_free_pages == n_free
