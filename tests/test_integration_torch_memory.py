# SPDX-License-Identifier: MIT
# fastattn.integrations.torch: whose memory is read and written, without packages, by many threads.
# Used by the suite on every backend, where PyTorch is installed.
# Results are test_integration_torch.py's matter.
"""Tensors are not copied, whatever their dtype and strides, and nothing but PyTorch is needed."""

import sys
import threading
import tracemalloc

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from check_torch import DTYPES, assert_near, draw, in_double, name_of, qkv  # noqa: E402

from fastattn.integrations import _torch_calls  # noqa: E402
from fastattn.integrations.torch import (  # noqa: E402
    additive_attention,
    scaled_dot_product_attention,
)


@pytest.fixture
def seen(monkeypatch):
    """The arrays of every call that reaches fastattn: (arguments, options, result)."""
    calls = []

    def spied(original):
        def spy(*args, **options):
            result = original(*args, **options)
            calls.append((args, options, result))
            return result

        return spy

    for name in ("sdpa", "additive_attention"):
        monkeypatch.setattr(_torch_calls, name, spied(getattr(_torch_calls, name)))
    return calls


def assert_same_memory(array, tensor):
    assert array.ctypes.data == tensor.data_ptr()
    assert array.shape == tensor.shape
    assert array.strides == tuple(n * tensor.element_size() for n in tensor.stride())


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_fastattn_reads_and_writes_the_memory_of_the_tensors(backend, rng, dtype, seen):
    mask = draw(rng, 5, 1, dtype=dtype).expand(5, 7)
    plain = qkv(rng, dtype, dv=4)
    for tensors in (
        plain,
        [x.transpose(1, 2).contiguous().transpose(1, 2) for x in plain],
        [x[:1].expand(2, -1, -1, -1) for x in plain],
        [x[:, :, 1:] for x in plain],
    ):
        mask = mask[: tensors[0].shape[2], : tensors[1].shape[2]]
        out = scaled_dot_product_attention(*tensors, mask)
        args, options, result = seen.pop()
        for array, tensor in zip(args, (*tensors, mask)):
            assert_same_memory(array, tensor)
        assert_same_memory(result, out)
        assert options["out"] is None or options["out"] is result


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_additive_attention_shares_memory(backend, rng, dtype, seen):
    tensors = qkv(rng, dtype)
    out, weights = additive_attention(*tensors, None, return_weights=True)
    args, _, results = seen.pop()
    for array, tensor in zip(args, tensors):
        assert_same_memory(array, tensor)
    assert_same_memory(results[0], out)
    assert_same_memory(results[1], weights)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_nothing_large_is_allocated_but_the_result(backend, rng, dtype):
    """NumPy's allocations; those of PyTorch would show as other memory in the tests above."""
    if backend == "numpy":
        pytest.skip("NumPy's backend computes in copies of blocks")
    query = torch.zeros(1, 2, 1, 64, dtype=dtype)
    key = torch.zeros(1, 1, 1 << 14, 64, dtype=dtype).expand(1, 2, -1, -1)
    scaled_dot_product_attention(query, key, key)
    tracemalloc.start()
    try:
        scaled_dot_product_attention(query, key, key)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 16 < key.untyped_storage().nbytes() // 8


def test_a_result_outlives_everything_else(backend, rng):
    query, key, value = qkv(rng, torch.bfloat16)
    wanted = in_double(query, key, value)
    out = scaled_dot_product_attention(query, key, value)
    for x in (query, key, value):
        x.fill_(torch.nan)
    del query, key, value
    assert_near(out.clone(), wanted)
    out.add_(1.0)
    assert_near(out, wanted + 1.0)


def test_bfloat16_is_rounded_to_nearest_even_and_keeps_nan(backend):
    """One key of weight 1: what comes out is what went in, special numbers too."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    value = bits.view(torch.bfloat16).reshape(1, 1, 1, -1)
    query = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16)
    out = scaled_dot_product_attention(query, query, value).reshape(-1)
    is_nan = value.reshape(-1).isnan()
    assert out[is_nan].isnan().all()
    assert torch.equal(out[~is_nan], value.reshape(-1)[~is_nan])
    # ties between neighbours: two keys of weight 1/2
    value = bits[: 1 << 15].view(torch.bfloat16)[1:0x7F00]
    pairs = torch.stack([value[:-1], value[1:]]).reshape(1, 1, 2, -1)
    out = scaled_dot_product_attention(query, torch.zeros(1, 1, 2, 8, dtype=torch.bfloat16), pairs)
    assert torch.equal(out.reshape(-1), pairs.float().mean(2).bfloat16().reshape(-1))


WITHOUT = """
import sys
sys.modules["ml_dtypes"] = None
import torch
from check_torch import assert_near, in_double
import fastattn
from fastattn.integrations.torch import additive_attention, scaled_dot_product_attention
torch.manual_seed(0)
q, k, v = (torch.randn(2, 3, n, 8).bfloat16() for n in (5, 7, 7))
mask = torch.randn(5, 7).bfloat16()
assert_near(scaled_dot_product_attention(q, k, v, mask), in_double(q, k, v, mask))
out = additive_attention(q, k, v, torch.randn(8).bfloat16(), query_weight=torch.eye(8).bfloat16())
assert out.dtype is torch.bfloat16
print(fastattn.get_backend(), sys.modules["ml_dtypes"])
"""


def test_bfloat16_needs_no_package(backend, run_python):
    done = run_python(WITHOUT, FASTATTN_BACKEND=backend)
    assert (done.returncode, done.stdout) == (0, f"{backend} None\n"), done


def test_a_missing_pytorch_is_named(run_python):
    done = run_python(
        """
import sys
sys.modules["torch"] = None
import fastattn.integrations
try:
    import fastattn.integrations.torch
except ImportError as error:
    print(error)
"""
    )
    assert 'pip install "fastattn[torch]"' in done.stdout, done


def test_nothing_else_imports_pytorch(run_python):
    done = run_python(
        "import sys, fastattn.integrations, fastattn.layers; print('torch' in sys.modules)"
    )
    assert done.stdout == "False\n", done


def test_many_threads_at_once(backend, rng):
    cases = [qkv(rng, DTYPES[n % 4], keys=20 + n) for n in range(8)]
    wanted = [in_double(*case) for case in cases]
    failures = []

    def work(case, result):
        try:
            for _ in range(30):
                assert_near(scaled_dot_product_attention(*case), result)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(cases, wanted)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_references_are_not_kept(backend, rng):
    tensors = qkv(rng)
    before = [sys.getrefcount(x) for x in tensors]
    for _ in range(5):
        scaled_dot_product_attention(*tensors)
        with pytest.raises(TypeError):
            scaled_dot_product_attention(*tensors, np.pi)
    assert [sys.getrefcount(x) for x in tensors] == before
