# SPDX-License-Identifier: MIT
# KVCache of int8 and of bfloat16: random lives, and what happens to entries that move.
# Used by the suite, on every backend.
# The other dtypes and the growth of the storage are in test_cache_life.py.
"""Whatever happens to a cache, it holds what was stored, with the same codes for ever."""

import copy
import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
from cases import EXHAUSTIVE, SEED
from check import assert_bits_equal, assert_close, draw, expected
from check_cache import EVERY
from check_int8 import USABLE_KINDS, as_dtypes, draw_tokens, stored
from hypothesis import seed, settings
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from test_cache_life import HEADS, SEEDS, SIZE, VALUE_SIZE, Life

import fastattn

F = np.float32
COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}


def some_options(rng, n_batch, queries, keys):
    """Random options of an attend to `n_batch` entries of at most so many keys."""
    terms = (n_batch, 2 * HEADS, queries, keys)
    every = {
        "is_causal": bool(rng.integers(2)),
        "window": (int(rng.integers(-1, 9)), int(rng.integers(-1, 4))),
        "scale": float(rng.standard_normal()),
        "softcap": 1.5,
        "alibi_slopes": draw(rng, (n_batch, 2 * HEADS)) / 4,
        "sinks": draw(rng, 2 * HEADS),
        "attn_mask": rng.random(terms) < 0.7,
        "bias": draw(rng, terms[1:]),
    }
    return {name: x for name, x in every.items() if rng.random() < 0.3}


class AnyLife(Life):
    """The machine of test_cache_life with tokens that are stored as something else, queries of
    their own dtype, and every option."""

    @initialize(
        n_batch=st.integers(0, 4),
        capacity=st.sampled_from([0, 1, 6]),
        kind=st.sampled_from(USABLE_KINDS[::-1]),
    )
    def begin(self, n_batch, capacity, kind):
        self.dtype, self.given, self.query = as_dtypes(kind)
        self.cache = fastattn.KVCache(
            n_batch, HEADS, SIZE, value_head_size=VALUE_SIZE, capacity=capacity, dtype=self.dtype
        )
        self.entries = [([], []) for _ in range(n_batch)]

    def tokens(self, rng, n):
        shape = (len(self.entries), HEADS, n)
        return (draw_tokens(rng, (*shape, size), self.given) for size in (SIZE, VALUE_SIZE))

    def remember(self, entry, key, value):
        for seen, rows in zip(self.entries[entry], (key, value)):
            seen.extend(stored(rows, self.dtype).swapaxes(0, 1))

    @rule(seed=SEEDS, queries=st.integers(0, 4), is_spoilt=st.booleans())
    def attend(self, seed, queries, is_spoilt):
        rng = np.random.default_rng(seed)
        lengths = [len(key) for key, _ in self.entries]
        n_batch, keys = len(lengths), max(lengths, default=0)
        if is_spoilt and n_batch:  # NaN behind the tokens
            self.cache.append(*(np.full_like(x, np.nan) for x in self.tokens(rng, 2)))
            self.cache.truncate(lengths)
        q = draw(rng, (n_batch, 2 * HEADS, queries, SIZE), self.query)
        options = some_options(rng, n_batch, queries, keys)
        out, lse, weights = self.cache.attend(q, **options, **EVERY)
        assert out.dtype == weights.dtype == self.query
        if n_batch == 0:
            return
        tokens = []
        for n, size in enumerate((SIZE, VALUE_SIZE)):
            padded = np.zeros((n_batch, keys, HEADS, size))
            for entry, seen in enumerate(self.entries):
                padded[entry, : lengths[entry]] = np.reshape(seen[n], (-1, HEADS, size))
            tokens.append(padded.swapaxes(1, 2))
        causal = {"is_causal": True, "q_offset": "lower_right", "kv_lengths": lengths}
        want = expected(q, *tokens, **causal | options)
        assert_close(out, want.out, slack=want.out_slack, size=want.size, context=str(options))
        assert_close(lse, want.lse, slack=want.lse_slack, context=str(options))
        assert_close(weights, want.weights, slack=want.weights_slack, context=str(options))


def test_random_lives(backend):
    run_state_machine_as_test(
        seed(SEED)(type("AnyLife", (AnyLife,), {})),
        settings=settings(max_examples=300 if EXHAUSTIVE else 35, stateful_step_count=20),
    )


@pytest.fixture
def filled(rng, int8_kind):
    """A cache of three entries of 6, 2 and 5 tokens, and a query."""
    tokens = (draw(rng, (3, HEADS, 6, size), int8_kind[1]) for size in (SIZE, VALUE_SIZE))
    cache = fastattn.KVCache(3, HEADS, SIZE, value_head_size=VALUE_SIZE, capacity=9, dtype="int8")
    cache.append(*tokens, lengths=[6, 2, 5])
    return cache, draw(rng, (3, 2 * HEADS, 2, SIZE), int8_kind[2])


def test_reorder_moves_the_codes(backend, filled):
    """Entries go with their scales and lengths: the bits go along."""
    cache, q = filled
    wanted = cache.attend(q, return_lse=True)
    order = np.array([2, 0, 2])
    cache.reorder(order)
    assert cache.lengths.tolist() == [5, 6, 5]
    got = cache.attend(q[order], return_lse=True)
    for one, other in zip(got, wanted):
        if backend == "numpy":
            assert_close(one, other[order].astype(np.float64))
        else:
            assert_bits_equal(one, other[order])


def test_truncate_and_reset(backend, rng, filled):
    """What is forgotten leaves no scale behind: the same tokens have the same bits again."""
    cache, q = filled
    wanted = cache.attend(q)
    junk = (np.full((3, HEADS, 7, size), 1e4, F) for size in (SIZE, VALUE_SIZE))
    cache.append(*junk)
    cache.truncate([6, 2, 5])
    assert_bits_equal(cache.attend(q), wanted)
    fresh = [draw(rng, (3, HEADS, 4, size)) for size in (SIZE, VALUE_SIZE)]
    cache.reset()
    assert cache.lengths.tolist() == [0, 0, 0] and not cache.attend(q).any()
    cache.append(*fresh)
    other = fastattn.KVCache(3, HEADS, SIZE, value_head_size=VALUE_SIZE, dtype="int8")
    other.append(*fresh)
    assert_bits_equal(cache.attend(q), other.attend(q))


def test_growth_keeps_the_codes(backend, rng):
    """Each larger storage has the codes and scales of the one before."""
    tokens = [draw(rng, (2, HEADS, 40, size)) for size in (SIZE, VALUE_SIZE)]
    q = draw(rng, (2, 2 * HEADS, 1, SIZE))
    whole, grown = (
        fastattn.KVCache(2, HEADS, SIZE, value_head_size=VALUE_SIZE, capacity=n, dtype="int8")
        for n in (40, 0)
    )
    whole.append(*tokens)
    for n in range(40):
        grown.append(*(x[:, :, n : n + 1] for x in tokens))
    assert grown.capacity > 40 and whole.capacity == 40
    for one, other in zip(grown.attend(q, **EVERY), whole.attend(q, **EVERY)):
        assert_bits_equal(one, other)


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_independent(backend, filled, how):
    """With the bits, the room and the lengths of the original, and a life of their own."""
    cache, q = filled
    wanted = cache.attend(q)
    other = COPIES[how](cache)
    assert repr(other) == repr(cache) and other.dtype == np.int8
    assert other.capacity == 9 and other.lengths.tolist() == [6, 2, 5]
    assert_bits_equal(other.attend(q), wanted)
    again = COPIES[how](other)
    cache.append(*(np.ones((3, HEADS, 1, size), F) for size in (SIZE, VALUE_SIZE)))
    other.reset()
    assert_bits_equal(again.attend(q), wanted)
    assert cache.lengths.tolist() == [7, 3, 6]


def test_rows_that_are_nan_stay_nan_in_copies(backend, rng):
    tokens = [draw(rng, (1, 1, 5, size)) for size in (SIZE, VALUE_SIZE)]
    tokens[1][0, 0, 3, 0] = np.nan
    cache = fastattn.KVCache(1, 1, SIZE, value_head_size=VALUE_SIZE, dtype="int8")
    cache.append(*tokens)
    for how in COPIES.values():
        out = how(cache).attend(draw(rng, (1, 1, 5, SIZE)))
        assert np.isnan(out).all(axis=-1).ravel().tolist() == [False] * 3 + [True] * 2
