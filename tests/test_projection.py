# SPDX-License-Identifier: MIT
# What happens to queries and keys before a kernel sees them.
# Used by the suite on every backend: products of few rows are its own.
# The scores that come of it are in test_additive*.py and test_scores.py.
"""Rows of any memory are projected to the same bits, and what is finite stays finite."""

import numpy as np
import pytest
from check import assert_bits_equal, assert_close, draw
from test_layouts import VIEWS

import fastattn
from fastattn._projection import normalized, project

F = np.dtype(np.float32)


@pytest.mark.parametrize("rows", [1, 2, 7, 32, 33, 301])
@pytest.mark.parametrize("view", VIEWS, ids=lambda f: f.__name__)
def test_strides_do_not_matter(backend, rng, dtype, view, rows):
    """At sizes where a BLAS has kernels of its own for each form of a matrix."""
    acc = np.dtype(np.float64) if dtype == np.float64 else F
    x, weight = draw(rng, (2, 3, rows, 130), dtype), draw(rng, (130, 75), acc)
    wanted = project(x, weight, None, acc)
    assert_close(wanted, x.astype(np.float64) @ weight.astype(np.float64), slack=1e-4)
    assert wanted.dtype == acc
    assert_bits_equal(project(view(x), weight, None, acc), wanted)
    assert_bits_equal(normalized(view(x), acc), normalized(x, acc))


@pytest.mark.parametrize("rows", [1, 7, 32, 64])
def test_an_entry_does_not_know_the_others(backend, rng, rows):
    x, weight, bias = draw(rng, (9, 2, rows, 130)), draw(rng, (130, 75)), draw(rng, 75)
    x[3, 1, -1, 7], x[4, 0, 0, :2] = np.nan, np.finfo(F).max
    weight[:2, 5] = 3.0
    whole = project(x, weight, bias, F)
    with fastattn.threads(3):
        assert_bits_equal(project(x, weight, bias, F), whole)
    for entry in range(9):
        for head in range(2):
            some = slice(entry, entry + 1), slice(head, head + 1)
            assert_bits_equal(project(x[some], weight, bias, F), whole[some])


def test_rows_that_can_be_read_are_not_copied(rng):
    x = draw(rng, (2, 3, 5, 8))
    for rows in (x, x[:, :, ::2], np.broadcast_to(x[:1], x.shape)):
        assert project(rows, None, None, F) is rows
    wide = np.broadcast_to(x[:1, :1], (1000, 1000, 5, 8))
    for result in (
        project(wide, None, draw(rng, 8), F),
        project(wide, draw(rng, (8, 4)), None, F),
        project(wide[..., ::2], None, None, F),
        normalized(wide, F),
    ):
        assert result.shape[:3] == (1000, 1000, 5) and result.strides[:2] == (0, 0)


@pytest.mark.parametrize("given", ["float32", "float64"])
def test_finite_stays_finite(backend, rng, given):
    """Sums that overflow are the largest number of their sign, on the way there as at the end."""
    acc = np.dtype(given)
    big = np.finfo(acc).max
    x = (rng.choice([-1.0, 1.0], (2, 1, 40, 33)) * big).astype(acc)
    weight = (rng.choice([-1.0, 1.0], (33, 20)) * big).astype(acc)
    result = project(x, weight, None, acc)
    assert np.isfinite(result).all() and (abs(result) == big).all()
    assert_bits_equal(
        project(x, weight, -np.sign(result[0, 0, 0]) * big, acc)[0, 0, 0], np.zeros(20, acc)
    )
    twice = project(abs(x), None, np.full(33, big, acc), acc)
    assert (twice == big).all()
    signs = np.sign(np.sign(x).astype(float) @ np.sign(weight).astype(float))
    assert (np.sign(result) == signs).all()


def test_what_is_not_finite_keeps_to_its_place(backend, rng):
    x, weight = draw(rng, (1, 1, 6, 5)), draw(rng, (5, 4))
    clean = project(x, weight, None, F)
    x[0, 0, 2, 1], weight[3, 2] = np.inf, np.nan
    result = project(x, weight, None, F)
    assert np.isnan(result[..., 2]).all() and not np.isfinite(result[0, 0, 2]).any()
    kept = np.ones((6, 4), bool)
    kept[2], kept[:, 2] = False, False
    assert_bits_equal(result[0, 0][kept], clean[0, 0][kept])
    lengths = np.linalg.norm(normalized(x, F).astype(np.float64), axis=-1)
    assert np.isnan(lengths[0, 0, 2])
    assert_close(np.delete(lengths, 2, axis=2), np.ones((1, 1, 5)), slack=1e-6)


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 31, 32, 33, 64, 100])
def test_products_of_few_rows(backend, rng, columns):
    """Around the register blocks of every instruction set, and with axes of size 0."""
    for lead, rows, dim in [((40,), 1, 64), ((3, 2), 13, 1), ((1,), 14, 33), ((2,), 31, 7)]:
        x, weight = draw(rng, (*lead, rows, dim)), draw(rng, (dim, columns))
        wanted = x.astype(np.float64) @ weight.astype(np.float64)
        assert_close(project(x, weight, None, F), wanted, slack=1e-6 * dim)
    for shape in [(0, 2, 5), (3, 0, 5), (3, 2, 0)]:
        result = project(np.ones(shape, F), np.ones((shape[-1], columns), F), None, F)
        assert result.shape == (*shape[:-1], columns) and not result.any()
