# SPDX-License-Identifier: MIT
"""Which weights a LuongAttention needs and may not have, by score and mode; their shapes.

For ``luong``, which is told what is right as the attributes of the layer. It computes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _check_options as check
from .._validate_cache import element_type
from ._weights import Weights

_OF_SCORE = {
    "dot": (),
    "general": ("weight",),
    "concat": ("weight", "attention_v"),
    "location": ("weight",),
}
_OF_MODE = {"global": (), "local-m": (), "local-p": ("position_weight", "position_v")}


def checked_weights(
    score: Any, mode: Any, half_width: Any, given: dict[str, Any], dtype: Any
) -> dict[str, Any]:
    """The attributes of the layer, by name."""
    _check_choice(score, "score", _OF_SCORE)
    _check_choice(mode, "mode", _OF_MODE)
    _check_presence(given, ("weight", "attention_v"), _OF_SCORE[score], f"score {score!r}")
    _check_presence(given, ("position_weight", "position_v"), _OF_MODE[mode], f"mode {mode!r}")
    half_width = _half_width(half_width, mode)
    weights = Weights(given, like=None if dtype is None else "dtype", dtype=_dtype(dtype))
    if score == "concat":
        weight = weights.take("weight", "query_dim + key_dim", "units")
    else:
        weight = weights.take("weight", "query_dim", "key_dim" if score == "general" else "columns")
    vector = weights.take("attention_v", "units")
    position_weight = weights.take("position_weight", "query_dim", "n")
    position_v = weights.take("position_v", "n")
    combine = weights.take("combine_weight", "value_dim + query_dim", "out")
    attributes = {
        "_score": score,
        "_mode": mode,
        "_half_width": half_width,
        "_dtype": weights.dtype,
        "_weight": weight,
        "_attention_v": vector,
        "_combine_weight": combine,
        "_position_weight": None if position_weight is None else position_weight.astype(np.float64),
        "_position_v": None if position_v is None else position_v.astype(np.float64),
    }
    if score == "location":
        # in the dtype of the layer, where it is exact, so that it can stand for a key
        attributes["_weight"] = np.ascontiguousarray(weight.T).astype(weights.dtype, copy=False)
    return attributes | _dims(weights.sizes, score)


def _dims(sizes: dict[str, int], score: str) -> dict[str, int | None]:
    """What the weights tell of the last axes of query and memory, which is the value as well."""
    query_dim, key_dim = sizes.get("query_dim"), sizes.get("key_dim")
    of_weight, of_combine = sizes.get("query_dim + key_dim"), sizes.get("value_dim + query_dim")
    both = of_combine if of_weight is None else of_weight
    if of_combine is not None:
        wanted = None
        if of_combine != both:
            wanted = f"{both} rows, as many as weight has"
        elif query_dim is not None and key_dim is not None and query_dim + key_dim != both:
            wanted = f"{key_dim} + {query_dim} rows"
        elif score == "dot" and query_dim is not None and 2 * query_dim != both:
            wanted = f"{query_dim} + {query_dim} rows"
        elif score == "dot" and both % 2 != 0:
            wanted = "an even number of rows, as query and memory have the same size"
        elif query_dim is not None and query_dim > both:
            wanted = f"at least {query_dim} rows"
        if wanted is not None:
            raise ValueError(f"combine_weight: expected {wanted}, got {of_combine} rows")
    elif both is not None and query_dim is not None and query_dim > both:
        raise ValueError(f"weight: expected at least {query_dim} rows, got {both}")
    if score == "dot":
        query_dim = query_dim if both is None else both // 2
        key_dim = query_dim
    if both is not None and query_dim is not None:
        key_dim = both - query_dim
    return {"_query_dim": query_dim, "_key_dim": key_dim, "_both_dims": both}


def _check_choice(x: Any, name: str, choices: dict[str, Any]) -> None:
    expected = ", ".join(map(repr, choices))
    if not isinstance(x, str):
        raise TypeError(f"{name}: expected one of {expected}, got {type(x).__name__}")
    if x not in choices:
        raise ValueError(f"{name}: expected one of {expected}, got {x!r}")


def _check_presence(
    given: dict[str, Any], names: tuple[str, ...], needed: tuple[str, ...], what: str
) -> None:
    for name in names:
        if name in needed and given[name] is None:
            raise ValueError(f"{name}: expected an array with the {what}, got None")
        if name not in needed and given[name] is not None:
            raise ValueError(
                f"{name}: expected None with the {what}, got {type(given[name]).__name__}"
            )


def _half_width(x: Any, mode: str) -> float | None:
    if mode == "global":
        if x is not None:
            raise ValueError(f"half_width: expected None with the mode 'global', got {x!r}")
        return None
    if x is None:
        raise ValueError(f"half_width: expected a number with the mode {mode!r}, got None")
    half_width = check.real(x, "half_width")
    if half_width < 0.0 or (mode == "local-p" and half_width == 0.0):
        least = "above 0" if mode == "local-p" else "of at least 0"
        raise ValueError(f"half_width: expected a number {least}, got {half_width}")
    return half_width


def _dtype(x: Any) -> Any:
    if x is None:
        return None
    dtype = element_type(x)
    if dtype.kind == "i":
        raise TypeError(f"dtype: expected one of floats, got {dtype}")
    return dtype
