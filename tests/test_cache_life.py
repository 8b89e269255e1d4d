# SPDX-License-Identifier: MIT
# KVCache: random lives of caches, growth, and what remains of an entry.
# Used by the suite, on every backend.
# What attend gives with each option is in test_cache.py, failures are in test_cache_errors.py.
"""Whatever happens to a cache, it holds what a plain list of tokens holds."""

import copy
import pickle
import weakref

import hypothesis.strategies as st
import numpy as np
import pytest
from cases import EXHAUSTIVE, SEED
from check import assert_bits_equal, assert_close, draw, expected
from check_cache import EVERY, cache_for
from hypothesis import seed, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import fastattn

HEADS, SIZE, VALUE_SIZE = 2, 5, 3  # of keys and values; there are twice as many query heads
COUNTS = st.one_of(st.integers(0, 4), st.just(37))
SEEDS = st.integers(0, 2**32 - 1)


class Life(RuleBasedStateMachine):
    """A cache and its model: for each entry, lists of keys and values of its tokens."""

    @initialize(
        n_batch=st.integers(0, 4),
        capacity=st.sampled_from([0, 1, 6]),
        dtype=st.sampled_from(["float32", "float64", "float16"]),
    )
    def begin(self, n_batch, capacity, dtype):
        self.dtype = np.dtype(dtype)
        self.cache = fastattn.KVCache(
            n_batch, HEADS, SIZE, value_head_size=VALUE_SIZE, capacity=capacity, dtype=dtype
        )
        self.entries = [([], []) for _ in range(n_batch)]

    def tokens(self, rng, n):
        shape = (len(self.entries), HEADS, n)
        return (draw(rng, (*shape, size), self.dtype) for size in (SIZE, VALUE_SIZE))

    def remember(self, entry, key, value):
        for seen, rows in zip(self.entries[entry], (key, value)):
            seen.extend(rows.swapaxes(0, 1).astype(np.float64))

    @rule(seed=SEEDS, n=COUNTS)
    def append(self, seed, n):
        key, value = self.tokens(np.random.default_rng(seed), n)
        self.cache.append(key, value)
        for entry in range(len(self.entries)):
            self.remember(entry, key[entry], value[entry])

    @rule(seed=SEEDS, n=COUNTS)
    def append_some(self, seed, n):
        rng = np.random.default_rng(seed)
        key, value = self.tokens(rng, n)
        lengths = rng.integers(0, n + 1, len(self.entries))
        for entry, real in enumerate(lengths):
            key[entry, :, real:] = value[entry, :, real:] = np.nan
            self.remember(entry, key[entry, :, :real], value[entry, :, :real])
        self.cache.append(key, value, lengths=lengths)

    @rule(seed=SEEDS, by=st.integers(0, 5))
    def truncate(self, seed, by):
        rng = np.random.default_rng(seed)
        lengths = [max(0, len(k) - rng.integers(0, by + 1)) for k, _ in self.entries]
        self.cache.truncate(lengths)
        for entry, n in zip(self.entries, lengths):
            for seen in entry:
                del seen[n:]

    @rule()
    def truncate_to_the_shortest(self):
        shortest = min((len(k) for k, _ in self.entries), default=0)
        self.cache.truncate(shortest)
        self.entries = [(k[:shortest], v[:shortest]) for k, v in self.entries]

    @rule(seed=SEEDS)
    def reorder(self, seed):
        n_batch = len(self.entries)
        indices = np.random.default_rng(seed).integers(0, max(n_batch, 1), n_batch)
        self.cache.reorder(indices)
        self.entries = [tuple(list(seen) for seen in self.entries[i]) for i in indices]

    @rule()
    def reset(self):
        capacity = self.cache.capacity
        self.cache.reset()
        assert self.cache.capacity == capacity
        self.entries = [([], []) for _ in self.entries]

    @rule(how=st.sampled_from([copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]))
    def go_on_with_a_copy(self, how):
        old = self.cache
        self.cache = how(old)
        assert repr(self.cache) == repr(old) and self.cache.dtype == self.dtype
        old.append(*(np.full_like(x, np.nan) for x in self.tokens(np.random.default_rng(0), 1)))

    @rule(seed=SEEDS, queries=st.integers(0, 4), window=st.sampled_from([None, (2, 0), (0, 1)]))
    def attend(self, seed, queries, window):
        rng = np.random.default_rng(seed)
        q = draw(rng, (len(self.entries), 2 * HEADS, queries, SIZE), self.dtype)
        out, lse = self.cache.attend(q, window=window, return_lse=True)
        assert out.dtype == self.dtype
        for entry, (key, value) in enumerate(self.entries):
            k = np.array(key).reshape(-1, HEADS, SIZE).swapaxes(0, 1)
            v = np.array(value).reshape(-1, HEADS, VALUE_SIZE).swapaxes(0, 1)
            want = expected(
                q[entry], k, v, is_causal=True, q_offset=k.shape[1] - queries, window=window
            )
            assert_close(out[entry], want.out, slack=want.out_slack, size=want.size)
            assert_close(lse[entry], want.lse, slack=want.lse_slack)

    @invariant()
    def has_the_lengths_of_its_entries(self):
        if hasattr(self, "cache"):
            lengths = self.cache.lengths
            assert lengths.dtype == np.int64
            assert lengths.tolist() == [len(k) for k, _ in self.entries]
            assert self.cache.capacity >= lengths.max(initial=0)


def test_random_lives(backend):
    run_state_machine_as_test(
        seed(SEED)(type("Life", (Life,), {})),
        settings=settings(max_examples=300 if EXHAUSTIVE else 40, stateful_step_count=20),
    )


@pytest.fixture
def tokens(rng):
    """tokens(n): key and value of so many new tokens of two entries."""
    return lambda n: tuple(draw(rng, (2, HEADS, n, size)) for size in (SIZE, VALUE_SIZE))


@pytest.mark.parametrize("first", [0, 1, 3])
def test_the_storage_doubles(tokens, first):
    """Tokens appended one by one cause few growths, and few copies of what is there."""
    cache = cache_for(*tokens(0), capacity=first)
    capacities, n_copied = [cache.capacity], 0
    for n in range(1000):
        before = cache._store
        cache.append(*tokens(1))
        if cache.capacity != capacities[-1]:
            capacities.append(cache.capacity)
            n_copied += n
        else:
            assert all(one is other for one, other in zip(before, cache._store))
    grown = capacities if first else capacities[1:]
    assert all(after == 2 * before for before, after in zip(grown, grown[1:]))
    assert len(capacities) < 13 and n_copied < 2 * 1000
    assert type(cache.capacity) is int


def test_a_long_prompt_gets_what_it_needs(tokens):
    cache = cache_for(*tokens(0))
    for n, capacity in ((7, 7), (1, 14), (100, 108), (1, 216)):
        cache.append(*tokens(n))
        assert cache.capacity == capacity
    cache.truncate(3)
    cache.append(*tokens(5))
    assert cache.capacity == 216 and cache.lengths.tolist() == [8, 8]
    cache.append(*tokens(300), lengths=[200, 0])  # only what is real needs room
    assert cache.capacity == 216 and cache.lengths.tolist() == [208, 8]


def test_what_is_forgotten_is_never_read(backend, rng, tokens):
    """NaN and infinities behind the lengths leave the bits as they are."""
    q = draw(rng, (2, HEADS, 3, SIZE))
    real, clean, poisoned = tokens(9), *(cache_for(*tokens(0), capacity=20) for _ in range(2))
    for cache, junk in ((clean, 0), (poisoned, np.nan), (poisoned, np.inf)):
        cache.reset()
        cache.append(*(np.full_like(x, junk) for x in tokens(20)))
        cache.truncate([4, 0])
        cache.reset()
        cache.append(*real, lengths=[9, 5])
        cache.truncate([8, 5])
        for options in ({}, {"window": (2, 0)}, {"is_causal": False}):
            got = cache.attend(q, **options, **EVERY)
            for one, other in zip(got, clean.attend(q, **options, **EVERY)):
                assert_bits_equal(one, other)
            assert all(np.isfinite(x).all() for x in got)


def test_beams(backend, rng, tokens):
    """Beam search: continuations of the best sequences take the places of the others."""
    q, (k, v) = draw(rng, (2, HEADS, 1, SIZE)), tokens(6)
    cache = cache_for(k, v)
    cache.append(k, v, lengths=[4, 6])
    for indices, lengths in (([1, 0], [6, 4]), ([0, 0], [6, 6]), (np.uint8([1, 1]), [6, 6])):
        cache.reorder(indices)
        assert cache.lengths.tolist() == lengths
        k, v = k[np.array(indices)], v[np.array(indices)]
        want = expected(q, k, v, kv_lengths=lengths)
        assert_close(cache.attend(q), want.out, slack=want.out_slack)


def test_copies_are_independent(backend, rng, tokens):
    """A copy has the tokens and the room of its original, and a life of its own."""
    q, (k, v) = draw(rng, (2, HEADS, 1, SIZE)), tokens(6)
    cache = cache_for(k, v, capacity=10)
    cache.append(k, v, lengths=[6, 2])
    wanted = cache.attend(q)
    others = [copy.copy(cache), copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))]
    assert pickle.dumps(cache) == pickle.dumps(others[0])  # no memory that was never written
    cache.append(*tokens(1))
    others[0].reorder([1, 0])
    others[0].reset()
    for other in others[1:]:
        assert other.capacity == 10 and other.lengths.tolist() == [6, 2]
        assert_bits_equal(other.attend(q), wanted)
    assert cache.lengths.tolist() == [7, 3] and others[0].lengths.tolist() == [0, 0]
    assert weakref.ref(cache)() is cache


def test_what_it_tells(dtype):
    cache = fastattn.KVCache(2, 3, 4, value_head_size=5, capacity=6, dtype=dtype)
    assert cache.capacity == 6 and cache.dtype is np.dtype(dtype)
    assert repr(cache) == (
        f"KVCache(2, 3, 4, value_head_size=5, capacity=6, dtype='{np.dtype(dtype).name}')"
    )
    cache.lengths[0] = 9  # a copy
    assert cache.lengths.tolist() == [0, 0]
    for name in ("lengths", "capacity", "dtype", "other"):
        with pytest.raises(AttributeError):
            setattr(cache, name, None)
