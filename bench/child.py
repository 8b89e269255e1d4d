# SPDX-License-Identifier: MIT
"""The process of one contender: makes its inputs, and takes a sample whenever it is told to.

Started by ``bench/team.py``: ``python -m bench.child MODULE:CLASS THREADS CPUS``.  It decides
nothing about rounds, and between two requests it sleeps in a read.

Requests and answers are lines of JSON on standard input and output, one answer per request, the
first answer without one.  Whatever a library prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np

from fastattn._cli import measure
from fastattn._cli.workloads import by_name

from .contender import CannotDo, preparer
from .serving import from_fields

__all__ = ["Runner", "main"]

LONG_SECONDS = 0.02  # of a first call: even when warm, one such call is a sample
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Runner:
    """Carries out the requests with one contender."""

    def __init__(self, contender):
        self._contender = contender
        self._prepared = self._before = None
        self._n_calls = 1

    def prepare(self, workload: dict, seed: int, rows: list, file: str) -> dict:
        """Make a workload ready, and store the rows of its output that the parent compares.

        Parameters
        ----------
        workload : dict
            The fields of a `Workload`.
        seed : int
            Of the inputs: all contenders draw the same.
        rows : list of int
            Query rows to store in `file`.
        """
        self._prepared = self._before = None
        workload = from_fields(workload)
        try:
            prepared = self._prepare(workload, seed)
        except CannotDo as reason:
            return {"cannot": str(reason)}
        _tidy_up()
        start = time.perf_counter()
        out, n_bytes = _peak_memory(prepared.call)
        seconds = time.perf_counter() - start
        out = prepared.to_numpy(out)
        wanted = (workload.batch, workload.n_q_heads, workload.n_queries, workload.head_size)
        if out.shape != wanted:
            raise ValueError(f"the output has the shape {out.shape}, not {wanted}")
        np.save(file, out[..., rows, :].astype(np.float32))  # exact: of 16 or 32 bits
        self._prepared = self._before = prepared
        self._n_calls = 1
        if workload.kind == "decode":
            # One call on cold caches.  A call on other data of the same shape goes before it, so
            # that code and threads are as warm as between two layers of a model.
            self._before = self._prepare(workload, seed + 1)
            self._before.call()
        elif seconds < LONG_SECONDS:
            self._n_calls = measure.repeats(self._time)
        return {
            "peak_bytes": n_bytes,
            "n_calls": self._n_calls,
            "note": prepared.note,
            "dtype": out.dtype.name,
        }

    def _prepare(self, workload, seed):
        inputs = workload.make(np.random.default_rng(seed))
        return getattr(self._contender, preparer(workload))(workload, inputs)

    def _time(self, n_calls) -> float:
        """Seconds per call, the mean of `n_calls`."""
        call = self._prepared.call
        start = time.perf_counter()
        for _ in range(n_calls):
            call()
        return (time.perf_counter() - start) / n_calls

    def sample(self) -> dict:
        """Take one sample; the call before it, which wakes the threads, is not timed."""
        self._before.call()
        return {"seconds": self._time(self._n_calls)}

    def warm_up(self) -> None:
        """Make the smallest call, so that what a library loads at first is loaded."""
        try:
            self._prepare(by_name("smallest"), 0).call()
        except CannotDo:
            pass


def _tidy_up() -> None:
    """Give memory back that earlier workloads have left to the allocator."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # not glibc
        pass


def _peak_memory(call):
    """Call it once.

    Returns
    -------
    out : object
        The result of the call.
    n_bytes : int or None
        How much the resident memory rose above what it was before the call, at the highest;
        None where the system does not tell.
    """
    try:
        CLEAR.write_text("5")  # the peak so far is forgotten
        before = _status("VmRSS")
    except OSError:
        before = None
    out = call()
    return out, None if before is None else max(0, _status("VmHWM") - before)


def _status(name) -> int:
    """A size from this process's status, in bytes."""
    return 1024 * int(re.search(rf"{name}:\s*(\d+) kB", STATUS.read_text())[1])


def main(arguments: list[str]) -> None:
    """Run the requests of standard input until its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's business; it closes the pipe
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    spec, n_threads, cpus = arguments
    if cpus:
        os.sched_setaffinity(0, map(int, cpus.split(",")))
    module, name = spec.split(":")
    contender = getattr(importlib.import_module(module), name)(int(n_threads))
    runner = Runner(contender)
    runner.warm_up()

    def answer(document):
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    answer({"version": contender.version()})
    for line in sys.stdin:
        request = json.loads(line)
        do = request.pop("do")
        try:
            answer(getattr(runner, do)(**request))
        except Exception as error:  # whatever it is, it is the finding about this contender
            text = str(error).strip().splitlines() or [""]
            answer({"failed": f"{type(error).__name__}: {text[0][:200]}"})


if __name__ == "__main__":
    main(sys.argv[1:])
