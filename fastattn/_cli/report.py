# SPDX-License-Identifier: MIT
"""A benchmark as text: the table and what the reader has to know about it.

Used by `bench`.  It measures nothing; whatever it prints is in the JSON document as well.
"""

from __future__ import annotations

import math

from . import console, facts, workloads
from .workloads import UNITS

__all__ = [
    "ABOUT_ADDITIVE", "LIMITS", "limit_spans", "print_list", "print_report", "share_text", "span",
    "three_digits", "times",
]  # fmt: skip

# What the limits of a kind are called, by their names in the JSON document.
LIMITS = {
    "prefill": {"limit": "multiply-add"},
    "decode": {"limit": "memory read"},
    "additive": {"limit": "multiply-add", "divide_limit": "divide"},
}
ABOUT_ADDITIVE = (
    "Additive: two limits, in values of tanh, by fastattn's own way to compute them: multiply-adds,"
    " 4 for each tanh (3 of the score, 1 of the output), and divisions, one for two tanh. A kernel"
    " that estimates reciprocals instead, as fastattn's do on x86, can exceed the second."
)


def print_list(others=()) -> None:
    """Print the workloads, and `others` behind them."""
    rows = []
    for workload in (*workloads.WORKLOADS, *others):
        needs = {
            "prefill": f"{three_digits(workload.flops / 1e9)} GFLOP",
            "decode": f"{three_digits(workload.bytes / 1e6)} MB",
            "additive": f"{three_digits(workload.tanhs / 1e9)} G tanh",
        }.get(workload.kind, "")
        quick = "yes" if workload.quick else ""
        rows.append([workload.name, workload.title, workload.kind, needs, quick])
    console.table(["workload", "<shape", "<kind", "needs", "<in --quick"], rows)


def print_report(document: dict) -> None:
    """Print the JSON document of a benchmark as a table with notes."""
    backend, n_threads = document["backend"], document["n_threads"]
    title = f"fastattn {document['fastattn']} on {backend}"
    if backend != "numpy":
        title += f", {n_threads} thread{'s' * (n_threads != 1)}, beside its NumPy backend"
    console.heading(f"{title} (NumPy {document['numpy']})")
    results = [_cells(result, is_alone=backend == "numpy") for result in document["workloads"]]
    columns = [name for name in results[0] if any(cells[name] for cells in results)]
    console.table(columns, [[cells[name] for name in columns] for cells in results])
    for text in _notes(document):
        console.note(text)


def _cells(result, is_alone) -> dict:
    """The cells of one workload by column; `is_alone`: only NumPy was measured."""
    unit = UNITS.get(result["kind"], "").replace("GFLOP", "GF")
    return {
        "workload": result["name"],
        "fastattn": "" if is_alone else times(result["min_s"], result["median_s"]),
        "numpy": times(result["numpy_min_s"], result["numpy_median_s"]),
        "faster": "" if is_alone else f"{three_digits(result['speed_up'])}x",
        "rate": f"{three_digits(result['rate'] / 1e9)} {unit}" if result["rate"] else "",
        "limit": share_text(result),
        "error": f"{result['max_error']:.0e}" + ("" if result["is_correct"] else " WRONG"),
    }


def _notes(document):
    """What the reader has to know about the numbers."""
    results = document["workloads"]
    is_alone = document["backend"] == "numpy"
    faster = "" if is_alone else " Faster: ratio of the minima."
    yield f"Times: minimum / median of the rounds, taken in turns.{faster}"
    measured = limit_spans(results)
    if measured:
        yield f"Limit: share of what this machine did between the same rounds: {measured}."
    elif is_alone:
        problem = facts.native_problem() or "it was not asked for"
        yield f"Only the NumPy backend was measured, and no limit of the machine: {problem}."
    if any(result["divide_limit"] for result in results):
        yield ABOUT_ADDITIVE
    sampled = [r["name"] for r in results if r["n_rows_compared"] < r["n_rows"]]
    some = f" (a sample of the rows of {', '.join(sampled)})" if sampled else ""
    yield f"Error: largest difference from float64{some}."
    if document["openblas_coretype"]:
        yield (
            f"OPENBLAS_CORETYPE={document['openblas_coretype']} is set: NumPy's times are those of"
            " that kernel set, which may be slower than NumPy is by default."
        )
    if document["threads_given"]:
        yield "--threads does not bind NumPy, whose BLAS counts its own (OPENBLAS_NUM_THREADS)."
    if (document["load_average"] or 0) > 0.5 * (document["n_cpus"] or 1):
        yield f"The machine was busy at the start: load {document['load_average']:.1f}."


def limit_spans(results) -> str:
    """The limits that were measured, such as ``"multiply-add 340 to 382 GFLOP/s"``, if any."""
    measured = {}
    for result in results:
        for key, name in LIMITS.get(result["kind"], {}).items():
            if result[key]:
                measured.setdefault((name, result["kind"]), []).append(result[key] / 1e9)
    return ", ".join(
        f"{name} {span(values)} {UNITS[kind]}" for (name, kind), values in measured.items()
    )


def share_text(result) -> str:
    """The shares of the limits; empty where there is none."""
    shares = (result["share_of_limit"], result["share_of_divide_limit"])
    return " / ".join(f"{share:.0%}" for share in shares if share)


def times(*seconds) -> str:
    """Two times in the unit of the first, such as ``"2.10 / 2.25 ms"``."""
    for factor, unit in ((1e6, "us"), (1e3, "ms"), (1, "s")):
        if seconds[0] * factor < 1000 or unit == "s":
            return " / ".join(three_digits(s * factor) for s in seconds) + f" {unit}"
    raise AssertionError("unreachable")


def span(numbers) -> str:
    """The smallest and the largest of the numbers."""
    ends = dict.fromkeys(map(three_digits, (min(numbers), max(numbers))))
    return " to ".join(ends)


def three_digits(number) -> str:
    """Three significant digits without an exponent."""
    if number <= 0:
        return "0"
    return f"{number:.{max(0, 2 - math.floor(math.log10(number)))}f}"
