# SPDX-License-Identifier: MIT
"""The NumPy backend: plain and obviously right, and fast enough to fall back to.

For ``_backend``: it serves every dtype, and every call where nothing is compiled; other scores
than the dot product's build on it (``_reference_additive``). Windows of local attention and picks
of hard attention are worked out in ``_reference_local`` and ``_reference_hard``.
It has no threads of its own, checks no argument, and never holds more than a block of scores.

One block is some rows of some query heads that share a key head, with all the keys that they may
see; its softmax takes two passes over the scores. Blocks are cut by the sizes of one batch entry,
so an entry's bits depend on nothing else in the batch.
"""

from __future__ import annotations

import numpy as np

from . import _reference_hard as hard
from . import _reference_local as local
from ._bfloat16 import BFLOAT16, round_to, widened
from ._projection import normalized
from ._validate import SdpaCall
from ._validate_varlen import VarlenCall

_BLOCK = 1 << 18  # scores in a block: 1 MiB of float32, much work for a BLAS and little memory
_CHUNK = 2048  # longest float32 sum that is left to a BLAS, whose error grows with the length

_FLOAT32 = np.dtype(np.float32)
_LARGEST: dict[np.dtype, float] = {
    np.dtype(t): float(np.finfo(t).max) for t in (np.float32, np.float64)
}


def sdpa(call: SdpaCall) -> None:
    """Fill ``call.out`` and, where asked for, ``call.lse`` and ``call.weights``."""
    compute(call, Entry)


def varlen(call: VarlenCall, entry_type: type[Entry] | None = None) -> None:
    """The same for each of its sequences, with the scores of `entry_type`."""
    out = call.out
    if call.is_callers_out:  # as in `compute`
        call.out = np.zeros(out.shape, out.dtype)
    call.is_callers_out, is_callers_out = False, call.is_callers_out
    for entry in call.entries():
        compute(entry, entry_type or Entry)
    if is_callers_out:
        out[...] = call.out
        call.out = out


def compute(call: SdpaCall, entry_type: type[Entry]) -> None:
    """The same with the scores of `entry_type`."""
    if call.dtype == BFLOAT16:  # NumPy cannot compute with it
        _compute_wide(call, entry_type)
        return
    out = call.out
    if call.is_callers_out:  # written only when nothing can fail any more for want of memory
        out = np.empty(out.shape, out.dtype)
    with np.errstate(all="ignore"):
        if out.shape[-3] != 0:
            for entry, index in enumerate(np.ndindex(out.shape[:-3])):
                entry_type(call, entry, index, out[index]).compute()
        if call.is_callers_out:
            np.copyto(call.out, out)
        np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays behind


def _compute_wide(call: SdpaCall, entry_type: type[Entry]) -> None:
    """The same for arrays of `BFLOAT16`, in float32 copies of all of them."""
    out, weights = call.out, call.weights
    call.query, call.key, call.value = map(widened, (call.query, call.key, call.value))
    call.attn_mask = None if call.attn_mask is None else widened(call.attn_mask)
    call.bias = None if call.bias is None else widened(call.bias)
    call.dtype, call.is_callers_out = _FLOAT32, False
    call.out = np.empty(out.shape, _FLOAT32)
    call.weights = None if weights is None else np.empty(weights.shape, _FLOAT32)
    compute(call, entry_type)
    round_to(out, call.out)
    if weights is not None:
        round_to(weights, call.weights)
    call.out, call.weights, call.dtype = out, weights, BFLOAT16


def merge(
    outs: list[np.ndarray], lses: list[np.ndarray], dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Merge checked partial results, in float64 whatever they are."""
    with np.errstate(all="ignore"):
        sums = np.stack([lse.astype(np.float64) for lse in lses])
        top = sums.max(axis=0)
        top = np.where(top == -np.inf, 0.0, top)
        shares = np.exp(sums - top)
        total = shares.sum(axis=0)
        lse = np.asarray(top + np.log(total))
        shares = shares / np.where(total == 0.0, 1.0, total)
        out = np.zeros(outs[0].shape)
        for part, part_lse, share in zip(outs, sums, shares):
            seen = part_lse != -np.inf  # a part that saw no key adds nothing, whatever it holds
            part = np.where(seen[..., None], part.astype(np.float64), 0.0)
            out += share[..., None] * part
        acc = np.dtype(np.float64 if dtype == np.float64 else np.float32)
        results = out.astype(dtype), lse.astype(acc)
        np.add(1.0, 1.0)  # see sdpa
    return results


class Entry:
    """One entry of the batch, as views (heads, rows, dim) or (heads, queries, keys)."""

    def __init__(self, call: SdpaCall, entry: int, index: tuple[int, ...], out: np.ndarray) -> None:
        self.call = call
        self.acc = np.dtype(np.float64 if call.dtype == np.float64 else np.float32)
        self.query = call.query[index]
        self.key = call.key[index]
        self.value = call.value[index]
        self.out = out
        self.lse = None if call.lse is None else call.lse[index]
        self.weights = None if call.weights is None else call.weights[index]
        self.attn_mask = None if call.attn_mask is None else call.attn_mask[index]
        self.bias = None if call.bias is None else call.bias[index]
        self.length = self.key.shape[1] if call.kv_lengths is None else int(call.kv_lengths[entry])
        offset = call.q_offset
        self.offset = offset if isinstance(offset, int) else int(offset[entry])
        self.slopes = call.slopes
        if self.slopes is not None and self.slopes.ndim == 2:
            self.slopes = self.slopes[entry]
        self.key_factors = None if call.key_factors is None else call.key_factors[index]
        self.value_factors = None if call.value_factors is None else call.value_factors[index]
        self.centers = None
        if call.local is not None:
            self.centers = call.local.centers[index]
            self.half_width, self.sigma = call.local.half_width, call.local.sigma
        self.indices = None if call.hard is None else call.hard.indices[index]
        self.draws = None
        if call.hard is not None and call.hard.draws is not None:
            self.draws = call.hard.draws[index]
        # key j is visible from position p if p - left <= j <= p + right; -1 is unbounded
        self.left = call.left
        self.right = 0 if call.is_causal else call.right

    def compute(self) -> None:
        n_heads, n_queries, _ = self.query.shape
        group = n_heads // self.key.shape[0]
        n_keys = max(1, self.length)
        n_block_heads = max(1, min(group, _BLOCK // n_keys))
        n_rows = max(1, min(n_queries, _BLOCK // (n_keys * n_block_heads)))
        for first_head in range(0, n_heads, group):
            # beyond the length nothing may be read
            key = self.key[first_head // group, : self.length]
            value = self.value[first_head // group, : self.length]
            is_sparse = (
                self.centers is not None
                and group * n_queries * (2.0 * self.half_width + 1.0) < n_keys
            )
            if not is_sparse:  # else few of the keys are wanted at all
                key, value = _dense(key, self.acc), _dense(value, self.acc)
            if self.value_factors is not None:  # integers: what they stand for
                key = key * self.key_factors[first_head // group, 0, : self.length, None]
                value = value * self.value_factors[first_head // group, 0, : self.length, None]
            if self.centers is not None:
                for head in range(first_head, first_head + group):
                    centers, width = self.centers[head], self.half_width
                    for some in local.near_rows(centers, width, n_keys, _BLOCK):
                        self._block(slice(head, head + 1), some, key, value, None)
                continue
            value_is_finite = bool(np.isfinite(value).all())
            for head in range(first_head, first_head + group, n_block_heads):
                heads = slice(head, min(head + n_block_heads, first_head + group))
                for row in range(0, n_queries, n_rows):
                    rows = slice(row, min(row + n_rows, n_queries))
                    self._block(heads, rows, key, value, value_is_finite)

    def _block(
        self,
        heads: slice,
        rows: slice | np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        value_is_finite: bool | None,
    ) -> None:
        """One block: out, lse and weights of all its rows; `key` and `value` are all keys and
        values, as they were given or as BLAS takes them."""
        keys = self._key_range(heads, rows)
        key, value = key[keys], value[keys]
        if value_is_finite is None:
            key, value = _dense(key, self.acc), _dense(value, self.acc)
            value_is_finite = bool(np.isfinite(value).all())
        sinks = None if self.call.sinks is None else self.call.sinks[heads, None]
        scores = self._scores(heads, rows, key)
        if self.key_factors is not None and self.value_factors is None:
            key_head = heads.start // (len(self.query) // len(self.key))
            factors = self.key_factors[key_head, 0, keys]
            scores *= factors
            extreme = np.flatnonzero(np.isnan(factors))
            if len(extreme):  # these keys must come to length 1 before they are multiplied
                some = normalized(key[extreme], self.acc)
                scores[..., extreme] = self._scores(heads, rows, some)
        if self.call.softcap > 0.0:
            softcap = self.acc.type(self.call.softcap)
            scores /= softcap
            np.tanh(scores, out=scores)
            scores *= softcap
        n_heads, n_rows, n_keys = scores.shape
        terms, hidden = self._terms(heads, rows, keys)
        if terms is not None:
            scores = _plus(scores, terms)
        if hidden is not None:
            np.copyto(scores, -np.inf, where=hidden)

        if self.indices is not None:
            key_head = heads.start // (len(self.query) // len(self.key))
            self.indices[heads, rows], self.out[heads, rows] = hard.pick(
                scores,
                hidden,
                self.value[key_head, keys],
                keys.start,
                None if self.draws is None else self.draws[heads, rows],
            )
            return
        top = scores.max(axis=-1, initial=-np.inf)
        if sinks is not None:
            top = np.maximum(top, sinks)
        # a row is empty because of its masks, never because of its scores
        if n_keys == 0:
            top[top == -np.inf] = 0.0
        elif hidden is not None:
            top[np.broadcast_to(hidden.all(axis=-1), top.shape) & (top == -np.inf)] = 0.0
        scores -= top[..., None]
        weights = np.exp(scores, out=scores)
        total = weights.sum(axis=-1)
        if sinks is not None:
            total += np.exp(sinks - top)
        if self.lse is not None:
            self.lse[heads, rows] = top + np.log(total)
        # normalised before they meet the values, so that no sum of large values overflows
        weights /= np.where(total == 0.0, 1.0, total)[..., None].astype(self.acc)
        if self.centers is not None and self.sigma > 0.0:
            weights *= local.gaussian(self.centers[heads, rows], self.sigma, keys, self.acc)
        if hidden is not None and np.isnan(total).any():
            np.copyto(weights, 0.0, where=hidden)  # also where the row is NaN

        if self.weights is not None:
            self.weights[heads, rows] = 0.0
            self.weights[heads, rows, keys] = weights
        weights = weights.reshape(n_heads * n_rows, n_keys)
        if value_is_finite or hidden is None:
            out = _product(weights, value)
        else:
            hidden = np.broadcast_to(hidden, scores.shape).reshape(weights.shape)
            out = _careful_product(weights, value, ~hidden)
        self.out[heads, rows] = out.reshape(n_heads, n_rows, out.shape[-1])

    def _scores(self, heads: slice, rows: slice | np.ndarray, key: np.ndarray) -> np.ndarray:
        """What the softmax starts from, before anything is added: (heads, rows, keys)."""
        query = _dense(self.query[heads, rows], self.acc)
        n_heads, n_rows, size = query.shape
        if self.indices is None:
            scores = query.reshape(n_heads * n_rows, size) @ key.T
            scores = scores.reshape(n_heads, n_rows, key.shape[0])
        else:  # a BLAS may round the products of equal keys in different ways: the first must win
            scores = np.einsum("hrd,kd->hrk", query, key)
        scores *= self.acc.type(self.call.scale)
        return scores

    def _positions(self, rows: slice | np.ndarray) -> np.ndarray:
        if isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop, dtype=np.int64)
        return rows + self.offset

    def _key_range(self, heads: slice, rows: slice | np.ndarray) -> slice:
        """The keys that length, causality and windows leave to at least one of the rows."""
        positions = self._positions(rows)
        start, stop = 0, self.length
        if self.right >= 0:
            stop = min(stop, int(positions.max()) + self.right + 1)
        if self.left >= 0:
            start = max(0, int(positions.min()) - self.left)
        if self.centers is not None:
            first, last = local.windows(self.centers[heads, rows], self.half_width)
            start, stop = max(start, int(first.min())), min(stop, int(last.max()) + 1)
        stop = max(0, stop)
        return slice(min(start, stop), stop)

    def _terms(
        self, heads: slice, rows: slice | np.ndarray, keys: slice
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The sum of what is added to the scores, and what is hidden: None, or arrays that
        broadcast to (heads, rows, keys)."""
        terms: np.ndarray | None = None
        hidden: np.ndarray | None = None
        positions, columns = self._positions(rows), np.arange(keys.start, keys.stop)
        cuts_right = self.right >= 0 and keys.stop - 1 > positions.min() + self.right
        cuts_left = self.left >= 0 and keys.start < positions.max() - self.left
        if cuts_left or cuts_right or self.slopes is not None:
            distance = columns - positions[:, None]
            if cuts_right:
                hidden = distance > self.right
            if cuts_left:
                hidden = _either(hidden, distance < -self.left)
            if self.slopes is not None:
                largest = _LARGEST[self.acc]
                terms = np.abs(distance).astype(self.acc) * -self.slopes[heads, None, None]
                np.clip(terms, -largest, largest, out=terms)
        if self.centers is not None:
            starts, ends = local.windows(self.centers[heads, rows], self.half_width)
            outside = (columns < starts[..., None]) | (columns > ends[..., None])
            hidden = _either(hidden, outside)
        for array in (self.bias, self.attn_mask):
            if array is None:
                continue
            part = _without_repeats(array[heads, rows, keys])
            if part.dtype.kind == "b":
                hidden = _either(hidden, ~part)
                continue
            if part.dtype.itemsize == 2:
                part = part.astype(np.float32)  # exact; not every operation takes bfloat16
            hides = part == -np.inf
            if hides.any():
                hidden = _either(hidden, hides)
            part = _converted(part, self.acc)
            terms = part if terms is None else _plus(terms, part)
        return terms, hidden if hidden is not None and hidden.any() else None


def _dense(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """In the dtype of the scores and, so that a BLAS takes it, with rows one after another."""
    if array.dtype == dtype and array.ndim == 2:
        row_stride = array.strides[0]
        if row_stride >= array.shape[1] * array.itemsize and row_stride < 1 << 31:
            return array
    return np.ascontiguousarray(array, dtype=dtype)


def _without_repeats(array: np.ndarray) -> np.ndarray:
    """A broadcast array with its repeating axes cut to one: it broadcasts to the same."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]


def _either(hidden: np.ndarray | None, more: np.ndarray) -> np.ndarray:
    return more if hidden is None else hidden | more


def _converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """In another dtype; finite numbers stay finite."""
    converted = array.astype(dtype, copy=False)
    if converted.dtype != array.dtype:
        _saturate(converted, np.isfinite(array))
    return converted


def _plus(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sum; finite numbers have a finite sum."""
    total = a + b
    if not np.isfinite(total).all():
        _saturate(total, np.isfinite(a) & np.isfinite(b))
    return total


def _saturate(array: np.ndarray, where: np.ndarray) -> None:
    """Make infinities the largest numbers of their sign, where told to."""
    overflow = np.isinf(array) & where
    if overflow.any():
        array[overflow] = np.copysign(_LARGEST[array.dtype], array[overflow])


def _product(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """weights @ values; long float32 sums go by chunks into a wider one."""
    n_keys = values.shape[0]
    if n_keys <= _CHUNK or weights.dtype == np.float64:
        return weights @ values
    total = np.zeros((weights.shape[0], values.shape[1]))
    for start in range(0, n_keys, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        total += weights[:, chunk] @ values[chunk]
    return total.astype(weights.dtype)


def _careful_product(weights: np.ndarray, values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """weights @ values where infinities and NaN reach only the rows that see them."""
    finite = np.isfinite(values)
    out = _product(weights, np.where(finite, values, values.dtype.type(0)))
    bad = np.flatnonzero(~finite.all(axis=1))  # keys
    touched = (seen[:, bad].astype(np.float32) @ (~finite[bad]).astype(np.float32)) > 0.0
    for row in np.flatnonzero(touched.any(axis=1)):
        keys, columns = seen[row], touched[row]
        out[row, columns] = _product(weights[row : row + 1, keys], values[np.ix_(keys, columns)])
    return out
