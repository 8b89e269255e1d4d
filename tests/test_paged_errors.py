# SPDX-License-Identifier: MIT
# PagedKVCache: wrong calls.
# Used by the suite; nothing is computed but to see that nothing has changed.
# Wrong queries are in test_paged_queries.py, too few pages in test_paged_pages.py.
"""A call that fails names the argument and leaves the cache as it was."""

from functools import partial

import numpy as np
import pytest
from check import assert_bits_equal, draw
from check_int8 import as_dtype

import fastattn

F = np.float32
EITHER = (TypeError, ValueError)


def zeros(*shape, dtype=F):
    return np.zeros(shape, dtype)


class Given:
    """A cache of 9 pages of 4 tokens, 2 heads, sizes 8 and 6; sequences of 5 and 3 tokens, and
    one that is gone."""

    def __init__(self, dtype=F, tokens=F):
        self.cache = fastattn.PagedKVCache(9, 4, 2, 8, value_head_size=6, dtype=dtype)
        self.a, self.b, self.gone = (self.cache.add_sequence() for _ in range(3))
        rng = np.random.default_rng(5)
        for id, n in ((self.a, 5), (self.b, 3), (self.gone, 9)):
            self.cache.append(id, draw(rng, (n, 2, 8), tokens), draw(rng, (n, 2, 6), tokens))
        self.cache.free(self.gone)
        self.query = zeros(2, 4, 8, dtype=tokens)

    def state(self):
        ids = [self.a, self.b]
        out = self.cache.attend(ids, self.query)
        return out, self.cache.lengths(ids).tolist(), self.cache.num_free_pages

    def fails(self, error, message, call):
        """The call fails with that, and nothing of the cache is different."""
        before = self.state()
        with pytest.raises(error, match=message):
            call()
        after = self.state()
        assert_bits_equal(after[0], before[0])
        assert after[1:] == before[1:] == ([5, 3], 6)
        assert self.cache.add_sequence() not in (self.a, self.b, self.gone)


@pytest.fixture
def given():
    return Given()


NEW = [
    *(({n: -1}, ValueError) for n in ("num_pages", "page_size", "num_kv_heads", "head_size")),
    *(({n: x}, TypeError) for n in ("num_pages", "page_size", "num_kv_heads", "head_size")
      for x in (None, True, 2.0, "2", np.array([1, 2]))),
    ({"page_size": 0}, ValueError),
    ({"value_head_size": -1}, ValueError),
    ({"value_head_size": 2.0}, TypeError),
    ({"value_head_size": False}, TypeError),
    *(({"dtype": x}, TypeError) for x in (None, "float33", int, "uint8", "int16", complex, 7)),
    ({"num_pages": 2**45}, MemoryError, ""),
    ({"num_pages": 2**70}, MemoryError, ""),
    ({"page_size": 2**70}, MemoryError, ""),
    ({"head_size": 2**45, "num_kv_heads": 2**40}, MemoryError, ""),
]  # fmt: skip


@pytest.mark.parametrize("wrong", NEW, ids=lambda w: str(w[0]))
def test_wrong_sizes_and_dtypes(wrong):
    change, error, *message = wrong
    right = {"num_pages": 4, "page_size": 3, "num_kv_heads": 2, "head_size": 8}
    with pytest.raises(error, match=f"^{message[0] if message else [*change][0]}"):
        fastattn.PagedKVCache(**right | change)


def test_message_of_the_dtype_tells_what_there_is():
    with pytest.raises(TypeError, match="^dtype: .*float16.*bfloat16.*float32.*float64") as caught:
        fastattn.PagedKVCache(4, 3, 2, 8, dtype="uint8")
    assert "int8" in str(caught.value) and "uint8" in str(caught.value)


# How an argument of ids may be wrong, from the cache at hand.
IDS = [
    (lambda g: [g.a, g.gone], ValueError, lambda g: g.gone),
    (lambda g: g.gone, ValueError, lambda g: g.gone),
    (lambda g: [99, g.a], ValueError, lambda g: 99),
    (lambda g: [g.a, -1], ValueError, lambda g: -1),
    (lambda g: -7, ValueError, lambda g: -7),
    (lambda g: np.array([g.b, 2**63], np.uint64), ValueError, lambda g: 2**63),
    (lambda g: np.array([g.b, 2**32 + g.a]), ValueError, lambda g: 2**32 + g.a),
    (lambda g: [[g.a, g.b]], ValueError, None),
    (lambda g: [float(g.a), float(g.b)], TypeError, None),
    (lambda g: float(g.a), TypeError, None),
    (lambda g: True, TypeError, None),
    (lambda g: [True, False], TypeError, None),
    (lambda g: np.ma.array([g.a, g.b]), TypeError, None),
    (lambda g: None, TypeError, None),
    (lambda g: str(g.a), TypeError, None),
    (lambda g: [str(g.a), str(g.b)], TypeError, None),
]
TAKERS = {
    "append": lambda cache, ids, n: cache.append(ids, zeros(2 * n, 2, 8), zeros(2 * n, 2, 6)),
    "attend": lambda cache, ids, n: cache.attend(ids, zeros(2 * n, 4, 8)),
    "truncate": lambda cache, ids, n: cache.truncate(ids, [1] * n if n != 1 else 1),
    "lengths": lambda cache, ids, n: cache.lengths(ids),
}


@pytest.mark.parametrize("n", range(len(IDS)))
@pytest.mark.parametrize("method", TAKERS)
def test_wrong_ids(given, method, n):
    ids, error, named = IDS[n]
    wrong = ids(given)
    message = r"^ids\b" if named is None else rf"^ids\b.*(?<![\d.]){named(given)}\b"
    count = 1 if np.ndim(wrong) == 0 else len(wrong)
    given.fails(error, message, lambda: TAKERS[method](given.cache, wrong, count))


@pytest.mark.parametrize("method", ["fork", "free"])
def test_wrong_id_of_one_sequence(given, method):
    call = getattr(given.cache, method)
    for wrong in (given.gone, 99, -1, 2**70):
        given.fails(ValueError, rf"^ids?\b.*(?<!\d){wrong}\b", partial(call, wrong))
    for wrong in (True, float(given.a), str(given.a), None, [given.a], np.array([given.a])):
        given.fails(EITHER, r"^ids?\b", partial(call, wrong))
    for wrong in (True, float(given.a), str(given.a), None):
        with pytest.raises(TypeError):
            call(wrong)


def test_ids_that_repeat(given):
    """Only attend may be asked for a sequence twice."""
    ids, tokens = [given.a, given.b, given.a], (zeros(3, 2, 8), zeros(3, 2, 6))
    given.fails(ValueError, rf"^ids\b.*\b{given.a}\b", lambda: given.cache.append(ids, *tokens))


APPENDED = [
    ("key", zeros(4, 8), ValueError, "key"),
    ("key", zeros(1, 4, 2, 8), ValueError, "key"),
    ("key", zeros(4, 1, 8), ValueError, "key"),
    ("key", zeros(4, 2, 6), ValueError, r"key: .*8.*6"),
    ("key", zeros(2, 2, 8), ValueError, "(key|value|cu_seqlens)"),
    ("key", zeros(4, 2, 8, dtype="f8"), TypeError, "key: .*float32.*float64"),
    ("key", zeros(4, 2, 8, dtype="f2"), TypeError, "key: .*float32.*float16"),
    ("key", zeros(4, 2, 8, dtype=int), TypeError, "key"),
    ("key", zeros(4, 2, 8, dtype="i1"), TypeError, "key"),
    ("key", None, TypeError, "key"),
    ("key", [[1.0], [2.0, 3.0]], ValueError, "key"),
    ("key", np.ma.zeros((4, 2, 8), F), TypeError, "key"),
    ("value", zeros(4, 2, 8), ValueError, "value: .*6.*8"),
    ("value", zeros(0, 2, 6), ValueError, "value"),
    ("value", zeros(5, 2, 6), ValueError, "value: .*4.*5"),
    ("value", zeros(4, 3, 6), ValueError, "value"),
    ("value", zeros(4, 2, 6, dtype="f2"), TypeError, "value"),
    ("value", np.ma.zeros((4, 2, 6), F), TypeError, "value"),
]
ENDS = [
    *(([x, ValueError]) for x in ([0, 4], [0, 1, 2, 4], [], 4, [[0, 2, 4]], [1, 2, 4], [-1, 2, 4])),
    *(([x, ValueError]) for x in ([0, 5, 4], [0, -1, 4], [0, 2, 5], [0, 2, 3], [0, 2, 2**32 + 4])),
    *(([x, ValueError]) for x in (np.uint8([0, 3, 2]), np.uint64([0, 2**63, 4]))),
    *(([x, TypeError]) for x in ([0.0, 2.0, 4.0], [False, True, True], "024", zeros(3))),
    [np.ma.array([0, 2, 4]), TypeError],
]
APPENDED += [("cu_seqlens", *x, r"cu_seqlens\b") for x in ENDS]


@pytest.mark.parametrize("n", range(len(APPENDED)), ids=lambda n: f"{n}-{APPENDED[n][3]}")
def test_wrong_tokens(given, n):
    name, wrong, error, message = APPENDED[n]
    call = {"key": zeros(4, 2, 8), "value": zeros(4, 2, 6), "cu_seqlens": [0, 1, 4]} | {name: wrong}
    ids = [given.a, given.b]
    given.fails(error, f"^{message}", lambda: given.cache.append(ids, **call))


def test_tokens_that_cannot_be_shared_out(given):
    """Three tokens or queries for two sequences; one for none."""
    cache, ids = given.cache, [given.a, given.b]
    for some, n in ((ids, 3), ([], 1)):
        append = partial(cache.append, some, zeros(n, 2, 8), zeros(n, 2, 6))
        given.fails(ValueError, "^(key|cu_seqlens|ids)", append)
        attend = partial(cache.attend, some, zeros(n, 4, 8))
        given.fails(ValueError, "^(query|cu_seqlens_q|ids)", attend)


@pytest.mark.parametrize(("dtype", "good", "bad"), [
    ("float16", ["f2"], ["f4", "f8", "i4", "i1"]),
    ("float64", ["f8"], ["f4", "f2", "i8"]),
    ("bfloat16", ["bfloat16"], ["f4", "f2", "f8", "u2"]),
    ("int8", ["f4", "f2", "bfloat16"], ["f8", "i1", "i4", "u1"]),
])  # fmt: skip
def test_dtypes_of_tokens(dtype, good, bad):
    """Nothing is rounded silently, but for int8; and keys and values share one dtype."""
    cache = fastattn.PagedKVCache(9, 4, 2, 8, value_head_size=6, dtype=as_dtype(dtype))
    id = cache.add_sequence()
    good = [as_dtype(name) for name in good]
    for one in good:
        cache.append(id, zeros(1, 2, 8, dtype=one), zeros(1, 2, 6, dtype=one))
    for other in [np.dtype(name) for name in bad]:
        with pytest.raises(TypeError, match="^key"):
            cache.append(id, zeros(1, 2, 8, dtype=other), zeros(1, 2, 6, dtype=other))
    for one, other in [(good[0], np.dtype(name)) for name in bad] + list(zip(good, good[1:])):
        with pytest.raises(TypeError, match=rf"^(key, )?value\b.*{other.name}"):
            cache.append(id, zeros(1, 2, 8, dtype=one), zeros(1, 2, 6, dtype=other))
    assert cache.lengths(id).tolist() == [len(good)]


LENGTHS = [
    ([6, 1], ValueError, r".*\b5\b.*\b6\b"),
    ([2, 4], ValueError, r".*\b3\b.*\b4\b"),
    ([-1, 2], ValueError, ".*-1"),
    (np.array([2**32 + 1, 1]), ValueError, ""),
    (np.uint64([1, 2**63]), ValueError, ""),
    ([1, 1, 1], ValueError, ""),
    ([[1, 1]], ValueError, ""),
    ([1.0, 1.0], TypeError, ""),
    ([True, True], TypeError, ""),
    (1.0, TypeError, ""),
    (None, TypeError, ""),
    ("11", TypeError, ""),
]


@pytest.mark.parametrize("wrong", LENGTHS, ids=lambda w: str(w[0]))
def test_wrong_lengths(given, wrong):
    lengths, error, message = wrong
    ids = [given.a, given.b]
    given.fails(error, rf"^lengths\b{message}", lambda: given.cache.truncate(ids, lengths))


def test_ends_are_keyword_only(given):
    tokens = zeros(1, 2, 8), zeros(1, 2, 6)
    given.fails(TypeError, "append", lambda: given.cache.append(given.a, *tokens, [0, 1]))
    given.fails(TypeError, "attend", lambda: given.cache.attend(given.a, zeros(1, 4, 8), [0, 1]))
