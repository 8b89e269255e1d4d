# SPDX-License-Identifier: MIT
# The floating-point environment of the caller: status flags, rounding, flush-to-zero.
# Used by pytest; the state is set and read through the C library.
# That ordinary calls set no flag and keep the modes is asked in test_fp_flags.py.
"""A call leaves the state that its caller has set as it was, and does not depend on it."""

import ctypes
import platform
import sys

import numpy as np
import pytest
from cases import KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention

IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
IS_ARM = platform.machine().lower() in ("aarch64", "arm64")
FLAGS = {"invalid": 1, "divide": 4 if IS_X86 else 2, "overflow": 8 if IS_X86 else 4}
ALL_FLAGS = sum(FLAGS.values())
UPWARD = 0x800 if IS_X86 else 0x400000  # fesetround(FE_UPWARD)

needs_fenv = pytest.mark.skipif(
    sys.platform == "win32" or not (IS_X86 or IS_ARM), reason="constants of fenv.h not known here"
)


@pytest.fixture
def libm():
    """The fenv.h functions of this process; the environment is put back afterwards."""
    library = ctypes.CDLL("libm.so.6" if sys.platform == "linux" else None)
    saved = ctypes.create_string_buffer(64)  # fenv_t has 16 to 32 bytes
    library.fegetenv(saved)
    yield library
    library.fesetenv(saved)


@pytest.fixture
def compiled(backend):
    """Each backend but NumPy's: NumPy's own functions clear the status flags."""
    if backend == "numpy":
        pytest.skip("NumPy clears the flags itself")
    return backend


def test_underflow_is_no_error_either(backend, rng, dtype):
    q, k, v = qkv(rng, dtype, queries=QUERY_BLOCK + 1, keys=KEY_TILE + 1)
    big_q, big_k = q * 50, k * 50
    with np.errstate(all="raise"):
        sdpa(big_q, big_k, v, scale=10.0, return_weights=True)
        sdpa(q, k, v, bias=np.linspace(0, -1000, k.shape[-2]), return_lse=True)


@needs_fenv
def test_a_scale_beyond_float32_sets_no_flag(compiled, libm, rng):
    q, k, v = qkv(rng)
    libm.feclearexcept(ALL_FLAGS)
    sdpa(q, k, v, scale=1e300)
    assert libm.fetestexcept(ALL_FLAGS) == 0


@needs_fenv
@pytest.mark.parametrize("flag", FLAGS)
def test_flags_set_before_a_call_stay_set(compiled, libm, rng, flag):
    q, k, v = qkv(rng)
    libm.feclearexcept(ALL_FLAGS)
    libm.feraiseexcept(FLAGS[flag])
    before = libm.fetestexcept(ALL_FLAGS)
    sdpa(q, k, v)
    assert before & FLAGS[flag]
    assert libm.fetestexcept(ALL_FLAGS) == before


@needs_fenv
@pytest.mark.parametrize("n_threads", [1, 4])
def test_rounding_mode_is_kept_and_does_not_matter(compiled, libm, rng, n_threads):
    q, k, v = qkv(rng, queries=2 * QUERY_BLOCK + 1, keys=KEY_TILE + 1, dim=16)
    with fastattn.threads(n_threads):
        wanted = sdpa(q, k, v, scale=0.25)
        libm.fesetround(UPWARD)
        got = sdpa(q, k, v, scale=0.25)
    mode = libm.fegetround()
    libm.fesetround(0)
    assert mode == UPWARD
    assert_bits_equal(got, wanted)


def mxcsr(libm):
    """(value, setter) of the SSE control register: the last word of glibc's fenv_t on x86-64."""
    env = (ctypes.c_uint32 * 8)()
    libm.fegetenv(env)

    def put(value):
        env[7] = value
        libm.fesetenv(env)

    return env[7], put


@pytest.mark.skipif(not (IS_X86 and sys.platform == "linux"), reason="reads MXCSR")
@pytest.mark.parametrize("n_threads", [1, 4])
def test_flush_to_zero_is_kept_and_does_not_matter(compiled, libm, rng, n_threads):
    q, k, _ = qkv(rng, queries=2 * QUERY_BLOCK + 1, keys=KEY_TILE + 1)
    v = np.full((*k.shape[:-1], 3), 1e-40, np.float32)
    flush = 0x8040  # FTZ and DAZ
    with fastattn.threads(n_threads):
        wanted = sdpa(q, k, v)
        value, put = mxcsr(libm)
        put(value | flush)
        got = sdpa(q, k, v)
        after, _ = mxcsr(libm)
        put(value)
    assert after & flush == flush
    assert wanted.all()
    assert_bits_equal(got, wanted)


def test_import_and_calls_leave_subnormals_alive(run_python):
    # A library linked with -ffast-math turns subnormals off for the thread that loads it.
    done = run_python(
        """
import threading
import numpy as np

def alive(where):
    tiny, one = float("5e-324"), float("1")
    assert tiny * one != 0, where
    assert (np.array([1e-40], np.float32) * np.float32(1))[0] != 0, where
    assert np.finfo(np.float32).smallest_subnormal > 0, where
    assert np.finfo(np.float64).smallest_subnormal > 0, where

def alive_in_a_thread(where):
    failed = []
    def body():
        try:
            alive(where)
        except BaseException as error:
            failed.append(error)
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert not failed, failed

alive("before import")
import fastattn
alive("after import")
alive_in_a_thread("after import, new thread")
x = np.ones((2, 3, 300, 16), np.float32)
for n_threads in (1, 4):
    with fastattn.threads(n_threads):
        fastattn.scaled_dot_product_attention(x, x, x)
    alive("after a call")
    alive_in_a_thread("after a call, new thread")
print("done")
""",
        options=("-W", "error", "-W", "ignore:fastattn:RuntimeWarning"),
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
