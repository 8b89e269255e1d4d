# SPDX-License-Identifier: MIT
"""The heads of multi-head attention: their weights, and what is computed with them.

For ``multi_head`` and the Transformer layers: arrays in the dtype that is computed in, already
checked (``_multi_head_weights``, ``_multi_head_call``). Projections are one product for all
heads, whose result the kernels read in place; they write where the last product reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..functional import scaled_dot_product_attention
from ._layer import rounded
from ._linear import flat, linear

if TYPE_CHECKING:
    from ..cache import KVCache

    Projection = tuple[np.ndarray, np.ndarray | None]  # weight and bias


class ProjectedMemory:
    """Keys and values of a memory, projected: `MultiHeadAttention.project_memory`.

    It owns what it holds and never changes; any number of calls and threads may use it.

    Attributes
    ----------
    shape : tuple of int
        ``(..., keys)`` of the memory it was made of.
    dtype : numpy.dtype
        That of the layer.
    """

    __slots__ = ("_dtype", "_key", "_value")

    def __init__(self, key: np.ndarray, value: np.ndarray, dtype: np.dtype) -> None:
        self._key = key  # (..., keys, heads, dim), a view of memory with the heads first
        self._value = value
        self._dtype = dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._key.shape[:-2]

    @property
    def dtype(self) -> np.dtype:
        return self._dtype

    def __repr__(self) -> str:
        n_heads, dim = self._key.shape[-2:]
        return (
            f"ProjectedMemory(shape={self.shape}, num_kv_heads={n_heads}, head_dim={dim}, "
            f"value_head_dim={self._value.shape[-1]}, dtype={self._dtype.name!r})"
        )


@contextmanager
def unless_it_fails(cache: KVCache | None) -> Iterator[None]:
    """Have a cache forget what was appended to it in a block that raises."""
    if cache is None:
        yield
        return
    past = cache.lengths
    try:
        yield
    except BaseException:
        cache.truncate(past)
        raise


@dataclass(frozen=True, eq=False)
class Heads:
    """What a layer is made of. `packed` are the projections side by side, so that those of one
    input are one product: of all three inputs, or of key and value, or None where sizes differ.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    value_head_dim: int
    query_dim: int
    key_dim: int
    value_dim: int
    out_dim: int
    scale: float | None
    dtype: Any  # of the layer
    acc: np.dtype  # in which it computes, that of the weights
    packed: Projection | None
    packed_key_value: Projection | None
    query: Projection
    key: Projection
    value: Projection
    output: Projection | None

    def project_memory(self, key: np.ndarray, value: np.ndarray | None) -> ProjectedMemory:
        # with the heads first: a step reads each head's keys one after another
        parts = [np.ascontiguousarray(a.swapaxes(-3, -2)) for a in self._key_value(key, value)]
        return ProjectedMemory(*(a.swapaxes(-3, -2) for a in parts), self.dtype)

    def attend(
        self,
        rows: np.ndarray,
        axes: tuple[int, ...],
        key: np.ndarray | ProjectedMemory | None,
        value: np.ndarray | None,
        options: dict[str, Any],
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Result and weights of queries, a matrix of rows with these axes.

        None for a key or value stands for the one before. `options` are those of the function, and
        `lead`, the leading axes of the result.
        """
        lead = options["lead"]
        options = {name: x for name, x in options.items() if name != "lead"}
        if key is None:
            q, k, v = self._all(rows, axes)
        else:
            q = linear(rows, *self.query).reshape(*axes, self.n_heads, self.head_dim)
            is_projected = isinstance(key, ProjectedMemory)
            k, v = (key._key, key._value) if is_projected else self._key_value(key, value)
        heads = self._room((*lead, axes[-1]))
        result = scaled_dot_product_attention(
            q, k, v, scale=self.scale, layout="bshd", out=heads, **options
        )
        return self._merged(heads), result[1] if isinstance(result, tuple) else None

    def step(
        self,
        rows: np.ndarray,
        axes: tuple[int, ...],
        cache: KVCache,
        lengths: Any,
        options: dict[str, Any],
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The same for tokens that go to a cache; see `unless_it_fails`."""
        q, k, v = self._all(rows, axes)
        heads = self._room(axes)
        if cache.dtype.itemsize == 2:
            k, v = rounded(k, cache.dtype), rounded(v, cache.dtype)
        cache.append(k.swapaxes(1, 2), v.swapaxes(1, 2), lengths=lengths)
        result = cache.attend(q, scale=self.scale, layout="bshd", out=heads, **options)
        return self._merged(heads), result[1] if isinstance(result, tuple) else None

    def _room(self, axes: tuple[int, ...]) -> np.ndarray:
        return np.empty((*axes, self.n_heads, self.value_head_dim), self.acc)

    def _all(self, rows: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Query, key and value (..., rows, heads, dim): views of one array."""
        packed = linear(rows, *self.packed)
        n = self.n_heads * self.head_dim
        query = packed[:, :n].reshape(*axes, self.n_heads, self.head_dim)
        return query, *self._split(packed[:, n:], axes)

    def _key_value(self, key: np.ndarray, value: np.ndarray | None) -> tuple[np.ndarray, ...]:
        axes = key.shape[:-1]
        if value is None:
            return self._split(linear(flat(key, self.acc), *self.packed_key_value), axes)
        k = linear(flat(key, self.acc), *self.key)
        v = linear(flat(value, self.acc), *self.value)
        return (
            k.reshape(*axes, self.n_kv_heads, self.head_dim),
            v.reshape(*value.shape[:-1], self.n_kv_heads, self.value_head_dim),
        )

    def _split(self, packed: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        n = self.n_kv_heads * self.head_dim
        return (
            packed[:, :n].reshape(*axes, self.n_kv_heads, self.head_dim),
            packed[:, n:].reshape(*axes, self.n_kv_heads, self.value_head_dim),
        )

    def _merged(self, heads: np.ndarray) -> np.ndarray:
        """The heads side by side, through the output projection."""
        axes = heads.shape[:-2]
        joined = heads.reshape(*axes, self.n_heads * self.value_head_dim)
        if self.output is None:
            return joined
        return linear(flat(joined, self.acc), *self.output).reshape(*axes, self.out_dim)
