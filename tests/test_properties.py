# SPDX-License-Identifier: MIT
# Random calls against the oracle, and laws that hold for any call.
# Used by the suite, on every backend.
# Known hard cases have files of their own; this one looks for those that nobody thought of.
"""Properties over random shapes, strides, masks and options; the seed is that of the run."""

import hypothesis.strategies as st
import numpy as np
import pytest
from cases import EXHAUSTIVE, KEY_CHUNK, KEY_TILE, QUERY_BLOCK, SEED
from check import assert_close, check, expected
from hypothesis import given, seed, settings

import fastattn

sdpa = fastattn.scaled_dot_product_attention
EXAMPLES = 1000 if EXHAUSTIVE else 16
MOST_SCORES = 100_000
LENGTHS = st.one_of(
    st.integers(0, 20), st.sampled_from([QUERY_BLOCK, QUERY_BLOCK + 1, KEY_TILE - 1, KEY_TILE + 1])
)
KEYS = st.one_of(LENGTHS, st.sampled_from([KEY_CHUNK - 1, KEY_CHUNK + 1, 2 * KEY_CHUNK + 3]))


def random_view(draw, array):
    """The same values behind other strides."""
    for axis in range(array.ndim):
        kind = draw(st.sampled_from(["plain", "plain", "reversed", "step", "offset"]))
        if kind == "reversed":
            array = np.flip(np.flip(array, axis).copy(), axis)
        elif kind != "plain":
            shape = list(array.shape)
            shape[axis] = 2 * shape[axis] + 1
            big = np.full(shape, True if array.dtype == bool else np.nan, array.dtype)
            part = slice(1, None, 2) if kind == "step" else slice(1, array.shape[axis] + 1)
            where = (slice(None),) * axis + (part,)
            big[where] = array
            array = big[where]
    if array.ndim >= 2 and draw(st.booleans()):
        array = np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    return array


@st.composite
def calls(draw, dtypes=("float32", "float32", "float32", "float64", "float16")):
    """Query, key, value and a dict of options, all valid."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from(dtypes))
    lead = draw(st.sampled_from([(), (1,), (2,), (2, 3)]))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    heads = kv_heads * group
    queries, keys = draw(LENGTHS), draw(KEYS)
    rows = int(np.prod(lead)) * heads * queries
    if rows * keys > MOST_SCORES:
        queries = max(1, MOST_SCORES // (rows // queries * keys))
    dim, dv = draw(st.integers(1, 35)), draw(st.integers(0, 35))
    operands = []
    for shape in ((heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, dv)):
        own = tuple(1 if n == 1 or draw(st.integers(0, 4)) == 0 else n for n in lead)
        operands.append(random_view(draw, rng.standard_normal(own + shape).astype(dtype)))
    lead = np.broadcast_shapes(*(x.shape[:-3] for x in operands))
    options = {}

    def some(full):
        shape = tuple(n if draw(st.integers(0, 2)) else 1 for n in full)
        return shape[draw(st.integers(0, len(full))) :]

    def float_term():
        term = np.asarray(rng.standard_normal(some((*lead, heads, queries, keys))))
        term = np.where(rng.random(term.shape) < 0.1, -np.inf, term)
        return random_view(draw, term.astype(draw(st.sampled_from(["f4", "f4", "f8", "f2"]))))

    kind = draw(st.sampled_from(["none", "bool", "float"]))
    if kind == "bool":
        mask = np.asarray(rng.random(some((*lead, heads, queries, keys))) < 0.7)
        options["attn_mask"] = random_view(draw, mask)
    elif kind == "float":
        options["attn_mask"] = float_term()
    if draw(st.integers(0, 2)) == 0:
        options["bias"] = float_term()
    options["is_causal"] = draw(st.booleans())
    if draw(st.booleans()):
        options["kv_lengths"] = rng.integers(0, keys + 1, lead)
    options["q_offset"] = draw(
        st.one_of(
            st.just(0), st.just("lower_right"), st.integers(-10, keys + 10),
            st.builds(lambda: rng.integers(-5, keys + 5, lead)),
        )
    )  # fmt: skip
    side = st.one_of(st.sampled_from([None, -1]), st.integers(0, keys + 3))
    options["window"] = draw(st.one_of(st.none(), st.tuples(side, side)))
    options["softcap"] = draw(st.sampled_from([0.0, 0.0, 0.7, 20.0]))
    options["scale"] = draw(st.sampled_from([None, None, 1.0, -0.5, 0.1]))
    if draw(st.integers(0, 3)) == 0:
        shape = draw(st.sampled_from([(heads,), (*lead, heads)]))
        options["alibi_slopes"] = (rng.standard_normal(shape) * 0.2).astype("f4")
    if draw(st.integers(0, 3)) == 0:
        sinks = rng.standard_normal(heads) * 2
        options["sinks"] = np.where(rng.random(heads) < 0.2, -np.inf, sinks).astype("f4")
    if draw(st.booleans()):
        options["layout"] = "bshd"
        operands = [x.swapaxes(-2, -3) for x in operands]
    return operands, options


@seed(SEED)
@settings(max_examples=2 * EXAMPLES)
@given(call=calls(), weights=st.booleans())
def test_random_calls(backend, call, weights):
    """Any combination of options gives what the formula gives."""
    operands, options = call
    check(*operands, weights=weights, **options)


def axis_of_keys(options):
    return -3 if options.get("layout") == "bshd" else -2


@seed(SEED)
@settings(max_examples=EXAMPLES)
@given(call=calls(dtypes=("float32", "float64")), shift=st.sampled_from([-50.0, 3.0, 80.0]))
def test_shifting_scores(backend, call, shift):
    """A constant added to every score moves lse by it and leaves out alone."""
    operands, options = call
    options = {n: x for n, x in options.items() if n not in ("sinks", "bias")}
    want = expected(*operands, **options)
    got, lse = sdpa(*operands, **options, bias=np.full((1, 1), shift, "f4"), return_lse=True)
    size = 2.0**-21 * (abs(shift) + 1)
    assert_close(got, want.out, slack=want.out_slack + size, size=want.size)
    assert_close(lse, want.lse + shift, slack=want.lse_slack + size)


@seed(SEED)
@settings(max_examples=EXAMPLES)
@given(call=calls(dtypes=("float32", "float64")), order=st.randoms(use_true_random=False))
def test_reordering_keys(backend, call, order):
    """Keys, values and masks permuted together give the same result."""
    (q, k, v), options = call
    positional = ("is_causal", "kv_lengths", "window", "q_offset", "alibi_slopes")
    options = {n: x for n, x in options.items() if n not in positional}
    axis = axis_of_keys(options)
    count = k.shape[axis]
    permutation = list(range(count))
    order.shuffle(permutation)
    permutation = np.array(permutation, int)
    moved = dict(options)
    for name in ("attn_mask", "bias"):
        if name in moved and moved[name].ndim and moved[name].shape[-1] == count:
            moved[name] = np.take(moved[name], permutation, axis=-1)
    got = sdpa(q, np.take(k, permutation, axis), np.take(v, permutation, axis), **moved)
    want = expected(q, k, v, **options)
    assert_close(got, want.out, slack=want.out_slack, size=want.size)


@seed(SEED)
@settings(max_examples=EXAMPLES)
@given(call=calls(dtypes=("float32", "float64")), cut=st.floats(0, 1))
def test_merging_splits(backend, call, cut):
    """Two parts of the keys merge into the whole."""
    (q, k, v), options = call
    skipped = ("sinks", "layout", "attn_mask", "bias", "kv_lengths", "q_offset")
    options = {n: x for n, x in options.items() if n not in skipped}
    if call[1].get("layout") == "bshd":
        q, k, v = (x.swapaxes(-2, -3) for x in (q, k, v))
    at = int(cut * k.shape[-2])
    first = sdpa(q, k[..., :at, :], v[..., :at, :], **options, return_lse=True)
    second = sdpa(q, k[..., at:, :], v[..., at:, :], **options, q_offset=-at, return_lse=True)
    out, lse = fastattn.merge_attention(*zip(first, second, strict=True))
    want = expected(q, k, v, **options)
    assert_close(out, want.out, slack=want.out_slack, size=2 * want.size)
    assert_close(lse, want.lse, slack=want.lse_slack + 1e-6)


@seed(SEED)
@settings(max_examples=EXAMPLES)
@given(call=calls(dtypes=("float32", "float64")))
def test_values_are_averaged(backend, call):
    """Without sinks every output lies between the smallest and the largest value."""
    (q, k, v), options = call
    options.pop("sinks", None)
    out, lse = sdpa(q, k, v, **options, return_lse=True)
    if not v.size or not out.size:
        return
    if options.get("layout") == "bshd":
        out = out.swapaxes(-2, -3)
    empty = np.isneginf(lse)
    assert (out[empty] == 0).all()
    slack = 1e-5 * abs(v).max()
    assert (out[~empty] <= v.max() + slack).all() and (out[~empty] >= v.min() - slack).all()


@pytest.mark.slow
@seed(SEED)
@settings(max_examples=EXAMPLES // 4)
@given(call=calls(dtypes=("float32",)), n_threads=st.integers(1, 9))
def test_threads_do_not_matter(backend, call, n_threads):
    """Case 100: bits are those of one thread."""
    operands, options = call
    with fastattn.threads(1):
        wanted = sdpa(*operands, **options)
    with fastattn.threads(n_threads):
        assert sdpa(*operands, **options).tobytes() == wanted.tobytes()
