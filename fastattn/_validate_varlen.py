# SPDX-License-Identifier: MIT
"""Checks of packed sequences: where each begins and ends, and what is one a sequence.

For ``varlen``; all that has nothing to do with sequences is checked by ``_validate.sdpa``, as one
long sequence. It computes no attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import _check_arrays as arrays
from . import _check_options as check
from . import _validate
from ._check_arrays import FLOAT32, FLOAT64, INT64, ndarray
from ._validate import SdpaCall
from ._validate_additive import AdditiveCall
from .additive_keys import AdditiveKeys


class VarlenCall(SdpaCall):
    """One checked call of packed sequences, as the backends see it.

    The fields are those of `SdpaCall` (or `AdditiveCall`, if there is an ``attention_v``) for all
    tokens as one entry without leading axes: ``query (heads, tokens, dim)`` and so on; but
    ``q_offset`` and ``slopes`` may be one a sequence.
    """

    __slots__ = ("attention_v", "cu_queries", "cu_keys", "pages", "first_pages")

    attention_v: ndarray | None  # additive scores: see `AdditiveCall`

    cu_queries: ndarray  # (sequences + 1,) int64: from 0, never decreasing
    cu_keys: ndarray
    pages: ndarray | None  # int32, compact: see `_validate_paged.PagedCall`
    first_pages: ndarray | None  # (sequences,) int64: where in `pages` those of each begin

    def entries(self) -> list[SdpaCall]:
        """Each sequence as a call of its own, for those who compute one after the other."""
        return [self._entry(s) for s in range(len(self.cu_queries) - 1)]

    def _entry(self, s: int) -> SdpaCall:
        keys = slice(*self.cu_keys[s : s + 2])
        call = self._entry_of_queries(s)
        call.key, call.value = self.key[:, keys], self.value[:, keys]
        if self.key_factors is not None:
            call.key_factors = self.key_factors[..., keys]
        return call

    def _entry_of_queries(self, s: int) -> SdpaCall:
        """The same without keys of its own."""
        queries = slice(*self.cu_queries[s : s + 2])
        call = SdpaCall() if self.attention_v is None else AdditiveCall()
        _copy_fields(self, call)
        if isinstance(call, AdditiveCall):
            call.attention_v, call.prepared = self.attention_v, None
        call.query, call.out = self.query[:, queries], self.out[:, queries]
        if self.lse is not None:
            call.lse = self.lse[:, queries]
        if isinstance(self.q_offset, ndarray):
            call.q_offset = int(self.q_offset[s])
        if self.slopes is not None and self.slopes.ndim == 2:
            call.slopes = self.slopes[s]
        return call

    def clear_tail(self) -> None:
        """What belongs to no sequence."""
        used = int(self.cu_queries[-1])
        self.out[:, used:] = 0
        if self.lse is not None:
            self.lse[:, used:] = -np.inf


def _copy_fields(call: SdpaCall, to: SdpaCall) -> None:
    for name in SdpaCall.__slots__:
        setattr(to, name, getattr(call, name))


def varlen(
    query: Any,
    key: Any,
    value: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    q_offset: Any,
    alibi_slopes: Any,
    options: dict[str, Any],
    make: Callable[..., SdpaCall] | None = None,
    call_type: type[VarlenCall] = VarlenCall,
) -> Any:
    """Check the arguments of `varlen_attention`; `options` are the others, by name.

    `make` is `scores.Score._call` of the kind of score, the scaled dot product's if it is None.
    """
    if isinstance(key, AdditiveKeys):
        raise TypeError("key: expected an array of packed tokens, got prepared AdditiveKeys")
    q, k, v = (
        arrays.as_array(x, name) for x, name in ((query, "query"), (key, "key"), (value, "value"))
    )
    for x, name in ((q, "query"), (k, "key"), (v, "value")):
        if x.ndim != 3:
            raise ValueError(f"{name}: expected 3 axes (tokens, heads, dim), got shape {x.shape}")
    if len(v) != len(k):
        raise ValueError(f"value: expected {len(k)} tokens to match key, got {len(v)}")
    options = {
        "attn_mask": None,
        "bias": None,
        "q_offset": 0,
        "kv_lengths": None,
        "alibi_slopes": None,
        "layout": "bshd",
        "return_weights": False,
        **options,
    }
    ends_q = ends(cu_seqlens_q, "cu_seqlens_q", len(q), "query")
    ends_k = ends(cu_seqlens_k, "cu_seqlens_k", len(k), "key")
    if len(ends_k) != len(ends_q):
        raise ValueError(
            f"cu_seqlens_k: expected {len(ends_q)} numbers to match cu_seqlens_q, got {len(ends_k)}"
        )
    n = len(ends_q) - 1
    if isinstance(q_offset, str):
        if q_offset != "lower_right":
            raise ValueError(f"q_offset: expected integers or 'lower_right', got {q_offset!r}")
        q_offset = np.diff(ends_k) - np.diff(ends_q)
    else:
        q_offset = check.q_offset(q_offset, (n,), 0, 0, None)
    acc = FLOAT64 if arrays.float_dtype(q.dtype) is FLOAT64 else FLOAT32
    if alibi_slopes is not None:
        alibi_slopes = check.slopes(alibi_slopes, (n,), q.shape[1], acc)
    used = slice(int(ends_k[-1]))  # what comes after is not even copied
    if make is None:
        call = _validate.sdpa(q, k[used], v[used], **options, call_type=call_type)
        call.attention_v = None
    else:
        if alibi_slopes is not None:  # some scores have none, which is theirs to say
            options["alibi_slopes"] = np.zeros(q.shape[1], acc)
        made = make(q, k[used], v[used], options, (ends_q, ends_k))
        call = call_type()
        _copy_fields(made, call)
        call.attention_v = made.attention_v if isinstance(made, AdditiveCall) else None
    call.cu_queries, call.cu_keys = ends_q, ends_k
    call.q_offset, call.slopes = q_offset, alibi_slopes
    call.pages = call.first_pages = None
    return call


def ends(x: Any, name: str, n_tokens: int, of: str) -> ndarray:
    """Where sequences end, after a 0, as int64 in memory of its own."""
    a = check.integers(x, name)
    if a.ndim != 1 or a.size == 0:
        raise ValueError(
            f"{name}: expected 1 axis with the ends of the sequences after a 0, got shape {a.shape}"
        )
    a = a.copy()  # before it is looked at: the caller may change the array meanwhile
    if a[0] != 0:
        raise ValueError(f"{name}: expected 0 at the beginning, got {a[0]}")
    if (a[1:] < a[:-1]).any():
        at = int(np.argmax(a[1:] < a[:-1]))
        raise ValueError(f"{name}: expected numbers that never decrease, got {a[at]}, {a[at + 1]}")
    if a[-1] > n_tokens:
        raise ValueError(
            f"{name}: expected an end of at most {n_tokens}, the number of tokens of {of}, "
            f"got {a[-1]}"
        )
    return a.astype(INT64, copy=False)
