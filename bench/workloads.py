# SPDX-License-Identifier: MIT
"""The workloads of ``bench/``: the package's, one shape with each option, one at growing lengths.

Used by the ``bench_*.py`` files and ``peers.py``.  It defines no named workload: those are in
``fastattn._cli.workloads``, where an installed wheel finds them as well.
"""

from __future__ import annotations

import numpy as np

from fastattn._cli.workloads import WORKLOADS, Workload, by_name

__all__ = [
    "ADDITIVE_FORMS", "ADDITIVE_OPTIONS", "ADDITIVE_SHAPE", "LENGTHS", "OPTIONS", "OPTION_SHAPE",
    "WORKLOADS", "Workload", "by_name",
]  # fmt: skip

# Long enough for several tiles in both directions, short enough for NumPy.
OPTION_SHAPE = Workload("options", "prefill", 1, 8, 8, 1024, 1024, 64)

# The same for additive scores, which take NumPy longer.
ADDITIVE_SHAPE = Workload("additive-options", "additive", 2, 1, 1, 256, 256, 128)

# One shape at growing lengths, for a curve; the named workload s8192 continues it.
LENGTHS = tuple(
    Workload(f"length-{n}", "prefill", 1, 4, 4, n, n, 64, quick=n <= 1024)
    for n in (128, 256, 512, 1024, 2048, 4096)
)


def _mask(rng, shape):
    return rng.random(shape.n_keys * shape.n_queries).reshape(shape.n_queries, -1) < 0.9


def _bias(rng, shape):
    return rng.standard_normal((shape.n_q_heads, shape.n_queries, shape.n_keys), np.float32)


# Name -> function of (rng, shape) that makes the keyword arguments: what does each option cost?
OPTIONS = {
    "none": lambda rng, shape: {},
    "causal": lambda rng, shape: {"is_causal": True},
    "window": lambda rng, shape: {"is_causal": True, "window": (shape.n_keys // 8, 0)},
    "lengths": lambda rng, shape: {"kv_lengths": [shape.n_keys * 3 // 4]},
    "bool mask": lambda rng, shape: {"attn_mask": _mask(rng, shape)},
    "bias": lambda rng, shape: {"bias": _bias(rng, shape)},
    "softcap": lambda rng, shape: {"softcap": 30.0},
    "alibi": lambda rng, shape: {"alibi_slopes": np.geomspace(0.5, 0.004, shape.n_q_heads)},
    "sinks": lambda rng, shape: {"sinks": np.zeros(shape.n_q_heads)},
    "lse": lambda rng, shape: {"return_lse": True},
}

# Those that additive attention has as well.
ADDITIVE_OPTIONS = {n: make for n, make in OPTIONS.items() if n not in ("softcap", "alibi")}

# How the kernel computes tanh depends on the largest number of a query and of a key (enum fa_reach
# in csrc/kernels): name -> one number of every key, which decides it; 0 is below all the others.
ADDITIVE_FORMS = {"near": 0.0, "clamped": 20.0, "direct": 60.0}
