# SPDX-License-Identifier: MIT
# KVCache of int8: what attend gives after what was appended, with every option.
# Used by the suite, on every backend.
# What a row becomes is in test_int8_rows.py, lives and copies in test_int8_life.py.
"""Attention of the rows as they are stored: codes times scales, by the rule of check_int8."""

import threading

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import accumulator, assert_bits_equal, assert_close, draw, expected, qkv
from check_cache import EVERY, assert_results
from check_int8 import as_dtypes, draw_tokens, stored
from test_cache import CHUNKS, HEADS, KV_HEADS, NAMES, SIZE, cut, options_of
from test_cache import same as same_bits

import fastattn

F = np.float32
CAUSAL = {"is_causal": True, "q_offset": "lower_right"}


def int8_cache(key, value, **options):
    n_batch, heads, _, dim = key.shape
    return fastattn.KVCache(
        n_batch, heads, dim, value_head_size=value.shape[-1], dtype="int8", **options
    )


def rows(rng, kind, *, lead, heads, kv_heads, queries, keys, dim=4, dv=6):
    """Query, key and value to append, and the key and value that are stored then."""
    q = draw(rng, (*lead, heads, queries, dim), kind[2])
    k, v = (draw_tokens(rng, (*lead, kv_heads, keys, size), kind[1]) for size in (dim, dv))
    return q, k, v, stored(k, np.int8), stored(v, np.int8)


@pytest.mark.parametrize("name", NAMES)
def test_steps_equal_the_full_run(backend, rng, int8_kind, name, sample):
    """Case 38: tokens one by one, a prompt and then tokens, chunks of any size."""
    q, k, v, *kept = rows(
        rng, int8_kind, lead=(3,), heads=HEADS, kv_heads=KV_HEADS, queries=SIZE, keys=SIZE
    )
    options = options_of(rng, name)
    want = expected(q, *kept, is_causal=True, **options)
    for chunks in sample(CHUNKS, 1):
        cache, start = int8_cache(k, v), 0
        for n in CHUNKS[chunks]:
            stop = start + n
            cache.append(k[:, :, start:stop], v[:, :, start:stop])
            got = cache.attend(q[:, :, start:stop], **cut(options, start, stop), **EVERY)
            assert got[0].dtype == got[2].dtype == q.dtype
            assert got[1].dtype == accumulator(q.dtype)
            assert_results(got, want, slice(start, stop), slice(0, stop), context=f"at {start}")
            start = stop
        assert cache.lengths.tolist() == [SIZE] * 3


@pytest.mark.parametrize("queries", [1, 5, QUERY_BLOCK + 1])
def test_many_keys_of_different_lengths(backend, rng, int8_kind, queries):
    """The tiles of prefill and the chunks of decode; padding that is NaN is not seen."""
    keys = KEY_TILE + 9 if queries > 5 else 2 * KEY_CHUNK + 9
    sizes = {"heads": 4, "kv_heads": 2, "queries": queries, "keys": keys}
    q, k, v, *kept = rows(rng, int8_kind, lead=(3,), **sizes)
    lengths = np.array([keys, keys - 3, 5])
    k[2, :, 5:], v[1, :, -3:] = np.nan, np.inf
    cache = int8_cache(k, v)
    cache.append(k, v, lengths=lengths)
    assert cache.lengths.tolist() == lengths.tolist()
    for options in ({}, {"window": (20, 0), "softcap": 2.0, "sinks": np.zeros(4)},
                    {"kv_lengths": [keys // 2, 7, 0], "is_causal": False}):  # fmt: skip
        want = expected(q, *kept, **CAUSAL | {"kv_lengths": lengths} | options)
        assert_results(cache.attend(q, **options, **EVERY), want, context=str(options))


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (6, 3, 7, 17), (5, 1, 33, 16), (2, 2, 128, 64)])
def test_heads_and_sizes(backend, rng, int8_kind, sizes):
    """Grouped heads; value sizes that differ from those of keys."""
    heads, kv_heads, dim, dv = sizes
    for queries in (1, 6):
        shape = {"heads": heads, "kv_heads": kv_heads, "queries": queries, "keys": 19}
        q, k, v, *kept = rows(rng, int8_kind, lead=(2,), dim=dim, dv=dv, **shape)
        cache = int8_cache(k, v)
        cache.append(k, v)
        assert_results(cache.attend(q, **EVERY), expected(q, *kept, **CAUSAL))


def test_layout_and_out(backend, rng, int8_kind):
    """The layout is that of query and out; out itself is returned."""
    q, k, v, *kept = rows(rng, int8_kind, lead=(2,), heads=4, kv_heads=2, queries=3, keys=7)
    cache = int8_cache(k, v, capacity=9)
    cache.append(k, v, lengths=[7, 4])
    wanted = cache.attend(q, **EVERY)
    assert_results(wanted, expected(q, *kept, kv_lengths=[7, 4], **CAUSAL))
    turned = np.full((2, 3, 4, 6), np.nan, q.dtype)
    got = cache.attend(q.swapaxes(1, 2).copy(), layout="bshd", out=turned, **EVERY)
    assert got[0] is turned
    for one, other in zip((turned.swapaxes(1, 2), *got[1:]), wanted):
        assert_bits_equal(one, other)
    big = np.full((2, 4, 3, 12), np.nan, q.dtype)
    assert cache.attend(q, out=big[..., ::2]).base is big
    assert_bits_equal(big[..., ::2], wanted[0])


def test_one_prompt_for_many_queries(backend, rng, int8_kind):
    """A cache of one entry serves a batch of queries, and a query all entries of a cache."""
    q, k, v, a, b = rows(rng, int8_kind, lead=(3,), heads=4, kv_heads=2, queries=5, keys=7)
    prefix = int8_cache(k[:1], v[:1])
    prefix.append(k[:1], v[:1])
    assert_results(prefix.attend(q, **EVERY), expected(q, a[:1], b[:1], **CAUSAL))
    got = prefix.attend(q, kv_lengths=[7, 3, 0], **EVERY)
    assert_results(got, expected(q, a[:1], b[:1], kv_lengths=[7, 3, 0], **CAUSAL))
    cache = int8_cache(k, v)
    cache.append(k, v, lengths=[2, 7, 5])
    got = cache.attend(q[:1], **EVERY)
    assert_results(got, expected(q[:1], a, b, kv_lengths=[2, 7, 5], **CAUSAL))


def test_arrays_of_any_kind(backend, rng, int8_kind):
    """Strides, alignment, byte orders, read-only memory: the same codes."""
    q, k, v, *_ = rows(rng, int8_kind, lead=(2,), heads=4, kv_heads=2, queries=3, keys=7)
    cache = int8_cache(k, v)
    cache.append(k, v)
    wanted = cache.attend(q)

    def misaligned(x):
        copy = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
        copy[...] = x
        return copy

    forms = [
        lambda x: x.swapaxes(1, 2).copy().swapaxes(1, 2),
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        lambda x: x[:, ::-1, ::-1].copy()[:, ::-1, ::-1],
        lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
        misaligned,
    ]
    if q.dtype.kind == k.dtype.kind == "f":
        forms += [lambda x: x.astype(x.dtype.newbyteorder(">"))]
    for form in forms:
        other = int8_cache(k, v)
        other.append(form(k), form(v))
        same_bits(backend, [other.attend(form(q))], [wanted])


@pytest.mark.parametrize("queries", [1, QUERY_BLOCK + 1])
def test_entries_threads_and_readers(backend, rng, queries):
    """An entry has the bits that it has alone; so it has for any number of threads, and while
    others read."""
    kind = as_dtypes(("int8", "float32", "float32"))
    keys = 2 * KEY_CHUNK + 7
    sizes = {"heads": 4, "kv_heads": 2, "queries": queries, "keys": keys}
    q, k, v, *_ = rows(rng, kind, lead=(3,), **sizes)
    cache = int8_cache(k, v)
    cache.append(k, v)
    with fastattn.threads(1):
        wanted = cache.attend(q, **EVERY)
    for n_threads in (2, 3, 16):
        with fastattn.threads(n_threads):
            for one, other in zip(cache.attend(q, **EVERY), wanted):
                assert_bits_equal(one, other, f"{n_threads} threads")
    alone = int8_cache(k[1:2], v[1:2])
    alone.append(k[1:2], v[1:2])
    same_bits(backend, [x[1:2] for x in wanted], alone.attend(q[1:2], **EVERY))
    got, start = [None] * 4, threading.Barrier(4)

    def work(n):
        with fastattn.use_backend(backend):
            start.wait(60)
            got[n] = [cache.attend(q) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in got:
        for one in results:
            assert_bits_equal(one, wanted[0])


def test_what_float32_caches_give_nearly(backend, rng):
    """Nothing but the rounding of the rows is different: rows of whole codes are exact."""
    q, k, v = qkv(rng, lead=(2,), heads=4, kv_heads=2, queries=3, keys=40)
    whole = [np.rint(np.clip(x * 40, -127, 127)).astype(F) for x in (k, v)]
    for x in whole:
        x[..., 0] = 127  # so that the scale is 1
    scores = {"scale": 1 / 4096}
    exact = fastattn.KVCache(2, 2, 4, value_head_size=6)
    exact.append(*whole)
    cache = int8_cache(*whole)
    cache.append(*whole)
    for one, other in zip(cache.attend(q, **scores, **EVERY), exact.attend(q, **scores, **EVERY)):
        assert_close(one, other.astype(np.float64), size=127)
