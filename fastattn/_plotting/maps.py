# SPDX-License-Identifier: MIT
"""One heat map of weights: cells, tokens on its axes, what is not a number, the colour bar.

For ``plotting``. Sizes are in inches, text in points. It makes no figure and checks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import labels as text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.image import AxesImage

__all__ = ["BODY", "add_bar", "cell_sizes", "colors_of", "draw", "is_dark", "scale"]

FONT = 9.0  # points, of labels that have the room
SMALLEST = 6.0  # below that every other token goes without a label, then more
CELL, BODY = 0.36, 7.0  # inches: the side of a cell where there are few, all cells where many
HIDDEN, BROKEN = "#d5d8dc", "#d1495b"  # -inf; NaN and +inf
# From the page's white to nearly black through the blue of our other pictures: lightness falls
# evenly, so that it can be read in grey and by people who see fewer colours.
OURS = ("#ffffff", "#d3e4f3", "#8dbbe0", "#3f8ac4", "#1b5f9e", "#0b3564", "#061c38")


def colors_of(cmap: str | Colormap | None) -> Colormap:
    """The colour map, as an object, with our colour for what is hidden."""
    import matplotlib
    from matplotlib.colors import Colormap, LinearSegmentedColormap

    if cmap is None:
        found = LinearSegmentedColormap.from_list("fastattn", OURS)
    elif isinstance(cmap, Colormap):
        found = cmap
    elif isinstance(cmap, str) and cmap in matplotlib.colormaps:
        found = matplotlib.colormaps[cmap]
    else:
        raise ValueError(f"cmap: expected a Colormap or the name of one, got {cmap!r}")
    return found.with_extremes(bad=HIDDEN)


def scale(values: np.ndarray, vmin: float | None, vmax: float | None) -> Normalize:
    """Weights begin at 0, scores at the smallest; both end at the largest."""
    from matplotlib.colors import Normalize

    finite = values[np.isfinite(values)]
    low = min(0.0, finite.min(initial=0.0)) if vmin is None else float(vmin)
    high = finite.max(initial=low) if vmax is None else float(vmax)
    if not low <= high:
        raise ValueError(f"vmin, vmax: expected vmin <= vmax, got {low:g} and {high:g}")
    return Normalize(low, high if high > low else low + 1)


def is_dark(color: Sequence[float]) -> bool:
    """Whether white letters are easier to read on it than black ones."""
    red, green, blue = color[:3]
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.55


def cell_sizes(n_rows: int, n_columns: int, body: float = BODY) -> tuple[float, float]:
    """Height and width of a cell: square, unless a side would be a mere line then."""
    height, width = (min(CELL, body / n) for n in (n_rows, n_columns))
    side = min(height, width)
    if side * min(n_rows, n_columns) >= min(0.22 * body, CELL * min(n_rows, n_columns)):
        return side, side
    return height, width


def draw(
    ax: Axes,
    values: np.ndarray,
    source: text.Labels | None,
    target: text.Labels | None,
    norm: Normalize,
    colors: Colormap,
    *,
    cell: tuple[float, float],
    source_side: str = "top",
    annotate: bool = False,
) -> AxesImage:
    """Draw `values` (targets, sources) into `ax`, whose cells will be about `cell` inches."""
    n_rows, n_columns = values.shape
    is_square = abs(cell[0] - cell[1]) < 1e-9
    image = ax.imshow(
        np.ma.masked_invalid(values),
        cmap=colors,
        norm=norm,
        aspect="equal" if is_square else "auto",
        interpolation="nearest",
    )
    _mark_broken(ax, values)
    ax.spines[:].set_color("#9aa3ab")
    ax.spines[:].set_linewidth(0.6)
    # Thin lines tell white cells apart, as long as the cells are much larger than the lines.
    if min(cell) > 0.12:
        ax.set_xticks(np.arange(n_columns - 1) + 0.5, minor=True)
        ax.set_yticks(np.arange(n_rows - 1) + 0.5, minor=True)
        ax.grid(which="minor", color="#e9ecef", linewidth=0.5)
    ax.tick_params(which="minor", length=0)
    is_top = source_side == "top"
    ax.tick_params(axis="x", top=is_top, labeltop=is_top, bottom=not is_top, labelbottom=not is_top)
    ax.xaxis.set_label_position("top" if is_top else "bottom")
    _label_axis(ax.xaxis, source, n_columns, cell[1], "source position")
    _label_axis(ax.yaxis, target, n_rows, cell[0], "target position")
    if source is not None:
        _turn(ax, source.texts, cell[1], is_top)
    if annotate:
        _annotate(ax, values, norm, colors, min(cell))
    return image


def add_bar(image: AxesImage, ax: Axes, bar_ax: Axes | None, has_weights: bool) -> None:
    """The colour bar, in axes of its own or in a part of those of the map."""
    room = {"ax": ax, "fraction": 0.05, "pad": 0.02} if bar_ax is None else {"cax": bar_ax}
    bar = ax.figure.colorbar(image, **room)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=FONT - 1, length=2, color="#9aa3ab")
    bar.set_label("weight" if has_weights else "score", fontsize=FONT - 1)


def _label_axis(axis: Any, shown: text.Labels | None, n: int, cell: float, name: str) -> None:
    """Tokens beside their cells, as many as can be read; places where there are no tokens."""
    from matplotlib.ticker import MaxNLocator

    if shown is None:
        axis.set_major_locator(MaxNLocator(nbins=min(n, 10), integer=True, min_n_ticks=1))
        axis.set_tick_params(which="major", labelsize=FONT - 1, length=2, color="#9aa3ab")
        axis.set_label_text(name, fontsize=FONT - 1)
        return
    size = min(FONT, max(SMALLEST, 0.85 * 72 * cell))
    step = max(1, int(np.ceil(1.1 * size / (72 * cell) - 1e-9)))
    places = range(0, n, step)
    axis.set_ticks(list(places), [shown.texts[i] for i in places], fontsize=size, **shown.style)
    axis.set_tick_params(which="major", length=2 if step > 1 else 0, color="#9aa3ab", pad=3)


def _turn(ax: Axes, texts: list[str], cell: float, is_top: bool) -> None:
    """Labels wider than their cells stand slanted; where these are narrow, upright."""
    ticks = ax.xaxis.get_ticklabels()
    size = ticks[0].get_fontsize()
    if text.widest(texts) * size <= 0.95 * 72 * cell:
        return
    # Slanted lines of text lie 0.7 of a cell apart.
    is_upright = 0.7 * 72 * cell < 1.15 * size
    for tick in ticks:
        tick.set_rotation(90 if is_upright else 45)
        tick.set_rotation_mode("anchor")
        tick.set_horizontalalignment("left" if is_top else "right")
        tick.set_verticalalignment("center" if is_upright else ("baseline" if is_top else "top"))


def _mark_broken(ax: Axes, values: np.ndarray) -> None:
    """NaN and +inf in red over the grey of what is hidden, and a key to both."""
    from matplotlib.patches import Patch

    is_broken = np.isnan(values) | np.isposinf(values)
    handles = []
    if np.isneginf(values).any():
        handles.append(Patch(color=HIDDEN, label="hidden (-inf)"))
    if is_broken.any():
        red = np.zeros((*values.shape, 4))
        red[is_broken] = [int(BROKEN[i : i + 2], 16) / 255 for i in (1, 3, 5)] + [1]
        ax.imshow(red, interpolation="nearest", aspect=ax.get_aspect())
        handles.append(Patch(color=BROKEN, label="NaN or inf"))
    if handles:
        ax.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0, -0.02),
            borderaxespad=0.3,
            frameon=False,
            fontsize=FONT - 1,
            ncols=2,
            handlelength=1,
            handleheight=1,
        )


def _annotate(ax: Axes, values: np.ndarray, norm: Normalize, colors: Colormap, cell: float) -> None:
    """The number of each cell, two digits, in letters that can be read on its colour."""
    size = min(FONT - 1, 0.36 * 72 * cell)
    for (row, column), value in np.ndenumerate(values):
        if not np.isfinite(value):
            continue
        number = f"{value:.2f}"
        number = number[1:] if number.startswith("0.") else number
        color = "white" if is_dark(colors(norm(value))) else "#20262d"
        ax.text(column, row, number, ha="center", va="center", fontsize=size, color=color)
