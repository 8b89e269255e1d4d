# SPDX-License-Identifier: MIT
"""Two operators of PyTorch that fastattn computes, and the short cut past PyTorch's dispatcher.

For ``torch``, which checks tensors first. As operators they are one node of a graph for
``torch.compile``, ``torch.export`` and everything else that traces or counts; a plain call need not
go there, which saves more time than a small attention takes. Nothing here differentiates.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from .. import additive_attention
from .. import scaled_dot_product_attention as sdpa
from ..additive_keys import AdditiveKeys
from ._torch_tensors import as_array, as_tensor, empty_result, is_plain, keeps_order

# A compiler that moved the strides would have their copies made, and the result laid out otherwise
# than its graph says.
_TAGS = (getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),)
_SDPA = (
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale)"
    " -> Tensor"
)
_ADDITIVE = (
    "(Tensor query, Tensor key, Tensor value, Tensor? attention_v, Tensor? query_weight,"
    " Tensor? key_weight, Tensor? hidden_bias, Tensor? attn_mask, Tensor? bias, Tensor? sinks,"
    " Tensor? q_offset, Tensor? kv_lengths, bool is_causal, bool is_lower_right, int left,"
    " int right, bool return_lse, bool return_weights) -> Tensor[]"
)


def _may_skip_dispatch(*tensors: Tensor | None) -> bool:
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or is_in_torch_dispatch_mode()
        or not all(map(is_plain, tensors))
    )


def sdpa_of_tensors(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Checked tensors of equally many axes; query has all leading axes of the result."""
    if _may_skip_dispatch(query, key, value, attn_mask):
        return _sdpa(query, key, value, attn_mask, is_causal, scale)
    return _sdpa_op(query, key, value, attn_mask, is_causal, scale)


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    if scale is None and query.shape[-1] == 0:
        scale = 1.0  # products of nothing are 0, whatever their factor
    out = empty_result(query, value) if keeps_order(query, value) else None
    result = sdpa(
        as_array(query, "query"),
        as_array(key, "key"),
        as_array(value, "value"),
        None if attn_mask is None else as_array(attn_mask, "attn_mask"),
        is_causal=is_causal,
        scale=scale,
        out=None if out is None else as_array(out, "out"),
    )
    return as_tensor(result) if out is None else out


_sdpa_op = torch.library.custom_op(
    "fastattn::scaled_dot_product_attention",
    _sdpa,
    mutates_args=(),
    device_types="cpu",
    schema=_SDPA,
    tags=_TAGS,
)


@_sdpa_op.register_fake
def _(query, key, value, attn_mask, is_causal, scale):
    return empty_result(query, value)


def additive_of_tensors(
    query: Tensor, key: Tensor | AdditiveKeys, value: Tensor, *arguments: object
) -> list[Tensor]:
    """Checked tensors, and the other arguments of the operator; out, and what else is asked for."""
    if isinstance(key, AdditiveKeys) or _may_skip_dispatch(query, key, value):
        return _additive(query, key, value, *arguments)
    return _additive_op(query, key, value, *arguments)


def _additive(
    query: Tensor,
    key: Tensor | AdditiveKeys,
    value: Tensor,
    attention_v: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    hidden_bias: Tensor | None,
    attn_mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    q_offset: Tensor | None,
    kv_lengths: Tensor | None,
    is_causal: bool,
    is_lower_right: bool,
    left: int,
    right: int,
    return_lse: bool,
    return_weights: bool,
) -> list[Tensor]:
    tensors = {
        "attention_v": attention_v,
        "query_weight": query_weight,
        "key_weight": key_weight,
        "hidden_bias": hidden_bias,
        "attn_mask": attn_mask,
        "bias": bias,
        "sinks": sinks,
        "kv_lengths": kv_lengths,
    }
    options = {name: None if x is None else as_array(x, name) for name, x in tensors.items()}
    if is_lower_right:
        options["q_offset"] = "lower_right"
    elif q_offset is not None:
        options["q_offset"] = as_array(q_offset, "q_offset")
    results = additive_attention(
        as_array(query, "query"),
        key if isinstance(key, AdditiveKeys) else as_array(key, "key"),
        as_array(value, "value"),
        **options,
        is_causal=is_causal,
        window=(left, right),
        return_lse=return_lse,
        return_weights=return_weights,
    )
    return [as_tensor(x) for x in (results if isinstance(results, tuple) else (results,))]


_additive_op = torch.library.custom_op(
    "fastattn::additive_attention",
    _additive,
    mutates_args=(),
    device_types="cpu",
    schema=_ADDITIVE,
    tags=_TAGS,
)


@_additive_op.register_fake
def _(query, key, value, *arguments):
    return_lse, return_weights = arguments[-2:]
    lead = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    rows = (*lead, *query.shape[max(0, query.dim() - 3) : -1])
    results = [query.new_empty((*rows, value.shape[-1]))]
    if return_lse:
        wide = torch.float64 if query.dtype is torch.float64 else torch.float32
        results.append(query.new_empty(rows, dtype=wide))
    if return_weights:
        results.append(query.new_empty((*rows, value.shape[-2])))
    return results
