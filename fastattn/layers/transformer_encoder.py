# SPDX-License-Identifier: MIT
"""One layer of a Transformer's encoder: self-attention and a feed-forward network.

For users, as ``fastattn.layers.TransformerEncoderLayer``; with a cache it is a layer of a
decoder-only model. Attention is ``multi_head``'s, all the rest ``_feed_forward``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _multi_head_call as calls
from . import _torch
from ._feed_forward import Frame, checked_frame
from ._heads import unless_it_fails
from ._layer import Layer, rounded
from ._linear import flat
from .multi_head import MultiHeadAttention, check_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal

    from numpy.typing import ArrayLike, DTypeLike

    from ..cache import KVCache

_NAMES = calls.Names("src", "src", "src_mask", "src_key_padding_mask", "is_causal")


class TransformerEncoderLayer(Layer):
    """Self-attention and a feed-forward network, each with a residual connection and a norm [1]_.

    Parameters
    ----------
    self_attention : MultiHeadAttention
        From `dim` to `dim`; its dtype is that of the layer.
    linear1_weight : array_like (dim, hidden)
    linear2_weight : array_like (hidden, dim)
    norm1_weight, norm2_weight : array_like (dim,)
        Of the norms of attention and of the feed-forward network.
    linear1_bias, linear2_bias, norm1_bias, norm2_bias : array_like, optional
    activation : {"relu", "gelu"} or callable
        gelu is the exact one, with the error function. A function gets an array (tokens, hidden)
        of float32, or float64, which it may change, and returns one of the same shape.
    norm_first : bool
        ``x + part(norm(x))`` [2]_ instead of ``norm(x + part(x))``.
    norm_eps : float

    Raises
    ------
    ValueError
        A shape or a value does not fit.
    TypeError
        A weight has another dtype than `self_attention`, or an argument is of the wrong type.

    Notes
    -----
    float16 and bfloat16 are computed in float32 and rounded at the end. The weights are copied.
    There is no dropout. Masks have **True where a key may be attended to**: PyTorch's have True
    where it is ignored, so what is given to its module is given as ``~mask`` here.

    References
    ----------
    .. [1] Vaswani et al.: Attention Is All You Need (2017), arXiv:1706.03762.
    .. [2] Xiong et al.: On Layer Normalization in the Transformer Architecture (2020),
       arXiv:2002.04745.

    Examples
    --------
    >>> import numpy as np
    >>> import fastattn.layers
    >>> rng = np.random.default_rng(0)
    >>> names = ("query_weight", "key_weight", "value_weight", "output_weight")
    >>> layer = fastattn.layers.TransformerEncoderLayer(
    ...     self_attention=fastattn.layers.MultiHeadAttention(
    ...         num_heads=4, **{name: rng.standard_normal((32, 32)) for name in names}
    ...     ),
    ...     linear1_weight=rng.standard_normal((32, 64)),
    ...     linear2_weight=rng.standard_normal((64, 32)),
    ...     norm1_weight=np.ones(32),
    ...     norm2_weight=np.ones(32),
    ... )
    >>> layer  # doctest: +ELLIPSIS
    TransformerEncoderLayer(num_heads=4, dim=32, hidden=64, activation='relu', norm_first=False, ...
    >>> is_padding = np.arange(7) >= [[7], [5]]
    >>> layer(rng.standard_normal((2, 7, 32)), src_key_padding_mask=~is_padding).shape
    (2, 7, 32)
    """

    _attention: MultiHeadAttention
    _frame: Frame

    def __init__(
        self,
        *,
        self_attention: MultiHeadAttention,
        linear1_weight: ArrayLike,
        linear2_weight: ArrayLike,
        norm1_weight: ArrayLike,
        norm2_weight: ArrayLike,
        linear1_bias: ArrayLike | None = None,
        linear2_bias: ArrayLike | None = None,
        norm1_bias: ArrayLike | None = None,
        norm2_bias: ArrayLike | None = None,
        activation: Literal["relu", "gelu"] | Callable[[np.ndarray], Any] = "relu",
        norm_first: bool = False,
        norm_eps: float = 1e-5,
    ) -> None:
        heads = {"self_attention": check_attention(self_attention, "self_attention")}
        given = {
            "linear1_weight": linear1_weight,
            "linear2_weight": linear2_weight,
            "norm1_weight": norm1_weight,
            "norm2_weight": norm2_weight,
            "linear1_bias": linear1_bias,
            "linear2_bias": linear2_bias,
            "norm1_bias": norm1_bias,
            "norm2_bias": norm2_bias,
        }
        frame = checked_frame(heads, given, 2, activation, norm_first, norm_eps)
        self._set(_attention=self_attention, _frame=frame, _dtype=self_attention.dtype)

    @classmethod
    def from_torch(cls, module: Any) -> TransformerEncoderLayer:
        """The layer of a ``torch.nn.TransformerEncoderLayer`` with relu or (exact) gelu.

        Inputs are batch first, whatever the module's are, masks are the inverse of the module's,
        and there is no dropout.

        Raises
        ------
        ValueError
            The module has something that the layer has not.
        TypeError
            It is no such module.
        """
        _torch.check_module(module, "TransformerEncoderLayer", ("self_attn", "norm1"))
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
    ) -> TransformerEncoderLayer:
        """The layer of what ``torch.nn.TransformerEncoderLayer.state_dict()`` returns.

        Parameters
        ----------
        state : mapping of str to tensors or arrays
        num_heads : int
        activation, norm_first, norm_eps
            As for the class; a state does not have them.
        prefix : str
            What the names begin with, such as ``"encoder.layers.0."``.

        Raises
        ------
        ValueError
            A weight is missing or does not fit.
        """
        attention = MultiHeadAttention.from_state_dict(
            state, num_heads=num_heads, prefix=_torch.below(prefix, "self_attn.")
        )
        return cls(
            self_attention=attention,
            activation=activation,
            norm_first=norm_first,
            norm_eps=norm_eps,
            **_torch.transformer_weights(state, prefix, 2),
        )

    def __call__(
        self,
        src: ArrayLike,
        *,
        src_mask: ArrayLike | None = None,
        src_key_padding_mask: ArrayLike | None = None,
        is_causal: bool = False,
        cache: KVCache | None = None,
        lengths: ArrayLike | None = None,
    ) -> np.ndarray:
        """What the next layer gets.

        Parameters
        ----------
        src : array_like (..., length, dim)
        src_mask : array_like, optional
            As `attn_mask` of `MultiHeadAttention`: **True where a token may attend to another**.
        src_key_padding_mask : array_like (..., length), optional
            **True where there is a token, False for padding**.
        is_causal : bool
            Token ``i`` sees tokens up to itself.
        cache, lengths
            As in `MultiHeadAttention`.

        Returns
        -------
        ndarray (..., length, dim)

        Raises
        ------
        ValueError, TypeError
            A shape, a value or a dtype does not fit; the message begins with the argument's name.
        """
        heads, frame = self._attention._heads, self._frame
        x = calls.sequence(src, "src", heads.dtype, frame.dim)
        masks = calls.Masks(src_mask, src_key_padding_mask, is_causal)
        attend = calls.self_attention(heads, x.shape, cache, lengths, masks, _NAMES)
        rows = flat(x, heads.acc)
        with unless_it_fails(cache):
            rows = frame.around(rows, 0, attend)
            rows = frame.around(rows, 1, frame.feed_forward)
        return rounded(rows.reshape(x.shape), heads.dtype)

    def new_cache(
        self, batch: int, *, capacity: int = 0, dtype: DTypeLike | None = None
    ) -> KVCache:
        """An empty cache, as `MultiHeadAttention.new_cache` makes it."""
        return self._attention.new_cache(batch, capacity=capacity, dtype=dtype)

    def _facts(self) -> dict[str, Any]:
        return {"num_heads": self._attention._heads.n_heads, **self._frame.facts()}
