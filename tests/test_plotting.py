# SPDX-License-Identifier: MIT
# fastattn.plotting: what is drawn for which weights and tokens, and what is refused.
# Used by pytest; it is skipped where matplotlib is not installed.
# Whether a picture is handsome is for people to see.
"""Pictures of weights: the numbers in them, their labels, their manners towards matplotlib."""

import doctest
import io
import sys

import numpy as np
import pytest

import fastattn

pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from fastattn._plotting import labels  # noqa: E402
from fastattn.plotting import plot_alignment, plot_heads, plot_token_weights  # noqa: E402

SOURCE = ["the", "agreement", "on", "the", "area", "."]
TARGET = ["l'", "accord", "sur", "la", "zone"]


def drawn(figure):
    """The picture as bytes: every text and every cell has been drawn, without a warning."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    assert file.getvalue().startswith(b"\x89PNG")
    return file.getvalue()


def renderer_of(figure):
    """What measures texts, after everything has found its place."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def shown(ticks):
    return [tick.get_text() for tick in ticks]


def texts_of(ax):
    return [text.get_text() for text in ax.texts]


@pytest.fixture
def weights(rng):
    return rng.dirichlet(np.ones(len(SOURCE)), (3, len(TARGET)))


def test_an_alignment_has_a_cell_for_each_pair_and_both_tokens(weights):
    figure = plot_alignment(weights[0], SOURCE, TARGET, title="first head")
    ax, bar = figure.axes
    np.testing.assert_array_equal(ax.images[0].get_array(), weights[0])
    assert shown(ax.get_xticklabels()) == SOURCE
    assert shown(ax.get_yticklabels()) == TARGET
    assert ax.get_title() == "first head"
    assert bar.get_ylabel() == "weight"
    assert ax.images[0].norm.vmin == 0
    assert ax.images[0].norm.vmax == weights[0].max()
    drawn(figure)


@pytest.mark.parametrize("side", ["top", "bottom"])
def test_sources_stand_at_either_side_and_targets_read_downwards(weights, side):
    figure = plot_alignment(weights[0], SOURCE, TARGET, source_side=side)
    ax, renderer = figure.axes[0], renderer_of(figure)
    label = ax.get_xticklabels()[0].get_window_extent(renderer)
    frame = ax.get_window_extent(renderer)
    assert label.y0 > frame.y1 if side == "top" else label.y1 < frame.y0
    first, last = (ax.get_yticklabels()[i].get_window_extent(renderer).y0 for i in (0, -1))
    assert first > last


def test_a_head_is_picked_or_all_are_averaged(weights):
    for head, expected in ((1, weights[1]), (-1, weights[2]), (np.int64(0), weights[0])):
        image = plot_alignment(weights, head=head).axes[0].images[0]
        np.testing.assert_array_equal(image.get_array(), expected)
    for head in (None, "mean"):
        image = plot_alignment(weights, head=head).axes[0].images[0]
        np.testing.assert_allclose(image.get_array(), weights.mean(axis=0))


def test_every_dtype_is_drawn(weights, dtype):
    figure = plot_alignment(weights[0].astype(dtype), SOURCE, TARGET)
    np.testing.assert_array_equal(
        figure.axes[0].images[0].get_array(), weights[0].astype(dtype).astype(np.float64)
    )
    drawn(figure)


def test_what_a_function_returns_can_be_drawn(rng):
    q, k = rng.standard_normal((2, 4, 5, 8)), rng.standard_normal((2, 4, 6, 8))
    _, weights = fastattn.attention(q, k, k, score="cosine", return_weights=True)
    drawn(plot_heads(weights[0], SOURCE, TARGET))
    drawn(plot_alignment(weights[1], SOURCE, TARGET))


def test_docstrings():
    failed, attempted = doctest.testmod(fastattn.plotting)
    assert attempted and not failed


def test_given_axes_are_drawn_into_and_their_figure_is_returned(weights):
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subfigures(1, 2)
    axes = left.subplots(2, 1)
    assert plot_alignment(weights[0], SOURCE, TARGET, ax=axes[0], colorbar=False) is figure
    assert plot_token_weights(SOURCE, weights[0, 0], ax=axes[1]) is figure
    assert plot_alignment(weights[1], ax=right.subplots(), title="b") is figure
    assert len(axes[0].images) == 1
    assert axes[1].texts
    drawn(figure)


def test_positions_stand_where_no_tokens_are_given(weights):
    ax = plot_alignment(weights[0]).axes[0]
    assert ax.get_xlabel() == "source position"
    assert ax.get_ylabel() == "target position"
    drawn(ax.figure)
    assert all(float(tick).is_integer() for tick in ax.get_xticks())


def test_long_tokens_are_turned_and_short_ones_are_not(weights):
    figure = plot_alignment(weights[0], SOURCE, TARGET)
    assert {tick.get_rotation() for tick in figure.axes[0].get_xticklabels()} == {45.0}
    figure = plot_alignment(weights[0], list("abcdef"), TARGET)
    assert {tick.get_rotation() for tick in figure.axes[0].get_xticklabels()} == {0.0}


@pytest.mark.parametrize("shape", [(300, 200), (1, 60), (2, 500), (40, 1), (1, 1)])
def test_labels_of_many_tokens_are_thinned_out_and_never_overlap(rng, shape):
    targets, sources = ([f"token{i}" for i in range(n)] for n in shape)
    figure = plot_alignment(rng.random(shape), sources, targets)
    ax, renderer = figure.axes[0], renderer_of(figure)
    rows = [tick.get_window_extent(renderer) for tick in ax.get_yticklabels()]
    assert all(above.y0 >= below.y1 - 1 for above, below in zip(rows, rows[1:]))
    assert shown(ax.get_yticklabels()) == targets[:: -(-shape[0] // len(rows))]
    assert shown(ax.get_xticklabels())[0] == "token0"
    assert len(ax.get_xticklabels()) <= 120
    assert max(figure.get_size_inches()) < 12


def test_long_tokens_are_cut_and_what_is_invisible_is_made_visible():
    tokens = ["x" * 100, " ", "\n", "a\tb", "\x07", "e\u0301"]
    assert labels.labels(tokens).texts == [
        "x" * 27 + "\u2026",
        "\u2423",
        "\u23ce",
        "a\u21e5b",
        "\u25a1",
        "\u00e9",
    ]


def test_dollars_and_backslashes_are_no_formulas():
    tokens = ["$x$", "\\frac{", "a_b^c", "$"]
    figure = plot_alignment(np.eye(4), tokens, tokens, title="$5 or $6")
    figure_of_heads = plot_heads(np.ones((1, 4, 4)), tokens, tokens, titles=["$h$"])
    for each in (figure, figure_of_heads, plot_token_weights([tokens], np.ones(4))):
        drawn(each)


CJK = ["\u6211", "\u559c\u6b22", "\u732b", "\ud55c\uad6d", "\u65e5\u672c\u8a9e", "\U000e0041"]


def test_characters_without_a_font_become_boxes_without_a_warning(monkeypatch):
    labels._family.cache_clear()
    monkeypatch.setattr(labels, "_installed", lambda: [])
    try:
        assert labels.labels(CJK).texts[:2] == ["\u25a1", "\u25a1\u25a1"]
        drawn(plot_alignment(np.eye(6), CJK, CJK, title=CJK[0]))
        drawn(plot_token_weights([CJK], np.ones(6), row_labels=[CJK[1]]))
    finally:
        labels._family.cache_clear()


def test_characters_with_a_font_are_drawn_with_it():
    # Whatever is installed: each text is drawn by a font that has it, or as a box.
    drawn(plot_heads(np.ones((2, 6, 6)), CJK, CJK, title="".join(CJK)))


def test_hidden_scores_and_broken_ones_are_told_apart(weights):
    scores = np.log(weights[0])
    scores[1, 2:] = -np.inf
    scores[3, 0], scores[3, 1] = np.nan, np.inf
    figure = plot_alignment(scores, SOURCE, TARGET, annotate=True)
    ax, bar = figure.axes
    is_finite = np.isfinite(scores)
    np.testing.assert_array_equal(np.ma.getmaskarray(ax.images[0].get_array()), ~is_finite)
    np.testing.assert_array_equal(
        ax.images[1].get_array()[..., 3], np.isnan(scores) | np.isposinf(scores)
    )
    assert shown(ax.get_legend().get_texts()) == ["hidden (-inf)", "NaN or inf"]
    assert bar.get_ylabel() == "score"
    assert ax.images[0].norm.vmin == scores[is_finite].min()
    assert len(ax.texts) == is_finite.sum()
    drawn(figure)


@pytest.mark.parametrize("fill", [0.0, 1.0, -2.0, -np.inf, np.nan])
def test_weights_that_are_all_alike_are_drawn(fill):
    drawn(plot_alignment(np.full((2, 3), fill)))
    drawn(plot_heads(np.full((2, 2, 3), fill)))
    drawn(plot_token_weights(["a", "b", "c"], np.full(3, fill)))


def test_numbers_are_written_into_cells(weights):
    ax = plot_alignment([[0.25, 0.75], [1.0, 0.0]], annotate=True).axes[0]
    assert texts_of(ax) == [".25", ".75", "1.00", ".00"]
    dark, light = ax.texts[2].get_color(), ax.texts[3].get_color()
    assert (dark, light) == ("white", "#20262d")


@pytest.mark.parametrize(
    ("columns", "grid"), [(None, (2, 3)), (1, (5, 1)), (4, (2, 4)), (9, (1, 5))]
)
def test_each_head_has_a_map_with_the_same_scale(rng, columns, grid):
    weights = rng.random((5, 4, 4))
    figure = plot_heads(weights, list("abcd"), list("efgh"), columns=columns, title="heads")
    drawn(figure)
    maps = [ax for ax in figure.axes if ax.images]
    assert len(maps) == 5
    assert len({(ax.images[0].norm.vmin, ax.images[0].norm.vmax) for ax in maps}) == 1
    for ax, head in zip(maps, weights):
        np.testing.assert_array_equal(ax.images[0].get_array(), head)
    assert [ax.get_title() for ax in maps] == [f"head {i}" for i in range(5)]
    corners = [ax.get_position().p0.round(4) for ax in maps]
    assert tuple(len({corner[axis] for corner in corners}) for axis in (1, 0)) == grid
    left = [ax for ax in maps if any(t.label1.get_visible() for t in ax.yaxis.get_major_ticks())]
    assert left == [ax for i, ax in enumerate(maps) if i % grid[1] == 0]


ROWS = [["we", "waited", "an", "hour"], [], ["the", "soup", "was", "cold"]]


@pytest.mark.parametrize("is_packed", [True, False])
def test_words_are_shaded_and_sentences_have_bars(rng, is_packed):
    weights = [rng.dirichlet(np.ones(len(row))) if row else np.zeros(0) for row in ROWS]
    figure = plot_token_weights(
        ROWS,
        np.concatenate(weights) if is_packed else weights,
        row_weights=[0.25, 0.0, 0.75],
        row_labels=["first", "", ""],
        title="a document",
    )
    drawn(figure)
    ax = figure.axes[0]
    assert set(texts_of(ax)) == {*ROWS[0], *ROWS[2], "first", "25 %", "0 %", "75 %"}
    boxes = [patch for patch in ax.patches if type(patch).__name__ == "FancyBboxPatch"]
    assert len(boxes) == 8
    lightness = [sum(box.get_facecolor()[:3]) for box in boxes[:4]]
    assert np.argmin(lightness) == np.argmax(weights[0])
    bars = [patch for patch in ax.patches if type(patch).__name__ == "Rectangle"]
    np.testing.assert_allclose([b.get_width() / bars[2].get_width() for b in bars], [1 / 3, 0, 1])


def test_shades_are_relative_to_the_row_or_to_all():
    colors = {}
    for scale in ("row", "all"):
        figure = plot_token_weights([["a"], ["b"]], [0.1, 1.0], scale=scale)
        colors[scale] = [patch.get_facecolor() for patch in figure.axes[0].patches]
    assert colors["row"][0] == colors["row"][1] == colors["all"][1]
    assert sum(colors["all"][0]) > sum(colors["all"][1])


def test_long_rows_are_broken_and_stay_within_the_width():
    words = [f"word{i}" for i in range(60)]
    figure = plot_token_weights([words], np.ones(60), width=4.0)
    ax, renderer = figure.axes[0], renderer_of(figure)
    edges = [text.get_window_extent(renderer) for text in ax.texts]
    assert max(edge.x1 for edge in edges) <= 4.0 * figure.dpi
    assert min(edge.y0 for edge in edges) >= 0
    assert len({round(edge.y0) for edge in edges}) >= 6


def test_nothing_of_pyplot_is_touched(run_python):
    done = run_python(
        """
import io, sys
import numpy as np
import fastattn.plotting
assert "matplotlib" not in sys.modules
fastattn.plotting.plot_alignment(np.eye(3), "abc", "def").savefig(io.BytesIO())
fastattn.plotting.plot_heads(np.ones((2, 3, 3)))
fastattn.plotting.plot_token_weights("abc".split(), [1.0])
assert "matplotlib.pyplot" not in sys.modules
print("done")
""",
        options=("-W", "ignore:fastattn:RuntimeWarning"),
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_without_matplotlib_an_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for call in (
        lambda: plot_alignment(np.eye(2)),
        lambda: plot_heads(np.ones((1, 2, 2))),
        lambda: plot_token_weights(["a"], [1.0]),
    ):
        with pytest.raises(ImportError, match=r'pip install "fastattn\[plot\]"'):
            call()


TWO = np.full((2, 3), 0.5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: plot_alignment(np.ones(3)), ValueError, r"weights: expected \(targets, sources\)"),
        (lambda: plot_alignment(np.ones((1, 1, 2, 3))), ValueError, r"weights\[0\] is the first"),
        (
            lambda: plot_alignment(np.ones((0, 3))),
            ValueError,
            r"none of them 0, got .*\(0, 3\)",
        ),
        (lambda: plot_alignment(TWO + 1j), TypeError, "weights: expected real numbers, got dtype"),
        (lambda: plot_alignment([["a"]]), TypeError, "weights: expected real numbers, got dtype"),
        (lambda: plot_alignment(TWO, "ab"), ValueError, "source: expected 3 tokens, one for each"),
        (lambda: plot_alignment(TWO, None, "abc"), ValueError, "target: expected 2 tokens"),
        (lambda: plot_alignment(TWO, [1, 2, 3]), TypeError, "source: expected strings, got int"),
        (lambda: plot_alignment(TWO, 7), TypeError, "source: expected strings, got int"),
        (lambda: plot_alignment(TWO, head=1), ValueError, "head: expected None for weights"),
        (lambda: plot_alignment(TWO[None], head=1), ValueError, "from -1 to 0, got 1"),
        (lambda: plot_alignment(TWO[None], head="x"), ValueError, "head: expected .* got 'x'"),
        (lambda: plot_alignment(TWO[None], head=True), ValueError, "head: expected .* got True"),
        (lambda: plot_alignment(TWO, cmap="none"), ValueError, "cmap: expected a Colormap or"),
        (lambda: plot_alignment(TWO, source_side="left"), ValueError, "source_side: expected one"),
        (lambda: plot_alignment(TWO, vmin=2, vmax=1), ValueError, "vmin, vmax: expected vmin <="),
        (lambda: plot_heads(TWO), ValueError, r"weights: expected \(heads, targets, sources\)"),
        (lambda: plot_heads(TWO[None], columns=0), ValueError, "columns: expected an integer"),
        (lambda: plot_heads(TWO[None], columns=1.5), ValueError, "columns: expected an integer"),
        (lambda: plot_heads(TWO[None], titles=[]), ValueError, "titles: expected 1 tokens"),
        (lambda: plot_token_weights("ab", [1, 1]), TypeError, "tokens: expected rows of strings"),
        (lambda: plot_token_weights([], []), ValueError, "tokens: expected at least one token"),
        (lambda: plot_token_weights([["a"], "b"], [1, 1]), TypeError, "got rows and strings"),
        (lambda: plot_token_weights([["a", 1]], [1, 1]), TypeError, r"tokens\[0\]: expected str"),
        (lambda: plot_token_weights(["a"], [1, 2]), ValueError, r"weights: expected \(1,\), or"),
        (
            lambda: plot_token_weights([["a"], ["b", "c"]], [[1.0, 2.0], [3.0]]),
            ValueError,
            "2 rows of 1, 2 numbers, as tokens has, got rows of 2, 1",
        ),
        (
            lambda: plot_token_weights(["a"], [1], row_weights=[1, 2]),
            ValueError,
            r"row_weights: expected shape \(1,\), got \(2,\)",
        ),
        (lambda: plot_token_weights(["a"], [1], row_labels=[]), ValueError, "row_labels: expected"),
        (lambda: plot_token_weights(["a"], [1], scale="x"), ValueError, "scale: expected one of"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()
