# SPDX-License-Identifier: MIT
# Keras's attention layers as an outside opinion, where it is installed.
# Used by the suite, on every backend; skipped without Keras.
# Keras computes in float32 here, so it cannot judge rounding errors.
"""keras.layers.AdditiveAttention and Attention, with their masks, give what fastattn gives.

Keras's scores are sum_u scale_u tanh(q_u + k_u) in AdditiveAttention, and in Attention
scale * (q . k) or, with "concat", weight * sum_u tanh(scale * (q_u + k_u)) with scalars: there
the concatenation has the identity matrix twice for its weight. Its masks are True = may attend; a
row that may see nothing is an average of everything there, and so no case for a comparison.
"""

import os

import numpy as np
import pytest
from check import assert_close

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip(os.environ["KERAS_BACKEND"])
keras = pytest.importorskip("keras")

import fastattn  # noqa: E402
from fastattn import scores  # noqa: E402

F = np.float32
QUERIES, KEYS, DIM = 6, 9, 8
# Keras's own arrays are older than the protocol of NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture
def arrays(rng):
    """query (2, 6, 8), key (2, 9, 8), value (2, 9, 5): Keras has a batch and no heads."""
    return tuple(
        rng.standard_normal(shape).astype(F)
        for shape in ((2, QUERIES, DIM), (2, KEYS, DIM), (2, KEYS, 5))
    )


def by_keras(layer, arrays, **options):
    """(out, weights) of a Keras layer, which takes the value before the key."""
    query, key, value = arrays
    out, weights = layer([query, value, key], return_attention_scores=True, **options)
    return [keras.ops.convert_to_numpy(x).astype(np.float64) for x in (out, weights)]


def compare(layer, arrays, call):
    """`call(*arrays, **options)` of fastattn with one head, for each mask that Keras has."""
    with_head = [x[:, None] for x in arrays]
    padding = np.arange(KEYS) < np.array([[KEYS - 2], [4]])
    holes = np.random.default_rng(1).random((2, KEYS)) < 0.6
    holes[:, 0] = True  # so that every row sees a key, with the causal mask, too
    for is_causal in (False, True):
        for mask in (None, padding, holes):
            options = {"use_causal_mask": is_causal}
            if mask is not None:
                options["mask"] = [None, mask]
            wanted = by_keras(layer, arrays, **options)
            options = {"is_causal": is_causal, "return_weights": True}
            if mask is not None:
                options["attn_mask"] = mask[:, None, None, :]
            got = call(*with_head, **options)
            for one, other in zip(got, wanted):
                assert_close(one[:, 0], other, slack=1e-5, context=f"{is_causal} {mask}")
            if mask is padding:
                del options["attn_mask"]
                got = call(*with_head, kv_lengths=mask.sum(axis=1), **options)
                assert_close(got[0][:, 0], wanted[0], slack=1e-5, context="lengths")


def built(layer, arrays, rng):
    """The layer with random weights instead of its first ones."""
    query, key, value = arrays
    layer.build([x.shape for x in (query, value, key)])
    layer.set_weights([rng.uniform(0.5, 1.5, w.shape).astype(F) for w in layer.get_weights()])
    return layer


@pytest.mark.parametrize("use_scale", [True, False])
def test_additive(backend, rng, arrays, use_scale):
    """The scale is the learned vector."""
    layer = built(keras.layers.AdditiveAttention(use_scale=use_scale), arrays, rng)
    vector = layer.get_weights()[0] if use_scale else None

    def call(query, key, value, **options):
        return fastattn.additive_attention(query, key, value, vector, **options)

    compare(layer, arrays, call)


@pytest.mark.parametrize("use_scale", [True, False])
def test_concat(backend, rng, arrays, use_scale):
    layer = built(keras.layers.Attention(score_mode="concat", use_scale=use_scale), arrays, rng)
    numbers = {w.name: np.asarray(w) for w in layer.weights}
    weight = np.concatenate([np.eye(DIM), np.eye(DIM)]) * numbers.get("scale", 1.0)
    score = scores.Concat(weight, np.full(DIM, numbers["concat_score_weight"]))

    def call(*arrays, **options):
        return fastattn.attention(*arrays, score=score, **options)

    compare(layer, arrays, call)


@pytest.mark.parametrize("use_scale", [True, False])
def test_dot(backend, rng, arrays, use_scale):
    """A scale of the scores is one of the queries."""
    layer = built(keras.layers.Attention(use_scale=use_scale), arrays, rng)
    scale = layer.get_weights()[0] if use_scale else F(1)

    def call(query, *others, **options):
        return fastattn.attention(query * scale, *others, score="dot", **options)

    compare(layer, arrays, call)


def test_key_is_value(backend, rng, arrays):
    """With two inputs Keras takes the value for the key, too."""
    query, key, _ = arrays
    layer = keras.layers.AdditiveAttention(use_scale=False)
    wanted = np.asarray(layer([query, key])).astype(np.float64)
    assert_close(fastattn.additive_attention(query, key, key, None), wanted, slack=1e-5)


def test_query_mask(backend, rng, arrays):
    """Rows that Keras sets to zero because of their query are rows that see nothing."""
    layer = keras.layers.AdditiveAttention(use_scale=False)
    mask = np.arange(QUERIES) < np.array([[QUERIES], [2]])
    wanted = by_keras(layer, arrays, mask=[mask, None])[0]
    query, key, value = (x[:, None] for x in arrays)
    out = fastattn.additive_attention(query, key, value, None, attn_mask=mask[:, None, :, None])
    assert_close(out[:, 0], wanted, slack=1e-5)
