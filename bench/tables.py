# SPDX-License-Identifier: MIT
"""A comparison as tables, on the terminal or in Markdown, with what the reader has to know.

Used by ``bench/peers.py``.  It measures nothing; whatever it shows is in the JSON document as well.
"""

from __future__ import annotations

import string

from fastattn._cli import console
from fastattn._cli.report import (
    ABOUT_ADDITIVE,
    limit_spans,
    share_text,
    three_digits,
    times,
)
from fastattn._cli.workloads import UNITS

from . import serving
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
    for text in [*_notes(document), *marks.notes()]:
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
    lines += [f"* {text}" for text in [*_notes(document), *marks.notes()]]
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
        about = ", ".join(filter(None, [_threads(n_threads), serving.GROUPS[group]]))
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


def _threads(n) -> str:
    return f"{n} thread{'s' * (n != 1)}"


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


def _notes(document):
    """What the reader has to know about the numbers."""
    runs, names = document["runs"], [c["name"] for c in document["contenders"]]
    versions = ", ".join(
        f"{c['name']} {c['version'] or '(did not start)'}"
        for c in document["contenders"]
        if not (is_ours(c["name"]) and c["name"] != "fastattn" and "fastattn" in names)
    )
    yield f"On {document['cpu']} ({document['n_cpus']} CPUs), {document['machine']}: {versions}."
    binds = "as many CPUs as threads (affinity)" if document["has_affinity"] else "no affinity set"
    n_rounds = sorted({run["n_rounds"] for run in runs})
    n_rounds = " to ".join(map(str, dict.fromkeys([n_rounds[0], n_rounds[-1]])))
    yield (
        f"Times: minimum / median of {n_rounds} rounds; in each, every contender takes its"
        " turn while the others sleep. One process per contender, set to the number of threads by"
        f" its own option or environment variable, and {binds}. Inputs are prepared beforehand;"
        " a call is timed from them to the finished output."
    )
    if "fastattn" in names:
        yield "Best / fastattn: ratio of the best peer's minimum and ours; above 1, we are faster."
    said = [
        f"{spans} ({_threads(n)})"
        for n in dict.fromkeys(run["n_threads"] for run in runs)
        if (spans := limit_spans(run for run in runs if run["n_threads"] == n))
    ]
    if said:
        yield (
            "Limit: share of the most that this machine did between the same rounds, by fastattn's"
            f" {document['backend']} code: {'; '.join(said)}. A contender with wider vectors can"
            " exceed it."
        )
    else:
        yield "No limit of the machine was measured: fastattn has no compiled extension here."
    yield (
        "Rates count what the result needs: 4 operations per channel and visible pair of row and"
        " key (prefill), keys and values as they are held, read once however many heads share them"
        " (decode), values of tanh (additive)."
    )
    yield from _about_additive(document)
    yield from _about_serving(runs)
    if any(run["kind"] == "decode" for run in runs):
        yield (
            "Decode: one call per sample, its keys and values in no cache (512 MiB were read in"
            " between), after a call on other data that wakes code and threads; other workloads:"
            " warm."
        )
    kept = " Processes were reused in this quick run: what they kept from before is missing."
    yield (
        "Memory: how far the first call raised the process's resident memory, at its peak, above"
        f" the prepared inputs; the output is part of it.{kept * document['quick']}"
    )
    sampled = [run["name"] for run in runs if run["n_rows_compared"] < run["n_rows"]]
    some = f" (a sample of the rows of {', '.join(dict.fromkeys(sampled))})" if sampled else ""
    yield (
        f"Error: largest difference from float64{some}. A result beyond the tolerance that fastattn"
        " promises for itself is WRONG and gets no time."
    )
    for contender in document["contenders"]:
        if contender["differences"]:
            yield f"{contender['differences']}."
    for missing in document["missing"]:
        yield f"{missing['title']} ({missing['name']}) is not installed: {missing['pip']}"
    if document["openblas_coretype"]:
        yield f"OPENBLAS_CORETYPE={document['openblas_coretype']} is set: it may slow NumPy."
    if (document["load_average"] or 0) > 0.5 * (document["n_cpus"] or 1):
        yield f"The machine was busy at the start: load {document['load_average']:.1f}."


def _about_serving(runs):
    """What the reader has to know about the tables of the groups for inference servers."""
    groups = {run["group"] for run in runs}
    if any(run["dtype"] != "float32" for run in runs):
        yield (
            "16-bit floats: inputs and output in the dtype of the workload. Others are forgiven"
            " half a unit of it in each weight, as they may round those; fastattn is not."
        )
    if "caches" in groups:
        yield (
            "Caches: filled beforehand, fastattn is a KVCache in the dtype of the workload, others"
            " have arrays of that shape. Pages are filled by all sequences in turn, one page each."
        )
    if "packed" in groups:
        yield (
            "Packed sequences: their lengths are the same on every machine. The step is one query"
            " of each, whose limit is reading all keys and values once; padding counts for nobody."
        )


def _about_additive(document):
    """What the reader has to know about the tables of additive scores, and who is in one only."""
    titles = {c["name"]: c["title"] for c in document["contenders"]}
    present = {True: set(), False: set()}
    for run in document["runs"]:
        if run["group"] in serving.DEFAULT_GROUPS:
            names = {result["contender"] for result in run["results"]}
            present[run["kind"] == "additive"] |= names
    if not present[True]:
        return
    yield ABOUT_ADDITIVE
    yield (
        "Additive: one head, queries and keys projected beforehand for all, values as wide as the"
        " hidden size U, caches warm."
    )
    for is_additive, says in (
        (True, "In the additive tables only"),
        (False, "In the other tables only, without an operator for additive scores"),
    ):
        only = present[is_additive] - present[not is_additive]
        if only and present[not is_additive]:
            yield f"{says}: {', '.join(titles[name] for name in titles if name in only)}."
