# SPDX-License-Identifier: MIT
# Local attention: centers of every form, ranks, layouts, out=, errors, determinism, memory.
# Used by the suite, on every backend; forbidden pages and memory limits need Linux.
# What a row sees and what the Gaussian does is tested in test_local.py.
"""What local_attention takes and gives, and that only the windows cost memory and are read."""

import tracemalloc

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, draw, qkv
from check_selection import check_local
from test_memory import COMMON, LINUX

import fastattn
from fastattn import scores

local = fastattn.local_attention
F = np.float32


def test_centers_broadcast(backend, rng, dtype):
    """From the right to (..., heads, queries), as numbers, lists or arrays."""
    q, k, v = qkv(rng, dtype, lead=(2, 1), heads=4, kv_heads=2, queries=5, keys=9)
    k, v = (np.broadcast_to(x, (2, 3, *x.shape[2:])) for x in (k, v))
    for shape in ((), (1,), (5,), (4, 1), (4, 5), (3, 1, 5), (2, 1, 1, 1), (2, 3, 4, 5)):
        centers = 9 * rng.random(shape)
        out = check_local(q, k, v, centers=centers, half_width=2.0, context=str(shape))
        given = {"half_width": 2.0}
        assert_bits_equal(local(q, k, v, centers=centers.tolist(), **given), out)
        whole = np.broadcast_to(centers, (2, 3, 4, 5))
        assert_bits_equal(local(q, k, v, centers=whole, **given), out)
        turned = np.asfortranarray(whole)[..., ::-1].copy()[..., ::-1]
        assert_bits_equal(local(q, k, v, centers=turned, **given), out)


def test_dtypes_of_centers(backend, rng, dtype):
    """Integers of any kind and floats of any kind, also of another byte order."""
    q, k, v = qkv(rng, dtype, queries=4, keys=9)
    wanted = local(q, k, v, centers=[0.0, 3.0, 7.0, 12.0], half_width=2, sigma=1)
    kinds = ["i1", "u1", "i2", "u4", "i8", "u8", ">i4", "f2", "f4", "f8", ">f8", "g", dtype]
    for kind in kinds:
        centers = np.array([0, 3, 7, 12]).astype(kind)
        assert_bits_equal(local(q, k, v, centers=centers, half_width=2, sigma=1), wanted, str(kind))
    for number in (2, 2.0, F(2), np.float64(2), np.int8(2), np.array(2.0), np.array(2)):
        given = {"centers": [0, 3, 7, 12], "half_width": number, "sigma": number / 2}
        assert_bits_equal(local(q, k, v, **given), wanted)


def test_ranks_and_layouts(backend, rng, dtype):
    q, v = draw(rng, (2, 1, 4, 3, 8), dtype), draw(rng, (1, 5, 2, 9, 6), dtype)
    k = draw(rng, (2, 5, 2, 9, 8), dtype)
    centers = 9 * rng.random((2, 5, 4, 3))
    given = {"centers": centers, "half_width": 2.5, "sigma": 1.25}
    out = check_local(q, k, v, **given)
    turned = [np.ascontiguousarray(x.swapaxes(-2, -3)) for x in (q, k, v)]
    other = check_local(*turned, layout="bshd", **given)
    assert_bits_equal(other.swapaxes(-2, -3), out)
    given["centers"] = centers[0, 0]
    check_local(q[0, 0], k[0, 0], v[0, 0], **given)
    given["centers"] = centers[0, 0, 0]
    for layout in ("bhsd", "bshd"):
        check_local(q[0, 0, 0], k[0, 0, 0], v[0, 0, 0], layout=layout, **given)


def test_strided_arrays(backend, rng, dtype):
    """Any strides and byte order give the bits of compact copies."""
    q, k, v = qkv(rng, dtype, heads=4, kv_heads=2, queries=QUERY_BLOCK + 1, keys=KEY_TILE + 1)
    given = {"centers": np.arange(QUERY_BLOCK + 1) * 3.5, "half_width": 9, "sigma": 4.0}
    wanted = local(q, k, v, **given)
    views = [
        [np.asfortranarray(x) for x in (q, k, v)],
        [x[..., ::-1, ::-1].copy()[..., ::-1, ::-1] for x in (q, k, v)],
    ]
    if dtype.kind == "f":
        views.append([x.astype(dtype.newbyteorder()) for x in (q, k, v)])
    for arrays in views:
        assert_bits_equal(local(*arrays, **given), wanted)


def test_results_asked_for(backend, rng, dtype):
    q, k, v = qkv(rng, dtype)
    given = {"centers": 3, "half_width": 2}
    out, lse, weights = local(q, k, v, return_lse=True, return_weights=True, **given)
    assert (lse.shape, weights.shape, weights.dtype) == ((2, 3, 5), (2, 3, 5, 7), dtype)
    both = local(q, k, v, return_lse=True, **given)
    assert isinstance(both, tuple) and len(both) == 2 and both[1].shape == lse.shape
    assert isinstance(local(q, k, v, **given), np.ndarray)


@pytest.mark.parametrize("target", range(3))
def test_out(backend, rng, dtype, target):
    """Case 118: out of any strides, and out that shares memory with an argument."""
    arrays = list(qkv(rng, dtype, queries=7, keys=7, dim=6, dv=6))
    given = {"centers": np.arange(7), "half_width": 2, "sigma": 1}
    wanted = local(*arrays, **given)
    base = np.zeros((3, 3, 7, 6), dtype)
    base[:2] = arrays[target]
    arrays[target] = base[:2]
    assert local(*arrays, out=base[1:], **given) is not None
    assert_bits_equal(base[1:], wanted)
    if dtype == np.float64:
        arrays = list(qkv(rng, dtype, queries=7, keys=7, dim=6, dv=7))
        centers = np.ones((2, 3, 7, 7))
        wanted = local(*arrays, centers=1.0, half_width=2)
        local(*arrays, centers=centers[..., 0], half_width=2, out=centers)
        assert_bits_equal(centers, wanted)


@pytest.mark.parametrize(
    "sizes", [(0, 7, 3, 2, 6), (5, 0, 3, 2, 6), (5, 7, 0, 2, 6), (5, 7, 3, 0, 6), (5, 7, 3, 2, 0)]
)
def test_sizes_of_zero(backend, rng, dtype, sizes):
    queries, keys, heads, lead, dv = sizes
    q, k, v = qkv(rng, dtype, lead=(lead,), heads=heads, queries=queries, keys=keys, dv=dv)
    for score in ("dot", "cosine", scores.Additive(None)):
        centers = np.zeros((lead, heads, queries))
        check_local(q, k, v, score=score, centers=centers, half_width=1, sigma=1)


q4, k5, v6 = np.zeros((2, 3, 4), F), np.zeros((2, 7, 5), F), np.zeros((2, 7, 6), F)
EITHER = (TypeError, ValueError)
WRONG = [
    *(("centers", x, ValueError) for x in (np.nan, np.inf, [0, 1, -np.inf], np.full(3, np.nan))),
    *(("centers", np.zeros(s), ValueError) for s in [(2,), (4,), (3, 1), (1, 2, 3), (0,)]),
    *(("centers", np.zeros(3, t), TypeError) for t in (bool, complex, object)),
    *(("centers", x, TypeError) for x in (True, 1j, "middle", ["0", "1", "2"])),
    ("centers", None, EITHER),
    ("centers", np.ma.zeros(3), TypeError),
    ("centers", np.array([0, 1, 0x7FA00000], "u4").view(F), ValueError),  # a signalling NaN
    *(("half_width", x, ValueError) for x in (-1, -1e-300, np.nan, np.inf, -np.inf, F("nan"))),
    *(("half_width", x, TypeError) for x in ("3", 1j, None, True)),
    *(("half_width", x, EITHER) for x in ([1, 2], np.zeros(3))),
    *(("sigma", x, ValueError) for x in (0, 0.0, -1, np.nan, np.inf, F("inf"))),
    *(("sigma", x, TypeError) for x in ("1", 1j, True)),
    *(("sigma", x, EITHER) for x in ([1, 2], np.ones(3))),
    ("score", "local", ValueError),
    ("score", "dot", ValueError, "key"),
    ("scale", 1.0, TypeError, ".*scale"),
    ("sinks", np.zeros(3, F), ValueError),
    ("query", q4.astype(int), TypeError),
    ("value", v6[:, :6], ValueError),
    ("kv_lengths", 8, ValueError),
    ("window", -2, ValueError),
    ("softcap", -1.0, ValueError),
    ("attn_mask", np.ones((3, 7), int), TypeError),
    ("layout", "sbhd", ValueError),
    ("out", np.zeros((2, 3, 5), F), ValueError),
]


@pytest.mark.parametrize("n", range(len(WRONG)))
def test_wrong_arguments(backend, n):
    """The message begins with the argument, and out keeps its contents."""
    argument, wrong, error, *named = WRONG[n]
    out = np.full((2, 3, 6), 7.5, F)
    good = {"query": q4, "key": k5, "value": v6, "score": scores.General(np.zeros((4, 5)))}
    good |= {"centers": [0, 1, 2], "half_width": 1.0, "sigma": 1.0, "out": out}
    with pytest.raises(error, match=f"^({named[0] if named else argument})"):
        local(**good | {argument: wrong})
    assert (out == 7.5).all()


def test_arguments_without_default(backend):
    for name in ("centers", "half_width"):
        given = {"centers": 0, "half_width": 1}
        del given[name]
        with pytest.raises(TypeError, match=name):
            local(q4, q4, q4, **given)


@pytest.mark.parametrize("sigma", [None, 20.0])
def test_place_in_the_batch_and_threads(backend, rng, sigma):
    """An entry's bits depend neither on the others nor on the number of threads."""
    for queries, keys in ((QUERY_BLOCK + 1, KEY_TILE + 9), (1, 2 * KEY_CHUNK + 3), (3, 5000)):
        q, k, v = qkv(rng, lead=(3,), heads=2, queries=queries, keys=keys, dim=8)
        centers = keys * rng.random((3, 2, queries))
        given = {"half_width": keys / 3, "sigma": sigma, "return_lse": True}
        wanted = [local(q[n], k[n], v[n], centers=centers[n], **given) for n in range(3)]
        for n_threads in (1, 2, 3, 8):
            with fastattn.threads(n_threads):
                got = local(q, k, v, centers=centers, **given)
            for n in range(3):
                assert_bits_equal(got[0][n], wanted[n][0], f"{n_threads} {n}")
                assert_bits_equal(got[1][n], wanted[n][1], f"{n_threads} {n}")


@pytest.mark.parametrize("score", ["scaled_dot", scores.Additive(None)], ids=["dot", "additive"])
def test_no_matrix_of_scores(backend, rng, score):
    """Sq = 2048 rows of Sk = 8192 keys: scores or a mask of them would be 64 or 16 MiB."""
    q, k, v = qkv(rng, lead=(1,), heads=1, queries=2048, keys=8192, dim=8, dv=8)
    centers, out = 8192 * rng.random(2048), np.empty((1, 1, 2048, 8), F)
    tracemalloc.start()
    try:
        local(q, k, v, score=score, centers=centers, half_width=16, sigma=8.0, out=out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20, f"{peak} bytes"


@pytest.mark.parametrize("width", [3, 1e300])
def test_keys_outside_cost_nothing(backend, dtype, width):
    """Not even their conversion; wide windows cost no more than attention to all keys."""
    keys, queries = 1 << 17, 64 if width == 3 else 32
    q, k = np.ones((1, queries, 8), dtype), np.ones((1, keys, 8), dtype)
    tracemalloc.start()
    try:
        local(q, k, k, centers=np.linspace(0, keys, queries), half_width=width)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    is_converted = dtype.itemsize == 2
    # 32 rows of scores are 16 MiB; converted keys and values 8 MiB
    most = 1 << 20 if width == 3 else 12 * dtype.itemsize << 20 if is_converted else 14 << 20
    assert peak < most, f"{peak} bytes"


LIMITED = (
    COMMON
    + """
q, k, v = (np.ones((1, n, 8), "f4") for n in (2048, 32768, 32768))
given = {"centers": np.linspace(0, 32768, 2048), "half_width": 16, "out": np.empty_like(q)}
with fastattn.threads(1):
    for options in ({}, {"sigma": 8.0}, {"score": fastattn.scores.Additive(None)}):
        fastattn.local_attention(q, k[:, :60], v[:, :60], **given, **options)
        allow(24 << 20)
        try:
            fastattn.local_attention(q, k, v, **given, **options)
        except MemoryError:
            raise SystemExit(f"out of memory with {options}")
        allow(0)
print("done")
"""
)


@LINUX
def test_scores_are_never_expanded(backend, run_python):
    """Case 106: 256 MiB of float32 scores in 24 MiB of address space, whoever allocates."""
    done = run_python(
        LIMITED, FASTATTN_BACKEND=backend, OPENBLAS_NUM_THREADS="1", MALLOC_ARENA_MAX="1"
    )
    assert done.stdout.strip() == "done", done


FORBIDDEN = """
import ctypes, mmap
import numpy as np
import fastattn
from check import assert_bits_equal

libc = ctypes.CDLL(None)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
n_keys, dim, open_ = 30000, 16, slice(12000, 18000)  # a key is 64 bytes, so ends lie on no page
rng, page = np.random.default_rng(1), mmap.PAGESIZE

def fenced():
    block = mmap.mmap(-1, n_keys * dim * 4)
    rows = np.frombuffer(block, "f4").reshape(n_keys, dim)
    rows[open_] = rng.standard_normal((6000, dim))
    return block, rows

def protect(block, allowed):
    start = ctypes.addressof(ctypes.c_char.from_buffer(block))
    for first, last in ((0, open_.start), (open_.stop, n_keys)):
        low, high = -(-first * 64 // page) * page, last * 64 // page * page
        assert libc.mprotect(start + low, high - low, allowed) == 0

(k_block, k), (v_block, v) = fenced(), fenced()
for n_queries in (1, 3, 100):
    q = rng.standard_normal((n_queries, dim)).astype("f4")
    given = {"centers": 15000 + 100 * rng.random(n_queries), "half_width": 20.5}
    for options in ({}, {"sigma": 9.0}, {"is_causal": True, "q_offset": 15050}):
        wanted = fastattn.local_attention(q, k, v, **given, **options)
        protect(k_block, 0), protect(v_block, 0)
        got = fastattn.local_attention(q, k, v, **given, **options)
        protect(k_block, 3), protect(v_block, 3)
        assert_bits_equal(got, wanted)
print("done")
"""


@LINUX
@pytest.mark.parametrize("name", [name for name in fastattn.backends() if name != "numpy"])
def test_far_keys_are_not_read(name, run_python):
    """Keys and values thousands of rows away from every window lie on forbidden pages."""
    done = run_python(FORBIDDEN, FASTATTN_BACKEND=name)
    assert done.stdout.strip() == "done", done
