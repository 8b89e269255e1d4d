# SPDX-License-Identifier: MIT
"""The picture of a benchmark: speed of fastattn and NumPy as bars, the machine's limit as a mark.

Used by `bench` for ``--plot``; the only module of the command line that needs matplotlib.  It
measures nothing.
"""

from __future__ import annotations

from pathlib import Path

from . import facts

__all__ = ["check", "draw"]

OURS, THEIRS, LIMIT = "#1b6ca8", "#b8bfc6", "#222222"
PANELS = {
    "prefill": "GFLOP/s (only what the result needs)",
    "decode": "GB/s of keys and values",
    "additive": "G tanh/s (limit: of multiply-adds)",
}
LABELS = ("fastattn", "NumPy", "limit of the machine")


def check(path: str, workloads) -> None:
    """Raise where the picture could not be written, before the time for measuring is spent."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise facts.UsageError("--plot needs matplotlib: pip install 'fastattn[bench]'") from None
    kinds = FigureCanvasBase.get_supported_filetypes()
    suffix = Path(path).suffix.lstrip(".").lower()
    if suffix not in kinds:
        known = ", ".join(sorted(kinds))
        raise facts.UsageError(f"--plot: expected a file name ending in one of {known}, got {path}")
    facts.check_folder("--plot", path)
    if not any(workload.kind in PANELS for workload in workloads):
        raise facts.UsageError("--plot: none of the workloads has a rate to draw")


def draw(document: dict, path: str) -> None:
    """Draw the JSON document of a benchmark into a file."""
    from matplotlib.figure import Figure  # no pyplot: no display, no global state

    results = document["workloads"]
    chosen = [(title, [r for r in results if r["kind"] == kind]) for kind, title in PANELS.items()]
    chosen = [(title, group) for title, group in chosen if group]
    sizes = [len(group) for _, group in chosen]
    figure = Figure(figsize=(8, 1.6 + 0.62 * sum(sizes)), dpi=150, layout="constrained")
    axes = figure.subplots(len(chosen), 1, squeeze=False, height_ratios=sizes)[:, 0]
    for axis, (title, group) in zip(axes, chosen, strict=True):
        _panel(axis, title, group, document["backend"] != "numpy")
    handles = {
        label: handle
        for a in axes
        for handle, label in zip(*a.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        [handles[label] for label in LABELS if label in handles],
        [label for label in LABELS if label in handles],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=8,
    )
    n_threads = document["n_threads"]
    figure.suptitle(
        f"fastattn {document['fastattn']} ({document['backend']}), {n_threads}"
        f" thread{'s' * (n_threads != 1)}, {document['cpu']}",
        fontsize=10,
    )
    figure.savefig(path)


def _panel(axis, title, results, has_ours) -> None:
    """Draw one group of workloads with the same unit."""
    ours, numpy, limit = LABELS
    where = range(len(results))
    limits = [(r["limit"] / 1e9, y) for y, r in zip(where, results, strict=True) if r["limit"]]
    height = 0.38 if has_ours else 0.6
    if has_ours:
        rates = [r["rate"] / 1e9 for r in results]
        axis.barh([y - height / 2 for y in where], rates, height, color=OURS, label=ours)
        longest = max(rates + [x for x, _ in limits])
        for y, rate, result in zip(where, rates, results, strict=True):
            is_inside = rate > 0.4 * longest  # where the mark of the limit cannot cross the text
            axis.text(
                rate,
                y - height / 2,
                f" {rate:.0f}, {result['speed_up']:.1f}x NumPy ",
                va="center",
                ha="right" if is_inside else "left",
                color="white" if is_inside else "black",
                fontsize=8,
            )
    rates = [r["numpy_rate"] / 1e9 for r in results]
    below = height / 2 if has_ours else 0
    axis.barh([y + below for y in where], rates, height, color=THEIRS, label=numpy)
    if limits:
        x, y = zip(*limits, strict=True)
        low, high = [v - 0.45 for v in y], [v + 0.45 for v in y]
        axis.vlines(x, low, high, color=LIMIT, linewidth=2, label=limit)
    axis.set_yticks(list(where), [r["title"] for r in results], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(title, fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
