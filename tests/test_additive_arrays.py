# SPDX-License-Identifier: MIT
# Memory of additive attention: layouts, strides, byte order, out=, extra memory, flags.
# Used by the suite, on every backend.
# What is computed is tested in test_additive.py.
"""Any arrays give the result of their compact copies, and no big tensor is ever made."""

import tracemalloc
import warnings

import numpy as np
import pytest
from cases import EXHAUSTIVE, KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, draw
from check_additive import PROJECTED, case, check_additive
from test_fp_flags import FLAGS, libm  # noqa: F401
from test_layouts import VIEWS
from test_memory import COMMON, LINUX

import fastattn

additive = fastattn.additive_attention
SHAPES = [(5, 9), (QUERY_BLOCK + 1, KEY_TILE + 3), (1, KEY_CHUNK + 5)]
F = np.float32


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("view", VIEWS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("without", [(), PROJECTED], ids=["weights", "projected"])
def test_strides(backend, rng, dtype, view, shape, without):
    """Each array alone, parameters too, and all of them, as a view."""
    queries, keys = shape
    given = case(rng, dtype, heads=4, kv_heads=2, queries=queries, keys=keys, without=without)
    wanted = additive(**given)
    views = {n: view(x) for n, x in given.items() if x.ndim > 2}
    views |= {n: view(x[None, None])[0, 0] for n, x in given.items() if x.ndim == 2}
    views |= {n: view(x[None, None, None])[0, 0, 0] for n, x in given.items() if x.ndim == 1}
    for names in ([name] for name in given):
        assert_bits_equal(additive(**given | {n: views[n] for n in names}), wanted, str(names))
    assert_bits_equal(additive(**views), wanted)


def test_foreign_memory(backend, rng, dtype):
    """Other byte order, unaligned, read-only, lists."""
    given = case(rng, dtype, lead=(), heads=2)
    wanted = additive(**given)
    for name, x in given.items():
        raw = np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(dtype).reshape(x.shape)
        turned = x.astype(dtype.newbyteorder())
        for other in (raw, turned):
            assert_bits_equal(additive(**given | {name: other}), wanted, name)
    if dtype == np.float64:
        assert_bits_equal(additive(**{n: x.tolist() for n, x in given.items()}), wanted)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("without", [(), PROJECTED], ids=["weights", "projected"])
def test_bshd(backend, rng, dtype, shape, without):
    """layout="bshd" moves the head axis of query, key, value and out, and nothing else."""
    queries, keys = shape
    given = case(rng, dtype, heads=4, kv_heads=2, queries=queries, keys=keys, without=without)
    options = {"attn_mask": draw(rng, (2, 4, 1, keys)), "is_causal": True}
    options |= {"return_lse": True, "return_weights": True}
    wanted = additive(**given, **options)
    turned = given | {n: given[n].swapaxes(1, 2) for n in ("query", "key", "value")}
    compact = {n: np.ascontiguousarray(x) for n, x in turned.items()}
    for each in (turned, compact):
        got = additive(**each, **options, layout="bshd")
        assert_bits_equal(got[0].swapaxes(1, 2), wanted[0])
        assert_bits_equal(got[1], wanted[1])
        assert_bits_equal(got[2], wanted[2])
    check_additive(**compact, layout="bshd", is_causal=True)


def test_ranks(backend, rng, dtype):
    """Ranks 2 to 6; without a head axis, one vector alone or in a row."""
    for lead in ((), (2,), (2, 5), (2, 1, 3)):
        given = case(rng, dtype, lead=lead, heads=4, kv_heads=2)
        assert check_additive(**given).shape == (*lead, 4, 5, 6)
    flat = given | {n: given[n][0, 0, 0, 0] for n in ("query", "key", "value")}
    mask = rng.random((5, 7)) < 0.7
    out = check_additive(**flat, attn_mask=mask, layout="bshd")
    assert out.shape == (5, 6)
    flat["attention_v"] = flat["attention_v"][None]
    assert_bits_equal(additive(**flat, attn_mask=mask), out)


def test_leading_axes_broadcast(backend, rng, dtype):
    """Leading axes of size 1 stretch, in any of the three, and repeated entries are one."""
    for q_lead, k_lead, v_lead in (((2, 5), (2, 1), (1, 5)), ((1, 1), (2, 1), (2, 5)),
                                   ((1, 5), (2, 5), (1, 1)), ((4,), (1,), (1,))):  # fmt: skip
        given = case(rng, dtype, lead=q_lead, heads=4, kv_heads=2)
        given |= {"key": draw(rng, (*k_lead, 2, 7, 8), dtype)}
        given |= {"value": draw(rng, (*v_lead, 2, 7, 6), dtype)}
        out = check_additive(**given, is_causal=True)
        lead = np.broadcast_shapes(q_lead, k_lead, v_lead)
        wide = {n: np.broadcast_to(given[n], lead + given[n].shape[-3:]) for n in ("key", "value")}
        assert_bits_equal(additive(**given | wide, is_causal=True), out)


@pytest.mark.parametrize("without", [(), PROJECTED, PROJECTED[:2]], ids=len)
@pytest.mark.parametrize("target", ["query", "key", "value", "attention_v", "key_weight"])
def test_out_over_an_input(backend, rng, dtype, without, target):
    """Case 118: out shares memory with an argument."""
    given = case(rng, dtype, queries=7, keys=7, query_dim=6, key_dim=6, hidden=6, without=without)
    if target not in given:
        return
    options = {"is_causal": True, "return_lse": True}
    wanted = additive(**given, **options)
    base = np.zeros((4, 3, 7, 6), dtype)
    if given[target].ndim == 4:
        base[:2] = given[target]
        given[target], out = base[:2], base[1:3]
    else:
        base.reshape(-1)[: given[target].size] = given[target].ravel()
        given[target] = base.reshape(-1)[: given[target].size].reshape(given[target].shape)
        out = base[:2]
    got = additive(**given, **options, out=out)
    assert got[0] is out
    assert_bits_equal(out, wanted[0])
    assert_bits_equal(got[1], wanted[1])


def test_out_of_any_strides(backend, rng, dtype):
    given = case(rng, dtype)
    wanted = additive(**given)
    big = np.full((2, 3, 10, 12), np.nan, dtype)
    out = big[:, :, ::2, ::-2]
    assert additive(**given, out=out) is out
    assert_bits_equal(out, wanted)
    assert np.isnan(big[:, :, 1::2]).all() and np.isnan(big[..., ::2]).all()


@pytest.mark.parametrize("without", [(), PROJECTED], ids=["weights", "projected"])
def test_no_tensor_of_tanh(backend, rng, without):
    """Case 106: B1 Sq = Sk = 2048, U = 256 would be 4 GiB; 50 MB are enough."""
    queries = 2048 if EXHAUSTIVE else 128
    given = case(rng, lead=(1,), heads=1, queries=queries, keys=2048, hidden=256, query_dim=64,
                 key_dim=64, dv=64, without=without)  # fmt: skip
    out = np.empty((1, 1, queries, 64), F)
    tracemalloc.start()
    try:
        additive(**given, out=out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50e6, f"{peak} bytes"


LIMITED = (
    COMMON
    + """
q, k, v = (np.ones((n, d), "f4") for n, d in ((64, 256), (2048, 256), (2048, 4)))
out = np.empty((64, 4), "f4")
with fastattn.threads(1):
    fastattn.additive_attention(q, k[:40], v[:40], None, out=out)
    allow(50 << 20)
    fastattn.additive_attention(q, k, v, None, out=out)
    allow(0)
print("done")
"""
)


@LINUX
def test_no_tensor_of_tanh_from_anybody(backend, run_python):
    """Case 106: 128 MiB of float32 in 50 MiB of address space, whoever allocates."""
    done = run_python(
        LIMITED, FASTATTN_BACKEND=backend, OPENBLAS_NUM_THREADS="1", MALLOC_ARENA_MAX="1"
    )
    assert done.stdout.strip() == "done", done


def test_repeated_entries_are_projected_once(backend, rng):
    """A key broadcast over a large batch costs the memory of one."""
    given = case(rng, lead=(1,), heads=1, queries=1, keys=500, hidden=64)
    given["query"] = np.broadcast_to(given["query"], (200, 1, 1, 4))
    given |= {n: np.broadcast_to(given[n], (200, *given[n].shape[1:])) for n in ("key", "value")}
    out = np.empty((200, 1, 1, 6), F)
    tracemalloc.start()
    try:
        additive(**given, out=out, kv_lengths=3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5e6, f"{peak} bytes; all the projected keys are {200 * 500 * 64 * 4}"


def hard_calls(rng, dtype):
    """Calls that meet infinities, overflow, empty rows and NaN that nobody sees."""
    given = case(rng, dtype)
    yield given | {"attn_mask": np.where(np.arange(7) < 3, 0, -np.inf)}
    yield given | {"kv_lengths": 0}
    yield given | {"key_weight": np.full((8, 11), 1e30), "hidden_bias": np.full(11, -1e300)}
    big = float(np.finfo(np.float16 if dtype.itemsize == 2 else dtype).max)
    yield given | {"query": np.full_like(given["query"], big), "bias": np.full((5, 1), 1e300)}
    hidden = given | {n: given[n].copy() for n in ("key", "value")}
    hidden["key"][:, :, 4:], hidden["value"][:, :, 4:] = np.nan, np.inf
    yield hidden | {"kv_lengths": 4}
    projected = case(rng, dtype, without=PROJECTED)
    yield projected | {n: np.full_like(projected[n], big) for n in ("query", "key")}
    yield projected | {n: np.full_like(projected[n], 1e-40) for n in ("query", "key")}


def test_no_warning_and_no_flag(backend, rng, dtype, libm):  # noqa: F811
    """Case 123: nothing is raised, neither by the call nor by what comes after it."""
    for given in hard_calls(rng, dtype):
        with np.errstate(all="raise", under="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error")
            libm.feclearexcept(sum(FLAGS))
            out = additive(**given, return_lse=True, return_weights=True)[0]
            assert libm.fetestexcept(sum(FLAGS)) == 0
            if "key" in given and "hidden_bias" in given:
                prepared = fastattn.prepare_additive_keys(
                    given["key"], key_weight=given["key_weight"], hidden_bias=given["hidden_bias"]
                )
                assert libm.fetestexcept(sum(FLAGS)) == 0
                assert prepared.shape[-1] == 11
        assert np.isfinite(out).all()
    assert_close(out, np.asarray(out, np.float64))
