# SPDX-License-Identifier: MIT
"""PyTorch's weights as ours: names, orientation, dtypes.

For the layers that PyTorch has as well. It never imports PyTorch: tensors are recognised by what
they can do, and arrays of the same names will do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _check_arrays as arrays
from .._validate_cache import element_type


def check_module(module: Any, kind: str, attributes: tuple[str, ...]) -> None:
    """Whether it is a module of that kind, or of one derived from it."""
    names = [base.__name__ for base in type(module).__mro__]
    if kind not in names or not all(hasattr(module, name) for name in attributes):
        raise TypeError(f"module: expected a torch.nn.{kind}, got {type(module).__name__}")


def array(tensor: Any, name: str) -> np.ndarray:
    """A tensor, wherever it lies, or an array-like."""
    if not hasattr(tensor, "detach"):
        return arrays.as_array(tensor, name)
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # which its numpy() does not know
        return tensor.float().numpy().astype(element_type("bfloat16"))
    return tensor.numpy()


def below(prefix: Any, name: str) -> str:
    """The prefix of a part of what has this prefix."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix: expected a string, got {type(prefix).__name__}")
    return prefix + name


class State:
    """The entries of a state dict below a prefix."""

    def __init__(self, state: Any, prefix: str) -> None:
        if not isinstance(state, Mapping):
            raise TypeError(
                f"state: expected a mapping of names to arrays, got {type(state).__name__}"
            )
        self._state = state
        self._prefix = below(prefix, "")

    def has(self, name: str) -> bool:
        return self._state.get(self._prefix + name) is not None

    def get(self, name: str) -> np.ndarray | None:
        """None if there is no such entry."""
        full = self._prefix + name
        return array(self._state[full], full) if self.has(name) else None

    def need(self, name: str, n_axes: int) -> np.ndarray:
        found = self.get(name)
        full = self._prefix + name
        if found is None:
            known = [key for key in map(str, self._state) if key.startswith(self._prefix)]
            raise ValueError(f"state: expected an entry {full!r}, got {', '.join(known) or 'none'}")
        if found.ndim != n_axes:
            raise ValueError(f"{full}: expected {n_axes} axes, got shape {found.shape}")
        return found

    def matrix(self, name: str) -> np.ndarray:
        """As in ``x @ weight``: PyTorch keeps the transpose."""
        return self.need(name, 2).T


def attention_weights(state: Any, prefix: str) -> dict[str, Any]:
    """Those of a ``torch.nn.MultiheadAttention``, by the names of our layer."""
    entries = State(state, prefix)
    for name in ("bias_k", "bias_v"):
        if entries.has(name):
            raise ValueError(f"state: expected no {prefix}{name}, which is not supported, got one")
    if entries.has("in_proj_weight"):
        parts = _thirds(entries.need("in_proj_weight", 2), f"{prefix}in_proj_weight")
        made = {name: part.T for name, part in zip(_names("weight"), parts)}
    else:
        made = {f"{x}_weight": entries.matrix(f"{x[0]}_proj_weight") for x in _PARTS}
    if entries.has("in_proj_bias"):
        parts = _thirds(entries.need("in_proj_bias", 1), f"{prefix}in_proj_bias")
        made.update(zip(_names("bias"), parts))
    made["output_weight"] = entries.matrix("out_proj.weight")
    made["output_bias"] = entries.get("out_proj.bias")
    return made


_PARTS = ("query", "key", "value")


def _names(kind: str) -> list[str]:
    return [f"{part}_{kind}" for part in _PARTS]


def _thirds(packed: np.ndarray, name: str) -> list[np.ndarray]:
    if packed.shape[0] % 3 != 0:
        raise ValueError(
            f"{name}: expected a first axis that query, key and value share, got shape "
            f"{packed.shape}"
        )
    return np.split(packed, 3)


def transformer_weights(state: Any, prefix: str, n_norms: int) -> dict[str, Any]:
    """Those of ``torch.nn.Transformer*Layer`` besides attention, by the names of our layers."""
    entries = State(state, prefix)
    made: dict[str, Any] = {}
    for name in ("linear1", "linear2"):
        made[f"{name}_weight"] = entries.matrix(f"{name}.weight")
        made[f"{name}_bias"] = entries.get(f"{name}.bias")
    for name in (f"norm{n + 1}" for n in range(n_norms)):
        made[f"{name}_weight"] = entries.need(f"{name}.weight", 1)
        made[f"{name}_bias"] = entries.get(f"{name}.bias")
    return made


def module_options(module: Any) -> dict[str, Any]:
    """Activation, order and epsilon of a ``torch.nn.Transformer*Layer``."""
    activation = module.activation
    name = getattr(activation, "__name__", type(activation).__name__).lower()
    if name not in ("relu", "gelu") or getattr(activation, "approximate", "none") != "none":
        raise ValueError(
            f"module: expected the activation relu or (exact) gelu, got {activation!r:.60}; "
            "from_state_dict takes any function of arrays"
        )
    return {
        "activation": name,
        "norm_first": bool(module.norm_first),
        "norm_eps": float(module.norm1.eps),
    }
