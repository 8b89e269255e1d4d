# SPDX-License-Identifier: MIT
"""fastattn as a contender: on arrays, its caches in each form, packed sequences, and its layers.

Used through ``bench/contenders.py``; ``bench_caches.py`` and ``bench_varlen.py`` time the same
calls.  It measures nothing; others are in ``contenders.py`` and the files that it names.
"""

from __future__ import annotations

import functools

import numpy as np

import fastattn
from fastattn._cli import measure

from .contender import Contender, Prepared
from .layer_calls import fastattn_layer
from .serving import pieces

__all__ = ["STORAGES", "FastAttn"]

PAGE_SIZE = 64  # where the workload does not say


class FastAttn(Contender):
    """This package, from NumPy arrays to a NumPy array."""

    name, title = "fastattn", "fastattn"

    def __init__(self, n_threads):
        super().__init__(n_threads)
        fastattn.set_num_threads(n_threads)

    @classmethod
    def version(cls):
        return f"{fastattn.__version__}, {fastattn.get_backend()}"

    def prepare(self, workload, inputs):
        return Prepared(measure.caller(workload, inputs))

    def prepare_additive(self, workload, inputs):
        call, note = measure.caller(workload, inputs), ""
        if workload.has_prepared_keys:
            call()  # the first call with such keys brings them into the kernel's form
            note = "keys of prepare_additive_keys, made beforehand; the others' are projected only"
        return Prepared(call, note=note)

    def prepare_cached(self, workload, inputs):
        return Prepared(_cache_step(inputs, self.dtype_held(workload)), note="KVCache")

    def prepare_packed(self, workload, inputs):
        note = "varlen_attention"
        if workload.kind == "decode":
            note = f"PagedKVCache, pages of {PAGE_SIZE} tokens"
        return Prepared(_packed_call(workload, inputs), _heads_first, note)

    def prepare_layer(self, workload, inputs):
        return fastattn_layer(workload, inputs)


class _Storage(FastAttn):
    """One form of cache beside the others, in workloads that name it."""

    prepare = Contender.prepare
    prepare_additive = Contender.prepare_additive
    prepare_packed = Contender.prepare_packed
    prepare_layer = Contender.prepare_layer

    @classmethod
    def takes_part(cls, workload):
        return cls.name in getattr(workload, "storages", ())


class Float32(_Storage):
    """A float32 `KVCache`, whatever the dtype of the others."""

    name, title = "fastattn-float32", "fastattn float32"
    differences = "fastattn float32: the same numbers in a float32 KVCache, and a float32 query"

    @classmethod
    def dtype_held(cls, workload):
        return "float32"


class Int8(_Storage):
    """An int8 `KVCache`."""

    name, title = "fastattn-int8", "fastattn int8"
    differences = (
        "fastattn int8: KVCache(dtype='int8'), filled with the same numbers; its rate counts the"
        " bytes that it holds, its error is from float64 attention of the numbers as they were"
        " given, and may be 8 standard deviations of what rounding them does to the output"
    )

    @classmethod
    def dtype_held(cls, workload):
        return "int8"


class _Paged(_Storage):
    """A `PagedKVCache`."""

    page_size: int

    def prepare_cached(self, workload, inputs):
        call = _page_step(inputs, self.page_size)
        return Prepared(call, lambda out: out[:, :, None])  # one query of each sequence


class Paged16(_Paged):
    name, title, page_size = "fastattn-paged-16", "fastattn paged 16", 16


class Paged64(_Paged):
    name, title, page_size = "fastattn-paged-64", "fastattn paged 64", 64


class Paged256(_Paged):
    name, title, page_size = "fastattn-paged-256", "fastattn paged 256", 256


STORAGES = (Float32, Int8, Paged16, Paged64, Paged256)


def _cache_step(inputs, dtype):
    """A decoding step on a filled `KVCache` of this dtype, as a function without arguments.

    Parameters
    ----------
    inputs : dict
        Of a workload with arrays ``(batch, heads, length, head size)``.
    """
    query, key, value = inputs.values()
    if dtype != "int8":  # that takes, and rounds, what there is
        query, key, value = (a.astype(dtype, copy=False) for a in (query, key, value))
    batch, n_heads, n_keys, size = key.shape
    cache = fastattn.KVCache(batch, n_heads, size, capacity=n_keys, dtype=dtype)
    cache.append(key, value)
    return functools.partial(cache.attend, query)


def _page_step(inputs, page_size):
    """The same on a `PagedKVCache`; its output is ``(batch, heads, head size)``."""
    query, *tokens = (array.swapaxes(1, 2) for array in inputs.values())
    lengths = [tokens[0].shape[1]] * len(query)
    tokens = [array.reshape(-1, *array.shape[2:]) for array in tokens]
    return _paged(query[:, 0], *tokens, lengths, page_size)


def _packed_call(workload, inputs):
    """A packed workload as a function without arguments; its output is packed as well."""
    if workload.kind == "decode":
        return _paged(*inputs.values(), workload.lengths, PAGE_SIZE)
    ends = np.cumsum([0, *workload.lengths])
    return functools.partial(fastattn.varlen_attention, *inputs.values(), ends, ends)


def _paged(query, key, value, lengths, page_size):
    """A step of all sequences at once, on a cache that they have filled together.

    A page of each in turn: none has its pages in a row, as in a server.
    """
    n_heads, size = key.shape[1:]
    n_pages = sum(-(-n // page_size) for n in lengths)
    cache = fastattn.PagedKVCache(n_pages, page_size, n_heads, size, dtype=key.dtype)
    ids = [cache.add_sequence() for _ in lengths]
    where = pieces(lengths)
    for first in range(0, max(lengths), page_size):
        page = {
            i: np.arange(piece.start + first, min(piece.start + first + page_size, piece.stop))
            for i, piece in zip(ids, where)
            if piece.start + first < piece.stop
        }
        rows, ends = np.concatenate(list(page.values())), np.cumsum([0, *map(len, page.values())])
        cache.append(list(page), key[rows], value[rows], cu_seqlens=ends)
    return functools.partial(cache.attend, ids, query)


def _heads_first(out):
    """Packed output ``(tokens, heads, size)`` as ``(1, heads, tokens, size)``."""
    return out.swapaxes(0, 1)[None]
