# SPDX-License-Identifier: MIT
"""What the reader of a comparison has to know about its numbers.

Used by ``bench/tables.py``, below its tables.  It measures nothing; whatever it says is in the JSON
document as well.
"""

from __future__ import annotations

from fastattn._cli.report import ABOUT_ADDITIVE, limit_spans

from . import serving
from .contender import is_ours

__all__ = ["notes", "threads"]


def threads(n) -> str:
    """A number of threads in words."""
    return f"{n} thread{'s' * (n != 1)}"


def notes(document):
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
        f"{spans} ({threads(n)})"
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
    if "layers" in groups:
        yield (
            "Layers: weights are in each one's own form beforehand. seq2seq: the queries of all"
            " steps are given, one call a step; keys are projected once a loop, in the time (of"
            " seq2seq-steps beforehand), and queries step by step. han: documents with no encoder;"
            " padding counts for nobody. mha: rates count the four projections as"
            " well. An element may differ by 2e-5 of the largest of its"
            " row, and 2e-6."
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
