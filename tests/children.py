# SPDX-License-Identifier: MIT
# What the scripts of process-level tests share: calls with known results or without end, forks.
# Imported in the child processes of test_exit.py, test_fork.py, test_signals*.py, test_thread*.py.
# It tests nothing itself, and the test process must not import it: it limits the CPU time.
"""Helpers for scripts that run in a child interpreter."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback

import numpy as np
from check import assert_bits_equal, assert_close, expected, qkv

import fastattn

try:
    import resource
except ImportError:  # Windows
    pass
else:  # what a failed test leaves behind must not compute for ever
    resource.setrlimit(resource.RLIMIT_CPU, (200, resource.getrlimit(resource.RLIMIT_CPU)[1]))

sdpa = fastattn.scaled_dot_product_attention

SANITIZED = "san.so" in os.environ.get("LD_PRELOAD", "")  # so it is slow and keeps freed memory
# How much longer than promised things may take, since others use the machine as well.
PATIENCE = 30 if SANITIZED else 3

try:
    from fastattn import _native
except ImportError:
    _native = None

# Several tasks each, and work enough for several threads: many rows, and few rows with many keys.
_SIZES = [
    {"queries": 60, "keys": 200, "dim": 32, "dv": 29},
    {"lead": (1,), "heads": 2, "queries": 1, "keys": 3000, "dim": 32, "dv": 31},
]


class _Known:
    def __init__(self, seed, sizes):
        self.given = qkv(np.random.default_rng(seed), **sizes)
        self.want = expected(*self.given)
        self.first = []  # the first result; all others must have its bits

    def check(self):
        out = np.full(self.want.out.shape, np.nan, np.float32)
        sdpa(*self.given, out=out)
        assert_close(out, self.want.out, slack=self.want.out_slack)
        self.first.append(out)
        assert_bits_equal(out, self.first[0])
        del self.first[1:]


_known = [_Known(seed, sizes) for seed, sizes in enumerate(_SIZES)]


def check_calls(n_threads=4):
    """Make calls whose results are known, into poisoned arrays; the first one here is the first
    of the process, because the expected values do not come from fastattn."""
    with fastattn.threads(n_threads):
        for one in _known:
            one.check()


def n_workers():
    return _native.pool_n_workers() if _native is not None else 0


def workers():
    """The folders below /proc of the live workers."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as name:
                if name.read() == "fastattn\n":
                    found.append(f"/proc/self/task/{task}")
        except OSError:  # it ended in between
            pass
    return found


def _same_row(*shape):
    """Equal rows in the memory of one, so that arrays of any length cost nothing."""
    row = np.random.default_rng(5).standard_normal(shape[-1]).astype(np.float32)
    return np.broadcast_to(row, shape)


def endless(kind):
    """Arguments of a call that takes minutes, on any machine, and little memory."""
    if fastattn.get_backend() == "numpy":  # it copies the keys of a head: not too many
        return dict(query=_same_row(1, 300, 8000, 64), key=_same_row(1, 300, 8000, 64),
                    value=_same_row(1, 300, 8000, 64))  # fmt: skip
    heads, queries, keys, dim = {
        "prefill": (1, 200_000, 1_000_000, 64),
        "decode": (1, 1, 2_000_000_000, 64),
        "decode of many heads": (64, 1, 2_000_000_000, 64),
        "weights": (1, 2000, 100_000, 8192),
        "careful": (1, 100_000, 20_000, 64),
        "careful, large": (1, 1000, 20_000, 65536),
    }[kind]
    given = dict(query=_same_row(1, heads, queries, dim), key=_same_row(1, heads, keys, dim),
                 value=_same_row(1, heads, keys, dim))  # fmt: skip
    if kind == "weights":
        given["return_weights"] = True
    if kind.startswith("careful"):  # scores at the end of the float range are done again in double
        given["bias"] = np.broadcast_to(np.finfo(np.float32).min, (queries, keys))
    return given


def status_of(pid, seconds=20.0):
    """Exit status of a forked process, negative for a signal; a hang is an error."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"the child had not ended after {seconds} s")


def fork(body):
    """Run `body` in a forked process and return its id; status 0 unless it raises."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        body()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def send(number, after):
    """Let a thread send the signal to the process; the list returned will have the time."""
    sent = []
    started = threading.Event()

    def body():
        started.wait()  # a signal inside of start() would not be about the call
        time.sleep(after)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    threading.Thread(target=body, daemon=True).start()
    started.set()
    return sent


def in_time(sent, what=""):
    """Half a second after a signal its handler has left the call."""
    late = time.monotonic() - sent[0]
    assert late < 0.5 * PATIENCE, f"{late:.2f} s after the signal {what}"


def interrupt(call, what="", after=0.2):
    """Make the call; Ctrl-C must end it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    sent = send(signal.SIGINT, after)
    try:
        call()
    except KeyboardInterrupt:
        in_time(sent, what)
    else:
        raise AssertionError(f"the call ended by itself {what}")


def run_threads(bodies, seconds=60.0):
    """Run the functions in one thread each; the first exception of any is raised here."""
    failures = []

    def guarded(body):
        try:
            body()
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=guarded, args=(b,), daemon=True) for b in bodies]
    for one in started:
        one.start()
    end = time.monotonic() + seconds
    for one in started:
        one.join(max(0.0, end - time.monotonic()))
        assert not one.is_alive(), f"a thread had not ended after {seconds} s"
    if failures:
        raise failures[0]
