# SPDX-License-Identifier: MIT
"""What may stand for an array, and what shapes and dtypes must be to each other.

For ``_validate`` and ``_check_options``: each function checks one thing, names it in its message,
and copies only where no kernel could read the memory in place. It knows no option of attention.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ._bfloat16 import BFLOAT16, bfloat16, widened

ndarray = np.ndarray
broadcast_to = np.broadcast_to

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
INT64 = np.dtype(np.int64)
DTYPES = "float16, bfloat16, float32 or float64"
LARGEST = {FLOAT32: float(np.finfo(np.float32).max), FLOAT64: float(np.finfo(np.float64).max)}
_FLOATS = {kind: np.dtype(kind) for kind in (np.float32, np.float64, np.float16)}
_FLOATS[bfloat16] = BFLOAT16


def as_array(x: Any, name: str) -> ndarray:
    """Any array-like as a plain ndarray; the memory is shared where NumPy can share it."""
    # nobody has a masked array unless numpy.ma has been imported
    ma = sys.modules.get("numpy.ma")
    if ma is not None and isinstance(x, ma.MaskedArray):
        raise TypeError(
            f"{name}: expected a plain array, got a masked array, whose mask would be ignored"
        )
    try:
        return np.asarray(x)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: expected an array, got {type(x).__name__}: {error}") from error


def float_dtype(dtype: np.dtype) -> Any:
    """The native form of one of the four dtypes that fastattn computes with, else None."""
    native = _FLOATS.get(dtype.type)
    # bfloat16 is an extension type of any package: known by its name, never by its bytes
    if native is None and dtype.kind == "V" and dtype.itemsize == 2 and dtype.name == "bfloat16":
        native = np.dtype(dtype.type)
    return native


def shared_dtype(q: ndarray, k: ndarray, v: ndarray) -> Any:
    q_dtype, k_dtype, v_dtype = float_dtype(q.dtype), float_dtype(k.dtype), float_dtype(v.dtype)
    for name, array, dtype in (("query", q, q_dtype), ("key", k, k_dtype), ("value", v, v_dtype)):
        if dtype is None:
            raise TypeError(f"{name}: expected dtype {DTYPES}, got {array.dtype}")
    if q_dtype != k_dtype or q_dtype != v_dtype:
        raise TypeError(
            "query, key, value: expected one dtype for all three, "
            f"got {q_dtype}, {k_dtype} and {v_dtype}"
        )
    return q_dtype


def heads_first(a: ndarray, layout: str) -> ndarray:
    """As (..., heads, rows, dim), whatever the layout and without a head axis, too."""
    if a.ndim == 2:
        return a[None]
    return a.swapaxes(-3, -2) if layout == "bshd" else a


def is_walkable(a: ndarray) -> bool:
    """Whether a kernel can walk it: native, aligned, steps that are whole elements."""
    dtype = a.dtype
    if not dtype.isnative or not a.flags.aligned:
        return False
    for n, stride in zip(a.shape, a.strides):
        if n > 1 and stride % dtype.itemsize != 0:
            return False
    return True


def is_in_place(a: ndarray) -> bool:
    """Whether a kernel can take its rows as they lie."""
    return is_walkable(a) and (a.shape[-1] <= 1 or a.strides[-1] == a.itemsize)


def readable(a: ndarray, dtype: np.dtype) -> ndarray:
    return a if is_in_place(a) else copy(a, dtype, a.ndim - 1)


def copy(a: ndarray, dtype: np.dtype, n_broadcast_axes: int) -> ndarray:
    """A native, compact copy; of the first axes, those that repeat one element still do."""
    once = [slice(None)] * a.ndim
    for axis in range(n_broadcast_axes):
        if a.strides[axis] == 0 and a.shape[axis] > 1:
            once[axis] = slice(0, 1)
    copy = np.array(a[tuple(once)], dtype=dtype, order="C")
    return copy if copy.shape == a.shape else broadcast_to(copy, a.shape)


def saturated(a: ndarray, dtype: np.dtype) -> ndarray:
    """The values in another float dtype: infinities stay, finite numbers stay finite."""
    a = widened(a)
    with np.errstate(all="ignore"):
        converted = a.astype(dtype)
        overflow = np.isinf(converted) & np.isfinite(a)
        if overflow.any():
            converted[overflow] = np.copysign(LARGEST[dtype], converted[overflow])
        np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays behind
    return converted


def empty(shape: tuple, dtype: np.dtype) -> ndarray:
    try:
        return np.empty(shape, dtype)
    except ValueError:  # what NumPy raises for more bytes than an address can hold
        raise MemoryError(f"cannot allocate an array of shape {shape} and dtype {dtype}") from None


def check_ranks(q: ndarray, k: ndarray, v: ndarray) -> None:
    if q.ndim < 2:
        raise ValueError(f"query: expected at least 2 axes (rows, dim), got shape {q.shape}")
    for name, array in (("key", k), ("value", v)):
        if array.ndim != q.ndim:
            raise ValueError(f"{name}: expected {q.ndim} axes to match query, got {array.ndim}")


def check_sizes(q_shape: tuple, k_shape: tuple, v_shape: tuple) -> None:
    if k_shape[-1] != q_shape[-1]:
        raise ValueError(f"key: expected head size {q_shape[-1]} to match query, got {k_shape[-1]}")
    if v_shape[-3] != k_shape[-3]:
        raise ValueError(f"value: expected {k_shape[-3]} heads to match key, got {v_shape[-3]}")
    if v_shape[-2] != k_shape[-2]:
        raise ValueError(f"value: expected {k_shape[-2]} keys to match key, got {v_shape[-2]}")


def shared_lead(q_lead: tuple, k_lead: tuple, v_lead: tuple) -> tuple:
    """The common leading axes; query, key and value have equally many."""
    shared = []
    for axis, sizes in enumerate(zip(q_lead, k_lead, v_lead)):
        longest = 1
        for name, n in zip(("query", "key", "value"), sizes):
            if longest == 1:
                longest = n
            elif n != 1 and n != longest:
                raise ValueError(
                    f"{name}: expected {longest} or 1 entries along leading axis {axis} to match "
                    f"the others, got {n}"
                )
        shared.append(longest)
    return tuple(shared)


def refuse_heads(n_q_heads: int, n_kv_heads: int) -> None:
    if n_q_heads != 0:  # no query heads: an empty result, whatever the key has
        raise ValueError(
            f"key: expected a number of heads that divides the {n_q_heads} of query, "
            f"got {n_kv_heads}"
        )


def score_term(x: Any, name: str, score_shape: tuple, rank: int, takes_bool: bool) -> ndarray:
    """A mask or bias as a view (..., heads, queries, keys)."""
    a = x if type(x) is ndarray else as_array(x, name)
    dtype = a.dtype
    native = float_dtype(dtype)
    if native is None:
        if takes_bool and dtype.kind == "b":
            native = dtype
        elif dtype.type is np.longdouble:
            a, native = saturated(a, FLOAT64), FLOAT64
        else:
            expected = "bool (True: may attend) or float (added)" if takes_bool else "float"
            raise TypeError(f"{name}: expected dtype {expected}, got {dtype}")
    wanted = score_shape if rank > 2 else score_shape[1:]
    shape = a.shape
    fits = a.ndim <= len(wanted)
    for axis in range(-1, -a.ndim - 1, -1):
        fits = fits and shape[axis] in (1, wanted[axis])
    if not fits:
        axes = "(..., heads, queries, keys)" if rank > 2 else "(queries, keys)"
        raise ValueError(
            f"{name}: expected a shape that broadcasts to {wanted} {axes}, got {shape}"
        )
    if not is_walkable(a):
        a = copy(a, native, a.ndim)
    return a if shape == score_shape else broadcast_to(a, score_shape)


def caller_out(out: Any, shape: tuple, dtype: np.dtype) -> ndarray:
    """The caller's own result array, checked, as a plain ndarray."""
    if not isinstance(out, ndarray):
        raise TypeError(f"out: expected a NumPy array, got {type(out).__name__}")
    array = as_array(out, "out")
    if float_dtype(array.dtype) != dtype:
        raise TypeError(f"out: expected dtype {dtype} to match query, got {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"out: expected shape {shape}, got {array.shape}")
    if not array.flags.writeable:
        raise ValueError("out: expected a writable array, got a read-only one")
    if overlaps_itself(array):
        raise ValueError(
            "out: expected every element to have memory of its own, got an array that overlaps "
            f"itself (shape {array.shape}, strides {array.strides})"
        )
    return array


def overlaps_itself(a: ndarray) -> bool:
    """Whether two elements share a byte."""
    if a.size == 0 or a.flags.forc:
        return False
    axes = sorted((abs(stride), n) for n, stride in zip(a.shape, a.strides) if n > 1)
    extent = a.itemsize
    nested = True  # every axis steps over all that the axes with smaller steps span
    for stride, n in axes:
        if stride == 0:
            return True
        nested = nested and stride >= extent
        extent += stride * (n - 1)
    if nested:
        return False
    # only as_strided makes such arrays: look at every address
    offsets = np.zeros(1, INT64)
    for stride, n in axes:
        offsets = (offsets[:, None] + stride * np.arange(n)).reshape(-1)
    offsets.sort()
    return bool((np.diff(offsets) < a.itemsize).any())


def is_writable_in_place(view: ndarray, inputs: tuple) -> bool:
    """Whether a kernel may write there while it reads the inputs."""
    if not is_in_place(view):
        return False
    for array in inputs:
        if array is not None and np.may_share_memory(view, array):
            return False
    return True
