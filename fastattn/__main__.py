# SPDX-License-Identifier: MIT
"""The command line: ``python -m fastattn {info,selftest,bench}``.

Used by people, on the machine that they want to know about.  It only picks a command of ``_cli``.
"""

from __future__ import annotations

import argparse
import sys

import fastattn

from ._cli import bench, facts, info, selftest

COMMANDS = {
    "info": (info, "show what runs here, why, and what is missing"),
    "selftest": (selftest, "check every backend on random calls against float64"),
    "bench": (bench, "measure the named workloads beside NumPy and the machine's limits"),
}


def parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
    top = argparse.ArgumentParser(prog=facts.PROGRAM, description="Attention for NumPy arrays.")
    top.add_argument("--version", action="version", version=f"fastattn {fastattn.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=text, description=f"{text}."))
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns
    -------
    int
        0: done; 1: something is wrong with the package here; 2: the request cannot be carried out;
        130: interrupted.
    """
    args = parser().parse_args(arguments)
    command = COMMANDS[args.command][0]
    return facts.exit_status(f"{facts.PROGRAM} {args.command}", lambda: command.run(args))


if __name__ == "__main__":
    sys.exit(main())
