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
from ._validate import SdpaCall


def size(x: Any, name: str) -> int:
    """A number of something that may be none."""
    n = check.integer(x, name)
    if n < 0:
        raise ValueError(f"{name}: expected at least 0, got {n}")
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
    native = None if given is None else float_dtype(given)
    if native is None:
        later = " (int8 caches do not exist yet)" if given == np.int8 else ""
        raise TypeError(f"dtype: expected {DTYPES}{later}, got {x!r:.60}")
    return native


def tokens(key: Any, value: Any, storage: tuple[ndarray, ndarray]) -> tuple[ndarray, ndarray]:
    """What is appended: as many tokens of each, that fit the storage."""
    k = key if type(key) is ndarray else arrays.as_array(key, "key")
    v = value if type(value) is ndarray else arrays.as_array(value, "value")
    for name, array, store in (("key", k, storage[0]), ("value", v, storage[1])):
        if array.dtype is not store.dtype and float_dtype(array.dtype) != store.dtype:
            raise TypeError(
                f"{name}: expected dtype {store.dtype}, that of the cache, got {array.dtype}"
            )
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
    a = arrays.as_array(indices, "indices")
    if a.size == 0 and isinstance(indices, (list, tuple)):
        a = a.astype(INT64)  # NumPy takes an empty list for floats
    if a.dtype.kind not in "iu":
        raise TypeError(f"indices: expected integers, got dtype {a.dtype}")
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
    key: ndarray,
    value: ndarray,
    lengths: ndarray,
    is_ragged: bool,
    options: dict[str, Any],
) -> SdpaCall:
    """A checked call of a query with all the cache has; `options` are those of `_validate.sdpa`.

    `key` and `value` end with the longest entry. They are read where they lie.
    """
    q = query if type(query) is ndarray else arrays.as_array(query, "query")
    heads_last = check.layout(options["layout"])
    is_mixed = _check_query(q, key, heads_last)
    n_batch = key.shape[0] if key.shape[0] != 1 else q.shape[0]
    if options["kv_lengths"] is not None:
        own = at_most(options["kv_lengths"], "kv_lengths", lengths, (n_batch,))
        options["kv_lengths"] = own
    elif is_ragged:
        options["kv_lengths"] = lengths
    given = (key, value)
    if is_mixed:  # the checks see arrays of these shapes that have the query's dtype
        given = tuple(_stand_in(a) for a in given)
    if heads_last:
        given = tuple(a.swapaxes(1, 2) for a in given)
    call = _validate.sdpa(q, *given, **options)
    if is_mixed:
        call.set_rows(call.query, key)
        shape = call.value.shape
        call.value = value if value.shape == shape else np.broadcast_to(value, shape)
    return call


def _stand_in(a: ndarray) -> ndarray:
    """A float32 array of its shape, with memory for one row."""
    row = np.empty(a.shape[3], FLOAT32)
    return ndarray(a.shape, FLOAT32, row, 0, (0, 0, 0, FLOAT32.itemsize))


def _check_query(q: ndarray, key: ndarray, heads_last: bool) -> bool:
    """Check dtype and shape, and say whether the dtype is not that of the cache."""
    dtype = key.dtype
    is_mixed = False
    if q.dtype is not dtype and float_dtype(q.dtype) != dtype:
        is_mixed = float_dtype(q.dtype) is FLOAT32 and dtype.itemsize == 2
        if not is_mixed:
            also = " or float32" if dtype.itemsize == 2 else ""
            raise TypeError(
                f"query: expected dtype {dtype}, that of the cache,{also} got {q.dtype}"
            )
    n_batch, n_kv_heads, _, dim = key.shape
    if q.ndim != 4:
        axes = "(batch, queries, heads, dim)" if heads_last else "(batch, heads, queries, dim)"
        raise ValueError(f"query: expected 4 axes {axes}, got shape {q.shape}")
    n_heads = q.shape[2 if heads_last else 1]
    if q.shape[3] != dim:
        raise ValueError(f"query: expected head size {dim}, that of the cache, got {q.shape[3]}")
    if q.shape[0] != n_batch and q.shape[0] != 1 and n_batch != 1:
        raise ValueError(
            f"query: expected {n_batch} or 1 entries along the first axis to match the cache, "
            f"got {q.shape[0]}"
        )
    if n_heads != 0 and (n_kv_heads == 0 or n_heads % n_kv_heads != 0):
        raise ValueError(
            f"query: expected a number of heads that the {n_kv_heads} of the cache divide, "
            f"got {n_heads}"
        )
    return is_mixed
