# SPDX-License-Identifier: MIT
"""How the best backend scales: one thread, two, four ... up to the default number.

Used through ``pytest bench``.  NumPy is not here: its BLAS has its own threads.
"""

from __future__ import annotations

import pytest

import fastattn
from fastattn._cli import measure

from .workloads import by_name

DEFAULT = fastattn.get_num_threads()
COUNTS = sorted({*(2**i for i in range(DEFAULT.bit_length())), DEFAULT})


@pytest.mark.skipif(fastattn.backends()[0] == "numpy", reason="needs the compiled extension")
@pytest.mark.benchmark(min_rounds=3, max_time=1.0)
@pytest.mark.parametrize("n_threads", COUNTS)
@pytest.mark.parametrize("name", ["s512", "s2048", "decode-b1", "smallest"])
def test_threads(benchmark, record, rng, name, n_threads):
    workload = by_name(name)
    benchmark.group = workload.title
    inputs = workload.make(rng)
    with fastattn.use_backend(fastattn.backends()[0]), fastattn.threads(n_threads):
        out = benchmark(measure.caller(workload, inputs))
        record(workload, inputs, out)
