# SPDX-License-Identifier: MIT
# PagedKVCache: random lives of caches, and copies of them.
# Used by the suite, on every backend.
# What attend gives with each option is in test_paged.py, counts of pages in test_paged_pages.py.
"""Whatever happens to a paged cache, it holds what plain lists of tokens hold."""

import copy
import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
from cases import EXHAUSTIVE, SEED
from check import assert_bits_equal, draw
from check_int8 import USABLE_KINDS, as_dtypes
from check_paged import Tracked, poison
from hypothesis import seed, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

SEEDS = st.integers(0, 2**32 - 1)
COUNTS = st.lists(st.sampled_from([1, 2, 0, 3, 1, 2, 4, 5, 1, 19]), min_size=1, max_size=3)
COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}


def some_options(rng, n):
    """Random options of an attend to n sequences."""
    every = {
        "is_causal": bool(rng.integers(2)),
        "q_offset": [rng.integers(-4, 30, n), 2, "lower_right"][rng.integers(3)],
        "window": (int(rng.integers(-1, 9)), int(rng.integers(-1, 4))),
        "scale": float(rng.standard_normal()),
        "softcap": 1.5,
        "alibi_slopes": draw(rng, [(4,), (n, 4)][rng.integers(2)]) / 4,
        "sinks": draw(rng, 4),
    }
    return {name: x for name, x in every.items() if rng.random() < 0.3}


class PagedLife(RuleBasedStateMachine):
    """Calls on a cache and its model, which check each other; rules choose by the seed."""

    @initialize(
        num_pages=st.sampled_from([25, 5, 60]),
        page_size=st.sampled_from([3, 4, 1, 16]),
        kind=st.sampled_from(USABLE_KINDS),
    )
    def begin(self, num_pages, page_size, kind):
        self.tracked = Tracked(as_dtypes(kind), num_pages, page_size)
        for _ in range(3):
            self.tracked.add()

    def has_sequences(self):
        return bool(self.tracked.held)

    def choose(self, rng, n, distinct=True):
        """Up to n of the sequences."""
        ids = list(self.tracked.held)
        n = min(n, len(ids)) if distinct else n * bool(ids)
        return [ids[i] for i in rng.choice(len(ids), n, replace=not distinct)] if n else []

    @rule()
    def add(self):
        self.tracked.add()

    @precondition(has_sequences)
    @rule(seed=SEEDS, counts=st.tuples(st.integers(0, 3), st.integers(0, 3)))
    def fork(self, seed, counts):
        """A beam: the two go on in different ways, one after the other or at once."""
        rng = np.random.default_rng(seed)
        (id,) = self.choose(rng, 1)
        fork = self.tracked.fork(id)
        self.tracked.check_state()
        self.append_or_not(rng, [fork], counts[:1])
        self.append_or_not(rng, [id, fork][:: rng.choice([1, -1])], counts)
        self.tracked.check(rng, [id, fork], [1, 1])

    @precondition(has_sequences)
    @rule(seed=SEEDS)
    def free(self, seed):
        (id,) = self.choose(np.random.default_rng(seed), 1)
        self.tracked.free(id)
        with pytest.raises(ValueError, match=rf"\b{id}\b"):
            self.tracked.cache.lengths([id])

    def append_or_not(self, rng, ids, counts):
        """All of it, or MemoryError and nothing: `check_state` follows."""
        few, many = self.tracked.pages_taken(ids, counts)
        n_free = self.tracked.n_free()
        try:
            self.tracked.append(rng, ids, counts)
        except MemoryError:
            assert many > n_free
        else:
            assert few <= n_free
        self.tracked.check_state()

    @rule(seed=SEEDS, counts=COUNTS)
    def append(self, seed, counts):
        rng = np.random.default_rng(seed)
        ids = self.choose(rng, len(counts))
        self.append_or_not(rng, ids, counts[: len(ids)])

    @rule(seed=SEEDS)
    def step(self, seed):
        """A token for each sequence, and a query."""
        rng, ids = np.random.default_rng(seed), list(self.tracked.held)[:9]
        self.append_or_not(rng, ids, [1] * len(ids))
        self.tracked.check(rng, ids, [1] * len(ids))

    @precondition(has_sequences)
    @rule(seed=SEEDS, n=st.integers(1, 3), by=st.sampled_from([0, 1, 3, 40]))
    def truncate(self, seed, n, by):
        rng = np.random.default_rng(seed)
        ids = self.choose(rng, n)
        lengths = [max(0, self.tracked.length(id) - int(rng.integers(0, by + 1))) for id in ids]
        self.tracked.truncate(ids, lengths)

    @rule(number=st.sampled_from([np.nan, np.inf]))
    def spoil_what_is_free(self, number):
        poison(self.tracked, number)

    @rule(how=st.sampled_from(list(COPIES)))
    def go_on_with_a_copy(self, how):
        old = self.tracked.cache
        new = self.tracked.cache = COPIES[how](old)
        assert repr(new) == repr(old) and new.dtype == self.tracked.dtype
        for id in self.tracked.held:
            old.free(id)
        assert old.num_free_pages == old.num_pages
        old.add_sequence()

    @rule(seed=SEEDS, counts=COUNTS)
    def attend(self, seed, counts):
        rng = np.random.default_rng(seed)
        ids = self.choose(rng, len(counts), distinct=False)
        counts = counts[: len(ids)]
        options = some_options(rng, len(ids))
        self.tracked.check(rng, ids, counts, context=f"{counts} {options}", **options)

    @invariant()
    def is_as_the_model(self):
        if hasattr(self, "tracked"):
            self.tracked.check_state()


def test_random_lives(backend):
    run_state_machine_as_test(
        seed(SEED)(type("PagedLife", (PagedLife,), {})),
        settings=settings(max_examples=300 if EXHAUSTIVE else 25, stateful_step_count=30),
    )


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_independent(backend, rng, kind, how):
    """Ids stay valid, pages stay shared, bits stay the same; each has a life of its own."""
    tracked = Tracked(kind, 12, 4)
    a, b = tracked.filled(rng, 10, 3)
    c, gone = tracked.fork(a), tracked.add()
    tracked.append(rng, [gone], [7])
    tracked.free(gone)
    cache = tracked.cache
    query = tracked.queries(rng, 3)
    want = cache.attend([a, b, c], query)
    other = COPIES[how](cache)
    assert type(other) is type(cache) and repr(other) == repr(cache)
    assert (other.num_pages, other.page_size, other.dtype) == (12, 4, tracked.dtype)
    assert other.num_free_pages == cache.num_free_pages == 12 - 4
    with pytest.raises(ValueError, match=rf"\b{gone}\b"):
        other.lengths([gone])
    assert other.add_sequence() not in (a, b, c, gone)
    tracked.append(rng, [a, b, c], [2, 1, 1])
    assert other.lengths([a, b, c]).tolist() == [10, 3, 10]
    assert_bits_equal(other.attend([a, b, c], query), want)
    junk = tracked.draw(rng, 1)
    other.append(c, *junk)  # a copy of the shared page
    other.free(a)
    tracked.check_state()
    tracked.check(rng, [a, b, c], [3, 3, 3])
    assert other.num_free_pages == 12 - 1 - 3
