# SPDX-License-Identifier: MIT
"""What the commands have to know about this installation, and how they refuse a request.

Used by every command.  It decides nothing: which backend runs and how many threads is decided in
``_backend`` and ``_threads``; this module only asks them.
"""

from __future__ import annotations

import argparse
import difflib
import os
import platform
import sys
from importlib import import_module
from pathlib import Path

import numpy as np

import fastattn

__all__ = [
    "EXTRAS", "PROGRAM", "UsageError", "check_folder", "compiled_backends", "cpu_name",
    "exit_status", "machine", "native", "native_problem", "natural", "positive", "thread_count",
    "unknown", "usable_backend",
]  # fmt: skip

PROGRAM = "python -m fastattn"

# What is optional: package, what it is for, what brings it.
EXTRAS = (
    ("rich", "coloured tables and progress bars", "'fastattn[bench]'"),
    ("matplotlib", "pictures", "'fastattn[bench]'"),
    ("pytest_benchmark", "the suites under bench/", "'fastattn[bench]'"),
    ("ml_dtypes", "bfloat16 arrays", "ml_dtypes"),
)


class UsageError(Exception):
    """The request cannot be carried out; the message tells the user why."""


def native_problem() -> str | None:
    """Why there is no compiled extension; None where there is one."""
    return fastattn.show_config(as_dict=True)["missing"].get("native")


def native():
    """The compiled extension, or None where it cannot be used."""
    return None if native_problem() else import_module("fastattn._native")


def compiled_backends() -> list:
    """The compiled backends, best first: name, CPU features it needs, whether they are here."""
    module = native()
    return [] if module is None else list(module.backend_table())


def usable_backend(name: str) -> str:
    """Return the name of that backend if it runs here (``"native"``: of the best compiled one).

    Raises
    ------
    UsageError
        If it does not; the message says what is missing.
    """
    try:
        with fastattn.use_backend(name):
            return fastattn.get_backend()
    except ValueError as error:
        raise UsageError(str(error).replace("name:", "--backend:", 1)) from None


def cpu_name() -> str:
    """What the system calls this CPU; "unknown" where it does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (names[0] if names else platform.processor()) or "unknown"


def machine() -> dict:
    """What a reader of figures has to know about the machine and what runs on it."""
    return {
        "fastattn": fastattn.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "n_cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE"),
    }


def unknown(what: str, name: str, known: list) -> str:
    """The message for a name that does not exist."""
    close = difflib.get_close_matches(name, known, 1)
    hint = f", did you mean {close[0]!r}?" if close else ";"
    return f"unknown {what} {name!r}{hint} known: {', '.join(known)}"


def natural(text: str) -> int:
    """Argument type: an integer of at least 0."""
    return _integer(text, 0, None)


def positive(text: str) -> int:
    """Argument type: an integer of at least 1."""
    return _integer(text, 1, None)


def thread_count(text: str) -> int:
    """Argument type: a number of threads that the package accepts."""
    return _integer(text, 1, 1024)


def _integer(text, least, most):
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least or (most and number > most):
        wanted = f"from {least} to {most}" if most else f"of at least {least}"
        raise argparse.ArgumentTypeError(f"expected an integer {wanted}, got {text!r}")
    return number


def check_folder(option: str, path: str) -> None:
    """Refuse a file that could not be written, before the time for measuring is spent."""
    folder = Path(path).resolve().parent
    if Path(path).is_dir():
        raise UsageError(f"{option}: expected the name of a file, got the folder {path}")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{option}: cannot write into {folder}")


def exit_status(program: str, run) -> int:
    """Run a command and tell a shell how it went.

    Parameters
    ----------
    program : str
        What the user typed, for messages.
    run : callable
        Returns the exit status of a command that could be carried out.

    Returns
    -------
    int
        2: the request cannot be carried out; 130: interrupted; else see ``fastattn.__main__``.
    """
    try:
        status = run()
        sys.stdout.flush()  # here, where a reader that has gone is understood
        return status
    except UsageError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except MemoryError:
        print(f"{program}: not enough memory", file=sys.stderr)
        return 1
    except BrokenPipeError:  # nobody reads on; keep Python from flushing into the pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
