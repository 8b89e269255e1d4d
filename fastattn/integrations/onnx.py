# SPDX-License-Identifier: MIT
"""The ``Attention`` operator of ONNX, opsets 23 to 25, for the reference evaluator.

For users, by ``from fastattn.integrations.onnx import Attention``; it needs onnx (``pip install
"fastattn[onnx]"``), which nothing else of the package imports. It checks the operator's rules and
turns them into a call of fastattn; it is no backend for other operators and changes no model.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

try:
    from onnx.defs import get_schema
    from onnx.reference.op_run import OpRun
except ImportError as error:
    raise ImportError(
        'fastattn.integrations.onnx needs onnx: pip install "fastattn[onnx]"'
    ) from error

from .. import _check_arrays as arrays
from ..functional import scaled_dot_product_attention
from . import _onnx_inputs as inputs

__all__ = ["Attention"]

_FIRST, _LAST = 23, 25  # the versions of the operator whose rules are here
_MASKED, _WEIGHTS = 2, 3  # of qk_matmul_output_mode; 0 is the plain product, 1 is capped


class Attention(OpRun):
    """ONNX's ``Attention``, computed by fastattn, for ``ReferenceEvaluator``.

    ``ReferenceEvaluator(model, new_ops=[Attention])`` takes it for every ``Attention`` node of the
    model; all other operators stay onnx's own. The node's attributes and the model's opset say
    which rules hold.

    Parameters
    ----------
    onnx_node : onnx.NodeProto
    run_params : dict
        What the evaluator gives to all its operators, among others the opsets.
    schema : onnx.defs.OpSchema, optional
        That of the operator in the model's opset by default.

    Raises
    ------
    ImportError
        By the import of this module: onnx is not installed.
    ValueError
        The opset is older than 23, or has an ``Attention`` newer than that of opset 25; an
        attribute or a shape does not fit. Messages name the operator's own inputs and attributes.
    TypeError
        A dtype does not fit.

    Notes
    -----
    Inputs and outputs, with `total` = `past` + `keys`::

        Q                 (batch, q_heads, queries, size)    or (batch, queries, q_heads * size)
        K                 (batch, kv_heads, keys, size)      or (batch, keys, kv_heads * size)
        V                 (batch, kv_heads, keys, v_size)    or (batch, keys, kv_heads * v_size)
        attn_mask         broadcastable to (batch, q_heads, queries, total); bool, or added
        past_key          (batch, kv_heads, past, size)      and past_value, with v_size
        nonpad_kv_seqlen  (batch,), from opset 24 on; not together with a past
        Y                 (batch, q_heads, queries, v_size)  or (batch, queries, q_heads * v_size)
        present_key       (batch, kv_heads, total, size)     and present_value, with v_size
        qk_matmul_output  (batch, q_heads, queries, total)

    ``scale``, ``softcap``, mask, ``is_causal`` and, in opset 25, ``left_window_size`` and
    ``right_window_size`` are those of `fastattn.scaled_dot_product_attention`, in the order of
    its steps. A query's position is its index plus the number of past keys, or plus
    ``nonpad_kv_seqlen - queries`` of its entry, or plus nothing. A row that sees no key is 0.

    A mask whose last axis is shorter than `total` hides the keys beyond it in opsets 24 and 25, an
    axis of length 1 too; in opset 23 it has to broadcast.

    ``softmax_precision`` is the least precision: scores and softmax are float32, or float64 for
    float64 inputs, and for 11 (DOUBLE) all is computed in float64. V may have another float type
    than Q and K; then all is computed in the wider one. Y has the type of Q.

    ``qk_matmul_output`` is made only for a node that names it, in the type of Q: by
    ``qk_matmul_output_mode`` the scaled products (0), after the softcap (1), with the mask (2:
    -inf where a row does not see a key, whatever the score there), or the weights (3). In mode 0
    it is without a softcap, as the operator's text and its function body have it.

    The operator, its versions and their text: https://onnx.ai/onnx/operators/onnx__Attention.html.

    Examples
    --------
    >>> import numpy as np
    >>> import onnx.helper, onnx.reference
    >>> from fastattn.integrations.onnx import Attention
    >>> node = onnx.helper.make_node("Attention", ["Q", "K", "V"], ["Y"], is_causal=1)
    >>> evaluator = onnx.reference.ReferenceEvaluator(node, new_ops=[Attention])
    >>> x = np.ones((1, 2, 3, 4), np.float32)
    >>> evaluator.run(None, {"Q": x, "K": x, "V": x})[0].shape
    (1, 2, 3, 4)
    """

    op_domain = ""

    def __init__(self, onnx_node: Any, run_params: dict[str, Any], schema: Any = None):
        self._opset = run_params["opsets"][onnx_node.domain]
        if self._opset < _FIRST:
            raise ValueError(f"Attention: expected opset {_FIRST} or newer, got {self._opset}")
        if schema is None:  # that of this opset: it says which attributes there are
            schema = get_schema("Attention", self._opset)
        if schema.since_version > _LAST:
            raise ValueError(
                f"Attention: expected the operator of opsets {_FIRST} to {_LAST}, "
                f"got that of opset {schema.since_version}"
            )
        super().__init__(onnx_node, run_params, schema)

    def run(self, *args: Any, **kwargs: Any) -> tuple:
        """Compute the node's outputs; None stands for those without a name."""
        try:
            results = super().run(*args, **kwargs)
        except TypeError as error:
            # the evaluator's own message lists types and says nothing of what was wrong
            if isinstance(error.__cause__, TypeError):
                raise error.__cause__ from None
            raise
        # The evaluator stores outputs by name, and "" is also how an input is left out: an array
        # there would become the mask of the next node that has none.
        return tuple(x if name else None for name, x in zip(self.output, results))

    def _run(
        self,
        Q: np.ndarray,
        K: np.ndarray,
        V: np.ndarray,
        attn_mask: np.ndarray | None = None,
        past_key: np.ndarray | None = None,
        past_value: np.ndarray | None = None,
        nonpad_kv_seqlen: np.ndarray | None = None,
        *,
        is_causal: int | None = 0,
        kv_num_heads: int | None = None,
        q_num_heads: int | None = None,
        scale: float | None = None,
        softcap: float | None = 0.0,
        softmax_precision: int | None = None,
        qk_matmul_output_mode: int | None = 0,
        left_window_size: int | None = -1,
        right_window_size: int | None = -1,
    ) -> tuple:
        mode = qk_matmul_output_mode or 0
        if mode not in range(4):
            raise ValueError(f"qk_matmul_output_mode: expected 0 to 3, got {mode}")
        wants_qk = len(self.output) > 3 and self.output[3] != ""
        window = inputs.window(left_window_size, right_window_size, self._opset)
        query, key, value = inputs.by_heads(Q, K, V, q_num_heads, kv_num_heads, self._opset)
        dtype, real = inputs.dtypes(query, key, value, softmax_precision)
        inputs.check_sizes(query, key, value)
        n_past = 0
        if past_key is not None or past_value is not None:
            if nonpad_kv_seqlen is not None:
                raise ValueError(
                    "nonpad_kv_seqlen: expected none beside past_key and past_value, got one"
                )
            past_key, past_value = inputs.pasts(past_key, past_value, key, value)
            n_past = past_key.shape[2]
            key = np.concatenate((past_key, key), axis=2)
            value = np.concatenate((past_value, value), axis=2)
        n_queries, size = query.shape[2:]
        n_keys = key.shape[2]
        if scale is None:
            if size == 0:
                raise ValueError("Q: expected a head size above 0, or the attribute scale, got 0")
            scale = 1.0 / math.sqrt(size)

        mask = None if attn_mask is None else inputs.mask(attn_mask, real)
        # Keys beyond a short mask are hidden: left out of the call, the mask need not be padded.
        n_seen = n_keys
        if mask is not None and mask.ndim > 0 and self._opset > _FIRST:
            n_seen = min(n_keys, mask.shape[-1])
        options: dict[str, Any] = {"is_causal": is_causal or 0}
        if is_causal or window is not None:
            options.update(window=window, q_offset=n_past)
        if nonpad_kv_seqlen is not None:
            lengths = inputs.lengths(nonpad_kv_seqlen, len(query), n_keys, self._opset)
            options["kv_lengths"] = np.minimum(lengths, n_seen)
            options["q_offset"] = lengths - n_queries

        with np.errstate(all="ignore"):  # of what a 16-bit type cannot hold
            results = _attend(
                [
                    x.astype(real, copy=False)
                    for x in (query, key[:, :, :n_seen], value[:, :, :n_seen])
                ],
                mask,
                is_flat=np.ndim(Q) == 3,
                scale=scale,
                softcap=softcap,
                return_weights=wants_qk and mode == _WEIGHTS,
                **options,
            )
            qk = np.empty(0, dtype)  # of a node without that output, which no one will see
            if wants_qk and mode == _WEIGHTS:
                qk = np.zeros((*query.shape[:3], n_keys), dtype)
                qk[..., :n_seen] = results[1]
            elif wants_qk:
                qk = _scores(query, key, scale, softcap if mode != 0 else 0, real)
                if mode == _MASKED:
                    _hide(qk, mask, n_seen, **options)
            return results[0].astype(dtype, copy=False), key, value, qk.astype(dtype, copy=False)


def _attend(
    operands: list[np.ndarray], mask: np.ndarray | None, *, is_flat: bool, **options: Any
) -> tuple:
    """Y, and the weights if `options` ask for them, of query, key and value by heads.

    `is_flat` says that Y has no axis of heads: it is written as its memory has to be.
    """
    if is_flat:
        operands = [x.swapaxes(1, 2) for x in operands]
        options["layout"] = "bshd"
    results = scaled_dot_product_attention(*operands, mask, **options)
    if not options["return_weights"]:
        results = (results,)
    if is_flat:
        n_entries, n_queries, n_heads, size = results[0].shape
        results = (results[0].reshape(n_entries, n_queries, n_heads * size), *results[1:])
    return results


def _scores(
    query: np.ndarray, key: np.ndarray, scale: float, softcap: float | None, real: np.dtype
) -> np.ndarray:
    """All products, scaled and capped, (batch, q_heads, queries, keys), of the softmax's dtype."""
    acc = arrays.FLOAT64 if real == arrays.FLOAT64 else arrays.FLOAT32
    n_entries, n_heads, n_queries, size = query.shape
    n_kv_heads, n_keys = key.shape[1:3]
    group = n_heads // n_kv_heads if n_kv_heads else 1
    rows = (query.astype(acc) * acc.type(scale)).reshape(
        n_entries, n_kv_heads, group * n_queries, size
    )
    scores = rows @ key.astype(acc, copy=False).swapaxes(2, 3)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    return scores.reshape(n_entries, n_heads, n_queries, n_keys)


def _hide(
    scores: np.ndarray,
    mask: np.ndarray | None,
    n_seen: int,
    *,
    is_causal: int,
    kv_lengths: np.ndarray | None = None,
    q_offset: Any = 0,
    window: tuple[int, int] | None = None,
) -> None:
    """Add the mask to scores (batch, heads, queries, keys); -inf where a row sees no key."""
    seen = scores[..., :n_seen]
    scores[..., n_seen:] = -np.inf
    keys = np.arange(n_seen)
    rows = np.arange(scores.shape[2])[:, None] + np.reshape(q_offset, (-1, 1, 1, 1))
    hidden = []
    if mask is not None and mask.dtype.kind == "b":
        hidden.append(~mask)
    elif mask is not None:
        mask = arrays.saturated(mask, scores.dtype)
        seen += mask
        hidden.append(np.isneginf(mask))
    if kv_lengths is not None:
        hidden.append(keys >= kv_lengths[:, None, None, None])
    if is_causal:
        hidden.append(keys > rows)
    if window is not None and window[0] != -1:
        hidden.append(keys < rows - window[0])
    if window is not None and window[1] != -1:
        hidden.append(keys > rows + window[1])
    for where in hidden:
        np.copyto(seen, -np.inf, where=where)
