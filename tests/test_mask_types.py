# SPDX-License-Identifier: MIT
# What a mask may be made of: bool or any float dtype, any array form.
# Used by the suite, on every backend.
# Shapes are in test_mask_shapes.py, rejected types also in test_errors.py.
"""True = may attend; floats are added; integers are refused."""

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal, assert_close, check, draw, expected, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
SHAPES = [(3, 10), (QUERY_BLOCK + 1, KEY_TILE + 3), (1, KEY_CHUNK + 5)]


def test_polarity(backend, dtype):
    """Case 53: True = may attend."""
    q, k = np.zeros((1, 1, 1, 3), dtype), np.zeros((1, 1, 2, 3), dtype)
    v = np.array([5, 9], dtype).reshape(1, 1, 2, 1)
    assert sdpa(q, k, v, np.array([True, False])).item() == 5
    assert sdpa(q, k, v, [False, True]).item() == 9
    assert sdpa(q, k, v, attn_mask=np.array([[True, True]])).item() == 7


@pytest.mark.parametrize("shape", SHAPES)
def test_bool_and_additive_forms_agree(backend, rng, dtype, shape):
    """Case 54: the same pattern as bool, as 0 / -inf and as 0 / a large negative number."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
    pattern = rng.random((queries, keys)) < 0.6
    pattern[:, 0] = True
    got = sdpa(q, k, v, pattern).astype(np.float64)
    for filler in (-np.inf, -1e30):
        added = np.where(pattern, 0, filler).astype(np.float32)
        assert_close(sdpa(q, k, v, added), got)
        assert_close(sdpa(q, k, v, bias=added), got)
    check(q, k, v, pattern, weights=True)


@pytest.mark.parametrize("kind", ["i1", "u1", "i4", "i8", "u8", "c8", "O", "U1"])
def test_other_masks_are_refused(backend, rng, kind):
    """Case 55: an integer mask is neither a bool mask nor a bias."""
    q, k, v = qkv(rng, queries=2, keys=3)
    for fill in (0, 1):
        mask = np.full((2, 3), fill).astype(kind)
        with pytest.raises(TypeError, match="attn_mask"):
            sdpa(q, k, v, mask)
        with pytest.raises(TypeError, match="bias"):
            sdpa(q, k, v, bias=mask)
    with pytest.raises(TypeError, match="bias"):
        sdpa(q, k, v, bias=np.ones((2, 3), bool))


def test_float_zeros_and_ones_are_added(backend, rng):
    """Case 55: a float mask is a bias even if it only holds 0 and 1."""
    q, k, v = qkv(rng, queries=4, keys=9)
    mask = (rng.random((4, 9)) < 0.5).astype(np.float32)
    check(q, k, v, mask)
    assert not np.allclose(sdpa(q, k, v, mask), sdpa(q, k, v, mask.astype(bool)))


def bool_forms(rng, queries, keys):
    """The same kind of mask in memory layouts that a typed view may refuse."""
    big = rng.random((2, 1, 2 * queries, 2 * keys)) < 0.6
    read_only = big[..., :queries, :keys].copy()
    read_only.flags.writeable = False
    return {
        "C": np.ascontiguousarray(big[..., :queries, :keys]),
        "F": np.asfortranarray(big[..., :queries, :keys]),
        "step 2": big[..., ::2, ::2],
        "reversed": big[..., :queries, keys - 1 :: -1],
        "rows reversed": big[..., queries - 1 :: -1, :keys],
        "broadcast": np.broadcast_to(big[:, :, :1, :keys], (2, 3, queries, keys)),
        "read-only": read_only,
        "list": big[..., :queries, :keys].tolist(),
        "transposed": np.ascontiguousarray(big[..., :queries, :keys].swapaxes(2, 3)).swapaxes(2, 3),
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_bool_masks_in_any_form(backend, rng, dtype, shape):
    """Case 57: order, steps, broadcasts, read-only and plain lists."""
    queries, keys = shape
    q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
    for form, mask in bool_forms(rng, queries, keys).items():
        got = sdpa(q, k, v, mask)
        assert_bits_equal(got, sdpa(q, k, v, np.array(mask)), form)
        want = expected(q, k, v, np.array(mask))
        assert_close(got, want.out, slack=want.out_slack, context=form)


def test_bool_bytes_other_than_one(backend, rng):
    """A bool array made from raw bytes may hold 2 or 255 for True."""
    q, k, v = qkv(rng, queries=5, keys=KEY_TILE + 1)
    raw = rng.integers(0, 4, (5, KEY_TILE + 1)).astype(np.uint8) * 85
    assert_bits_equal(sdpa(q, k, v, raw.view(bool)), sdpa(q, k, v, raw != 0))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "bfloat16", ">f4", ">f8", ">f2"])
@pytest.mark.parametrize("term", ["attn_mask", "bias"])
@pytest.mark.parametrize("shape", SHAPES)
def test_float_terms_of_any_precision(backend, rng, dtype, kind, term, shape):
    """Case 115: a float term keeps its own dtype, whatever the query's is."""
    queries, keys = shape
    if kind == "bfloat16":
        kind = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = qkv(rng, dtype, lead=(), heads=2, queries=queries, keys=keys)
    added = draw(rng, (queries, keys)).astype(kind)
    added[:, 1::5] = -np.inf
    check(q, k, v, context=str(kind), **{term: added})


@pytest.mark.parametrize("shape", SHAPES)
def test_usual_fillers_with_half_inputs(backend, rng, shape):
    """Case 26: -1e10 does not fit float16; as float32 it hides, after a cast it is -inf."""
    queries, keys = shape
    q, k, v = qkv(rng, np.float16, queries=queries, keys=keys)
    hidden = rng.random((queries, keys)) < 0.4
    hidden[:, 0] = False
    for filler in (-1e4, -1e8, -1e9, -1e10):
        bias = np.where(hidden, filler, 0).astype(np.float32)
        out, weights = sdpa(q, k, v, bias=bias, return_weights=True)
        assert np.isfinite(out).all() and not weights[..., hidden].any()
        with np.errstate(over="ignore"):
            half = bias.astype(np.float16)
        assert_close(sdpa(q, k, v, half), sdpa(q, k, v, ~hidden).astype(np.float64))


def test_mask_and_bias_together(backend, rng, dtype):
    """Both terms count, a bool mask with a bias and two float terms."""
    q, k, v = qkv(rng, dtype, queries=4, keys=KEY_TILE + 1)
    bias = draw(rng, (3, 1, KEY_TILE + 1))
    check(q, k, v, rng.random((4, KEY_TILE + 1)) < 0.7, bias=bias, weights=True)
    check(q, k, v, draw(rng, (4, 1)).astype(np.float64), bias=bias, weights=True)
    some = np.where(rng.random((4, 1)) < 0.5, -np.inf, 0.0)
    check(q, k, v, some, bias=np.where(bias > 1, -np.inf, bias).astype(np.float16), weights=True)
