# SPDX-License-Identifier: MIT
# The bfloat16 of fastattn's own: two bytes and a name, for tensors of frameworks.
# Used by pytest on every backend, beside that of ml_dtypes.
# Frameworks have tests of their own; users' bfloat16 arrays are everyone's matter.
"""Arrays of BFLOAT16 give what those of ml_dtypes give."""

import numpy as np
import pytest
from check import assert_close, draw, qkv

import fastattn
from fastattn._bfloat16 import BFLOAT16, round_to, widened

ml_dtypes = pytest.importorskip("ml_dtypes")

EVERY = np.arange(1 << 16, dtype=np.uint16)


def test_every_number_is_widened_and_rounded_back():
    wide = widened(EVERY.view(BFLOAT16))
    np.testing.assert_array_equal(wide, EVERY.view(ml_dtypes.bfloat16).astype(np.float32))
    back = np.empty(EVERY.shape, BFLOAT16)
    round_to(back, wide)
    is_number = ~np.isnan(wide)
    np.testing.assert_array_equal(back.view(np.uint16)[is_number], EVERY[is_number])
    assert np.isnan(widened(back)[~is_number]).all()


def test_rounding_is_to_nearest_even(rng):
    bits = np.concatenate([
        rng.integers(0, 1 << 32, 100_000, dtype=np.uint32),
        (EVERY.astype(np.uint32) << 16) + 0x8000,  # ties
        (EVERY.astype(np.uint32) << 16) + 0x7FFF,
    ])  # fmt: skip
    wide = bits.view(np.float32)
    out = np.empty(wide.shape, BFLOAT16)
    round_to(out, wide)
    with np.errstate(all="ignore"):
        wanted = wide.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(widened(out), wanted.astype(np.float32))


def test_repeating_axes_still_repeat():
    array = np.broadcast_to(EVERY[:6].view(BFLOAT16), (1000, 6))
    assert widened(array).strides[0] == 0
    plain = np.ones(3, np.float32)
    assert widened(plain) is plain


@pytest.mark.parametrize("score", ["dot product", "additive"])
def test_calls_give_the_numbers_of_ml_dtypes(backend, rng, score):
    arrays = qkv(rng, ml_dtypes.bfloat16, dim=8)
    options = {"attn_mask": draw(rng, (5, 7), ml_dtypes.bfloat16), "return_lse": True,
               "return_weights": True}  # fmt: skip
    parameters = [draw(rng, s, ml_dtypes.bfloat16) for s in ((8,), (8, 8))]

    def call(view):
        q, k, v = map(view, arrays)
        given = {n: view(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
        if score == "dot product":
            return fastattn.scaled_dot_product_attention(q, k, v, **given)
        vector, weight = map(view, parameters)
        return fastattn.additive_attention(q, k, v, vector, query_weight=weight, **given)

    got, wanted = call(lambda x: x.view(BFLOAT16)), call(lambda x: x)
    assert got[0].dtype == got[2].dtype == BFLOAT16
    for x, y in zip(got, wanted):
        x = widened(x)
        assert_close(x, y.astype(np.float32), dtype="bfloat16" if x is not got[1] else None)
        if backend != "numpy":
            np.testing.assert_array_equal(x, y.astype(np.float32))


def test_other_two_bytes_are_no_number(backend):
    array = np.zeros((1, 2, 3, 4), "V2")
    with pytest.raises(TypeError, match="^query: expected dtype"):
        fastattn.scaled_dot_product_attention(array, array, array)
