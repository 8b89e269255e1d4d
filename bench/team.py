# SPDX-License-Identifier: MIT
"""The processes of the contenders, one each, as their parent sees them.

Used by ``bench/rounds.py``.  It measures nothing and knows no contender; what happens inside of the
processes is in ``bench/child.py``.

Thread pools of several libraries in one process spin on each other's cores.  Here each has its own
process, and before each sample the parent looks whether all threads of all processes sleep.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from fastattn._cli import measure

__all__ = ["Failed", "Member", "Team"]

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_SECONDS = 180  # for one answer
SETTLE_STEP_SECONDS = 5e-3
MAX_SETTLE_SECONDS = 1.0  # a library whose threads never sleep is measured all the same


class Failed(Exception):
    """A contender's process has failed; the message says how."""


class Member:
    """The process of one contender, as its parent sees it.

    Parameters
    ----------
    contender : type
        Its class; the process imports it by name.
    n_threads : int
    """

    def __init__(self, contender, n_threads):
        self.name = contender.name
        self.contender = contender
        self.failure = None
        self._errors = tempfile.TemporaryFile()
        cpus = ",".join(map(str, _cpus(n_threads)))
        spec = f"{contender.__module__}:{contender.__qualname__}"
        counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "bench.child", spec, str(n_threads), cpus],
            env=os.environ
            | dict.fromkeys(counts, str(n_threads))
            | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path]))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def answer(self) -> dict:
        """Wait for an answer.

        Raises
        ------
        Failed
            If the contender has failed, now or before.
        """
        if self.failure is None:
            timer = threading.Timer(PATIENCE_SECONDS, self._process.kill)
            timer.start()
            line = self._process.stdout.readline()
            timer.cancel()
            answer = json.loads(line) if line else {"failed": self._why()}
            if "failed" not in answer:
                return answer
            self.failure = answer["failed"]
        raise Failed(self.failure)

    def ask(self, do, **request) -> dict:
        """Send a request, and wait for the answer; a failed workload does not end the next."""
        if do == "prepare" and self._process.poll() is None:
            self.failure = None
        if self.failure is None:
            try:
                self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
                self._process.stdin.flush()
            except OSError:  # it is gone: there will be no answer, and that says why
                pass
        return self.answer()

    def sample(self) -> float | None:
        """Seconds per call; None once the contender has failed."""
        try:
            return self.ask("sample")["seconds"]
        except Failed:
            return None

    def _why(self) -> str:
        """How the process ended, and the last line that it wrote."""
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return how + (f": {lines[-1][:200]}" if lines else "")

    def is_busy(self) -> bool:
        """Whether any of its threads runs, as far as the system tells."""
        tasks = Path(f"/proc/{self._process.pid}/task")
        try:
            for task in tasks.iterdir():
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                if state == "R":
                    return True
        except OSError:  # the thread, or the process, has ended
            pass
        return False

    def kill(self) -> None:
        """End the process, which has nothing to save; `close` waits for it."""
        self._process.kill()

    def close(self) -> None:
        """Wait for the end of the process, and close what connects to it."""
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):  # a request that nobody has read
                file.close()


def _cpus(n_threads) -> list:
    """The CPUs for a process with so many threads: one per core first; empty for "any"."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    cores, others = {}, []
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = siblings.read_text() if siblings.exists() else cpu
        if cores.setdefault(core, cpu) != cpu:
            others.append(cpu)
    return [*cores.values(), *others][:n_threads]


class Team:
    """The processes of all contenders for one number of threads; a context manager.

    Parameters
    ----------
    contenders : list of type
    n_threads : int
    """

    def __init__(self, contenders, n_threads):
        self.n_threads = n_threads
        self.versions = {}
        self._contenders = contenders
        self.members = []

    def is_for(self, contenders, n_threads) -> bool:
        """Whether it is the team of just these."""
        return self._contenders == contenders and self.n_threads == n_threads

    def __enter__(self):
        try:
            for contender in self._contenders:
                self.members.append(Member(contender, self.n_threads))
            for member in self.members:
                try:
                    self.versions[member.name] = member.answer()["version"]
                except Failed:
                    pass
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        for member in self.members:
            member.kill()
        for member in self.members:
            member.close()

    def settle(self) -> None:
        """Wait until all threads of all processes sleep: two looks in a row."""
        if not Path("/proc/self/task").exists():
            time.sleep(measure.SETTLE_SECONDS)
            return
        n_quiet, end = 0, time.monotonic() + MAX_SETTLE_SECONDS
        while n_quiet < 2 and time.monotonic() < end:
            time.sleep(SETTLE_STEP_SECONDS)
            n_quiet = 0 if any(member.is_busy() for member in self.members) else n_quiet + 1
