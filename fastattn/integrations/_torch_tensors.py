# SPDX-License-Identifier: MIT
"""Tensors as arrays and back, and what a tensor must be for that.

For ``_torch_calls`` and ``torch``: memory is shared, not copied. Sizes of rows, masks and options
are checked where arrays are (``_validate``); only what PyTorch does in its own way is seen to here.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .._bfloat16 import BFLOAT16

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_PLAIN = (Tensor, torch.nn.Parameter)


class GradientError(ValueError):
    """A tensor whose gradient is wanted."""


def check(tensor: object, name: str) -> None:
    """Whether it has memory here that is laid out by strides."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.is_nested:
        raise TypeError(f"{name}: expected a plain tensor, got a nested one")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name}: expected a dense tensor, got one of layout {tensor.layout}")
    if tensor.device.type != "cpu":
        raise TypeError(f"{name}: expected a tensor on the CPU, got one on {tensor.device}")


def check_float(tensor: object, name: str) -> None:
    check(tensor, name)
    if tensor.dtype not in FLOATS:
        raise TypeError(
            f"{name}: expected dtype float16, bfloat16, float32 or float64, got {tensor.dtype}"
        )


def check_mask(mask: object, dtype: torch.dtype) -> None:
    """Of the dtypes that PyTorch takes."""
    check(mask, "attn_mask")
    if mask.dtype not in (torch.bool, torch.float32, dtype):
        also = "" if dtype is torch.float32 else f", or {dtype} as that of query,"
        raise TypeError(
            f"attn_mask: expected dtype bool (True: may attend) or float32 (added){also} "
            f"got {mask.dtype}"
        )


def check_gradients(**tensors: Tensor | None) -> None:
    """No gradient through any of them can be asked for later."""
    for name, tensor in tensors.items():
        if wants_gradient(tensor):
            raise GradientError(
                f"{name}: expected a tensor without gradient, got one that requires it: fastattn "
                "has no backward pass (use torch.no_grad() or torch.inference_mode(), or detach())"
            )


def wants_gradient(tensor: object) -> bool:
    if not isinstance(tensor, Tensor):
        return False
    if tensor.requires_grad and torch.is_grad_enabled():
        return True
    # forward mode: outside of its blocks unpack_dual looks at nothing
    return (
        not torch.compiler.is_compiling()
        and torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None
    )


def is_plain(tensor: Tensor | None) -> bool:
    """Whether it is only memory: no subclass, whose own dispatch has to see the call."""
    return tensor is None or type(tensor) in _PLAIN


def as_array(tensor: Tensor, name: str) -> np.ndarray:
    """The tensor's memory as an array of the same shape and strides."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_neg():  # the sign of a conjugate's imaginary part is yet to be turned
        tensor = tensor.resolve_neg()
    try:
        if tensor.dtype is torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(BFLOAT16)
        return tensor.numpy()
    except RuntimeError as error:  # inside vmap and other transforms
        raise TypeError(f"{name}: expected a tensor with memory of its own: {error}") from error


def as_tensor(array: np.ndarray) -> Tensor:
    """The array's memory as a tensor."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def aligned(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The three with axes that meet as PyTorch lets them: repeated by stride 0, where they repeat.

    The head axis is an axis like others for PyTorch: only with `enable_gqa` do several query heads
    share one of key.
    """
    q, k, v = query.shape, key.shape, value.shape
    if enable_gqa and min(len(q), len(k), len(v)) < 3:
        raise ValueError(
            "query, key, value: expected at least 3 axes (heads, rows, dim) with enable_gqa, got "
            f"{len(q)}, {len(k)} and {len(v)}"
        )
    if min(len(q), len(k), len(v)) < 2:
        raise ValueError(
            "query, key, value: expected at least 2 axes (rows, dim), got "
            f"{len(q)}, {len(k)} and {len(v)}"
        )
    # key and value of one head: all query heads share it, which the kernels know how to do
    is_grouped = enable_gqa or (min(len(q), len(k), len(v)) > 2 and k[-3] == 1 and v[-3] == 1)
    n_own = 3 if is_grouped else 2
    if q[:-n_own] == k[:-n_own] == v[:-n_own]:
        return query, key, value
    lead = _common(q[:-n_own], k[:-n_own], v[:-n_own], not is_grouped)
    return (
        query.expand(*lead, *q[-n_own:]),
        key.expand(*lead, *k[-n_own:]),
        value.expand(*lead, *v[-n_own:]),
    )


def _common(q: tuple, k: tuple, v: tuple, has_heads: bool) -> tuple:
    """The sizes that these broadcast to."""
    common: list = []
    for axis in range(1, max(len(q), len(k), len(v)) + 1):
        size = 1
        for name, lead in (("query", q), ("key", k), ("value", v)):
            n = lead[-axis] if axis <= len(lead) else 1
            if size == 1:
                size = n
            elif n != 1 and n != size:
                heads = has_heads and axis == 1
                raise ValueError(
                    f"{name}: expected {size} or 1 {'heads' if heads else 'entries'} along axis "
                    f"{-axis - (2 if has_heads else 3)} to match the others, got {n}"
                    + (" (heads share keys with enable_gqa=True only)" if heads else "")
                )
        common.insert(0, size)
    return tuple(common)


def keeps_order(query: Tensor, value: Tensor) -> bool:
    """Whether the result lies in memory as the query does: PyTorch's kernel has it so."""
    return query.dim() == 4 and value.shape[-1] == query.shape[-1] and not query.is_contiguous()


def empty_result(query: Tensor, value: Tensor) -> Tensor:
    """What the result will be, without numbers."""
    if keeps_order(query, value):
        return torch.empty_like(query)
    return query.new_empty((*query.shape[:-1], value.shape[-1]))
