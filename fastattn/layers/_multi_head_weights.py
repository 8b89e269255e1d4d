# SPDX-License-Identifier: MIT
"""The weights of multi-head attention: what fits what, and what is kept side by side.

For ``multi_head``. It computes no attention.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _check_options as check
from ._heads import Heads
from ._weights import Weights


def checked_heads(num_heads: Any, num_kv_heads: Any, scale: Any, given: dict[str, Any]) -> Heads:
    """The heads that these arguments of the layer describe."""
    n_heads = _count(num_heads, "num_heads")
    n_kv_heads = n_heads if num_kv_heads is None else _count(num_kv_heads, "num_kv_heads")
    if n_heads % n_kv_heads != 0:
        raise ValueError(
            f"num_kv_heads: expected a number that divides {n_heads}, got {num_kv_heads}"
        )
    if scale is not None:
        scale = check.real(scale, "scale")
    w = Weights(given)
    query = w.need("query_weight", "query_dim", "query_columns")
    head_dim = _per_head(query, "query_weight", n_heads)
    key = w.need("key_weight", "key_dim", n_kv_heads * head_dim)
    value = w.need("value_weight", "value_dim", "value_columns")
    value_head_dim = _per_head(value, "value_weight", n_kv_heads)
    output = w.take("output_weight", n_heads * value_head_dim, "out_dim")
    biases = [
        w.take(f"{name}_bias", weight.shape[1])
        for name, weight in (("query", query), ("key", key), ("value", value))
    ]
    if output is None and given["output_bias"] is not None:
        raise ValueError("output_bias: expected None without output_weight, got an array")
    output_bias = w.take("output_bias", "out_dim")

    parts = [query, key, value]
    packed = packed_key_value = None
    projections = list(zip(parts, biases))
    if key.shape[0] == value.shape[0]:
        # one array holds them; each alone is a view of it, which a BLAS reads as well
        first = 0 if query.shape[0] == key.shape[0] else 1
        together = _side_by_side(projections[first:])
        start = 0
        for n in range(first, 3):
            end = start + parts[n].shape[1]
            projections[n] = _columns(together, start, end)
            start = end
        packed_key_value = together
        if first == 0:
            packed, packed_key_value = together, _columns(together, query.shape[1], start)
    return Heads(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        value_head_dim=value_head_dim,
        query_dim=query.shape[0],
        key_dim=key.shape[0],
        value_dim=value.shape[0],
        out_dim=n_heads * value_head_dim if output is None else output.shape[1],
        scale=scale,
        dtype=w.dtype,
        acc=w.acc,
        packed=packed,
        packed_key_value=packed_key_value,
        query=projections[0],
        key=projections[1],
        value=projections[2],
        output=None if output is None else (output, output_bias),
    )


def _count(x: Any, name: str) -> int:
    n = check.integer(x, name)
    if n < 1:
        raise ValueError(f"{name}: expected at least 1, got {n}")
    return n


def _per_head(weight: np.ndarray, name: str, n_heads: int) -> int:
    if weight.shape[1] % n_heads != 0:
        raise ValueError(
            f"{name}: expected a number of columns that {n_heads} heads share, "
            f"got shape {weight.shape}"
        )
    return weight.shape[1] // n_heads


def _side_by_side(projections: list[tuple]) -> tuple[np.ndarray, np.ndarray | None]:
    """Several weights of one input as one, and their biases: zeros for those without one."""
    weight = np.concatenate([weight for weight, _ in projections], axis=1)
    bias = None
    if any(bias is not None for _, bias in projections):
        bias = np.concatenate(
            [np.zeros(w.shape[1], w.dtype) if b is None else b for w, b in projections]
        )
        bias.flags.writeable = False
    weight.flags.writeable = False
    return weight, bias


def _columns(
    projection: tuple[np.ndarray, np.ndarray | None], start: int, end: int
) -> tuple[np.ndarray, np.ndarray | None]:
    weight, bias = projection
    return weight[:, start:end], None if bias is None else bias[start:end]
