# SPDX-License-Identifier: MIT
# AttentionOverAttention against its formula: padding on both sides, empty texts, large scores.
# Used by the suite, on every backend.
# It has no weights: there is nothing to load or to keep.
"""Two softmaxes of one matrix, one over each of its axes, and their product."""

import pickle
import tracemalloc

import numpy as np
import pytest
from check import assert_bits_equal, assert_close, draw

from fastattn.layers import AttentionOverAttention

F = np.float32
aoa = AttentionOverAttention()


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def distribution(document, query):
    """The formula for one document and one query, both without padding."""
    if len(document) == 0 or len(query) == 0:
        return np.zeros(len(document))
    m = document.astype(float) @ query.astype(float).T
    return softmax(m, 0) @ softmax(m, 1).mean(axis=0)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
def test_the_formula(backend, rng, dtype, lead):
    """Any leading axes; what is padding may be NaN, and gets nothing."""
    document, query = draw(rng, (*lead, 11, 4), dtype), draw(rng, (*lead, 6, 4), dtype)
    d_lengths, q_lengths = rng.integers(0, 12, lead), rng.integers(0, 7, lead)
    for lengths in (
        {},
        {"document_lengths": d_lengths},
        {"query_lengths": q_lengths},
        {"document_lengths": d_lengths, "query_lengths": q_lengths},
        {"document_lengths": 7, "query_lengths": 2},
    ):
        n_d = np.broadcast_to(lengths.get("document_lengths", 11), lead)
        n_q = np.broadcast_to(lengths.get("query_lengths", 6), lead)
        dirty_d, dirty_q = document.copy(), query.copy()
        for i in np.ndindex(lead):
            dirty_d[i][n_d[i] :], dirty_q[i][n_q[i] :] = np.nan, np.nan
        got = aoa(dirty_d, dirty_q, **lengths)
        assert got.shape == (*lead, 11) and got.dtype == dtype
        for i in np.ndindex(lead):
            want = distribution(document[i][: n_d[i]], query[i][: n_q[i]])
            assert_close(got[i][: n_d[i]], want, slack=0 if dtype == np.float64 else 1e-5)
            assert not got[i][n_d[i] :].any()


def test_long_texts_and_large_scores(backend, rng, real):
    """Over several tiles; it is still a distribution where scores are in the hundreds."""
    document, query = draw(rng, (700, 33), real), draw(rng, (90, 33), real)
    for size in (0.2, 3.0):
        got = aoa(document * real.type(size), query)
        slack = 2e-4 if real == F else 1e-12
        assert_close(got, distribution(document * real.type(size), query), slack=slack)
        assert_close(got.sum(), np.array(1.0), dtype=real, slack=slack)


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_ties_of_large_scores(backend, real, size):
    """The larger the scores, the less of the sums is left in their logarithms."""
    signs = np.array([[1.0], [0.0], [1.0], [-1.0], [1.0]])
    for n_words, asked in ((3, signs[[0, 2, 4]]), (700, signs), (5, signs[[0, 3, 3]])):
        document = np.resize(signs, (n_words, 1))
        got = aoa((document * size).astype(real), asked.astype(real))
        assert_close(got, distribution(document * size, asked), dtype=real)
        assert_close(got.sum(), np.array(1.0), dtype=real)


def test_an_entry_has_the_same_bits_alone(backend, rng, dtype):
    document, query = draw(rng, (9, 70, 7), dtype), draw(rng, (9, 67, 7), dtype)
    lengths = {"document_lengths": np.arange(70, 61, -1), "query_lengths": np.arange(9)}
    got = aoa(document, query, **lengths)
    for i in range(9):
        own = {name: n[i] for name, n in lengths.items()}
        assert_bits_equal(aoa(document[i], query[i], **own), got[i])


def test_empty_axes(backend, dtype):
    for n_d, n_q in ((0, 3), (3, 0), (0, 0)):
        got = aoa(np.ones((2, n_d, 4), dtype), np.ones((2, n_q, 4), dtype))
        assert got.shape == (2, n_d) and not got.any()


def test_nan_stays_in_its_entry(backend, rng, real):
    document, query = draw(rng, (3, 5, 4), real), draw(rng, (3, 6, 4), real)
    clean = aoa(document, query)
    document[1, 2, 3] = np.nan
    got = aoa(document, query)
    assert np.isnan(got[1]).all()
    assert_bits_equal(got[[0, 2]], clean[[0, 2]])


def test_no_matrix_in_memory(rng):
    document, query = draw(rng, (3000, 8)), draw(rng, (2000, 8))
    aoa(document, query)
    tracemalloc.start()
    aoa(document, query)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000 * 2000 * 4 / 2


def test_it_is_a_layer():
    assert repr(aoa) == "AttentionOverAttention()"
    assert repr(pickle.loads(pickle.dumps(aoa))) == repr(aoa)


@pytest.mark.parametrize(
    ("wrong", "error", "name"),
    [
        ({"document": np.ones((2, 5, 3), F)}, ValueError, "query|document"),
        ({"document": np.ones((3, 5, 4), F)}, ValueError, "query|document"),
        ({"document": np.ones(4, F)}, ValueError, "document"),
        ({"document": np.ones((2, 5, 4), int)}, TypeError, "document"),
        ({"query": np.ones((2, 6, 4))}, TypeError, "query"),
        ({"document_lengths": 6}, ValueError, "document_lengths"),
        ({"document_lengths": [1, 2, 3]}, ValueError, "document_lengths"),
        ({"query_lengths": [-1, 2]}, ValueError, "query_lengths"),
        ({"query_lengths": 2.0}, TypeError, "query_lengths"),
    ],
)
def test_errors(wrong, error, name):
    right = {"document": np.ones((2, 5, 4), F), "query": np.ones((2, 6, 4), F)}
    with pytest.raises(error, match=rf"^({name}): expected"):
        aoa(**right | wrong)
