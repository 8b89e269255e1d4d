# SPDX-License-Identifier: MIT
"""Attention of PyTorch's tensors on CPUs: the same memory, read and written by fastattn.

For users, by ``import fastattn.integrations.torch``; it needs PyTorch (``pip install
"fastattn[torch]"``). ``_torch_tensors`` checks, ``_torch_calls`` computes. It is for inference:
there is no backward pass and no dropout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "fastattn.integrations.torch: expected PyTorch to be installed, found none: "
        'pip install "fastattn[torch]"'
    ) from error
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as _torch_sdpa
from torch.overrides import TorchFunctionMode

from .. import _check_options
from ..additive_keys import AdditiveKeys
from . import _torch_calls as calls
from . import _torch_tensors as tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal

__all__ = ["additive_attention", "scaled_dot_product_attention", "use_fastattn"]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    on_grad: Literal["error", "torch"] = "error",
) -> Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` on the CPU, for inference.

    Signature, broadcasting, masks and results are PyTorch's [1]_. Tensors are neither copied on
    their way in nor on their way out, whatever their strides, as long as elements of a row (the
    last axis) are neighbours.

    Parameters
    ----------
    query : Tensor (..., heads, queries, dim)
        float16, bfloat16, float32 or float64, on the CPU, with at least two axes.
    key : Tensor (..., heads, keys, dim)
        The dtype of `query`. All axes but the last two, heads among them, broadcast as in PyTorch,
        without copies. With `enable_gqa`: ``(..., kv_heads, keys, dim)``.
    value : Tensor (..., heads, keys, value_dim)
        As `key`; `value_dim` is free.
    attn_mask : Tensor, optional
        Broadcastable to ``(..., heads, queries, keys)``. bool: True where a row may attend. Float,
        of the dtype of `query` or float32: added to the scores, and -inf hides.
    dropout_p : float
        0.0 and nothing else.
    is_causal : bool
        Row ``i`` sees the keys ``j <= i``, however many keys there are. Not with `attn_mask`.
    scale : float, optional
        Factor of the dot products; ``1 / sqrt(dim)`` by default.
    enable_gqa : bool
        Query head ``h`` uses key head ``h // (heads // kv_heads)``; nothing is repeated in memory.
    on_grad : {"error", "torch"}
        What happens if gradients are enabled and one of the tensors requires them: an error, or
        PyTorch computes. PyTorch's own function has no such argument.

    Returns
    -------
    Tensor (..., heads, queries, value_dim)
        In the dtype of `query`. A query of four axes that lies in memory in another order, such as
        ``x.transpose(1, 2)`` of an ``x (batch, queries, heads, dim)``, has the result lie there in
        the same order if `value_dim` is `dim`, as PyTorch's kernel has it; so ``out.transpose(1,
        2)`` is contiguous then. All other results are contiguous.

    Raises
    ------
    ValueError
        Shapes or values do not fit (PyTorch raises RuntimeError); there is dropout, or a mask
        besides `is_causal`; or a gradient is wanted.
    TypeError
        A dtype or a type does not fit, or a tensor is not a dense one on the CPU.
    MemoryError
        There is not enough memory.

    Notes
    -----
    A row that may see no key is 0, as in PyTorch. What is better than there: NaN in keys and values
    that no row sees changes nothing. What is stricter: key and value have equally many heads, and a
    mask beside `is_causal` is an error, which PyTorch's documentation says and its CPU kernel does
    not check.

    fastattn computes on threads of its own: ``fastattn.set_num_threads`` sets their number, not
    ``torch.set_num_threads``. bfloat16 needs no ``ml_dtypes``; fastattn's NumPy backend computes it
    in float32 copies. Under ``torch.compile`` and ``torch.export`` the call is one operator,
    ``fastattn::scaled_dot_product_attention``.

    References
    ----------
    .. [1] https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html

    Examples
    --------
    >>> import torch
    >>> from fastattn.integrations.torch import scaled_dot_product_attention
    >>> query = torch.randn(1, 8, 5, 64, dtype=torch.bfloat16)
    >>> key = value = torch.randn(1, 2, 7, 64, dtype=torch.bfloat16)
    >>> scaled_dot_product_attention(query, key, value, enable_gqa=True).shape
    torch.Size([1, 8, 5, 64])
    """
    if on_grad not in ("error", "torch"):
        raise ValueError(f"on_grad: expected 'error' or 'torch', got {on_grad!r}")
    if on_grad == "error":
        tensors.check_gradients(query=query, key=key, value=value, attn_mask=attn_mask)
    elif any(map(tensors.wants_gradient, (query, key, value, attn_mask))):
        return _torch_sdpa(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        tensors.check_float(tensor, name)
        if tensor.dtype is not query.dtype:
            raise TypeError(
                f"{name}: expected dtype {query.dtype} to match query, got {tensor.dtype}"
            )
    if dropout_p != 0.0:
        raise ValueError(f"dropout_p: expected 0.0, as there is no dropout, got {dropout_p}")
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal: expected True or False, got {type(is_causal).__name__}")
    if attn_mask is not None:
        tensors.check_mask(attn_mask, query.dtype)
        if is_causal:
            raise ValueError("attn_mask: expected None with is_causal=True, got a tensor")
    query, key, value = tensors.aligned(query, key, value, enable_gqa)
    return calls.sdpa_of_tensors(query, key, value, attn_mask, is_causal, scale)


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


class use_fastattn(TorchFunctionMode):
    """Have ``torch.nn.functional.scaled_dot_product_attention`` computed by fastattn, in a block.

    Whoever calls it in the block, models and libraries too, and by whatever name they imported it.
    What fastattn does not compute is left to PyTorch, and so are its errors: tensors elsewhere than
    on the CPU, nested and sparse ones and subclasses with a behaviour of their own, dropout, and
    what does not fit.

    Parameters
    ----------
    on_grad : {"torch", "error"}
        What happens if gradients are enabled and a tensor requires them: PyTorch computes, or an
        error that says so. In nested blocks an outer ``"error"`` holds for the inner ones.

    Notes
    -----
    It is a ``torch.overrides.TorchFunctionMode``: PyTorch keeps a stack of these for each thread.
    So a block changes nothing for other threads (each enters one of its own), ends with its last
    line whether that raised or not, and nests; no name is patched. PyTorch asks the mode at every
    call of its functions, which costs some microseconds each. ``torch.nn.MultiheadAttention`` and
    the Transformer layers made of it are not reached: to a mode, PyTorch shows all that they do as
    one function (take `fastattn.layers.MultiHeadAttention`, which reads their weights).

    Examples
    --------
    >>> import torch
    >>> from fastattn.integrations.torch import use_fastattn
    >>> x = torch.randn(1, 8, 128, 64)
    >>> with torch.inference_mode(), use_fastattn():
    ...     out = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    """

    def __init__(self, *, on_grad: Literal["torch", "error"] = "torch") -> None:
        super().__init__()
        if on_grad not in ("error", "torch"):
            raise ValueError(f"on_grad: expected 'error' or 'torch', got {on_grad!r}")
        self._on_grad = on_grad

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not _torch_sdpa:
            return func(*args, **kwargs)
        try:
            return scaled_dot_product_attention(*args, **kwargs, on_grad=self._on_grad)
        except tensors.GradientError:
            raise
        except (TypeError, ValueError):
            return func(*args, **kwargs)
