# SPDX-License-Identifier: MIT
"""Checks of a call of multi-head attention: what it attends to, and with which masks.

For ``multi_head`` and the Transformer layers, which have other names for the same arguments.
What hides the last keys of an entry becomes a length, and nothing is expanded to the product of
two masks. It projects nothing and computes no attention.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import _check_arrays as arrays
from .. import _check_options as check
from ..cache import KVCache
from ._forms import broadcast_lead, checked_mask
from ._heads import Heads, ProjectedMemory
from ._linear import flat
from ._weights import checked_input


class Names(NamedTuple):
    """What the caller calls the arguments, for messages."""

    query: str = "query"
    key: str = "key"
    attn_mask: str = "attn_mask"
    key_padding_mask: str = "key_padding_mask"
    is_causal: str = "is_causal"


class Masks(NamedTuple):
    """What the caller gave."""

    attn_mask: Any = None
    key_padding_mask: Any = None
    is_causal: Any = False
    kv_lengths: Any = None


NAMES = Names()


def sequence(x: Any, name: str, dtype: Any, size: int) -> np.ndarray:
    """A checked array (..., length, size)."""
    array = checked_input(x, name, dtype, size)
    if array.ndim < 2:
        raise ValueError(
            f"{name}: expected at least 2 axes (..., length, {size}), got shape {array.shape}"
        )
    return array


def sources(heads: Heads, query: Any, key: Any, value: Any, name: str = NAMES.key) -> tuple:
    """Key and value, checked as they are; None for what is the same as the one before."""
    if isinstance(key, ProjectedMemory):
        if value is not None:
            raise ValueError(
                f"value: expected None with a projected memory, got {type(value).__name__}"
            )
        _check_projected(heads, key, name)
        return key, None
    if key is None and value is not None:
        raise ValueError(f"value: expected None without a key, got {type(value).__name__}")
    if value is key:
        value = None
    if value is None and (key is None or key is query):
        check_self_attention(heads, name)
        return None, None
    k = sequence(key, name, heads.dtype, heads.key_dim)
    if value is None:
        if heads.packed_key_value is None:
            raise ValueError(
                f"value: expected an array, as value_dim is {heads.value_dim} and key_dim "
                f"{heads.key_dim}, got None"
            )
        return k, None
    v = sequence(value, "value", heads.dtype, heads.value_dim)
    if v.ndim != k.ndim or v.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"value: expected {k.ndim} axes and {k.shape[-2]} keys to match {name}, "
            f"got shape {v.shape}"
        )
    broadcast_lead("value", v.shape[:-2], name, k.shape[:-2])
    return k, v


def to_project(heads: Heads, key: Any, value: Any, name: str = NAMES.key) -> tuple:
    """Key and value of a memory that is not projected yet."""
    if key is None or isinstance(key, ProjectedMemory):
        raise TypeError(f"{name}: expected an array, got {type(key).__name__}")
    return sources(heads, None, key, value, name)


def check_self_attention(heads: Heads, name: str = NAMES.key) -> None:
    if heads.packed is None:
        raise ValueError(
            f"{name}: expected an array, as query_dim is {heads.query_dim}, key_dim "
            f"{heads.key_dim} and value_dim {heads.value_dim}, got that of the query"
        )


def _check_projected(heads: Heads, memory: ProjectedMemory, name: str) -> None:
    if memory.dtype != heads.dtype:
        raise TypeError(
            f"{name}: expected dtype {heads.dtype}, that of the weights, got {memory.dtype}"
        )
    _check_sizes(
        heads, name, (*memory._key.shape[-2:], memory._value.shape[-1]), "a projected memory"
    )


def _check_sizes(heads: Heads, name: str, sizes: tuple, what: str) -> None:
    wanted = (heads.n_kv_heads, heads.head_dim, heads.value_head_dim)
    if sizes != wanted:
        raise ValueError(
            f"{name}: expected {what} of {wanted[0]} heads of sizes {wanted[1:]}, "
            f"got {sizes[0]} of {sizes[1:]}"
        )


def options(
    heads: Heads, shape: tuple, key: Any, value: Any, masks: Masks, names: Names = NAMES
) -> dict[str, Any]:
    """Options for `Heads.attend` of queries of this shape to checked sources."""
    lead, n_queries = shape[:-2], shape[-2]
    n_keys = n_queries
    if key is not None:
        axes = key.shape if isinstance(key, ProjectedMemory) else key.shape[:-1]
        if len(axes) != len(shape) - 1:
            raise ValueError(
                f"{names.key}: expected {len(shape)} axes to match {names.query}, "
                f"got {len(axes) + 1}"
            )
        n_keys = axes[-1]
        lead = broadcast_lead(names.key, axes[:-1], names.query, lead)
        if value is not None:
            lead = broadcast_lead("value", value.shape[:-2], names.query, lead)
    return _masks(names, (*lead, heads.n_heads, n_queries, n_keys), masks) | {"lead": lead}


def cache_options(
    heads: Heads, shape: tuple, cache: Any, lengths: Any, masks: Masks, names: Names = NAMES
) -> dict[str, Any]:
    """Options for `Heads.step` of tokens (batch, tokens, query_dim) that go to a cache."""
    check_self_attention(heads)
    if not isinstance(cache, KVCache):
        raise TypeError(f"cache: expected a KVCache, got {type(cache).__name__}")
    if len(shape) != 3:
        raise ValueError(
            f"{names.query}: expected 3 axes (batch, tokens, {heads.query_dim}) with a cache, "
            f"got shape {shape}"
        )
    if masks.kv_lengths is not None:
        kind = type(masks.kv_lengths).__name__
        raise ValueError(f"kv_lengths: expected None with a cache, got {kind}")
    if check.flag(masks.is_causal, names.is_causal):
        raise ValueError(
            f"{names.is_causal}: expected False with a cache, which is causal anyway, got True"
        )
    key, value = cache._store[:2]
    _check_sizes(heads, "cache", (key.shape[1], key.shape[3], value.shape[3]), "one")
    if (cache.dtype.itemsize == 8) != (heads.acc.itemsize == 8):
        fitting = "dtype float64" if heads.acc.itemsize == 8 else "another dtype than float64"
        raise TypeError(
            f"cache: expected {fitting} for weights of {heads.dtype}, got {cache.dtype}"
        )
    n_batch, n_tokens = shape[:2]
    if key.shape[0] != n_batch:
        raise ValueError(
            f"{names.query}: expected {key.shape[0]} entries to match cache, got {n_batch}"
        )
    past = cache.lengths
    after = past + n_tokens
    if lengths is not None:
        what = "the number of tokens given"
        after = past + check.counts(lengths, "lengths", (n_batch,), n_tokens, what)
    n_keys = int(after.max(initial=0))
    made = _masks(names, (n_batch, heads.n_heads, n_tokens, n_keys), masks)
    if "kv_lengths" in made:  # from the padding mask, for which all entries are equally long
        made["kv_lengths"] = np.minimum(made["kv_lengths"], after)
    return made | {"is_causal": True, "q_offset": past}


def _masks(names: Names, scores_shape: tuple[int, ...], masks: Masks) -> dict[str, Any]:
    """As options of the function, for scores (..., heads, queries, keys)."""
    lead, n_keys = scores_shape[:-3], scores_shape[-1]
    made: dict[str, Any] = {"is_causal": check.flag(masks.is_causal, names.is_causal)}
    if masks.kv_lengths is not None:
        lengths = check.counts(masks.kv_lengths, "kv_lengths", lead, n_keys, "the number of keys")
        made["kv_lengths"] = lengths.reshape(lead)
    if masks.attn_mask is not None:
        made["attn_mask"] = checked_mask(masks.attn_mask, names.attn_mask, scores_shape)
    if masks.key_padding_mask is not None:
        shape = (*lead, n_keys)
        padding = checked_mask(masks.key_padding_mask, names.key_padding_mask, shape)
        _add_padding(made, padding, lead, n_keys)
    return made


def _add_padding(made: dict[str, Any], padding: np.ndarray, lead: tuple, n_keys: int) -> None:
    if padding.dtype.kind == "b" and padding.ndim and padding.shape[-1] == n_keys:
        counts = np.asarray(np.count_nonzero(padding, axis=-1))
        if np.array_equal(padding, np.arange(n_keys) < counts[..., None]):
            # padding at the end: what lies there is not even looked at
            if "kv_lengths" in made:
                counts = np.minimum(made["kv_lengths"], counts)
            made["kv_lengths"] = np.broadcast_to(counts, lead)
            return
    if padding.ndim:
        padding = padding[..., None, None, :]
    if "attn_mask" not in made:
        made["attn_mask"] = padding
    elif padding.dtype.kind == "b":
        hide, keep = arrays.FLOAT32.type(-np.inf), arrays.FLOAT32.type(0)
        made["bias"] = np.where(padding, keep, hide)
    else:
        made["bias"] = padding


def self_attention(
    heads: Heads, shape: tuple, cache: Any, lengths: Any, masks: Masks, names: Names
) -> Any:
    """A function of rows, the tokens of this shape: their attention to each other, as rows.

    Everything is checked by then; only with a cache does it change anything.
    """
    axes = shape[:-1]
    if cache is None:
        if lengths is not None:
            raise ValueError(
                f"lengths: expected None without a cache, got {type(lengths).__name__}"
            )
        made = options(heads, shape, None, None, masks, names)
        return lambda rows: flat(heads.attend(rows, axes, None, None, made)[0], heads.acc)
    made = cache_options(heads, shape, cache, lengths, masks, names)
    return lambda rows: flat(heads.step(rows, axes, cache, lengths, made)[0], heads.acc)


def cross_attention(heads: Heads, shape: tuple, memory: Any, masks: Masks, names: Names) -> Any:
    """The same for the attention to a memory."""
    if not isinstance(memory, ProjectedMemory):
        memory = sequence(memory, names.key, heads.dtype, heads.key_dim)
    key, _ = sources(heads, None, memory, None, names.key)
    made = options(heads, shape, key, None, masks, names)
    if made["lead"] != shape[:-2]:
        raise ValueError(
            f"{names.key}: expected leading axes that broadcast to those of {names.query}, "
            f"{shape[:-2]}, got {key.shape}"
        )
    return lambda rows: flat(heads.attend(rows, shape[:-1], key, None, made)[0], heads.acc)
