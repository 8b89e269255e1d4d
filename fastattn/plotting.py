# SPDX-License-Identifier: MIT
"""Pictures of attention: alignment maps, one per head or averaged, and words shaded by weight.

For users, by ``import fastattn.plotting``; it needs matplotlib (``pip install "fastattn[plot]"``).
``_plotting`` checks and draws. It computes no attention, opens no window and never touches pyplot.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ._plotting import checks, labels, maps, sheet, words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

__all__ = ["plot_alignment", "plot_heads", "plot_token_weights"]


def plot_alignment(
    weights: ArrayLike,
    source: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    *,
    head: int | Literal["mean"] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
    cmap: str | Colormap | None = None,
    colorbar: bool = True,
    annotate: bool = False,
    source_side: Literal["top", "bottom"] = "top",
    vmin: float | None = None,
    vmax: float | None = None,
) -> Figure:
    """Draw which source each target attends to: a row for each target, dark where weight is.

    Parameters
    ----------
    weights : array_like (targets, sources) or (heads, targets, sources)
        What any function of the package returns for ``return_weights=True``, of one entry of the
        batch. Any real dtype, float16 and bfloat16 too. Scores may be given as well.
    source, target : sequence of str, optional
        The tokens of the two axes; a str counts as its characters. Without them, positions. Where
        there are more than can be read, only every second one, or third, ... has its label.
    head : int, "mean" or None
        Which head to draw; negative numbers count from the last one. ``"mean"`` and None average
        all of them.
    ax : matplotlib.axes.Axes, optional
        Where to draw. Without it a figure is made, of a size that suits the tokens.
    title : str, optional
    cmap : str or matplotlib.colors.Colormap, optional
        From white to dark blue by default.
    colorbar : bool
        Add the scale of the colours.
    annotate : bool
        Write each number into its cell.
    source_side : {"top", "bottom"}
        Where the tokens of `source` stand; wide ones are turned.
    vmin, vmax : float, optional
        Ends of the scale: 0 (or the smallest score, if that is less) and the largest number by
        default.

    Returns
    -------
    matplotlib.figure.Figure
        The one of `ax`, if that was given. ``figure.savefig("alignment.png")`` writes it, a
        notebook shows it. No window is opened and no backend of matplotlib is chosen.

    Raises
    ------
    ValueError
        A shape, a number of tokens or an option does not fit; the message names it.
    TypeError
        A dtype or a type does not fit.
    ImportError
        matplotlib is not installed.

    Notes
    -----
    -inf, which hides a key in scores, is grey; NaN and +inf are red. Fonts that have the tokens'
    characters are looked for among those installed; a character that none has is drawn as a box.

    Examples
    --------
    >>> import numpy as np
    >>> from fastattn.plotting import plot_alignment
    >>> weights = np.array([[0.9, 0.1, 0.0], [0.1, 0.2, 0.7]])
    >>> figure = plot_alignment(weights, ["the", "red", "house"], ["la", "maison"])
    >>> figure.axes[0].get_yticklabels()[1].get_text()
    'maison'
    """
    checks.matplotlib_is_there()
    values = checks.weights(weights, (2, 3), "(targets, sources) or (heads, targets, sources)")
    sources = checks.tokens(source, values.shape[-1], "source", "sources")
    targets = checks.tokens(target, values.shape[-2], "target", "targets")
    colors = maps.colors_of(cmap)
    checks.choice(source_side, "source_side", ("top", "bottom"))
    values = checks.of_head(values, head)
    norm = maps.scale(values, vmin, vmax)

    page = None
    if ax is None:
        page = sheet.Sheet()
        cell = maps.cell_sizes(*values.shape)
        ax = page.add(0, 0, cell[1] * values.shape[1], cell[0] * values.shape[0])
    else:
        size = (ax.bbox.height, ax.bbox.width)
        cell = tuple(side / _root(ax).dpi / n for side, n in zip(size, values.shape))
    image = maps.draw(
        ax,
        values,
        None if sources is None else labels.labels(sources),
        None if targets is None else labels.labels(targets),
        norm,
        colors,
        cell=cell,
        source_side=source_side,
        annotate=annotate,
    )
    if colorbar:
        maps.add_bar(image, ax, None if page is None else page.add_bar_axes(), norm.vmin >= 0)
    if title is not None:
        _write(ax.set_title, title, loc="center")
    return _root(ax) if page is None else page.finish()


def plot_heads(
    weights: ArrayLike,
    source: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    *,
    columns: int | None = None,
    titles: Sequence[str] | None = None,
    title: str | None = None,
    cmap: str | Colormap | None = None,
    colorbar: bool = True,
    vmin: float | None = None,
    vmax: float | None = None,
) -> Figure:
    """Draw one alignment map for each head, side by side, with one scale for all.

    Parameters
    ----------
    weights : array_like (heads, targets, sources)
    source, target : sequence of str, optional
        As in `plot_alignment`; tokens stand at the outer maps only.
    columns : int, optional
        Maps in a row; by default so many that the whole is about as wide as high.
    titles : sequence of str, optional
        One for each head; ``head 0``, ``head 1``, ... by default.
    title : str, optional
        Of the whole.
    cmap, colorbar, vmin, vmax
        As in `plot_alignment`.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError, TypeError, ImportError
        As in `plot_alignment`.
    """
    checks.matplotlib_is_there()
    values = checks.weights(weights, (3,), "(heads, targets, sources)")
    n_heads, n_rows, n_columns = values.shape
    sources = checks.tokens(source, n_columns, "source", "sources")
    targets = checks.tokens(target, n_rows, "target", "targets")
    names = checks.tokens(titles, n_heads, "titles", "heads")
    names = [f"head {i}" for i in range(n_heads)] if names is None else names
    colors = maps.colors_of(cmap)
    norm = maps.scale(values, vmin, vmax)
    if columns is None:
        lines = max(1, math.floor(math.sqrt(n_heads * n_columns / n_rows)))
        columns = math.ceil(n_heads / lines)
    elif isinstance(columns, bool) or not isinstance(columns, int | np.integer) or columns < 1:
        raise ValueError(f"columns: expected an integer from 1 on, got {columns!r}")
    columns = min(int(columns), n_heads)
    lines = math.ceil(n_heads / columns)

    body = max(1.2, min(3.0, 9.0 / columns, 9.0 / lines))  # inches of one map
    cell = maps.cell_sizes(n_rows, n_columns, body)
    height, width = cell[0] * n_rows, cell[1] * n_columns
    page = sheet.Sheet()
    shown = None if sources is None else labels.labels(sources)
    shown_targets = None if targets is None else labels.labels(targets)
    for i, head in enumerate(values):
        line, column = divmod(i, columns)
        ax = page.add(column * (width + 0.14), -line * (height + 0.34), width, height)
        # Titles stand above each map, so sources below: under the last map of their column.
        image = maps.draw(
            ax, head, shown, shown_targets, norm, colors, cell=cell, source_side="bottom"
        )
        _write(ax.set_title, names[i], size=9, pad=4)
        if column:
            ax.tick_params(axis="y", labelleft=False)
            ax.set_ylabel("")
        if i + columns < n_heads:
            ax.tick_params(axis="x", labelbottom=False)
            ax.set_xlabel("")
    if colorbar:
        maps.add_bar(image, ax, page.add_bar_axes(), norm.vmin >= 0)
    return page.finish(_above(title))


def plot_token_weights(
    tokens: Sequence[Sequence[str]],
    weights: ArrayLike | Sequence[ArrayLike],
    *,
    row_weights: ArrayLike | None = None,
    row_labels: Sequence[str] | None = None,
    scale: Literal["row", "all"] = "row",
    title: str | None = None,
    cmap: str | Colormap | None = None,
    width: float = 7.5,
    ax: Axes | None = None,
) -> Figure:
    """Draw sentences as rows of words, each on a ground as dark as its weight.

    Made for what `HierarchicalAttention` and `AttentionPooling` return: the words' weights shade
    them, the sentences' weights are bars before the rows.

    Parameters
    ----------
    tokens : sequence of sequence of str
        The words of each row; a flat sequence is one row.
    weights : array_like (tokens,), or a sequence of array_like
        A number for each word: those of all rows one after the other, or a sequence of rows.
    row_weights : array_like (rows,), optional
        A number for each row, drawn as a bar at the left and written as a percentage.
    row_labels : sequence of str, optional
        A text before each row. One that is not empty begins a group, which is set apart a little:
        a document, say.
    scale : {"row", "all"}
        Whether the darkest ground is that of each row's largest weight, or of the largest of all.
    title : str, optional
    cmap : str or matplotlib.colors.Colormap, optional
        As in `plot_alignment`.
    width : float
        Inches; longer rows are broken into lines. With `ax` its width holds instead.
    ax : matplotlib.axes.Axes, optional
        Where to draw. Without it a figure is made that is as high as the rows need.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError, TypeError, ImportError
        As in `plot_alignment`.

    Examples
    --------
    >>> from fastattn.plotting import plot_token_weights
    >>> rows = [["we", "waited"], ["the", "soup", "was", "cold"]]
    >>> figure = plot_token_weights(
    ...     rows, [0.5, 0.5, 0.1, 0.3, 0.1, 0.5], row_weights=[0.2, 0.8]
    ... )
    """
    checks.matplotlib_is_there()
    rows = checks.rows_of_tokens(tokens)
    shades = checks.packed(weights, [len(row) for row in rows])
    bars = None
    if row_weights is not None:
        bars = checks.weights(row_weights, (1,), f"({len(rows)},)", "row_weights")
        if len(bars) != len(rows):
            raise ValueError(f"row_weights: expected shape ({len(rows)},), got {bars.shape}")
    before = checks.tokens(row_labels, len(rows), "row_labels", "rows")
    checks.choice(scale, "scale", ("row", "all"))
    colors = maps.colors_of(cmap)
    if scale == "all":
        norm = maps.scale(np.concatenate(shades), 0.0, None)
        shades = [np.where(np.isfinite(row), norm(row), row) for row in shades]
    else:
        shades = [np.where(np.isfinite(r), maps.scale(r, 0.0, None)(r), r) for r in shades]

    shown = [labels.labels(row) for row in rows]
    shown_before = None if before is None else labels.labels(before)
    inches = width if ax is None else ax.bbox.width / _root(ax).dpi
    layout = words.arrange(shown, shown_before, bars is not None, 72 * inches)
    page = None
    if ax is None:
        page = sheet.Sheet()
        ax = page.add(0, 0, *(points / 72 for points in layout.size))
    words.draw(ax, layout, shown, shades, colors, shown_before, bars)
    if page is not None:
        return page.finish(_above(title), is_left=True)
    if title is not None:
        _write(ax.set_title, title, loc="left")
    return _root(ax)


def _root(ax: Axes) -> Figure:
    """The figure itself, also of axes in a part of one."""
    figure = ax.figure
    return getattr(figure, "figure", None) or figure


def _write(write: Any, text: str, size: float = 10.5, **style: Any) -> None:
    shown = labels.labels([text], longest=200)
    write(shown.texts[0], fontsize=size, **shown.style, **style)


def _above(title: str | None) -> Any:
    """What writes the title of a whole figure."""
    if title is None:
        return None

    def write(figure: Figure, x: float, y: float, alignment: str) -> Any:
        shown = labels.labels([title], longest=200)
        style = {"ha": alignment, "va": "bottom", "fontsize": 10.5, **shown.style}
        return figure.text(x, y, shown.texts[0], **style)

    return write
