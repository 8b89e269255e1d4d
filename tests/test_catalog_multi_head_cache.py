# SPDX-License-Identifier: MIT
# MultiHeadAttention with a cache, and memory projected once: decoding token by token.
# Used by the suite, on every backend.
# Caches themselves are tested in test_cache*.py, layers around this one in
# test_catalog_transformer_cache.py.
"""Steps with a cache are rows of the causal run over the whole sequences."""

import numpy as np
import pytest
from check import assert_bits_equal, draw
from check_layers import assert_layer, multi_head, poisoned
from layer_cases import build, multi_head_weights

import fastattn

SIZE = 17
CHUNKS = {"tokens": [1] * SIZE, "prompt": [13, 1, 1, 2], "chunks": [1, 9, 0, 3, 4]}


def mha(weights):
    return build("MultiHeadAttention", weights)


def self_weights(rng, dtype):
    return multi_head_weights(rng, dtype, sizes=(7, 7, 7))


@pytest.mark.parametrize("chunks", CHUNKS)
def test_steps_are_the_causal_run(backend, rng, dtype, chunks):
    """However the sequence is cut, and however much room the cache has."""
    weights = self_weights(rng, dtype)
    layer, x = mha(weights), draw(rng, (3, SIZE, 7), dtype)
    wanted = multi_head(weights | {"kept": dtype}, x, is_causal=True)[0]
    for capacity in (0, 40):
        cache = layer.new_cache(3, capacity=capacity)
        assert isinstance(cache, fastattn.KVCache) and cache.dtype == dtype
        assert cache.capacity >= capacity
        out, start = [], 0
        for n in CHUNKS[chunks]:
            out.append(layer(x[:, start : start + n], cache=cache))
            start += n
        assert (cache.lengths == SIZE).all()
        assert_layer(np.concatenate(out, axis=1), wanted, dtype, f"capacity {capacity}")


@pytest.mark.parametrize("option", ["window", "bool", "float", "heads"])
def test_options_of_steps(backend, rng, option):
    """A mask has a row for each new token and a column for each that there is then."""
    weights = self_weights(rng, np.float64)
    layer, x = mha(weights), draw(rng, (3, SIZE, 7), np.float64)
    mask = {
        "window": None,
        "bool": rng.random((SIZE, SIZE)) < 0.6,
        "float": np.where(rng.random((SIZE, SIZE)) < 0.2, -np.inf, 0.7),
        "heads": rng.random((3, 4, SIZE, SIZE)) < 0.6,
    }[option]
    options = {"window": (4, 0)} if mask is None else {}
    wanted = multi_head(weights, x, is_causal=True, attn_mask=mask, **options)
    cache, start = layer.new_cache(3), 0
    for n in CHUNKS["chunks"]:
        stop = start + n
        of_step = None if mask is None else mask[..., start:stop, :stop]
        got = layer(x[:, start:stop], cache=cache, attn_mask=of_step, **options,
                    return_weights=True)  # fmt: skip
        rows = tuple(w[..., start:stop, :] for w in wanted)
        assert_layer(got, (rows[0], rows[1][..., :stop]), np.float64, f"{start}:{stop}")
        start = stop


def test_ragged_prompts(backend, rng, real):
    """Each entry goes on where its prompt ended; what pads the prompts may be NaN."""
    weights = self_weights(rng, real)
    layer, x = mha(weights), draw(rng, (4, SIZE, 7), real)
    cache, done = layer.new_cache(4), np.zeros(4, int)
    out = np.full((4, SIZE, 10), np.nan, real)
    for lengths in ([5, 2, 0, 3], [1, 1, 1, 1], [0, 3, 2, 1], [2, 1, 2, 1]):
        lengths = np.array(lengths)
        tokens = np.zeros((4, lengths.max(), 7), real)
        for b, n in enumerate(lengths):
            tokens[b, :n] = x[b, done[b] : done[b] + n]
        got = layer(poisoned(tokens, lengths), cache=cache, lengths=lengths)
        for b, n in enumerate(lengths):
            out[b, done[b] : done[b] + n] = got[b, :n]
        done += lengths
        assert (cache.lengths == done).all()
    wanted = multi_head(weights, x, is_causal=True)[0]
    for b, n in enumerate(done):
        assert_layer(out[b, :n], wanted[b, :n], real, f"entry {b}")


def test_caches_of_other_dtypes(backend, rng):
    """An int8 cache of a float32 layer: near, and as sparing as it is."""
    weights = self_weights(rng, np.float32)
    layer, x = mha(weights), draw(rng, (3, SIZE, 7))
    wanted = multi_head(weights, x, is_causal=True)[0]
    for dtype, limit in (("int8", 0.05), ("float16", 5e-3)):
        cache = layer.new_cache(3, dtype=dtype)
        out = np.concatenate([layer(x[:, i : i + 1], cache=cache) for i in range(SIZE)], axis=1)
        assert cache.dtype == dtype and out.dtype == np.float32
        assert abs(out - wanted).max() < limit, dtype


def test_beams(backend, rng):
    """A cache may be reordered and cut between steps: it is an ordinary one."""
    weights = self_weights(rng, np.float64)
    layer, x = mha(weights), draw(rng, (3, SIZE, 7), np.float64)
    cache = layer.new_cache(3)
    layer(x[:, :8], cache=cache)
    cache.reorder([2, 2, 0])
    cache.truncate(6)
    tokens = np.concatenate([x[[2, 2, 0], :6], x[:, 6:9]], axis=1)
    got = layer(x[:, 6:9], cache=cache)
    assert_layer(got, multi_head(weights, tokens, is_causal=True)[0][:, 6:], np.float64)


def test_projected_memory_serves_every_step(backend, rng, real):
    """Cross-attention: one projection, and each token's row is that of the whole call."""
    weights = multi_head_weights(rng, real, sizes=(7, 8, 8))
    layer = mha(weights)
    query, memory = draw(rng, (3, 5, 7), real), draw(rng, (3, SIZE, 8), real)
    lengths = np.array([SIZE, 4, 0])
    options = {"kv_lengths": lengths, "key_padding_mask": rng.random((3, SIZE)) < 0.7}
    wanted = multi_head(weights, query, memory, **options)
    projected = layer.project_memory(poisoned(memory, lengths))
    for i in range(5):
        got = layer(query[:, i : i + 1], projected, **options, return_weights=True)
        assert_layer(got, tuple(w[..., i : i + 1, :] for w in wanted), real, f"step {i}")


def test_wrong_calls_leave_the_cache_alone(rng):
    """The message begins with the argument's name; nothing was appended."""
    weights = self_weights(rng, np.float32)
    layer, x = mha(weights), draw(rng, (3, 5, 7))
    cache = layer.new_cache(3)
    layer(x, cache=cache)
    wanted = layer(x[:, :1], cache=cache)
    cache.truncate(5)
    other = fastattn.KVCache(3, 2, 4, value_head_size=5)
    for tokens, options, error, argument in [
        (x, {"key": x}, ValueError, "key"),
        (x, {"value": x}, ValueError, "value"),
        (x, {"is_causal": True}, ValueError, "is_causal"),
        (x, {"kv_lengths": 3}, ValueError, "kv_lengths"),
        (x, {"lengths": [1, 2]}, ValueError, "lengths"),
        (x, {"lengths": [1, 2, 6]}, ValueError, "lengths"),
        (x, {"lengths": [1.0, 2.0, 3.0]}, TypeError, "lengths"),
        (x, {"attn_mask": np.ones((5, 5), bool)}, ValueError, "attn_mask"),
        (x, {"attn_mask": np.ones((5, 10), int)}, TypeError, "attn_mask"),
        (x, {"window": -3}, ValueError, "window"),
        (x[0], {}, ValueError, "query|cache"),
        (x[None], {}, ValueError, "query|cache"),
        (x[:2], {}, ValueError, "query|cache"),
        (x[..., :6], {}, ValueError, "query"),
        (x.astype(np.float64), {}, TypeError, "query"),
        (x, {"cache": other}, ValueError, "cache"),
        (x, {"cache": layer.new_cache(2)}, ValueError, "query|cache"),
        (x, {"cache": {}}, TypeError, "cache"),
        (x, {"cache": fastattn.KVCache(3, 2, 3, value_head_size=5, dtype="float64")},
         (TypeError, ValueError), "cache"),
    ]:  # fmt: skip
        with pytest.raises(error, match=rf"^({argument})\b"):
            layer(tokens, **{"cache": cache} | options)
        assert (cache.lengths == 5).all(), (options, "appended")
    assert_bits_equal(layer(x[:, :1], cache=cache), wanted)


def test_wrong_caches(rng):
    layer = mha(self_weights(rng, np.float32))
    for options, error, argument in [
        ({"batch": -1}, ValueError, "batch"),
        ({"batch": 2.0}, TypeError, "batch"),
        ({"batch": 2, "capacity": -1}, ValueError, "capacity"),
        ({"batch": 2, "dtype": "int32"}, TypeError, "dtype"),
    ]:
        with pytest.raises(error, match=rf"^{argument}\b"):
            layer.new_cache(**options)
