# SPDX-License-Identifier: MIT
# PagedKVCache: what the bits of a result do not depend on.
# Used by the suite, on every backend; on NumPy's numbers are compared where others promise bits.
# What the results are is in test_paged.py.
"""Where pages lie, what lay there before, who else is there and how many threads: the same bits."""

import threading

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_SPLIT, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, draw
from check_int8 import as_dtypes
from check_paged import LOWER, Tracked, poison
from check_varlen import assert_same, cumulated

import fastattn

F = np.float32
PAGE_SIZES = [1, 3, 16, 17, 64]
LENGTHS = [37, 64, 5]


@pytest.fixture(params=[("float32",) * 3, ("bfloat16",) * 3, ("int8", "float32", "float32")],
                ids="-".join)  # fmt: skip
def kind(request):
    return as_dtypes(request.param)


def in_a_row(kind, tokens, page_size):
    """A fresh cache with one sequence for each (key, value): (cache, ids)."""
    n_pages = sum(-(-len(k) // page_size) for k, _ in tokens)
    cache = fastattn.PagedKVCache(n_pages, page_size, 2, 5, value_head_size=7, dtype=kind[0])
    ids = [cache.add_sequence() for _ in tokens]
    for id, (k, v) in zip(ids, tokens):
        cache.append(id, k, v)
    return cache, ids


def scattered(rng, kind, tokens, page_size):
    """The same tokens in pages that are taken in turn, after others were there, some by forks."""
    tracked = Tracked(kind, 3 * sum(-(-len(k) // page_size) for k, _ in tokens) + 9, page_size)
    poison(tracked)
    old = tracked.filled(rng, *[page_size + 1] * 6)
    ids = [tracked.add() for _ in tokens]
    at = [0] * len(tokens)
    while any(at[n] < len(k) for n, (k, _) in enumerate(tokens)):
        for n, (key, value) in enumerate(tokens):
            stop = min(at[n] + int(rng.integers(0, page_size + 3)), len(key))
            part = slice(at[n], stop)
            tracked.append(rng, ids[n : n + 1], [stop - at[n]], key[part], value[part])
            at[n] = stop
        if old and rng.random() < 0.7:
            tracked.free(old.pop(int(rng.integers(len(old)))))
        n = int(rng.integers(len(ids)))
        fork = tracked.fork(ids[n])  # which gets junk behind the same tokens
        junk = (np.full((page_size, *size), np.nan, tracked.tokens) for size in tracked.sizes)
        tracked.append(rng, [fork], [page_size], *junk)
        tracked.free(fork)
    tracked.check_state()
    return tracked.cache, ids


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_placement(backend, rng, kind, page_size):
    """The same tokens in pages of the same size after different histories."""
    tracked = Tracked(kind, 0, 1)
    tokens = [tracked.draw(rng, n) for n in LENGTHS]
    query = tracked.queries(rng, 12)
    caches = [in_a_row(kind, tokens, page_size)]
    caches += [scattered(rng, kind, tokens, page_size) for _ in range(2)]
    for options in ({}, {"window": (9, 2), "softcap": 3.0}, {"alibi_slopes": draw(rng, (3, 4))}):
        for cu in ([0, 1, 2, 3], [0, 6, 12, 12]):
            given = dict(options, cu_seqlens_q=cu, return_lse=True)
            first, *others = (c.attend(ids, query[: cu[-1]], **given) for c, ids in caches)
            for other in others:
                for one, another in zip(first, other):
                    assert_same(backend, another, one, f"{options} {cu}")
                    assert np.isfinite(another.astype(F)).all()


@pytest.mark.parametrize("page_size", [16, 17])
def test_many_pages_in_another_order(backend, rng, kind, page_size):
    """The same for keys that several tasks share out."""
    tracked = Tracked(kind, 0, 1)
    tokens = [tracked.draw(rng, n) for n in (KEY_SPLIT + 5, 2 * KEY_CHUNK + 1)]
    query = tracked.queries(rng, 2 * QUERY_BLOCK + 3)
    straight, ids = in_a_row(kind, tokens, page_size)
    turned, others = in_a_row(kind, tokens[::-1], page_size)
    cu = [0, 1, len(query)]
    want = straight.attend(ids, query, cu_seqlens_q=cu)
    assert_same(backend, turned.attend(others[::-1], query, cu_seqlens_q=cu), want)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_other_sequences(backend, rng, kind, page_size):
    """Alone, among others, in any order, twice: a sequence has the bits of a call of its own."""
    tracked = Tracked(kind, 300, page_size)
    ids, counts = tracked.filled(rng, 40, 9, 0, 64), [5, 1, 2, 1]
    ends = cumulated(counts)
    query = tracked.queries(rng, sum(counts))
    slopes = draw(rng, (4, 4)) / 8
    order = [3, 0, 0, 2, 1, 3]
    rows = [slice(ends[n], ends[n + 1]) for n in order]
    mixed = np.concatenate([query[r] for r in rows])
    starts = cumulated([counts[n] for n in order])
    given = {"alibi_slopes": slopes[order], "cu_seqlens_q": starts}
    out, lse = tracked.cache.attend([ids[n] for n in order], mixed, return_lse=True, **given)
    for place, n in enumerate(order):
        alone = tracked.cache.attend(
            ids[n], query[rows[place]], alibi_slopes=slopes[n], return_lse=True
        )
        part = slice(starts[place], starts[place + 1])
        assert_same(backend, out[part], alone[0], f"place {place}")
        assert_same(backend, lse[:, part], alone[1], f"place {place}")


def test_what_is_in_other_sequences(backend, rng, kind):
    """NaN in sequences of the same call, and in what forks of this one got later."""
    tracked = Tracked(kind, 40, 4)
    a, b, bad = tracked.filled(rng, 11, 6, 0)
    query = tracked.queries(rng, 4)
    want = tracked.check(rng, [a, b], (1, 3), query)
    junk = [np.full((9, *size), np.nan, tracked.tokens) for size in tracked.sizes]
    tracked.cache.append(bad, *junk)
    for id in (tracked.fork(a), tracked.fork(b)):
        tracked.cache.append(id, *(x[:3] for x in junk))
    rows = np.concatenate([query[:1], query, query[1:]])
    given = {"cu_seqlens_q": [0, 1, 5, 8], "return_lse": True}
    out, lse = tracked.cache.attend([a, bad, b], rows, **given)
    assert np.isnan(out[2:5].astype(F)).all()
    for part, own in ((slice(0, 1), slice(0, 1)), (slice(5, 8), slice(1, 4))):
        assert_same(backend, out[part], want[0][own])
        assert_same(backend, lse[:, part], want[1][:, own])


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_lay_in_the_pages_before(backend, rng, kind, page_size, number):
    """Freed sequences and truncated tokens leave nothing that a result could show."""
    clean, used = (Tracked(kind, 200 // page_size + 9, page_size) for _ in range(2))
    poison(used, number)
    tokens = [clean.draw(rng, n) for n in (37, 5, 30)]
    results = []
    query = clean.queries(rng, 9)
    for tracked in (clean, used):
        ids = [tracked.add() for _ in tokens]
        for id, (key, value) in zip(ids, tokens):
            tracked.append(rng, [id], [len(key)], key, value)
        junk = [np.full((page_size, *size), number, tracked.tokens) for size in tracked.sizes]
        tracked.append(rng, ids[:1], [page_size], *junk)
        tracked.truncate(ids[:1], [37])
        tracked.truncate(ids[2:], [7])
        results.append([
            tracked.cache.attend(ids, query[: cu[-1]], cu_seqlens_q=cu, return_lse=True, **options)
            for cu in ([0, 1, 2, 3], [0, 5, 7, 9])
            for options in ({}, {"is_causal": False}, {"window": 3}, {"q_offset": 100})
        ])  # fmt: skip
    for want, got in zip(*results):
        for one, other in zip(want, got):
            assert_same(backend, other, one)
            assert np.isfinite(other.astype(F)).all()


@pytest.mark.parametrize("page_size", [1, 17, 256])
def test_any_number_of_threads(backend, rng, kind, page_size):
    tracked = Tracked(kind, 9 + 2 * KEY_SPLIT // page_size, page_size, kv_heads=1, dim=4, dv=3)
    ids = tracked.filled(rng, KEY_SPLIT + 9, KEY_TILE + 9, 3)
    query = draw(rng, (QUERY_BLOCK + 4, 2, 4), tracked.query)
    given = {"cu_seqlens_q": [0, 1, QUERY_BLOCK + 2, QUERY_BLOCK + 4], "return_lse": True}
    with fastattn.threads(1):
        want = tracked.cache.attend(ids, query, **given)
    for n_threads in (2, 3, 16):
        with fastattn.threads(n_threads):
            got = tracked.cache.attend(ids, query, **given)
        for one, other in zip(want, got):
            assert_bits_equal(other, one, f"{n_threads} threads")


def test_readers_in_parallel(backend, rng, kind):
    """Case 147: threads attend to the same and to other sequences at the same time."""
    tracked = Tracked(kind, 90, 4)
    a, b, c = tracked.filled(rng, KEY_TILE + 3, 9, 0)
    tracked.append(rng, [tracked.fork(a)], [5])
    jobs = [([a], 2), ([a, b], 4), ([b, a, c, a], 4), ([b], 1), ([c], 3), ([a, a], 2)]
    jobs = [(ids, tracked.queries(rng, n)) for ids, n in jobs]
    wanted = [tracked.cache.attend(*job, return_lse=True) for job in jobs]
    got, start = [None] * len(jobs), threading.Barrier(len(jobs))

    def work(n):
        with fastattn.use_backend(backend):
            start.wait(60)
            got[n] = [tracked.cache.attend(*jobs[n], return_lse=True) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results, want in zip(got, wanted):
        for one in results:
            assert_bits_equal(one[0], want[0])
            assert_bits_equal(one[1], want[1])


def test_nan_is_where_it_is_seen(backend, rng, kind):
    """A NaN in a key makes the rows that see it NaN and leaves the bits of the others."""
    tracked = Tracked(kind, 30, 4)
    key, value = tracked.draw(rng, 20)
    query = tracked.queries(rng, 12)
    results = []
    for number in (None, np.nan, -np.inf):
        k = key.copy()
        if number is not None:
            k[14, 1, 2] = number
        (id,) = [tracked.add()]
        tracked.append(rng, [id], [20], k, value)
        if number is None or np.isnan(number) or tracked.dtype == np.int8:
            results.append(tracked.check(rng, [id], [12], query, window=(3, 0)))
        tracked.free(id)
    seen = np.zeros((12, 4), bool)
    seen[6:10, 2:] = True  # rows 14 to 17 of the sequence, the heads of the second group
    for out, lse in results[1:]:
        assert (np.isnan(out.astype(F)).all(axis=2) == seen).all()
        assert (np.isnan(lse).T == seen).all()
        for x, y in ((out, results[0][0]), (lse.T, results[0][1].T)):
            assert_same(backend, x[~seen], y[~seen])


def test_bits_of_one_call_are_those_of_the_next(backend, rng, kind):
    """Also after appends to others, and in the lower right corner by name or by number."""
    tracked = Tracked(kind, 30, 16)
    a, b = tracked.filled(rng, 40, 7)
    query = tracked.queries(rng, 3)
    want = tracked.cache.attend(a, query)
    tracked.append(rng, [b], [50])
    assert_bits_equal(tracked.cache.attend(a, query), want)
    assert_bits_equal(tracked.cache.attend(a, query, **LOWER), want)
    assert_bits_equal(tracked.cache.attend(a, query, q_offset=[37]), want)
