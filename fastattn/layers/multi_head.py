# SPDX-License-Identifier: MIT
"""Multi-head attention with its projections, for self-attention, cross-attention and decoding.

For users, as ``fastattn.layers.MultiHeadAttention``. What it is made of is checked in
``_multi_head_weights``, calls in ``_multi_head_call``; ``_heads`` computes, for the Transformer
layers as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _check_options as check
from ..cache import KVCache
from . import _multi_head_call as calls
from . import _torch
from ._heads import Heads, ProjectedMemory, unless_it_fails
from ._layer import Layer, rounded
from ._linear import flat
from ._multi_head_weights import checked_heads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, DTypeLike


class MultiHeadAttention(Layer):
    """Scaled dot-product attention in several heads, with its projections [1]_.

    Head ``h`` attends with its part of the columns of each weight; the results of all heads, side
    by side, are multiplied with `output_weight`.

    Parameters
    ----------
    num_heads : int
        At least 1.
    query_weight : array_like (query_dim, num_heads * head_dim)
        float16, bfloat16, float32 or float64; the others have the same dtype. Matrices are as in
        ``x @ weight``: PyTorch's are transposed (see `from_torch`).
    key_weight : array_like (key_dim, num_kv_heads * head_dim)
    value_weight : array_like (value_dim, num_kv_heads * value_head_dim)
    output_weight : array_like (num_heads * value_head_dim, out_dim), optional
        Without it (and `output_bias`) the result is that of the heads, side by side.
    query_bias, key_bias, value_bias, output_bias : array_like, optional
        As long as their weights have columns.
    num_kv_heads : int, optional
        `num_heads` by default; it must divide it: query head ``h`` uses key head ``h //
        (num_heads // num_kv_heads)`` [2]_.
    scale : float, optional
        ``1 / sqrt(head_dim)`` by default.

    Raises
    ------
    ValueError
        A shape or a number does not fit.
    TypeError
        A weight has another dtype than the first, or none of the four.

    Notes
    -----
    float16 and bfloat16 are computed in float32 and rounded at the end. The weights are copied.
    Neither the matrix of scores nor a product of masks is ever in memory, but the weights if
    `return_weights` asks. Masks have **True where a key may be attended to**: PyTorch's modules
    have True where it is ignored, so what is given to them is given as ``~mask`` here.

    References
    ----------
    .. [1] Vaswani et al.: Attention Is All You Need (2017), arXiv:1706.03762.
    .. [2] Ainslie et al.: GQA (2023), arXiv:2305.13245.

    Examples
    --------
    >>> import numpy as np
    >>> import fastattn.layers
    >>> rng = np.random.default_rng(0)
    >>> names = ("query_weight", "key_weight", "value_weight", "output_weight")
    >>> layer = fastattn.layers.MultiHeadAttention(
    ...     num_heads=4, **{name: rng.standard_normal((32, 32)) for name in names}
    ... )
    >>> layer
    MultiHeadAttention(num_heads=4, query_dim=32, head_dim=8, out_dim=32, dtype='float64')
    >>> x = rng.standard_normal((2, 7, 32))
    >>> is_padding = np.arange(7) >= [[7], [5]]
    >>> layer(x, key_padding_mask=~is_padding, is_causal=True).shape
    (2, 7, 32)

    A token at a time, with a cache:

    >>> cache = layer.new_cache(2)
    >>> steps = [layer(x[:, i : i + 1], cache=cache) for i in range(7)]
    >>> bool(np.allclose(np.concatenate(steps, axis=1), layer(x, is_causal=True)))
    True

    From PyTorch::

        layer = fastattn.layers.MultiHeadAttention.from_torch(module)
        out = layer(x, key_padding_mask=~mask)  # where the module got key_padding_mask=mask
    """

    _heads: Heads

    def __init__(
        self,
        *,
        num_heads: int,
        query_weight: ArrayLike,
        key_weight: ArrayLike,
        value_weight: ArrayLike,
        output_weight: ArrayLike | None = None,
        query_bias: ArrayLike | None = None,
        key_bias: ArrayLike | None = None,
        value_bias: ArrayLike | None = None,
        output_bias: ArrayLike | None = None,
        num_kv_heads: int | None = None,
        scale: float | None = None,
    ) -> None:
        given = {
            "query_weight": query_weight,
            "key_weight": key_weight,
            "value_weight": value_weight,
            "output_weight": output_weight,
            "query_bias": query_bias,
            "key_bias": key_bias,
            "value_bias": value_bias,
            "output_bias": output_bias,
        }
        heads = checked_heads(num_heads, num_kv_heads, scale, given)
        self._set(_heads=heads, _dtype=heads.dtype)

    @classmethod
    def from_torch(cls, module: Any) -> MultiHeadAttention:
        """The layer of a ``torch.nn.MultiheadAttention``, with packed or separate projections.

        Inputs are batch first, whatever the module's are, masks are the inverse of the module's,
        and there is no dropout.

        Raises
        ------
        ValueError
            The module has ``bias_k``, ``bias_v`` or ``add_zero_attn``.
        TypeError
            It is no such module.
        """
        _torch.check_module(module, "MultiheadAttention", ("num_heads", "add_zero_attn"))
        if module.add_zero_attn:
            raise ValueError("module: expected add_zero_attn=False, got True")
        return cls.from_state_dict(module.state_dict(), num_heads=module.num_heads)

    @classmethod
    def from_state_dict(
        cls, state: Mapping[str, Any], *, num_heads: int, prefix: str = ""
    ) -> MultiHeadAttention:
        """The layer of what ``torch.nn.MultiheadAttention.state_dict()`` returns.

        Parameters
        ----------
        state : mapping of str to tensors or arrays
        num_heads : int
        prefix : str
            What the names begin with, such as ``"encoder.layers.0.self_attn."``.

        Raises
        ------
        ValueError
            A weight is missing or does not fit, or there is a ``bias_k`` or ``bias_v``.
        """
        return cls(num_heads=num_heads, **_torch.attention_weights(state, prefix))

    def __call__(
        self,
        query: ArrayLike,
        key: ArrayLike | ProjectedMemory | None = None,
        value: ArrayLike | None = None,
        *,
        key_padding_mask: ArrayLike | None = None,
        attn_mask: ArrayLike | None = None,
        is_causal: bool = False,
        kv_lengths: ArrayLike | None = None,
        window: int | tuple[int | None, int | None] | None = None,
        cache: KVCache | None = None,
        lengths: ArrayLike | None = None,
        return_weights: bool = False,
    ) -> Any:
        """Self-attention, cross-attention, or a step of a decoder.

        Parameters
        ----------
        query : array_like (..., queries, query_dim)
        key : array_like (..., keys, key_dim) or ProjectedMemory, optional
            The query by default.
        value : array_like (..., keys, value_dim), optional
            The key by default. Not with a `ProjectedMemory`.
        key_padding_mask : array_like (..., keys), optional
            bool: **True where a key may be attended to** (float: added to the scores).
        attn_mask : array_like, optional
            ``(queries, keys)`` or what broadcasts to ``(..., heads, queries, keys)``; bool: **True
            where a query may attend to a key**, float: added to the scores. Both masks may be
            given.
        is_causal : bool
            Query ``i`` sees keys up to ``i``.
        kv_lengths : int or array_like of int, optional
            How many of the keys are real: one for all or one an entry. What lies beyond is never
            used.
        window : int or (left, right), optional
            As in `scaled_dot_product_attention`.
        cache : KVCache, optional
            Of `new_cache`: the tokens of `query` (batch, tokens, query_dim) are projected, appended
            and attend to all that is there up to themselves. `key`, `value`, `is_causal` and
            `kv_lengths` are not given then, and the masks' keys are all that is there then. A
            call that fails leaves the cache as it was.
        lengths : int or array_like of int (batch,), optional
            With a cache: how many of the tokens are real (prompts of different lengths, padded at
            the end); rows of the result that belong to padding mean nothing.
        return_weights : bool
            Also return the weights.

        Returns
        -------
        out : ndarray (..., queries, out_dim)
        weights : ndarray (..., heads, queries, keys)
            If `return_weights`. PyTorch's are averaged: ``weights.mean(-3)``.

        Raises
        ------
        ValueError, TypeError
            A shape, a value or a dtype does not fit; the message begins with the argument's name.
        """
        heads = self._heads
        x = calls.sequence(query, "query", heads.dtype, heads.query_dim)
        masks = calls.Masks(attn_mask, key_padding_mask, is_causal, kv_lengths)
        if cache is None:
            _refuse(lengths=lengths, why="without a cache")
            key, value = calls.sources(heads, query, key, value)
            options = calls.options(heads, x.shape, key, value, masks)
        else:
            _refuse(key=key, value=value, why="with a cache")
            options = calls.cache_options(heads, x.shape, cache, lengths, masks)
        options["return_weights"] = check.flag(return_weights, "return_weights")
        if window is not None:
            options["window"] = check.window(window)
        rows = flat(x, heads.acc)
        if cache is None:
            out, weights = heads.attend(rows, x.shape[:-1], key, value, options)
        else:
            with unless_it_fails(cache):
                out, weights = heads.step(rows, x.shape[:-1], cache, lengths, options)
        out = rounded(out, self._dtype)
        return out if weights is None else (out, rounded(weights, self._dtype))

    def new_cache(
        self, batch: int, *, capacity: int = 0, dtype: DTypeLike | None = None
    ) -> KVCache:
        """An empty `KVCache` of the right sizes; of the layer's dtype unless told otherwise.

        A layer in float32, float16 or bfloat16 may use any cache but a float64 one. What is
        appended is rounded to its dtype.
        """
        return KVCache(
            batch,
            self._heads.n_kv_heads,
            self._heads.head_dim,
            value_head_size=self._heads.value_head_dim,
            capacity=capacity,
            dtype=self._dtype if dtype is None else dtype,
        )

    def project_memory(self, key: ArrayLike, value: ArrayLike | None = None) -> ProjectedMemory:
        """Project the keys and values of a memory once, for every step of a decoder.

        Parameters
        ----------
        key : array_like (..., keys, key_dim)
        value : array_like (..., keys, value_dim), optional
            The key by default.

        Returns
        -------
        ProjectedMemory
            To be given to calls as their `key`.
        """
        return self._heads.project_memory(*calls.to_project(self._heads, key, value))

    def _facts(self) -> dict[str, Any]:
        heads = self._heads
        facts = {
            "num_heads": heads.n_heads,
            "num_kv_heads": heads.n_kv_heads,
            "query_dim": heads.query_dim,
            "key_dim": heads.key_dim,
            "value_dim": heads.value_dim,
            "head_dim": heads.head_dim,
            "value_head_dim": heads.value_head_dim,
            "out_dim": heads.out_dim,
        }
        usual = {
            "num_kv_heads": heads.n_heads,
            "key_dim": heads.query_dim,
            "value_dim": heads.key_dim,
            "value_head_dim": heads.head_dim,
        }
        return {name: n for name, n in facts.items() if usual.get(name) != n}


def _refuse(why: str, **given: Any) -> None:
    for name, x in given.items():
        if x is not None:
            raise ValueError(f"{name}: expected None {why}, got {type(x).__name__}")


def check_attention(x: Any, name: str) -> Heads:
    """Those of an attention that another layer is made of."""
    if not isinstance(x, MultiHeadAttention):
        raise TypeError(f"{name}: expected a MultiHeadAttention, got {type(x).__name__}")
    return x._heads
