# SPDX-License-Identifier: MIT
# Equal bits: over thread counts, places in a batch, concurrent calls, alignment and runs.
# Used by the suite, on every backend.
# Process-level behaviour of threads (fork, signals, exit) is tested elsewhere.
"""A call's bits depend on its own data and shape alone."""

import contextvars
import threading

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, check, draw, expected, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention


def every(q, k, v, **options):
    return sdpa(q, k, v, return_lse=True, return_weights=True, **options)


def assert_all_bits(got, wanted, context=""):
    for one, other in zip(got, wanted, strict=True):
        assert_bits_equal(one, other, context)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 7, 32, 64, 257])
@pytest.mark.parametrize("queries", [1, 2, 3])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_more_threads_than_work(backend, rng, n_threads, queries, kv_heads):
    """Case 97: few heads and many threads leave no thread without a valid share."""
    for keys in (1, 9, KEY_CHUNK + 1):
        q, k, v = qkv(
            rng, lead=(1,), heads=2, kv_heads=kv_heads, queries=queries, keys=keys, dim=8, dv=5
        )
        with fastattn.threads(n_threads):
            check(q, k, v)


@pytest.mark.parametrize(
    ("n_threads", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("2", TypeError)]
)
def test_thread_counts_that_make_no_sense(backend, n_threads, error):
    """Case 97: zero and negative counts are refused, and the setting stays as it was."""
    before = fastattn.get_num_threads()
    with pytest.raises(error):
        fastattn.set_num_threads(n_threads)
    with pytest.raises(error), fastattn.threads(n_threads):
        pass
    assert fastattn.get_num_threads() == before


@pytest.mark.parametrize(
    "sizes",
    [
        {"lead": (1,), "heads": 1, "queries": 1, "keys": 5000},
        {"lead": (1,), "heads": 4, "kv_heads": 1, "queries": 1, "keys": 5000},
        {"lead": (1,), "heads": 2, "queries": 5, "keys": 3000},
        {"lead": (1,), "heads": 1, "queries": 500, "keys": 2 * KEY_TILE + 1},
        {"lead": (3,), "heads": 2, "queries": QUERY_BLOCK + 1, "keys": 33},
    ],
    ids=str,
)
def test_any_number_of_threads(backend, rng, real, sizes):
    """Case 100: split points depend on the shape, and parts merge in a fixed order."""
    q, k, v = qkv(rng, real, dim=8, dv=5, **sizes)
    for options in ({}, {"is_causal": True, "q_offset": "lower_right"}):
        with fastattn.threads(1):
            wanted = sdpa(q, k, v, return_lse=True, **options)
        want = expected(q, k, v, **options)
        assert_close(wanted[0], want.out, slack=want.out_slack)
        for n_threads in (2, 3, 5, 8, 16):
            with fastattn.threads(n_threads):
                got = sdpa(q, k, v, return_lse=True, **options)
            assert_all_bits(got, wanted, f"{n_threads} threads")


@pytest.mark.parametrize("queries", [1, 4, QUERY_BLOCK + 1])
@pytest.mark.parametrize("keys", [33, KEY_CHUNK + 3])
def test_any_place_in_any_batch(backend, rng, dtype, queries, keys):
    """Case 99: one sequence alone and among others, with near ties between its scores."""
    q, k, v = qkv(rng, dtype, lead=(1,), heads=4, kv_heads=2, queries=queries, keys=keys)
    k[:] = k[:, :, :1] + (k * dtype.type(1e-3)).astype(dtype)
    alone = every(q, k, v, is_causal=True, q_offset=keys - queries)
    for batch in (2, 3, 8, 33):
        many = qkv(rng, dtype, lead=(batch,), heads=4, kv_heads=2, queries=queries, keys=keys)
        for place in {0, 1, batch - 1}:
            for x, one in zip(many, (q, k, v), strict=True):
                x[place] = one[0]
            got = every(*many, is_causal=True, q_offset=keys - queries)
            for one, other in zip(got, alone, strict=True):
                assert_bits_equal(one[place], other[0], f"{place} of {batch}")


@pytest.mark.parametrize("window", [(100, 0), (5, -1), (0, 7), (-1, 300)], ids=str)
def test_any_batch_with_a_window(backend, rng, real, window):
    """More entries make tasks of more rows: tiles must not begin where a task's first row looks."""
    q, k, v = qkv(rng, real, lead=(1,), heads=2, queries=400, keys=420, dim=4, dv=5)
    alone = every(q, k, v, window=window, q_offset="lower_right")
    many = [np.repeat(x, 30, axis=0) for x in (q, k, v)]
    for one, other in zip(every(*many, window=window, q_offset="lower_right"), alone, strict=True):
        assert_bits_equal(one[29], other[0])


def test_other_entries_do_not_matter(backend, rng, real):
    """Case 99: lengths, NaN and masks of other entries leave an entry's bits alone."""
    q, k, v = qkv(rng, real, lead=(3,), queries=QUERY_BLOCK + 1, keys=KEY_TILE + 3)
    n = KEY_TILE + 3
    alone = sdpa(q[1:2], k[1:2], v[1:2], kv_lengths=[n - 2], q_offset=[4], is_causal=True)
    for lengths, offsets in (([n, n - 2, 0], [0, 4, 9]), ([1, n - 2, n], [-9, 4, 0])):
        got = sdpa(q, k, v, kv_lengths=lengths, q_offset=offsets, is_causal=True)
        assert_bits_equal(got[1], alone[0])
        q[0], k[2], v[2, :, 0] = np.nan, np.inf, np.nan


def test_one_row_and_many_rows_agree(backend, rng, real):
    """Case 99: other numbers of rows may take another way, within tolerance."""
    q, k, v = qkv(rng, real, lead=(1,), queries=100, keys=KEY_CHUNK + 1)
    many = sdpa(q, k, v)
    for row in (0, 57, 99):
        one = sdpa(q[:, :, row : row + 1], k, v)
        assert_close(one[:, :, 0], many[:, :, row].astype(np.float64))


@pytest.mark.parametrize("shift", [4, 8, 16, 20, 32, 36])
def test_any_alignment(backend, rng, real, shift):
    """Data at any multiple of the item size give the bits of aligned data."""

    def moved(array):
        raw = np.empty(array.nbytes + 128, np.uint8)
        start = -raw.ctypes.data % 64 + shift
        copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy

    for queries, keys in ((5, 9), (QUERY_BLOCK + 1, KEY_TILE + 1), (1, KEY_CHUNK + 1)):
        q, k, v = qkv(rng, real, queries=queries, keys=keys, dim=8, dv=5)
        bias = draw(rng, (queries, keys))
        wanted = sdpa(q, k, v, bias=bias)
        out = moved(np.full(wanted.shape, np.nan, real))
        sdpa(moved(q), moved(k), moved(v), bias=moved(bias), out=out)
        assert_bits_equal(out, wanted)


def test_concurrent_calls(backend, rng):
    """Case 147: eight threads, each with its own shape, get the bits of serial calls."""
    jobs = []
    for i in range(8):
        queries, keys = 1 + 3 * i, 5 + 37 * i
        given = qkv(rng, lead=(1,), heads=2, queries=queries, keys=keys, dim=3 + i, dv=1 + 2 * i)
        jobs.append((given, every(*given, is_causal=True, q_offset=keys - queries)))
    failures = []
    start = threading.Barrier(8)

    def work(given, wanted):
        try:
            start.wait(60)
            offset = given[1].shape[-2] - given[0].shape[-2]
            for _ in range(300):
                assert fastattn.get_backend() == backend
                assert_all_bits(every(*given, is_causal=True, q_offset=offset), wanted)
        except BaseException as error:
            failures.append(error)

    workers = [
        threading.Thread(target=contextvars.copy_context().run, args=(work, *job)) for job in jobs
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures[0]


def test_equal_calls_in_a_row(backend, rng, dtype):
    """The same call gives the same bits, whatever ran in between."""
    q, k, v = qkv(rng, dtype, queries=QUERY_BLOCK + 1, keys=KEY_TILE + 1)
    wanted = every(q, k, v, softcap=2.0)
    for dim in (1, 300, 17):
        sdpa(*qkv(rng, dtype, queries=3, keys=2 * KEY_TILE, dim=dim, dv=dim))
        assert_all_bits(every(q, k, v, softcap=2.0), wanted)


FEWER_THREADS = """
import os
import sys

import fastattn
import numpy as np
from check import assert_close, expected, qkv

rng = np.random.default_rng(7)
if sys.argv[1:] == ["limit"]:
    import resource
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
for sizes in ({"queries": 500, "keys": 33}, {"queries": 1, "keys": 5000}, {"lead": (40,)}):
    q, k, v = qkv(rng, **sizes)
    want = expected(q, k, v)
    out = np.full(want.out.shape, np.nan, np.float32)
    with fastattn.threads(16):
        fastattn.scaled_dot_product_attention(q, k, v, out=out)
    assert_close(out, want.out, slack=want.out_slack)
print("done")
"""


@pytest.mark.parametrize(
    "environment",
    [{"OMP_THREAD_LIMIT": "1"}, {"OMP_THREAD_LIMIT": "2"}, {"OMP_DYNAMIC": "true"}, "limit"],
    ids=str,
)
def test_fewer_threads_than_asked_for(backend, run_python, environment):
    """Case 96: all rows are written although the system grants fewer threads."""
    code = FEWER_THREADS
    if environment == "limit":
        pytest.importorskip("resource")
        code, environment = code.replace("sys.argv[1:]", '["limit"]'), {}
    done = run_python(code, FASTATTN_BACKEND=backend, OPENBLAS_NUM_THREADS="1", **environment)
    assert done.stdout.strip() == "done" and done.returncode == 0, done
