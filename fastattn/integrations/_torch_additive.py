# SPDX-License-Identifier: MIT
"""Additive attention of tensors: signature, meaning, and what the tensors must be.

For users, through ``torch``, which sees to it that there is PyTorch. ``_torch_calls`` computes;
what is the same for arrays is checked where these are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _check_options
from ..additive_keys import AdditiveKeys
from . import _torch_calls as calls
from . import _torch_tensors as tensors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal


def additive_attention(
    query: Tensor,
    key: Tensor | AdditiveKeys,
    value: Tensor,
    attention_v: Tensor | None,
    *,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    hidden_bias: Tensor | None = None,
    attn_mask: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    q_offset: int | Tensor | Literal["lower_right"] = 0,
    kv_lengths: int | Sequence[int] | Tensor | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
) -> Any:
    """`fastattn.additive_attention` of tensors, for inference: Bahdanau's scores.

    Parameters
    ----------
    query : Tensor (..., heads, queries, query_dim)
        float16, bfloat16, float32 or float64, on the CPU. Without `query_weight` it is projected
        already, and `query_dim` is `hidden`.
    key : Tensor (..., kv_heads, keys, key_dim), or AdditiveKeys
        As many axes and the same dtype as `query`; heads share keys in groups. Or what
        `prepare_additive_keys` made of an array that shares the tensor's memory, ``key.numpy()``
        (not under ``torch.compile``).
    value : Tensor (..., kv_heads, keys, value_dim)
    attention_v : Tensor (hidden,) or (heads, hidden), or None
        Float: the vector that weighs the values of tanh; None stands for ones.
    query_weight, key_weight : Tensor (query_dim, hidden) and (key_dim, hidden), optional
        Float. The weight of a ``torch.nn.Linear`` is the transposed one: give ``linear.weight.T``.
    hidden_bias : Tensor (hidden,), optional
    attn_mask, bias, is_causal, q_offset, kv_lengths, window, sinks, return_lse, return_weights
        As in `fastattn.additive_attention`; all arrays are tensors.

    Returns
    -------
    Tensor or tuple of Tensor
        out ``(..., heads, queries, value_dim)``, then lse ``(..., heads, queries)`` and weights
        ``(..., heads, queries, keys)``, if they are asked for. All are contiguous.

    Raises
    ------
    ValueError
        Shapes or values do not fit, or a gradient is wanted.
    TypeError
        A dtype or a type does not fit, or a tensor is not a dense one on the CPU.
    MemoryError
        There is not enough memory.

    Notes
    -----
    Values are read where they lie, queries and keys where they need neither projection nor
    conversion. The formula, its source (Bahdanau, Cho, Bengio 2015, arXiv:1409.0473) and all rules
    are those of `fastattn.additive_attention`. Under ``torch.compile`` the call is one operator,
    ``fastattn::additive_attention``.

    Examples
    --------
    >>> import torch
    >>> from fastattn.integrations.torch import additive_attention
    >>> state, memory = torch.randn(2, 1, 3, 16), torch.randn(2, 1, 7, 16)
    >>> out, weights = additive_attention(
    ...     state, memory, memory, torch.randn(16), kv_lengths=[7, 4], return_weights=True
    ... )
    >>> out.shape, weights.shape
    (torch.Size([2, 1, 3, 16]), torch.Size([2, 1, 3, 7]))
    """
    floats = {
        "attention_v": attention_v,
        "query_weight": query_weight,
        "key_weight": key_weight,
        "hidden_bias": hidden_bias,
        "bias": bias,
        "sinks": sinks,
    }
    rows = {"query": query, "value": value}
    if not isinstance(key, AdditiveKeys):
        rows["key"] = key
    tensors.check_gradients(**rows, **floats, attn_mask=attn_mask)
    for name, tensor in {**rows, **floats}.items():
        if tensor is not None or name in rows:
            tensors.check_float(tensor, name)
    for name, tensor in rows.items():
        if tensor.dtype is not query.dtype:
            raise TypeError(
                f"{name}: expected dtype {query.dtype} to match query, got {tensor.dtype}"
            )
    if attn_mask is not None:
        tensors.check(attn_mask, "attn_mask")
    is_lower_right = isinstance(q_offset, str)
    if is_lower_right and q_offset != "lower_right":
        raise ValueError(f"q_offset: expected integers or 'lower_right', got {q_offset!r}")
    left, right = (-1, -1) if window is None else _check_options.window(window)
    results = calls.additive_of_tensors(
        query,
        key,
        value,
        attention_v,
        query_weight,
        key_weight,
        hidden_bias,
        attn_mask,
        bias,
        sinks,
        None if is_lower_right else _counts(q_offset, "q_offset"),
        None if kv_lengths is None else _counts(kv_lengths, "kv_lengths"),
        is_causal,
        is_lower_right,
        left,
        right,
        return_lse,
        return_weights,
    )
    return results[0] if len(results) == 1 else tuple(results)


def _counts(x: int | Sequence[int] | Tensor, name: str) -> Tensor:
    """Integers as a tensor; of what dtype they are is checked where arrays are."""
    if not isinstance(x, Tensor):
        return torch.as_tensor(x, device="cpu")
    tensors.check(x, name)
    return x
