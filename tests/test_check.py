# SPDX-License-Identifier: MIT
# Tests of the comparisons and of the oracle that all other tests trust.
# Used by the suite: a comparison that accepts NaN would hide any fault.
# It does not call a kernel.
"""The comparisons must fail when they should, and the oracle must match sums done by hand."""

import math

import numpy as np
import pytest
from check import assert_bits_equal, assert_close, expected, qkv

NAN = np.float32("nan")


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (np.nan, 0.0),
        (0.0, np.nan),
        (np.inf, 0.0),
        (0.0, np.inf),
        (np.inf, -np.inf),
        (np.inf, np.nan),
        (np.nan, np.inf),
        (np.float32(1.0), 1.0001),
        (np.float32(0.0), 1e-5),
    ],
)
def test_assert_close_rejects(got, wanted):
    """Case 3: a comparison in which NaN matches anything hides the fault it should find."""
    with pytest.raises(AssertionError):
        assert_close(np.float32(got), np.float64(wanted))
    with pytest.raises(AssertionError):
        assert_close(np.full((2, 3), got, np.float32), np.full((2, 3), wanted))


@pytest.mark.parametrize("slack", [np.inf, np.nan, 1e30])
def test_assert_close_rejects_nan_whatever_the_slack(slack):
    with pytest.raises(AssertionError):
        assert_close(NAN, np.float64(0), slack=slack)
    with pytest.raises(AssertionError):
        assert_close(np.float32(np.inf), np.float64(0), slack=slack)


def test_assert_close_accepts():
    assert_close(np.float32(1.0), 1.00001)
    assert_close(NAN, np.nan)
    assert_close(np.float32(-np.inf), -np.inf)
    assert_close(np.zeros((0, 3), np.float32), np.zeros((0, 3)))
    assert_close(np.float64(1.0), 1.00001, dtype=np.float32)
    assert_close(np.float32(5.0), 6.0, slack=1.0)


def test_assert_close_rejects_another_shape():
    with pytest.raises(AssertionError):
        assert_close(np.zeros((2, 1), np.float32), np.zeros((1, 2)))


def test_assert_bits_equal():
    assert_bits_equal(np.array([NAN, -0.0], np.float32), np.array([NAN, -0.0], np.float32))
    for other in (np.zeros(1, np.float64), np.zeros(2, np.float32), np.full(1, -0.0, np.float32)):
        with pytest.raises(AssertionError):
            assert_bits_equal(np.zeros(1, np.float32), other)


def by_hand(q, k, v, group, keep, add):
    """Attention of one batch entry as plain loops over Python floats."""
    heads, n_queries, dim = q.shape
    out = np.zeros((heads, n_queries, v.shape[-1]))
    lse = np.full((heads, n_queries), -np.inf)
    for h in range(heads):
        for i in range(n_queries):
            terms = []
            for j in range(k.shape[1]):
                if keep(i, j):
                    dot = sum(float(a) * float(b) for a, b in zip(q[h, i], k[h // group, j]))
                    terms.append((j, math.exp(dot / math.sqrt(dim) + add(h, i, j))))
            total = sum(weight for _, weight in terms)
            if terms:
                lse[h, i] = math.log(total)
            for j, weight in terms:
                out[h, i] += weight / total * v[h // group, j].astype(float)
    return out, lse


def test_oracle_matches_plain_loops(rng):
    q, k, v = qkv(rng, lead=(2,), heads=4, kv_heads=2, queries=3, keys=6, dim=5, dv=7)
    bias = rng.standard_normal((4, 3, 6)).astype(np.float32)
    slopes = np.array([0.5, 0.25, 0.0, -0.125], np.float32)
    got = expected(
        q, k, v, bias=bias, is_causal=True, q_offset=[2, -1], kv_lengths=[6, 2], window=(3, -1),
        alibi_slopes=slopes,
    )  # fmt: skip
    for entry, (offset, length) in enumerate([(2, 6), (-1, 2)]):
        out, lse = by_hand(
            q[entry], k[entry], v[entry], 2,
            lambda i, j, o=offset, n=length: j < n and j <= i + o and j >= i + o - 3,
            lambda h, i, j, o=offset: float(bias[h, i, j]) - float(slopes[h]) * abs(i + o - j),
        )  # fmt: skip
        np.testing.assert_allclose(got.out[entry], out, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(got.lse[entry], lse, rtol=1e-12, atol=1e-13)
    assert (got.out[1, :, 0] == 0).all() and np.isneginf(got.lse[1, :, 0]).all()


def test_oracle_softcap_and_sink():
    one = np.ones((1, 1, 1), np.float32)
    got = expected(one * 3, one * 4, one * 5, softcap=2.0, scale=1.0, sinks=np.array([0.5]))
    score = 2 * math.tanh(12 / 2)
    total = math.exp(score) + math.exp(0.5)
    assert got.lse[0, 0] == pytest.approx(math.log(total), rel=1e-14)
    assert got.out[0, 0, 0] == pytest.approx(5 * math.exp(score) / total, rel=1e-14)


def test_oracle_keeps_nan_in_its_place(rng):
    q, k, v = qkv(rng)
    v[1, 2, 4, 3] = np.nan
    k[0, 1, 6] = np.nan
    got = expected(q, k, v, is_causal=True).out
    assert np.isnan(got[1, 2, 4, 3])
    assert np.isnan(got).sum() == 1
    assert np.isnan(expected(q, k, v).out[0, 1]).all()
