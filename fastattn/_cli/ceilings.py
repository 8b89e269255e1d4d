# SPDX-License-Identifier: MIT
"""The machine's limits, measured with code of the extension: arithmetic, divisions, memory.

Used by `measure`, which takes a sample of them before each of a contender, and through it by
`bench` and ``bench/``.  It knows no contender, and decides nothing by time.
"""

from __future__ import annotations

import time

import numpy as np

__all__ = ["Ceiling", "ceilings"]

SAMPLE_SECONDS = 10e-3  # length of one sample of arithmetic
READ_BYTES = 512 * 2**20  # more than any cache, so that reading it is reading memory

# What one value of tanh takes where additive scores are sums of quotients, as in the inner loop of
# csrc/kernels/additive.tmpl.h: two of them, a1 / d1 + a2 / d2, are d1 and d2 (two fused
# multiply-adds), their product, a2 d1, a1 d2 + that (one more), one division, and the addition of
# the quotient: 6 operations besides the division, 3 per tanh.  The sum of the values adds one, as
# values are as wide as the hidden size.  Each counts as a multiply-add, 2 operations of the limit.
# (On x86 the kernel has no division: an estimate and Newton's step take its place, which are three
# more.  So it passes the limit of divisions and stays further below that of multiply-adds.)
FLOPS_PER_TANH = 2 * (3 + 1)
DIVISIONS_PER_TANH = 1 / 2

# By the kind of workload: what limits it, and how much of that one unit of its rate takes.
_LIMITS = {
    "prefill": (("multiply-add", 1),),
    "decode": (("memory read", 1),),
    "additive": (("multiply-add", FLOPS_PER_TANH), ("divide", DIVISIONS_PER_TANH)),
}


class Ceiling:
    """One limit of the machine.

    Parameters
    ----------
    native : module
        The compiled extension.
    what : {"multiply-add", "divide", "memory read"}
        Multiply-adds or divisions on every thread, or reading memory.
    backend : str
        Whose vectors to use.
    n_threads : int
    per_unit : float
        How many operations or bytes make a unit of the rate that it limits.
    """

    def __init__(self, native, what, backend, n_threads, per_unit=1):
        self._native, self._backend, self._n_threads = native, backend, n_threads
        self._what, self._per_unit = what, per_unit
        self._n_rounds = 1000
        if what == "memory read":
            # Ones, not zeros: untouched pages of zeros are all one page, which stays in the cache.
            self._buffer = np.ones(READ_BYTES // 4, np.float32)
        while what != "memory read" and self._timed()[1] < SAMPLE_SECONDS:
            self._n_rounds *= 2

    def _timed(self):
        """Amount done (operations or bytes) and the seconds it took."""
        start = time.perf_counter()
        if self._what == "memory read":
            self._native.ceiling_read(self._backend, self._n_threads, self._buffer)
            amount = self._buffer.nbytes
        else:
            is_div = self._what == "divide"
            run = self._native.ceiling_div if is_div else self._native.ceiling_fma
            amount = run(self._backend, self._n_threads, self._n_rounds)
        return amount, time.perf_counter() - start

    def sample(self) -> float:
        """Measure once: units per second."""
        amount, seconds = self._timed()
        return amount / seconds / self._per_unit


def ceilings(native, workload, backend, n_threads) -> list:
    """The limits that a workload may run into, the main one first; none for a mere call."""
    return [
        Ceiling(native, what, backend, n_threads, per_unit)
        for what, per_unit in _LIMITS.get(workload.kind, ())
    ]
