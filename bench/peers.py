# SPDX-License-Identifier: MIT
"""`python -m bench.peers`: how fast are others here, on the same inputs, in the same minutes?

Used from the root of the source tree, also as ``python -m fastattn bench --peers``.  It decides
what is measured; ``rounds`` measures, ``contenders`` says who, ``tables`` and ``pictures`` show it.
It installs nothing: who is missing is named, with what brings it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import fastattn
from fastattn._cli import console, facts, report

from . import contenders, pictures, rounds, serving, tables
from .contender import is_ours
from .team import Team
from .workloads import LENGTHS

__all__ = ["main", "parser", "run"]

PROGRAM = "python -m bench.peers"
# Seconds per workload and number of threads, and the fewest and the most rounds.
FULL = {"seconds": 8.0, "at_least": 3, "at_most": 30}
QUICK = {"seconds": 1.0, "at_least": 2, "at_most": 4}

DESCRIPTION = """\
Measure fastattn beside other systems that compute attention on CPUs.

Every contender runs in a process of its own, with as many CPUs as it may use threads. Each round
takes one sample of every contender in turn, while all others sleep, and one of the machine's limit.
Inputs are the same numbers for all, brought into each one's own form beforehand; results are
compared with float64, and a wrong one gets no time."""

EPILOG = """\
examples:
  python -m bench.peers --quick                             under a minute
  python -m bench.peers --json peers.json --markdown peers.md --plots pictures
  python -m bench.peers --workload s2048 --contender fastattn --contender torch --threads 2
  python -m bench.peers --group half --group caches --group packed      servers, 8 minutes
  python -m bench.peers --group layers      trained layers: decoding loop, documents, multi-head

Contenders that are not installed are left out and named. All of them: pip install -e ".[peers]"
The exit status is 1 where fastattn itself fails or is wrong; a slow result is no error."""


def parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
    top = argparse.ArgumentParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = top.add_argument
    add("--list", action="store_true", help="list contenders and workloads, and stop")
    add(
        "--quick",
        action="store_true",
        help="fewer workloads and rounds, one number of threads, processes reused",
    )
    add("--workload", action="append", metavar="NAME", help="measure this one (may be repeated)")
    add(
        "--group",
        action="append",
        choices=serving.GROUPS,
        help="measure the workloads of this group, one table (may be repeated; default: "
        f"{' and '.join(serving.DEFAULT_GROUPS)}): {', '.join(serving.GROUPS)}",
        metavar="NAME",
    )
    add("--contender", action="append", metavar="NAME", help="only this one (may be repeated)")
    default = " ".join(map(str, _default_threads()))
    add(
        "--threads",
        type=facts.thread_count,
        nargs="+",
        metavar="N",
        help=f"numbers of threads, one after the other (default: {default}; quick: the last)",
    )
    add(
        "--rounds",
        type=facts.positive,
        metavar="N",
        help="rounds per workload (default: as many as fit into "
        f"{FULL['seconds']:.0f} s, at least {FULL['at_least']})",
    )
    add("--seed", type=facts.natural, default=0, metavar="N", help="of the random inputs")
    add("--json", metavar="FILE", help="write everything that was measured")
    add("--markdown", metavar="FILE", help="write the tables and their notes")
    add(
        "--plots",
        metavar="DIR",
        help="draw pictures, and measure one more shape at growing lengths for the first",
    )
    return top


def _default_threads() -> list:
    return list(dict.fromkeys([1, fastattn.get_num_threads()]))


def run(args) -> int:
    """Run the command.

    Raises
    ------
    UsageError
        If the request cannot be carried out.
    """
    if args.list:
        _print_list()
        return 0
    plan = _plan(args)
    chosen = [c for c in _choose(args) if _takes_part(c, plan)]
    plan = [(n, w) for n, w in plan if any(c.takes_part(w) for c in chosen)]
    if not plan:
        raise facts.UsageError("none of these contenders takes part in any of these workloads")
    for option in ("json", "markdown"):
        if getattr(args, option):
            facts.check_folder(f"--{option}", getattr(args, option))
    if args.plots:
        pictures.check(args.plots)
    document = _describe(args, chosen, plan)
    interrupted = False
    try:
        with console.progress("peers", len(plan)) as step:
            _measure(plan, chosen, args, document, step)
    except KeyboardInterrupt:  # what has been measured is still worth printing
        interrupted = True
    if document["runs"]:
        tables.print_document(document)
        if args.markdown:
            Path(args.markdown).write_text(tables.markdown(document), encoding="utf-8")
    if args.json:
        Path(args.json).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if interrupted:
        raise KeyboardInterrupt
    if args.plots:
        pictures.draw(document, args.plots)
    ours = [r for run in document["runs"] for r in run["results"] if is_ours(r["contender"])]
    return int(any(result["status"] in ("wrong", "failed") for result in ours))


def _plan(args) -> list:
    """What is measured: pairs of a number of threads and a workload."""
    default = _default_threads()[-1:] if args.quick else _default_threads()
    numbers = list(dict.fromkeys(args.threads or default))
    plan = [(n, workload) for n in numbers for workload in serving.choose(args)]
    if args.plots and not args.group:
        plan += [(max(numbers), w) for w in LENGTHS if w.quick or not args.quick]
    # Stable.  Each group has a team of its own, which a quick run starts only once.
    order = list(serving.GROUPS)
    return sorted(
        plan, key=lambda pair: (numbers.index(pair[0]), order.index(serving.group(pair[1])))
    )


def _choose(args) -> list:
    """The contenders that take part."""
    known = contenders.known()
    for name in args.contender or ():
        if name not in known:
            raise facts.UsageError(facts.unknown("contender", name, list(known)))
        if not known[name].is_installed():
            raise facts.UsageError(f"{name} is not installed: pip install {known[name].pip}")
    return [
        contender
        for name, contender in known.items()
        if name in (args.contender or known) and contender.is_installed()
    ]


def _takes_part(contender, plan) -> bool:
    return any(contender.takes_part(workload) for _, workload in plan)


def _describe(args, chosen, plan) -> dict:
    """The JSON document, its list of runs still empty."""
    missing = [] if args.contender else contenders.known().values()
    return {
        **facts.machine(),
        "backend": fastattn.backends()[0],
        "has_affinity": hasattr(os, "sched_setaffinity"),
        "quick": args.quick,
        "seed": args.seed,
        "contenders": [
            {"name": c.name, "title": c.title, "version": None, "differences": c.differences}
            for c in chosen
        ],
        "missing": [
            {"name": c.name, "title": c.title, "pip": f"pip install {c.pip}"}
            for c in missing
            if not c.is_installed() and _takes_part(c, plan)
        ],
        "runs": [],
    }


def _measure(plan, chosen, args, document, step) -> None:
    """Carry the plan out; the runs are added to the document one by one.

    Each workload gets fresh processes, so that no library lives on memory that it has kept from the
    workload before.  A quick run spares the time.  Who has no call for a workload's scores is not
    started for it.
    """
    budget = dict(QUICK if args.quick else FULL)
    if args.rounds:
        budget.update(seconds=0.0, at_least=args.rounds, at_most=args.rounds)
    team = None
    try:
        for done, (n_threads, workload) in enumerate(plan):
            present = [contender for contender in chosen if contender.takes_part(workload)]
            where = f"{workload.name}, {n_threads} thread{'s' * (n_threads != 1)}"
            step(done, f"{where}, starting")
            if team is None or not args.quick or not team.is_for(present, n_threads):
                if team is not None:
                    team.__exit__()
                team = Team(present, n_threads)
                team.__enter__()
                for entry in document["contenders"]:
                    entry["version"] = team.versions.get(entry["name"], entry["version"])

            def show(n_rounds, where=where, done=done):
                step(done, f"{where}, round {n_rounds + 1}")

            document["runs"].append(rounds.run_workload(team, workload, args.seed, budget, show))
    finally:
        if team is not None:
            team.__exit__()


def _print_list() -> None:
    rows = [
        [name, contender.title, "" if contender.is_installed() else f"pip install {contender.pip}"]
        for name, contender in contenders.known().items()
    ]
    console.table(["contender", "<title", "<missing"], rows)
    print()
    report.print_list([w for w in serving.WORKLOADS if serving.has_dtype(w)])


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; exit statuses as for ``python -m fastattn``."""
    args = parser().parse_args(arguments)
    return facts.exit_status(PROGRAM, lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
