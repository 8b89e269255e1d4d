# SPDX-License-Identifier: MIT
"""Attention of PyTorch's tensors on CPUs: the same memory, read and written by fastattn.

For users, by ``import fastattn.integrations.torch``; it needs PyTorch (``pip install
"fastattn[torch]"``). ``_torch_tensors`` checks, ``_torch_calls`` computes, ``_torch_additive`` has
the other function. It is for inference: there is no backward pass and no dropout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from torch import Tensor
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "fastattn.integrations.torch: expected PyTorch to be installed, found none: "
        'pip install "fastattn[torch]"'
    ) from error
from torch.nn.functional import scaled_dot_product_attention as _torch_sdpa
from torch.overrides import TorchFunctionMode

from . import _torch_calls as calls
from . import _torch_tensors as tensors
from ._torch_additive import additive_attention

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
