# SPDX-License-Identifier: MIT
# Random calls of additive attention against the oracle, and laws that hold for any of them.
# Used by the suite, on every backend.
# Known hard cases have files of their own; this one looks for those that nobody thought of.
"""Properties over random shapes, strides, parameters and options; the seed is that of the run."""

import hypothesis.strategies as st
import numpy as np
from cases import EXHAUSTIVE, SEED
from check import assert_close
from check_additive import check_additive, expected_additive
from hypothesis import given, seed, settings
from test_properties import axis_of_keys, calls, random_view

import fastattn

additive = fastattn.additive_attention
EXAMPLES = 500 if EXHAUSTIVE else 12
FLOATS = ("float32", "float32", "float32", "float64", "float16")


@st.composite
def additive_calls(draw, dtypes=FLOATS):
    """Arguments by name, all valid."""
    (query, key, value), options = draw(calls(dtypes=dtypes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    options = {n: x for n, x in options.items() if n not in ("scale", "softcap", "alibi_slopes")}
    heads = query.shape[-2 if options.get("layout") == "bshd" else -3]
    dim = query.shape[-1]
    hidden = dim
    if draw(st.booleans()):  # both or none, so that the hidden size is free
        hidden = draw(st.integers(0, 40))
        for name in ("query_weight", "key_weight"):
            weight = rng.standard_normal((dim, hidden)) / np.sqrt(dim)
            options[name] = random_view(draw, weight.astype(query.dtype))
    if draw(st.booleans()):
        options["hidden_bias"] = rng.standard_normal(hidden).astype("f4")
    size = 10.0 ** draw(st.integers(-3, 2))
    shape = draw(st.sampled_from([(hidden,), (heads, hidden)]))
    vector = random_view(draw, (size * rng.standard_normal(shape) / np.sqrt(max(1, hidden))))
    arrays = {"query": query, "key": key, "value": value, "attention_v": vector.astype("f4")}
    return arrays | options


@seed(SEED)
@settings(max_examples=2 * EXAMPLES)
@given(call=additive_calls(), prepares=st.booleans())
def test_random_calls(backend, call, prepares):
    """Any combination gives what the formula gives, with prepared keys as well."""
    keys = None
    if prepares:
        names = ("key_weight", "hidden_bias", "layout")
        taken = {n: call[n] for n in names if n in call}
        keys = fastattn.prepare_additive_keys(call["key"], **taken)
    check_additive(**call, keys=keys)


@seed(SEED)
@settings(max_examples=EXAMPLES)
@given(call=additive_calls(dtypes=("float32", "float64")))
def test_odd(backend, call):
    """With query, key and bias negated the score changes its sign: so does negating the vector."""
    call.pop("sinks", None)
    turned = call | {n: -call[n] for n in ("query", "key", "hidden_bias") if n in call}
    want = expected_additive(**call)
    got = additive(**turned | {"attention_v": -call["attention_v"]})
    assert_close(got, want.out, slack=want.out_slack, size=want.size)


@seed(SEED)
@settings(max_examples=EXAMPLES)
@given(call=additive_calls(dtypes=("float32", "float64")), order=st.randoms(use_true_random=False))
def test_reordering_keys(backend, call, order):
    """Keys, values and masks permuted together give the same result."""
    positional = ("is_causal", "kv_lengths", "window", "q_offset")
    call = {n: x for n, x in call.items() if n not in positional}
    axis = axis_of_keys(call)
    count = call["key"].shape[axis]
    permutation = list(range(count))
    order.shuffle(permutation)
    permutation = np.array(permutation, int)
    moved = call | {n: np.take(call[n], permutation, axis) for n in ("key", "value")}
    for name in ("attn_mask", "bias"):
        if name in moved and moved[name].ndim and moved[name].shape[-1] == count:
            moved[name] = np.take(moved[name], permutation, axis=-1)
    want = expected_additive(**call)
    assert_close(additive(**moved), want.out, slack=want.out_slack, size=want.size)


@seed(SEED)
@settings(max_examples=EXAMPLES)
@given(call=additive_calls(dtypes=("float32", "float64")), cut=st.floats(0, 1))
def test_merging_splits(backend, call, cut):
    """Two parts of the keys merge into the whole."""
    skipped = ("sinks", "layout", "attn_mask", "bias", "kv_lengths", "q_offset")
    plain = {n: x for n, x in call.items() if n not in skipped}
    if call.get("layout") == "bshd":
        plain |= {n: call[n].swapaxes(-2, -3) for n in ("query", "key", "value")}
    at = int(cut * plain["key"].shape[-2])
    parts = []
    for part, offset in ((slice(None, at), 0), (slice(at, None), -at)):
        some = plain | {n: plain[n][..., part, :] for n in ("key", "value")}
        parts.append(additive(**some, q_offset=offset, return_lse=True))
    out, lse = fastattn.merge_attention(*zip(*parts))
    want = expected_additive(**plain)
    assert_close(out, want.out, slack=want.out_slack, size=2 * want.size)
    assert_close(lse, want.lse, slack=want.lse_slack + 1e-6)
