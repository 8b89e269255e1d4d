# SPDX-License-Identifier: MIT
"""One workload, all contenders: inputs, verdicts, rounds of one sample of each, and the limits.

Used by ``bench/peers.py``.  It starts no process (``bench/team.py`` does) and prints nothing; how
turns are taken is in ``fastattn._cli.measure``, as for ``python -m fastattn bench``.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from pathlib import Path

import numpy as np

import fastattn
from fastattn._cli import ceilings, facts, measure

from . import serving
from .reference import Reference
from .team import Failed

__all__ = ["run_workload"]


class _NoCeiling:
    """Empties the caches as the memory limit does, where the extension that measures it is not."""

    def __init__(self):
        self._buffer = np.ones(ceilings.READ_BYTES // 4, np.float32)

    def sample(self):
        self._buffer.max()


def _ceilings(workload, n_threads) -> list:
    """The limits that the workload may run into, or what stands in for them."""
    native, backend = facts.native(), fastattn.backends()[0]
    if native is not None:
        return ceilings.ceilings(native, workload, backend, n_threads)
    return [_NoCeiling()] if workload.kind == "decode" else []


def run_workload(team, workload, seed, budget, on_round=None) -> dict:
    """Measure one workload with one team.

    Parameters
    ----------
    team : Team
    workload : Workload
    seed : int
    budget : dict
        ``seconds``, ``at_least``, ``at_most`` of :func:`measure.take_turns`.
    on_round : callable, optional
        Called with the number of rounds done.

    Returns
    -------
    dict
        One entry of ``runs`` in the JSON document; times in seconds, rates in flop/s, bytes/s or
        tanh/s.
    """
    inputs = workload.make(np.random.default_rng(seed))
    reference = Reference(workload, inputs, np.random.default_rng([seed, 1]))
    del inputs
    results = {m.name: _prepare(m, workload, seed, reference) for m in team.members}
    samplers = {m.name: m.sample for m in team.members if results[m.name]["status"] == "ok"}
    times, limits = measure.take_turns(
        samplers,
        _ceilings(workload, team.n_threads),
        settle=team.settle,
        on_round=on_round,
        **budget,
    )
    figures = measure.limit_figures(limits)
    for member in team.members:
        if member.failure:
            results[member.name].update(status="failed", reason=member.failure)
        elif member.name in times:
            amount = serving.amount(workload, member.contender.dtype_held(workload))
            results[member.name].update(_figures(times[member.name], amount, figures))
    _compare(results)
    return {
        "name": workload.name,
        "title": workload.title,
        "kind": workload.kind,
        "group": serving.group(workload),
        "dtype": workload.dtype,
        "flops": workload.flops,
        "bytes": workload.bytes,
        "tanhs": workload.tanhs,
        "n_queries": workload.n_queries,
        "n_rows": workload.n_rows,
        "n_rows_compared": reference.n_rows,
        "n_threads": team.n_threads,
        "n_rounds": max((len(samples.values) for samples in times.values()), default=0),
        **figures,
        "results": list(results.values()),
    }


def _prepare(member, workload, seed, reference) -> dict:
    """Make one contender ready and judge its output; its entry in the results, without times."""
    entry = dict.fromkeys(
        (
            "reason",
            "note",
            "min_s",
            "median_s",
            "samples_s",
            "rate",
            "share_of_limit",
            "share_of_divide_limit",
            "times_fastattn",
        )
        + ("peak_bytes", "max_error")
    )
    entry = {"contender": member.name, "status": "ok", **entry}
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "rows.npy")
        fields = dataclasses.asdict(workload)
        try:
            found = member.ask(
                "prepare", workload=fields, seed=seed, rows=reference.rows.tolist(), file=file
            )
        except Failed as failure:
            return entry | {"status": "failed", "reason": str(failure)}
        if "cannot" in found:
            return entry | {"status": "cannot", "reason": found["cannot"]}
        result = np.load(file).astype(found["dtype"])
        held = member.contender.dtype_held(workload)
        accuracy = reference.judge(result, member.name, held)
    entry |= {"note": found["note"] or None, "peak_bytes": found["peak_bytes"]}
    entry["max_error"] = accuracy.max_error if math.isfinite(accuracy.max_error) else None
    if not accuracy.is_correct:
        entry |= {"status": "wrong", "reason": "the result is off by more than the tolerance"}
    return entry


def _figures(samples, amount, limits) -> dict:
    rate = amount and amount / samples.min
    return {
        "min_s": samples.min,
        "median_s": samples.median,
        "samples_s": samples.values,
        "rate": rate,
        **measure.shares(rate, limits),
    }


def _compare(results) -> None:
    """Add the ratio of the minima to fastattn's, where there is one."""
    ours = results.get("fastattn", {}).get("min_s")
    for entry in results.values():
        if ours and entry["min_s"]:
            entry["times_fastattn"] = entry["min_s"] / ours
