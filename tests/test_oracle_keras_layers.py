# SPDX-License-Identifier: MIT
# Keras's attention layers as an outside opinion of ours, where Keras is installed.
# Used by the suite, on every backend; skipped without Keras.
# What the functions of the package give beside Keras is in test_oracle_keras.py.
"""Keras's Attention, AdditiveAttention, MultiHeadAttention and GroupQueryAttention.

The first two are float32, whose products Keras has in float32 anyway; the others are float64.
Their masks are True = may attend, like ours. A row that may see nothing is an average of everything
there, and so no case for a comparison.
"""

import os

import numpy as np
import pytest
from check_layers import assert_layer

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip(os.environ["KERAS_BACKEND"])
keras = pytest.importorskip("keras")

from fastattn import layers  # noqa: E402

F = np.float32
QUERIES, KEYS, DIM = 6, 9, 8
# Keras's own arrays are older than the protocol of NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture
def arrays(rng):
    """query (3, 6, 8), memory (3, 9, 8)."""
    return [rng.standard_normal((3, n, DIM)).astype(F) for n in (QUERIES, KEYS)]


def numpy_of(tensors):
    return tuple(keras.ops.convert_to_numpy(x) for x in tensors)


def numbers_for(layer, rng):
    """Random weights instead of its first ones; by their paths, without the layer's own name."""
    layer.set_weights([rng.uniform(-0.8, 0.8, w.shape) for w in layer.get_weights()])
    return {w.path.split("/", 1)[1]: keras.ops.convert_to_numpy(w) for w in layer.weights}


def masks_of(rng):
    """name -> (lengths, mask of the keys): every row sees key 0."""
    holes = rng.random((3, KEYS)) < 0.6
    holes[:, 0] = True
    lengths = np.array([KEYS, 4, 1])
    return {"none": (None, None), "padding": (lengths, np.arange(KEYS) < lengths[:, None]),
            "holes": (None, holes)}  # fmt: skip


def compare(ours, theirs, arrays, rng):
    """Layers of a query and a memory, with each mask, and causal, too."""
    for name, (lengths, mask) in masks_of(rng).items():
        for causal in (False, True):
            options = {} if mask is None else {"mask": [None, mask]}
            wanted = numpy_of(theirs(arrays, return_attention_scores=True,
                                     use_causal_mask=causal, **options))  # fmt: skip
            allowed = np.tri(QUERIES, KEYS, dtype=bool) if causal else None
            if lengths is None and mask is not None:
                allowed = mask[:, None] if allowed is None else mask[:, None] & allowed
            got = ours(*arrays, memory_lengths=lengths, attn_mask=allowed, return_weights=True)
            wanted = tuple(x.astype(np.float64) for x in wanted)
            assert_layer(got, wanted, F, f"{name} {causal}")


@pytest.mark.parametrize("use_scale", [True, False])
def test_additive_is_bahdanaus(backend, rng, arrays, use_scale):
    """Without projections; the scale is the learned vector."""
    theirs = keras.layers.AdditiveAttention(use_scale=use_scale)
    theirs.build([x.shape for x in arrays])
    weights = numbers_for(theirs, rng) if use_scale else {"scale": np.ones(DIM, F)}
    eye = np.eye(DIM, dtype=F)
    ours = layers.BahdanauAttention(attention_v=weights["scale"], query_weight=eye, key_weight=eye)
    compare(ours, theirs, arrays, rng)


def test_dot_is_luongs(backend, rng, arrays):
    theirs = keras.layers.Attention()
    compare(layers.LuongAttention(), theirs, arrays, rng)


def test_concat_is_luongs(backend, rng, arrays):
    """tanh(scale (q + k)), with a scalar for the learned vector."""
    theirs = keras.layers.Attention(score_mode="concat", use_scale=True)
    theirs.build([x.shape for x in arrays])
    weights = numbers_for(theirs, rng)
    eye = np.eye(DIM, dtype=F) * weights["scale"]
    ours = layers.LuongAttention(
        score="concat", weight=np.concatenate([eye, eye]),
        attention_v=np.full(DIM, weights["concat_score_weight"], F),
    )  # fmt: skip
    compare(ours, theirs, arrays, rng)


def flat(kernel, n_in):
    """(in, heads, size) as (in, heads * size), or (heads, size, out) as (heads * size, out)."""
    return kernel.reshape(n_in, -1) if n_in else kernel.reshape(-1, kernel.shape[-1])


def multi_head(weights, **options):
    """Ours with the weights of Keras's, which have an axis of heads."""
    given = {}
    for name in ("query", "key", "value"):
        kernel = weights[f"{name}/kernel"]
        given[f"{name}_weight"] = flat(kernel, len(kernel))
        if f"{name}/bias" in weights:
            given[f"{name}_bias"] = weights[f"{name}/bias"].reshape(-1)
    given["output_weight"] = flat(weights["attention_output/kernel"], None)
    if "attention_output/bias" in weights:
        given["output_bias"] = weights["attention_output/bias"]
    return layers.MultiHeadAttention(**given, **options)


def compare_heads(theirs, options, rng, dims):
    """query, key, value of these sizes, with each mask that Keras has."""
    lengths = (QUERIES, KEYS, KEYS)
    query, key, value = (rng.standard_normal((3, n, dim)) for n, dim in zip(lengths, dims))
    theirs.build(query.shape, value.shape, key.shape)
    ours = multi_head(numbers_for(theirs, rng), **options)
    rows = rng.random((3, QUERIES, KEYS)) < 0.6
    rows[..., 0] = True
    padding = masks_of(rng)["padding"]
    for mine, keras_options in (
        ({}, {}),
        ({"attn_mask": rows[:, None]}, {"attention_mask": rows}),
        ({"is_causal": True}, {"use_causal_mask": True}),
        ({"kv_lengths": padding[0]}, {"value_mask": padding[1]}),
        ({"key_padding_mask": padding[1], "is_causal": True},
         {"value_mask": padding[1], "use_causal_mask": True}),
        ({"attn_mask": rows[:, None], "key_padding_mask": padding[1]},
         {"value_mask": padding[1], "attention_mask": rows}),
    ):  # fmt: skip
        wanted = theirs(query, value, key, return_attention_scores=True, **keras_options)
        got = ours(query, key, value, return_weights=True, **mine)
        assert_layer(got, numpy_of(wanted), np.float64, str(list(mine)))


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("value_dim, output_shape", [(None, None), (5, 10)])
def test_multi_head(backend, rng, use_bias, value_dim, output_shape):
    theirs = keras.layers.MultiHeadAttention(
        4, 3, value_dim=value_dim, use_bias=use_bias, output_shape=output_shape, dtype="float64"
    )
    compare_heads(theirs, {"num_heads": 4}, rng, (8, 7, 11))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads(backend, rng, kv_heads):
    theirs = keras.layers.GroupQueryAttention(3, 4, kv_heads, dtype="float64")
    compare_heads(theirs, {"num_heads": 4, "num_kv_heads": kv_heads}, rng, (8, 8, 8))
