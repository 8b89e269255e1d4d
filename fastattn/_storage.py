# SPDX-License-Identifier: MIT
"""Where a cache keeps its tokens: arrays (batch, kv_heads, capacity, dim) of keys and values; if
these are integers, also (..., 1) of their scales.

For ``cache``: to grow, to write behind what is there, to move entries, to copy what is real.
It knows no attention, checks nothing, and changes nothing before it has all the memory it needs.
"""

from __future__ import annotations

import numpy as np

from . import _check_arrays as arrays
from ._check_arrays import FLOAT32, ndarray
from ._quantize import INT8, quantized

Storage = tuple[ndarray, ...]  # beyond an entry's length it holds anything
Filling = tuple[ndarray, int, bool]  # lengths int64 (batch,), the longest, whether they differ


def empty(lead: tuple, k_size: int, v_size: int, dtype: np.dtype) -> Storage:
    """Keys and values ``(*lead, size)``, and scales where the dtype needs them."""
    tokens = arrays.empty((*lead, k_size), dtype), arrays.empty((*lead, v_size), dtype)
    if dtype != INT8:
        return tokens
    scales = arrays.empty((*lead, 1), FLOAT32), arrays.empty((*lead, 1), FLOAT32)
    return tokens + scales


def stored(tokens: Storage, storage: Storage) -> Storage:
    """Keys and values in the form in which `storage` keeps them."""
    if len(storage) == 2:
        return tokens
    (key, key_scales), (value, value_scales) = (quantized(rows) for rows in tokens)
    return key, value, key_scales, value_scales


def filling(lengths: ndarray) -> Filling:
    if len(lengths) == 0:
        return lengths, 0, False
    longest = int(lengths.max())
    return lengths, longest, int(lengths.min()) != longest


def with_room(storage: Storage, n_used: int, n_tokens: int) -> Storage:
    """Storage for that many tokens: this one, or a larger one that has its first `n_used` ones.

    It at least doubles: however many tokens come one by one, all the copying that they cause is
    that of twice as many.
    """
    capacity = storage[0].shape[2]
    if n_tokens <= capacity:
        return storage
    capacity = max(n_tokens, 2 * capacity)
    key, value = storage[:2]
    larger = empty((*key.shape[:2], capacity), key.shape[3], value.shape[3], key.dtype)
    for old, new in zip(storage, larger):
        new[:, :, :n_used] = old[:, :, :n_used]
    return larger


def write(storage: Storage, tokens: Storage, before: Filling, after: Filling) -> None:
    """Write tokens ``(batch, kv_heads, n, dim)``, of each entry as many as it gets longer."""
    starts, n_before, was_ragged = before
    ends, n_after, is_ragged = after
    for store, rows in zip(storage, tokens):
        if not was_ragged and not is_ragged:
            store[:, :, n_before:n_after] = rows[:, :, : n_after - n_before]
        elif rows.shape[2] == 1:  # one step of a ragged batch: all entries at once
            longer = np.flatnonzero(ends - starts)
            store[longer, :, starts[longer]] = rows[longer, :, 0]
        else:
            for entry, (start, end) in enumerate(zip(starts.tolist(), ends.tolist())):
                store[entry, :, start:end] = rows[entry, :, : end - start]


def move(storage: Storage, sources: ndarray, n_used: int) -> None:
    """Overwrite each entry with the first `n_used` tokens of the one that `sources` names."""
    moved = np.flatnonzero(sources != np.arange(len(sources)))
    copies = [store[sources[moved], :, :n_used] for store in storage]
    for store, rows in zip(storage, copies):
        store[moved, :, :n_used] = rows


def compact(storage: Storage, filled: Filling) -> Storage:
    """A copy that ends with the longest entry; what was never written is 0 in it."""
    lengths, longest, _ = filled
    copies = tuple(store[:, :, :longest].copy() for store in storage)
    padding = np.arange(longest) >= lengths[:, None]
    for array in copies:
        array[np.broadcast_to(padding[:, None], array.shape[:3])] = 0
    return copies
