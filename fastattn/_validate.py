# SPDX-License-Identifier: MIT
"""Every check of every call: what leaves here is right.

For the public functions; the backends trust what it returns and check nothing again.
It computes no attention; the single checks and their messages are in ``_check_arrays`` and
``_check_options``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import _check_arrays as arrays
from . import _check_options as options
from ._check_arrays import DTYPES, FLOAT32, FLOAT64, LARGEST, broadcast_to, float_dtype, ndarray

_READABLE = 0x101  # ndarray.flags.num: C-contiguous and aligned


class Local:
    """The windows of one checked call of local attention: what each row may see, and a Gaussian."""

    __slots__ = ("centers", "half_width", "sigma")

    centers: ndarray  # (..., heads, queries) float64, compact, finite
    half_width: float
    sigma: float  # 0: none


class Hard:
    """What one checked call of hard attention has besides: where the keys go, and what is drawn."""

    __slots__ = ("indices", "draws")

    indices: ndarray  # (..., heads, queries) int64, compact; -1 for none
    draws: ndarray | None  # the same in float64, in [0, 1): None takes the largest score


class SdpaCall:
    """One checked call of scaled dot-product attention, as the backends see it.

    Every array has the leading axes of the result (broadcast axes have stride 0) and at least
    three axes: ``query (..., heads, queries, dim)``, ``key`` and ``value (..., kv_heads, keys,
    dim)``, ``out``; ``attn_mask``, ``bias`` and ``weights (..., heads, queries, keys)``, ``lse
    (..., heads, queries)``. query, key, value and out are native, aligned, and step by one
    element along their last axis (an array without elements may have any strides). A query or key
    that was made by a score (``scores.General`` and others) has the dtype of the scores instead of
    ``dtype``: they differ for 16-bit floats. ``q_offset`` is an int or one int64 a batch entry,
    ``kv_lengths`` None or one int64 a batch entry; ``slopes`` (heads,) or (entries, heads) and
    ``sinks`` (heads,) have the dtype of the scores.
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
        "key_factors",  # None, or (..., kv_heads, 1, keys): of scores; see `inverse_lengths`
        "value_factors",  # None, or of values; 8-bit keys and values have both, in float32
        "local",  # None, or the windows of local attention
        "hard",  # None, or what hard attention needs; out is then one value, not a mean
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
    key_factors: ndarray | None
    value_factors: ndarray | None
    local: Local | None
    hard: Hard | None
    dtype: np.dtype
    is_callers_out: bool
    _result: ndarray
    _target: ndarray | None
    _is_flat: bool

    def set_rows(self, query: ndarray, key: ndarray) -> None:
        """Compute with these, made of the caller's query and key; leading axes may be missing."""
        lead = self.query.shape[:-3]
        q_shape = lead + query.shape[-3:]
        k_shape = lead + key.shape[-3:]
        self.query = query if query.shape == q_shape else broadcast_to(query, q_shape)
        self.key = key if key.shape == k_shape else broadcast_to(key, k_shape)
        if self.is_callers_out and not arrays.is_writable_in_place(self.out, (query, key)):
            self.detach_out()

    def detach_out(self) -> None:
        """Have it computed in fresh memory, from where `finish` copies it to the caller's own."""
        self.is_callers_out = False
        self._target = self.out
        self.out = arrays.empty(self.out.shape, self.dtype)

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
    call_type: type[SdpaCall] = SdpaCall,
) -> Any:
    """Check the arguments of `scaled_dot_product_attention` and make them final.

    Plain calls take a straight path: whatever is unusual is looked at in a function of its own.
    """
    # what they are
    q = query if type(query) is ndarray else arrays.as_array(query, "query")
    k = key if type(key) is ndarray else arrays.as_array(key, "key")
    v = value if type(value) is ndarray else arrays.as_array(value, "value")
    q_dtype = q.dtype
    k_dtype = k.dtype
    v_dtype = v.dtype
    dtype = acc = FLOAT32
    if q_dtype is not FLOAT32 or k_dtype is not FLOAT32 or v_dtype is not FLOAT32:
        dtype = arrays.shared_dtype(q, k, v)
        if dtype is FLOAT64:
            acc = FLOAT64
    if is_causal is not False and is_causal is not True:
        is_causal = options.flag(is_causal, "is_causal")
    if return_lse is not False and return_lse is not True:
        return_lse = options.flag(return_lse, "return_lse")
    if return_weights is not False and return_weights is not True:
        return_weights = options.flag(return_weights, "return_weights")
    heads_last = False
    if type(layout) is not str or layout != "bhsd":
        heads_last = options.layout(layout)

    # shapes: from here on (..., heads, rows, dim)
    rank = q.ndim
    if rank < 4 or k.ndim != rank or v.ndim != rank:
        arrays.check_ranks(q, k, v)
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
        arrays.check_sizes(q_shape, k_shape, v_shape)
        lead = arrays.shared_lead(lead, k_shape[:-3], v_shape[:-3])
        is_broadcast = True
    if n_q_heads != n_kv_heads and (n_kv_heads == 0 or n_q_heads % n_kv_heads != 0):
        arrays.refuse_heads(n_q_heads, n_kv_heads)
    score_shape = (*lead, n_q_heads, n_queries, n_keys)

    # options
    if scale is not None:
        scale = options.real(scale, "scale")
        if scale > LARGEST[acc] or scale < -LARGEST[acc]:
            scale = math.copysign(LARGEST[acc], scale)
    elif size != 0:
        scale = 1.0 / math.sqrt(size)
    else:
        raise ValueError("query: expected a head size above 0, or a scale to be given, got size 0")
    if softcap is None:
        softcap = 0.0
    elif type(softcap) is not float or softcap != 0.0:
        softcap = options.softcap(softcap, acc)
    left = right = -1
    if window is not None:
        left, right = options.window(window)
    if kv_lengths is not None:
        kv_lengths = options.kv_lengths(kv_lengths, lead, n_keys)
    if type(q_offset) is not int or q_offset > options.FAR or q_offset < -options.FAR:
        q_offset = options.q_offset(q_offset, lead, n_queries, n_keys, kv_lengths)
    if attn_mask is not None:
        attn_mask = arrays.score_term(attn_mask, "attn_mask", score_shape, rank, True)
    if bias is not None:
        bias = arrays.score_term(bias, "bias", score_shape, rank, False)
    if alibi_slopes is not None:
        alibi_slopes = options.slopes(alibi_slopes, lead, n_q_heads, acc)
    if sinks is not None:
        sinks = options.sinks(sinks, n_q_heads, acc)

    # out: an array of the caller's layout and rank, and the view of it that is computed
    result_shape = (*lead, n_q_heads, n_queries, v_size)
    if heads_last:
        result_shape = (*lead, n_queries, n_q_heads, v_size)
    elif rank == 2:
        result_shape = (n_queries, v_size)
    if out is None:
        result = view = arrays.empty(result_shape, dtype)
    else:
        result = out
        view = arrays.caller_out(out, result_shape, dtype)
    if heads_last:
        view = view.swapaxes(-3, -2)
    elif rank == 2:
        view = view[None]

    # what no kernel could read is copied, before it is broadcast
    if q.flags.num & _READABLE != _READABLE or q_dtype is not FLOAT32:
        q = arrays.readable(q, dtype)
    if k.flags.num & _READABLE != _READABLE or k_dtype is not FLOAT32:
        k = arrays.readable(k, dtype)
    if v.flags.num & _READABLE != _READABLE or v_dtype is not FLOAT32:
        v = arrays.readable(v, dtype)
    if is_broadcast:
        q = broadcast_to(q, lead + q_shape[-3:])
        k = broadcast_to(k, lead + k_shape[-3:])
        v = broadcast_to(v, lead + v_shape[-3:])

    call = call_type()
    call.query = q
    call.key = k
    call.value = v
    call.out = view
    call.lse = arrays.empty(score_shape[:-1], acc) if return_lse else None
    call.weights = arrays.empty(score_shape, dtype) if return_weights else None
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
    call.key_factors = None
    call.value_factors = None
    call.local = None
    call.hard = None
    call.dtype = dtype
    call.is_callers_out = out is not None
    call._result = result
    call._target = None
    call._is_flat = rank == 2
    if out is not None and not arrays.is_writable_in_place(view, (q, k, v, attn_mask, bias)):
        call.detach_out()
    return call


def without_sizes(
    query: Any, key: Any, value: Any, options: dict[str, Any], call_type: type[SdpaCall] = SdpaCall
) -> tuple:
    """Check all of a call but the last axes of query and key, for scores that take any sizes.

    `options` are the other arguments of `sdpa`, by name. Returns a call that still lacks its query
    and key (see `SdpaCall.set_rows`), and these two as given: ``(..., heads, rows, dim)`` with any
    strides.
    """
    q = arrays.as_array(query, "query")
    k = arrays.as_array(key, "key")
    v = arrays.as_array(value, "value")
    arrays.shared_dtype(q, k, v)
    arrays.check_ranks(q, k, v)
    call = sdpa(q[..., :0], k[..., :0], v, **options, call_type=call_type)
    layout = options["layout"]
    return call, arrays.heads_first(q, layout), arrays.heads_first(k, layout)


def merge(outs: Any, lses: Any) -> tuple:
    """Check the arguments of `merge_attention`: two lists of arrays, and the dtype of the outs."""
    parts = _partials(outs, "outs")
    sums = _partials(lses, "lses")
    if len(parts) == 0:
        raise ValueError("outs: expected at least one partial result, got none")
    if len(sums) != len(parts):
        raise ValueError(f"lses: expected {len(parts)} arrays to match outs, got {len(sums)}")
    shape = parts[0].shape
    dtype = float_dtype(parts[0].dtype)
    for n, (array, total) in enumerate(zip(parts, sums)):
        if float_dtype(array.dtype) is None:
            raise TypeError(f"outs[{n}]: expected dtype {DTYPES}, got {array.dtype}")
        if float_dtype(array.dtype) != dtype:
            raise TypeError(
                f"outs[{n}]: expected dtype {dtype} to match outs[0], got {array.dtype}"
            )
        if float_dtype(total.dtype) is None:
            raise TypeError(f"lses[{n}]: expected dtype {DTYPES}, got {total.dtype}")
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
    return parts, sums, dtype


def _partials(x: Any, name: str) -> list:
    """The arrays of a sequence, or those along the first axis of one array."""
    if isinstance(x, ndarray):
        x = arrays.as_array(x, name)
    try:
        partials = list(x)
    except TypeError:
        raise TypeError(
            f"{name}: expected a sequence of arrays, or one array with the partial results along "
            f"its first axis, got {type(x).__name__}"
        ) from None
    return [arrays.as_array(partial, f"{name}[{n}]") for n, partial in enumerate(partials)]
