# SPDX-License-Identifier: MIT
"""What the suites share: who is measured, and the figures that go beside the times.

Used by pytest for ``bench/`` only.  It sets no options of pytest-benchmark: those belong to the
command line.
"""

from __future__ import annotations

import numpy as np
import pytest

import fastattn
from fastattn._cli.workloads import UNITS

from . import serving
from .reference import Reference

try:
    import pytest_benchmark  # noqa: F401
except ImportError:
    raise pytest.UsageError(
        "bench/ needs pytest-benchmark: pip install 'fastattn[bench]'"
    ) from None


def pytest_collect_file(file_path, parent):
    """Collect ``bench_*.py`` when a folder is asked for; a file named on its own is pytest's."""
    is_suite = file_path.match("bench_*.py") and not parent.session.isinitpath(file_path)
    return pytest.Module.from_parent(parent, path=file_path) if is_suite else None


@pytest.fixture
def rng():
    """Seeded: every backend and every run sees the same numbers."""
    return np.random.default_rng(0)


@pytest.fixture(params=list(dict.fromkeys([fastattn.backends()[0], "numpy"])))
def backend(request):
    """The best backend, then NumPy; active while the test runs."""
    with fastattn.use_backend(request.param):
        yield request.param


@pytest.fixture
def record(benchmark, rng):
    """Return a function that notes rate, threads and error of a measured workload.

    Its output is ``(batch, heads, queries, head size)``; `dtype_held` is that of its cache, where
    that is not the workload's.
    """

    def note(workload, inputs, out, dtype_held=None):
        reference = Reference(workload, inputs, rng)
        found = reference.judge(out[..., reference.rows, :], dtype_held=dtype_held)
        benchmark.extra_info.update(
            threads=fastattn.get_num_threads(),
            max_error=found.max_error,
            is_correct=found.is_correct,
            rows_compared=found.n_rows,
        )
        amount = serving.amount(workload, dtype_held or workload.dtype)
        if amount and benchmark.stats is not None:  # None: --benchmark-disable
            rate = amount / benchmark.stats.stats.min
            benchmark.extra_info[UNITS[workload.kind]] = round(rate / 1e9, 3)
        assert found.is_correct

    return note
