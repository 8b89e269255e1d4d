# SPDX-License-Identifier: MIT
"""The named workloads of dot products on the best backend and on NumPy, one group per workload.

Used through ``pytest bench``.  Its contenders run one after the other, not in turns: for a ratio
that a noisy machine cannot bend, use ``python -m fastattn bench``.
"""

from __future__ import annotations

import pytest

from fastattn._cli import measure

from .workloads import WORKLOADS


@pytest.mark.benchmark(min_rounds=3, max_time=1.0)
@pytest.mark.parametrize(
    "workload", [w for w in WORKLOADS if not w.is_additive], ids=lambda workload: workload.name
)
def test_workload(benchmark, record, rng, workload, backend):
    benchmark.group = workload.title
    inputs = workload.make(rng)
    out = benchmark(measure.caller(workload, inputs))
    record(workload, inputs, out)
