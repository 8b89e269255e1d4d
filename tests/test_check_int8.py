# SPDX-License-Identifier: MIT
# Tests of the int8 rule that the tests of caches trust.
# Used by the suite; sums are done by hand.
# It calls no cache of that dtype.
"""Codes and scales by hand, and numbers that have only one nearest code."""

import numpy as np
import pytest
from check import assert_bits_equal, assert_close
from check_int8 import as_dtype, codes, contents, draw_tokens, stored, untied

import fastattn

F = np.float32


def test_codes_by_hand():
    rows = np.array([[127, -0.4, 3.6, 0], [-2.54, 1, 0.011, 2.54], [0, -0.0, 0, 0]], F)
    whole, scales = codes(rows)
    assert whole.tolist() == [[127, 0, 4, 0], [-127, 50, 1, 127], [0, 0, 0, 0]]
    assert scales.dtype == F
    assert_close(scales[:, 0], np.array([1, 0.02, 0]), dtype=F)
    assert_close(stored(rows, np.int8), [[127, 0, 4, 0], [-2.54, 1, 0.02, 2.54], [0] * 4], dtype=F)


def test_a_bad_number_spoils_its_row_alone():
    rows = np.ones((4, 2, 3), F)
    rows[0, 1, 2], rows[2, 0, 0], rows[3, 1, 1] = np.nan, np.inf, -np.inf
    bad = np.isnan(stored(rows, np.int8))
    assert (bad.all(axis=-1) == bad.any(axis=-1)).all()
    assert bad[..., 0].tolist() == [[False, True], [False, False], [True, False], [False, True]]


def test_other_dtypes_are_kept_as_they_are(rng, dtype):
    x = draw_tokens(rng, (3, 5), dtype)
    assert_bits_equal(stored(x, dtype), x.astype(np.float64))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_no_number_lies_between_two_codes(rng, name):
    """And the rows are still what they were, but for steps of half a code."""
    before = (rng.standard_normal((500, 3, 7)) * 3).astype(as_dtype(name))
    after = untied(before)
    whole, scales = codes(after)
    exact = after.astype(np.float64) / scales
    assert (abs(abs(exact - whole) - 0.5) > 5e-3).all() and (abs(whole) <= 127).all()
    moved = abs(after.astype(np.float64) - before.astype(np.float64))
    assert (moved <= 1.02 * scales).all() and (moved == 0).mean() > 0.9
    error = abs(stored(after, np.int8) - after.astype(np.float64))
    assert (
        error <= abs(after).max(axis=-1, keepdims=True).astype(np.float64) / 254 * 1.00001
    ).all()


def test_contents_are_those_of_a_cache(backend, rng):
    """Where nothing is rounded, one reads what was appended."""
    k, v = rng.standard_normal((9, 2, 4)).astype(F), rng.standard_normal((9, 2, 6)).astype(F)
    cache = fastattn.KVCache(1, 2, 4, value_head_size=6)
    cache.append(k.swapaxes(0, 1)[None], v.swapaxes(0, 1)[None])

    def attend(query, **options):
        out, lse = cache.attend(query[None], layout="bshd", **options)
        return out[0], lse[0]

    keys, values = contents(attend, 9, 2, 4)
    assert_close(keys, k.astype(np.float64))
    assert_close(values, v.astype(np.float64))
