# SPDX-License-Identifier: MIT
"""One layer of a Transformer's decoder: self-attention, cross-attention, a feed-forward network.

For users, as ``fastattn.layers.TransformerDecoderLayer``. Attention is ``multi_head``'s, all the
rest ``_feed_forward``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _multi_head_call as calls
from . import _torch
from ._feed_forward import Frame, checked_frame
from ._heads import ProjectedMemory, unless_it_fails
from ._layer import Layer, rounded
from ._linear import flat
from .multi_head import MultiHeadAttention, check_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal

    from numpy.typing import ArrayLike, DTypeLike

    from ..cache import KVCache

_SELF = calls.Names("tgt", "tgt", "tgt_mask", "tgt_key_padding_mask", "tgt_is_causal")
_CROSS = calls.Names("tgt", "memory", "memory_mask", "memory_key_padding_mask", "memory_is_causal")


class TransformerDecoderLayer(Layer):
    """Self-attention, attention to an encoder's output, and a feed-forward network [1]_.

    Each has a residual connection and a norm.

    Parameters
    ----------
    self_attention, cross_attention : MultiHeadAttention
        From `dim` to `dim`, of one dtype, which is that of the layer. The key and value of
        `cross_attention` have the size of the memory.
    linear1_weight : array_like (dim, hidden)
    linear2_weight : array_like (hidden, dim)
    norm1_weight, norm2_weight, norm3_weight : array_like (dim,)
        Of the norms of the three parts, in this order.
    linear1_bias, linear2_bias, norm1_bias, norm2_bias, norm3_bias : array_like, optional
    activation, norm_first, norm_eps
        As in `TransformerEncoderLayer`.

    Raises
    ------
    ValueError, TypeError
        As in `TransformerEncoderLayer`.

    Notes
    -----
    float16 and bfloat16 are computed in float32 and rounded at the end. The weights are copied.
    There is no dropout. Masks have **True where a key may be attended to**: PyTorch's have True
    where it is ignored, so what is given to its module is given as ``~mask`` here.

    References
    ----------
    .. [1] Vaswani et al.: Attention Is All You Need (2017), arXiv:1706.03762.

    Examples
    --------
    Loaded from PyTorch, then token by token; ``memory`` (batch, keys, dim) and each ``token``
    (batch, 1, dim) are arrays::

        layer = fastattn.layers.TransformerDecoderLayer.from_torch(module)
        cache = layer.new_cache(batch)
        projected = layer.project_memory(memory)  # once
        for token in tokens:
            out = layer(token, projected, cache=cache, memory_key_padding_mask=~is_padding)
    """

    _self: MultiHeadAttention
    _cross: MultiHeadAttention
    _frame: Frame

    def __init__(
        self,
        *,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        linear1_weight: ArrayLike,
        linear2_weight: ArrayLike,
        norm1_weight: ArrayLike,
        norm2_weight: ArrayLike,
        norm3_weight: ArrayLike,
        linear1_bias: ArrayLike | None = None,
        linear2_bias: ArrayLike | None = None,
        norm1_bias: ArrayLike | None = None,
        norm2_bias: ArrayLike | None = None,
        norm3_bias: ArrayLike | None = None,
        activation: Literal["relu", "gelu"] | Callable[[np.ndarray], Any] = "relu",
        norm_first: bool = False,
        norm_eps: float = 1e-5,
    ) -> None:
        heads = {
            "self_attention": check_attention(self_attention, "self_attention"),
            "cross_attention": check_attention(cross_attention, "cross_attention"),
        }
        given = {
            "linear1_weight": linear1_weight,
            "linear2_weight": linear2_weight,
            "norm1_weight": norm1_weight,
            "norm2_weight": norm2_weight,
            "norm3_weight": norm3_weight,
            "linear1_bias": linear1_bias,
            "linear2_bias": linear2_bias,
            "norm1_bias": norm1_bias,
            "norm2_bias": norm2_bias,
            "norm3_bias": norm3_bias,
        }
        if heads["cross_attention"].packed_key_value is None:
            cross = heads["cross_attention"]
            raise ValueError(
                "cross_attention: expected the same key_dim and value_dim, "
                f"got {cross.key_dim} and {cross.value_dim}"
            )
        frame = checked_frame(heads, given, 3, activation, norm_first, norm_eps)
        self._set(
            _self=self_attention,
            _cross=cross_attention,
            _frame=frame,
            _dtype=self_attention.dtype,
        )

    @classmethod
    def from_torch(cls, module: Any) -> TransformerDecoderLayer:
        """The layer of a ``torch.nn.TransformerDecoderLayer`` with relu or (exact) gelu.

        As `TransformerEncoderLayer.from_torch`.
        """
        _torch.check_module(module, "TransformerDecoderLayer", ("self_attn", "multihead_attn"))
        options = _torch.module_options(module)
        return cls.from_state_dict(
            module.state_dict(), num_heads=module.self_attn.num_heads, **options
        )

    @classmethod
    def from_state_dict(
        cls,
        state: Mapping[str, Any],
        *,
        num_heads: int,
        activation: Literal["relu", "gelu"] | Callable[[np.ndarray], Any] = "relu",
        norm_first: bool = False,
        norm_eps: float = 1e-5,
        prefix: str = "",
    ) -> TransformerDecoderLayer:
        """The layer of what ``torch.nn.TransformerDecoderLayer.state_dict()`` returns.

        As `TransformerEncoderLayer.from_state_dict`.
        """
        own, cross = (
            MultiHeadAttention.from_state_dict(
                state, num_heads=num_heads, prefix=_torch.below(prefix, name)
            )
            for name in ("self_attn.", "multihead_attn.")
        )
        return cls(
            self_attention=own,
            cross_attention=cross,
            activation=activation,
            norm_first=norm_first,
            norm_eps=norm_eps,
            **_torch.transformer_weights(state, prefix, 3),
        )

    def __call__(
        self,
        tgt: ArrayLike,
        memory: ArrayLike | ProjectedMemory,
        *,
        tgt_mask: ArrayLike | None = None,
        memory_mask: ArrayLike | None = None,
        tgt_key_padding_mask: ArrayLike | None = None,
        memory_key_padding_mask: ArrayLike | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        cache: KVCache | None = None,
        lengths: ArrayLike | None = None,
    ) -> np.ndarray:
        """What the next layer gets.

        Parameters
        ----------
        tgt : array_like (..., length, dim)
        memory : array_like (..., keys, memory_dim) or ProjectedMemory
            What the encoder made; or what `project_memory` made of it.
        tgt_mask, memory_mask : array_like, optional
            As `attn_mask` of `MultiHeadAttention`: **True where a token may attend to another**.
        tgt_key_padding_mask, memory_key_padding_mask : array_like, optional
            ``(..., length)`` and ``(..., keys)``: **True where there is a token, False for
            padding**.
        tgt_is_causal, memory_is_causal : bool
            Token ``i`` sees tokens up to the i-th.
        cache, lengths
            As in `MultiHeadAttention`, for the self-attention.

        Returns
        -------
        ndarray (..., length, dim)

        Raises
        ------
        ValueError, TypeError
            A shape, a value or a dtype does not fit; the message begins with the argument's name.
        """
        own, cross, frame = self._self._heads, self._cross._heads, self._frame
        x = calls.sequence(tgt, "tgt", own.dtype, frame.dim)
        # the memory first: a cache must not have grown when it does not fit
        masks = calls.Masks(memory_mask, memory_key_padding_mask, memory_is_causal)
        attend_memory = calls.cross_attention(cross, x.shape, memory, masks, _CROSS)
        masks = calls.Masks(tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        attend = calls.self_attention(own, x.shape, cache, lengths, masks, _SELF)
        rows = flat(x, own.acc)
        with unless_it_fails(cache):
            rows = frame.around(rows, 0, attend)
            rows = frame.around(rows, 1, attend_memory)
            rows = frame.around(rows, 2, frame.feed_forward)
        return rounded(rows.reshape(x.shape), own.dtype)

    def project_memory(self, memory: ArrayLike) -> ProjectedMemory:
        """Project a memory once, for every step of a decoder."""
        heads = self._cross._heads
        return heads.project_memory(*calls.to_project(heads, memory, None, _CROSS.key))

    def new_cache(
        self, batch: int, *, capacity: int = 0, dtype: DTypeLike | None = None
    ) -> KVCache:
        """An empty cache of the self-attention, as `MultiHeadAttention.new_cache` makes it."""
        return self._self.new_cache(batch, capacity=capacity, dtype=dtype)

    def _facts(self) -> dict[str, Any]:
        return {"num_heads": self._self._heads.n_heads, **self._frame.facts()}
