# SPDX-License-Identifier: MIT
# Reads dates by an encoder and a decoder with Bahdanau's attention, and shows who looked where.
# Run by people as a script; its test imports main. The model is in the folder dates.
# It has no PyTorch (dates/train.py has), downloads nothing and trains nothing.
"""Dates to YYYY-MM-DD, one context a character; `python date_alignment.py --help` says how."""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from unicodedata import east_asian_width

import numpy as np
from dates import texts
from dates.model import DateReader

import fastattn

DESCRIPTION = """\
Turn dates as people write them into YYYY-MM-DD, character by character.

An encoder of the years before attention handed one vector to the decoder, whatever was read. Here
each character that is written gets a context vector of its own: fastattn's BahdanauAttention weighs
the characters that were read anew for each, and the weights say which."""

EPILOG = """\
examples:
  python date_alignment.py                                  ten dates and the accuracy on others
  python date_alignment.py "the 22nd of June 1987"          one date and where the model looked
  python date_alignment.py "3 March 2021" --plot dates.png  the same as a picture (matplotlib)

The formats: """ + "; ".join(texts.FORMATS)

SHOWN = tuple(  # one of each format, from 1950 on
    make(datetime.date.fromordinal(711_947 + 2_610 * i))
    for i, make in enumerate(texts.FORMATS.values())
)


def padded(text: str, width: int) -> str:
    """Filled up to so many columns of a terminal, in which some characters take two."""
    return text + " " * (width - sum(1 + (east_asian_width(c) in "WF") for c in text))


def looked_at(text: str, weights: np.ndarray) -> str:
    """Below each character written, the one that had the largest weight."""
    return "".join("\u2423" if text[i] == " " else text[i] for i in weights.argmax(axis=1))


def accuracy(reader: DateReader, n: int, seed: int = 0) -> dict[str, tuple[int, int]]:
    """How many of `n` held-out dates are read without a wrong character: (right, all) by format."""
    pairs = texts.pairs(n, seed, held_out=True)
    results, _ = reader.read([text for _, text, _ in pairs])
    counts = {name: (0, 0) for name in texts.FORMATS}
    for (name, _, wanted), result in zip(pairs, results):
        right, total = counts[name]
        counts[name] = (right + (result == wanted), total + 1)
    return counts


def plot(dates: Sequence[str], results: list[str], maps: list[np.ndarray], path: str) -> None:
    """One alignment map for each date, below each other."""
    from matplotlib.figure import Figure

    from fastattn.plotting import plot_alignment

    if len(dates) == 1:
        figure = plot_alignment(maps[0], dates[0], results[0])
    else:
        longest = max(map(len, dates))
        figure = Figure((1.5 + 0.25 * longest, 3.1 * len(dates)), dpi=100, layout="constrained")
        axes = figure.subplots(len(dates), 1)
        for ax, date, result, weights in zip(axes, dates, results, maps):
            plot_alignment(weights, date, result, ax=ax, colorbar=False, vmax=1)
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("date", nargs="*", help="dates to read (default: one of each format)")
    parser.add_argument("--plot", metavar="FILE", help="draw the alignment of the dates")
    parser.add_argument(
        "--count", type=int, default=1000, metavar="N", help="held-out dates to try (default: 1000)"
    )
    options = parser.parse_args(argv)
    if options.count < 0:
        parser.error(f"--count: expected at least 0, got {options.count}")
    dates = options.date or list(SHOWN)
    for date in dates:
        try:
            texts.numbers(date)
        except ValueError as error:
            parser.error(str(error))
        if not date.strip():
            parser.error("a date is empty")
    if options.plot and not Path(options.plot).parent.is_dir():
        parser.error(f"--plot: no folder {Path(options.plot).parent}")

    reader = DateReader()
    results, maps = reader.read(dates)
    width = max(len(date) + sum(east_asian_width(c) in "WF" for c in date) for date in dates)
    print(f"{'read':{width}}  {'written':10}  by looking at")
    for date, result, weights in zip(dates, results, maps):
        print(f"{padded(date, width)}  {result}  {looked_at(date, weights)}")
    if options.count:
        start = time.perf_counter()
        counts = accuracy(reader, options.count)
        seconds = time.perf_counter() - start
        right = sum(r for r, _ in counts.values())
        print(f"\n{right} of {options.count} dates that training never saw are right:")
        for name, (r, total) in counts.items():
            print(f"  {padded(name, 24)}  {r} of {total}")
        print(
            f"\n{1e6 * seconds / options.count:.0f} us a date: fastattn {fastattn.__version__},"
            f" backend {fastattn.get_backend()}, {fastattn.get_num_threads()} thread(s)"
        )
    if options.plot:
        try:
            plot(dates, results, maps, options.plot)
        except ImportError:
            print('--plot needs matplotlib: pip install "fastattn[plot]"', file=sys.stderr)
            return 1
        print(f"\nwrote {options.plot}")
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # a console without a letter prints ? for it
    sys.exit(main())
