# SPDX-License-Identifier: MIT
"""Measuring: contenders and the machine's limits, interleaved round by round, and the error.

Used by `bench` and by the suites under ``bench/`` of the source tree.  It prints nothing, and a
time never decides whether anything passes.

Machines are shared and change their clock: only numbers of the same few seconds compare.  So each
round takes one sample of every contender and of the limits that the workload runs into, and a claim
is a ratio of minima (or medians) over the same rounds.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from dataclasses import dataclass, field

import numpy as np

import fastattn

from . import oracle

__all__ = [
    "Accuracy", "Samples", "accuracy", "caller", "judge", "limit_figures", "repeats", "rounds",
    "sample_rows", "shares", "take_turns",
]  # fmt: skip

SAMPLE_SECONDS = 1e-3  # shorter calls are repeated until a sample takes this long
SETTLE_SECONDS = 0.15  # a BLAS keeps its threads spinning after a call, on the cores of who is next
# Rows x keys x channels compared with float64, about half a second: products, and values of tanh.
ORACLE_PRODUCTS, ORACLE_TANHS = 250_000_000, 25_000_000


@dataclass
class Samples:
    """The samples of one contender (seconds per call) or of one limit (units per second)."""

    values: list = field(default_factory=list)

    def add(self, value) -> None:
        """Append a value; None is none."""
        if value is not None:
            self.values.append(value)

    @property
    def min(self) -> float:
        return min(self.values)

    @property
    def max(self) -> float:
        return max(self.values)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


def caller(workload, inputs):
    """The workload as a function without arguments, for whatever backend is current."""
    attention, options = fastattn.scaled_dot_product_attention, workload.options
    if workload.is_additive:
        attention = fastattn.additive_attention
    if workload.has_prepared_keys:
        inputs = inputs | {"key": fastattn.prepare_additive_keys(inputs["key"])}

    def call():
        return attention(**inputs, **options)

    return call


def rounds(call, backends, ceilings, *, seconds, at_least, at_most, on_round=None):
    """Sample the call on each of the backends, and the limits before each of them, in turn.

    Measuring the memory limit reads a large buffer, which empties the caches: that is the state in
    which a decoding step finds them.

    Parameters
    ----------
    call : callable
    backends : list of str
    ceilings : list of Ceiling
    seconds : float
        When to stop; the first `at_least` rounds are taken whatever they cost.
    at_least, at_most : int
        Numbers of rounds.
    on_round : callable, optional
        Called with the number of rounds done.

    Returns
    -------
    times : dict of str to Samples
        Seconds per call.
    limits : list of Samples
        Units per second, of each of the `ceilings`.
    """
    samplers = {}
    for name in backends:
        sample = functools.partial(_sample, call, name)
        samplers[name] = functools.partial(sample, repeats(sample))
    return take_turns(
        samplers, ceilings, seconds=seconds, at_least=at_least, at_most=at_most, on_round=on_round
    )


def _settle() -> None:
    """Wait until the threads of whoever was measured last sleep."""
    time.sleep(SETTLE_SECONDS)


def take_turns(samplers, ceilings, *, seconds, at_least, at_most, settle=_settle, on_round=None):
    """Take one sample of each contender, and of the limits before it, round by round.

    Parameters
    ----------
    samplers : dict of str to callable
        Each returns the seconds per call of one sample; None where there is nothing to add.
    ceilings : list of Ceiling
        A sample that is None is not added either.
    seconds, at_least, at_most, on_round
        As for :func:`rounds`.
    settle : callable
        Called before each contender's turn.

    Returns
    -------
    times, limits
        As for :func:`rounds`.
    """
    times = {name: Samples() for name in samplers}
    limits = [Samples() for _ in ceilings]
    start = time.perf_counter()
    for done in range(at_most):
        elapsed = time.perf_counter() - start
        if done >= at_least and elapsed * (done + 1) / done > seconds:
            break
        for name, sample in samplers.items():
            settle()
            for ceiling, samples in zip(ceilings, limits):
                samples.add(ceiling.sample())
            times[name].add(sample())
        if on_round is not None:
            on_round(done + 1)
    return times, limits


def limit_figures(limits) -> dict:
    """What a JSON document says about the limits: the most that the machine did, and the median.

    The main limit is ``limit``; the other one, of additive workloads, ``divide_limit``.
    """
    found = {}
    for name, samples in itertools.zip_longest(("limit", "divide_limit"), limits):
        is_there = samples is not None and samples.values
        found[name] = samples.max if is_there else None
        found[f"{name}_median"] = samples.median if is_there else None
    return found


def shares(rate, figures) -> dict:
    """A rate as shares of the limits in `figures`, from `limit_figures`; None where it has none."""
    return {
        f"share_of_{name}": rate / figures[name] if rate and figures[name] else None
        for name in ("limit", "divide_limit")
    }


def _sample(call, backend, n_calls) -> float:
    """Seconds per call, the mean of `n_calls`."""
    with fastattn.use_backend(backend):
        start = time.perf_counter()
        for _ in range(n_calls):
            call()
        return (time.perf_counter() - start) / n_calls


def repeats(sample) -> int:
    """How many calls make a sample that the clock resolves; also warms everything up.

    Parameters
    ----------
    sample : callable
        ``sample(n_calls)`` returns the seconds per call, the mean of `n_calls`.
    """
    n_calls = 1
    while True:
        seconds = sample(n_calls) * n_calls
        if seconds >= SAMPLE_SECONDS:
            return n_calls
        n_calls *= 2 if seconds > SAMPLE_SECONDS / 10 else 10


@dataclass(frozen=True)
class Accuracy:
    """How a result compares with float64."""

    max_error: float  # largest |difference|
    is_correct: bool  # within the documented tolerance
    n_rows: int  # rows compared; all of them unless the workload is large


def accuracy(workload, inputs, out, rng) -> Accuracy:
    """Compare the output of a workload with float64, on a sample of the rows where it is large."""
    rows = sample_rows(workload, rng)
    expected = oracle.attention(**inputs, **workload.options, rows=rows)
    return judge(out[..., rows, :], expected)


def sample_rows(workload, rng) -> np.ndarray:
    """The query rows to compare: all, or the first, the last and some of the others."""
    per_row = workload.batch * workload.n_q_heads * workload.n_keys * workload.head_size
    budget = ORACLE_TANHS if workload.is_additive else ORACLE_PRODUCTS
    n_rows = min(workload.n_queries, max(4, budget // per_row))
    if n_rows == workload.n_queries:
        return np.arange(n_rows)
    inner = 1 + rng.permutation(workload.n_queries - 2)[: n_rows - 2]
    return np.sort(np.concatenate([[0, workload.n_queries - 1], inner]))


def judge(result, expected) -> Accuracy:
    """Compare rows of an output, ``(batch, heads, rows, head size)``, with those expected."""
    is_correct = oracle.compare(result, expected, "out").error <= 1
    max_error = float(np.abs(result - expected.out).max())
    return Accuracy(max_error, is_correct, int(np.prod(result.shape[:-1])))
