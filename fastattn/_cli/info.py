# SPDX-License-Identifier: MIT
"""`python -m fastattn info`: what runs here, how it was chosen, and what is missing.

Used by the command line; meant for bug reports, and for people who wonder why it is slow.  It
chooses nothing: it prints what ``_backend`` and ``_threads`` say.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import fastattn
from fastattn import _threads

from . import console, facts

__all__ = ["add_arguments", "collect", "run"]

VARIABLES = (
    "FASTATTN_BACKEND",
    "FASTATTN_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "MKL_NUM_THREADS",
)


def add_arguments(parser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--json", action="store_true", help="print JSON instead")


def run(args) -> int:
    """Run the command."""
    found = collect()
    if args.json:
        json.dump(found, sys.stdout, indent=2)
        print()
    else:
        _print(found)
    return 0


def collect() -> dict:
    """Everything that the command prints, ready for JSON."""
    cpus, cpus_from = _threads.cpu_count()
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    return {
        **fastattn.show_config(as_dict=True),
        "compiled": [
            {"name": name, "needs": needs, "runs_here": bool(supported)}
            for name, needs, supported in facts.compiled_backends()
        ],
        "threads_limits": {cpus_from: cpus, "control group CPU quota": _threads.cgroup_quota()},
        "numpy_blas": blas.get("name"),
        "cpu": facts.cpu_name(),
        "platform": f"{platform.system()} {platform.machine()}",
        "path": str(Path(fastattn.__file__).parent),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "optional": [
            {"package": name, "for": purpose, "install": how, "found": find_spec(name) is not None}
            for name, purpose, how in facts.EXTRAS
        ],
    }


def _print(found) -> None:
    """Print the facts for people."""
    console.heading(f"fastattn {found['version']}")
    limits = [
        f"{name} {'none' if limit is None else f'{limit:g}'}"
        for name, limit in found["threads_limits"].items()
    ]
    rows = [
        ("backend", f"{found['backend']} ({found['backend_reason']})"),
        ("cpu", found["cpu"]),
        ("threads", f"{found['threads']}, from {found['threads_reason']} ({', '.join(limits)})"),
        ("compiler", found["compiler"] + ", assertions on" * found["asserts"]),
        ("numpy", f"{found['numpy']} (BLAS: {found['numpy_blas'] or 'unknown'})"),
        ("python", f"{found['python']} on {found['platform']}"),
        ("installed in", found["path"]),
    ]
    variables = " ".join(f"{name}={value}" for name, value in found["environment"].items())
    console.pairs([*rows, ("environment", variables or "none of ours, of OpenMP's or of BLAS's")])

    console.heading("\nBackends, best first")
    rows = [
        [entry["name"], entry["needs"] or "nothing", "yes" if entry["runs_here"] else "no"]
        for entry in found["compiled"]
    ]
    rows.append(["numpy", "NumPy", "yes"])
    for row in rows:
        row.append("chosen" if row[0] == found["backend"] else "")
    console.table(["name", "<needs", "<offered here", "<choice"], rows)

    native = found["missing"].get("native")
    absent = [("compiled backends", native)] if native else []
    absent += [
        (entry["package"], f"{entry['for']}: pip install {entry['install']}")
        for entry in found["optional"]
        if not entry["found"]
    ]
    if absent:
        console.heading("\nMissing")
        console.pairs(absent)
    if found["environment"].get("OPENBLAS_CORETYPE"):
        console.note("\nOPENBLAS_CORETYPE fixes the kernels of NumPy's BLAS, perhaps to slow ones.")
