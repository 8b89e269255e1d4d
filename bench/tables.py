# SPDX-License-Identifier: MIT
"""A comparison as tables, on the terminal or in Markdown, with notes on single cells.

Used by ``bench/peers.py``; the notes on all of it are in ``bench/notes.py``.  It measures nothing;
whatever it shows is in the JSON document as well.
"""

from __future__ import annotations

import string

from fastattn._cli import console
from fastattn._cli.report import share_text, three_digits, times
from fastattn._cli.workloads import UNITS

from . import notes, serving
from .contender import is_ours

__all__ = ["best_peer", "markdown", "print_document"]


def best_peer(run) -> dict | None:
    """The fastest correct result that is not fastattn's, in whatever form."""
    timed = [r for r in run["results"] if r["min_s"] and not is_ours(r["contender"])]
    return min(timed, key=lambda result: result["min_s"], default=None)


def print_document(document: dict) -> None:
    """Print the JSON document of a comparison."""
    marks = Marks(document)
    for title, columns, rows in _tables(document, marks):
        console.heading(title)
        console.table(columns, rows)
        print()
    for text in [*notes.notes(document), *marks.notes()]:
        console.note(text)


def markdown(document: dict) -> str:
    """The same as Markdown."""
    marks = Marks(document)
    lines = ["# Attention on CPUs, side by side", ""]
    for title, columns, rows in _tables(document, marks):
        ends = [
            ":--" if i == 0 or name.startswith("<") else "--:" for i, name in enumerate(columns)
        ]
        cells = [[name.lstrip("<") for name in columns], ends, *rows]
        lines += [f"## {title}", "", *(f"| {' | '.join(row)} |" for row in cells), ""]
    lines += [f"* {text}" for text in [*notes.notes(document), *marks.notes()]]
    return "\n".join(lines) + "\n"


class Marks:
    """Letters for what is to be said about single cells, in order of their appearance."""

    def __init__(self, document):
        self._titles = {c["name"]: c["title"] for c in document["contenders"]}
        self._letters = {}

    def of(self, result) -> str:
        """The mark to put behind the cell; empty where there is nothing to say."""
        text = result["reason"] or result["note"]
        if not text:
            return ""
        key = (result["contender"], result["status"], text)
        letters = string.ascii_lowercase
        n = self._letters.setdefault(key, len(self._letters))
        return f" ({letters[n] if n < len(letters) else n})"

    def notes(self):
        """One line per letter."""
        says = {"ok": "", "cannot": "no such call: ", "wrong": "WRONG: ", "failed": "failed: "}
        for n, (name, status, text) in enumerate(self._letters):
            letter = string.ascii_lowercase[n] if n < 26 else n
            yield f"({letter}) {self._titles[name]}: {says[status]}{text}."


def _tables(document, marks):
    """Title, columns and rows of each table: an overview and the details per number of threads.

    Each group of workloads has tables of its own: others can do them.
    """
    for n_threads, group in dict.fromkeys(map(_group, document["runs"])):
        runs = [run for run in document["runs"] if _group(run) == (n_threads, group)]
        about = ", ".join(filter(None, [notes.threads(n_threads), serving.GROUPS[group]]))
        present = {result["contender"] for run in runs for result in run["results"]}
        names = [c["name"] for c in document["contenders"] if c["name"] in present]
        has_ours = "fastattn" in names
        columns = [
            "workload",
            *names,
            "<best peer",
            *(["best / fastattn", "fastattn / limit"] if has_ours else []),
        ]
        rows = [_overview(run, names, marks, has_ours) for run in runs]
        yield f"{about}: shortest times", columns, rows
        columns = ["workload", "<contender", "min / median", "rate", "rate / limit", "/ fastattn"]
        details = [_details(run, result) for run in runs for result in run["results"]]
        yield (
            f"{about}: details",
            [*columns, "memory", "error"],
            [row for row in details if row],
        )


def _group(run) -> tuple:
    return run["n_threads"], run["group"]


def _overview(run, names, marks, has_ours) -> list:
    """The line of a workload."""
    found = {r["contender"]: _short(r) + marks.of(r) for r in run["results"]}
    cells = [found.get(name, "") for name in names]
    best = best_peer(run)
    line = [run["name"], *cells, best["contender"] if best else ""]
    if has_ours:
        ours = next(r for r in run["results"] if r["contender"] == "fastattn")
        ratio = best and best["times_fastattn"]
        line += [f"{three_digits(ratio)}x" if ratio else "", share_text(ours)]
    return line


def _short(result) -> str:
    words = {"cannot": "n/a", "wrong": "WRONG", "failed": "failed"}
    return words.get(result["status"]) or (times(result["min_s"]) if result["min_s"] else "")


def _details(run, result) -> list | None:
    """The line of one contender; None where there is nothing to add to the overview."""
    if result["status"] in ("cannot", "failed"):
        return None
    unit = UNITS.get(run["kind"], "").replace("GFLOP", "GF")
    error, size = result["max_error"], result["peak_bytes"]
    timed = result["min_s"] is not None
    ratio = result["times_fastattn"]
    wrong = " WRONG" * (result["status"] == "wrong")
    return [
        run["name"],
        result["contender"],
        times(result["min_s"], result["median_s"]) if timed else "",
        f"{three_digits(result['rate'] / 1e9)} {unit}" if result["rate"] else "",
        share_text(result),
        f"{three_digits(ratio)}x" if ratio else "",
        f"{size / 2**20:.1f} MiB" if size is not None else "",
        ("not finite" if error is None else f"{error:.0e}") + wrong,
    ]
