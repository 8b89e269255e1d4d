# SPDX-License-Identifier: MIT
# KVCache: what attend gives after what was appended.
# Used by the suite, on every backend.
# Lives of caches are in test_cache_life.py, wrong calls and failures in test_cache_errors.py.
"""Step by step, with any option, a cache gives what one call with whole sequences gives."""

import numpy as np
import pytest
from cases import KEY_CHUNK, QUERY_BLOCK
from check import accumulator, assert_bits_equal, assert_close, draw, expected, qkv
from check_cache import EVERY, assert_results, cache_for

import fastattn

sdpa = fastattn.scaled_dot_product_attention
HEADS, KV_HEADS, SIZE = 6, 2, 23  # of the sequences below; all their sizes differ


def options_of(rng, name):
    """An option and its value for the full run; arrays (..., queries, keys) are cut by steps."""
    terms = (3, HEADS, SIZE, SIZE)
    return {
        "plain": lambda: {},
        "scale": lambda: {"scale": -0.3},
        "window": lambda: {"window": (4, 0)},
        "window, both sides": lambda: {"window": 3},
        "softcap": lambda: {"softcap": 1.5},
        "slopes": lambda: {"alibi_slopes": rng.standard_normal(HEADS) * 0.3},
        "slopes of entries": lambda: {"alibi_slopes": rng.standard_normal((3, HEADS)) * 0.3},
        "sinks": lambda: {"sinks": np.array([0.5, -1, 2, -np.inf, 0, 1], np.float32)},
        "bool mask": lambda: {"attn_mask": rng.random(terms) < 0.6},
        "float mask": lambda: {
            "attn_mask": np.where(rng.random(terms[1:]) < 0.2, -np.inf, draw(rng, terms[1:]))
        },
        "mask of keys": lambda: {"attn_mask": rng.random((3, 1, 1, SIZE)) < 0.7},
        "bias": lambda: {"bias": draw(rng, terms, np.float16)},
        "all": lambda: {
            "attn_mask": rng.random(terms[1:]) < 0.8,
            "bias": draw(rng, (SIZE, SIZE)),
            "window": (9, 2),
            "softcap": 3.0,
            "scale": 0.7,
            "alibi_slopes": np.full(HEADS, 0.1),
            "sinks": np.zeros(HEADS),
        },
    }[name]()


NAMES = ["plain", "scale", "window", "window, both sides", "softcap", "slopes", "slopes of entries",
         "sinks", "bool mask", "float mask", "mask of keys", "bias", "all"]  # fmt: skip
CHUNKS = {"tokens": [1] * SIZE, "prompt": [16] + [1] * 7, "chunks": [1, 9, 3, 10]}


def cut(options, start, stop):
    """The part of the masks that a step from start to stop sees."""
    cut = dict(options)
    for name in ("attn_mask", "bias"):
        if name in cut:
            term = cut[name][..., :stop]
            cut[name] = term[..., start:stop, :] if term.shape[-2] > 1 else term
    return cut


@pytest.mark.parametrize("name", NAMES)
def test_steps_equal_the_full_run(backend, rng, dtype, name, sample):
    """Case 38: tokens one by one, a prompt and then tokens, chunks of any size."""
    q, k, v = qkv(rng, dtype, lead=(3,), heads=HEADS, kv_heads=KV_HEADS, queries=SIZE, keys=SIZE)
    options = options_of(rng, name)
    want = expected(q, k, v, is_causal=True, **options)
    for chunks in sample(CHUNKS, 2):
        cache = cache_for(k, v)
        start = 0
        for n in CHUNKS[chunks]:
            stop = start + n
            cache.append(k[:, :, start:stop], v[:, :, start:stop])
            got = cache.attend(q[:, :, start:stop], **cut(options, start, stop), **EVERY)
            assert got[0].dtype == got[2].dtype == dtype and got[1].dtype == accumulator(dtype)
            assert got[2].shape == (3, HEADS, n, stop)
            assert_results(got, want, slice(start, stop), slice(0, stop), context=f"at {start}")
            start = stop
        assert cache.lengths.tolist() == [SIZE] * 3


@pytest.mark.parametrize("chunks", [(QUERY_BLOCK + 1, 3, 1), (KEY_CHUNK - 1, 1, 1, 2)], ids=str)
def test_long_prompts(backend, rng, dtype, chunks):
    """The tiles of prefill and the chunks of decode end anywhere."""
    n = sum(chunks)
    q, k, v = qkv(rng, dtype, lead=(1,), heads=2, kv_heads=1, queries=QUERY_BLOCK + 5, keys=n)
    first = n - q.shape[2]  # the position of the first query
    want = expected(q, k, v, is_causal=True, q_offset=first)
    cache = cache_for(k, v)
    start = 0
    for stop in np.cumsum(chunks):
        cache.append(k[:, :, start:stop], v[:, :, start:stop])
        rows = slice(max(start - first, 0), stop - first)
        assert_results(cache.attend(q[:, :, rows], **EVERY), want, rows, slice(0, stop))
        start = stop
    assert rows.stop == q.shape[2]


def same(backend, got, wanted):
    """Equal bits are promised on the compiled backends."""
    for one, other in zip(got, wanted, strict=True):
        if backend != "numpy":
            assert_bits_equal(one, other)
        else:
            assert_close(one, other.astype(np.float64))


@pytest.mark.parametrize("queries", [1, 5, QUERY_BLOCK + 1])
@pytest.mark.parametrize("keys", [QUERY_BLOCK + 3, 2 * KEY_CHUNK + 7])
def test_bits_of_the_concatenated_sequence(backend, rng, dtype, queries, keys):
    """Equal lengths and different ones; causal from the end unless told otherwise."""
    q, k, v = qkv(rng, dtype, heads=4, kv_heads=2, queries=queries, keys=keys)
    slopes = draw(rng, 4)
    for lengths in ([keys, keys], [keys, keys // 3]):
        cache = cache_for(k, v, capacity=keys + 5)
        for part in (slice(0, 7), slice(7, 8), slice(8, keys)):
            real = np.clip(np.array(lengths) - part.start, 0, part.stop - part.start)
            cache.append(k[:, :, part], v[:, :, part], lengths=real)
        assert cache.lengths.tolist() == lengths
        given = {"kv_lengths": lengths, **EVERY}
        causal = {"is_causal": True, "q_offset": "lower_right"}
        same(backend, cache.attend(q, **EVERY), sdpa(q, k, v, **causal, **given))
        same(backend, cache.attend(q, is_causal=False, **EVERY), sdpa(q, k, v, **given))
        options = {"window": (40, 0), "alibi_slopes": slopes, "softcap": 2.0}
        same(
            backend,
            cache.attend(q, **options, **EVERY),
            sdpa(q, k, v, **options, **causal, **given),
        )
        options = {"is_causal": True, "q_offset": [3, 40]}
        same(backend, cache.attend(q, **options, **EVERY), sdpa(q, k, v, **options, **given))


def test_layout_and_out(backend, rng, dtype):
    """The layout is that of query and out; the result may go to memory of the caller's."""
    q, k, v = qkv(rng, dtype, heads=4, kv_heads=2, queries=3)
    cache = cache_for(k, v)
    cache.append(k, v, lengths=[7, 4])
    wanted = cache.attend(q, **EVERY)
    turned = np.full((2, 3, 4, 6), np.nan, dtype)
    got = cache.attend(q.swapaxes(1, 2).copy(), layout="bshd", out=turned, **EVERY)
    assert got[0] is turned
    for one, other in zip((turned.swapaxes(1, 2), *got[1:]), wanted):
        assert_bits_equal(one, other)
    big = np.full((2, 4, 3, 12), np.nan, dtype)
    assert cache.attend(q, out=big[..., ::2]).base is big
    assert_bits_equal(big[..., ::2], wanted[0])
    square = np.array(q[..., :4])
    wanted = sdpa(q, k, k, kv_lengths=[7, 4], is_causal=True, q_offset="lower_right")
    cache = cache_for(k, k)
    cache.append(k, k, lengths=[7, 4])
    assert cache.attend(square, out=square) is square
    assert_close(square, wanted.astype(np.float64))
