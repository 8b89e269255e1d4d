# SPDX-License-Identifier: MIT
# Memory of layers: no array of queries x keys, nor of queries x keys x units.
# Used by the suite, on every backend.
# What the kernels themselves take is in test_memory.py.
"""What a call allocates grows with its inputs and outputs, not with their product."""

import tracemalloc

import numpy as np
import pytest
from check import draw
from layer_cases import build, drawn, multi_head_weights, transformer_weights

N, MANY = 1500, 3000
PAIRS = 4 * N * MANY  # bytes of one float32 for each pair


def peak_of(call):
    """Bytes that NumPy has for the second call, at most."""
    call()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bahdanau(rng):
    weights = drawn(rng, np.float32, attention_v=2, query_weight=(3, 2), key_weight=(4, 2))
    query, memory = draw(rng, (N, 3)), draw(rng, (MANY, 4))
    return lambda: build("BahdanauAttention", weights)(query, memory)


def luong(rng, **weights):
    layer = build("LuongAttention", weights)
    query, memory = draw(rng, (N, 3)), draw(rng, (MANY, 4))
    return lambda: layer(query, memory)


def luong_general(rng):
    return luong(rng, score="general", **drawn(rng, np.float32, weight=(3, 4)))


def luong_concat(rng):
    return luong(rng, score="concat", **drawn(rng, np.float32, weight=(7, 2), attention_v=2))


def luong_location(rng):
    weight = np.broadcast_to(draw(rng, (3, 1)), (3, MANY))
    return luong(rng, score="location", weight=weight)


def multi_head(rng):
    """With a padding mask of each entry and a mask that is a view: neither is expanded."""
    weights = multi_head_weights(rng, np.float32, 2, 1, (3, 3, 3), (2, 2), 4)
    layer = build("MultiHeadAttention", weights)
    x = draw(rng, (2, N, 3))
    masks = {
        "key_padding_mask": rng.random((2, N)) < 0.9,
        "attn_mask": np.broadcast_to(rng.random(N) < 0.9, (N, N)),
        "is_causal": True,
    }
    return lambda: layer(x, **masks)


def encoder(rng):
    layer = build("TransformerEncoderLayer", transformer_weights(rng, np.float32))
    src, mask = draw(rng, (2, N, 8)), rng.random((2, N)) < 0.9
    return lambda: layer(src, src_key_padding_mask=mask)


def two_texts(rng, name, y_dim=3, **shapes):
    x, y = draw(rng, (N, 3)), draw(rng, (MANY, y_dim))
    layer = build(name, drawn(rng, np.float32, **shapes) | ({"width": 2} if "2" in name else {}))
    return lambda: layer(x, y)


def attention_over_attention(rng):
    return two_texts(rng, "AttentionOverAttention")


def attentive_pooling(rng):
    return two_texts(rng, "AttentivePooling", 4, weight=(3, 4))


def abcnn1(rng):
    return two_texts(rng, "ABCNN1", x_weight=(MANY, 3), y_weight=(N, 3))


def abcnn2(rng):
    return two_texts(rng, "ABCNN2")


@pytest.mark.parametrize(
    "make",
    [bahdanau, luong_general, luong_concat, luong_location, multi_head, encoder,
     attention_over_attention, attentive_pooling, abcnn1, abcnn2],
    ids=lambda make: make.__name__,
)  # fmt: skip
def test_no_array_of_pairs(backend, rng, make):
    """4.5 million pairs of a query and a key, or half of them twice, in a quarter of their size."""
    peak = peak_of(make(rng))
    assert peak < PAIRS / 4, f"{peak} bytes; one float32 for each pair are {PAIRS}"
