# SPDX-License-Identifier: MIT
# Cosine scores: lengths from the smallest to the largest number, memory, strides.
# Used by the suite, on every backend; memory limits need Linux.
# What all kinds of scores share is in test_scores.py.
"""Only directions count, for keys and queries of any length, and no key is copied for it."""

import tracemalloc

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE
from check import assert_bits_equal, assert_close, attend, draw, qkv
from check_scores import wide_scores
from check_selection import some_shapes
from test_memory import COMMON, LINUX

import fastattn
from fastattn import scores

attention = fastattn.attention
F = np.float32
# Lengths that the squares of float32 or float64 cannot hold, and those of the subnormal numbers.
LENGTHS = {
    "float32": [1e-45, 1e-42, 1e-38, 1e-30, 1.0, 1e19, 1e30, 3e38],
    "float64": [5e-324, 1e-310, 1e-300, 1e-160, 1.0, 1e155, 1e300, 1.7e308],
    "float16": [6e-8, 1e-6, 6e-5, 1.0, 300.0, 6.5e4],
    "bfloat16": [1e-40, 1e-38, 1e-30, 1.0, 1e19, 1e30, 3e38],
}


def check(query, key, value, *, temperature=0.3, softcap=0.0, context="", **options):
    """Compare out, lse and weights with the oracle; return out."""
    score = scores.Cosine(temperature)
    want = attend(wide_scores(score, query.dtype, softcap), query, key, value, **options)
    out, lse, weights = attention(
        query, key, value, score=score, softcap=softcap, return_lse=True, return_weights=True,
        **options,
    )  # fmt: skip
    assert_close(out, want.out, slack=want.out_slack, size=want.size, context=f"out {context}")
    assert_close(lse, want.lse, slack=want.lse_slack, context=f"lse {context}")
    slack = np.where(want.weights == 0, 0, want.weights_slack)
    assert_close(weights, want.weights, slack=slack, context=f"weights {context}")
    assert not weights[want.weights == 0].any()
    alone = attention(query, key, value, score=score, softcap=softcap, **options)
    assert_close(alone, want.out, slack=want.out_slack, size=want.size, context=f"alone {context}")
    return out


def of_length(rng, shape, lengths, dtype):
    """Random rows whose largest component is the length."""
    rows = rng.uniform(-1, 1, shape).astype(np.longdouble)
    rows /= abs(rows).max(axis=-1, keepdims=True)
    return (rows * np.asarray(lengths, np.longdouble)).astype(dtype)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads_and_options(backend, rng, dtype, kv_heads, sample):
    for queries, keys in some_shapes(sample, dtype):
        q, k, v = qkv(rng, dtype, heads=4, kv_heads=kv_heads, queries=queries, keys=keys, dim=9)
        check(q, k, v)
        check(q, k, v, temperature=0.05, softcap=3.0, sinks=draw(rng, 4))
        check(q, k, v, is_causal=True, q_offset="lower_right", kv_lengths=[keys, keys // 2])
        mask = rng.random((queries, keys)) < 0.7
        check(q, k, v, attn_mask=mask, bias=draw(rng, (4, 1, keys)), alibi_slopes=draw(rng, 4))
        check(q, k, v, window=(keys // 2, 1), q_offset=[0, keys // 2])


def test_keys_of_any_length(backend, rng, dtype, sample):
    """Each length alone, and all of them and zeros mixed in one call."""
    for queries, keys in some_shapes(sample, dtype):
        q, _, v = qkv(rng, dtype, lead=(1,), heads=2, queries=queries, keys=keys, dim=5)
        lengths = LENGTHS[dtype.name]
        for length in sample(lengths, 3):
            k = of_length(rng, (1, 2, keys, 5), length, dtype)
            assert np.isfinite(check(q, k, v, context=str(length))).all()
        mixed = rng.choice([0, *lengths], (1, 2, keys, 1))
        k = of_length(rng, (1, 2, keys, 5), mixed, dtype)
        check(q, k, v, context="mixed")
        check(q, k, v, context="mixed, causal", is_causal=True, q_offset="lower_right")


def test_queries_of_any_length(backend, rng, dtype, sample):
    """Rows and keys both of all lengths: products would be anything from 0 to infinity."""
    for queries, keys in some_shapes(sample, dtype):
        lengths = [0, *LENGTHS[dtype.name]]
        q = of_length(rng, (3, 2, queries, 5), rng.choice(lengths, (3, 2, queries, 1)), dtype)
        k = of_length(rng, (3, 2, keys, 5), rng.choice(lengths, (3, 2, keys, 1)), dtype)
        q[0, 0, 0] = 0
        out = check(q, k, draw(rng, (3, 2, keys, 6), dtype), softcap=2.0)
        v = draw(rng, (3, 2, keys, 6), dtype)
        out = check(q, k, v)
        assert np.isfinite(out).all()
        assert_close(out[0, 0, 0], v[0, 0].astype(np.float64).mean(axis=0))


def test_head_sizes(backend, rng, dtype, sample):
    for dim in (1, *sample([7, 16, 33, 64, 128, 257], 2)):
        queries, keys = sample([(5, 9), (3, KEY_TILE + 1), (1, KEY_CHUNK + 5)], 1)[0]
        q, k, v = qkv(rng, dtype, lead=(), queries=queries, keys=keys, dim=dim)
        check(q, k, v)
        components = rng.choice(LENGTHS[dtype.name], k.shape) * rng.choice([-1, 1], k.shape)
        check(q, components.astype(dtype), v, context="components of all lengths")


def test_not_finite_keys(backend, rng, dtype, sample):
    """Hidden ones change no bit; a NaN that is seen makes its rows NaN and no others."""
    for queries, keys in some_shapes(sample, dtype):
        q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
        first, cosine = keys - 2, scores.Cosine(0.3)
        k[:, :, first:] = 0
        forms = [
            {"kv_lengths": first},
            {"attn_mask": np.arange(keys) < first},
            {"is_causal": True, "q_offset": first - queries},
        ]
        wanted = [attention(q, k, v, score=cosine, **form) for form in forms]
        lengths = LENGTHS[dtype.name]
        for bad in (np.nan, np.inf, -np.inf, max(lengths), min(lengths)):
            k[:, :, first:] = bad
            for form, want in zip(forms, wanted):
                assert_bits_equal(attention(q, k, v, score=cosine, **form), want, f"{form} {bad}")
        k[:, :, first:] = 1
        clean = attention(q, k, v, score=cosine)
        k[0, 1, keys // 2, 3] = q[1, 2, 0, 2] = np.nan
        out = attention(q, k, v, score=cosine)
        rows = np.zeros(out.shape[:-1], bool)
        rows[0, 1], rows[1, 2, 0] = True, True
        assert_bits_equal(np.isnan(out), np.broadcast_to(rows[..., None], out.shape))
        assert_close(out[~rows], clean[~rows].astype(np.float64))
        if backend != "numpy" and dtype == F:
            assert_bits_equal(out[~rows], clean[~rows])


def test_strided_and_repeated_keys(backend, rng, dtype, sample):
    for queries, keys in some_shapes(sample, dtype):
        q, k, v = qkv(rng, dtype, lead=(3,), heads=4, kv_heads=2, queries=queries, keys=keys, dim=8)
        wanted = check(q, k, v)
        every_other = np.zeros((3, 2, 2 * keys, 16), dtype)[:, :, ::2, ::2]
        every_other[...] = k
        padded = np.zeros((3, 2, keys, 11), dtype)[..., 1:9]
        padded[...] = k
        turned = np.ascontiguousarray(k.swapaxes(1, 2)).swapaxes(1, 2)
        for other in (every_other, padded, turned, k[:, :, ::-1].copy()[:, :, ::-1]):
            assert_bits_equal(attention(q, other, v, score=scores.Cosine(0.3)), wanted)
        repeated = [np.broadcast_to(x[:1], x.shape) for x in (k, v)]
        copies = [x.copy() for x in repeated]
        assert_bits_equal(check(q, *repeated), check(q, *copies))
        one_key = np.broadcast_to(k[:, :, :1], k.shape)
        out = attention(q, one_key, v, score="cosine")
        mean = np.repeat(v.astype(np.float64).mean(axis=2, keepdims=True), 2, axis=1)
        assert_close(out, np.broadcast_to(mean, out.shape))


@pytest.mark.parametrize("queries", [1, 50])
@pytest.mark.parametrize("is_broadcast", [False, True])
def test_keys_are_not_copied(backend, rng, queries, is_broadcast):
    """NumPy's own allocations stay far below the 8 MiB of keys."""
    q, k, v = qkv(rng, lead=(1,), heads=32, kv_heads=32, queries=queries, keys=1024, dim=64, dv=4)
    if is_broadcast:
        k = np.broadcast_to(k[:, :1], k.shape)
    out = np.empty((1, 32, queries, 4), F)
    tracemalloc.start()
    try:
        attention(q, k, v, score="cosine", out=out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20, f"{peak} bytes"


LIMITED = (
    COMMON
    + """
q = np.ones((16, 4, 64), "f4")
k, v = np.ones((16, 8192, 64), "f4"), np.ones((16, 8192, 1), "f4")
out = np.empty((16, 4, 1), "f4")
with fastattn.threads(1):
    for queries in (slice(0, 1), slice(0, 4)):
        given = {"score": "cosine", "out": out[:, queries]}
        fastattn.attention(q[:, queries], k, v, **given)  # a BLAS keeps its buffers from then on
        allow(20 << 20)
        try:
            fastattn.attention(q[:, queries], k, v, **given)
        except MemoryError:
            raise SystemExit(f"out of memory with {queries}")
        allow(0)
print("done")
"""
)


@LINUX
def test_keys_are_not_copied_by_anybody(backend, run_python):
    """32 MiB of keys in 20 MiB of address space, whoever allocates."""
    done = run_python(
        LIMITED,
        FASTATTN_BACKEND=backend,
        OPENBLAS_NUM_THREADS="1",
        MALLOC_ARENA_MAX="1",
        MALLOC_MMAP_THRESHOLD_="65536",  # fixed: what is freed goes back to the system
    )
    assert done.stdout.strip() == "done", done
