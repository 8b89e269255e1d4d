# SPDX-License-Identifier: MIT
"""A figure around axes of given sizes: as large as what is drawn needs, and no larger.

For ``plotting``. Cells keep their size whatever stands beside them, and no label or title is cut;
matplotlib's own layouts fit axes into a figure, the other way round. It draws nothing but a title.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Sheet"]

DPI = 150
MARGIN = 0.08  # inches around everything
BAR_GAP, BAR_WIDTH, BAR_HEIGHT = 0.16, 0.13, 2.8  # inches, of the colour bar; the longest one


class Sheet:
    """A figure in the making; places are in inches, upwards from any origin."""

    def __init__(self) -> None:
        from matplotlib.figure import Figure  # no pyplot: no backend, no global state

        self.figure: Figure = Figure(figsize=(1, 1), dpi=DPI)
        self._places: list[tuple[Axes, tuple[float, float, float, float]]] = []

    def add(self, x: float, y: float, width: float, height: float) -> Axes:
        """Axes whose frame has this lower left corner and this size."""
        ax = self.figure.add_axes((x, y, width, height))  # inches of the figure of one inch
        self._places.append((ax, (x, y, width, height)))
        return ax

    def add_bar_axes(self) -> Axes:
        """Axes for a colour bar, right of all others and at the middle of their height."""
        right = max(x + width for _, (x, _, width, _) in self._places)
        low = min(y for _, (_, y, _, _) in self._places)
        high = max(y + height for _, (_, y, _, height) in self._places)
        length = min(BAR_HEIGHT, high - low)
        return self.add(right + BAR_GAP, (low + high - length) / 2, BAR_WIDTH, length)

    def finish(self, title: Any = None, *, is_left: bool = False) -> Figure:
        """The figure; `title(x, y, alignment)` writes one above everything, in inches."""
        frames = [place for _, place in self._places]
        box = self.figure.get_tightbbox()  # inches
        if title is not None:
            x = box.x0 if is_left else (frames[0][0] + max(f[0] + f[2] for f in frames)) / 2
            text = title(self.figure, x, box.y1 + 0.12, "left" if is_left else "center")
            box = self.figure.get_tightbbox()
        width, height = box.width + 2 * MARGIN, box.height + 2 * MARGIN
        self.figure.set_size_inches(width, height)

        def moved(x: float, y: float) -> tuple[float, float]:
            return (x - box.x0 + MARGIN) / width, (y - box.y0 + MARGIN) / height

        for ax, (x, y, w, h) in self._places:
            ax.set_position((*moved(x, y), w / width, h / height))
        if title is not None:
            text.set_position(moved(*text.get_position()))
        return self.figure
