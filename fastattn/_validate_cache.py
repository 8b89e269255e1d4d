# SPDX-License-Identifier: MIT
"""Every check of the caches: their sizes, what is appended, who attends, which entries stay.

For ``cache``; a query meets the cache's own keys and values in a call that ``_validate`` completes.
It keeps nothing and copies no tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _check_arrays as arrays
from . import _check_options as check
from . import _validate
from ._check_arrays import DTYPES, FLOAT32, INT64, float_dtype, ndarray
from ._quantize import INT8
from ._storage import Storage
from ._validate import SdpaCall

SHORT_DTYPES = "float32, float16 or bfloat16"
CACHE_DTYPES = DTYPES.replace(" or ", ", ") + " or int8"


def size(x: Any, name: str, at_least: int = 0) -> int:
    """A number of something that may be none."""
    n = check.integer(x, name)
    if n < at_least:
        raise ValueError(f"{name}: expected at least {at_least}, got {n}")
    return n


def element_type(x: Any) -> np.dtype:
    """The dtype that a name or anything like a NumPy dtype means."""
    if isinstance(x, str) and x == "bfloat16":  # a name that NumPy knows only from ml_dtypes
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError("dtype: 'bfloat16' needs the package ml_dtypes") from error
        x = ml_dtypes.bfloat16
    given = None
    if x is not None:  # which NumPy takes for float64
        try:
            given = np.dtype(x)
        except (TypeError, ValueError):
            pass
    if given == INT8:
        return INT8
    native = None if given is None else float_dtype(given)
    if native is None:
        raise TypeError(f"dtype: expected {CACHE_DTYPES}, got {x!r:.60}")
    return native


def check_dtypes(key: ndarray, value: ndarray, storage: Storage) -> None:
    """What is appended has the dtype of the cache; 8-bit caches take floats up to float32."""
    dtype = storage[0].dtype
    expected = f"{dtype}, that of the cache"
    if dtype == INT8:
        expected = f"{SHORT_DTYPES} for an int8 cache"
    for name, array in (("key", key), ("value", value)):
        given = float_dtype(array.dtype)
        # NumPy takes None for float64
        if given is None or (given.itemsize > 4 if dtype == INT8 else given != dtype):
            raise TypeError(f"{name}: expected dtype {expected}, got {array.dtype}")
    if float_dtype(key.dtype) != float_dtype(value.dtype):
        raise TypeError(f"value: expected dtype {key.dtype} to match key, got {value.dtype}")


def tokens(key: Any, value: Any, storage: Storage) -> tuple[ndarray, ndarray]:
    """What is appended: as many tokens of each, that fit the storage."""
    k = key if type(key) is ndarray else arrays.as_array(key, "key")
    v = value if type(value) is ndarray else arrays.as_array(value, "value")
    check_dtypes(k, v, storage)
    for name, array, store in (("key", k, storage[0]), ("value", v, storage[1])):
        n_batch, n_heads, _, dim = store.shape
        shape = array.shape
        if len(shape) != 4 or shape[:2] != (n_batch, n_heads) or shape[3] != dim:
            raise ValueError(
                f"{name}: expected shape ({n_batch}, {n_heads}, tokens, {dim}), got {shape}"
            )
    if v.shape[2] != k.shape[2]:
        raise ValueError(f"value: expected {k.shape[2]} tokens to match key, got {v.shape[2]}")
    return k, v


def entries(indices: Any, n_batch: int) -> ndarray:
    """Which entry each one becomes, as int64 in memory of its own."""
    a = check.integers(indices, "indices")
    if a.shape != (n_batch,):
        raise ValueError(f"indices: expected shape {(n_batch,)}, one an entry, got {a.shape}")
    wrong = (a < 0) | (a >= n_batch)
    if wrong.any():
        raise ValueError(f"indices: expected 0 to {n_batch - 1}, got {a[wrong][0]}")
    return np.array(a, INT64)


def at_most(x: Any, name: str, lengths: ndarray, lead: tuple) -> ndarray:
    """Lengths that are not above those that the entries have."""
    n_longest = int(lengths.max(initial=0))
    wanted = check.counts(x, name, lead, n_longest, "the longest length in the cache")
    above = np.flatnonzero(wanted > lengths)
    if above.size:
        entry = int(above[0])
        now = int(np.broadcast_to(lengths, wanted.shape)[entry])
        raise ValueError(
            f"{name}: expected at most {now} for entry {entry}, its length in the cache, "
            f"got {wanted[entry]}"
        )
    return wanted


def attend(
    query: Any,
    storage: Storage,
    lengths: ndarray,
    is_ragged: bool,
    options: dict[str, Any],
) -> SdpaCall:
    """A checked call of a query with all the cache has; `options` are those of `_validate.sdpa`.

    `storage` ends with the longest entry. It is read where it lies.
    """
    q = query if type(query) is ndarray else arrays.as_array(query, "query")
    heads_last = check.layout(options["layout"])
    key, value = storage[:2]
    dtype = query_dtype(q, key.dtype)
    _check_shape(q, key, heads_last)
    n_batch = key.shape[0] if key.shape[0] != 1 else q.shape[0]
    if options["kv_lengths"] is not None:
        own = at_most(options["kv_lengths"], "kv_lengths", lengths, (n_batch,))
        options["kv_lengths"] = own
    elif is_ragged:
        options["kv_lengths"] = lengths
    given = (key, value)
    if dtype != key.dtype:
        given = tuple(stand_in(a.shape, dtype) for a in given)
    if heads_last:
        given = tuple(a.swapaxes(1, 2) for a in given)
    call = _validate.sdpa(q, *given, **options)
    if dtype != key.dtype:
        call.set_rows(call.query, key)
        call.value = _entries(value, call)
    if len(storage) == 4:
        scales = (_entries(a.swapaxes(2, 3), call) for a in storage[2:])
        call.key_factors, call.value_factors = scales
    return call


def _entries(a: ndarray, call: SdpaCall) -> ndarray:
    """With as many entries as the call has."""
    shape = call.query.shape[:1] + a.shape[1:]
    return a if a.shape == shape else np.broadcast_to(a, shape)


def stand_in(shape: tuple, dtype: np.dtype) -> ndarray:
    """An array of that shape, with memory for one row: for the checks, where queries have another
    dtype than the cache."""
    row = np.empty(shape[-1], dtype)
    strides = (0,) * (len(shape) - 1) + (dtype.itemsize,)
    return ndarray(shape, dtype, row, 0, strides)


def query_dtype(q: ndarray, dtype: np.dtype) -> np.dtype:
    """That of queries to a cache of `dtype`: the same, or a wider one."""
    given = float_dtype(q.dtype)
    if dtype == INT8:
        if given is None or given.itemsize > 4:
            raise TypeError(
                f"query: expected dtype {SHORT_DTYPES} with an int8 cache, got {q.dtype}"
            )
        return given
    if given == dtype or (given is FLOAT32 and dtype.itemsize == 2):
        return given
    also = " or float32" if dtype.itemsize == 2 else ""
    raise TypeError(f"query: expected dtype {dtype}, that of the cache,{also} got {q.dtype}")


def _check_shape(q: ndarray, key: ndarray, heads_last: bool) -> None:
    n_batch, n_kv_heads, _, dim = key.shape
    if q.ndim != 4:
        axes = "(batch, queries, heads, dim)" if heads_last else "(batch, heads, queries, dim)"
        raise ValueError(f"query: expected 4 axes {axes}, got shape {q.shape}")
    if q.shape[3] != dim:
        raise ValueError(f"query: expected head size {dim}, that of the cache, got {q.shape[3]}")
    if q.shape[0] != n_batch and q.shape[0] != 1 and n_batch != 1:
        raise ValueError(
            f"query: expected {n_batch} or 1 entries along the first axis to match the cache, "
            f"got {q.shape[0]}"
        )
    check_heads(q.shape[2 if heads_last else 1], n_kv_heads)


def check_heads(n_heads: int, n_kv_heads: int) -> None:
    if n_heads != 0 and (n_kv_heads == 0 or n_heads % n_kv_heads != 0):
        raise ValueError(
            f"query: expected a number of heads that the {n_kv_heads} of the cache divide, "
            f"got {n_heads}"
        )
