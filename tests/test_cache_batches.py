# SPDX-License-Identifier: MIT
# KVCache: entries of different lengths, of other dtypes than the query's, of any memory.
# Used by the suite, on every backend.
# Steps of a batch of equal entries, with all options, are in test_cache.py.
"""Each entry of a cache is as if it were alone, and what is not real is never read."""

import threading

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, draw, expected, qkv
from check_cache import EVERY, assert_results, cache_for

import fastattn


@pytest.mark.parametrize("size", [1, 8])
def test_ragged_prompts(backend, rng, dtype, size):
    """Prompts padded on the right, then steps: each entry is as if it were alone."""
    lengths = np.array([size, 0, size // 2, 1])
    steps = [[1, 1, 1, 1], [1, 0, 1, 1], [3, 2, 1, 0], [1, 1, 1, 1]]
    shape = {"lead": (4,), "heads": 4, "kv_heads": 2}
    prompt = qkv(rng, dtype, queries=size, keys=size, **shape)
    cache = cache_for(*prompt[1:])
    seen = [([], []) for _ in lengths]  # keys and values of each entry, as it should have them

    def append(k, v, real):
        for e, n in enumerate(real):
            k[e, :, n:] = v[e, :, n:] = np.nan
            seen[e][0].append(k[e, :, :n])
            seen[e][1].append(v[e, :, :n])
        return cache.append(k, v, lengths=real)

    def check_attend(q, offsets, rows, **options):
        got = cache.attend(q, **options, **EVERY)
        for e, (keys, values) in enumerate(seen):
            k, v = (np.concatenate(x, axis=1)[None] for x in (keys, values))
            assert cache.lengths[e] == k.shape[2]
            want = expected(q[e : e + 1], k, v, is_causal=True, q_offset=int(offsets[e]))
            part = [x[e : e + 1, :, : rows[e]] for x in got]
            assert not part[2][..., k.shape[2] :].any()
            part[2] = part[2][..., : k.shape[2]]
            assert_results(part, want, slice(0, rows[e]), context=f"entry {e}")

    past = cache.lengths
    append(*prompt[1:], lengths)
    check_attend(prompt[0], past, lengths, q_offset=past)
    for real in steps:
        q, k, v = qkv(rng, dtype, queries=2, keys=max(real), **shape)
        append(k, v, np.array(real))
        check_attend(q, cache.lengths - 2, [2] * 4)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("queries", [1, 5, QUERY_BLOCK + 1])
def test_float32_queries_over_a_half_cache(backend, rng, half, queries):
    """Only what is cached is rounded: results have the dtype and the precision of the query."""
    if half == "bfloat16":
        half = pytest.importorskip("ml_dtypes").bfloat16
    keys = KEY_TILE + 9 if queries > 1 else KEY_CHUNK + 9
    q, k, v = qkv(rng, lead=(3,), heads=4, kv_heads=2, queries=queries, keys=keys)
    k, v = k.astype(half), v.astype(half)
    lengths = np.array([keys, keys - 3, 5])
    k[2, :, 5:] = v[1, :, -3:] = np.nan  # nobody sees these
    cache = cache_for(k, v)
    cache.append(k, v, lengths=lengths)
    causal = {"is_causal": True, "q_offset": "lower_right", "kv_lengths": lengths}
    for options in ({}, {"window": (20, 0), "softcap": 2.0, "sinks": np.zeros(4)}):
        got = cache.attend(q, **options, **EVERY)
        assert [x.dtype for x in got] == [np.float32] * 3
        want = expected(q, k, v, **options, **causal)
        assert_results(got, want)
        turned = np.empty((3, queries, 4, 6), np.float32)
        cache.attend(q.swapaxes(1, 2), layout="bshd", out=turned, **options)
        assert_bits_equal(turned.swapaxes(1, 2), got[0])
    v[0, 0, 1], k[1, 1, 2] = np.inf, np.nan  # but these
    cache.reset()
    cache.append(k, v, lengths=lengths)
    got, want = cache.attend(q), expected(q, k, v, **causal)
    assert_close(got, want.out, slack=want.out_slack)
    exact = q[:, :, :1].astype(half)  # then both kinds of query say the same
    one = cache.attend(exact.astype(np.float32))
    assert_bits_equal(one.astype(half), cache.attend(exact))


def test_one_prompt_for_many_queries(backend, rng, dtype):
    """A cache of one entry serves a batch of queries, and a query all entries of a cache."""
    q, k, v = qkv(rng, dtype, lead=(3,), heads=4, kv_heads=2)
    prefix = cache_for(k[:1], v[:1])
    prefix.append(k[:1], v[:1])
    causal = {"is_causal": True, "q_offset": "lower_right"}
    assert_results(prefix.attend(q, **EVERY), expected(q, k[:1], v[:1], **causal))
    got = prefix.attend(q, kv_lengths=[7, 3, 0], **EVERY)
    assert_results(got, expected(q, k[:1], v[:1], kv_lengths=[7, 3, 0], **causal))
    cache = cache_for(k, v)
    cache.append(k, v, lengths=[2, 7, 5])
    got = cache.attend(q[:1], **EVERY)
    assert_results(got, expected(q[:1], k, v, kv_lengths=[2, 7, 5], **causal))
    got = cache.attend(q, kv_lengths=[1, 4, 5], **EVERY)  # as if the last ones were not there yet
    assert_results(got, expected(q, k, v, kv_lengths=[1, 4, 5], **causal))
    if dtype.itemsize == 2:
        q = q.astype(np.float32)
        assert_results(prefix.attend(q, **EVERY), expected(q, k[:1], v[:1], **causal))


def test_arrays_of_any_kind(backend, rng, dtype):
    """Strides, byte orders, read-only memory; and tokens with the heads behind."""
    q, k, v = qkv(rng, dtype, heads=4, kv_heads=2)
    cache = cache_for(k, v)
    cache.append(k, v)
    wanted = cache.attend(q)
    forms = [
        lambda x: x.swapaxes(1, 2).copy().swapaxes(1, 2),
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        lambda x: x[:, :, ::-1].copy()[:, :, ::-1],
        lambda x: np.frombuffer(x.tobytes(), dtype).reshape(x.shape),
    ]
    if dtype.kind == "f":
        forms += [lambda x: x.astype(x.dtype.newbyteorder(">"))]
    if dtype == np.float64:
        forms += [lambda x: x.tolist()]
    for form in forms:
        other = cache_for(k, v)
        other.append(form(k), form(v))
        assert_close(other.attend(form(q)), wanted.astype(np.float64))


def test_readers_in_parallel(backend, rng):
    """Many threads attend to one cache at the same time."""
    q, k, v = qkv(rng, lead=(2,), heads=4, kv_heads=2, queries=2, keys=KEY_TILE + 3)
    cache = cache_for(k, v)
    cache.append(k, v, lengths=[KEY_TILE + 3, 9])
    queries = [draw(rng, q.shape) for _ in range(6)]
    wanted = [cache.attend(x) for x in queries]
    got, start = [None] * 6, threading.Barrier(6)

    def work(n):
        with fastattn.use_backend(backend):
            start.wait(60)
            got[n] = [cache.attend(queries[n]) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results, want in zip(got, wanted):
        for one in results:
            assert_bits_equal(one, want)
