# SPDX-License-Identifier: MIT
"""Every check of additive attention, and the projections that follow it.

For ``additive``; the backends trust what it returns and check nothing again.
What it has in common with the dot product (all but the last axis of query and key, and the
parameters) is checked by ``_validate.sdpa``. It computes no attention.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _check_arrays as arrays
from . import _check_options as check
from . import _validate
from ._check_arrays import DTYPES, FLOAT32, FLOAT64, float_dtype, ndarray
from ._projection import project
from ._validate import SdpaCall
from .additive_keys import AdditiveKeys


class AdditiveCall(SdpaCall):
    """One checked call of additive attention, as the backends see it.

    The fields are those of `SdpaCall`, with these differences: ``query (..., heads, queries,
    hidden)`` and ``key (..., kv_heads, keys, hidden)`` are projected, the key holds the bias, and
    both have the dtype of the scores (float32, or float64 for float64 arrays; ``dtype`` is that of
    value and out). They are finite wherever what they were made of is. ``scale`` is 1, ``softcap``
    0 and ``slopes`` None.
    """

    __slots__ = ("attention_v", "prepared")

    attention_v: ndarray  # (heads, hidden) or (1, hidden), compact, in the dtype of the scores
    prepared: AdditiveKeys | None  # where the key comes from, before it was broadcast


def additive(
    query: Any,
    key: Any,
    value: Any,
    attention_v: Any,
    query_weight: Any,
    key_weight: Any,
    hidden_bias: Any,
    options: dict[str, Any],
    ends: tuple[ndarray, ndarray] | None = None,
) -> AdditiveCall:
    """Check the arguments of `additive_attention`, make them final, and project.

    `options` are those that it shares with the dot product, by name; `ends` are those of packed
    queries and keys.
    """
    prepared = key if isinstance(key, AdditiveKeys) else None
    options = {"scale": 1.0, "softcap": 0.0, "alibi_slopes": None} | options
    call, q, k = _validate.without_sizes(
        query, key if prepared is None else prepared._stand_in, value, options, AdditiveCall
    )
    acc = FLOAT64 if call.dtype is FLOAT64 else FLOAT32
    if query_weight is not None:
        query_weight = check.weight(query_weight, "query_weight", "query", q.shape[-1], acc)
    if prepared is not None:
        _check_prepared(prepared, key_weight, hidden_bias, options["layout"])
    elif key_weight is not None:
        key_weight = check.weight(key_weight, "key_weight", "key", k.shape[-1], acc)
    if hidden_bias is not None:
        hidden_bias = check.parameter(hidden_bias, "hidden_bias", acc)

    # the hidden size is the last axis of attention_v, and all others must agree
    if attention_v is None:
        hidden = q.shape[-1] if query_weight is None else query_weight.shape[1]
        matching = "query" if query_weight is None else "query_weight"
        vectors = np.ones(hidden, acc)
    else:
        vectors = _vectors(attention_v, call.query.shape[-3], acc)
        hidden, matching = vectors.shape[-1], "attention_v"
    _check_hidden(q, query_weight, "query", hidden, matching)
    if prepared is not None and k.shape[-1] != hidden:
        raise ValueError(
            f"key: expected prepared keys of hidden size {hidden} to match {matching}, "
            f"got {k.shape[-1]}"
        )
    _check_hidden(k, key_weight, "key", hidden, matching)
    _check_bias(hidden_bias, hidden, matching)

    call.attention_v = vectors if vectors.ndim == 2 else vectors[None]
    call.prepared = prepared
    ends_q, ends_k = (None, None) if ends is None else ends
    q = project(q, query_weight, None, acc, ends_q)
    if prepared is None:
        k = project(k, key_weight, hidden_bias, acc, ends_k)
    else:
        k = prepared._projected
    call.set_rows(q, k)
    return call


def keys(key: Any, key_weight: Any, hidden_bias: Any, layout: Any) -> AdditiveKeys:
    """Check the arguments of `prepare_additive_keys`, and project."""
    k = arrays.as_array(key, "key")
    dtype = float_dtype(k.dtype)
    if dtype is None:
        raise TypeError(f"key: expected dtype {DTYPES}, got {k.dtype}")
    layout = "bshd" if check.layout(layout) else "bhsd"
    if k.ndim < 2:
        raise ValueError(f"key: expected at least 2 axes (keys, dim), got shape {k.shape}")
    acc = FLOAT64 if dtype is FLOAT64 else FLOAT32
    hidden, matching = k.shape[-1], "key"
    if key_weight is not None:
        key_weight = check.weight(key_weight, "key_weight", "key", k.shape[-1], acc)
        hidden, matching = key_weight.shape[1], "key_weight"
    if hidden_bias is not None:
        hidden_bias = check.parameter(hidden_bias, "hidden_bias", acc)
    _check_bias(hidden_bias, hidden, matching)
    projected = project(arrays.heads_first(k, layout), key_weight, hidden_bias, acc)
    if key_weight is None and hidden_bias is None or not projected.flags.c_contiguous:
        projected = np.array(projected, order="C")
    return AdditiveKeys(projected, dtype, layout, k.ndim)


def _vectors(x: Any, n_heads: int, acc: np.dtype) -> ndarray:
    vectors = check.floats(x, "attention_v", acc)  # fresh memory: out may be the caller's own
    if vectors.ndim not in (1, 2) or (vectors.ndim == 2 and vectors.shape[0] != n_heads):
        raise ValueError(
            f"attention_v: expected shape (hidden,) or ({n_heads}, hidden), one vector for each "
            f"head of query, got {vectors.shape}"
        )
    return vectors


def _check_hidden(
    a: ndarray, weight: ndarray | None, name: str, hidden: int, matching: str
) -> None:
    if weight is None:
        if a.shape[-1] != hidden:
            raise ValueError(
                f"{name}: expected size {hidden} along the last axis to match {matching}, as there "
                f"is no {name}_weight, got {a.shape[-1]}"
            )
    elif weight.shape[1] != hidden:
        raise ValueError(
            f"{name}_weight: expected shape {(weight.shape[0], hidden)} to match {matching}, "
            f"got {weight.shape}"
        )


def _check_bias(hidden_bias: ndarray | None, hidden: int, matching: str) -> None:
    if hidden_bias is not None and hidden_bias.shape != (hidden,):
        raise ValueError(
            f"hidden_bias: expected shape {(hidden,)} to match {matching}, got {hidden_bias.shape}"
        )


def _check_prepared(keys: AdditiveKeys, key_weight: Any, hidden_bias: Any, layout: str) -> None:
    for name, x in (("key_weight", key_weight), ("hidden_bias", hidden_bias)):
        if x is not None:
            raise ValueError(
                f"{name}: expected None with prepared keys, of which it is a part, "
                f"got {type(x).__name__}"
            )
    if keys.layout != layout and len(keys.shape) > 2:
        raise ValueError(
            f"key: expected keys prepared in the layout {layout!r} of the call, got {keys.layout!r}"
        )
