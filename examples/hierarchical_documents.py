# SPDX-License-Identifier: MIT
# Judges reviews by hierarchical attention, and shows which words of which sentences decided.
# Run by people as a script; its test imports main. The model is in the folder reviews.
# It has no PyTorch (reviews/train.py has), downloads nothing and trains nothing.
"""Reviews by words and sentences; `python hierarchical_documents.py --help` says how."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from reviews import texts
from reviews.model import Judge, Judgement

import fastattn

DESCRIPTION = """\
Say whether reviews are content, and show what decided.

Two levels of attention, as in hierarchical attention networks: one weighs the words of each
sentence, the other the sentences of each document. The weights, which come with the result, are
shown as numbers and bars (in a terminal also as colours), with --plot as a picture."""

EPILOG = """\
examples:
  python hierarchical_documents.py                        six reviews that training never saw
  python hierarchical_documents.py "The soup was cold. We sat outside."
  python hierarchical_documents.py --plot reviews.png     the same as a picture (matplotlib)"""

BAR = 12  # characters of the longest bar
SHADES = (255, 153, 117, 81, 45)  # of the terminal's 256 colours: white to a strong blue


def verdict(judgement: Judgement) -> str:
    is_content = judgement.content >= 0.5
    share = judgement.content if is_content else 1 - judgement.content
    return f"{'content' if is_content else 'not content'} ({100 * share:.0f} %)"


def shown(document: list[list[str]], judgement: Judgement, columns: int, colour: bool) -> str:
    """Each sentence with its weight and a bar, and each word with its percentage below it."""
    lines = []
    for sentence, weights, share in zip(document, judgement.words, judgement.sentences):
        bar = "#" * round(BAR * share / judgement.sentences.max())
        head = f"{100 * share:4.0f} % {bar:{BAR}}  "
        for top, bottom in _lines(sentence, weights, columns - len(head), colour):
            lines += [head + top, (" " * len(head) + bottom).rstrip()]
            head = " " * len(head)
    return "\n".join(lines)


def _lines(
    words: list[str], weights: np.ndarray, columns: int, colour: bool
) -> Iterator[tuple[str, str]]:
    """Pairs of lines of at most so many columns: words, and their weights."""
    top, bottom, used = "", "", 0
    for word, weight in zip(words, weights):
        number = f"{100 * weight:.0f}"
        width = max(len(word), len(number))
        if used and used + width > columns:
            yield top.rstrip(), bottom
            top, bottom, used = "", "", 0
        cell = f"{word:{width}}"
        if colour:
            shade = SHADES[round((len(SHADES) - 1) * weight / weights.max())]
            cell = f"\x1b[30;48;5;{shade}m{cell}\x1b[0m"
        top, bottom = f"{top}{cell} ", f"{bottom}{number:{width}} "
        used += width + 1
    yield top.rstrip(), bottom


def plot(documents: list[list[list[str]]], judgements: list[Judgement], path: str) -> None:
    """All documents in one picture; words of sentences that count little are pale."""
    from fastattn.plotting import plot_token_weights

    labels, shades = [], []
    for document, judgement in zip(documents, judgements):
        shares = np.sqrt(judgement.sentences / judgement.sentences.max())
        shades += [row / row.max() * share for row, share in zip(judgement.words, shares)]
        labels += ["content" if judgement.content >= 0.5 else "not content"]
        labels += [""] * (len(document) - 1)
    figure = plot_token_weights(
        [sentence for document in documents for sentence in document],
        shades,
        row_weights=np.concatenate([judgement.sentences for judgement in judgements]),
        row_labels=labels,
        scale="all",
    )
    figure.savefig(path, dpi=100)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("review", nargs="*", help="texts to judge (default: the built-in ones)")
    parser.add_argument("--plot", metavar="FILE", help="draw words and sentences by their weights")
    options = parser.parse_args(argv)
    documents = [texts.split(text) for text in options.review or [t for _, t in texts.REVIEWS]]
    if not all(documents):
        parser.error("a review has no words")
    if options.plot and not Path(options.plot).parent.is_dir():
        parser.error(f"--plot: no folder {Path(options.plot).parent}")

    judgements = Judge().judge(documents)
    columns = shutil.get_terminal_size().columns
    for document, judgement in zip(documents, judgements):
        print(f"{verdict(judgement)}:")
        print(shown(document, judgement, columns, sys.stdout.isatty()), end="\n\n")
    if not options.review:
        right = sum((j.content >= 0.5) == label for j, (label, _) in zip(judgements, texts.REVIEWS))
        print(f"{right} of {len(documents)} as their author meant them")
    print(
        f"fastattn {fastattn.__version__}, backend {fastattn.get_backend()},"
        f" {fastattn.get_num_threads()} thread(s)"
    )
    if options.plot:
        try:
            plot(documents, judgements, options.plot)
        except ImportError:
            print('--plot needs matplotlib: pip install "fastattn[plot]"', file=sys.stderr)
            return 1
        print(f"wrote {options.plot}")
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # a console without a letter prints ? for it
    sys.exit(main())
