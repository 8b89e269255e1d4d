# SPDX-License-Identifier: MIT
"""What the commands print with: tables, name-value lists, wrapped notes and progress bars.

Used by every command.  It knows nothing of attention.

Results go to standard output, progress to standard error.  On a terminal rich draws both, where it
is installed; in a pipe, and without rich, the same content comes as aligned plain text.  A table
that is wider than the terminal turns into one short list per row: nothing is cut off.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from contextlib import contextmanager

__all__ = ["heading", "note", "pairs", "progress", "table"]

GAP = "  "


def _rich(stream):
    """A rich console for the stream, or None where plain text should do."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream, highlight=False)


def _width() -> int:
    """Columns to fill: those of the terminal; in a pipe 100, so that text still wraps."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 100


def heading(text: str) -> None:
    """Print a line that stands out."""
    console = _rich(sys.stdout)
    if console is None:
        print(text)
    else:
        console.print(text, style="bold", markup=False)


def note(text: str) -> None:
    """Print a paragraph, wrapped."""
    print(textwrap.fill(text, max(20, _width() - 1), break_long_words=False))


def pairs(rows) -> None:
    """Print names and values, the values aligned and wrapped."""
    rows = [(str(name), str(value)) for name, value in rows]
    indent = max((len(name) for name, _ in rows), default=0) + 4
    for name, value in rows:
        lines = textwrap.wrap(value, max(20, _width() - 1 - indent), break_long_words=False)
        print(f"{GAP}{name}".ljust(indent) + f"\n{' ' * indent}".join(lines or [""]))


def table(columns, rows) -> None:
    """Print a table; the first column and those whose name starts with ``<`` align left.

    Parameters
    ----------
    columns : list of str
    rows : list of list of str
    """
    left = [i == 0 or name.startswith("<") for i, name in enumerate(columns)]
    columns = [name.lstrip("<") for name in columns]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    if sys.stdout.isatty() and sum(widths) + len(GAP) * (len(widths) - 1) > _width():
        for first, *others in rows:
            heading(first)
            pairs((name, cell) for name, cell in zip(columns[1:], others, strict=True) if cell)
        return
    console = _rich(sys.stdout)
    if console is not None:
        _rich_table(console, columns, rows, left)
        return
    for cells in [columns, ["-" * width for width in widths], *rows]:
        aligned = zip(cells, widths, left, strict=True)
        print(GAP.join(c.ljust(w) if is_left else c.rjust(w) for c, w, is_left in aligned).rstrip())


def _rich_table(console, columns, rows, left) -> None:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, padding=(0, len(GAP), 0, 0), pad_edge=False, header_style="bold cyan")
    for name, is_left in zip(columns, left, strict=True):
        drawn.add_column(name, justify="left" if is_left else "right", no_wrap=True)
    for cells in rows:
        drawn.add_row(*(Text(cell) for cell in cells))
    console.print(drawn)


@contextmanager
def progress(label: str, total: int):
    """Show how far a loop is, on standard error, where that is a terminal.

    Yields
    ------
    callable
        ``step(done, text)``: `done` of `total` steps are done, `text` says what comes next.
    """
    stream = sys.stderr
    console = _rich(stream)
    if console is not None:
        from rich import progress as rich_progress

        bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TextColumn("{task.fields[text]}", markup=False),
            console=console,
            transient=True,
            auto_refresh=False,  # a thread that draws would disturb what is being measured
        )
        with bar:
            task = bar.add_task(label, total=total, text="")

            def draw(done, text):
                bar.update(task, completed=done, text=text)
                bar.refresh()

            yield _now_and_then(draw)
    elif stream.isatty():
        width = shutil.get_terminal_size().columns - 1

        def draw(done, text):
            filled = 20 * done // max(1, total)
            line = f"{label} [{'#' * filled}{'.' * (20 - filled)}] {done}/{total} {text}"
            stream.write("\r" + line[:width].ljust(width))
            stream.flush()

        try:
            yield _now_and_then(draw)
        finally:
            stream.write("\r" + " " * width + "\r")
            stream.flush()
    else:
        yield lambda done, text="": None


def _now_and_then(draw):
    """The function, but called at most ten times a second."""
    drawn_at = -1.0

    def step(done, text=""):
        nonlocal drawn_at
        now = time.monotonic()
        if now - drawn_at >= 0.1:
            drawn_at = now
            draw(done, text)

    return step
