# SPDX-License-Identifier: MIT
# varlen_attention: integers of every form, strides, out=, determinism.
# Used by the suite, on every backend.
# What each sequence gets is in test_varlen.py; test_varlen_errors.py and _memory.py have the rest.
"""What varlen_attention takes and gives, and that a sequence knows nothing of the others."""

import contextvars
import inspect
import threading

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_SPLIT, KEY_TILE, QUERY_BLOCK
from check import accumulator, assert_bits_equal, draw
from check_varlen import (
    CHUNKED,
    SHORT,
    TILES,
    assert_each_alone,
    assert_same,
    check_varlen,
    cumulated,
    packed,
)
from test_lengths_offsets import integer_forms

import fastattn

varlen = fastattn.varlen_attention
F = np.float32
LOWER = {"is_causal": True, "q_offset": "lower_right"}


def test_signature():
    names = inspect.signature(varlen).parameters
    assert list(names)[:5] == ["query", "key", "value", "cu_seqlens_q", "cu_seqlens_k"]
    options = {n: p.default for n, p in names.items() if p.kind is p.KEYWORD_ONLY}
    assert options == {
        "score": "scaled_dot", "is_causal": False, "scale": None, "q_offset": 0, "window": None,
        "softcap": 0.0,
        "alibi_slopes": None, "sinks": None, "out": None, "return_lse": False,
    }  # fmt: skip
    assert "varlen_attention" in fastattn.__all__


def test_results_asked_for(backend, rng, dtype):
    """(tokens, heads, size) and (heads, tokens), in fresh and writable memory; lists are taken."""
    q, k, v, cu_q, cu_k = packed(rng, dtype, SHORT, tails=(0, 0))
    out, lse = varlen(q, k, v, cu_q, cu_k, return_lse=True)
    assert (out.shape, lse.shape) == ((18, 4, 6), (4, 18))
    assert (out.dtype, lse.dtype) == (dtype, accumulator(dtype))
    assert out.flags.writeable and lse.flags.writeable
    for given in ({}, {"return_lse": False}):
        assert_bits_equal(varlen(q, k, v, cu_q, cu_k, **given), out)
    names = ("query", "key", "value", "cu_seqlens_q", "cu_seqlens_k")
    assert_bits_equal(varlen(**dict(zip(names, (q, k, v, cu_q, cu_k)))), out)
    lists = [x.astype(np.float64).tolist() for x in (q, k, v)]
    wanted = varlen(*map(np.array, lists), cu_q, cu_k)
    assert_bits_equal(varlen(*lists, cu_q.tolist(), tuple(cu_k.tolist())), wanted)


def test_integer_types(backend, rng):
    """Any integer dtype, also where fewer keys than queries make differences negative."""
    pairs = [(5, 9), (7, 2), (0, 3), (100, 90), (3, 0)]
    q, k, v, cu_q, cu_k = packed(rng, F, pairs)
    offsets = [4, 0, 3, 20, 2]
    lower = varlen(q, k, v, cu_q, cu_k, **LOWER)
    wanted = varlen(q, k, v, cu_q, cu_k, is_causal=True, q_offset=offsets)
    forms = zip(integer_forms(cu_q), integer_forms(cu_k), integer_forms(offsets), strict=True)
    for (name, a), (_, b), (_, c) in forms:
        assert_bits_equal(varlen(q, k, v, a, b, **LOWER), lower, name)
        assert_bits_equal(varlen(q, k, v, a, b, is_causal=True, q_offset=c), wanted, name)
    for one in (np.int64(4), np.uint8(4), np.array(4), np.array(4, ">i2")):
        got = varlen(q, k, v, cu_q.astype(np.int16), cu_k.tolist(), is_causal=True, q_offset=one)
        assert_bits_equal(got, varlen(q, k, v, cu_q, cu_k, is_causal=True, q_offset=[4] * 5))


def turned(x):
    """The same numbers in memory that lies backwards along each axis."""
    return x[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1]


@pytest.mark.parametrize("pairs", [SHORT, TILES[:3]], ids=["short", "tiles"])
def test_strided_arrays(backend, rng, dtype, pairs):
    """Any strides, alignment and byte order; what is read-only stays as it is."""
    *arrays, cu_q, cu_k = packed(rng, dtype, pairs)
    wanted = check_varlen(*arrays, cu_q, cu_k, **LOWER)[0]
    raw = [np.empty(x.nbytes + 1, np.uint8)[1:].view(dtype).reshape(x.shape) for x in arrays]
    for copy, x in zip(raw, arrays):
        copy[...] = x
    views = [
        [np.asfortranarray(x) for x in arrays],
        [turned(x) for x in arrays],
        [np.repeat(x, 2, axis=2)[..., ::2] for x in arrays],
        [np.repeat(x, 3, axis=0)[1::3] for x in arrays],
        [x.swapaxes(0, 1).copy().swapaxes(0, 1) for x in arrays],
        raw,
    ]
    if dtype.kind == "f":
        views.append([x.astype(dtype.newbyteorder()) for x in arrays])
        views.append([arrays[0], views[-1][1], arrays[2]])
    for n, given in enumerate(views):
        for x in given:
            x.flags.writeable = False
        assert_same(backend, varlen(*given, cu_q, cu_k, **LOWER), wanted, f"view {n}")
    q, k, v = arrays
    k, v = (np.broadcast_to(x[:, :1], x.shape) for x in (k, v))
    check_varlen(q, k, v, cu_q, cu_k, **LOWER)


def test_packed_projections(backend, rng, dtype):
    """Query, key and value as views of one array (tokens, 3, heads, size), or of rows of it."""
    lengths = [9, 1, 0, QUERY_BLOCK + 1, 3]
    cu = cumulated(lengths)
    qkv = draw(rng, (cu[-1] + 2, 3, 4, 8), dtype)
    check_varlen(*(qkv[:, n] for n in range(3)), cu, cu, is_causal=True)
    q, kv = draw(rng, (cu[-1], 4, 8), dtype), draw(rng, (cu[-1], 2, 2, 8), dtype)
    check_varlen(q, kv[:, 0], kv[:, 1], cu, cu, **LOWER)
    rows = draw(rng, (cu[-1], 64), dtype)
    q, k, v = (x.reshape(-1, h, 8) for x, h in zip(np.split(rows, [32, 48], axis=1), (4, 2, 2)))
    check_varlen(q, k, v, cu, cu, window=(5, 0))


def test_out_with_any_strides(backend, rng, dtype):
    """out itself is returned and written in full, tail included; its gaps stay as they are."""
    q, k, v, cu_q, cu_k = packed(rng, dtype, SHORT[:5])
    wanted = varlen(q, k, v, cu_q, cu_k)
    base = np.full((40, 5, 14), np.nan, dtype)
    tokens, heads = slice(0, 2 * len(q), 2), slice(1, None)
    raw = np.full(wanted.nbytes + 1, 255, np.uint8)[1:].view(dtype).reshape(wanted.shape)
    for out in (base[tokens, heads, :6], base[tokens, :0:-1, 12::-2][..., :6], raw):
        base[...] = np.nan
        got, _ = varlen(q, k, v, cu_q, cu_k, out=out, return_lse=True)
        assert got is out
        assert_same(backend, out, wanted)
        assert out is raw or np.isnan(base).sum() == base.size - out.size


@pytest.mark.parametrize("pairs", [[(7, 7), (0, 0), (1, 1), (9, 9)], [(QUERY_BLOCK + 3,) * 2] * 2])
def test_out_over_an_input(backend, rng, dtype, pairs):
    """Case 118: the place of the query, key or value, of any of a packed array, or between."""
    cu = cumulated(np.array(pairs)[:, 0])
    fresh = draw(rng, (cu[-1] + 3, 3, 4, 8), dtype)
    wanted = varlen(*(fresh[:, n] for n in range(3)), cu, cu, **LOWER)
    targets = [lambda x, n=n: x[:, n] for n in range(3)]
    targets += [lambda x: x[::-1, 0], lambda x: x[:, 2, ::-1]]
    for n, target in enumerate(targets):
        qkv = fresh.copy()
        out = target(qkv)
        assert varlen(*(qkv[:, n] for n in range(3)), cu, cu, out=out, **LOWER) is out
        assert_same(backend, out, wanted, f"target {n}")
    for n in range(3):
        compact = [fresh[:, m].copy() for m in range(3)]
        base = np.zeros((len(fresh) + 2, 4, 8), dtype)
        base[:-2], compact[n] = compact[n], base[:-2]
        varlen(*compact, cu, cu, out=base[2:], **LOWER)
        assert_same(backend, base[2:], wanted, f"shifted {n}")


def test_out_over_small_arguments(backend, rng):
    """Case 118: cu_seqlens, offsets, slopes and sinks in the memory of out."""
    q, k, v, cu_q, cu_k = packed(rng, np.float64, [(3, 5), (2, 4)], tails=(0, 0))
    out = np.zeros((5, 4, 6))
    flat, ints = out.reshape(-1), out.reshape(-1).view(np.int64)
    ints[:3], ints[40:43], ints[50:52] = cu_q, cu_k, (2, 1)
    flat[60:64], flat[10:14] = draw(rng, (2, 4)) / 4
    given = {"q_offset": ints[50:52], "alibi_slopes": flat[60:64], "sinks": flat[10:14]}
    copies = {name: x.copy() for name, x in given.items()}
    wanted = varlen(q, k, v, cu_q, cu_k, is_causal=True, **copies)
    varlen(q, k, v, ints[:3], ints[40:43], is_causal=True, out=out, **given)
    assert_bits_equal(out, wanted)


@pytest.mark.parametrize("sizes", [(0, 2, 5, 6), (0, 0, 5, 6), (4, 2, 5, 0), (4, 2, 0, 6)], ids=str)
def test_sizes_of_zero(backend, rng, dtype, sizes):
    heads, kv_heads, dim, dv = sizes
    for pairs in (SHORT, [(0, 0)], []):
        arrays = packed(rng, dtype, pairs, heads=heads, kv_heads=kv_heads, dim=dim, dv=dv)
        check_varlen(*arrays, scale=1.0)
        check_varlen(*arrays, scale=0.5, alibi_slopes=np.zeros((len(pairs), heads)), **LOWER)


@pytest.mark.parametrize("pairs", [SHORT, TILES, CHUNKED], ids=["short", "tiles", "chunked"])
def test_others_order_and_place(backend, rng, dtype, pairs):
    """A sequence has the bits of a call of its own, in any order and among any others."""
    n, (q, k, v, cu_q, cu_k) = len(pairs), packed(rng, dtype, pairs)
    per = {"q_offset": rng.integers(-2, 9, n), "alibi_slopes": draw(rng, (n, 4)) / 8}
    for shared, own in (({}, {}), (LOWER, {}), ({"is_causal": True, "sinks": draw(rng, 4)}, per)):
        given, options = (q, k, v, cu_q, cu_k), shared | own
        assert_each_alone(backend, varlen(*given, return_lse=True, **options), given, **options)
        order = [*rng.permutation(n), 0, *rng.permutation(n)]  # each of them twice or more
        mixed = shared | {name: x[order] for name, x in own.items()}
        q2, k2, v2 = (
            np.concatenate([x[cu[i] : cu[i + 1]] for i in order])
            for x, cu in ((q, cu_q), (k, cu_k), (v, cu_k))
        )
        cu_q2, cu_k2 = cumulated(np.diff(cu_q)[order]), cumulated(np.diff(cu_k)[order])
        got = varlen(q2, k2, v2, cu_q2, cu_k2, return_lse=True, **mixed)
        last = {i: slice(cu_q2[at], cu_q2[at + 1]) for at, i in enumerate(order)}
        places = [last[i] for i in range(n)]
        assert_each_alone(backend, got, given, places, "in another order", **options)


def test_contents_of_other_sequences(backend, rng, dtype):
    """NaN, infinities and large numbers in all other sequences and in the tails: the same bits."""
    pairs = [(4, 40), (QUERY_BLOCK + 1, 33), (1, KEY_CHUNK + 5), (0, 3), (2, 7)]
    for own in (1, 2, 4):
        q, k, v, cu_q, cu_k = packed(rng, dtype, pairs)
        results = []
        for filler in (0, np.nan, -np.inf, 6e4):
            for x, cu in ((q, cu_q), (k, cu_k), (v, cu_k)):
                x[: cu[own]] = x[cu[own + 1] :] = filler
            rows = slice(cu_q[own], cu_q[own + 1])
            out, lse = varlen(q, k, v, cu_q, cu_k, return_lse=True, **LOWER)
            results.append((out[rows], lse[:, rows]))
        for out, lse in results:
            assert_bits_equal(out, results[0][0])
            assert_bits_equal(lse, results[0][1])
        assert np.isfinite(results[0][0].astype(F)).all()


@pytest.mark.parametrize("n_tiny", [0, 60])
def test_any_number_of_threads(backend, rng, n_tiny):
    """Few large sequences, also among many tiny ones, in the same bits for every thread count."""
    pairs = [(2 * QUERY_BLOCK + 1, KEY_TILE + 9), (1, KEY_SPLIT + 9), (3, 2 * KEY_CHUNK + 1)]
    pairs[1:1] = rng.integers(0, 4, (n_tiny, 2)).tolist()
    arrays = packed(rng, F, pairs, heads=2, kv_heads=1)
    with fastattn.threads(1):
        wanted = varlen(*arrays, return_lse=True, **LOWER)
    for n_threads in (2, 3, 5, 16):
        with fastattn.threads(n_threads):
            got = varlen(*arrays, return_lse=True, **LOWER)
        assert_bits_equal(got[0], wanted[0], f"{n_threads} threads")
        assert_bits_equal(got[1], wanted[1], f"{n_threads} threads")


def test_concurrent_calls(backend, rng):
    """Case 147: four Python threads, each with its own batch, get the bits of serial calls."""
    jobs = [packed(rng, F, [*SHORT, (9 * n, 40)], dim=3 + n) for n in range(4)]
    wanted = [varlen(*job, **LOWER) for job in jobs]
    failures, start = [], threading.Barrier(4)

    def work(job, out):
        try:
            start.wait(60)
            for _ in range(30):
                assert_bits_equal(varlen(*job, **LOWER), out)
        except BaseException as error:
            failures.append(error)

    workers = [
        threading.Thread(target=contextvars.copy_context().run, args=(work, *both))
        for both in zip(jobs, wanted)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures[0]
