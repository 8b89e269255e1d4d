# SPDX-License-Identifier: MIT
# merge_attention: partial results over disjoint keys become the whole result.
# Used by the suite, on every backend.
# The parts themselves are computed by the calls that other files test.
"""Partial (out, lse) pairs merge exactly, empty parts included."""

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import accumulator, assert_bits_equal, assert_close, draw, expected, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention


def parts_of(q, k, v, cuts, **options):
    """(outs, lses) over the key ranges between the cuts, causal masks shifted along."""
    outs, lses = [], []
    for start, end in zip(cuts[:-1], cuts[1:], strict=True):
        out, lse = sdpa(
            q, k[..., start:end, :], v[..., start:end, :], return_lse=True,
            is_causal=options.get("is_causal", False), q_offset=options.get("q_offset", 0) - start,
        )  # fmt: skip
        outs.append(out)
        lses.append(lse)
    return outs, lses


@pytest.mark.parametrize("shape", [(5, 20), (QUERY_BLOCK + 1, KEY_TILE + 9), (1, KEY_CHUNK + 20)])
@pytest.mark.parametrize("causal", [False, True])
def test_splits_equal_the_whole(backend, rng, dtype, shape, causal):
    """Any split of the keys, empty pieces and pieces hidden from some rows included."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
    options = {"is_causal": causal, "q_offset": 3} if causal else {}
    want = expected(q, k, v, **options)
    for cuts in ([0, keys], [0, 1, keys], [0, 7, 7, 8, keys], [0, keys - 1, keys, keys]):
        out, lse = fastattn.merge_attention(*parts_of(q, k, v, cuts, **options))
        assert out.dtype == dtype and lse.dtype == accumulator(dtype)
        slack = want.out_slack + (0 if dtype.itemsize > 2 else 4e-3)
        assert_close(out, want.out, slack=slack, context=str(cuts))
        assert_close(lse, want.lse, slack=want.lse_slack + 1e-6, context=str(cuts))


def test_empty_parts(backend, rng, dtype):
    """A part with lse -inf has no weight, whatever its out holds; all empty stay empty."""
    q, k, v = qkv(rng, dtype)
    out, lse = sdpa(q, k, v, return_lse=True)
    nothing = np.zeros_like(out), np.full_like(lse, -np.inf)
    for outs, lses in (
        ((out, nothing[0]), (lse, nothing[1])),
        ((nothing[0], out), (nothing[1], lse)),
        ((nothing[0], out, nothing[0]), (nothing[1], lse, nothing[1])),
    ):
        got = fastattn.merge_attention(outs, lses)
        assert_close(got[0], out.astype(np.float64))
        assert_close(got[1], lse.astype(np.float64))
    got = fastattn.merge_attention([nothing[0]] * 2, [nothing[1]] * 2)
    assert (got[0] == 0).all() and np.isneginf(got[1]).all()


def test_far_apart_parts(backend, rng):
    """Log-sums thousands apart neither overflow nor make NaN."""
    q, k, v = qkv(rng)
    out, lse = sdpa(q, k, v, return_lse=True)
    for shift in (1e3, 1e30, np.finfo(np.float32).max):
        low = np.full_like(lse, -shift)
        got = fastattn.merge_attention([out, np.full_like(out, 5)], [lse, low])
        assert_close(got[0], out.astype(np.float64))
        got = fastattn.merge_attention([np.full_like(out, 5), out], [-low, lse])
        assert_close(got[0], np.full(out.shape, 5.0))
        assert np.isfinite(got[1]).all()


def test_one_part_is_itself(backend, rng, dtype):
    q, k, v = qkv(rng, dtype)
    out, lse = sdpa(q, k, v, return_lse=True)
    got = fastattn.merge_attention([out], [lse])
    assert_close(got[0], out.astype(np.float64))
    assert_close(got[1], lse.astype(np.float64))
    assert not np.shares_memory(got[0], out) and not np.shares_memory(got[1], lse)


def test_nan_stays_in_its_row(backend, rng):
    """NaN in one row of a part makes that row NaN and leaves the others."""
    q, k, v = qkv(rng)
    out, lse = sdpa(q, k, v, return_lse=True)
    bad_out, bad_lse = out.copy(), lse.copy()
    bad_out[0, 1, 2], bad_lse[0, 1, 2] = np.nan, np.nan
    got = fastattn.merge_attention([out, bad_out], [lse, bad_lse])
    clean = fastattn.merge_attention([out, out], [lse, lse])
    assert np.isnan(got[0][0, 1, 2]).all()
    rest = ~np.isnan(bad_lse)
    assert_bits_equal(got[0][rest], clean[0][rest])


def test_ranks_and_views(backend, rng):
    """Any rank from (queries, size) on; strided parts; lists and tuples."""
    q, k, v = qkv(rng, lead=(2, 4), keys=8)
    want = expected(q, k, v)
    outs, lses = parts_of(q, k, v, [0, 3, 8])
    got = fastattn.merge_attention(tuple(outs), tuple(lses))
    assert_close(got[0], want.out, slack=want.out_slack)
    one = fastattn.merge_attention([o[0, 0, 0] for o in outs], [x[0, 0, 0] for x in lses])
    assert_close(one[0], got[0][0, 0, 0].astype(np.float64))
    turned = fastattn.merge_attention(
        [np.asfortranarray(o[::-1]) for o in outs], [np.asfortranarray(x[::-1]) for x in lses]
    )
    assert_close(turned[0][::-1], got[0].astype(np.float64))


@pytest.mark.parametrize(
    ("outs", "lses", "error"),
    [
        ([], [], ValueError),
        ([(2, 3)], [], ValueError),
        ([(2, 3)], [(2,), (2,)], ValueError),
        ([(2, 3), (2, 4)], [(2,), (2,)], ValueError),
        ([(2, 3), (3, 3)], [(2,), (3,)], ValueError),
        ([(2, 3)], [(3,)], ValueError),
        ([(2, 3)], [(2, 3)], ValueError),
        ([(2, 3)], [(2, 1)], ValueError),
    ],
)
def test_shapes_that_do_not_fit(backend, outs, lses, error):
    with pytest.raises(error, match="outs|lses"):
        fastattn.merge_attention(
            [np.zeros(s, np.float32) for s in outs], [np.zeros(s, np.float32) for s in lses]
        )


def test_types_that_do_not_fit(backend, rng):
    out, lse = draw(rng, (2, 3)), draw(rng, (2,))
    for outs, lses in (
        ([out, out.astype(np.float64)], [lse, lse]),
        ([out.astype(int)], [lse]),
        ([out], [lse.astype(int)]),
        ([np.ma.array(out)], [lse]),
    ):
        with pytest.raises(TypeError, match="outs|lses"):
            fastattn.merge_attention(outs, lses)
