# SPDX-License-Identifier: MIT
# Offsets beyond 2^31 elements, in memory that is reserved but never filled.
# Used by pytest.  Results are compared with compact copies of the same numbers.
"""Case 93: a row times its stride must not be computed in 32 bits."""

import mmap
import sys

import numpy as np
import pytest
from check import assert_bits_equal

import fastattn

FAR = 2**31 + 64  # elements
MAP_NORESERVE = 0x4000  # of Linux; the mmap module learned the name late


def sparse(shape, strides, dtype=np.float32):
    """Return a writable array of these element strides over untouched pages."""
    itemsize = np.dtype(dtype).itemsize
    extent = sum((n - 1) * stride for n, stride in zip(shape, strides)) + 1
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    flat = np.frombuffer(mmap.mmap(-1, extent * itemsize, flags=flags), dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, [s * itemsize for s in strides])


def spread(a, axis):
    """Return the same numbers with FAR elements from one entry of `axis` to the next."""
    strides = [s // a.itemsize for s in a.strides]
    strides[axis] = FAR
    copy = sparse(a.shape, strides, a.dtype)
    copy[...] = a
    return copy


@pytest.mark.skipif(sys.platform != "linux", reason="needs memory reserved without being there")
@pytest.mark.parametrize("axis", [0, 1, 2], ids=["batch", "head", "row"])
@pytest.mark.parametrize("queries", [2, 20], ids=["decode", "prefill"])
def test_strides_beyond_32_bits(backend, rng, axis, queries):
    shapes = [(2, 2, queries, 8), (2, 2, 3, 8), (2, 2, 3, 8)]
    if axis == 2:
        shapes = [(1, 1, 2, 8), (1, 1, 2, 8), (1, 1, 2, 8)]
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    mask = rng.random((*q.shape[:-1], k.shape[-2])) < 0.7
    mask[..., 0] = True
    expected = fastattn.scaled_dot_product_attention(q, k, v, mask)
    far = [spread(a, axis) for a in (q, k, v, mask)]
    out = spread(np.full_like(q, np.nan), axis)
    assert fastattn.scaled_dot_product_attention(*far, out=out) is out
    assert_bits_equal(out, expected)
