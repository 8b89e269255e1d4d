# SPDX-License-Identifier: MIT
"""Every check of every argument, and every message: a call that leaves here is right.

For the public functions; the backends trust what it returns and check nothing again.
It computes no attention, and copies an array only where no kernel could read it in place.
"""

from __future__ import annotations

import math
import numbers
import operator
import sys
from typing import Any

import numpy as np

ndarray = np.ndarray
empty = np.empty
broadcast_to = np.broadcast_to

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
INT64 = np.dtype(np.int64)
_FLOATS = {kind: np.dtype(kind) for kind in (np.float32, np.float64, np.float16)}
_LARGEST = {FLOAT32: float(np.finfo(np.float32).max), FLOAT64: float(np.finfo(np.float64).max)}
_SMALLEST = {FLOAT32: float(np.finfo(np.float32).tiny), FLOAT64: float(np.finfo(np.float64).tiny)}
_DTYPES = "float16, bfloat16, float32 or float64"

MAX_THREADS = 1024
_FAR = 1 << 60  # beyond any position; sums of a few such numbers still fit int64
_READABLE = 0x101  # ndarray.flags.num: C-contiguous and aligned


class SdpaCall:
    """One checked call of scaled dot-product attention, as the backends see it.

    Every array has the leading axes of the result (broadcast axes have stride 0) and at least
    three axes: ``query (..., heads, queries, dim)``, ``key`` and ``value (..., kv_heads, keys,
    dim)``, ``out``; ``attn_mask``, ``bias`` and ``weights (..., heads, queries, keys)``, ``lse
    (..., heads, queries)``. query, key, value and out are native, aligned, and step by one
    element along their last axis (an array without elements may have any strides). ``q_offset``
    is an int or one int64 a batch entry, ``kv_lengths`` None or one int64 a batch entry;
    ``slopes`` (heads,) or (entries, heads) and ``sinks`` (heads,) have the dtype of the scores.
    ``left`` and ``right`` are -1 when unbounded.
    """

    __slots__ = (
        "query",
        "key",
        "value",
        "out",
        "lse",
        "weights",
        "attn_mask",
        "bias",
        "q_offset",
        "kv_lengths",
        "slopes",
        "sinks",
        "scale",
        "softcap",
        "is_causal",
        "left",
        "right",
        "dtype",
        "is_callers_out",  # out is the caller's own memory, not fresh
        "_result",  # what the caller gets: out in the caller's layout and rank
        "_target",  # None, or the caller's own out, which must be copied to
        "_is_flat",  # the caller's arrays have neither batch nor head axes
    )

    query: ndarray
    key: ndarray
    value: ndarray
    out: ndarray
    lse: ndarray | None
    weights: ndarray | None
    attn_mask: ndarray | None
    bias: ndarray | None
    q_offset: int | ndarray
    kv_lengths: ndarray | None
    slopes: ndarray | None
    sinks: ndarray | None
    scale: float
    softcap: float
    is_causal: bool
    left: int
    right: int
    dtype: np.dtype
    is_callers_out: bool
    _result: ndarray
    _target: ndarray | None
    _is_flat: bool

    def finish(self) -> Any:
        """What the public function returns, once ``out`` is computed."""
        if self._target is not None:
            np.copyto(self._target, self.out)
        lse = self.lse
        weights = self.weights
        if lse is None and weights is None:
            return self._result
        results = [self._result]
        if lse is not None:
            results.append(lse[0] if self._is_flat else lse)
        if weights is not None:
            results.append(weights[0] if self._is_flat else weights)
        return tuple(results)


def sdpa(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    bias: Any,
    is_causal: Any,
    scale: Any,
    q_offset: Any,
    kv_lengths: Any,
    window: Any,
    softcap: Any,
    alibi_slopes: Any,
    sinks: Any,
    layout: Any,
    out: Any,
    return_lse: Any,
    return_weights: Any,
) -> SdpaCall:
    """Check the arguments of `scaled_dot_product_attention` and make them final.

    Plain calls take a straight path: whatever is unusual is looked at in a function of its own.
    """
    # what they are
    q = query if type(query) is ndarray else _as_array(query, "query")
    k = key if type(key) is ndarray else _as_array(key, "key")
    v = value if type(value) is ndarray else _as_array(value, "value")
    q_dtype = q.dtype
    k_dtype = k.dtype
    v_dtype = v.dtype
    dtype = acc = FLOAT32
    if q_dtype is not FLOAT32 or k_dtype is not FLOAT32 or v_dtype is not FLOAT32:
        dtype = _shared_dtype(q, k, v)
        if dtype is FLOAT64:
            acc = FLOAT64
    if is_causal is not False and is_causal is not True:
        is_causal = _flag(is_causal, "is_causal")
    if return_lse is not False and return_lse is not True:
        return_lse = _flag(return_lse, "return_lse")
    if return_weights is not False and return_weights is not True:
        return_weights = _flag(return_weights, "return_weights")
    heads_last = False
    if type(layout) is not str or layout != "bhsd":
        heads_last = _layout(layout)

    # shapes: from here on (..., heads, rows, dim)
    rank = q.ndim
    if rank < 4 or k.ndim != rank or v.ndim != rank:
        _check_ranks(q, k, v)
    if rank == 2:
        q, k, v = q[None], k[None], v[None]
        heads_last = False
    elif heads_last:
        q, k, v = q.swapaxes(-3, -2), k.swapaxes(-3, -2), v.swapaxes(-3, -2)
    q_shape = q.shape
    k_shape = k.shape
    v_shape = v.shape
    lead = q_shape[:-3]
    n_q_heads, n_queries, size = q_shape[-3:]
    n_kv_heads, n_keys, k_size = k_shape[-3:]
    v_size = v_shape[-1]
    is_broadcast = False
    if k_size != size or k_shape[:-3] != lead or v_shape[:-1] != k_shape[:-1]:
        _check_sizes(q_shape, k_shape, v_shape)
        lead = _shared_lead(lead, k_shape[:-3], v_shape[:-3])
        is_broadcast = True
    if n_q_heads != n_kv_heads and (n_kv_heads == 0 or n_q_heads % n_kv_heads != 0):
        _refuse_heads(n_q_heads, n_kv_heads)
    score_shape = (*lead, n_q_heads, n_queries, n_keys)

    # options
    if scale is not None:
        scale = _real(scale, "scale")
        if scale > _LARGEST[acc] or scale < -_LARGEST[acc]:
            scale = math.copysign(_LARGEST[acc], scale)
    elif size != 0:
        scale = 1.0 / math.sqrt(size)
    else:
        raise ValueError("query: expected a head size above 0, or a scale to be given, got size 0")
    if softcap is None:
        softcap = 0.0
    elif type(softcap) is not float or softcap != 0.0:
        softcap = _softcap(softcap, acc)
    left = right = -1
    if window is not None:
        left, right = _window(window)
    if kv_lengths is not None:
        kv_lengths = _kv_lengths(kv_lengths, lead, n_keys)
    if type(q_offset) is not int or q_offset > _FAR or q_offset < -_FAR:
        q_offset = _q_offset(q_offset, lead, n_queries, n_keys, kv_lengths)
    if attn_mask is not None:
        attn_mask = _score_term(attn_mask, "attn_mask", score_shape, rank, True)
    if bias is not None:
        bias = _score_term(bias, "bias", score_shape, rank, False)
    if alibi_slopes is not None:
        alibi_slopes = _slopes(alibi_slopes, lead, n_q_heads, acc)
    if sinks is not None:
        sinks = _sinks(sinks, n_q_heads, acc)

    # out: an array of the caller's layout and rank, and the view of it that is computed
    result_shape = (*lead, n_q_heads, n_queries, v_size)
    if heads_last:
        result_shape = (*lead, n_queries, n_q_heads, v_size)
    elif rank == 2:
        result_shape = (n_queries, v_size)
    if out is None:
        result = view = _empty(result_shape, dtype)
    else:
        result = out
        view = _caller_out(out, result_shape, dtype)
    if heads_last:
        view = view.swapaxes(-3, -2)
    elif rank == 2:
        view = view[None]

    # what no kernel could read is copied, before it is broadcast
    if q.flags.num & _READABLE != _READABLE or q_dtype is not FLOAT32:
        q = _readable(q, dtype)
    if k.flags.num & _READABLE != _READABLE or k_dtype is not FLOAT32:
        k = _readable(k, dtype)
    if v.flags.num & _READABLE != _READABLE or v_dtype is not FLOAT32:
        v = _readable(v, dtype)
    if is_broadcast:
        q = broadcast_to(q, lead + q_shape[-3:])
        k = broadcast_to(k, lead + k_shape[-3:])
        v = broadcast_to(v, lead + v_shape[-3:])

    target = None
    is_callers_out = out is not None
    if is_callers_out and not _is_writable_in_place(view, (q, k, v, attn_mask, bias)):
        is_callers_out = False
        target = view
        view = _empty(view.shape, dtype)

    call = SdpaCall()
    call.query = q
    call.key = k
    call.value = v
    call.out = view
    call.lse = _empty(score_shape[:-1], acc) if return_lse else None
    call.weights = _empty(score_shape, dtype) if return_weights else None
    call.attn_mask = attn_mask
    call.bias = bias
    call.q_offset = q_offset
    call.kv_lengths = kv_lengths
    call.slopes = alibi_slopes
    call.sinks = sinks
    call.scale = scale
    call.softcap = softcap
    call.is_causal = is_causal
    call.left = left
    call.right = right
    call.dtype = dtype
    call.is_callers_out = is_callers_out
    call._result = result
    call._target = target
    call._is_flat = rank == 2
    return call


def merge(outs: Any, lses: Any) -> tuple:
    """Check the arguments of `merge_attention`: two lists of arrays, and the dtype of the outs."""
    arrays = _partials(outs, "outs")
    sums = _partials(lses, "lses")
    if len(arrays) == 0:
        raise ValueError("outs: expected at least one partial result, got none")
    if len(sums) != len(arrays):
        raise ValueError(f"lses: expected {len(arrays)} arrays to match outs, got {len(sums)}")
    shape = arrays[0].shape
    dtype = _float_dtype(arrays[0].dtype)
    for n, (array, total) in enumerate(zip(arrays, sums)):
        if _float_dtype(array.dtype) is None:
            raise TypeError(f"outs[{n}]: expected dtype {_DTYPES}, got {array.dtype}")
        if _float_dtype(array.dtype) != dtype:
            raise TypeError(
                f"outs[{n}]: expected dtype {dtype} to match outs[0], got {array.dtype}"
            )
        if _float_dtype(total.dtype) is None:
            raise TypeError(f"lses[{n}]: expected dtype {_DTYPES}, got {total.dtype}")
        if array.ndim == 0:
            raise ValueError(
                f"outs[{n}]: expected at least 1 axis (..., queries, dim), got shape ()"
            )
        if array.shape != shape:
            raise ValueError(
                f"outs[{n}]: expected shape {shape} to match outs[0], got {array.shape}"
            )
        if total.shape != shape[:-1]:
            raise ValueError(
                f"lses[{n}]: expected shape {shape[:-1]}, that of the outs without dim, "
                f"got {total.shape}"
            )
    return arrays, sums, dtype


def _partials(x: Any, name: str) -> list:
    """The arrays of a sequence, or those along the first axis of one array."""
    if isinstance(x, ndarray):
        x = _as_array(x, name)
    try:
        partials = list(x)
    except TypeError:
        raise TypeError(
            f"{name}: expected a sequence of arrays, or one array with the partial results along "
            f"its first axis, got {type(x).__name__}"
        ) from None
    return [_as_array(partial, f"{name}[{n}]") for n, partial in enumerate(partials)]


def thread_count(n: Any) -> int:
    """Check a number of threads."""
    n = _integer(n, "n")
    if n < 1 or n > MAX_THREADS:
        raise ValueError(f"n: expected 1 to {MAX_THREADS} threads, got {n}")
    return n


# ---------------------------------------------------------------------------------------------
# arrays


def _as_array(x: Any, name: str) -> ndarray:
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


def _float_dtype(dtype: np.dtype) -> Any:
    """The native form of one of the four dtypes that fastattn computes with, else None."""
    native = _FLOATS.get(dtype.type)
    # bfloat16 is an extension type of any package: known by its name, never by its bytes
    if native is None and dtype.kind == "V" and dtype.itemsize == 2 and dtype.name == "bfloat16":
        native = np.dtype(dtype.type)
    return native


def _shared_dtype(q: ndarray, k: ndarray, v: ndarray) -> Any:
    q_dtype, k_dtype, v_dtype = _float_dtype(q.dtype), _float_dtype(k.dtype), _float_dtype(v.dtype)
    for name, array, dtype in (("query", q, q_dtype), ("key", k, k_dtype), ("value", v, v_dtype)):
        if dtype is None:
            raise TypeError(f"{name}: expected dtype {_DTYPES}, got {array.dtype}")
    if q_dtype != k_dtype or q_dtype != v_dtype:
        raise TypeError(
            "query, key, value: expected one dtype for all three, "
            f"got {q_dtype}, {k_dtype} and {v_dtype}"
        )
    return q_dtype


def _is_walkable(a: ndarray) -> bool:
    """Whether a kernel can walk it: native, aligned, steps that are whole elements."""
    dtype = a.dtype
    if not dtype.isnative or not a.flags.aligned:
        return False
    for n, stride in zip(a.shape, a.strides):
        if n > 1 and stride % dtype.itemsize != 0:
            return False
    return True


def _is_in_place(a: ndarray) -> bool:
    """Whether a kernel can take its rows as they lie."""
    return _is_walkable(a) and (a.shape[-1] <= 1 or a.strides[-1] == a.itemsize)


def _readable(a: ndarray, dtype: np.dtype) -> ndarray:
    return a if _is_in_place(a) else _copy(a, dtype, a.ndim - 1)


def _copy(a: ndarray, dtype: np.dtype, n_broadcast_axes: int) -> ndarray:
    """A native, compact copy; of the first axes, those that repeat one element still do."""
    once = [slice(None)] * a.ndim
    for axis in range(n_broadcast_axes):
        if a.strides[axis] == 0 and a.shape[axis] > 1:
            once[axis] = slice(0, 1)
    copy = np.array(a[tuple(once)], dtype=dtype, order="C")
    return copy if copy.shape == a.shape else broadcast_to(copy, a.shape)


def _saturated(a: ndarray, dtype: np.dtype) -> ndarray:
    """The values in another float dtype: infinities stay, finite numbers stay finite."""
    with np.errstate(all="ignore"):
        converted = a.astype(dtype)
        overflow = np.isinf(converted) & np.isfinite(a)
        if overflow.any():
            converted[overflow] = np.copysign(_LARGEST[dtype], converted[overflow])
        np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays behind
    return converted


def _empty(shape: tuple, dtype: np.dtype) -> ndarray:
    try:
        return empty(shape, dtype)
    except ValueError:  # what NumPy raises for more bytes than an address can hold
        raise MemoryError(f"cannot allocate an array of shape {shape} and dtype {dtype}") from None


# ---------------------------------------------------------------------------------------------
# shapes and layouts


def _layout(layout: Any) -> bool:
    """Whether the heads come after the rows."""
    if not isinstance(layout, str):
        raise TypeError(f"layout: expected 'bhsd' or 'bshd', got {type(layout).__name__}")
    if layout not in ("bhsd", "bshd"):
        raise ValueError(f"layout: expected 'bhsd' or 'bshd', got {layout!r}")
    return layout == "bshd"


def _check_ranks(q: ndarray, k: ndarray, v: ndarray) -> None:
    if q.ndim < 2:
        raise ValueError(f"query: expected at least 2 axes (rows, dim), got shape {q.shape}")
    for name, array in (("key", k), ("value", v)):
        if array.ndim != q.ndim:
            raise ValueError(f"{name}: expected {q.ndim} axes to match query, got {array.ndim}")


def _check_sizes(q_shape: tuple, k_shape: tuple, v_shape: tuple) -> None:
    if k_shape[-1] != q_shape[-1]:
        raise ValueError(f"key: expected head size {q_shape[-1]} to match query, got {k_shape[-1]}")
    if v_shape[-3] != k_shape[-3]:
        raise ValueError(f"value: expected {k_shape[-3]} heads to match key, got {v_shape[-3]}")
    if v_shape[-2] != k_shape[-2]:
        raise ValueError(f"value: expected {k_shape[-2]} keys to match key, got {v_shape[-2]}")


def _shared_lead(q_lead: tuple, k_lead: tuple, v_lead: tuple) -> tuple:
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


def _refuse_heads(n_q_heads: int, n_kv_heads: int) -> None:
    if n_q_heads != 0:  # no query heads: an empty result, whatever the key has
        raise ValueError(
            f"key: expected a number of heads that divides the {n_q_heads} of query, "
            f"got {n_kv_heads}"
        )


def _score_term(x: Any, name: str, score_shape: tuple, rank: int, takes_bool: bool) -> ndarray:
    """A mask or bias as a view (..., heads, queries, keys)."""
    a = x if type(x) is ndarray else _as_array(x, name)
    dtype = a.dtype
    native = _float_dtype(dtype)
    if native is None:
        if takes_bool and dtype.kind == "b":
            native = dtype
        elif dtype.type is np.longdouble:
            a, native = _saturated(a, FLOAT64), FLOAT64
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
    if not _is_walkable(a):
        a = _copy(a, native, a.ndim)
    return a if shape == score_shape else broadcast_to(a, score_shape)


def _caller_out(out: Any, shape: tuple, dtype: np.dtype) -> ndarray:
    """The caller's own result array, checked, as a plain ndarray."""
    if not isinstance(out, ndarray):
        raise TypeError(f"out: expected a NumPy array, got {type(out).__name__}")
    array = _as_array(out, "out")
    if _float_dtype(array.dtype) != dtype:
        raise TypeError(f"out: expected dtype {dtype} to match query, got {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"out: expected shape {shape}, got {array.shape}")
    if not array.flags.writeable:
        raise ValueError("out: expected a writable array, got a read-only one")
    if _overlaps_itself(array):
        raise ValueError(
            "out: expected every element to have memory of its own, got an array that overlaps "
            f"itself (shape {array.shape}, strides {array.strides})"
        )
    return array


def _overlaps_itself(a: ndarray) -> bool:
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


def _is_writable_in_place(view: ndarray, inputs: tuple) -> bool:
    """Whether a kernel may write there while it reads the inputs."""
    if not _is_in_place(view):
        return False
    for array in inputs:
        if array is not None and np.may_share_memory(view, array):
            return False
    return True


# ---------------------------------------------------------------------------------------------
# options


def _flag(x: Any, name: str) -> bool:
    """0 and 1 will do; arrays and what else has a truth value are mistakes."""
    if isinstance(x, np.bool_) or (isinstance(x, ndarray) and x.ndim == 0 and x.dtype.kind == "b"):
        return bool(x)
    if isinstance(x, numbers.Integral) and x in (0, 1):
        return x == 1
    raise TypeError(f"{name}: expected True or False, got {type(x).__name__}")


def _real(x: Any, name: str) -> float:
    """A finite real number, from Python, NumPy or an array without axes."""
    if isinstance(x, (ndarray, np.generic)):
        a = _as_array(x, name)
        if a.ndim != 0:
            raise ValueError(f"{name}: expected a single number, got an array of shape {a.shape}")
        if a.dtype.kind not in "fiu" and _float_dtype(a.dtype) is None:
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


def _softcap(x: Any, acc: np.dtype) -> float:
    """0 for off; caps beyond the float range of the scores are moved to where they do the same."""
    softcap = _real(x, "softcap")
    if softcap < 0.0:
        raise ValueError(f"softcap: expected a number of at least 0, or None, got {softcap}")
    if softcap == 0.0 or softcap > _LARGEST[acc]:
        return 0.0
    return max(softcap, _SMALLEST[acc])


def _integer(x: Any, name: str) -> int:
    if isinstance(x, (bool, np.bool_)) or (isinstance(x, ndarray) and x.dtype.kind not in "iu"):
        what = f"dtype {x.dtype}" if isinstance(x, ndarray) else type(x).__name__
        raise TypeError(f"{name}: expected an integer, got {what}")
    try:
        return operator.index(x)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {type(x).__name__}") from None


def _window(window: Any) -> tuple:
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
        side = -1 if side is None else _integer(side, "window")
        if side < -1:
            raise ValueError(f"window: expected counts of at least 0, or -1 or None, got {side}")
        sides[n] = min(side, _FAR)
    return sides[0], sides[1]


def _per_entry(x: Any, name: str, lead: tuple, expected: str) -> Any:
    """Integers, one a batch entry: a Python int for all, or an array that broadcast to `lead`.

    Arrays come back in their own integer dtype and are always fresh memory: what another thread
    does to the caller's array during the call has no effect.
    """
    if isinstance(x, numbers.Integral) and not isinstance(x, bool):
        return int(x)
    a = _as_array(x, name)
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


def _kv_lengths(x: Any, lead: tuple, n_keys: int) -> ndarray:
    lengths = _per_entry(x, "kv_lengths", lead, "integers")
    if isinstance(lengths, int):
        least = most = lengths
    else:
        least, most = int(lengths.min(initial=0)), int(lengths.max(initial=0))
    if least < 0 or most > n_keys:
        wrong = least if least < 0 else most
        raise ValueError(f"kv_lengths: expected 0 to {n_keys}, the number of keys, got {wrong}")
    if isinstance(lengths, int):
        return np.full(math.prod(lead), lengths, INT64)
    return lengths.astype(INT64, copy=False)


def _q_offset(x: Any, lead: tuple, n_queries: int, n_keys: int, kv_lengths: Any) -> Any:
    if isinstance(x, str):
        if x != "lower_right":
            raise ValueError(f"q_offset: expected integers or 'lower_right', got {x!r}")
        return (n_keys if kv_lengths is None else kv_lengths) - n_queries
    offsets = _per_entry(x, "q_offset", lead, "integers or 'lower_right'")
    if isinstance(offsets, int):
        return max(-_FAR, min(offsets, _FAR))
    if offsets.dtype.itemsize == 8:  # of narrower ones none is far, and uint64 may exceed int64
        np.minimum(offsets, offsets.dtype.type(_FAR), out=offsets)
        if offsets.dtype.kind == "i":
            np.maximum(offsets, offsets.dtype.type(-_FAR), out=offsets)
    return offsets.astype(INT64, copy=False)


def _floats(x: Any, name: str, acc: np.dtype) -> ndarray:
    """A small float array in the dtype of the scores, compact and in fresh memory."""
    a = _as_array(x, name)
    if _float_dtype(a.dtype) is None and a.dtype.type is not np.longdouble:
        raise TypeError(f"{name}: expected dtype float, got {a.dtype}")
    return np.ascontiguousarray(_saturated(a, acc))


def _slopes(x: Any, lead: tuple, n_q_heads: int, acc: np.dtype) -> ndarray:
    slopes = _floats(x, "alibi_slopes", acc)
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


def _sinks(x: Any, n_q_heads: int, acc: np.dtype) -> ndarray:
    sinks = _floats(x, "sinks", acc)
    if sinks.shape != (n_q_heads,):
        raise ValueError(f"sinks: expected shape {(n_q_heads,)}, one a head, got {sinks.shape}")
    wrong = np.isnan(sinks) | (sinks == math.inf)
    if wrong.any():
        raise ValueError(f"sinks: expected finite numbers or -inf, got {sinks[wrong][0]}")
    return sinks
