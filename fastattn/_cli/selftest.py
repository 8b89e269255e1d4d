# SPDX-License-Identifier: MIT
"""`python -m fastattn selftest`: does this build compute attention correctly on this machine?

Used by the command line.  It is no replacement for the test suite, which needs the source tree: it
draws random calls, compares every backend with a float64 oracle and times nothing.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

import numpy as np

import fastattn

from . import cases, console, facts, oracle

__all__ = ["add_arguments", "run"]

NAMES = ("out", "lse", "weights")  # in the order in which a call returns them
MAX_SHOWN = 3  # failures described in full, per backend


@dataclass
class Tally:
    """What a backend has done so far."""

    n_cases: int = 0
    n_failed: int = 0
    worst: dict = field(default_factory=dict)  # dtype -> largest error, in units of its tolerance
    failures: list = field(default_factory=list)  # (case, problems), the first ones


def add_arguments(parser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--cases", type=facts.positive, default=300, metavar="N", help="how many")
    parser.add_argument(
        "--seed", type=facts.natural, default=0, metavar="N", help="of the random cases"
    )
    parser.add_argument("--case", type=facts.natural, metavar="N", help="run this one case only")
    parser.add_argument("--backend", metavar="NAME", help="test this one only (default: all)")


def run(args) -> int:
    """Run the command; the exit status is 1 where a result is wrong."""
    names = [facts.usable_backend(args.backend)] if args.backend else fastattn.backends()
    edges = cases.tile_edges(getattr(facts.native(), "plan", None))
    numbers = range(args.cases) if args.case is None else [args.case]
    tallies = {name: Tally() for name in names}
    start = time.perf_counter()
    with console.progress("selftest", len(numbers)) as step:
        for done, number in enumerate(numbers):
            step(done, "")
            case = cases.draw(args.seed, number, edges)
            want_weights = number % 3 == 0
            expected = oracle.attention(**case.arrays, **case.options, want_weights=want_weights)
            for name, tally in tallies.items():
                _tally(tally, case, *_judge(case, name, expected))
    seconds = time.perf_counter() - start

    what = f"{len(numbers)} cases" if args.case is None else f"case {args.case}"
    console.heading(
        f"fastattn {fastattn.__version__} selftest: {what}, seed {args.seed}, {seconds:.1f} s"
    )
    if args.case is not None:
        console.note(str(case))
    dtypes = [dtype for dtype in cases.DTYPES if any(dtype in t.worst for t in tallies.values())]
    rows = [_summary(name, tally, dtypes) for name, tally in tallies.items()]
    console.table(["backend", "cases", "<result", *dtypes], rows)
    console.note("Under each dtype: the largest error, in units of what the result may be off by.")
    for name, tally in tallies.items():
        for case, problems in tally.failures:
            _describe(name, case, problems, args.seed)
    if facts.native() is None:
        console.note(f"The compiled backends were not tested: {facts.native_problem()}.")
    return int(any(tally.n_failed for tally in tallies.values()))


def _judge(case, backend, expected):
    """Run a case on a backend.

    Returns
    -------
    worst : float
        The largest error in units of the tolerance.
    problems : list of str
        What is wrong; empty when nothing is.
    """
    options = dict(case.options, return_lse=True, return_weights=expected.weights is not None)
    layout = case.options.get("layout", "bhsd")
    try:
        with fastattn.use_backend(backend):
            with fastattn.threads(case.n_threads):
                results = _call(case, options, prefilled=case.number % 2 == 1)
            again = None
            if case.number % 4 == 0:
                with fastattn.threads(1):
                    again = _call(case, options, prefilled=False)
    except Exception as error:  # whatever it is, it is the finding
        return np.inf, [f"{type(error).__name__}: {error}"]
    worst, problems = 0.0, []
    for what, result in zip(NAMES, results, strict=False):
        found = oracle.compare(result, expected, what, layout)
        worst = max(worst, found.error)
        if found.error > 1:
            problems.append(
                f"{what}: {found.error:.3g} times the tolerance at {found.where}:"
                f" got {found.got:.8g}, expected {found.want:.8g}"
            )
    if again is not None:
        for what, one, other in zip(NAMES, results, again, strict=False):
            if one.tobytes() != other.tobytes():
                problems.append(f"{what}: other bits with {case.n_threads} threads than with one")
    return worst, problems


def _call(case, options, prefilled):
    """The results of the call; `prefilled` passes an `out` full of NaN."""
    call = fastattn.scaled_dot_product_attention
    results = call(**case.arrays, **options)
    if prefilled:
        out = np.full_like(results[0], np.nan)
        results = call(**case.arrays, **options, out=out)
    return results


def _tally(tally, case, worst, problems) -> None:
    tally.n_cases += 1
    tally.worst[case.dtype] = max(worst, tally.worst.get(case.dtype, 0.0))
    if problems:
        tally.n_failed += 1
        if len(tally.failures) < MAX_SHOWN:
            tally.failures.append((case, problems))


def _summary(name, tally, dtypes):
    """The line of a backend."""
    result = f"{tally.n_failed} FAILED" if tally.n_failed else "ok"
    errors = [f"{tally.worst[dtype]:.2g}" if dtype in tally.worst else "" for dtype in dtypes]
    return [name, str(tally.n_cases), result, *errors]


def _describe(name, case, problems, seed) -> None:
    """Say what went wrong in a case, and how to run it again."""
    console.heading(f"\n{name}, case {case.number}: FAILED")
    for problem in problems:
        console.note(problem)
    console.note(str(case))
    print(f"again: {facts.PROGRAM} selftest --backend {name} --seed {seed} --case {case.number}")
    sys.stdout.flush()
