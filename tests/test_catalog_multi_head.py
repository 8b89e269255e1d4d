# SPDX-License-Identifier: MIT
# MultiHeadAttention: self and cross attention, grouped heads, masks, projected memory, states.
# Used by the suite, on every backend.
# Its cache is in test_catalog_multi_head_cache.py, PyTorch's in test_oracle_torch_layers.py.
"""Projections, heads, masks and output projection, each as in its formula."""

import numpy as np
import pytest
from check import assert_bits_equal, draw
from check_layers import assert_layer, multi_head, poisoned
from layer_cases import build, multi_head_weights
from layer_states import state_of

from fastattn import layers

LENGTHS = np.array([13, 4, 0])


def mha(weights):
    return build("MultiHeadAttention", weights)


@pytest.fixture
def given(rng, real):
    """(weights, query, key, value) of 3 entries, 11 queries, 13 keys: no two sizes are equal."""
    shapes = (3, 11, 7), (3, 13, 8), (3, 13, 9)
    return multi_head_weights(rng, real), *(draw(rng, shape, real) for shape in shapes)


CHANGES = {
    "as it is": {},
    "without biases": dict.fromkeys(["query_bias", "key_bias", "value_bias", "output_bias"]),
    "value bias alone": dict.fromkeys(["query_bias", "key_bias", "output_bias"]),
    "without output": dict.fromkeys(["output_weight", "output_bias"]),
    "negative scale": {"scale": -0.3},
    "no scale": {"scale": 0.0},
    "ungrouped": {"num_heads": 2, "num_kv_heads": None},
    "other head size": {"num_heads": 2, "num_kv_heads": 1},
}


@pytest.mark.parametrize("name", CHANGES)
def test_formula(backend, real, given, name):
    """With and without what is optional; key and value heads are shared by query heads."""
    weights, *arrays = given
    if name == "ungrouped":  # as many heads of each kind
        weights = {n: x[..., :6] if n.split("_")[0] in ("query", "key") else x
                   for n, x in weights.items() if n != "output_bias"}  # fmt: skip
        weights["output_weight"] = weights["output_weight"][:10]
    changed = {n: x for n, x in (weights | CHANGES[name]).items() if x is not None}
    got = mha(changed)(*arrays, return_weights=True)
    wanted = multi_head(changed, *arrays)
    assert_layer(got, wanted, real)
    assert_layer(mha(changed)(*arrays), wanted[0], real)


@pytest.mark.parametrize("name", ["self", "cross", "no lead", "two leads", "one memory for all"])
def test_whose_keys_and_values(backend, rng, real, name):
    """Without a key the query is one, without a value the key is one."""
    key_dim = 7 if name == "self" else 8
    weights = multi_head_weights(rng, real, sizes=(7, key_dim, key_dim))
    lead, of_key = {"no lead": ((), ()), "two leads": ((2, 3), (2, 3)),
                    "one memory for all": ((3,), (1,))}.get(name, ((3,), (3,)))  # fmt: skip
    arrays = [draw(rng, (*lead, 11, 7), real)]
    if name != "self":
        arrays.append(draw(rng, (*of_key, 13, key_dim), real))
    got = mha(weights)(*arrays, return_weights=True)
    assert_layer(got, multi_head(weights, *arrays), real)


def masks_of(rng):
    shape = (3, 4, 11, 13)
    holes = rng.random(shape) < 0.6
    numbers = np.where(rng.random(shape) < 0.2, -np.inf, rng.standard_normal(shape))
    return {
        "none": {},
        "padding": {"key_padding_mask": holes[:, 0, 0]},
        "padding of all": {"key_padding_mask": holes[0, 0, 0]},
        "padding in numbers": {"key_padding_mask": numbers[:, 1, 1]},
        "rows and keys": {"attn_mask": holes[0, 0]},
        "keys": {"attn_mask": holes[0, 0, :1]},
        "heads": {"attn_mask": numbers[0].astype(np.float32)},
        "entries": {"attn_mask": holes[:, :1]},
        "everything": {"attn_mask": numbers},
        "padding and rows": {"key_padding_mask": holes[:, 0, 0], "attn_mask": holes[1, 1]},
        "padding and numbers": {"key_padding_mask": holes[:, 0, 0], "attn_mask": numbers[0, 0]},
        "causal": {"is_causal": True},
        "window": {"window": (3, 1)},
        "lengths": {"kv_lengths": LENGTHS},
        "one length": {"kv_lengths": 6},
        "all": {"key_padding_mask": holes[:, 0, 0], "attn_mask": numbers[1, 2], "window": (5, 2),
                "is_causal": True, "kv_lengths": LENGTHS},
    }  # fmt: skip


@pytest.mark.parametrize("is_projected", [False, True], ids=["key", "projected"])
def test_masks(backend, rng, real, given, is_projected):
    """Each kind, and their intersections; True = may attend. The memory may be projected before."""
    weights, query, key, value = given
    layer = mha(weights)
    memory = (layer.project_memory(key, value),) if is_projected else (key, value)
    for name, options in masks_of(rng).items():
        got = layer(query, *memory, **options, return_weights=True)
        wanted = multi_head(weights, query, key, value, **options)
        assert_layer(got, wanted, real, name)
        assert not got[1][wanted[1] == 0].any(), f"a hidden key has weight {name}"


def test_rows_that_may_see_nothing(backend, rng, given):
    """Their context is zero: the output is its bias, and no NaN."""
    weights, query, key, value = given
    holes = np.ones((11, 13), bool)
    holes[4] = False
    options = {"kv_lengths": LENGTHS, "attn_mask": holes, "return_weights": True}
    out, alpha = mha(weights)(query, key, value, **options)
    bias = weights["output_bias"]
    assert_bits_equal(out[2], np.broadcast_to(bias, out[2].shape))
    assert_bits_equal(out[:, 4], np.broadcast_to(bias, out[:, 4].shape))
    assert not alpha[2].any() and not alpha[:, :, 4].any()


@pytest.mark.parametrize("by", ["kv_lengths", "key_padding_mask", "attn_mask"])
def test_padding_may_be_anything(backend, rng, dtype, by):
    """Self-attention on padded texts: rows of real tokens do not see what the others hold."""
    weights = multi_head_weights(rng, dtype, sizes=(7, 7, 7))
    lengths = np.array([11, 4, 1])
    x = draw(rng, (3, 11, 7), dtype)
    real_tokens = np.arange(11) < lengths[:, None]
    options = {by: {"kv_lengths": lengths, "key_padding_mask": real_tokens,
                    "attn_mask": real_tokens[:, None, None]}[by]}  # fmt: skip
    wanted = multi_head(weights, x, kv_lengths=lengths)[0]
    out = mha(weights)(poisoned(x, lengths), **options)
    assert_layer(out[real_tokens], wanted[real_tokens], dtype)


def test_sizes_of_zero(backend, given):
    weights, query, key, value = given
    layer = mha(weights)
    out = layer(query, key[:, :0], value[:, :0])
    assert_bits_equal(out, np.broadcast_to(weights["output_bias"], out.shape))
    assert layer(query[:, :0], key, value).shape == (3, 0, 10)


def test_large_projections_stay_finite(backend, rng):
    """Scores of 1e30 are scores: the largest one takes all of the weight."""
    weights = {"num_heads": 1} | {
        f"{n}_weight": np.eye(5, dtype=np.float32) for n in ("query", "key", "value")
    }
    key = draw(rng, (13, 5))
    query = draw(rng, (11, 5)) * np.float32(1e30)
    best = (query.astype(np.float64) @ key.T).argmax(axis=-1)
    assert_bits_equal(mha(weights)(query, key), key[best])


@pytest.mark.parametrize("has_bias", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "separate"])
def test_states_of_pytorch(backend, rng, real, is_packed, has_bias):
    """By PyTorch's names, in arrays; with a prefix, among the weights of other layers."""
    sizes = (8, 8, 8) if is_packed else (8, 5, 6)
    weights = multi_head_weights(rng, real, 4, 4, sizes, (2, 2), 8)
    weights = {n: x for n, x in weights.items() if has_bias or "_bias" not in n}
    arrays = [draw(rng, (3, n, size), real) for n, size in zip((11, 13, 13), sizes)]
    wanted = multi_head(weights, *arrays)[0]
    make = layers.MultiHeadAttention.from_state_dict
    layer = make(state_of(weights, is_packed), num_heads=4)
    assert_layer(layer(*arrays), wanted, real)
    state = {"norm.weight": np.ones(8, real), "layers.10.in_proj_weight": np.ones((2, 2), real)}
    state |= state_of(weights, is_packed, "layers.1.")
    layer = make(state, num_heads=4, prefix="layers.1.")
    assert_layer(layer(*arrays), wanted, real)


def test_states_that_do_not_fit(rng):
    weights = multi_head_weights(rng, np.float32, 4, 4, (8, 8, 8), (2, 2), 8)
    make = layers.MultiHeadAttention.from_state_dict
    good = state_of(weights, True)
    for name, named in (("in_proj_weight", "(in|q)_proj_weight"), ("out_proj.weight",) * 2):
        with pytest.raises(ValueError, match=named):
            make({n: x for n, x in good.items() if n != name}, num_heads=4)
    for name in ("bias_k", "bias_v"):
        with pytest.raises(ValueError, match=name):
            make(good | {name: np.zeros((1, 1, 8), np.float32)}, num_heads=4)
    with pytest.raises(ValueError, match="num_heads|query_weight"):
        make(good, num_heads=3)


def test_wrong_layers(rng):
    """The message begins with the argument's name."""
    weights = multi_head_weights(rng, np.float32)
    for changes, error, argument in [
        ({"num_heads": 0}, ValueError, "num_heads"),
        ({"num_heads": 4.0}, TypeError, "num_heads"),
        ({"num_heads": 5}, ValueError, "num_heads|num_kv_heads|query_weight"),
        ({"num_kv_heads": 3}, ValueError, "num_heads|num_kv_heads|key_weight"),
        ({"num_kv_heads": 0}, ValueError, "num_kv_heads"),
        ({"scale": np.nan}, ValueError, "scale"),
        ({"scale": "1"}, TypeError, "scale"),
        ({"output_weight": weights["output_weight"][1:]}, ValueError, "output_weight"),
        ({"value_weight": weights["value_weight"][:, 1:]}, ValueError, "value_weight"),
        ({"key_weight": weights["key_weight"][:, ::2]}, ValueError, "key_weight"),
    ]:
        with pytest.raises(error, match=rf"^({argument})\b"):
            mha(weights | changes)


def test_wrong_calls(given):
    """The message begins with the argument's name."""
    weights, query, key, value = given
    layer, ones = mha(weights), np.ones
    for call, error, argument in [
        (lambda: layer(query[..., :6], key, value), ValueError, "query"),
        (lambda: layer(query, key[..., :6], value), ValueError, "key"),
        (lambda: layer(query, key, value[..., :6]), ValueError, "value"),
        (lambda: layer(query), ValueError, "query|key"),
        (lambda: layer(query, key, value[:, :12]), ValueError, "key|value"),
        (lambda: layer(query[:2], key, value), ValueError, "query|key"),
        (lambda: layer(query, key, value, key_padding_mask=ones((3, 12), bool)),
         ValueError, "key_padding_mask"),
        (lambda: layer(query, key, value, key_padding_mask=ones((3, 13), int)),
         TypeError, "key_padding_mask"),
        (lambda: layer(query, key, value, attn_mask=ones((13, 11), bool)),
         ValueError, "attn_mask"),
        (lambda: layer(query, key, value, attn_mask=ones((11, 13), int)), TypeError, "attn_mask"),
        (lambda: layer(query, key, value, window=-2), ValueError, "window"),
        (lambda: layer(query, key, value, is_causal="yes"), (TypeError, ValueError), "is_causal"),
        (lambda: layer.project_memory(key, value[:, :12]), ValueError, "key|value"),
        (lambda: layer.project_memory(key[..., :6], value), ValueError, "key"),
        (lambda: layer(query, "memory", value), TypeError, "key"),
    ]:  # fmt: skip
        with pytest.raises(error, match=rf"^({argument})\b"):
            call()
