# SPDX-License-Identifier: MIT
# MultiHeadAttention: formula, sources, masks, caches, projected memories, PyTorch, errors.
# Used by the suite, on every backend; what needs PyTorch itself is skipped without it.
# The attention kernels themselves are tested elsewhere.
"""Multi-head attention follows its formula, whatever it attends to and however it is called."""

import pickle

import numpy as np
import pytest
from check import assert_bits_equal, draw
from layer_formulas import heads_case, multi_head, near

import fastattn
from fastattn.layers import MultiHeadAttention

NAMES = ("query", "key", "value")


def rows(n):
    return np.arange(n)[:, None]


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("output", [True, False])
def test_self_attention(backend, rng, dtype, lead, biases, output):
    given = heads_case(rng, dtype, biases=biases)
    if not output:
        given["output_weight"] = given["output_bias"] = None
    layer = MultiHeadAttention(**given)
    x = draw(rng, (*lead, 7, 6), dtype)
    want = multi_head(given, x, x, x)
    got = layer(x, return_weights=True)
    for one, other in zip(got, want):
        assert one.dtype == dtype
        near(one, other)
    for same in (layer(x), layer(x, x), layer(x, x, x), layer(x, None, None)):
        assert_bits_equal(same, got[0])
    near(layer(x, is_causal=True), multi_head(given, x, x, x, rows(7) >= np.arange(7))[0])
    near(layer(x, window=(1, 2)), multi_head(
        given, x, x, x, (np.arange(7) >= rows(7) - 1) & (np.arange(7) <= rows(7) + 2)
    )[0])  # fmt: skip


@pytest.mark.parametrize("kv_heads", [None, 1, 2])
@pytest.mark.parametrize("biases", [True, False])
def test_cross_attention(backend, rng, dtype, kv_heads, biases):
    """Sizes of query, key, value and heads all different; grouped heads; a scale."""
    given = heads_case(
        rng, dtype, n_heads=4, n_kv_heads=kv_heads, query_dim=6, key_dim=7, value_dim=8,
        head_dim=3, value_head_dim=5, out_dim=9, biases=biases,
    ) | {"scale": 0.7}  # fmt: skip
    layer = MultiHeadAttention(**given)
    query, key, value = (draw(rng, (2, n, d), dtype) for n, d in ((5, 6), (11, 7), (11, 8)))
    want = multi_head(given, query, key, value)
    memory = layer.project_memory(key, value)
    assert memory.shape == (2, 11) and memory.dtype == dtype
    for got in (
        layer(query, key, value, return_weights=True),
        layer(query, memory, return_weights=True),
    ):
        near(got[0], want[0])
        near(got[1], want[1])
    near(layer(query[:, 2:3], memory), want[0][:, 2:3])
    near(layer(query[:1], key, value), multi_head(given, query[:1], key, value)[0])
    near(layer(query, key[:1], value), multi_head(given, query, key[:1], value)[0])


def test_the_value_is_the_key(backend, rng, dtype):
    given = heads_case(rng, dtype, query_dim=6, key_dim=7)
    layer = MultiHeadAttention(**given)
    query, key = draw(rng, (2, 5, 6), dtype), draw(rng, (2, 11, 7), dtype)
    want = multi_head(given, query, key, key)[0]
    near(layer(query, key), want)
    assert_bits_equal(layer(query, key, key), layer(query, key))
    near(layer(query, key, key.copy()), want)
    near(layer(query, layer.project_memory(key)), want)


def test_masks(backend, rng, dtype):
    """Each mask alone and together, bool and float, padding at the end and in between."""
    given = heads_case(rng, dtype)
    layer = MultiHeadAttention(**given)
    x, key = draw(rng, (3, 7, 6), dtype), draw(rng, (3, 9, 6), dtype)
    ends = np.arange(9) < np.array([[9], [4], [0]])
    holes = rng.random((3, 9)) < 0.7
    mask = rng.random((7, 9)) < 0.7
    per_head = rng.random((3, 2, 7, 9)) < 0.7
    floats = np.where(mask, rng.standard_normal((7, 9)), -np.inf)
    added = np.where(holes, rng.standard_normal((3, 9)), -np.inf)
    for padding in (None, ends, holes, holes[0], ends[1], ends[:1], added):
        for attn_mask in (None, mask, per_head, floats):
            allowed, bias = np.ones((3, 2, 7, 9), bool), np.zeros((3, 2, 7, 9))
            for term in (None if padding is None else padding[..., None, None, :], attn_mask):
                if term is not None and term.dtype == bool:
                    allowed = allowed & term
                elif term is not None:
                    allowed = allowed & ~np.isneginf(term)
                    bias = bias + np.where(np.isneginf(term), 0, term)
            for is_causal in (False, True):
                sees = allowed & (rows(7) >= np.arange(9)) if is_causal else allowed
                want = multi_head(given, x, key, key, sees, bias)
                got = layer(
                    x, key, key_padding_mask=padding, attn_mask=attn_mask, is_causal=is_causal,
                    return_weights=True,
                )  # fmt: skip
                near(got[0], want[0])
                near(got[1], want[1])
                assert not got[1][~sees].any()


def test_lengths_and_hidden_data(backend, rng, dtype):
    """What lies past a length or behind padding may be NaN; without keys there is the bias."""
    given = heads_case(rng, dtype)
    layer = MultiHeadAttention(**given)
    x, key = draw(rng, (3, 7, 6), dtype), draw(rng, (3, 9, 6), dtype)
    key[1, 4:], key[2] = np.nan, np.inf
    real = np.arange(9) < np.array([[9], [4], [0]])
    want = multi_head(given, x, key, key, real[:, None, None])[0]
    got = layer(x, key, kv_lengths=[9, 4, 0])
    near(got, want)
    assert_bits_equal(layer(x, key, key_padding_mask=real), got)
    assert_bits_equal(layer(x, layer.project_memory(key), kv_lengths=[9, 4, 0]), got)
    holes = rng.random((3, 9)) < 0.7
    got = layer(x, key, kv_lengths=[9, 4, 0], key_padding_mask=holes)
    near(got, multi_head(given, x, key, key, (real & holes)[:, None, None])[0])


@pytest.mark.parametrize("kv_heads", [None, 2])
def test_a_cache_token_by_token(backend, rng, dtype, kv_heads):
    given = heads_case(rng, dtype, n_heads=4, n_kv_heads=kv_heads, value_head_dim=5)
    layer = MultiHeadAttention(**given)
    x = draw(rng, (3, 7, 6), dtype)
    want, weights = multi_head(given, x, x, x, rows(7) >= np.arange(7))
    cache = layer.new_cache(3)
    assert cache.dtype == dtype
    # keys and values are rounded to the dtype of a cache of 16 bits
    slack = {"float16": 2.0**-9, "bfloat16": 2.0**-6}.get(dtype.name, 0.0) / 2.0**-22
    near(layer(x[:, :3], cache=cache), want[:, :3], rounds=32 + slack)
    for i in range(3, 7):
        got = layer(x[:, i : i + 1], cache=cache, return_weights=True)
        near(got[0], want[:, i : i + 1], rounds=32 + slack)
        near(got[1], weights[:, :, i : i + 1, : i + 1], rounds=32 + slack)
    assert cache.lengths.tolist() == [7, 7, 7]


def test_a_cache_with_prompts_of_different_lengths(backend, rng, real):
    given = heads_case(rng, real)
    layer = MultiHeadAttention(**given)
    x, then = draw(rng, (3, 5, 6), real), draw(rng, (3, 4, 6), real)
    lengths = np.array([5, 2, 0])
    cache = layer.new_cache(3, capacity=9)
    x[1, 2:] = np.nan
    first = layer(x, cache=cache, lengths=lengths)
    outs = [layer(then[:, i : i + 2], cache=cache) for i in (0, 2)]
    for b, n in enumerate(lengths):
        whole = np.concatenate([x[b, :n], then[b]])
        want = multi_head(given, whole, whole, whole, rows(n + 4) >= np.arange(n + 4))[0]
        near(first[b, :n], want[:n])
        near(np.concatenate([out[b] for out in outs]), want[n:])
    # masks speak of all there is, padded to the longest
    mask = rng.random((3, 11)) < 0.6
    token = draw(rng, (3, 2, 6), real)
    got = layer(token, cache=cache, key_padding_mask=mask, window=(4, 0))
    for b, n in enumerate(lengths):
        whole = np.concatenate([x[b, :n], then[b], token[b]])
        m = n + 6
        sees = (rows(m) >= np.arange(m)) & (rows(m) - 4 <= np.arange(m)) & mask[b, :m]
        near(got[b], multi_head(given, whole, whole, whole, sees)[0][-2:])


@pytest.mark.parametrize("kind", ["int8", "float16"])
def test_a_cache_of_another_dtype(backend, rng, kind):
    given = heads_case(rng, np.float32)
    layer = MultiHeadAttention(**given)
    x = draw(rng, (3, 7, 6))
    cache = layer.new_cache(3, dtype=kind)
    got = np.concatenate([layer(x[:, i : i + 1], cache=cache) for i in range(7)], axis=1)
    want = multi_head(given, x, x, x, rows(7) >= np.arange(7))[0]
    assert got.dtype == np.float32
    assert abs(got - want).max() < 0.05


def test_a_failed_step_leaves_the_cache(backend, rng):
    layer = MultiHeadAttention(**heads_case(rng, np.float32))
    cache = layer.new_cache(2)
    x = draw(rng, (2, 4, 6))
    layer(x, cache=cache)
    before = pickle.dumps(cache)
    for name, error, options in (
        ("attn_mask", ValueError, {"attn_mask": np.ones((4, 4), bool)}),
        ("key_padding_mask", TypeError, {"key_padding_mask": np.ones((2, 8), int)}),
        ("lengths", ValueError, {"lengths": [1, 5]}),
        ("window", ValueError, {"window": -2}),
        ("is_causal", ValueError, {"is_causal": True}),
        ("key", ValueError, {"key": x}),
        ("value", ValueError, {"value": x}),
        ("kv_lengths", ValueError, {"kv_lengths": 3}),
        ("return_weights", TypeError, {"return_weights": 2}),
    ):
        with pytest.raises(error, match=f"^{name}: "):
            layer(x, cache=cache, **options)
        assert pickle.dumps(cache) == before


def test_it_owns_its_weights(backend, rng, real):
    given = heads_case(rng, real)
    layer = MultiHeadAttention(**given)
    x = draw(rng, (2, 7, 6), real)
    memory = layer.project_memory(x)
    before, crossed = layer(x), layer(x[:1], memory)
    again = pickle.loads(pickle.dumps(layer))
    kept = x.copy()
    x[...] = np.nan
    for array in given.values():
        if isinstance(array, np.ndarray):
            array[...] = np.nan
    assert_bits_equal(layer(kept), before)
    assert_bits_equal(again(kept), before)
    assert_bits_equal(layer(kept[:1], memory), crossed)
    assert_bits_equal(layer(kept[:1], pickle.loads(pickle.dumps(memory))), crossed)


def test_any_strides(backend, rng, dtype):
    given = heads_case(rng, dtype)
    layer = MultiHeadAttention(**given)
    x = draw(rng, (3, 7, 6), dtype)
    got = layer(x)
    for same in (
        np.asfortranarray(x),
        np.repeat(x, 2, axis=2)[:, :, ::2],
        x[::-1].copy()[::-1],
        x.astype(x.dtype.newbyteorder()) if dtype.name != "bfloat16" else x,
    ):
        near(layer(same), got.astype(np.float64))


def test_empty_axes(backend, rng, dtype):
    layer = MultiHeadAttention(**heads_case(rng, dtype))
    for lead, queries, keys in (((0,), 3, 4), ((2,), 0, 4), ((2,), 3, 0)):
        x, key = draw(rng, (*lead, queries, 6), dtype), draw(rng, (*lead, keys, 6), dtype)
        out, weights = layer(x, key, return_weights=True)
        assert out.shape == (*lead, queries, 5) and weights.shape == (*lead, 2, queries, keys)
        assert np.isfinite(out).all()
    assert layer(draw(rng, (2, 0, 6), dtype)).shape == (2, 0, 5)


def state_of(given):
    """PyTorch's names and orientation, with packed projections."""
    state = {
        "in_proj_weight": np.concatenate([given[f"{n}_weight"].T for n in NAMES]),
        "out_proj.weight": given["output_weight"].T,
    }
    if "query_bias" in given:
        state["in_proj_bias"] = np.concatenate([given[f"{n}_bias"] for n in NAMES])
        state["out_proj.bias"] = given["output_bias"]
    return state


@pytest.mark.parametrize("biases", [True, False])
def test_state_dicts(backend, rng, dtype, biases):
    given = heads_case(rng, dtype, biases=biases, head_dim=3, out_dim=6)
    layer = MultiHeadAttention(**given)
    x = draw(rng, (2, 7, 6), dtype)
    state = state_of(given)
    packed = MultiHeadAttention.from_state_dict(state, num_heads=2)
    assert_bits_equal(packed(x), layer(x))
    apart = {f"{n[0]}_proj_weight": given[f"{n}_weight"].T for n in NAMES}
    apart |= {n: w for n, w in state.items() if n != "in_proj_weight"} | {"bias_k": None}
    apart = {f"some.prefix.{n}": w for n, w in apart.items()}
    apart = MultiHeadAttention.from_state_dict(apart, num_heads=2, prefix="some.prefix.")
    assert_bits_equal(apart(x), layer(x))


def test_state_dicts_that_do_not_fit(rng):
    given = heads_case(rng, np.float32, head_dim=3, out_dim=6)
    state = state_of(given)
    load = MultiHeadAttention.from_state_dict
    with pytest.raises(ValueError, match="^state: .*bias_k"):
        load(state | {"bias_k": np.ones((1, 1, 6), np.float32)}, num_heads=2)
    with pytest.raises(ValueError, match="^state: .*'out_proj.weight'"):
        load({n: w for n, w in state.items() if n != "out_proj.weight"}, num_heads=2)
    with pytest.raises(ValueError, match="^state: .*'x.q_proj_weight'"):
        load(state, num_heads=2, prefix="x.")
    with pytest.raises(ValueError, match="^in_proj_weight: "):
        load(state | {"in_proj_weight": np.ones((7, 6), np.float32)}, num_heads=2)
    with pytest.raises(TypeError, match="^state: "):
        load([1, 2], num_heads=2)
    with pytest.raises(ValueError, match="^state: expected an entry 'q_proj_weight', got 7$"):
        load({7: np.ones(2)}, num_heads=2)
    with pytest.raises(TypeError, match="^prefix: "):
        load(state, num_heads=2, prefix=None)
    with pytest.raises(TypeError, match="^module: "):
        MultiHeadAttention.from_torch(state)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 7, "vdim": 9}], ids=["packed", "separate"])
def test_torch(backend, rng, bias, sizes):
    torch = pytest.importorskip("torch")
    module = torch.nn.MultiheadAttention(12, 3, bias=bias, batch_first=True, **sizes).eval()
    layer = MultiHeadAttention.from_torch(module)
    query = draw(rng, (2, 5, 12))
    key, value = (draw(rng, (2, 8, sizes.get(n, 12))) for n in ("kdim", "vdim"))
    ignored = np.arange(8) >= np.array([[8], [3]])
    hidden = np.triu(np.ones((5, 8), bool), 2)
    with torch.no_grad():
        want, weights = module(
            *map(torch.from_numpy, (query, key, value)), key_padding_mask=torch.from_numpy(ignored),
            attn_mask=torch.from_numpy(hidden), average_attn_weights=False,
        )  # fmt: skip
    got = layer(
        query, key, value, key_padding_mask=~ignored, attn_mask=~hidden, return_weights=True
    )
    near(got[0], want.numpy())
    near(got[1], weights.numpy())
    for refused in ({"add_bias_kv": True}, {"add_zero_attn": True}):
        with pytest.raises(ValueError, match="bias_k|add_zero_attn"):
            MultiHeadAttention.from_torch(torch.nn.MultiheadAttention(12, 3, **refused))


def test_torch_bfloat16(backend, rng):
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    module = torch.nn.MultiheadAttention(12, 3, dtype=torch.bfloat16)
    assert MultiHeadAttention.from_torch(module).dtype.name == "bfloat16"


def test_repr(rng):
    layer = MultiHeadAttention(**heads_case(rng, np.float32))
    assert repr(layer) == (
        "MultiHeadAttention(num_heads=2, query_dim=6, head_dim=4, out_dim=5, dtype='float32')"
    )
    layer = MultiHeadAttention(**heads_case(rng, np.float32, n_heads=4, n_kv_heads=2, key_dim=7))
    assert "num_kv_heads=2, query_dim=6, key_dim=7, head_dim=4" in repr(layer)
    memory = layer.project_memory(np.ones((3, 5, 7), np.float32))
    assert repr(memory) == (
        "ProjectedMemory(shape=(3, 5), num_kv_heads=2, head_dim=4, value_head_dim=4, "
        "dtype='float32')"
    )


def test_weights_that_do_not_fit(rng):
    given = heads_case(rng, np.float32)
    one = np.float32(1)
    for name, error, wrong in (
        ("num_heads", ValueError, 0),
        ("num_heads", TypeError, 2.0),
        ("num_kv_heads", ValueError, 3),
        ("query_weight", ValueError, np.full((6, 7), one)),
        ("query_weight", ValueError, np.full(6, one)),
        ("key_weight", ValueError, np.full((6, 7), one)),
        ("value_weight", ValueError, np.full((6, 7), one)),
        ("value_weight", TypeError, np.ones((6, 8))),
        ("output_weight", ValueError, np.full((6, 5), one)),
        ("query_bias", ValueError, np.full(7, one)),
        ("key_bias", TypeError, np.arange(8)),
        ("output_bias", ValueError, np.full(6, one)),
        ("scale", ValueError, np.nan),
    ):
        with pytest.raises(error, match=f"^{name}: "):
            MultiHeadAttention(**given | {name: wrong})
    with pytest.raises(ValueError, match="^output_bias: "):
        MultiHeadAttention(**given | {"output_weight": None})


def test_calls_that_do_not_fit(backend, rng):
    layer = MultiHeadAttention(**heads_case(rng, np.float32))
    apart = MultiHeadAttention(**heads_case(rng, np.float32, key_dim=7, value_dim=8))
    other = MultiHeadAttention(**heads_case(rng, np.float32, head_dim=3))
    x, key = draw(rng, (2, 4, 6)), draw(rng, (2, 9, 6))
    cases = (
        (layer, "query", ValueError, (x[..., :5],), {}),
        (layer, "query", ValueError, (x[0, 0],), {}),
        (layer, "query", TypeError, (x.astype(float),), {}),
        (layer, "key", TypeError, (x, key.astype(float)), {}),
        (layer, "key", ValueError, (x, key[0]), {}),
        (layer, "key", ValueError, (x, key[[0, 0, 1]]), {}),
        (layer, "key", ValueError, (x, other.project_memory(key)), {}),
        (layer, "value", ValueError, (x, key, key[:, :8]), {}),
        (layer, "value", ValueError, (x, None, key), {}),
        (layer, "value", ValueError, (x, layer.project_memory(key), key), {}),
        (apart, "key", ValueError, (x,), {}),
        (apart, "value", ValueError, (x, draw(rng, (2, 9, 7))), {}),
        (layer, "key_padding_mask", ValueError, (x, key), {"key_padding_mask": np.ones(4, bool)}),
        (layer, "attn_mask", ValueError, (x, key), {"attn_mask": np.ones((4, 4), bool)}),
        (layer, "attn_mask", TypeError, (x, key), {"attn_mask": np.ones((4, 9), int)}),
        (layer, "kv_lengths", ValueError, (x, key), {"kv_lengths": 10}),
        (layer, "is_causal", TypeError, (x, key), {"is_causal": "yes"}),
        (layer, "window", ValueError, (x, key), {"window": -3}),
        (layer, "lengths", ValueError, (x,), {"lengths": 3}),
        (layer, "cache", TypeError, (x,), {"cache": fastattn.PagedKVCache(2, 2, 2, 4)}),
        (layer, "cache", TypeError, (x,), {"cache": layer.new_cache(2, dtype="float64")}),
        (layer, "cache", ValueError, (x,), {"cache": other.new_cache(2)}),
        (layer, "query", ValueError, (x,), {"cache": layer.new_cache(3)}),
        (layer, "query", ValueError, (x[0],), {"cache": layer.new_cache(1)}),
    )
    for which, name, error, arguments, options in cases:
        with pytest.raises(error, match=f"^{name}: "):
            which(*arguments, **options)
    for twice in (None, layer.project_memory(key)):
        with pytest.raises(TypeError, match="^key: expected an array"):
            layer.project_memory(twice)
