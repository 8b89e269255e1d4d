# SPDX-License-Identifier: MIT
# Additive attention: formula, axes, projections, heads, options.
# Used by the suite, on every backend.
# Precision of the scores is in test_additive_scores.py, prepared keys in test_additive_keys.py,
# strides, layouts and out= in test_additive_arrays.py.
"""Additive attention follows its formula, with every option of the dot product that it has."""

import itertools

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_EDGES, KEY_TILE, QUERY_BLOCK, QUERY_EDGES
from check import assert_bits_equal, assert_close, draw
from check_additive import PROJECTED, case, check_additive

import fastattn

additive = fastattn.additive_attention


def test_the_formula_by_hand(backend):
    """One query, two keys, two hidden units: numbers from a pocket calculator."""
    query, key = np.array([[0.5, -1.0]]), np.array([[0.5, 1.0], [-0.5, 2.0]])
    value, vector = np.array([[1.0], [0.0]]), np.array([2.0, 3.0])
    # tanh(1) = 0.76159416, tanh(0) = 0: scores 2 * 0.76159416 and 3 * 0.76159416
    out, lse = additive(query, key, value, vector, return_lse=True)
    assert_close(out, np.array([[1 / (1 + np.exp(0.7615941559557649))]]))
    first, second = 1.5231883119115297, 2.2847824678672946
    assert_close(lse, np.array([np.log(np.exp(first) + np.exp(second))]))


@pytest.mark.parametrize("one", ["none", "lead", "queries", "keys", "hidden", "dv", "all"])
@pytest.mark.parametrize("without", [(), PROJECTED], ids=["weights", "projected"])
def test_axes_of_size_one(backend, rng, dtype, one, without):
    """Case 104: q and k broadcast on their own axes, and no axis of size 1 is dropped."""
    sizes = {"lead": 2, "queries": 3, "keys": 5, "hidden": 7, "dv": 4}
    sizes |= {n: 1 for n in sizes if one in (n, "all")}
    lead = (sizes.pop("lead"),)
    given = case(rng, dtype, lead=lead, heads=1, without=without, **sizes)
    out = check_additive(**given)
    assert out.shape == (*lead, 1, sizes["queries"], sizes["dv"])


@pytest.mark.parametrize("n", range(4))
def test_projections_are_optional(backend, rng, dtype, n):
    """Each of the three with each set of the others, on a group of heads."""
    for without in itertools.combinations(PROJECTED, n):
        given = case(rng, dtype, heads=4, kv_heads=2, without=without)
        check_additive(**given, context=str(without))


def test_no_vector_is_ones(backend, rng, dtype):
    """Case 105: without a learned vector the score is the plain sum, to the last bit."""
    for without in ((), PROJECTED):
        given = case(rng, dtype, without=without)
        given["attention_v"] = None
        out = check_additive(**given)
        given["attention_v"] = np.ones(11, dtype)
        assert_bits_equal(out, additive(**given))


def test_one_hot_vector(backend, rng, dtype):
    """Case 105: one unit alone makes the score."""
    given = case(rng, dtype)
    given["attention_v"] = np.eye(11, dtype=dtype)[3]
    out = check_additive(**given)
    narrow = given | {"attention_v": np.ones(1, dtype), "hidden_bias": given["hidden_bias"][3:4]}
    for name in ("query_weight", "key_weight"):
        narrow[name] = given[name][:, 3:4]
    assert_close(out, additive(**narrow).astype(np.float64), slack=1e-5)


def test_no_scale(backend, rng):
    """Case 105: nothing is divided by the root of a size."""
    given = case(rng, lead=(), heads=2, keys=1)
    _, lse = additive(**given, return_lse=True)
    x = given["query"] @ given["query_weight"] + given["key"] @ given["key_weight"]
    assert_close(lse, np.tanh(x + given["hidden_bias"]) @ given["attention_v"], slack=1e-5)


def test_padding_is_masked_before_softmax(backend, dtype):
    """Case 103: live scores of about -100, a padded one of about +100."""
    query = np.zeros((1, 1, 2, 300), dtype)
    key = np.full((1, 1, 5, 300), -0.345, dtype)
    value = np.full((1, 1, 5, 4), 3.0, dtype)
    key[:, :, 3:], value[:, :, 3:] = 0.345, 6e4
    for options in (
        {"kv_lengths": 3},
        {"attn_mask": np.arange(5) < 3},
        {"attn_mask": np.where(np.arange(5) < 3, 0.0, -np.inf)},
        {"window": (3, 2), "q_offset": -1, "kv_lengths": 3},
    ):
        out, weights = additive(query, key, value, None, return_weights=True, **options)
        assert (out == 3.0).all(), options
        assert (weights[..., 3:] == 0).all()
        check_additive(query, key, value, None, **options)


@pytest.mark.parametrize("group", [1, 2, 5])
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_grouped_heads(backend, rng, dtype, group, kv_heads):
    """Query heads of a group share keys and values, but not their vectors."""
    heads = group * kv_heads
    given = case(rng, dtype, heads=heads, kv_heads=kv_heads)
    shared = check_additive(**given)
    repeated = given | {n: np.repeat(given[n], group, axis=1) for n in ("key", "value")}
    assert_close(additive(**repeated), shared.astype(np.float64))
    given["attention_v"] = draw(rng, (heads, 11), dtype)
    out = check_additive(**given)
    for head in range(heads):
        single = given | {"query": given["query"][:, head : head + 1]}
        single |= {n: given[n][:, head // group][:, None] for n in ("key", "value")}
        single["attention_v"] = given["attention_v"][head]
        assert_close(out[:, head : head + 1], additive(**single).astype(np.float64))


@pytest.mark.parametrize(
    "sizes", [(5, 9), (QUERY_BLOCK + 1, KEY_TILE + 3), (1, KEY_CHUNK + 1)], ids=str
)
def test_options(backend, rng, dtype, sizes):
    """Every option of the signature, alone and together with a causal mask."""
    queries, keys = sizes
    given = case(rng, dtype, heads=4, kv_heads=2, queries=queries, keys=keys)
    options = {
        "bool mask": {"attn_mask": rng.random((2, 1, queries, keys)) < 0.7},
        "float mask": {"attn_mask": np.where(rng.random(keys) < 0.2, -np.inf, 0.5)},
        "bias": {"bias": draw(rng, (4, queries, keys), np.float64)},
        "offsets": {"q_offset": [keys // 2, -1]},
        "at the end": {"q_offset": "lower_right"},
        "lengths": {"kv_lengths": [keys // 2, 0]},
        "window": {"window": (keys // 3, 1)},
        "sinks": {"sinks": np.array([0.5, -np.inf, 9.0, -3.0])},
        "per head": {"attention_v": draw(rng, (4, 11))},
    }
    together = {}
    for name, option in options.items():
        check_additive(**given | option, context=name)
        check_additive(**given | option, is_causal=True, context=f"causal, {name}")
        together |= option
    check_additive(**given | together, is_causal=True, context="all")


@pytest.mark.slow
def test_sizes_at_edges(backend, rng, sample):
    """Queries and keys around the ends of blocks and tiles, hidden and value sizes of any kind."""
    for queries, keys in sample(itertools.product(QUERY_EDGES, KEY_EDGES), 25):
        hidden, dv = int(rng.integers(1, 40)), int(rng.integers(1, 40))
        given = case(rng, lead=(), heads=2, kv_heads=1, queries=queries, keys=keys,
                     hidden=hidden, dv=dv, without=PROJECTED[:2])  # fmt: skip
        options = {"q_offset": "lower_right", "window": (keys // 2, 3)}
        check_additive(**given, is_causal=bool(rng.random() < 0.5), **options)


def test_rows_without_keys(backend, rng, dtype):
    """Out and weights 0, lse -inf or the sink, decided by the masks alone."""
    given = case(rng, dtype)
    for options in (
        {"kv_lengths": 0},
        {"attn_mask": np.zeros((5, 7), bool)},
        {"bias": np.full((1, 1), -np.inf, np.float32)},
        {"is_causal": True, "q_offset": -5},
    ):
        out, lse, weights = additive(**given, **options, return_lse=True, return_weights=True)
        assert not out.any() and not weights.any() and np.isneginf(lse).all()
        sinks = np.array([1.0, -2.0, 3.0], np.float32)
        lse = additive(**given, **options, sinks=sinks, return_lse=True)[1]
        assert_close(lse, np.broadcast_to(sinks[:, None], lse.shape))


def test_sizes_of_zero(backend, rng, dtype):
    """No batch, heads, queries, keys, values, hidden units, or nothing to project."""
    for name in ("queries", "keys", "dv", "hidden", "query_dim", "key_dim"):
        out = check_additive(**case(rng, dtype, **{name: 0}), context=name)
        assert out.size == 0 or np.isfinite(out).all()
    for lead, heads in (((0,), 3), ((2, 0), 3), ((2,), 0)):
        given = case(rng, dtype, lead=lead, heads=heads)
        assert additive(**given).shape == (*lead, heads, 5, 6)


def test_hidden_data_may_be_anything(backend, rng, dtype):
    """NaN and infinities in keys and values that no row sees leave no trace."""
    for without in ((), PROJECTED[:2]):
        given = case(rng, dtype, queries=6, keys=9, without=without)
        clean = given | {n: given[n].copy() for n in ("key", "value")}
        mask = rng.random((6, 9)) < 0.6
        mask[:, 4] = False
        for n, (bad, worse) in {"key": (np.nan, np.inf), "value": (-np.inf, np.nan)}.items():
            given[n][0, :, 7:], given[n][1, :, 4] = bad, worse
            clean[n][0, :, 7:], clean[n][1, :, 4] = 0, 0
        options = {"attn_mask": mask, "kv_lengths": [7, 9], "return_lse": True}
        got = additive(**given, **options, return_weights=True)
        wanted = additive(**clean, **options, return_weights=True)
        for one, other in zip(got, wanted):
            assert_bits_equal(one, other)
        check_additive(**given, attn_mask=mask, kv_lengths=[7, 9])


def test_nan_reaches_those_who_see_it(backend, rng, dtype):
    """NaN in a query is its row's, in a key that of the rows that see it."""
    given = case(rng, dtype, queries=6, keys=9)
    clean = additive(**given, is_causal=True)
    given["query"][0, 1, 2] = np.nan
    given["key"][1, 2, 3, 1] = np.nan
    out = check_additive(**given, is_causal=True)
    expected_nan = np.zeros(out.shape[:3], bool)
    expected_nan[0, 1, 2] = True
    expected_nan[1, 2, 3:] = True
    assert np.isnan(out[expected_nan]).all()
    assert_bits_equal(out[~expected_nan], clean[~expected_nan])


@pytest.mark.parametrize("name", ["query_weight", "key_weight", "hidden_bias", "attention_v"])
def test_nan_in_a_parameter_is_not_swallowed(backend, rng, name):
    given = case(rng)
    given[name].reshape(-1)[-1] = np.nan
    assert np.isnan(additive(**given)).all()
    assert not additive(**given, kv_lengths=0).any()


def test_the_batch_does_not_matter(backend, rng, dtype):
    """An entry's bits are those of the entry alone, anywhere in the batch."""
    for queries in (1, 6, QUERY_BLOCK + 1):
        given = case(rng, dtype, lead=(3,), heads=2, queries=queries, keys=KEY_TILE + 1)
        options = {"is_causal": True, "q_offset": "lower_right", "return_lse": True}
        whole = additive(**given, **options)
        again = additive(**given, **options)
        for entry in range(3):
            alone = {n: given[n][entry : entry + 1] for n in ("query", "key", "value")}
            for all_of, other, one in zip(whole, again, additive(**given | alone, **options)):
                assert_bits_equal(all_of[entry : entry + 1], one)
                assert_bits_equal(all_of, other)


def test_concat_score(backend, rng, dtype):
    """Luong's concat score, v . tanh([q; k] W), is additive with the two halves of W."""
    given = case(rng, dtype, without=("hidden_bias",))
    weight = np.concatenate([given["query_weight"], given["key_weight"]]).astype(np.float64)
    q, k = given["query"].astype(np.float64), given["key"].astype(np.float64)
    both = np.concatenate(
        [np.broadcast_to(x, (2, 3, 5, 7, x.shape[-1])) for x in (q[..., None, :], k[:, :, None])],
        axis=-1,
    )
    scores = np.tanh(both @ weight) @ given["attention_v"].astype(np.float64)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    assert_close(additive(**given), weights @ given["value"].astype(np.float64), slack=2e-5)
