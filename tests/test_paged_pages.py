# SPDX-License-Identifier: MIT
# PagedKVCache: which pages are taken, shared, copied and given back.
# Used by the suite, on every backend where something is computed.
# Random sequences of all these calls are in test_paged_life.py.
"""A sequence of L tokens holds ceil(L / page_size) pages; forks share all of them."""

import numpy as np
import pytest
from check import assert_bits_equal
from check_int8 import as_dtypes
from check_paged import Tracked, poison

import fastattn

F = np.float32
KINDS = [("float32",) * 3, ("float16", "float16", "float32"), ("int8", "float16", "float32")]


@pytest.fixture(params=KINDS, ids="-".join)
def paged(request):
    """paged(num_pages, page_size): a cache and its model. One dtype of each way to keep tokens."""
    return lambda *sizes: Tracked(as_dtypes(request.param), *sizes)


def test_what_it_tells(dtype):
    for given in (dtype, "int8"):
        cache = fastattn.PagedKVCache(7, 3, 2, 5, value_head_size=4, dtype=given)
        assert (cache.num_pages, cache.page_size, cache.num_free_pages) == (7, 3, 7)
        assert all(type(x) is int for x in (cache.num_pages, cache.page_size, cache.num_free_pages))
        assert cache.dtype is np.dtype(given)
        for name in ("num_pages", "page_size", "num_free_pages", "dtype"):
            with pytest.raises(AttributeError):
                setattr(cache, name, None)
    assert fastattn.PagedKVCache(1, 1, 1, 1).dtype == F


def test_repr_makes_an_empty_one(dtype):
    for given in (dtype, "int8"):
        cache = fastattn.PagedKVCache(7, 3, 2, 5, value_head_size=4, dtype=given)
        cache.append(cache.add_sequence(), *(np.ones((2, 2, n), F if given == "int8" else given)
                                             for n in (5, 4)))  # fmt: skip
        same = eval(repr(cache), {"PagedKVCache": fastattn.PagedKVCache})
        assert repr(same) == repr(cache) and same.num_free_pages == 7
        assert (same.num_pages, same.page_size, same.dtype) == (7, 3, cache.dtype)
        wide = fastattn.PagedKVCache(7, 3, 2, 5, dtype=given)
        assert repr(wide) != repr(cache)


def test_lengths_are_a_copy(rng, paged):
    tracked = paged(9, 4)
    a, b = tracked.filled(rng, 3, 5)
    lengths = tracked.cache.lengths([b, a])
    assert lengths.dtype == np.int64 and lengths.tolist() == [5, 3]
    lengths[:] = 0
    assert tracked.cache.lengths(b).tolist() == [5]
    assert tracked.cache.lengths([]).tolist() == []


@pytest.mark.parametrize("page_size", [1, 3, 4, 16])
def test_pages_are_taken_as_tokens_need_them(rng, paged, page_size):
    tracked = paged(40, page_size)
    a, b = tracked.add(), tracked.add()
    tracked.check_state()
    for counts in ((1, 0), (page_size - 1, 0), (1, page_size), (0, 0), (2 * page_size, 1)):
        tracked.append(rng, [a, b], counts)
        tracked.check_state()
    held = -(-(3 * page_size + 1) // page_size) + -(-(page_size + 1) // page_size)
    assert tracked.cache.num_free_pages == 40 - held


def test_ids_are_never_handed_out_again(rng, paged):
    """Neither those of freed sequences nor those of forks; the model compares with all before."""
    tracked = paged(9, 4)
    for _ in range(5):
        a = tracked.add()
        tracked.append(rng, [a], [3])
        b = tracked.fork(a)
        tracked.free(a)
        tracked.fork(b)
        tracked.free(b)
    assert len(tracked.known) == 15


def test_a_fork_takes_no_page(backend, rng, paged):
    """Even without a free one: the same tokens at the same places, so the same bits."""
    tracked = paged(3, 4)
    a, empty = tracked.filled(rng, 11, 0)
    assert tracked.cache.num_free_pages == 0
    b, c, d = tracked.fork(a), tracked.fork(a), tracked.fork(empty)
    tracked.check_state()
    query = tracked.queries(rng, 2)
    for fork in (b, c, tracked.fork(b)):
        assert_bits_equal(tracked.cache.attend(fork, query), tracked.cache.attend(a, query))
    assert not tracked.cache.attend(d, query).any()


@pytest.mark.parametrize("length", [7, 8])
@pytest.mark.parametrize("writer", ["original", "fork"])
def test_copy_on_write(backend, rng, paged, length, writer):
    """Only a partly filled last page is copied, and only when one of its owners appends."""
    tracked = paged(9, 4)
    (a,) = tracked.filled(rng, length)
    b = tracked.fork(a)
    one, other = (a, b) if writer == "original" else (b, a)
    assert tracked.cache.num_free_pages == 7
    tracked.append(rng, [one], [0])
    assert tracked.cache.num_free_pages == 7  # nothing was written
    tracked.append(rng, [one], [1])
    assert tracked.cache.num_free_pages == 6  # a copy of a page, or a new one
    tracked.append(rng, [other], [1])
    assert tracked.cache.num_free_pages == 6 - (length == 8)  # the last owner writes in place
    tracked.append(rng, [a, b], [2, 1])
    tracked.check_state()
    tracked.check(rng, [b, a], [2, 3])


def test_both_owners_append_in_one_call(backend, rng, paged):
    tracked = paged(9, 4)
    (a,) = tracked.filled(rng, 6)
    b, c = tracked.fork(a), tracked.fork(a)
    tracked.append(rng, [c, a, b], [1, 3, 2])
    tracked.check_state()
    assert tracked.cache.num_free_pages == 9 - (2 + 1 + 2)
    tracked.check(rng, [a, b, c], [2, 2, 2])


def test_truncated_forks_keep_the_others(backend, rng, paged):
    """A page that has another owner stays, and is copied before the shorter one writes to it."""
    tracked = paged(9, 4)
    (a,) = tracked.filled(rng, 10)
    b = tracked.fork(a)
    tracked.truncate([b], [3])
    tracked.check_state()
    assert tracked.cache.num_free_pages == 6
    tracked.append(rng, [b], [2])
    tracked.check_state()
    assert tracked.cache.num_free_pages == 4
    tracked.check(rng, [a, b], [3, 3])
    tracked.free(a)
    tracked.check_state()
    tracked.check(rng, [b], [4])


def test_truncate_gives_pages_back(backend, rng, paged):
    """Those behind the last token that stays; new tokens take the place of the old ones."""
    tracked = paged(9, 4)
    a, b = tracked.filled(rng, 17, 9)
    for lengths in ((17, 9), (16, 8), (13, 5), (5, 0), (0, 0)):
        tracked.truncate([a, b], lengths)
        tracked.check_state()
    assert tracked.cache.num_free_pages == 9
    tracked.append(rng, [b, a], [7, 2])
    tracked.truncate([b], [6])
    tracked.append(rng, [b], [3])
    tracked.check_state()
    tracked.check(rng, [a, b], [1, 4])
    tracked.cache.truncate(b, 2)  # one id, one length
    assert tracked.cache.lengths([a, b]).tolist() == [2, 2]


def test_free_gives_back_what_nobody_else_has(backend, rng, paged):
    tracked = paged(9, 4)
    (a,) = tracked.filled(rng, 10)
    b = tracked.fork(a)
    tracked.append(rng, [b], [3])
    tracked.free(a)
    tracked.check_state()
    assert tracked.cache.num_free_pages == 9 - 4
    tracked.check(rng, [b], [13])
    tracked.free(b)
    assert tracked.cache.num_free_pages == 9


def unchanged(tracked, rng, call):
    """The call fails for want of pages, and nothing is different."""
    ids = list(tracked.held)
    query = tracked.queries(rng, 3 * len(ids))
    before = tracked.cache.attend(ids, query)
    with pytest.raises(MemoryError):
        call()
    tracked.check_state()
    assert_bits_equal(tracked.cache.attend(ids, query), before)


def test_more_pages_than_are_free(backend, rng, paged):
    """MemoryError, and no sequence has got a token, not even those that had room for theirs."""
    tracked = paged(6, 4)
    a, b, c = tracked.filled(rng, 6, 5, 8)
    assert tracked.cache.num_free_pages == 0
    unchanged(tracked, rng, lambda: tracked.append(rng, [c], [1]))
    unchanged(tracked, rng, lambda: tracked.append(rng, [a, b, c], [1, 1, 1]))
    unchanged(tracked, rng, lambda: tracked.append(rng, [b, a], [1, 3]))
    unchanged(tracked, rng, lambda: tracked.append(rng, [a], [1000]))
    tracked.append(rng, [a, b, c], [2, 3, 0])  # what fits still does
    tracked.check_state()
    tracked.truncate([c], [4])
    tracked.append(rng, [b], [4])
    tracked.check_state()
    tracked.check(rng, [a, b, c], [2, 2, 2])


def test_a_copy_on_write_that_finds_no_page(backend, rng, paged):
    """The same where the page is needed for a copy, or for one and for new tokens."""
    tracked = paged(3, 4)
    (a,) = tracked.filled(rng, 6)
    b = tracked.fork(a)
    unchanged(tracked, rng, lambda: tracked.append(rng, [b], [3]))  # a copy and one more
    (c,) = tracked.filled(rng, 4)
    unchanged(tracked, rng, lambda: tracked.append(rng, [b], [1]))
    unchanged(tracked, rng, lambda: tracked.append(rng, [b, a], [1, 1]))
    tracked.append(rng, [a, b], [0, 0])
    tracked.free(c)
    tracked.append(rng, [b], [2])
    tracked.append(rng, [a], [2])
    tracked.check_state()
    tracked.check(rng, [a, b], [3, 3])


def test_sequences_without_tokens(backend, rng, paged):
    """They need no page, and their queries get zeros; as many as you like."""
    tracked = paged(0, 4)
    ids = [tracked.add() for _ in range(100)] + [tracked.fork(tracked.add())]
    tracked.append(rng, ids, [0] * len(ids))
    tracked.check_state()
    out, lse = tracked.check(rng, ids, [1] * len(ids))
    assert not out.any() and np.isneginf(lse).all()
    tracked.check(rng, ids, [2] * len(ids), sinks=np.ones(4))
    with pytest.raises(MemoryError):
        tracked.cache.append(ids[3], *tracked.draw(rng, 1))
    tracked.check_state()


def test_no_sequences(backend, rng, paged):
    tracked = paged(2, 4)
    tracked.filled(rng, 3)
    tracked.cache.append([], *tracked.draw(rng, 0))
    tracked.cache.append([], *tracked.draw(rng, 0), cu_seqlens=[0])
    tracked.cache.truncate([], [])
    tracked.check_state()
    tracked.check(rng, [], [])
    assert tracked.cache.attend([], tracked.queries(rng, 0)).shape == (0, 4, 7)


def test_every_page_can_be_used_again(backend, rng, paged):
    """Hundreds of sequences come and go; the pool neither shrinks nor forgets."""
    tracked = paged(5, 2)
    for n in range(40):
        a, b = tracked.filled(rng, 1 + n % 5, 3)
        tracked.check(rng, [a, b], [1, 1])
        poison(tracked)
        tracked.free(a if n % 2 else b)
        tracked.free(b if n % 2 else a)
    assert tracked.cache.num_free_pages == 5
