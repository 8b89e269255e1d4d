# SPDX-License-Identifier: MIT
# The rules that all layers have: formula, dtypes, axes, batches, memory layouts.
# Used by the suite, on every backend.
# What a layer is as an object is in test_layers_objects.py, what each means in test_catalog_*.py.
"""Every layer follows its formula in every dtype, with any leading axes, however arrays lie."""

import inspect

import numpy as np
import pytest
from check import assert_bits_equal, draw
from check_layers import assert_layer
from layer_cases import BATCH, CASES

from fastattn import layers

BATCHED = [name for name in CASES if name != "hierarchical"]
# Their projections are one product of all rows, for speed: bits may depend on how many these are.
EXACT = [name for name in BATCHED if name not in ("multi-head", "encoder", "decoder")]
named = pytest.mark.parametrize("name", CASES)


def results(found):
    return found if isinstance(found, tuple) else (found,)


def each_input(case, change):
    """The inputs, changed where they have the batch for their first axis; or an index of it."""
    return {
        n: x if np.shape(x)[:1] != (BATCH,) else change(x) if callable(change) else x[change]
        for n, x in case.inputs.items()
    }


def float_inputs(case):
    """Names of the arrays that must have the dtype of the layer."""
    arrays = [n for n, x in case.inputs.items() if isinstance(x, np.ndarray)]
    return [n for n in arrays if case.inputs[n].dtype.kind == "f" and n != "attn_mask"]


def test_every_layer_has_a_case(rng):
    """Layers that are classes, and the functions beside them; parts of layers are no layers."""
    public = {n for n in layers.__all__ if n not in ("PreparedMemory", "ProjectedMemory")}
    assert public == {make(rng, np.float32).name for make in CASES.values()}


@named
def test_formula_in_every_dtype(backend, rng, dtype, name):
    """Half types are computed in float32: their results are off by their last rounding only."""
    case = CASES[name](rng, dtype)
    layer = case.layer()
    if not inspect.isfunction(layer) and hasattr(layer, "dtype"):
        assert layer.dtype == dtype
    assert_layer(case.call(layer), case.wanted(), dtype)


@named
def test_hidden_data_leaves_no_trace(rng, name):
    """What is NaN in the case may be any number: no bit changes."""
    case = CASES[name](rng, np.float32)
    layer = case.layer()
    clean = case.inputs | {n: np.nan_to_num(case.inputs[n], nan=7.0) for n in float_inputs(case)}
    for one, other in zip(results(case.call(layer)), results(case.call(layer, clean))):
        assert_bits_equal(one, other)


@pytest.mark.parametrize("name", BATCHED)
def test_any_leading_axes(backend, rng, name):
    """None, one or two: the numbers are the same."""
    case = CASES[name](rng, np.float64)
    layer = case.layer()
    wanted = results(case.wanted())
    two = each_input(case, lambda x: x.reshape(2, 3, *x.shape[1:]))
    got = results(case.call(layer, two))
    assert_layer(got, tuple(x.reshape(2, 3, *x.shape[1:]) for x in wanted), np.float64, "two")
    for entry in (2, 5):  # one that is empty, too
        got = results(case.call(layer, each_input(case, entry)))
        assert_layer(got, tuple(x[entry] for x in wanted), np.float64, f"none, {entry}")


@pytest.mark.parametrize("name", BATCHED)
def test_empty_batch(backend, rng, name):
    case = CASES[name](rng, np.float32)
    got = results(case.call(case.layer(), each_input(case, slice(0))))
    for one, other in zip(got, results(case.wanted())):
        assert one.shape == (0, *other.shape[1:]) and one.dtype == np.float32


@pytest.mark.parametrize("name", EXACT)
def test_the_batch_does_not_matter(backend, rng, name):
    """An entry's bits are those of the entry alone, and its NaN is its own."""
    case = CASES[name](rng, np.float32)
    layer = case.layer()
    whole = results(case.call(layer))
    first = next(iter(case.inputs))
    for entry in range(BATCH):
        alone = case.call(layer, each_input(case, slice(entry, entry + 1)))
        for one, other in zip(results(alone), whole):
            assert_bits_equal(one[0], other[entry], f"entry {entry}")
    spoiled = {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in case.inputs.items()}
    spoiled[first][0] = np.nan
    got = results(case.call(layer, spoiled))
    for one, other in zip(got, whole):
        assert_bits_equal(one[1:], other[1:], "beside a NaN")
    assert np.isnan(got[0][0]).any(), "a NaN was swallowed"


@named
@pytest.mark.parametrize("kind", ["strided", "reversed", "swapped", "read-only"])
def test_inputs_in_any_memory(rng, kind, name):
    """Strides of any sign, foreign byte order, no writing: right results in native order."""

    def change(x):
        if not isinstance(x, np.ndarray):
            return x
        if kind == "swapped":
            return x.astype(x.dtype.newbyteorder())
        if kind == "read-only":
            x = x.copy()
            x.flags.writeable = False
            return x
        step = 2 if kind == "strided" else -1
        roomy = np.zeros(tuple(abs(step) * n for n in x.shape), x.dtype)
        roomy[(slice(None, None, step),) * x.ndim] = x
        return roomy[(slice(None, None, step),) * x.ndim]

    case = CASES[name](rng, np.float64)
    given = {n: change(x) for n, x in case.inputs.items()}
    before = {n: x.copy() for n, x in given.items() if isinstance(x, np.ndarray)}
    assert_layer(case.call(case.layer(), given), case.wanted(), np.float64)
    for n, x in before.items():
        assert_bits_equal(given[n], x, f"{n} was changed")


@pytest.mark.parametrize("name", EXACT)
def test_order_in_memory_changes_no_bit(rng, name):
    """Neither Fortran's nor gaps between the numbers: sums are made in one order."""
    case = CASES[name](rng, np.float32)
    layer = case.layer()
    want = results(case.call(layer))
    for change in (np.asfortranarray, lambda x: np.repeat(x, 2, axis=-1)[..., ::2]):
        given = {n: change(x) if isinstance(x, np.ndarray) else x for n, x in case.inputs.items()}
        for one, other in zip(results(case.call(layer, given)), want):
            assert_bits_equal(one, other)


def test_order_in_memory_of_long_vectors(rng):
    x, y = draw(rng, (2, 19, 67)), draw(rng, (2, 23, 67))
    pooling = layers.AttentivePooling(weight=draw(rng, (67, 67)))
    for layer in (pooling, lambda x, y: (layers.match_matrix(x, y),)):
        for change in (np.asfortranarray, lambda x: np.repeat(x, 2, axis=-1)[..., ::2]):
            for one, other in zip(layer(change(x), change(y)), layer(x, y)):
                assert_bits_equal(one, other)


@pytest.mark.parametrize("name", BATCHED)
def test_inputs_that_repeat_one_entry(backend, rng, name):
    """What NumPy broadcasts, with strides of 0: results are arrays of their own all the same."""
    case = CASES[name](rng, np.float64)
    given = each_input(case, lambda x: np.broadcast_to(x[1], x.shape))
    got = results(case.call(case.layer(), given))
    assert_layer(got, results(case.wanted(given)), np.float64)
    for x in got:
        assert x.flags.writeable and 0 not in x.strides


@named
def test_lists_are_arrays(rng, name):
    """Whatever NumPy makes float64 arrays of."""
    case = CASES[name](rng, np.float64)
    given = {n: x.tolist() if isinstance(x, np.ndarray) else x for n, x in case.inputs.items()}
    assert_layer(case.call(case.layer(), given), case.wanted(), np.float64)


@named
def test_inputs_of_another_dtype(rng, real, name):
    """TypeError that begins with the argument's name; nothing is converted."""
    case = CASES[name](rng, real)
    layer = case.layer()
    arrays = float_inputs(case)
    has_dtype = hasattr(layer, "dtype") and not inspect.isfunction(layer)
    for n in arrays:
        begin = n if has_dtype else "|".join(arrays)
        others = {np.float64, np.float32, np.float16, np.int32, np.complex128} - {real.type}
        for other in others:
            given = case.inputs | {n: np.nan_to_num(case.inputs[n]).astype(other)}
            with pytest.raises(TypeError, match=rf"^({begin})\b"):
                case.call(layer, given)


@named
def test_inputs_with_too_few_axes(rng, name):
    """ValueError that begins with the name of an array of the call."""
    case = CASES[name](rng, np.float32)
    layer = case.layer()
    arrays = float_inputs(case)
    for n in arrays:
        with pytest.raises(ValueError, match=rf"^({'|'.join(arrays)})\b"):
            case.call(layer, case.inputs | {n: np.float32(1.0)})


@named
def test_wrong_lengths(rng, name):
    """Below 0, too long, not integers, bool, too many: the argument is named."""
    case = CASES[name](rng, np.float32)
    layer = case.layer()
    for n in [n for n in case.inputs if "lengths" in n]:
        good = case.inputs[n]
        wrong = [(good - 9, ValueError), (good + 99, ValueError), (good * 1.0, TypeError),
                 (good > 0, TypeError), (good[:-1], ValueError)]  # fmt: skip
        for value, error in wrong:
            with pytest.raises(error, match=rf"\b{n}\b"):
                case.call(layer, case.inputs | {n: value})
