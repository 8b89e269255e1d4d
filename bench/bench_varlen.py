# SPDX-License-Identifier: MIT
"""Sequences of different lengths: a ragged prefill by threads, and one step of a serving mix.

Used through ``pytest bench``.  Beside the machine's limits and other systems:
``python -m bench.peers --group packed``.
"""

from __future__ import annotations

import pytest

import fastattn

from . import ours, serving

pytestmark = pytest.mark.benchmark(min_rounds=3, max_time=0.5)
COUNTS = sorted({1, fastattn.get_num_threads()})


@pytest.mark.parametrize("n_threads", COUNTS)
@pytest.mark.parametrize(
    "workload",
    # Not the float32 mix, whose inputs alone take half a minute.
    [w for w in serving.WORKLOADS if w.name in ("ragged", "mix-float16")],
    ids=lambda workload: workload.name,
)
def test_packed(benchmark, record, rng, workload, n_threads):
    benchmark.group = workload.title
    inputs = workload.make(rng)
    prepared = ours.FastAttn(fastattn.get_num_threads()).prepare_packed(workload, inputs)
    with fastattn.threads(n_threads):
        out = benchmark(prepared.call)
        record(workload, inputs, prepared.to_numpy(out))
