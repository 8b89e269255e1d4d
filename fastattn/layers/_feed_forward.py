# SPDX-License-Identifier: MIT
"""The parts of a Transformer layer around its attention: feed-forward network, norms, their order.

For ``transformer_encoder`` and ``transformer_decoder``. Arrays are matrices of rows in the dtype
that is computed in. It knows nothing of attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _check_options as check
from ._activations import ACTIVATIONS
from ._heads import Heads
from ._linear import linear, row_blocks
from ._norm import normalize
from ._weights import Weights


@dataclass(frozen=True, eq=False)
class Frame:
    """The weights of one layer besides its attention, and how its parts follow each other."""

    linear1: tuple[np.ndarray, np.ndarray | None]
    linear2: tuple[np.ndarray, np.ndarray | None]
    norms: tuple[tuple[np.ndarray, np.ndarray | None], ...]
    activation: str | Callable[[np.ndarray], Any]
    norm_first: bool
    norm_eps: float
    dim: int
    hidden: int

    def around(self, x: np.ndarray, n: int, part: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """One part of the layer with its residual connection and its norm, the n-th one.

        `part` returns fresh memory, which becomes the result.
        """
        if self.norm_first:
            rows = x.copy()
            self._normalize(rows, n)
            return self._sum(part(rows), x)
        result = self._sum(part(x), x)
        self._normalize(result, n)
        return result

    def feed_forward(self, rows: np.ndarray) -> np.ndarray:
        """``activation(rows @ linear1 + bias) @ linear2 + bias``."""
        weight, bias = self.linear1
        hidden = linear(rows, weight, None)
        with np.errstate(all="ignore"):
            if isinstance(self.activation, str):
                in_place = ACTIVATIONS[self.activation]
                for block in row_blocks(hidden):
                    if bias is not None:
                        block += bias
                    in_place(block)
            else:
                if bias is not None:
                    hidden += bias
                hidden = self._activated(hidden)
            np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays
        return linear(hidden, *self.linear2)

    def _activated(self, hidden: np.ndarray) -> np.ndarray:
        shape, dtype = hidden.shape, hidden.dtype
        result = np.asarray(self.activation(hidden))
        if result.shape != shape:
            raise ValueError(
                f"activation: expected a function that keeps the shape {shape}, got {result.shape}"
            )
        return result.astype(dtype, copy=False)

    def _normalize(self, rows: np.ndarray, n: int) -> None:
        normalize(rows, *self.norms[n], self.norm_eps)

    @staticmethod
    def _sum(result: np.ndarray, x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            result += x
            np.add(1.0, 1.0)  # see feed_forward
        return result

    def facts(self) -> dict[str, Any]:
        name = self.activation
        if not isinstance(name, str):
            name = getattr(name, "__name__", type(name).__name__)
        return {
            "dim": self.dim,
            "hidden": self.hidden,
            "activation": name,
            "norm_first": self.norm_first,
        }


def checked_frame(
    heads: dict[str, Heads],
    given: dict[str, Any],
    n_norms: int,
    activation: Any,
    norm_first: Any,
    norm_eps: Any,
) -> Frame:
    """The frame for one or two attentions, by the names of their arguments."""
    first, own = next(iter(heads.items()))
    dim = own.query_dim
    for name, other in heads.items():
        if other.dtype != own.dtype:
            raise TypeError(
                f"{name}: expected dtype {own.dtype} to match {first}, got {other.dtype}"
            )
        if other.query_dim != dim or other.out_dim != dim:
            raise ValueError(
                f"{name}: expected query_dim and out_dim {dim}, got {other.query_dim} and "
                f"{other.out_dim}"
            )
    if own.packed is None:
        raise ValueError(
            f"{first}: expected key_dim and value_dim {dim}, got {own.key_dim} and {own.value_dim}"
        )
    if not callable(activation) and not (isinstance(activation, str) and activation in ACTIVATIONS):
        expected = ", ".join(map(repr, ACTIVATIONS))
        kind = ValueError if isinstance(activation, str) else TypeError
        raise kind(
            f"activation: expected {expected} or a function of an array, got {activation!r:.60}"
        )
    eps = check.real(norm_eps, "norm_eps")
    if eps < 0.0:
        raise ValueError(f"norm_eps: expected a number of at least 0, got {eps}")
    w = Weights(given, like=first, dtype=own.dtype)
    w.know("dim", dim, first)
    w.agree("hidden", {"linear1_weight": 1, "linear2_weight": 0, "linear1_bias": 0})
    linear1 = w.need("linear1_weight", "dim", "hidden"), w.take("linear1_bias", "hidden")
    linear2 = w.need("linear2_weight", "hidden", "dim"), w.take("linear2_bias", "dim")
    norms = tuple(
        (w.need(f"norm{n}_weight", "dim"), w.take(f"norm{n}_bias", "dim"))
        for n in range(1, n_norms + 1)
    )
    return Frame(
        linear1=linear1,
        linear2=linear2,
        norms=norms,
        activation=activation,
        norm_first=check.flag(norm_first, "norm_first"),
        norm_eps=eps,
        dim=dim,
        hidden=w.sizes["hidden"],
    )
