# SPDX-License-Identifier: MIT
# Hard attention: ranks, layouts, strides, out=, errors, determinism, memory.
# Used by the suite, on every backend; memory limits need Linux.
# Which key is taken is tested in test_hard.py and test_hard_sampled.py.
"""What hard_attention has in common with every other function, on its own results."""

import tracemalloc

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, draw, qkv
from check_scores import ALL_KINDS, some_score
from check_selection import check_hard
from test_memory import COMMON, LINUX

import fastattn
from fastattn import scores

hard = fastattn.hard_attention
F = np.float32


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_ranks_layouts_and_leading_axes(backend, rng, dtype, kind):
    """Indices are (..., heads, queries) in both layouts, and (queries,) without heads."""
    score, key_dim = some_score(rng, kind, dtype, 8, 5, 9)
    q, v = draw(rng, (2, 1, 4, 3, 8), dtype), draw(rng, (1, 5, 2, 9, 6), dtype)
    k = draw(rng, (2, 5, 2, 9, key_dim), dtype)
    options = {"score": score, "attn_mask": rng.random((4, 3, 9)) < 0.7}
    out, indices = check_hard(q, k, v, **options)
    turned = [np.ascontiguousarray(x.swapaxes(-2, -3)) for x in (q, k, v)]
    other, other_indices = check_hard(*turned, layout="bshd", **options)
    assert_bits_equal(other_indices, indices)
    assert_bits_equal(other.swapaxes(-2, -3), out)
    check_hard(q[0, 0], k[0, 0], v[0, 0], **options)
    options["attn_mask"] = options["attn_mask"][0]
    for layout in ("bhsd", "bshd"):
        check_hard(q[0, 0, 0], k[0, 0, 0], v[0, 0, 0], layout=layout, **options)


def test_strided_arrays(backend, rng, dtype):
    """Any strides and byte order give the bits of compact copies."""
    q, k, v = qkv(rng, dtype, heads=4, kv_heads=2, queries=QUERY_BLOCK + 1, keys=KEY_TILE + 1)
    wanted = hard(q, k, v, return_indices=True)
    views = [
        [np.asfortranarray(x) for x in (q, k, v)],
        [x[..., ::-1, ::-1].copy()[..., ::-1, ::-1] for x in (q, k, v)],
    ]
    if dtype.kind == "f":
        views.append([x.astype(dtype.newbyteorder()) for x in (q, k, v)])
    for arrays in views:
        got = hard(*arrays, return_indices=True)
        assert_bits_equal(got[0], wanted[0])
        assert_bits_equal(got[1], wanted[1])
    same = [np.broadcast_to(x[:1, :, :1], x.shape) for x in (k, v)]
    assert not hard(q, *same, return_indices=True)[1].any()


def test_results_asked_for(backend, rng, dtype):
    q, k, v = qkv(rng, dtype)
    out, indices = hard(q, k, v, return_indices=True)
    assert_bits_equal(hard(q, k, v), out)
    assert_bits_equal(hard(q, k, v, return_indices=False), out)
    assert indices.dtype == np.int64 and indices.flags.writeable and indices.base is None
    assert_bits_equal(hard(q.tolist(), k.tolist(), v.tolist()), hard(*map(np.float64, (q, k, v))))


def test_out(backend, rng, dtype):
    """out of any strides, returned itself; every element is written."""
    q, k, v = qkv(rng, dtype)
    wanted, _ = hard(q, k, v, kv_lengths=[7, 0], return_indices=True)
    big = np.full((2, 3, 10, 12), np.nan, dtype)
    out = big[:, :, ::2, ::-2]
    assert hard(q, k, v, kv_lengths=[7, 0], out=out) is out
    assert_bits_equal(out, wanted)
    assert np.isnan(big[:, :, 1::2]).all() and np.isnan(big[..., ::2]).all()


@pytest.mark.parametrize("target", range(3))
@pytest.mark.parametrize("is_sampled", [False, True])
def test_out_over_an_input(backend, rng, dtype, target, is_sampled):
    """Case 118: the value rows that others still need are not overwritten."""
    arrays = list(qkv(rng, dtype, queries=7, keys=7, dim=6, dv=6))

    def call(**options):
        sample = np.random.default_rng(2) if is_sampled else None
        return hard(*arrays, sample=sample, **options)

    wanted = call()
    base = np.zeros((3, 3, 7, 6), dtype)
    base[:2] = arrays[target]
    arrays[target] = base[:2]
    assert call(out=base[1:]) is not None
    assert_bits_equal(base[1:], wanted)


@pytest.mark.parametrize(
    "sizes", [(0, 7, 3, 2, 6), (5, 0, 3, 2, 6), (5, 7, 0, 2, 6), (5, 7, 3, 0, 6), (5, 7, 3, 2, 0)]
)
def test_sizes_of_zero(backend, rng, dtype, sizes):
    queries, keys, heads, lead, dv = sizes
    q, k, v = qkv(rng, dtype, lead=(lead,), heads=heads, queries=queries, keys=keys, dv=dv)
    for kind in ("dot", "cosine", scores.Additive(None)):
        check_hard(q, k, v, score=kind)


q4, k5, v6 = np.zeros((2, 3, 4), F), np.zeros((2, 7, 5), F), np.zeros((2, 7, 6), F)
WRONG = [
    ({"sinks": np.zeros(2, F)}, TypeError, ".*sinks"),
    ({"return_lse": True}, TypeError, ".*return_lse"),
    ({"return_weights": True}, TypeError, ".*return_weights"),
    ({"scale": 1.0}, TypeError, ".*scale"),
    ({"return_indices": "yes"}, TypeError, "return_indices"),
    ({"sample": 1}, TypeError, "sample"),
    ({"score": "hard"}, ValueError, "score"),
    ({"score": None}, TypeError, "score"),
    ({"score": "dot"}, ValueError, "key"),
    ({"score": scores.General(np.zeros((5, 4)))}, ValueError, "weight"),
    ({"score": scores.Location(np.zeros((4, 6)))}, ValueError, "weight"),
    ({"score": scores.Additive(np.zeros(5))}, ValueError, "query"),
    (
        {"score": scores.Additive(None, np.zeros((4, 5))), "softcap": 2.0},
        ValueError,
        "softcap",
    ),
    (
        {"score": scores.Additive(None, np.zeros((4, 5))), "alibi_slopes": np.ones(2)},
        ValueError,
        "alibi_slopes",
    ),
    ({"query": q4.astype(int)}, TypeError, "query"),
    ({"value": v6.astype(np.float64)}, TypeError, "query|key|value"),
    ({"value": v6[:, :6]}, ValueError, "value"),
    ({"kv_lengths": 8}, ValueError, "kv_lengths"),
    ({"softcap": -1.0}, ValueError, "softcap"),
    ({"window": -2}, ValueError, "window"),
    ({"attn_mask": np.ones((3, 7), int)}, TypeError, "attn_mask"),
    ({"layout": "sbhd"}, ValueError, "layout"),
    ({"out": np.zeros((2, 3, 5), F)}, ValueError, "out"),
    ({"out": np.zeros((2, 3, 6))}, TypeError, "out"),
]


@pytest.mark.parametrize("n", range(len(WRONG)))
def test_wrong_arguments(backend, n):
    change, error, name = WRONG[n]
    out = np.full((2, 3, 6), 7.5, F)
    good = {"query": q4, "key": k5, "value": v6, "score": scores.General(np.zeros((4, 5)))}
    with pytest.raises(error, match=f"^({name})"):
        hard(**good | {"out": out} | change)
    assert (out == 7.5).all()


@pytest.mark.parametrize("is_sampled", [False, True])
def test_place_in_the_batch_and_threads(backend, rng, is_sampled):
    """An entry's result depends neither on the others nor on the number of threads."""
    for queries, keys in ((QUERY_BLOCK + 1, KEY_TILE + 9), (1, 2 * KEY_CHUNK + 3)):
        q, k, v = qkv(rng, lead=(3,), heads=2, queries=queries, keys=keys, dim=8)
        wanted = []
        sample = np.random.default_rng(1) if is_sampled else None
        for n in range(3):  # the numbers of the entries follow one another
            wanted.append(hard(q[n], k[n], v[n], sample=sample, return_indices=True))
        for n_threads in (1, 2, 5):
            sample = np.random.default_rng(1) if is_sampled else None
            with fastattn.threads(n_threads):
                got = hard(q, k, v, sample=sample, return_indices=True)
            for n in range(3):
                assert_bits_equal(got[0][n], wanted[n][0])
                assert_bits_equal(got[1][n], wanted[n][1])


@pytest.mark.parametrize("is_sampled", [False, True])
@pytest.mark.parametrize("kind", ["dot", "additive"])
def test_no_matrix_of_scores(backend, rng, kind, is_sampled):
    """Sq = 2048 rows of Sk = 4096 keys would be 32 MiB of scores."""
    score = scores.Additive(None) if kind == "additive" else kind
    q, k, v = qkv(rng, lead=(1,), heads=1, queries=2048, keys=4096, dim=4, dv=4)
    lengths = 60 if kind == "additive" else 4096  # tanh takes its time
    out, sample = np.empty((1, 1, 2048, 4), F), np.random.default_rng(1) if is_sampled else None
    tracemalloc.start()
    try:
        hard(q, k, v, score=score, sample=sample, kv_lengths=lengths, out=out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20, f"{peak} bytes"


LIMITED = (
    COMMON
    + """
hard = fastattn.hard_attention
q, k, v = (np.ones((1, n, 8), "f4") for n in (2048, 16384, 16384))
sample = np.random.default_rng(1)
out = np.empty((1, 2048, 8), "f4")
with fastattn.threads(1):
    for given in ({}, {"sample": sample}):
        hard(q, k[:, :40], v[:, :40], out=out, **given)
        allow(24 << 20)
        try:
            hard(q, k, v, out=out, **given)
        except MemoryError:
            raise SystemExit(f"out of memory with {given}")
        allow(0)
print("done")
"""
)


@LINUX
def test_scores_are_never_expanded(backend, run_python):
    """128 MiB of float32 scores in 24 MiB of address space, whoever allocates."""
    done = run_python(
        LIMITED, FASTATTN_BACKEND=backend, OPENBLAS_NUM_THREADS="1", MALLOC_ARENA_MAX="1"
    )
    assert done.stdout.strip() == "done", done
