# SPDX-License-Identifier: MIT
# Shared fixtures: the backend, the random numbers, dtypes, child processes.
# Used by pytest for every file of this folder.
# It computes nothing; expected values live in check.py, sizes in cases.py.
"""Fixtures of the test suite.

Environment: FASTATTN_TEST_SEED repeats a run; FASTATTN_TEST_EXHAUSTIVE=1 runs the products that
are sampled otherwise in full.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib

import hypothesis
import numpy as np
import pytest
from cases import EXHAUSTIVE, SEED
from check_int8 import INT8_KINDS, KINDS, as_dtype, as_dtypes

import fastattn

hypothesis.settings.register_profile(
    "fastattn",
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("fastattn")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: a large product of cases, sampled by default")


def pytest_report_header(config):
    return [
        f"fastattn: backends {fastattn.backends()}, FASTATTN_TEST_SEED={SEED}"
        f"{', exhaustive' if EXHAUSTIVE else ''}"
    ]


def pytest_terminal_summary(terminalreporter):
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(
            f"FASTATTN_TEST_SEED={SEED} repeats the random data of this run"
        )


@pytest.fixture(params=fastattn.backends())
def backend(request):
    """Each usable backend in turn, active for the duration of the test."""
    with fastattn.use_backend(request.param):
        yield request.param


def _seed_of(node):
    return [SEED, zlib.crc32(node.nodeid.encode())]


@pytest.fixture
def rng(request):
    """Random numbers that depend on the seed of the run and on the test alone."""
    return np.random.default_rng(_seed_of(request.node))


@pytest.fixture
def sample(request):
    """sample(items, n): all items in exhaustive runs, else n of them drawn with the seed."""

    def take(items, n):
        items = list(items)
        if EXHAUSTIVE or n >= len(items):
            return items
        chosen = np.random.default_rng([*_seed_of(request.node), 1]).permutation(len(items))[:n]
        return [items[i] for i in sorted(chosen)]

    return take


@pytest.fixture(params=["float32", "float64"])
def real(request):
    """Each dtype that kernels compute in: the other two are read and written as they go."""
    return np.dtype(request.param)


@pytest.fixture(params=["float32", "float64", "float16", "bfloat16"])
def dtype(request):
    """Each floating dtype that query, key and value may have."""
    return as_dtype(request.param)


@pytest.fixture(params=KINDS, ids="-".join)
def kind(request):
    """Each (dtype of a cache, of what is appended, of the query)."""
    return as_dtypes(request.param)


@pytest.fixture(params=INT8_KINDS, ids="-".join)
def int8_kind(request):
    """The same for int8 caches alone."""
    return as_dtypes(request.param)


@pytest.fixture
def run_python():
    """run_python(code, **environment) -> CompletedProcess of a fresh interpreter.

    fastattn and this folder can be imported there; an environment value of None removes the name.
    """

    def run(code, *, timeout=120, options=(), **environment):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("FASTATTN_", "OMP_"))}
        package = os.path.dirname(os.path.dirname(os.path.abspath(fastattn.__file__)))
        paths = [package, os.path.dirname(os.path.abspath(__file__)), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        env.update({k: v for k, v in environment.items() if v is not None})
        return subprocess.run(
            [sys.executable, *options, "-c", code],
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


def _script_runner(module, run_python, backend):
    def run(code, **environment):
        environment = {"OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environment}
        done = run_python(
            f"{module.SCRIPT}{code}\nprint('done')",
            timeout=100,
            FASTATTN_BACKEND=backend,
            **environment,
        )
        assert (done.returncode, done.stdout) == (0, "done\n"), done

    return run


@pytest.fixture
def script(request, backend, run_python):
    """script(code): run the SCRIPT of the test's file and the code in a child; it must print done.

    Newer Pythons warn about every fork of a process with threads, which some of them test.
    """
    return _script_runner(request.module, run_python, backend)


@pytest.fixture(params=[name for name in fastattn.backends() if name != "numpy"])
def pool_script(request, run_python):
    """The same for what concerns the pool, which NumPy's backend does not use."""
    return _script_runner(request.module, run_python, request.param)
