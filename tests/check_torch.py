# SPDX-License-Identifier: MIT
# What the tests of the PyTorch integration share: tensors, expected values, comparisons.
# Imported by test_integration_torch*.py, where PyTorch is installed.
# Expected values are PyTorch's own in float64, or the formula in float64; never fastattn's.
"""Tensors beside PyTorch's attention in float64."""

import torch
import torch.nn.functional as F
from check import TOLERANCE

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def draw(rng, *shape, dtype=torch.float32):
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def qkv(rng, dtype=torch.float32, *, lead=(2,), heads=3, kv_heads=None, queries=5, keys=7, dim=4,
        dv=6):  # fmt: skip
    """Query, key, value whose sizes all differ."""
    kv_heads = heads if kv_heads is None else kv_heads
    shapes = ((heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, dv))
    return tuple(draw(rng, *lead, *shape, dtype=dtype) for shape in shapes)


def in_double(*tensors, **options):
    """PyTorch's result in float64."""
    doubles = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
               for x in tensors]  # fmt: skip
    return F.scaled_dot_product_attention(*doubles, **options)


def formula(query, key, value, allowed, scale=None):
    """softmax(scale q k^T) v over what is allowed, in float64; rows without a key are 0."""
    q, k, v = query.double(), key.double(), value.double()
    scores = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    weights = torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1).nan_to_num(0.0)
    return weights @ v


def assert_near(actual, wanted, context=""):
    """Equal within the tolerance of the dtype that `actual` has; no NaN."""
    assert actual.shape == wanted.shape, (actual.shape, wanted.shape, context)
    relative, absolute = TOLERANCE[name_of(actual.dtype)]
    torch.testing.assert_close(
        actual.double(),
        wanted.double(),
        rtol=relative,
        atol=4 * absolute,
        msg=lambda m: f"{context} {m}",
    )
