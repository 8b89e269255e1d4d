# SPDX-License-Identifier: MIT
# What layers are as objects: weights of their own, repr, pickles, threads, wrong weights.
# Used by the suite; what they compute is in test_layers.py.
# Backends do not matter here, so the default one computes.
"""A layer never changes once it is made, and may be sent, copied and shared."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from check import assert_bits_equal
from layer_cases import CASES, PARTS, build

KINDS = [name for name in CASES if name != "match matrix"]
named = pytest.mark.parametrize("name", KINDS)


def arrays_of(weights):
    """(name, its dict) of every weight, those of parts included."""
    for name, x in weights.items():
        if isinstance(x, dict):
            yield from arrays_of(x)
        elif isinstance(x, np.ndarray):
            yield name, weights


def assert_same(one, other):
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (one, other))):
        assert_bits_equal(a, b)


@named
def test_weights_are_copied(rng, name):
    """What becomes of the caller's arrays has no effect."""
    case = CASES[name](rng, np.float32)
    layer = case.layer()
    wanted = case.call(layer)
    for weight, owner in arrays_of(case.weights):
        owner[weight][...] = np.nan
    assert_same(case.call(layer), wanted)


@named
def test_copies_and_pickles(rng, dtype, name):
    case = CASES[name](rng, dtype)
    layer = case.layer()
    wanted = case.call(layer)
    for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), copy.copy(layer)):
        assert type(other) is type(layer) and repr(other) == repr(layer)
        assert_same(case.call(other), wanted)


@named
def test_threads_share_a_layer(rng, name):
    """Case 147: each call has its own inputs and its own results."""
    cases = [CASES[name](rng, np.float32) for _ in range(4)]
    layer = cases[0].layer()
    inputs = [c.inputs for c in cases] * 6
    wanted = [cases[0].call(layer, x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for one, other in zip(pool.map(lambda x: cases[0].call(layer, x), inputs), wanted):
            assert_same(one, other)


@named
def test_repr_is_one_line(rng, name):
    """The class, and its sizes."""
    layer = CASES[name](rng, np.float32).layer()
    assert repr(layer).startswith(f"{type(layer).__name__}(") and repr(layer).endswith(")")
    assert "\n" not in repr(layer) and "array" not in repr(layer) and len(repr(layer)) < 300


@named
def test_layers_do_not_change(rng, name):
    """No public attribute can be set."""
    layer = CASES[name](rng, np.float32).layer()
    for n in [n for n in dir(layer) if not n.startswith("_") and not callable(getattr(layer, n))]:
        with pytest.raises(AttributeError):
            setattr(layer, n, getattr(layer, n))


@named
def test_weights_of_another_dtype(rng, name):
    """All share one float dtype: TypeError names one that does not."""
    case = CASES[name](rng, np.float32)
    for weight, owner in list(arrays_of(case.weights)):
        for other in (np.float64, np.int32, np.complex64):
            good = owner[weight]
            others = [n for n, o in arrays_of(case.weights) if o is owner and n != weight]
            owner[weight] = good.astype(other)
            try:
                if other == np.float64 and not others:
                    continue  # a layer of float64, all on its own
                with pytest.raises(TypeError, match=rf"\b{weight}\b"):
                    case.layer()
            finally:
                owner[weight] = good


@named
def test_weights_of_another_rank(rng, name):
    """ValueError that begins with the weight's name, and says what was given."""
    case = CASES[name](rng, np.float32)
    for weight, owner in list(arrays_of(case.weights)):
        good = owner[weight]
        owner[weight] = good[None]
        try:
            with pytest.raises(ValueError, match=rf"^{weight}: expected .*, got "):
                case.layer()
        finally:
            owner[weight] = good


@named
def test_weights_that_do_not_fit(rng, name):
    """One row too many in any of them: ValueError that names a weight, or an array of the call."""
    case = CASES[name](rng, np.float32)
    for weight, owner in list(arrays_of(case.weights)):
        good = owner[weight]
        owner[weight] = np.concatenate([good, good[:1]])
        names = [n for n, _ in arrays_of(case.weights)] + list(case.inputs) + list(PARTS)
        try:
            with pytest.raises(ValueError, match=rf"\b({'|'.join(names)}|num_heads|x)\b"):
                case.call(case.layer())
        finally:
            owner[weight] = good


@pytest.mark.parametrize("name", ["encoder", "decoder", "hierarchical"])
def test_parts_that_are_no_layers(rng, name):
    case = CASES[name](rng, np.float32)
    for part in [n for n in case.weights if n in PARTS]:
        for wrong in (None, np.zeros((8, 8), np.float32), "text"):
            with pytest.raises(TypeError, match=rf"^{part}\b"):
                type(case.layer())(**{
                    n: wrong if n == part else build(PARTS[n], x) if n in PARTS else x
                    for n, x in case.weights.items()
                })  # fmt: skip
