# SPDX-License-Identifier: MIT
"""Rows of words on coloured ground, with a bar before each row: set like lines of text.

For ``plotting``. One unit of the axes is one point, so that the widths of words, which are
measured, are places, too. It makes no figure and checks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import labels as text
from .maps import BROKEN, FONT, HIDDEN, is_dark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

__all__ = ["Layout", "arrange", "draw"]

SIZE = FONT + 1.0  # points, of words
LINE, ROW_GAP, GROUP_GAP = 18.0, 6.0, 12.0  # points: a line of words, what sets rows, groups apart
PAD, WORD_GAP = 2.5, 3.0  # points: colour around a word, and between two
BAR, NUMBER = 64.0, 30.0  # points: the longest bar, and its number
BAR_COLOR = "#e08e45"  # warm beside the blue of words: another kind of weight
MARGIN = 2.0


class Layout(NamedTuple):
    """Where everything is, in points from the top left corner."""

    words: list[tuple[int, int, float, float, float]]  # row, word, left, middle, width
    rows: list[float]  # the middle of each row's first line
    left: float  # where words begin
    size: tuple[float, float]  # width, height


def arrange(
    rows: Sequence[text.Labels],
    row_labels: text.Labels | None,
    has_bars: bool,
    line_width: float,
) -> Layout:
    """Break rows into lines of at most `line_width` points; a word is never broken."""
    widths = [_widths(row) for row in rows]
    left = MARGIN
    if row_labels is not None:
        left += max(_widths(row_labels, _weight(row_labels)), default=0.0) + 2 * WORD_GAP
    if has_bars:
        left += BAR + NUMBER + 2 * WORD_GAP
    words, tops = [], []
    y = MARGIN + LINE / 2
    right = left
    for i, row in enumerate(widths):
        if i and row_labels is not None and row_labels.texts[i]:
            y += GROUP_GAP
        top, x = y, left
        for j, w in enumerate(row):
            w += 2 * PAD
            if x > left and x + w > line_width - MARGIN:
                x, y = left, y + LINE
            words.append((i, j, x, y, w))
            x += w + WORD_GAP
            right = max(right, x)
        tops.append(top)
        y += LINE + ROW_GAP
    return Layout(words, tops, left, (right + MARGIN, y - ROW_GAP - LINE / 2 + MARGIN))


def draw(
    ax: Axes,
    layout: Layout,
    rows: Sequence[text.Labels],
    shades: Sequence[np.ndarray],
    colors: Colormap,
    row_labels: text.Labels | None,
    bars: np.ndarray | None,
) -> None:
    """Draw words on the colours of `shades`, which are from 0 to 1 (or no finite numbers)."""
    from matplotlib.patches import FancyBboxPatch, Rectangle

    width, height = layout.size
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    for i, j, x, y, w in layout.words:
        ground = _ground(shades[i][j], colors)
        box = FancyBboxPatch(
            (x + 1, y - LINE / 2 + 2),
            w - 2,
            LINE - 4,
            boxstyle="round,pad=1,rounding_size=3",
            facecolor=ground,
            edgecolor="none",
        )
        ax.add_patch(box)
        _write(ax, x + w / 2, y, rows[i], j, color="white" if is_dark(ground) else "#20262d")
    for i, first in enumerate(layout.rows):
        if row_labels is not None and row_labels.texts[i]:
            _write(ax, MARGIN, first, row_labels, i, ha="left", fontweight=_weight(row_labels))
        if bars is None:
            continue
        end = layout.left - 2 * WORD_GAP
        length = BAR * max(bars[i], 0.0) / max(bars[np.isfinite(bars)].max(initial=0.0), 1e-300)
        if np.isfinite(bars[i]):
            at = (end - length, first - 5)
            ax.add_patch(Rectangle(at, length, 10, color=BAR_COLOR, linewidth=0))
        number = f"{100 * bars[i]:.0f} %" if np.isfinite(bars[i]) else "NaN"
        where = end - (length if np.isfinite(bars[i]) else 0) - WORD_GAP
        ax.text(where, first, number, ha="right", va="center", fontsize=FONT - 1, color="#57606a")


def _write(ax: Axes, x: float, y: float, given: text.Labels, i: int, **style: Any) -> None:
    style = {"ha": "center", "fontsize": SIZE, **given.style, **style}
    ax.text(x, y, given.texts[i], va="center_baseline", **style)


def _ground(shade: float, colors: Colormap) -> tuple[float, ...]:
    from matplotlib.colors import to_rgba

    if np.isneginf(shade):
        return to_rgba(HIDDEN)
    return colors(float(shade)) if np.isfinite(shade) else to_rgba(BROKEN)


def _weight(given: text.Labels) -> str:
    """Bold where the default font has all characters: many others have no bold face."""
    from matplotlib import rcParams

    return "bold" if given.style["fontfamily"] == rcParams["font.family"] else "normal"


def _widths(given: text.Labels, weight: str = "normal") -> list[float]:
    """In points, measured with the fonts that will draw it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(dpi=72)  # a pixel is a point
    renderer = FigureCanvasAgg(figure).get_renderer()
    probe = figure.text(0, 0, "", fontsize=SIZE, fontweight=weight, **given.style)
    widths = []
    for shown in given.texts:
        probe.set_text(shown)
        widths.append(probe.get_window_extent(renderer).width if shown else 0.0)
    return widths
