# SPDX-License-Identifier: MIT
"""What the functions of ``plotting`` are called with: weights, tokens, and matplotlib itself.

For ``plotting``: each function checks one thing and names it in its message. It draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _check_arrays as arrays

__all__ = [
    "choice",
    "matplotlib_is_there",
    "of_head",
    "packed",
    "rows_of_tokens",
    "tokens",
    "weights",
]


def matplotlib_is_there() -> None:
    """Raise an error that says how to get it, where it is not."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ImportError(
            'fastattn.plotting needs matplotlib: pip install "fastattn[plot]"'
        ) from None


def weights(x: Any, ranks: tuple[int, ...], axes: str, name: str = "weights") -> np.ndarray:
    """Numbers as float64 with one of these numbers of axes, none of them empty."""
    array = arrays.as_array(x, name)
    if arrays.float_dtype(array.dtype) is None and array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}")
    if array.ndim not in ranks or 0 in array.shape:
        more = ""
        if array.ndim > max(ranks) and 0 not in array.shape:
            more = f"; {name}[0] is the first entry of a batch"
        raise ValueError(f"{name}: expected {axes}, none of them 0, got shape {array.shape}{more}")
    return array.astype(np.float64)


def tokens(given: Any, n: int, name: str, axis: str) -> list[str] | None:
    """One text for each place of an axis; a str is a sequence of its characters."""
    if given is None:
        return None
    texts = _texts(given, name)
    if len(texts) != n:
        raise ValueError(
            f"{name}: expected {n} tokens, one for each of the {axis} of weights, got {len(texts)}"
        )
    return texts


def rows_of_tokens(given: Any) -> list[list[str]]:
    """Rows of texts; one flat sequence of texts is one row."""
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise TypeError(f"tokens: expected rows of strings, got {type(given).__name__}")
    rows = list(given)
    if rows and all(isinstance(x, str) for x in rows):
        return [_texts(rows, "tokens")]
    if any(isinstance(row, str) for row in rows):
        raise TypeError("tokens: expected rows of strings, got rows and strings")
    texts = [_texts(row, f"tokens[{i}]") for i, row in enumerate(rows)]
    if not any(texts):
        raise ValueError("tokens: expected at least one token, got none")
    return texts


def packed(given: Any, counts: list[int]) -> list[np.ndarray]:
    """A weight for each token: (tokens,) of all rows one after the other, or a sequence of rows."""
    total = sum(counts)
    wanted = f"({total},), or {len(counts)} rows of {_listed(counts)} numbers"
    if not isinstance(given, np.ndarray) and isinstance(given, Sequence):
        if len(given) == len(counts) and any(np.ndim(row) for row in given):
            rows = [
                weights(row, (1,), f"({n},)", f"weights[{i}]") if n or np.size(row) else np.zeros(0)
                for i, (row, n) in enumerate(zip(given, counts))
            ]
            found = [len(row) for row in rows]
            if found != counts:
                raise ValueError(
                    f"weights: expected {wanted}, as tokens has, got rows of {_listed(found)}"
                )
            return rows
    flat = weights(given, (1,), wanted)
    if len(flat) != total:
        raise ValueError(f"weights: expected {wanted}, as tokens has, got shape {flat.shape}")
    return np.split(flat, np.cumsum(counts)[:-1])


def of_head(values: np.ndarray, head: Any) -> np.ndarray:
    """(targets, sources) of one head, or of the mean of all."""
    if values.ndim == 2:
        if head not in (None, "mean", 0):
            raise ValueError(f"head: expected None for weights without heads, got {head!r}")
        return values
    if head is None or (isinstance(head, str) and head == "mean"):
        return values.mean(axis=0)
    n = len(values)
    if isinstance(head, bool) or not isinstance(head, int | np.integer) or not -n <= head < n:
        raise ValueError(f'head: expected "mean" or an integer from {-n} to {n - 1}, got {head!r}')
    return values[head]


def choice(given: Any, name: str, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {given!r}")


def _listed(counts: list[int]) -> str:
    shown = ", ".join(map(str, counts[:8]))
    return shown + (", ..." if len(counts) > 8 else "")


def _texts(given: Any, name: str) -> list[str]:
    try:
        texts = list(given)
    except TypeError:
        raise TypeError(f"{name}: expected strings, got {type(given).__name__}") from None
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{name}: expected strings, got {type(text).__name__}")
    return texts
