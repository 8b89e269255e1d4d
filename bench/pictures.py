# SPDX-License-Identifier: MIT
"""Pictures of a comparison: time by length, share of the limit, layers, two threads or one.

Used by ``bench/peers.py`` for ``--plots``; the only module of the comparison that needs matplotlib.
It measures nothing.
"""

from __future__ import annotations

from pathlib import Path

from fastattn._cli import facts
from fastattn._cli.report import LIMITS, three_digits
from fastattn._cli.workloads import UNITS

from .serving import DEFAULT_GROUPS

__all__ = ["check", "draw"]

# fastattn stands out; the others are told apart by hue and, in curves, by their markers.
STYLES = {
    "fastattn": ("#1b6ca8", "o"),
    "fastattn-float32": ("#0c3f66", "o"),
    "fastattn-int8": ("#4aa3df", "o"),
    "fastattn-paged-16": ("#9fd0f0", "o"),
    "fastattn-paged-64": ("#6f93b0", "o"),
    "fastattn-paged-256": ("#3d5a73", "o"),
    "torch": ("#e4572e", "s"),
    "torch-loop": ("#f2a48c", "s"),
    "ort-attention": ("#5a8f29", "^"),
    "ort-mha": ("#93c572", "v"),
    "ort-gqa": ("#2f5233", "<"),
    "openvino": ("#8e6bbf", "D"),
    "torch-compile": ("#a3271a", "h"),
    "jax": ("#e0a526", "P"),
    "keras": ("#d4739c", "p"),
    "numpy": ("#9aa3ab", "X"),
}
OTHER = ("#444444", "*")


def check(folder: str) -> None:
    """Make the folder; raise where it or matplotlib is missing, before anything is measured."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise facts.UsageError("--plots needs matplotlib: pip install 'fastattn[bench]'") from None
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise facts.UsageError(f"--plots: cannot make the folder {folder}: {error}") from None
    facts.check_folder("--plots", str(Path(folder) / "time_by_length.png"))


def draw(document: dict, folder: str) -> list:
    """Draw what the JSON document has data for.

    Returns
    -------
    list of Path
        The files written.
    """
    n_threads = max((run["n_threads"] for run in document["runs"]), default=0)
    runs = [run for run in document["runs"] if run["n_threads"] == n_threads]
    limited = [r for r in runs if r["limit"] and not r["name"].startswith("length-")]
    additive = [r for r in limited if r["kind"] == "additive"]
    layers = [r for r in runs if r["group"] == "layers" and _times_ours(r)]
    serving = [r for r in limited if r["group"] not in (*DEFAULT_GROUPS, "layers")]
    written = []
    for name, panel, chosen in (
        ("time_by_length", _lengths, [r for r in runs if r["title"].startswith("B1 H4 S")]),
        ("share_of_limit", _shares, _dense(limited)),
        ("serving", _shares, serving),
        ("additive", _rates, additive),
        ("layers", _ratios, layers),
        ("threads", _scaling, _scaled(document)),
    ):
        if chosen:
            written.append(Path(folder) / f"{name}.png")
            _draw(document, panel, chosen, _names(document, chosen), n_threads, written[-1])
    return written


def _dense(runs) -> list:
    return [run for run in runs if run["group"] == "dense"]


def _names(document, chosen) -> list:
    """The contenders that take part in these runs, or in these pairs of runs."""
    present = {result["contender"] for run in _runs(chosen) for result in run["results"]}
    return [c["name"] for c in document["contenders"] if c["name"] in present]


def _runs(chosen) -> list:
    """The runs of a picture that shows runs, or pairs of them."""
    return [run for pair in chosen for run in (pair if isinstance(pair, tuple) else [pair])]


def _draw(document, panel, runs, names, n_threads, path) -> None:
    from matplotlib.figure import Figure  # no pyplot: no display, no global state

    height = 5 if panel is _lengths else 1.4 + len(runs) * (0.25 + 0.13 * len(names))
    figure = Figure(figsize=(8, height), dpi=150, layout="constrained")
    axis = figure.subplots()
    title = panel(axis, runs, names, n_threads)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    dtypes = " and ".join(dict.fromkeys(run["dtype"] for run in _runs(runs)))
    figure.suptitle(f"{title}\n{dtypes}, {document['cpu']}", fontsize=10)
    figure.savefig(path)


def _threads(n) -> str:
    return f"{n} thread{'s' * (n != 1)}"


def _lengths(axis, runs, names, n_threads) -> str:
    """Curves of time over length."""
    runs = sorted(runs, key=lambda run: run["n_queries"])
    for name in names:
        points = [
            (run["n_queries"], 1e3 * r["min_s"])
            for run in runs
            for r in run["results"]
            if r["contender"] == name and r["min_s"]
        ]
        color, marker = STYLES.get(name, OTHER)
        width = 2.5 if name == "fastattn" else 1.2
        if points:
            axis.plot(
                *zip(*points), color=color, marker=marker, linewidth=width, markersize=5, label=name
            )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    lengths = [run["n_queries"] for run in runs]
    axis.set_xticks(lengths, [str(n) for n in lengths])
    axis.set_xlabel("queries and keys", fontsize=8)
    axis.set_ylabel("shortest time, ms", fontsize=8)
    axis.grid(color="#e5e5e5", linewidth=0.6)
    axis.set_axisbelow(True)
    return f"Time by sequence length: 4 heads of size 64, {_threads(n_threads)}"


def _bars(axis, groups, names, label) -> None:
    """Groups of horizontal bars: (title, {contender: length}) each; no length is "none"."""
    height = 0.84 / len(names)
    for i, name in enumerate(names):
        where = [y + (i - (len(names) - 1) / 2) * height for y in range(len(groups))]
        lengths = [values.get(name, 0) for _, values in groups]
        axis.barh(where, lengths, 0.92 * height, color=STYLES.get(name, OTHER)[0], label=name)
        for y, length in zip(where, lengths):
            text, color = (label(length), "black") if length else ("none", "#888888")
            axis.annotate(
                text,
                (length, y),
                (3, 0),
                textcoords="offset points",
                va="center",
                color=color,
                fontsize=6,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3},
            )
    axis.set_yticks(range(len(groups)), [title for title, _ in groups], fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.08, y=0.01)


def _shares(axis, runs, names, n_threads) -> str:
    """Bars of the share of the limit."""
    groups = [
        (
            f"{run['title']}\n{LIMITS[run['kind']]['limit']}",
            {r["contender"]: r["share_of_limit"] for r in run["results"] if r["share_of_limit"]},
        )
        for run in runs
    ]
    _bars(axis, groups, names, lambda share: f"{share:.0%}")
    axis.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axis.axvline(1, color="#222222", linewidth=1, zorder=0)
    return f"Share of the machine's limit, measured in the same run, {_threads(n_threads)}"


def _rates(axis, runs, names, n_threads) -> str:
    """Bars of the rate."""
    groups = [
        (run["title"], {r["contender"]: r["rate"] / 1e9 for r in run["results"] if r["rate"]})
        for run in runs
    ]
    _bars(axis, groups, names, three_digits)
    axis.set_xlabel(UNITS["additive"], fontsize=8)
    return f"Additive scores: values of tanh, {_threads(n_threads)}"


def _times_ours(run) -> dict:
    """By how much each contender's time is fastattn's."""
    found = {r["contender"]: r["times_fastattn"] for r in run["results"]}
    return {name: times for name, times in found.items() if times}


def _ratios(axis, runs, names, n_threads) -> str:
    """Bars of the time, fastattn's being 1: of layers, which have no limit in common."""
    groups = [(f"{run['name']}\n{run['title']}", _times_ours(run)) for run in runs]
    _bars(axis, groups, names, lambda times: f"{times:.3g}")
    axis.axvline(1, color="#222222", linewidth=1, zorder=0)
    axis.set_xlabel("shortest time, fastattn's is 1", fontsize=8)
    return f"Layers: time, {_threads(n_threads)}"


def _scaled(document) -> list:
    """Workloads measured with the fewest and with the most threads, as pairs of runs.

    Calls of a few microseconds are no matter for a second thread; additive scores, and what is
    for inference servers, which others can do, have pictures of their own.
    """
    counts = {run["n_threads"] for run in document["runs"]}
    if len(counts) < 2:
        return []
    few, many = (
        {
            run["name"]: run
            for run in document["runs"]
            if run["n_threads"] == n and run["kind"] != "call" and run["group"] == "dense"
        }
        for n in (min(counts), max(counts))
    )
    return [(few[name], many[name]) for name in few if name in many]


def _scaling(axis, pairs, names, n_threads) -> str:
    """Bars of the gain by more threads."""
    groups = []
    for few, many in pairs:
        slow = {r["contender"]: r["min_s"] for r in few["results"] if r["min_s"]}
        fast = {r["contender"]: r["min_s"] for r in many["results"] if r["min_s"]}
        groups.append(
            (few["title"], {name: slow[name] / fast[name] for name in slow.keys() & fast})
        )
    _bars(axis, groups, names, lambda gain: f"{gain:.2f}")
    few = pairs[0][0]["n_threads"]
    axis.axvline(n_threads / few, color="#222222", linewidth=1, zorder=0)
    axis.axvline(1, color="#222222", linewidth=0.6, linestyle=":", zorder=0)
    return f"Times faster with {_threads(n_threads)} than with {few} (line: {n_threads / few:.3g})"
