# SPDX-License-Identifier: MIT
"""`python -m fastattn bench`: how fast is it here, beside NumPy and beside the machine's limits?

Used by the command line.  It decides what to measure; `measure` does the measuring and `report` the
printing.  A slow result is never an error (a wrong one is: exit status 1).
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np

import fastattn

from . import ceilings, console, facts, measure, report, workloads

__all__ = ["add_arguments", "choose", "run"]

# Seconds per workload, and the fewest and the most rounds.
FULL, QUICK = (4.0, 3, 200), (1.0, 2, 20)


def add_arguments(parser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--list", action="store_true", help="list the workloads and stop")
    parser.add_argument("--quick", action="store_true", help="fewer workloads and fewer rounds")
    parser.add_argument(
        "--workload", action="append", metavar="NAME", help="measure this one (may be repeated)"
    )
    parser.add_argument("--backend", metavar="NAME", help="measure this one (default: the best)")
    parser.add_argument("--threads", type=facts.thread_count, metavar="N", help="use N threads")
    parser.add_argument(
        "--seed", type=facts.natural, default=0, metavar="N", help="of the random inputs"
    )
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write JSON (to FILE, or instead)"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the result (needs matplotlib)")
    parser.add_argument(
        "--peers",
        nargs=argparse.REMAINDER,
        help="beside PyTorch, ONNX Runtime, OpenVINO and JAX instead; what follows is for that"
        " command (--peers --help), which is in the source tree only",
    )


def run(args) -> int:
    """Run the command; the exit status is 1 where a result is wrong."""
    if args.peers is not None:
        return _peers(args.peers)
    if args.list:
        report.print_list()
        return 0
    chosen = choose(args)
    backend = facts.usable_backend(args.backend) if args.backend else fastattn.get_backend()
    if args.plot:
        from . import plot

        plot.check(args.plot, chosen)
    to_file = args.json if args.json != "-" else None
    if to_file:
        facts.check_folder("--json", to_file)
    n_threads = args.threads or fastattn.get_num_threads()
    document = _describe_run(backend, n_threads, args)
    results = document["workloads"]
    interrupted = False
    try:
        with fastattn.threads(n_threads), console.progress("bench", len(chosen)) as step:
            for done, workload in enumerate(chosen):
                show = functools.partial(_show, step, done, workload.name)
                show(0)
                results.append(_measure(workload, backend, n_threads, args, show))
    except KeyboardInterrupt:  # what has been measured is still worth printing
        interrupted = True
    if args.json == "-":
        json.dump(document, sys.stdout, indent=2)
        print()
    elif results:
        report.print_report(document)
    if to_file:
        Path(to_file).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if interrupted:
        raise KeyboardInterrupt
    if args.plot:
        plot.draw(document, args.plot)
    return int(not all(result["is_correct"] for result in results))


def _peers(arguments) -> int:
    """Hand over to ``bench/peers.py`` of the source tree."""
    root = Path(fastattn.__file__).parents[1]
    if (root / "bench" / "peers.py").exists():
        sys.path.insert(0, str(root))
    try:
        peers = import_module("bench.peers")
    except ModuleNotFoundError:
        raise facts.UsageError(
            "--peers: not found. It is bench/peers.py of the source tree, which no wheel holds:"
            " run this, or python -m bench.peers, in the root of the tree"
        ) from None
    return peers.main(arguments)


def _show(step, done, name, n_rounds) -> None:
    """Tell the progress bar where the measuring is."""
    step(done, f"{name}, round {n_rounds + 1}")


def choose(args, others=()) -> list:
    """The workloads that ``--workload`` and ``--quick`` ask for; `others` only by their names."""
    if not args.workload:
        return [w for w in workloads.WORKLOADS if w.quick or not args.quick]
    known = {w.name: w for w in (*workloads.WORKLOADS, *others)}
    for name in args.workload:
        if name not in known:
            raise facts.UsageError(facts.unknown("workload", name, list(known)))
    return [known[name] for name in args.workload]


def _describe_run(backend, n_threads, args) -> dict:
    """The JSON document, its list of workloads still empty."""
    return {
        **facts.machine(),
        "backend": backend,
        "n_threads": n_threads,
        "threads_given": args.threads is not None,
        "quick": args.quick,
        "seed": args.seed,
        "workloads": [],
    }


def _measure(workload, backend, n_threads, args, show) -> dict:
    """Measure one workload; times in seconds, rates in flop/s, bytes/s or tanh/s."""
    rng = np.random.default_rng(args.seed)
    inputs = workload.make(rng)
    call = measure.caller(workload, inputs)
    with fastattn.use_backend(backend):
        accuracy = measure.accuracy(workload, inputs, call(), rng)
    native = facts.native()
    has_limits = native is not None and backend != "numpy"
    seconds, at_least, at_most = QUICK if args.quick else FULL
    times, limits = measure.rounds(
        call,
        list(dict.fromkeys([backend, "numpy"])),
        ceilings.ceilings(native, workload, backend, n_threads) if has_limits else [],
        seconds=seconds,
        at_least=at_least,
        at_most=at_most,
        on_round=show,
    )
    ours, numpy = times[backend], times["numpy"]
    amount = workload.amount
    rate = amount and amount / ours.min
    figures = measure.limit_figures(limits)
    return {
        "name": workload.name,
        "title": workload.title,
        "kind": workload.kind,
        "flops": workload.flops,
        "bytes": workload.bytes,
        "tanhs": workload.tanhs,
        "n_rounds": len(ours.values),
        "min_s": ours.min,
        "median_s": ours.median,
        "numpy_min_s": numpy.min,
        "numpy_median_s": numpy.median,
        "speed_up": numpy.min / ours.min,
        "speed_up_of_medians": numpy.median / ours.median,
        "rate": rate,
        "numpy_rate": amount and amount / numpy.min,
        **figures,
        **measure.shares(rate, figures),
        "max_error": accuracy.max_error,
        "is_correct": accuracy.is_correct,
        "n_rows": workload.n_rows,
        "n_rows_compared": accuracy.n_rows,
    }
