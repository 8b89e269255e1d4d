# SPDX-License-Identifier: MIT
# Calls full of infinities and underflow: no floating-point flag, no NumPy warning.
# Used by the suite, on every backend.
# Modes (rounding, flush-to-zero) that a caller sets are in test_fp_environment.py.
"""A call raises no flag and no warning, whatever its data are."""

import ctypes
import ctypes.util
import platform
import threading
import warnings

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import draw, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
SHAPES = [(3, 5), (QUERY_BLOCK + 1, KEY_TILE + 3), (1, KEY_CHUNK + 5)]
X86 = platform.machine().lower() in ("x86_64", "amd64", "i686")
# FE_INVALID, FE_DIVBYZERO, FE_OVERFLOW of the two families we know.
FLAGS = (1, 4, 8) if X86 else (1, 2, 4)


def hard_calls(rng, dtype, shape):
    """Calls that meet infinities, empty rows, underflow, tails and large numbers."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
    some = rng.random((queries, keys)) < 0.5
    some[0] = False
    yield q, k, v, {"attn_mask": np.where(some, 0, -np.inf).astype(np.float32)}
    yield q, k, v, {"attn_mask": some, "sinks": np.array([-np.inf, 0, 1], np.float32)}
    yield q, k, v, {"is_causal": True, "q_offset": -1}
    yield q, k, v, {"kv_lengths": 0}
    yield q, k, v, {"bias": draw(rng, (queries, keys), np.float32, 1e4)}
    yield q, k, v, {"bias": np.full((queries, keys), np.finfo(np.float32).min)}
    yield q, k, v, {"bias": np.where(some, -1e300, 0.0)}
    yield q, k, v, {"softcap": 1e-3, "scale": 50.0}
    yield q, k, v, {"alibi_slopes": np.array([1e6, 0, -1e-3], np.float32), "window": (2, 1)}
    k, v = k.copy(), v.copy()
    k[..., keys // 2 :, :] = np.nan
    v[..., keys // 2 :, :] = np.inf
    yield q, k, v, {"kv_lengths": keys // 2}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_warning_and_no_error(backend, rng, dtype, shape):
    """Case 123: under errstate(all="raise") neither the call nor the next ufunc complains."""
    for q, k, v, options in hard_calls(rng, dtype, shape):
        with np.errstate(all="raise", under="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error")
            sdpa(q, k, v, **options, return_lse=True, return_weights=True)
            assert np.float32(1) * np.float32(1) == 1
            assert (np.add(np.ones(9, np.float32), 1) == 2).all()


def test_half_products_beyond_the_half_range(backend):
    """Case 123: large half scores raise no overflow."""
    big = np.full((2, 3, 9, 64), 300, np.float16)
    with np.errstate(all="raise", under="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        sdpa(big, big, big)


@pytest.fixture(scope="module")
def libm():
    name = ctypes.util.find_library("m")
    if name is None:
        pytest.skip("no C mathematics library to ask")
    return ctypes.CDLL(name)


@pytest.mark.parametrize("shape", SHAPES)
def test_flags_stay_clear(backend, rng, libm, shape):
    """Case 123: invalid, divide and overflow are not set by a call."""
    for n_threads in (1, 2):
        for q, k, v, options in hard_calls(rng, np.float32, shape):
            with fastattn.threads(n_threads):
                libm.feclearexcept(sum(FLAGS))
                sdpa(q, k, v, **options)
                raised = libm.fetestexcept(sum(FLAGS))
            assert raised == 0, (raised, sorted(options), n_threads)


def subnormals_live():
    tiny = np.float64(5e-324) * np.float64(1.0), np.float32(1e-45) * np.float32(1.0)
    return all(x != 0 for x in tiny) and float.fromhex("0x1p-1074") * 1.0 != 0


def test_subnormals_stay_alive(backend, rng):
    """Case 124: no call turns flush-to-zero on, in this thread or in a new one."""
    assert subnormals_live()
    for shape in SHAPES:
        for q, k, v, options in hard_calls(rng, np.float32, shape):
            sdpa(q, k, v, **options)
    assert subnormals_live()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(subnormals_live()))
    thread.start()
    thread.join()
    assert seen == [True]
