# SPDX-License-Identifier: MIT
"""Bahdanau's attention of a decoder to its encoder's states, step by step or all steps at once.

For users, as ``fastattn.layers.BahdanauAttention``; thin code over ``additive_attention`` and
``prepare_additive_keys``. The recurrent cells around it stay in the user's framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _check_options as check
from ..additive import additive_attention, prepare_additive_keys
from ._forms import Form, broadcast_lead, memory_array
from ._layer import Layer
from ._weights import Weights, checked_input

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ..additive_keys import AdditiveKeys


class PreparedMemory:
    """A memory whose keys are projected, for all steps of a decoder: `BahdanauAttention.prepare`.

    It owns what it holds and never changes; any number of calls and threads may use it.

    Attributes
    ----------
    shape : tuple of int
        ``(..., keys)`` of the memory it was made of.
    dtype : numpy.dtype
        That of the layer.
    """

    __slots__ = ("_keys", "_value")

    _keys: AdditiveKeys  # (..., 1, keys, units)
    _value: np.ndarray  # (..., 1, keys, value_dim), compact, own memory

    def __init__(self, keys: AdditiveKeys, value: np.ndarray) -> None:
        self._keys = keys
        self._value = value

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self._keys.shape
        return (*shape[:-3], shape[-2])

    @property
    def dtype(self) -> np.dtype:
        return self._keys.dtype

    def __repr__(self) -> str:
        units, value_dim = self._keys.shape[-1], self._value.shape[-1]
        return (
            f"PreparedMemory(shape={self.shape}, units={units}, value_dim={value_dim}, "
            f"dtype={self.dtype.name!r})"
        )


class BahdanauAttention(Layer):
    """Additive attention with trained weights: ``softmax(v . tanh(q Wq + k Wk + b)) @ value``.

    Each step of a decoder gets a context of its own from the states of the encoder [1]_.

    Parameters
    ----------
    attention_v : array_like (units,)
        float16, bfloat16, float32 or float64; the others have the same dtype.
    query_weight : array_like (query_dim, units)
    key_weight : array_like (key_dim, units)
    hidden_bias : array_like (units,), optional
    normalizer : float, optional
        Weight normalisation [2]_: `attention_v` becomes ``normalizer * attention_v /
        |attention_v|``.

    Raises
    ------
    ValueError
        A shape does not fit, the normalizer is not finite, or `attention_v` is 0 with one.
    TypeError
        A weight has another dtype than the first, or none of the four.

    Notes
    -----
    float16 and bfloat16 are computed in float32 and rounded at the end. The weights are copied.
    Neither the tensor of the values of tanh nor a matrix of scores is ever in memory.

    References
    ----------
    .. [1] Bahdanau, Cho, Bengio: Neural Machine Translation by Jointly Learning to Align and
       Translate (2015), arXiv:1409.0473.
    .. [2] Salimans, Kingma: Weight Normalization (2016), arXiv:1602.07868.

    Examples
    --------
    >>> import numpy as np
    >>> import fastattn.layers
    >>> rng = np.random.default_rng(0)
    >>> layer = fastattn.layers.BahdanauAttention(
    ...     attention_v=rng.standard_normal(16),
    ...     query_weight=rng.standard_normal((20, 16)),
    ...     key_weight=rng.standard_normal((30, 16)),
    ... )
    >>> layer
    BahdanauAttention(query_dim=20, key_dim=30, units=16, dtype='float64')
    >>> encoded = rng.standard_normal((2, 7, 30))
    >>> memory = layer.prepare(encoded)  # once
    >>> for step in range(3):
    ...     state = rng.standard_normal((2, 20))
    ...     context, weights = layer(state, memory, memory_lengths=[7, 4], return_weights=True)
    >>> context.shape, weights.shape
    ((2, 30), (2, 7))
    >>> layer(rng.standard_normal((2, 3, 20)), encoded).shape  # three steps at once
    (2, 3, 30)
    """

    _attention_v: np.ndarray
    _query_weight: np.ndarray
    _key_weight: np.ndarray
    _hidden_bias: np.ndarray | None
    _sizes: tuple[int, int, int]  # query_dim, key_dim, units

    def __init__(
        self,
        *,
        attention_v: ArrayLike,
        query_weight: ArrayLike,
        key_weight: ArrayLike,
        hidden_bias: ArrayLike | None = None,
        normalizer: float | None = None,
    ) -> None:
        weights = Weights(
            {
                "attention_v": attention_v,
                "query_weight": query_weight,
                "key_weight": key_weight,
                "hidden_bias": hidden_bias,
            }
        )
        weights.agree(
            "units", {"attention_v": 0, "query_weight": 1, "key_weight": 1, "hidden_bias": 0}
        )
        vector = weights.need("attention_v", "units")
        if normalizer is not None:
            vector = _normalized(vector, check.real(normalizer, "normalizer"))
        self._set(
            _attention_v=vector,
            _query_weight=weights.need("query_weight", "query_dim", "units"),
            _key_weight=weights.need("key_weight", "key_dim", "units"),
            _hidden_bias=weights.take("hidden_bias", "units"),
            _dtype=weights.dtype,
            _sizes=tuple(weights.sizes[name] for name in ("query_dim", "key_dim", "units")),
        )

    def prepare(self, memory: ArrayLike, *, value: ArrayLike | None = None) -> PreparedMemory:
        """Project a memory once, for every step of a decoder.

        Parameters
        ----------
        memory : array_like (..., keys, key_dim)
        value : array_like (..., keys, value_dim), optional
            What is averaged; the memory itself by default. Both are copied.

        Returns
        -------
        PreparedMemory
            To be given to calls in place of `memory`. Their results have the bits of those with
            the memory itself.

        Raises
        ------
        ValueError, TypeError
            A shape or a dtype does not fit.
        """
        key, value = self._arrays(memory, value)
        keys = prepare_additive_keys(
            key, key_weight=self._key_weight, hidden_bias=self._hidden_bias
        )
        return PreparedMemory(keys, np.array(value, dtype=self._dtype, order="C"))

    def __call__(
        self,
        query: ArrayLike,
        memory: ArrayLike | PreparedMemory,
        *,
        value: ArrayLike | None = None,
        memory_lengths: ArrayLike | None = None,
        attn_mask: ArrayLike | None = None,
        return_weights: bool = False,
    ) -> Any:
        """The context of one step, or of a sequence of steps.

        Parameters
        ----------
        query : array_like (..., query_dim) or (..., queries, query_dim)
            One axis fewer than the memory: one step of each entry. As many: all steps at once.
        memory : array_like (..., keys, key_dim) or PreparedMemory
        value : array_like (..., keys, value_dim), optional
            What is averaged; the memory itself by default. Not with a `PreparedMemory`, which has
            it.
        memory_lengths : int or array_like of int, optional
            How many of the keys are real, 0 to `keys`: one for all or one an entry. What lies
            beyond is never used.
        attn_mask : array_like, optional
            Broadcastable to the shape of the weights; bool: **True where a key may be attended
            to** (where a mask has True for padding, give ``~mask``), float: added to the scores.
        return_weights : bool
            Also return the weights.

        Returns
        -------
        context : ndarray (..., value_dim) or (..., queries, value_dim)
            0 where there is no key to attend to.
        weights : ndarray (..., keys) or (..., queries, keys)
            If `return_weights`.

        Raises
        ------
        ValueError, TypeError
            A shape, a value or a dtype does not fit; the message begins with the argument's name.
        """
        q = checked_input(query, "query", self._dtype, self._sizes[0])
        key: Any
        if isinstance(memory, PreparedMemory):
            self._check_prepared(memory, value)
            key, v = memory._keys, memory._value
            shape = (*memory.shape, self._sizes[1])
            weight = bias = None
        else:
            key, v = self._arrays(memory, value)
            shape = (*key.shape[:-3], *key.shape[-2:])
            weight, bias = self._key_weight, self._hidden_bias
        form = Form(q, shape)
        broadcast_lead("value", v.shape[:-3], "query and memory", form.lead)
        result = additive_attention(
            form.query,
            key,
            v,
            self._attention_v,
            query_weight=self._query_weight,
            key_weight=weight,
            hidden_bias=bias,
            kv_lengths=form.lengths(memory_lengths),
            attn_mask=form.mask(attn_mask),
            return_weights=return_weights,
        )
        if isinstance(result, tuple):
            return tuple(map(form.result, result))
        return form.result(result)

    def _arrays(self, memory: Any, value: Any) -> tuple[np.ndarray, np.ndarray]:
        """Memory and value with an axis for the head."""
        key = checked_input(memory_array(memory), "memory", self._dtype, self._sizes[1])
        if value is None:
            return key[..., None, :, :], key[..., None, :, :]
        v = checked_input(memory_array(value, "value"), "value", self._dtype, None)
        if v.ndim != key.ndim or v.shape[-2] != key.shape[-2]:
            raise ValueError(
                f"value: expected {key.ndim} axes and {key.shape[-2]} keys to match memory, "
                f"got shape {v.shape}"
            )
        broadcast_lead("value", v.shape[:-2], "memory", key.shape[:-2])
        return key[..., None, :, :], v[..., None, :, :]

    def _check_prepared(self, memory: PreparedMemory, value: Any) -> None:
        if value is not None:
            raise ValueError(
                "value: expected None with a prepared memory, of which it is a part, "
                f"got {type(value).__name__}"
            )
        if memory.dtype != self._dtype:
            raise TypeError(
                f"memory: expected dtype {self._dtype}, that of the weights, got {memory.dtype}"
            )
        if memory._keys.shape[-1] != self._sizes[2]:
            raise ValueError(
                f"memory: expected one prepared for {self._sizes[2]} units, "
                f"got {memory._keys.shape[-1]}"
            )

    def _facts(self) -> dict[str, Any]:
        return dict(zip(("query_dim", "key_dim", "units"), self._sizes))


def _normalized(vector: np.ndarray, length: float) -> np.ndarray:
    """``length * vector / |vector|``, from float64."""
    wide = vector.astype(np.float64)
    top = abs(wide).max(initial=0.0)
    if top == 0.0:
        raise ValueError("attention_v: expected a vector that has a direction, got zeros")
    wide /= top  # squares of what is left neither overflow nor vanish
    with np.errstate(all="ignore"):
        result = (length * wide / np.sqrt((wide * wide).sum())).astype(vector.dtype)
        np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays behind
    result.flags.writeable = False
    return result
