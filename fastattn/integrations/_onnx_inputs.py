# SPDX-License-Identifier: MIT
"""What the inputs and attributes of ONNX's ``Attention`` must be, by the opset of the model.

For ``integrations.onnx``: each function checks one thing and names it as the operator does. It
computes nothing and does not import onnx.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _check_arrays as arrays

__all__ = ["by_heads", "check_sizes", "dtypes", "lengths", "mask", "pasts", "window"]

_DOUBLE = 11  # of softmax_precision, which has the numbers of onnx.TensorProto
_PRECISIONS = (1, 10, _DOUBLE, 16)


def window(left: Any, right: Any, opset: int) -> tuple[int, int] | None:
    """(left, right), or None where both sides are open."""
    sides = []
    for name, side in (("left_window_size", left), ("right_window_size", right)):
        side = -1 if side is None else side
        if side < -1:
            raise ValueError(f"{name}: expected -1 or a number of keys, got {side}")
        if side != -1 and opset < 25:
            raise ValueError(f"{name}: expected opset 25 or newer, got opset {opset}")
        sides.append(side)
    return None if sides == [-1, -1] else (sides[0], sides[1])


def by_heads(
    Q: Any, K: Any, V: Any, q_num_heads: Any, kv_num_heads: Any, opset: int
) -> list[np.ndarray]:
    """Q, K and V as (batch, heads, rows, size): views of what was given."""
    views: list[np.ndarray] = []
    rank = 0
    for name, x, attribute, n_heads in (
        ("Q", Q, "q_num_heads", q_num_heads),
        ("K", K, "kv_num_heads", kv_num_heads),
        ("V", V, "kv_num_heads", kv_num_heads),
    ):
        x = arrays.as_array(x, name)
        if not views:
            rank = x.ndim
            if rank not in (3, 4):
                raise ValueError(f"Q: expected 3 or 4 axes, got shape {x.shape}")
        elif x.ndim != rank:
            raise ValueError(f"{name}: expected {rank} axes to match Q, got shape {x.shape}")
        if rank == 3:
            x = _split(x, name, attribute, n_heads)
        elif n_heads is not None:
            if opset >= 25:
                raise ValueError(f"{attribute}: expected none, as {name} has 4 axes, got {n_heads}")
            if n_heads != x.shape[1]:
                raise ValueError(
                    f"{attribute}: expected {x.shape[1]}, the heads of {name}, got {n_heads}"
                )
        views.append(x)
    return views


def _split(x: np.ndarray, name: str, attribute: str, n_heads: Any) -> np.ndarray:
    """(batch, rows, heads * size) as (batch, heads, rows, size)."""
    if n_heads is None:
        raise ValueError(f"{attribute}: expected a number, as {name} has 3 axes, got none")
    n_entries, n_rows, width = x.shape
    if n_heads < 1 or width % n_heads != 0:
        raise ValueError(
            f"{attribute}: expected a number that divides the last axis of {name}, {width}, "
            f"got {n_heads}"
        )
    return x.reshape(n_entries, n_rows, n_heads, width // n_heads).swapaxes(1, 2)


def dtypes(query: np.ndarray, key: np.ndarray, value: np.ndarray, precision: Any) -> tuple:
    """The dtype of Y, and the one that all is computed in."""
    if precision is not None and precision not in _PRECISIONS:
        raise ValueError(
            "softmax_precision: expected 1 (FLOAT), 10 (FLOAT16), 11 (DOUBLE) or 16 (BFLOAT16), "
            f"got {precision}"
        )
    found = []
    for name, x in (("Q", query), ("K", key), ("V", value)):
        dtype = arrays.float_dtype(x.dtype)
        if dtype is None:
            raise TypeError(f"{name}: expected dtype {arrays.DTYPES}, got {x.dtype}")
        found.append(dtype)
    own, of_key, of_value = found
    if of_key != own:
        raise TypeError(f"K: expected dtype {own} to match Q, got {of_key}")
    real = own
    if precision == _DOUBLE:
        real = arrays.FLOAT64
    elif of_value != own:  # two kinds of 16 bits have float32 in common
        real = arrays.FLOAT64 if arrays.FLOAT64 in found else arrays.FLOAT32
    return own, real


def check_sizes(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> None:
    """Whether (batch, heads, rows, size) of the three fit each other."""
    for name, x in (("K", key), ("V", value)):
        if len(x) != len(query):
            raise ValueError(f"{name}: expected batch size {len(query)} to match Q, got {len(x)}")
    if key.shape[3] != query.shape[3]:
        raise ValueError(f"K: expected head size {query.shape[3]} to match Q, got {key.shape[3]}")
    for axis, what in ((1, "heads"), (2, "keys")):
        if value.shape[axis] != key.shape[axis]:
            raise ValueError(
                f"V: expected {key.shape[axis]} {what} to match K, got {value.shape[axis]}"
            )
    n_heads, n_kv_heads = query.shape[1], key.shape[1]
    if n_heads != 0 and (n_kv_heads == 0 or n_heads % n_kv_heads != 0):
        raise ValueError(
            f"K: expected a number of heads that divides the {n_heads} of Q, got {n_kv_heads}"
        )


def pasts(
    past_key: Any, past_value: Any, key: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The two, with the dtype and all axes but the third of key and value."""
    if past_key is None:
        raise ValueError("past_key: expected an array beside past_value, got none")
    if past_value is None:
        raise ValueError("past_value: expected an array beside past_key, got none")
    n_past: Any = "past"
    checked = []
    for name, of, past, x in (
        ("past_key", "K", past_key, key),
        ("past_value", "V", past_value, value),
    ):
        past = arrays.as_array(past, name)
        if past.dtype != x.dtype:
            raise TypeError(f"{name}: expected dtype {x.dtype} to match {of}, got {past.dtype}")
        if n_past == "past" and past.ndim == 4:
            n_past = past.shape[2]
        n_entries, n_heads, _, size = x.shape
        if past.shape != (n_entries, n_heads, n_past, size):
            raise ValueError(
                f"{name}: expected shape ({n_entries}, {n_heads}, {n_past}, {size}), "
                f"got {past.shape}"
            )
        checked.append(past)
    return checked[0], checked[1]


def lengths(nonpad: Any, n_entries: int, n_keys: int, opset: int) -> np.ndarray:
    """How many keys of each entry are real, as int64."""
    if opset < 24:
        raise ValueError(f"nonpad_kv_seqlen: expected opset 24 or newer, got opset {opset}")
    nonpad = arrays.as_array(nonpad, "nonpad_kv_seqlen")
    if nonpad.dtype.kind not in "iu":
        raise TypeError(f"nonpad_kv_seqlen: expected integers, got dtype {nonpad.dtype}")
    if nonpad.shape != (n_entries,):
        raise ValueError(
            f"nonpad_kv_seqlen: expected shape {(n_entries,)}, one number for each entry of the "
            f"batch, got {nonpad.shape}"
        )
    wrong = (nonpad < 0) | (nonpad > n_keys)
    if wrong.any():
        raise ValueError(
            f"nonpad_kv_seqlen: expected 0 to {n_keys}, the number of keys, got {nonpad[wrong][0]}"
        )
    return nonpad.astype(np.int64)


def mask(x: Any, real: np.dtype) -> np.ndarray:
    """bool or float: integers are added too, so they become what scores are."""
    x = arrays.as_array(x, "attn_mask")
    if x.dtype.kind not in "iu":
        return x
    return x.astype(arrays.FLOAT64 if real == arrays.FLOAT64 else arrays.FLOAT32)
