# SPDX-License-Identifier: MIT
"""The options of a call: what each may be, and the one form in which the backends see it.

For ``_validate``: each function takes one argument, names it in its message, and returns its final
form. Query, key, value and the arrays of scores are ``_check_arrays``'.
"""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np

from ._check_arrays import (
    FLOAT32,
    FLOAT64,
    INT64,
    LARGEST,
    as_array,
    broadcast_to,
    float_dtype,
    ndarray,
    saturated,
)

MAX_THREADS = 1024
FAR = 1 << 60  # beyond any position; sums of a few such numbers still fit int64
_SMALLEST = {FLOAT32: float(np.finfo(np.float32).tiny), FLOAT64: float(np.finfo(np.float64).tiny)}


def layout(layout: Any) -> bool:
    """Whether the heads come after the rows."""
    if not isinstance(layout, str):
        raise TypeError(f"layout: expected 'bhsd' or 'bshd', got {type(layout).__name__}")
    if layout not in ("bhsd", "bshd"):
        raise ValueError(f"layout: expected 'bhsd' or 'bshd', got {layout!r}")
    return layout == "bshd"


def flag(x: Any, name: str) -> bool:
    """0 and 1 will do; arrays and what else has a truth value are mistakes."""
    if isinstance(x, np.bool_) or (isinstance(x, ndarray) and x.ndim == 0 and x.dtype.kind == "b"):
        return bool(x)
    if isinstance(x, numbers.Integral) and x in (0, 1):
        return x == 1
    raise TypeError(f"{name}: expected True or False, got {type(x).__name__}")


def real(x: Any, name: str) -> float:
    """A finite real number, from Python, NumPy or an array without axes."""
    if isinstance(x, (ndarray, np.generic)):
        a = as_array(x, name)
        if a.ndim != 0:
            raise ValueError(f"{name}: expected a single number, got an array of shape {a.shape}")
        if a.dtype.kind not in "fiu" and float_dtype(a.dtype) is None:
            raise TypeError(f"{name}: expected a real number, got dtype {a.dtype}")
    elif not isinstance(x, numbers.Real) or isinstance(x, bool):
        raise TypeError(f"{name}: expected a real number, got {type(x).__name__}")
    try:
        number = float(x)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name}: expected a finite number, got {str(x):.40}")
    return number


def softcap(x: Any, acc: np.dtype) -> float:
    """0 for off; caps beyond the float range of the scores are moved to where they do the same."""
    softcap = real(x, "softcap")
    if softcap < 0.0:
        raise ValueError(f"softcap: expected a number of at least 0, or None, got {softcap}")
    if softcap == 0.0 or softcap > LARGEST[acc]:
        return 0.0
    return max(softcap, _SMALLEST[acc])


def integer(x: Any, name: str) -> int:
    if isinstance(x, (bool, np.bool_)) or (isinstance(x, ndarray) and x.dtype.kind not in "iu"):
        what = f"dtype {x.dtype}" if isinstance(x, ndarray) else type(x).__name__
        raise TypeError(f"{name}: expected an integer, got {what}")
    try:
        return operator.index(x)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {type(x).__name__}") from None


def integers(x: Any, name: str) -> ndarray:
    """An array of integers, of any shape."""
    a = as_array(x, name)
    if a.size == 0 and isinstance(x, (list, tuple)):
        a = a.astype(INT64)  # NumPy takes an empty list for floats
    if a.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got dtype {a.dtype}")
    return a


def window(window: Any) -> tuple:
    """(left, right), both -1 or a number of keys."""
    if isinstance(window, (str, bytes, dict, set)):
        raise TypeError(f"window: expected (left, right) or an int, got {type(window).__name__}")
    if isinstance(window, (tuple, list)) or (isinstance(window, ndarray) and window.ndim > 0):
        sides = list(window)
        if len(sides) != 2:
            raise ValueError(f"window: expected (left, right), got {len(sides)} numbers")
    else:
        sides = [window, window]
    for n, side in enumerate(sides):
        side = -1 if side is None else integer(side, "window")
        if side < -1:
            raise ValueError(f"window: expected counts of at least 0, or -1 or None, got {side}")
        sides[n] = min(side, FAR)
    return sides[0], sides[1]


def per_entry(x: Any, name: str, lead: tuple, expected: str) -> Any:
    """Integers, one a batch entry: a Python int for all, or an array that broadcast to `lead`.

    Arrays come back in their own integer dtype and are always fresh memory: what another thread
    does to the caller's array during the call has no effect.
    """
    if isinstance(x, numbers.Integral) and not isinstance(x, bool):
        return int(x)
    a = as_array(x, name)
    if a.size == 0 and isinstance(x, (list, tuple)):
        a = a.astype(INT64)  # NumPy takes an empty list for floats
    if a.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected {expected}, got dtype {a.dtype}")
    if a.ndim == 0:
        return int(a)
    fits = a.ndim <= len(lead)
    for axis in range(-1, -a.ndim - 1, -1):
        fits = fits and a.shape[axis] in (1, lead[axis])
    if not fits:
        raise ValueError(
            f"{name}: expected {expected}, of a shape that broadcasts to the leading axes {lead}, "
            f"got shape {a.shape}"
        )
    return np.array(broadcast_to(a, lead), dtype=a.dtype.newbyteorder("="), order="C").reshape(-1)


def counts(x: Any, name: str, lead: tuple, most: int, what: str) -> ndarray:
    """Numbers of 0 to `most`, one a batch entry; `what` says what `most` is."""
    numbers = per_entry(x, name, lead, "integers")
    if isinstance(numbers, int):
        low = high = numbers
    else:
        low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if low < 0 or high > most:
        wrong = low if low < 0 else high
        raise ValueError(f"{name}: expected 0 to {most}, {what}, got {wrong}")
    if isinstance(numbers, int):
        return np.full(math.prod(lead), numbers, INT64)
    return numbers.astype(INT64, copy=False)


def kv_lengths(x: Any, lead: tuple, n_keys: int) -> ndarray:
    return counts(x, "kv_lengths", lead, n_keys, "the number of keys")


def q_offset(x: Any, lead: tuple, n_queries: int, n_keys: int, kv_lengths: Any) -> Any:
    if isinstance(x, str):
        if x != "lower_right":
            raise ValueError(f"q_offset: expected integers or 'lower_right', got {x!r}")
        return (n_keys if kv_lengths is None else kv_lengths) - n_queries
    offsets = per_entry(x, "q_offset", lead, "integers or 'lower_right'")
    if isinstance(offsets, int):
        return max(-FAR, min(offsets, FAR))
    if offsets.dtype.itemsize == 8:  # of narrower ones none is far, and uint64 may exceed int64
        np.minimum(offsets, offsets.dtype.type(FAR), out=offsets)
        if offsets.dtype.kind == "i":
            np.maximum(offsets, offsets.dtype.type(-FAR), out=offsets)
    return offsets.astype(INT64, copy=False)


def floats(x: Any, name: str, acc: np.dtype) -> ndarray:
    """A small float array in the dtype of the scores, compact and in fresh memory."""
    a = as_array(x, name)
    if a.dtype is acc:
        return np.array(a, order="C")
    if float_dtype(a.dtype) is None and a.dtype.type is not np.longdouble:
        raise TypeError(f"{name}: expected dtype float, got {a.dtype}")
    return np.asarray(saturated(a, acc), order="C")


def parameter(x: Any, name: str, acc: np.dtype) -> ndarray:
    """The same for arrays that may be large: the caller's own where that will do."""
    a = x if type(x) is ndarray else as_array(x, name)
    if a.dtype is acc and a.flags.c_contiguous and a.flags.aligned:
        return a
    return floats(a, name, acc)


def weight(x: Any, name: str, of: str, size: int, acc: np.dtype) -> ndarray:
    """A matrix that rows of `of` can be multiplied with."""
    weight = parameter(x, name, acc)
    if weight.ndim != 2 or weight.shape[0] != size:
        raise ValueError(
            f"{name}: expected 2 axes, the first of size {size} to match the last axis of {of}, "
            f"got shape {weight.shape}"
        )
    return weight


def slopes(x: Any, lead: tuple, n_q_heads: int, acc: np.dtype) -> ndarray:
    slopes = floats(x, "alibi_slopes", acc)
    shape = slopes.shape
    fits = 1 <= slopes.ndim <= len(lead) + 1 and shape[-1] == n_q_heads
    for axis in range(-1, -slopes.ndim, -1):
        fits = fits and shape[axis - 1] in (1, lead[axis])
    if not fits:
        batched = f" or {(*lead, n_q_heads)}" if lead else ""
        raise ValueError(
            f"alibi_slopes: expected shape {(n_q_heads,)}{batched}, one a head, got {shape}"
        )
    finite = np.isfinite(slopes)
    if not finite.all():
        raise ValueError(f"alibi_slopes: expected finite numbers, got {slopes[~finite][0]}")
    if slopes.ndim == 1:
        return slopes
    every = broadcast_to(slopes, (*lead, n_q_heads))
    return np.ascontiguousarray(every).reshape(math.prod(lead), n_q_heads)


def sinks(x: Any, n_q_heads: int, acc: np.dtype) -> ndarray:
    sinks = floats(x, "sinks", acc)
    if sinks.shape != (n_q_heads,):
        raise ValueError(f"sinks: expected shape {(n_q_heads,)}, one a head, got {sinks.shape}")
    wrong = np.isnan(sinks) | (sinks == math.inf)
    if wrong.any():
        raise ValueError(f"sinks: expected finite numbers or -inf, got {sinks[wrong][0]}")
    return sinks


def thread_count(n: Any) -> int:
    """Check a number of threads."""
    n = integer(n, "n")
    if n < 1 or n > MAX_THREADS:
        raise ValueError(f"n: expected 1 to {MAX_THREADS} threads, got {n}")
    return n
