# SPDX-License-Identifier: MIT
"""How many threads a call may use: the default, the process's choice, the context's choice.

For ``_backend``, which hands the number to the compiled pool, and for users.
It starts no thread, and finds the default out on first use, not at import.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from . import _check_options

MAX_THREADS = _check_options.MAX_THREADS

_process: int | None = None  # what set_num_threads said
# what threads(n) said in this context: (n, what held outside of it); a stack that needs no object
_context: ContextVar[tuple[int, Any] | None] = ContextVar("fastattn_threads", default=None)
_found: tuple[int, str] | None = None  # the default and its reason, once known


def get_num_threads() -> int:
    """Number of threads that a call made here may use, the calling thread included.

    Returns
    -------
    int
        The number given to the innermost active `threads` of this context, else to
        `set_num_threads`, else the default: the least of the CPUs in the process's affinity mask,
        the CPU quota of its control groups (rounded up) and ``OMP_NUM_THREADS``, unless
        ``FASTATTN_NUM_THREADS`` is set, which overrides all three.

    Notes
    -----
    The ``"numpy"`` backend runs on NumPy's own BLAS threads, which this number does not govern.
    """
    here = _context.get()
    if here is not None:
        return here[0]
    n_threads = _process
    return default()[0] if n_threads is None else n_threads


def set_num_threads(n: int) -> None:
    """Set the number of threads for the whole process.

    Results do not depend on it, to the last bit; only the time does.

    Parameters
    ----------
    n : int
        From 1 to 1024. More threads than CPUs are allowed.

    Raises
    ------
    TypeError
        `n` is not an integer.
    ValueError
        `n` is out of range.
    """
    global _process
    _process = _check_options.thread_count(n)


class threads:
    """Use `n` threads within a ``with`` block, in the calling context only.

    Other threads and other asynchronous tasks keep their number. Calling it without ``with``
    changes nothing; see `set_num_threads` for that.

    Parameters
    ----------
    n : int
        From 1 to 1024.

    Raises
    ------
    TypeError
        `n` is not an integer.
    ValueError
        `n` is out of range.

    Examples
    --------
    >>> import fastattn
    >>> with fastattn.threads(1):
    ...     fastattn.get_num_threads()
    1
    """

    def __init__(self, n: int) -> None:
        self._n = _check_options.thread_count(n)

    def __enter__(self) -> None:
        _context.set((self._n, _context.get()))

    def __exit__(self, *_exc: object) -> None:
        here = _context.get()
        _context.set(here[1] if here is not None else None)


def reason() -> str:
    """In words, where the number of `get_num_threads` comes from."""
    if _context.get() is not None:
        return "threads(n) in this context"
    if _process is not None:
        return "set_num_threads"
    return default()[1]


def default() -> tuple[int, str]:
    """The default number of threads and, in words, where it comes from. Found once."""
    global _found
    found = _found
    if found is None:
        n_threads, why, bad = find_default(os.environ)
        found = _found = (n_threads, why)
        if bad:  # after the result is kept: one warning, even where warnings are errors
            warnings.warn(f"fastattn: ignored {', '.join(bad)}", RuntimeWarning, stacklevel=3)
    return found


def find_default(environ: os._Environ[str] | dict[str, str]) -> tuple[int, str, list[str]]:
    """Work the default out: the number, the reason, and what had to be ignored."""
    bad: list[str] = []
    own = _read_variable(environ, "FASTATTN_NUM_THREADS", MAX_THREADS, bad)
    if own is not None:
        return own, "FASTATTN_NUM_THREADS", bad
    n_threads, why = cpu_count()
    quota = cgroup_quota()
    if quota is not None and math.ceil(quota) < n_threads:
        n_threads, why = max(1, math.ceil(quota)), "control group CPU quota"
    openmp = _read_variable(environ, "OMP_NUM_THREADS", None, bad)
    if openmp is not None and openmp < n_threads:
        n_threads, why = openmp, "OMP_NUM_THREADS"
    return min(n_threads, MAX_THREADS), why, bad


def _read_variable(
    environ: os._Environ[str] | dict[str, str], name: str, most: int | None, bad: list[str]
) -> int | None:
    """The positive integer in a variable; of a list (one entry a nesting level) the first."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    first = text.split(",")[0].strip() if most is None else text
    if first.isascii() and first.isdecimal() and len(first) < 10:
        value = int(first)
        if value >= 1 and (most is None or value <= most):
            return value
    wanted = "a positive integer" if most is None else f"an integer from 1 to {most}"
    bad.append(f"{name}: expected {wanted}, got {text[:40]!r}")
    return None


def cpu_count() -> tuple[int, str]:
    """CPUs that this process may run on, and what told so; at least 1 on any system."""
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity is not None:
        try:
            return max(1, len(affinity(0))), "CPU affinity"
        except OSError:  # a sandbox may forbid the question
            pass
    return max(1, os.cpu_count() or 1), "CPU count"


def cgroup_quota(root: str = "/") -> float | None:
    """CPUs that the control groups of this process grant, None without a limit.

    Reads ``proc/self/cgroup`` below `root` and the quota files below ``sys/fs/cgroup``, of
    version 2 (``cpu.max``) and of version 1 (``cpu.cfs_quota_us``, ``cpu.cfs_period_us``), for the
    process's group and every ancestor: the least holds. A container often sees its own group as
    the root of the mount while the path names the host's; missing folders are passed over and
    the root of the mount is always looked at, which covers both. What is missing or garbled
    limits nothing.
    """
    quotas = []
    for line in (_read(os.path.join(root, "proc/self/cgroup")) or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts, files = ["", "unified"], ["cpu.max"]
        elif "cpu" in controllers.split(","):
            mounts, files = [controllers, "cpu"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        for mount in dict.fromkeys(mounts):
            for group in _ancestors(path):
                folder = os.path.join(root, "sys/fs/cgroup", mount, *group)
                texts = [_read(os.path.join(folder, name)) for name in files]
                quota = parse_quota(" ".join(text or "" for text in texts))
                if quota is not None:
                    quotas.append(quota)
    return min(quotas, default=None)


def parse_quota(text: str) -> float | None:
    """CPUs granted by ``"<quota> <period>"`` in microseconds; ``max``, -1 and nonsense: None."""
    words = text.split()
    if len(words) != 2 or not all(w.isascii() and w.isdecimal() and len(w) < 20 for w in words):
        return None
    quota, period = int(words[0]), int(words[1])
    return quota / period if quota > 0 and period > 0 else None


def _ancestors(path: str) -> Iterator[list[str]]:
    """The parts of a group's path, then of each group above it, down to [] for the root."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for n_parts in range(len(parts), -1, -1):
        yield parts[:n_parts]


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (OSError, ValueError):  # ValueError: a path with a null character
        return None
