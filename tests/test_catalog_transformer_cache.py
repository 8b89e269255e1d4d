# SPDX-License-Identifier: MIT
# Transformer layers with caches: decoding token by token.
# Used by the suite, on every backend.
# The cache of the attention alone is in test_catalog_multi_head_cache.py.
"""Steps of a layer, and of a stack of them, are rows of its causal run."""

import numpy as np
import pytest
from check import assert_bits_equal, draw
from check_layers import assert_layer, decoder, encoder, poisoned
from layer_cases import CASES, build

SIZE, CHUNKS = 9, [1, 4, 0, 1, 3]
orders = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])


@orders
def test_encoder_steps_are_the_causal_run(backend, rng, dtype, norm_first):
    """An encoder layer with a cache is the layer of a decoder-only model."""
    case = CASES["encoder"](rng, dtype, length=SIZE, norm_first=norm_first)
    layer, src = case.layer(), case.inputs["src"]
    cache, out, start = layer.new_cache(6, capacity=3), [], 0
    for n in CHUNKS:
        out.append(layer(src[:, start : start + n], cache=cache))
        start += n
    kept = {"self_attention": case.weights["self_attention"] | {"kept": dtype}}
    wanted = encoder(case.weights | kept, src, is_causal=True)
    assert_layer(np.concatenate(out, axis=1), wanted, dtype)


@orders
@pytest.mark.parametrize("is_projected", [False, True], ids=["memory", "projected"])
def test_decoder_steps_are_the_causal_run(backend, rng, real, norm_first, is_projected):
    """With masks of the memory; it may be projected once for all steps."""
    case = CASES["decoder"](rng, real, length=SIZE, norm_first=norm_first)
    layer = case.layer()
    tgt, memory = case.inputs["tgt"], case.inputs["memory"]
    given = layer.project_memory(memory) if is_projected else memory
    padding = {"memory_key_padding_mask": case.inputs["memory_key_padding_mask"]}
    of_memory, of_tgt = rng.random((SIZE, 7)) < 0.7, rng.random((SIZE, SIZE)) < 0.7
    cache, out, start = layer.new_cache(6), [], 0
    for n in CHUNKS:
        stop = start + n
        step = layer(tgt[:, start:stop], given, memory_mask=of_memory[start:stop],
                     tgt_mask=of_tgt[start:stop, :stop], cache=cache, **padding)  # fmt: skip
        out.append(step)
        start = stop
    wanted = decoder(case.weights, tgt, memory, tgt_is_causal=True, memory_mask=of_memory,
                     tgt_mask=of_tgt, **padding)  # fmt: skip
    assert_layer(np.concatenate(out, axis=1), wanted, real)


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_ragged_prompts(backend, rng, real, name):
    """Prompts of different lengths, then tokens; what pads the prompts may be NaN."""
    case = CASES[name](rng, real, length=SIZE)
    layer = case.layer()
    x = case.inputs["src" if name == "encoder" else "tgt"]
    memory = () if name == "encoder" else (case.inputs["memory"],)
    prompts = np.array([5, 2, 0, 1, 4, 3])
    cache = layer.new_cache(6)
    got = [layer(poisoned(x[:, :5], prompts), *memory, cache=cache, lengths=prompts)]
    for step in range(3):
        token = np.stack([x[b, n + step] for b, n in enumerate(prompts)])[:, None]
        got.append(layer(token, *memory, cache=cache))
    assert (cache.lengths == prompts + 3).all()
    if name == "encoder":
        wanted = encoder(case.weights, x, is_causal=True)
    else:
        wanted = decoder(case.weights, x, *memory, tgt_is_causal=True)
    for b, n in enumerate(prompts):
        out = np.concatenate([got[0][b, :n], *(step[b] for step in got[1:])])
        assert_layer(out, wanted[b, : n + 3], real, f"entry {b}")


def test_a_stack_decodes(backend, rng):
    """Layers one after another, each with its cache: errors would meet here."""
    cases = [CASES["encoder"](rng, np.float64, length=SIZE, norm_first=True) for _ in range(3)]
    stack, x = [c.layer() for c in cases], draw(rng, (6, SIZE, 8), np.float64)
    caches, out = [layer.new_cache(6) for layer in stack], []
    wanted = x
    for c in cases:
        wanted = encoder(c.weights, wanted, is_causal=True)
    for i in range(SIZE):
        token = x[:, i : i + 1]
        for layer, cache in zip(stack, caches):
            token = layer(token, cache=cache)
        out.append(token)
    assert_layer(np.concatenate(out, axis=1), wanted, np.float64)


def test_wrong_calls_leave_the_cache_alone(rng):
    """The message begins with the argument's name, which is that of this layer."""
    case = CASES["encoder"](rng, np.float32)
    layer, src = case.layer(), case.inputs["src"]
    cache = layer.new_cache(6)
    wanted = layer(src, cache=cache)
    cache.reset()
    for tokens, options, error, argument in [
        (src[..., :7], {}, ValueError, "src"),
        (src[:5], {}, ValueError, "src|cache"),
        (src[0], {}, ValueError, "src|cache"),
        (src, {"src_mask": np.ones((5, 6), bool)}, ValueError, "src_mask"),
        (src, {"lengths": [6] * 6}, ValueError, "lengths"),
        (src, {"lengths": [1, 2]}, ValueError, "lengths"),
        (src, {"cache": "cache"}, TypeError, "cache"),
        (src, {"cache": build("MultiHeadAttention", CASES["multi-head"](rng, np.float32).weights)
               .new_cache(6)}, ValueError, "cache"),
    ]:  # fmt: skip
        with pytest.raises(error, match=rf"^({argument})\b"):
            layer(tokens, **{"cache": cache} | options)
        assert not cache.lengths.any(), (options, "appended")
    assert_bits_equal(layer(src, cache=cache), wanted)
