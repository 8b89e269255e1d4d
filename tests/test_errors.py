# SPDX-License-Identifier: MIT
# Wrong arguments: the exception, the argument named in the message, and an untouched out.
# Used by the suite, on every backend.
# Leaks on error paths are in test_memory.py, wrong masks also in test_mask_shapes.py.
"""A wrong call raises ValueError or TypeError before anything is computed or written."""

import re

import numpy as np
import pytest
from check import draw, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
EITHER = (TypeError, ValueError)
F = np.float32


def zeros(*shape, dtype=F):
    return np.zeros(shape, dtype)


# A correct call of batch 2, 4 query heads on 2 key heads, 3 queries, 5 keys, sizes 8 and 6, with
# one argument replaced: (argument, wrong value, exception, names of which one is in the message).
ARRAYS = [
    ("query", zeros(8), ValueError),
    ("query", zeros(), ValueError),
    ("query", F(1.0), EITHER),
    ("query", None, EITHER),
    ("query", "text", EITHER),
    ("query", zeros(3, 4, 3, 8), ValueError, "query|key"),
    ("query", zeros(2, 3, 3, 8), ValueError, "query|key"),
    ("query", zeros(2, 1, 3, 8), ValueError, "query|key"),
    ("query", zeros(2, 4, 3, 7), ValueError, "query|key"),
    ("key", zeros(8), ValueError),
    ("key", None, EITHER),
    ("key", zeros(2, 2, 5, 7), ValueError),
    ("key", zeros(2, 2, 5, 1), ValueError),
    ("key", zeros(2, 2, 6, 8), ValueError, "key|value"),
    ("key", zeros(2, 2, 4, 8), ValueError, "key|value"),
    ("key", zeros(3, 2, 5, 8), ValueError),
    ("key", zeros(2, 1, 5, 8), ValueError, "key|value"),
    ("key", zeros(2, 0, 5, 8), ValueError, "key|value"),
    ("key", zeros(5, 8), ValueError),
    ("key", zeros(2, 5, 8), ValueError),
    ("query", zeros(4, 3, 8), ValueError, "query|key"),
    ("value", zeros(1, 2, 2, 5, 6), ValueError),
    ("value", zeros(6), ValueError),
    ("value", None, EITHER),
    ("value", zeros(2, 2, 6, 6), ValueError),
    ("value", zeros(2, 2, 1, 6), ValueError),
    ("value", zeros(2, 2, 0, 6), ValueError),
    ("value", zeros(3, 2, 5, 6), ValueError),
    ("value", zeros(2, 4, 5, 6), ValueError, "key|value"),
    ("value", zeros(5, 6), ValueError),
]
SCALARS = [
    ("scale", float("nan"), ValueError),
    ("scale", float("inf"), ValueError),
    ("scale", -np.inf, ValueError),
    ("scale", F("nan"), ValueError),
    ("scale", "1.0", TypeError),
    ("scale", 1j, TypeError),
    ("scale", [1.0, 2.0], EITHER),
    ("scale", zeros(2), EITHER),
    ("softcap", -1.0, ValueError),
    ("softcap", -1e-30, ValueError),
    ("softcap", float("nan"), ValueError),
    ("softcap", float("inf"), ValueError),
    ("softcap", "30", TypeError),
    ("softcap", 2j, TypeError),
    ("softcap", zeros(3), EITHER),
    ("window", -2, ValueError),
    ("window", (-2, 0), ValueError),
    ("window", (0, -5), ValueError),
    ("window", (1,), EITHER),
    ("window", (1, 2, 3), EITHER),
    ("window", 1.5, TypeError),
    ("window", (1.0, 2), TypeError),
    ("window", ("1", 2), TypeError),
    ("window", "full", EITHER),
    ("layout", "bdhs", ValueError),
    ("layout", "", ValueError),
    ("layout", None, EITHER),
    ("layout", 4, EITHER),
    ("is_causal", "yes", EITHER),
    ("is_causal", np.ones(2, bool), EITHER),
]
PER_ENTRY = [
    ("q_offset", 1.0, TypeError),
    ("q_offset", True, TypeError),
    ("q_offset", None, EITHER),
    ("q_offset", "upper", EITHER),
    ("q_offset", "LOWER_RIGHT", EITHER),
    ("q_offset", zeros(2), TypeError),
    ("q_offset", np.ones(2, bool), TypeError),
    ("q_offset", np.ones(3, int), ValueError),
    ("q_offset", np.ones((2, 2), int), ValueError),
    ("q_offset", np.ones(0, int), ValueError),
    ("q_offset", [0, 1.5], TypeError),
    ("q_offset", np.ones(2, object), TypeError),
    ("kv_lengths", -1, ValueError),
    ("kv_lengths", 6, ValueError),
    ("kv_lengths", [5, 6], ValueError),
    ("kv_lengths", [-1, 5], ValueError),
    ("kv_lengths", [5, 1 << 40], ValueError),
    ("kv_lengths", np.array([5, 2**64 - 1], np.uint64), ValueError),
    ("kv_lengths", np.array([5, 2**63], np.uint64), ValueError),
    ("kv_lengths", np.array([-128, 5], np.int8), ValueError),
    ("kv_lengths", [5, 5, 5], ValueError),
    ("kv_lengths", np.ones((2, 2), int), ValueError),
    ("kv_lengths", np.ones(0, int), ValueError),
    ("kv_lengths", 3.0, TypeError),
    ("kv_lengths", True, TypeError),
    ("kv_lengths", zeros(2), TypeError),
    ("kv_lengths", np.ones(2, bool), TypeError),
    ("kv_lengths", ["1", "2"], TypeError),
]
PER_HEAD = [
    ("alibi_slopes", zeros(3), ValueError),
    ("alibi_slopes", zeros(1), ValueError),
    ("alibi_slopes", zeros(), ValueError),
    ("alibi_slopes", zeros(3, 4), ValueError),
    ("alibi_slopes", zeros(4, 2), ValueError),
    ("alibi_slopes", zeros(2, 2, 4), ValueError),
    ("alibi_slopes", zeros(0), ValueError),
    ("alibi_slopes", np.array([0, 1, np.nan, 0], F), ValueError),
    ("alibi_slopes", np.array([0, np.inf, 1, 0], F), ValueError),
    ("alibi_slopes", np.full((2, 4), -np.inf), ValueError),
    ("alibi_slopes", zeros(4, dtype=int), TypeError),
    ("alibi_slopes", zeros(4, dtype=complex), TypeError),
    ("alibi_slopes", zeros(4, dtype=bool), TypeError),
    ("alibi_slopes", "abcd", EITHER),
    ("sinks", zeros(3), ValueError),
    ("sinks", zeros(1), ValueError),
    ("sinks", zeros(2, 4), ValueError),
    ("sinks", zeros(), ValueError),
    ("sinks", zeros(0), ValueError),
    ("sinks", np.array([0, np.nan, 0, 0], F), ValueError),
    ("sinks", np.array([0, np.inf, 0, 0], F), ValueError),
    ("sinks", zeros(4, dtype=int), TypeError),
    ("sinks", zeros(4, dtype=complex), TypeError),
    ("sinks", zeros(4, dtype=object), TypeError),
]
MASKS = [
    (name, wrong, error)
    for name in ("attn_mask", "bias")
    for wrong, error in (
        (zeros(3, 4), ValueError),
        (zeros(2, 5), ValueError),
        (zeros(5, 3), ValueError),
        (zeros(2, 3, 5), ValueError),
        (zeros(4, 4, 3, 5), ValueError),
        (zeros(1, 2, 4, 3, 5), ValueError),
        (zeros(3, 0), ValueError),
        (zeros(3, 5, dtype=int), TypeError),
        (zeros(3, 5, dtype=np.uint8), TypeError),
        (zeros(3, 5, dtype=complex), TypeError),
        (zeros(3, 5, dtype=object), TypeError),
        (np.ma.zeros((3, 5), F), TypeError),
        ("causal", TypeError),
    )
]
ALL = [
    *ARRAYS,
    *SCALARS,
    *PER_ENTRY,
    *PER_HEAD,
    *MASKS,
    ("bias", zeros(3, 5, dtype=bool), TypeError),
]


def describe(case):
    name, wrong = case[:2]
    if isinstance(wrong, np.ndarray):
        return f"{name}-{wrong.dtype}{list(wrong.shape)}".replace(" ", "")
    return f"{name}-{wrong!r}".split(" at 0x")[0]  # ids must not change from run to run


@pytest.mark.parametrize("case", ALL, ids=describe)
@pytest.mark.parametrize("others", [False, True], ids=["alone", "with others"])
def test_wrong_argument(backend, rng, capfd, case, others):
    """Cases 63, 77, 86, 89: the message names the argument, out keeps its contents."""
    name, wrong, error, *named = case
    given = dict(
        zip(("query", "key", "value"), qkv(rng, heads=4, kv_heads=2, queries=3, keys=5, dim=8))
    )
    if others:
        given |= {"is_causal": True, "return_lse": True, "return_weights": True, "softcap": 2.0}
        given |= {"kv_lengths": [4, 0], "bias": zeros(3, 5), "sinks": zeros(4)}
    out = np.full((2, 4, 3, 6), 7.5, F)
    with pytest.raises(error, match=named[0] if named else name) as caught:
        sdpa(**(given | {name: wrong}), out=out)
    assert (out == 7.5).all()
    assert caught.type in (TypeError, ValueError)
    assert capfd.readouterr() == ("", "")


def self_overlapping(shape):
    """An out whose rows share memory without a stride of zero."""
    base = np.full(200, 7.5, F)
    return np.lib.stride_tricks.as_strided(base, shape, (240, 60, 12, 4))


OUTS = [
    (zeros(2, 4, 3, 5), ValueError),
    (zeros(2, 4, 3, 8), ValueError),
    (zeros(1, 4, 3, 6), ValueError),
    (zeros(4, 3, 6), ValueError),
    (zeros(2, 3, 4, 6), ValueError),
    (zeros(1, 2, 4, 3, 6), ValueError),
    (zeros(2, 4, 3, 6, dtype=np.float64), TypeError),
    (zeros(2, 4, 3, 6, dtype=np.float16), TypeError),
    (zeros(2, 4, 3, 6, dtype=np.int32), TypeError),
    (np.zeros((2, 4, 3, 6), F).tolist(), TypeError),
    (memoryview(zeros(2, 4, 3, 6)), TypeError),
    (3.0, TypeError),
    ("out", TypeError),
]


@pytest.mark.parametrize("case", OUTS, ids=lambda c: describe(("out", *c)))
def test_wrong_out(backend, rng, case):
    """Case 109: shape and dtype of out, and things that are no array."""
    wrong, error = case
    q, k, v = qkv(rng, heads=4, kv_heads=2, queries=3, keys=5, dim=8)
    with pytest.raises(error, match="out"):
        sdpa(q, k, v, out=wrong)
    if isinstance(wrong, np.ndarray):
        assert not wrong.any()


def test_out_that_cannot_take_the_result(backend, rng):
    """Cases 109, 118: a read-only out, and one in which elements share memory."""
    q, k, v = qkv(rng, heads=4, kv_heads=2, queries=3, keys=5, dim=8)
    frozen = np.full((2, 4, 3, 6), 7.5, F)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out"):
        sdpa(q, k, v, out=frozen)
    assert (frozen == 7.5).all() and not frozen.flags.writeable
    one = np.full((1, 4, 3, 6), 7.5, F)
    zero_stride = np.lib.stride_tricks.as_strided(one, (2, 4, 3, 6), (0, *one.strides[1:]))
    for wrong in (zero_stride, self_overlapping((2, 4, 3, 6))):
        with pytest.raises(ValueError, match="out"):
            sdpa(q, k, v, out=wrong)
        assert (wrong == 7.5).all()


def test_message_tells_expected_and_given(backend):
    """Both numbers are in the message."""
    for key, numbers in ((zeros(2, 2, 5, 80), ("64", "80")), (zeros(2, 3, 5, 64), ("3", "4"))):
        with pytest.raises(ValueError, match="key") as caught:
            sdpa(zeros(2, 4, 3, 64), key, zeros(*key.shape[:3], 6))
        assert all(re.search(rf"\b{n}\b", str(caught.value)) for n in numbers), caught.value


def test_options_are_keyword_only(backend, rng):
    q, k, v = qkv(rng)
    with pytest.raises(TypeError):
        sdpa(q, k, v, None, draw(rng, (5, 7)))
    with pytest.raises(TypeError):
        sdpa(q, k, v, dropout_p=0.0)


def test_call_works_after_errors(backend, rng):
    """A failed call leaves nothing behind that would change the next one."""
    q, k, v = qkv(rng, heads=4, kv_heads=2, queries=3, keys=5, dim=8)
    wanted = sdpa(q, k, v)
    for name, wrong, error, *_ in ALL:
        with pytest.raises(error):
            sdpa(**({"query": q, "key": k, "value": v} | {name: wrong}))
    assert sdpa(q, k, v).tobytes() == wanted.tobytes()
