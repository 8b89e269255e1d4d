# SPDX-License-Identifier: MIT
"""A decoding step on caches: in each dtype, in pages of each size, with 16-bit floats as they are.

Used through ``pytest bench``.  Caches are warm here and contenders run one after the other: ratios,
shares of the memory's limit and other systems are for ``python -m bench.peers --group caches``.
"""

from __future__ import annotations

import pytest

import fastattn
from fastattn._cli import measure

from . import ours, serving

pytestmark = pytest.mark.benchmark(min_rounds=3, max_time=0.5)
CACHED = [w for w in serving.WORKLOADS if serving.group(w) == "caches"]
# Name -> what holds the keys and values.
STORAGES = {cls.name: cls for cls in (ours.FastAttn, *ours.STORAGES)}


@pytest.mark.parametrize(
    ("workload", "storage"),
    [(w, name) for w in CACHED for name in ("fastattn", *w.storages)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_storage(benchmark, record, rng, workload, storage):
    benchmark.group = workload.title
    inputs, storage = workload.make(rng), STORAGES[storage]
    prepared = storage(fastattn.get_num_threads()).prepare_cached(workload, inputs)
    out = benchmark(prepared.call)
    record(workload, inputs, prepared.to_numpy(out), storage.dtype_held(workload))


@pytest.mark.parametrize(
    "workload",
    [w for w in serving.WORKLOADS if serving.group(w) == "half" and serving.has_dtype(w)],
    ids=lambda workload: workload.name,
)
def test_half(benchmark, record, rng, workload):
    benchmark.group = workload.title
    inputs = workload.make(rng)
    out = benchmark(measure.caller(workload, inputs))
    record(workload, inputs, out)
