# SPDX-License-Identifier: MIT
# PagedKVCache: what attend gives after what was appended, for any page size and option.
# Used by the suite, on every backend.
# Pages are counted in test_paged_pages.py; bits, lives, errors and limits have their own files.
"""attend gives what varlen_attention gives over the concatenated tokens of the sequences."""

import inspect

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_SPLIT, KEY_TILE, QUERY_BLOCK
from check import accumulator, assert_bits_equal, assert_close, draw
from check_int8 import as_dtype
from check_paged import LOWER, Tracked
from check_varlen import cumulated
from test_lengths_offsets import integer_forms

import fastattn

F = np.float32
FLOAT32, INT8 = ("float32",) * 3, ("int8", "float32", "float32")
PAGE_SIZES = [1, 3, 16, 17, 64, 256]


def defaults(function):
    return {n: p.default for n, p in inspect.signature(function).parameters.items()
            if p.kind is p.KEYWORD_ONLY}  # fmt: skip


def test_signatures():
    paged = fastattn.PagedKVCache
    assert "PagedKVCache" in fastattn.__all__
    names = ["num_pages", "page_size", "num_kv_heads", "head_size", "value_head_size", "dtype"]
    assert list(inspect.signature(paged).parameters) == names
    assert defaults(paged) == {"value_head_size": None, "dtype": "float32"}
    assert list(inspect.signature(paged.append).parameters)[1:4] == ["ids", "key", "value"]
    assert defaults(paged.append) == {"cu_seqlens": None}
    assert list(inspect.signature(paged.attend).parameters)[1:3] == ["ids", "query"]
    assert defaults(paged.attend) == {
        "cu_seqlens_q": None, "is_causal": True, "scale": None, "q_offset": "lower_right",
        "window": None, "softcap": 0.0, "alibi_slopes": None, "sinks": None, "out": None,
        "return_lse": False,
    }  # fmt: skip


def test_by_hand(backend, kind):
    """Equal scores: the mean of the values that a row sees; queries sit at the end."""
    dtype, given, query = kind
    cache = fastattn.PagedKVCache(5, 2, 1, 3, value_head_size=1, dtype=dtype)
    a, b = cache.add_sequence(), cache.add_sequence()
    for ids, values, ends in (([a, b], [1, 2, 4], [0, 1, 3]), (a, [3, 8], None)):
        value = np.array(values, given).reshape(-1, 1, 1)
        cache.append(ids, np.zeros((len(values), 1, 3), given), value, cu_seqlens=ends)
    q = np.zeros((5, 1, 3), query)
    for options, means, counts in (
        ({}, [2, 4, 0, 2, 3], [2, 3, 0, 1, 2]),
        ({"is_causal": False}, [4, 4, 3, 3, 3], [3, 3, 2, 2, 2]),
        ({"window": (0, 0)}, [3, 8, 0, 2, 4], [1, 1, 0, 1, 1]),
        ({"q_offset": 0}, [1, 2, 2, 3, 3], [1, 2, 1, 2, 2]),
    ):
        out, lse = cache.attend([a, b], q, cu_seqlens_q=[0, 2, 5], return_lse=True, **options)
        assert_close(out.ravel(), np.array(means, float))
        with np.errstate(divide="ignore"):
            assert_close(lse, np.log([counts]))


OPTIONS = {
    "plain": lambda rng: {},
    "scale": lambda rng: {"scale": -0.7, "softcap": 0.9},
    "not causal": lambda rng: {"is_causal": False},
    "offset": lambda rng: {"q_offset": 3, "scale": np.float64(2)},
    "offsets": lambda rng: {"q_offset": rng.integers(-3, 9, 3), "window": (5, 0)},
    "window": lambda rng: {"window": 4},
    "window to the left": lambda rng: {"window": (3, None), "is_causal": False},
    "slopes": lambda rng: {"alibi_slopes": draw(rng, 4) / 8, "softcap": None},
    "slopes of sequences": lambda rng: {"alibi_slopes": draw(rng, (3, 4), np.float64) / 8},
    "sinks": lambda rng: {"sinks": np.array([0.5, -np.inf, 2, -1], F)},
    "all": lambda rng: {
        "scale": 0.3, "softcap": 2.0, "window": (9, 1), "alibi_slopes": draw(rng, (3, 4)) / 8,
        "sinks": draw(rng, 4), "q_offset": rng.integers(0, 20, 3), "is_causal": True,
    },
}  # fmt: skip
STEPS = [(7, 3, 0), (1, 1, 0), (1, 1, 1), (4, 0, 2), (10, 6, 1)]


def test_steps(backend, rng, kind, sample):
    """Prompts, tokens, chunks of three sequences: each step sees all that came before."""
    for name in sample(OPTIONS, 4):
        for page_size in sample([1, 3, 4, 16, 32], 1):
            tracked = Tracked(kind, 3 * 23 // page_size + 3, page_size)
            ids = [tracked.add() for _ in range(3)]
            for counts in [*STEPS, (1, 30, 0)]:
                if counts in STEPS:
                    tracked.append(rng, ids, counts)
                context, options = f"{name} {page_size} {counts}", OPTIONS[name](rng)
                tracked.check(rng, ids, counts, context=context, **options)


def test_page_sizes(backend, rng, kind, sample):
    """Sequences that end before, at and after the end of a page, for decoding and prefill; where
    the dtypes allow it, the numbers are also compared with those of varlen_attention."""
    for page_size in sample(PAGE_SIZES, 3):
        ends = [page_size - 1, page_size, page_size + 1, 2 * page_size + 1]
        tracked = Tracked(kind, 10, page_size, kv_heads=1, dim=4, dv=3)
        ids = tracked.filled(rng, *ends)
        for counts in ([1] * 4, [min(n, QUERY_BLOCK + 1) for n in ends]):
            query = tracked.queries(rng, sum(counts))
            got = tracked.check(rng, ids, counts, query, context=f"{page_size} {counts}")
            if tracked.dtype != query.dtype and query.dtype != F:
                continue  # the keys would be rounded once more
            k, v, cu_k = tracked.packed(ids)
            given = (query, k.astype(query.dtype), v.astype(query.dtype), cumulated(counts), cu_k)
            want = fastattn.varlen_attention(*given, return_lse=True, **LOWER)
            for one, other in zip(got, want):
                assert_close(one, other.astype(np.float64))


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("names", [FLOAT32, INT8, ("float16", "float16", "float32")], ids="-".join)
def test_many_keys(backend, rng, names, page_size):
    """Decoding over more keys than a chunk and a split have; blocks of queries over tiles."""
    kind = tuple(as_dtype(name) for name in names)
    lengths = [2 * KEY_SPLIT + 1, KEY_CHUNK + 1, KEY_TILE + 1]
    n_pages = sum(-(-n // page_size) for n in lengths)
    tracked = Tracked(kind, n_pages, page_size, kv_heads=1, dim=4, dv=3)
    ids = tracked.filled(rng, *lengths)
    tracked.check(rng, ids, [1, 1, 2])
    tracked.check(rng, ids[1:], [2, QUERY_BLOCK + 1], window=(KEY_TILE, 3))
    tracked.check(rng, ids[:1], [3], window=(KEY_SPLIT, 0), softcap=2.0)


@pytest.mark.parametrize("heads", [(1, 1, 1), (3, 7, 17), (2, 33, 16), (1, 128, 64)], ids=str)
def test_heads_and_sizes(backend, rng, kind, heads):
    """Grouped heads; any size of keys and values."""
    kv_heads, dim, dv = heads
    tracked = Tracked(kind, 9, 8, kv_heads=kv_heads, dim=dim, dv=dv)
    ids = tracked.filled(rng, 5, 19, 0)
    for group in (1, 5):
        query = draw(rng, (8, group * kv_heads, dim), tracked.query)
        tracked.check(rng, ids, (3, 1, 4), query, context=str(group))


def test_a_sequence_may_be_asked_twice(backend, rng, kind):
    """Each time with queries and options of its own."""
    tracked = Tracked(kind, 9, 4)
    a, b = tracked.filled(rng, 9, 6)
    asked = [b, a, b, b]
    tracked.check(rng, asked, (2, 3, 1, 0))
    tracked.check(rng, asked, (2, 0, 5, 1), q_offset=[1, 2, 3, 0])


def test_equally_many_of_each(backend, rng, kind):
    """Without cumulated lengths tokens and queries are shared out evenly."""
    tracked = Tracked(kind, 9, 4)
    ids = [tracked.add() for _ in range(3)]
    key, value = tracked.draw(rng, 12)
    tracked.append(rng, ids, (4, 4, 4), key, value)
    query = tracked.queries(rng, 6)
    want = tracked.check(rng, ids, (2, 2, 2), query)
    cache = fastattn.PagedKVCache(9, 4, 2, 5, value_head_size=7, dtype=tracked.dtype)
    ids = [cache.add_sequence() for _ in range(3)]
    cache.append(ids, key, value)
    got = cache.attend(ids, query, return_lse=True)
    for one, other in zip(got, want):
        assert_bits_equal(one, other)
    cache.append(ids[1], key[:5], value[:5])
    assert cache.lengths(ids).tolist() == [4, 9, 4]
    assert_bits_equal(cache.attend(ids[0], query[:2]), want[0][:2])


def test_results_asked_for(backend, rng, kind):
    """(tokens, heads, size) and (heads, tokens) in fresh memory, or in `out` of any strides."""
    tracked = Tracked(kind, 9, 4)
    ids, query = tracked.filled(rng, 6, 9), tracked.queries(rng, 4)
    attend = tracked.cache.attend
    out, lse = attend(ids, query, return_lse=True)
    assert (out.shape, lse.shape) == ((4, 4, 7), (4, 4)) and type(out) is np.ndarray
    assert (out.dtype, lse.dtype) == (query.dtype, accumulator(query.dtype))
    assert out.flags.writeable and lse.flags.writeable
    assert_bits_equal(attend(ids, query), out)
    base = np.full((8, 5, 14), np.nan, query.dtype)
    view = base[::2, :0:-1, 12::-2]
    assert attend(ids, query, out=view) is view
    assert_bits_equal(view, out)
    assert np.isnan(base).sum() == base.size - view.size
    wide = np.zeros((4, 4, 7), query.dtype)  # case 118: the place of the query
    wide[..., :5] = query
    attend(ids, wide[..., :5], out=wide)
    assert_bits_equal(wide, out)


def test_arrays_and_integers_of_any_kind(backend, rng, kind):
    """Strides, alignment, byte orders, read-only memory; ids and ends of any integer dtype."""
    tracked = Tracked(kind, 9, 4)
    key, value = tracked.draw(rng, 9)
    query = tracked.queries(rng, 5)

    def results(form, integers):
        cache = fastattn.PagedKVCache(9, 4, 2, 5, value_head_size=7, dtype=tracked.dtype)
        ids = integers([cache.add_sequence() for _ in range(3)])
        cache.append(ids, form(key), form(value), cu_seqlens=integers([0, 4, 4, 9]))
        cache.truncate(ids, integers([4, 0, 3]))
        assert cache.lengths(ids).tolist() == [4, 0, 3]
        cu = integers([0, 1, 2, 5])
        return cache.attend(ids, form(query), cu_seqlens_q=cu, q_offset=integers([2, 1, 0]))

    def misaligned(x):
        copy = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
        copy[...] = x
        return copy

    wanted = results(lambda x: x, lambda x: x)
    forms = [
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        lambda x: x[::-1].copy()[::-1],
        lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
        misaligned,
    ]
    if {x.kind for x in (query.dtype, tracked.tokens)} == {"f"}:
        forms += [lambda x: x.astype(x.dtype.newbyteorder(">"))]
    for form in forms:
        assert_close(results(form, lambda x: x), wanted.astype(np.float64))
    for name, _ in integer_forms([0, 1]):
        got = results(lambda x: x, lambda x, name=name: dict(integer_forms(x))[name])
        assert_bits_equal(got, wanted, name)
