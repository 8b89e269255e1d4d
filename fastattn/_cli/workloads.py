# SPDX-License-Identifier: MIT
"""The named workloads: the shapes that every speed claim of fastattn is about, defined once.

Used by `python -m fastattn bench` and, through ``bench/workloads.py``, by the pytest-benchmark
suites.  It times nothing and computes no attention.

They live inside the package because an installed wheel must be able to run them: ``bench/`` is part
of the source tree only, so the dependency points from there to here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["UNITS", "WORKLOADS", "Workload", "by_name"]

# The unit of a kind's rate; a kind without one has a time only.
UNITS = {"prefill": "GFLOP/s", "decode": "GB/s", "additive": "G tanh/s"}


@dataclass(frozen=True)
class Workload:
    """One named call of :func:`fastattn.scaled_dot_product_attention` or, of the kind
    ``"additive"``, of :func:`fastattn.additive_attention` with projected queries and keys.

    Parameters
    ----------
    name : str
        What a user types; unique.
    kind : {"prefill", "decode", "call", "additive"}
        Which limit it runs into: arithmetic, memory bandwidth, the cost of a call, or the
        arithmetic of additive scores.
    batch, n_q_heads, n_kv_heads, n_queries, n_keys, head_size : int
        Query is ``(batch, n_q_heads, n_queries, head_size)``; key and value are
        ``(batch, n_kv_heads, n_keys, head_size)``.  Additive: `head_size` is the hidden size.
    is_causal : bool
        Whether row ``i`` sees the keys ``0 .. i`` only.
    quick : bool
        Whether a quick run includes it.
    dtype : str
        Name of the NumPy dtype of the inputs.
    has_prepared_keys : bool
        Whether the keys are known long before the call: a decoder's, the same at every step.
        Additive only.
    """

    name: str
    kind: str
    batch: int
    n_q_heads: int
    n_kv_heads: int
    n_queries: int
    n_keys: int
    head_size: int
    is_causal: bool = False
    quick: bool = True
    dtype: str = "float32"
    has_prepared_keys: bool = False

    @property
    def title(self) -> str:
        """The shape in words, such as ``"B1 H12 S512 D64"``."""
        heads = f"H{self.n_q_heads}"
        if self.n_q_heads != self.n_kv_heads:
            heads = f"Hq{self.n_q_heads} Hk{self.n_kv_heads}"
        length = f"S{self.n_keys}"
        if self.n_queries != self.n_keys:
            length = f"Sq{self.n_queries} Sk{self.n_keys}"
        size = f"{'U' if self.is_additive else 'D'}{self.head_size}"
        ends = " causal" * self.is_causal + ", keys prepared" * self.has_prepared_keys
        ends += f" {self.dtype}" * (self.dtype != "float32")
        return f"B{self.batch} {heads} {length} {size}{ends}"

    @property
    def is_additive(self) -> bool:
        """Whether its scores are additive, not dot products."""
        return self.kind == "additive"

    @property
    def options(self) -> dict:
        """Keyword arguments of the call."""
        return {"is_causal": True} if self.is_causal else {}

    @property
    def n_rows(self) -> int:
        """Query rows of the whole call: ``batch * n_q_heads * n_queries``."""
        return self.batch * self.n_q_heads * self.n_queries

    @property
    def flops(self) -> int:
        """Floating-point operations that the products need.

        Two products, each a multiplication and an addition for every (row, visible key, channel);
        an additive workload has the second only.
        What a causal mask hides is not counted: it is work only for a kernel that fails to skip it.
        """
        return (2 if self.is_additive else 4) * self._n_visible * self.head_size

    @property
    def tanhs(self) -> int:
        """Values of tanh that additive scores are sums of; 0 of other workloads."""
        return self._n_visible * self.head_size if self.is_additive else 0

    @property
    def _n_visible(self) -> int:
        """Pairs of a row and a key that it sees, of all heads."""
        if self.is_causal:
            n_seen = sum(min(row + 1, self.n_keys) for row in range(self.n_queries))
        else:
            n_seen = self.n_queries * self.n_keys
        return self.batch * self.n_q_heads * n_seen

    @property
    def bytes(self) -> int:
        """Bytes of key and value, each read once however many query heads share them."""
        n_values = 2 * self.batch * self.n_kv_heads * self.n_keys * self.head_size
        return n_values * np.dtype(self.dtype).itemsize

    @property
    def amount(self) -> int | None:
        """What its rate counts: :attr:`flops`, :attr:`bytes` or :attr:`tanhs`, by its kind; None
        where only time matters."""
        amounts = {"prefill": self.flops, "decode": self.bytes, "additive": self.tanhs}
        return amounts.get(self.kind)

    def make(self, rng: np.random.Generator) -> dict:
        """Draw standard normal inputs.

        Returns
        -------
        dict
            ``query``, ``key`` and ``value``: C-contiguous arrays of `dtype`.  Additive: also
            ``attention_v`` of ``(head_size,)``, so small that scores are of order 1.
        """
        query = (self.batch, self.n_q_heads, self.n_queries, self.head_size)
        key = (self.batch, self.n_kv_heads, self.n_keys, self.head_size)
        shapes = {"query": query, "key": key, "value": key}
        if self.is_additive:
            shapes["attention_v"] = (self.head_size,)
        inputs = {
            name: rng.standard_normal(shape, dtype=np.float32).astype(self.dtype, copy=False)
            for name, shape in shapes.items()
        }
        if self.is_additive:
            inputs["attention_v"] /= np.sqrt(self.head_size).astype(self.dtype)
        return inputs


WORKLOADS = (
    Workload("s512", "prefill", 1, 12, 12, 512, 512, 64),
    Workload("s2048", "prefill", 1, 12, 12, 2048, 2048, 64, quick=False),
    Workload("s2048-causal", "prefill", 1, 12, 12, 2048, 2048, 64, is_causal=True),
    Workload("d128-causal", "prefill", 1, 32, 32, 1024, 1024, 128, is_causal=True, quick=False),
    Workload("batch32", "prefill", 32, 12, 12, 128, 128, 64),
    Workload("s8192", "prefill", 1, 4, 4, 8192, 8192, 64, quick=False),
    Workload("decode-b1", "decode", 1, 32, 8, 1, 4096, 128),
    Workload("decode-b8", "decode", 8, 32, 8, 1, 2048, 128, quick=False),
    Workload("smallest", "call", 1, 1, 1, 1, 1, 64),
    Workload("additive-b8", "additive", 8, 1, 1, 120, 128, 512),
    Workload("additive-b4", "additive", 4, 1, 1, 504, 512, 128, quick=False),
    Workload("additive-step", "additive", 64, 1, 1, 1, 50, 512, has_prepared_keys=True),
)


def by_name(name: str) -> Workload:
    """Look a workload up.

    Raises
    ------
    KeyError
        If there is none of that name.
    """
    for workload in WORKLOADS:
        if workload.name == name:
            return workload
    raise KeyError(name)
