# SPDX-License-Identifier: MIT
"""The workloads of an inference server: 16-bit floats, caches, sequences of different lengths;
and which workloads a comparison takes, of these, of the layers' and of the package's.

Used by ``peers.py``, which measures a group of them when it is asked to, and by ``bench_caches.py``
and ``bench_varlen.py``.  They are not in the package: what they compare is only in this folder.
It fills no cache (``bench/ours.py`` does) and judges nothing (``bench/reference.py``).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from fastattn._cli import bench, facts
from fastattn._cli.workloads import Workload

from . import layers

__all__ = [
    "DEFAULT_GROUPS", "GROUPS", "WORKLOADS", "Cached", "Packed", "amount", "choose", "from_fields",
    "group", "has_dtype", "packed", "pieces",
]  # fmt: skip

# The groups of workloads, one table each: name -> what the title of its tables says.
GROUPS = {
    "dense": "",
    "additive": "additive scores",
    "half": "16-bit floats",
    "caches": "caches",
    "packed": "packed sequences",
    "layers": "layers",
}
DEFAULT_GROUPS = ("dense", "additive")  # the package's own, of any installation


@dataclass(frozen=True)
class Cached(Workload):
    """A decoding step on caches that were filled before; fastattn's in several forms at once.

    Parameters
    ----------
    storages : tuple of str
        The contenders of ``bench/ours.py`` that take part beside ``fastattn``, a `KVCache` of the
        workload's dtype.
    """

    storages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Packed(Workload):
    """Attention within each of many sequences, whose tokens lie one after the other.

    `batch` is 1, `n_queries` and `n_keys` count the tokens of all sequences: :func:`packed`.

    Parameters
    ----------
    lengths : tuple of int
        Keys of each sequence.  Of the kind ``"decode"`` each has one query, otherwise as many as
        keys, of which each sees all.
    """

    lengths: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        name = super().title.split(" S")[0].removeprefix("B1 ")
        lengths = f"{min(self.lengths)}..{max(self.lengths)}"
        length = f"S{lengths}" if self.kind != "decode" else f"Sq1 Sk{lengths}"
        ends = f" {self.dtype}" * (self.dtype != "float32")
        return f"{len(self.lengths)} sequences {name} {length} D{self.head_size}{ends}"

    @property
    def query_lengths(self) -> tuple[int, ...]:
        """Queries of each sequence."""
        return (1,) * len(self.lengths) if self.kind == "decode" else self.lengths

    @property
    def _n_visible(self) -> int:
        pairs = zip(self.query_lengths, self.lengths)
        return self.n_q_heads * sum(n_queries * n_keys for n_queries, n_keys in pairs)

    def make(self, rng: np.random.Generator) -> dict:
        """Draw standard normal inputs, packed: C-contiguous ``(tokens, heads, head size)``."""
        shapes = {
            "query": (self.n_queries, self.n_q_heads, self.head_size),
            "key": (self.n_keys, self.n_kv_heads, self.head_size),
            "value": (self.n_keys, self.n_kv_heads, self.head_size),
        }
        return {
            name: rng.standard_normal(shape, np.float32).astype(self.dtype, copy=False)
            for name, shape in shapes.items()
        }


def packed(name, kind, lengths, n_q_heads, n_kv_heads, head_size, **others) -> Packed:
    """A packed workload by its lengths."""
    lengths = tuple(map(int, lengths))
    n_queries = len(lengths) if kind == "decode" else sum(lengths)
    counts = (1, n_q_heads, n_kv_heads, n_queries, sum(lengths), head_size)
    return Packed(name, kind, *counts, lengths=lengths, **others)


def pieces(lengths) -> list:
    """Where the tokens of each sequence lie, as slices."""
    ends = itertools.accumulate(lengths, initial=0)
    return [slice(*pair) for pair in itertools.pairwise(ends)]


def from_fields(fields: dict) -> Workload:
    """A workload from what ``dataclasses.asdict`` made of it, by way of JSON."""
    if "layer" in fields:
        return layers.from_fields(fields)
    lists = {name: tuple(fields[name]) for name in ("lengths", "storages") if name in fields}
    kinds = {"lengths": Packed, "storages": Cached}
    kind = next((kinds[name] for name in lists), Workload)
    workload = kind(**fields | lists)
    has_dtype(workload)  # NumPy has to learn the name in every process
    return workload


def group(workload) -> str:
    """Which of :data:`GROUPS` it belongs to."""
    if isinstance(workload, layers.Layered):
        return "layers"
    if isinstance(workload, Packed):
        return "packed"
    if isinstance(workload, Cached):
        return "caches"
    if workload.is_additive:
        return "additive"
    return "half" if workload.dtype in ("float16", "bfloat16") else "dense"


def has_dtype(workload) -> bool:
    """Whether NumPy knows its dtype here: bfloat16 comes with a package."""
    if workload.dtype != "bfloat16":
        return True
    if not find_spec("ml_dtypes"):
        return False
    import ml_dtypes  # noqa: F401  # teaches NumPy the name

    return True


def amount(workload, dtype_held) -> int | None:
    """What a contender's rate counts, if anything: of a decoding step, bytes as it holds them.

    An int8 cache has a float32 scale for each key and for each value of a head as well.
    """
    if workload.kind != "decode":
        return workload.amount
    n_vectors = 2 * workload.batch * workload.n_kv_heads * workload.n_keys
    per_vector = workload.head_size * np.dtype(dtype_held).itemsize + 4 * (dtype_held == "int8")
    return n_vectors * per_vector


_STORED = ("fastattn-float32", "fastattn-int8")
_PAGED = ("fastattn-paged-16", "fastattn-paged-64", "fastattn-paged-256")
# Drawn once and for all: every machine and every seed of the inputs has the same lengths.
_PROMPTS = np.random.default_rng(9).integers(16, 513, 64)
_CHATS = np.random.default_rng(10).integers(1, 4097, 64)

WORKLOADS = (
    *(
        Workload(f"{name}-{dtype}", "decode", n, 32, 8, 1, n_keys, 128, quick=n == 1, dtype=dtype)
        for name, n, n_keys in (("decode-b1", 1, 4096), ("decode-b8", 8, 2048))
        for dtype in ("float16", "bfloat16")
    ),
    # The float16 cache is the one to beat, so that is what "fastattn" means here.
    Cached(
        "decode-32k", "decode", 1, 32, 8, 1, 32768, 128, False, False, "float16", storages=_STORED
    ),
    Cached("pages", "decode", 8, 32, 8, 1, 2048, 128, quick=False, storages=_PAGED),
    Cached("pages-float16", "decode", 8, 32, 8, 1, 2048, 128, dtype="float16", storages=_PAGED),
    packed("ragged", "prefill", _PROMPTS, 12, 12, 64),
    packed("mix", "decode", _CHATS, 32, 8, 128, quick=False),
    packed("mix-float16", "decode", _CHATS, 32, 8, 128, quick=False, dtype="float16"),
    *layers.WORKLOADS,
)


def choose(args) -> list:
    """The workloads that are asked for: by name, by group, or those of the default groups.

    Raises
    ------
    UsageError
        If there is none of that name, or a dtype that nobody here knows.
    """
    if args.workload:
        chosen = bench.choose(args, WORKLOADS)
    else:
        groups = args.group or DEFAULT_GROUPS
        known = [*bench.choose(args), *(w for w in WORKLOADS if w.quick or not args.quick)]
        chosen = [workload for workload in known if group(workload) in groups]
    for workload in chosen:
        if not has_dtype(workload):
            raise facts.UsageError(f"{workload.name} needs ml_dtypes: pip install ml_dtypes")
    return chosen
