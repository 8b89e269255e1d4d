# SPDX-License-Identifier: MIT
"""Checked calls for the kinds of scores that ``scores`` offers.

For ``scores``; each function checks what its kind needs and makes query and key such that a dot
product of them is the score. What all kinds share is ``_validate``'s; it computes no attention.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import _check_arrays as arrays
from . import _check_options as check
from . import _validate, _validate_additive
from ._check_arrays import FLOAT32, FLOAT64
from ._projection import inverse_lengths, normalized, project
from ._validate import SdpaCall
from ._validate_additive import AdditiveCall

Ends = tuple[np.ndarray, np.ndarray]  # of packed queries and keys: see `_validate_varlen`


def dot(query: Any, key: Any, value: Any, scale: float | None, options: dict[str, Any]) -> SdpaCall:
    """``scale * (q . k)``, 1 / sqrt(dim) by default."""
    return _validate.sdpa(query, key, value, scale=scale, **options)


def general(
    query: Any,
    key: Any,
    value: Any,
    weight: Any,
    options: dict[str, Any],
    ends: Ends | None = None,
) -> SdpaCall:
    """``q . (W k)``: the query is projected, the key stays as it lies."""
    call, q, k = _validate.without_sizes(query, key, value, {"scale": 1.0, **options})
    acc = _score_dtype(call)
    weight = check.weight(weight, "weight", "query", q.shape[-1], acc)
    if weight.shape[1] != k.shape[-1]:
        raise ValueError(
            f"weight: expected shape {(q.shape[-1], k.shape[-1])} to match the last axes of query "
            f"and key, got {weight.shape}"
        )
    q = project(q, weight, None, acc, None if ends is None else ends[0])
    call.set_rows(q, arrays.readable(k, call.dtype))
    return call


def cosine(query: Any, key: Any, value: Any, temperature: Any, options: dict[str, Any]) -> SdpaCall:
    """``q . k / (|q| |k|) / temperature``."""
    temperature = check.real(temperature, "temperature")
    if temperature <= 0.0:
        raise ValueError(f"temperature: expected a number above 0, got {temperature}")
    scale = min(1.0 / temperature, sys.float_info.max)
    call, q, k = _validate.without_sizes(query, key, value, {"scale": scale, **options})
    if k.shape[-1] != q.shape[-1]:
        arrays.check_sizes(q.shape, k.shape, k.shape)
    acc = _score_dtype(call)
    # Keys stay as they lie, and their lengths become factors of the scores.
    factors = inverse_lengths(k, acc, call.scale)
    call.set_rows(normalized(q, acc), arrays.readable(k, call.dtype))
    shape = (*call.key.shape[:-2], 1, call.key.shape[-2])
    call.key_factors = np.broadcast_to(factors[..., None, :], shape)
    return call


def location(
    query: Any,
    key: Any,
    value: Any,
    weight: Any,
    options: dict[str, Any],
    ends: Ends | None = None,
) -> SdpaCall:
    """``(q W)[j]``: the columns of the weight take the place of the keys."""
    call, q, k = _validate.without_sizes(query, key, value, {"scale": 1.0, **options})
    acc = _score_dtype(call)
    weight = check.weight(weight, "weight", "query", q.shape[-1], acc)
    n_kv_heads, n_keys = k.shape[-3:-1]
    if ends is not None:  # packed: each sequence begins with the first column
        lengths = np.diff(ends[1])
        n_keys = int(lengths.max(initial=0))
    if weight.shape[1] < n_keys:
        raise ValueError(
            f"weight: expected at least {n_keys} columns, one for each key, got shape "
            f"{weight.shape}"
        )
    columns = np.ascontiguousarray(weight[:, :n_keys].T)
    if ends is not None:
        columns = columns[np.arange(ends[1][-1]) - np.repeat(ends[1][:-1], lengths)]
    call.set_rows(
        project(q, None, None, acc), np.broadcast_to(columns, (n_kv_heads, *columns.shape))
    )
    return call


def additive(
    query: Any,
    key: Any,
    value: Any,
    attention_v: Any,
    query_weight: Any,
    key_weight: Any,
    hidden_bias: Any,
    options: dict[str, Any],
    ends: Ends | None = None,
) -> AdditiveCall:
    """``v . tanh(q Wq + k Wk + b)``, which has neither softcap nor slopes."""
    options = dict(options)
    softcap, slopes = options.pop("softcap"), options.pop("alibi_slopes")
    if softcap is not None and check.softcap(softcap, FLOAT32) != 0.0:
        raise ValueError(f"softcap: expected 0 or None with additive scores, got {softcap}")
    if slopes is not None:
        raise ValueError(
            f"alibi_slopes: expected None with additive scores, got {type(slopes).__name__}"
        )
    return _validate_additive.additive(
        query, key, value, attention_v, query_weight, key_weight, hidden_bias, options, ends
    )


def concat(
    query: Any,
    key: Any,
    value: Any,
    weight: Any,
    attention_v: Any,
    options: dict[str, Any],
    ends: Ends | None = None,
) -> AdditiveCall:
    """``v . tanh([q; k] W)``: additive, with the two halves of W."""
    query = arrays.as_array(query, "query")
    key = arrays.as_array(key, "key")
    q_size, k_size = (x.shape[-1] if x.ndim else 0 for x in (query, key))
    acc = FLOAT64 if arrays.float_dtype(query.dtype) is FLOAT64 else FLOAT32
    weight = check.parameter(weight, "weight", acc)
    if weight.ndim != 2 or weight.shape[0] != q_size + k_size:
        raise ValueError(
            f"weight: expected 2 axes, the first of size {q_size} + {k_size} to match the last "
            f"axes of query and key, got shape {weight.shape}"
        )
    if attention_v is not None:
        attention_v = arrays.as_array(attention_v, "attention_v")
        if attention_v.ndim and attention_v.shape[-1] != weight.shape[1]:
            raise ValueError(
                f"attention_v: expected size {weight.shape[1]} along the last axis to match "
                f"weight, got shape {attention_v.shape}"
            )
    halves = weight[:q_size], weight[q_size:]
    return additive(query, key, value, attention_v, *halves, None, options, ends)


def unknown(score: Any, names: list[str]) -> Exception:
    """The exception for what is no score."""
    expected = f"score: expected {', '.join(map(repr, names))} or an object of fastattn.scores"
    if isinstance(score, str):
        return ValueError(f"{expected}, got {score!r}")
    return TypeError(f"{expected}, got {type(score).__name__}")


def _score_dtype(call: SdpaCall) -> np.dtype:
    return FLOAT64 if call.dtype is FLOAT64 else FLOAT32
