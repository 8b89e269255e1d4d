# SPDX-License-Identifier: MIT
# How fast is generation with the cache, without one, and in PyTorch - and do they agree?
# Used by generate.py for --compare.
# It is no benchmark of attention alone: python -m bench.peers is.
"""The same greedy tokens by three ways, in turn."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import fastattn

from .generation import Prompts, generate, generate_without_cache
from .in_torch import generate_in_torch
from .model import Model, forward, logits

WITHOUT_SECONDS = 5.0  # of a round: without a cache each token costs as much as all before it

Way = Callable[[], Iterator[np.ndarray]]  # a fresh generation, from the prompts on


class Result(NamedTuple):
    """A way's tokens (steps, batch), and its best seconds over the rounds."""

    name: str
    tokens: np.ndarray
    first: float  # from the prompts to the first token
    next: float  # for each token after that


def _run(way: Way, limit: float) -> tuple[np.ndarray, float, float]:
    started = now = time.perf_counter()
    tokens, first = [], 0.0
    for row in way():
        now = time.perf_counter()
        tokens.append(row)
        first = first or now - started
        if now - started > limit and len(tokens) > 1:
            break
    return np.array(tokens), first, (now - started - first) / max(1, len(tokens) - 1)


def compare(
    model: Model, prompts: Prompts, n_tokens: int, *, chunk: int, dtype: Any, rounds: int
) -> list[Result]:
    """Time all ways in turn, `rounds` times after one that is not counted; the cache is first."""
    ways = {
        "KVCache": lambda: generate(model, prompts, n_tokens, chunk=chunk, dtype=dtype),
        "no cache": lambda: generate_without_cache(model, prompts, n_tokens, dtype=dtype),
    }
    try:
        import torch
    except ModuleNotFoundError:
        pass
    else:
        torch.set_num_threads(fastattn.get_num_threads())
        ways[f"PyTorch {torch.__version__.split('+')[0]}"] = lambda: generate_in_torch(
            model, prompts, n_tokens, dtype=dtype
        )
    limits = {"no cache": WITHOUT_SECONDS}
    best: dict[str, Result] = {}
    for number in range(rounds + 1):
        for name, way in ways.items():
            tokens, first, later = _run(way, limits.get(name, np.inf) if number else 0.0)
            if number == 0:
                continue
            before = best.get(name, Result(name, tokens, np.inf, np.inf))
            if len(before.tokens) > len(tokens):
                tokens = before.tokens
            best[name] = Result(name, tokens, min(first, before.first), min(later, before.next))
    return list(best.values())


def one_pass(model: Model, prompts: Prompts, tokens: np.ndarray, *, dtype: Any) -> np.ndarray:
    """Logits (steps, batch, vocabulary) behind which `tokens` came, by one pass over everything."""
    ids = np.concatenate([np.stack(prompts), tokens.T], axis=1)
    states = forward(model, ids, dtype=dtype)[:, len(prompts[0]) - 1 : -1]
    return logits(model, states).swapaxes(0, 1)


def agreement(tokens: np.ndarray, reference: np.ndarray, scores: np.ndarray) -> str:
    """In words: are the tokens those of the reference, and if not, how close were the two?"""
    different = np.argwhere(tokens != reference[: len(tokens)])
    if not len(different):
        return "the same" if len(tokens) == len(reference) else f"the same ({len(tokens)} made)"
    step, entry = different[0]
    gap = scores[step, entry, reference[step, entry]] - scores[step, entry, tokens[step, entry]]
    return f"DIFFER at {step + 1} (logits {gap:.1e} apart)"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """With rich on a terminal, where it is installed; else aligned text. Numbers to the right."""
    try:
        if not sys.stdout.isatty():
            raise ModuleNotFoundError
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        widths = [max(map(len, column)) for column in zip(columns, *rows)]
        for cells in [columns, *rows]:
            aligned = [cell.rjust(width) for cell, width in zip(cells, widths)]
            aligned[0] = cells[0].ljust(widths[0])
            print("  ".join(aligned))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    for cells in rows:
        table.add_row(*cells)
    Console(highlight=False).print(table)


def report(
    model: Model, prompts: Prompts, n_tokens: int, *, chunk: int, dtype: Any, rounds: int
) -> bool:
    """Print the table; whether all made the same tokens."""
    results = compare(model, prompts, n_tokens, chunk=chunk, dtype=dtype, rounds=rounds)
    cached = results[0]
    scores = one_pass(model, prompts, cached.tokens, dtype=dtype)
    rows, is_right = [], True
    for result in results:
        # The cache's own are compared with what one pass over the whole sequence says.
        expected = scores.argmax(axis=-1) if result is cached else cached.tokens
        words = agreement(result.tokens, expected, scores)
        is_right &= "same" in words
        rows.append(
            [
                result.name,
                f"{1000 * result.first:.0f} ms",
                f"{1000 * result.next:.2f} ms",
                f"{len(prompts) / result.next:.1f}",
                f"{result.next / cached.next:.2f} x",
                words,
            ]
        )
    columns = ["", "first token", "each next", "tokens/s", "slower", "tokens"]
    print_table(columns, rows)
    print(
        f"\n{n_tokens} greedy tokens behind {len(prompts[0])}; best of {rounds} rounds, in turn."
        " Tokens are compared with those\nof the first row, and its own with one pass over"
        " the whole sequence."
    )
    if len(results) < 3:
        print("PyTorch is not installed.")
    return is_right
