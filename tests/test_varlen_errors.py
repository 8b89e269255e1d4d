# SPDX-License-Identifier: MIT
# Wrong calls of varlen_attention: the exception, the argument named, an untouched out.
# Used by the suite, on every backend.
# What right arguments may look like is in test_varlen_arrays.py.
"""A wrong call raises before anything is computed or written, and names the argument first."""

import re

import numpy as np
import pytest
from test_errors import EITHER, describe, self_overlapping, zeros

import fastattn

varlen = fastattn.varlen_attention
F = np.float32


def arguments():
    """A correct call: 2 sequences, 6 and 9 tokens of which 5 and 8 are theirs, 4 on 2 heads."""
    return {
        "query": np.ones((6, 4, 5), F),
        "key": np.ones((9, 2, 5), F),
        "value": np.ones((9, 2, 6), F),
        "cu_seqlens_q": [0, 2, 5],
        "cu_seqlens_k": np.array([0, 3, 8]),
        "out": np.full((6, 4, 6), 7.5, F),
    }


# (argument, wrong value, exception, names of which one begins the message)
ARRAYS = [
    *(("query", zeros(*s), ValueError) for s in [(), (5,), (6, 5), (1, 6, 4, 5)]),
    *(("query", zeros(*s), ValueError, "query|key") for s in [(6, 3, 5), (6, 1, 5), (6, 4, 7)]),
    *(("key", zeros(*s), ValueError) for s in [(9, 5), (1, 9, 2, 5), (9, 2, 1), (9, 2, 7)]),
    *(("key", zeros(*s), ValueError, "key|value") for s in [(8, 2, 5), (1, 2, 5), (9, 1, 5)]),
    ("key", zeros(9, 0, 5), ValueError, "key|value"),
    *(("value", zeros(*s), ValueError) for s in [(9, 6), (1, 9, 2, 6), (6,)]),
    *(("value", zeros(*s), ValueError, "key|value") for s in [(8, 2, 6), (9, 1, 6), (9, 4, 6)]),
    ("value", zeros(1, 2, 6), ValueError, "key|value"),
    *(("query", zeros(6, 4, 5, dtype=t), TypeError) for t in (int, bool, complex, object)),
    ("key", zeros(9, 2, 5, dtype=np.float64), TypeError, "query|key"),
    ("value", zeros(9, 2, 6, dtype=np.float16), TypeError, "query|value"),
    ("key", zeros(9, 2, 5, dtype=np.int8), TypeError),
    ("value", np.ma.zeros((9, 2, 6), F), TypeError),
    ("query", np.ma.zeros((6, 4, 5), F), TypeError),
    *((n, wrong, EITHER) for n in ("query", "key", "value") for wrong in (None, "text")),
]
SEQLENS = [
    *(np.array(x) for x in ([1, 2, 5], [-1, 2, 5], [0, 3, 2], [0, -1, 5], [0, 10, 5], [0, 2, 10])),
    *([0, 4, 3], [2, 3, 5], [0, 2, 1 << 40], [0, 1 << 62, 5], [0, 0, -1], [0, 1 << 32, 1 << 32]),
    *(np.array([0, 5, 2], t) for t in ("u1", "u2", "u4", "u8", ">u4", "i1")),
    np.array([0, 1 << 63, 5], "u8"),
    np.array([0, 2, (1 << 64) - 1], "u8"),
    np.array([0, (1 << 32) + 2, 5], "u8"),
    np.array([0, 2, (1 << 32) + 5]),
    np.array([0, -(1 << 63), 5]),
    np.array([256, 258, 261]),
    *(np.zeros(s, int) for s in [0, (1, 3), (3, 1), (2, 3)]),
    [[0, 2, 5]],
]
FLOATS = [np.array([0.0, 2.0, 5.0]), [0, 2.0, 5], zeros(3), np.array([False, True, True])]
FLOATS += [zeros(3, dtype=t) for t in (bool, complex, object, "U1")] + [np.ma.zeros(3, int)]
NONE = [None, 5, np.int64(0), np.array(0), "0", [], [[0], [2, 5]], [0, 2, 1 << 70], {0: 0}]
PER_SEQUENCE = [
    *(("q_offset", x, TypeError) for x in (1.0, True, zeros(2), np.ones(2, bool), [0, 1.5])),
    *(("q_offset", np.ones(s, int), ValueError) for s in (3, 5, 0, (2, 2), (2, 4))),
    *(("q_offset", x, EITHER) for x in (None, "upper", "LOWER_RIGHT")),
    *(("alibi_slopes", zeros(*s), ValueError) for s in [(), (2,), (3,), (3, 4), (4, 2), (2, 2, 4)]),
    *(("alibi_slopes", np.full((2, 4), x), ValueError) for x in (np.nan, np.inf)),
    *(("alibi_slopes", zeros(4, dtype=t), TypeError) for t in (int, bool, complex)),
    *(("sinks", zeros(*s), ValueError) for s in [(), (2,), (3,), (2, 4), (6,)]),
    *(("sinks", np.full(4, x), ValueError) for x in (np.nan, np.inf)),
    ("sinks", zeros(4, dtype=int), TypeError),
]
OPTIONS = [
    *(("window", x, ValueError) for x in (-2, (0, -2), (1, 2, 3))),
    ("window", 1.5, TypeError),
    *(("softcap", x, ValueError) for x in (-1.0, np.nan, np.inf)),
    *(("scale", x, ValueError) for x in (np.nan, -np.inf)),
    *((name, "1", TypeError) for name in ("softcap", "scale", "is_causal", "return_lse")),
    *(
        ("out", zeros(*s), ValueError)
        for s in [(5, 4, 6), (6, 4, 5), (4, 6, 6), (6, 24), (2, 4, 6)]
    ),
    ("out", zeros(6, 4, 6, dtype=np.float64), TypeError),
    *(("out", x, TypeError) for x in (zeros(6, 4, 6).tolist(), 3.0)),
]
ALL = [*ARRAYS, *PER_SEQUENCE, *OPTIONS]
for name in ("cu_seqlens_q", "cu_seqlens_k"):
    for wrongs, error in ((SEQLENS, ValueError), (FLOATS, TypeError), (NONE, EITHER)):
        ALL += [(name, wrong, error) for wrong in wrongs]


@pytest.mark.parametrize("n", range(len(ALL)), ids=lambda n: f"{n}-{describe(ALL[n])}"[:40])
def test_wrong_argument(backend, capfd, n):
    """Nothing is printed, nothing written, and a right call still works."""
    name, wrong, error, *named = ALL[n]
    given = arguments()
    out = given["out"]
    with pytest.raises(error, match=f"^({named[0] if named else name})") as caught:
        varlen(**given | {name: wrong})
    assert caught.type in (TypeError, ValueError) and (out == 7.5).all()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("n_q", [0, 1, 2, 4])
def test_different_numbers_of_sequences(backend, n_q):
    """The two must be equally long; it is the second that is wrong, and both numbers are told."""
    given = arguments() | {"cu_seqlens_q": [0, 1, 2, 3, 5][: n_q + 1], "cu_seqlens_k": [0, 1, 4, 8]}
    with pytest.raises(ValueError, match="^cu_seqlens_k") as caught:
        varlen(**given)
    numbers = set(map(int, re.findall(r"\d+", str(caught.value))))
    assert {n_q, 3} <= numbers or {n_q + 1, 4} <= numbers, caught.value
    assert (given["out"] == 7.5).all()


@pytest.mark.parametrize("name", ["cu_seqlens_q", "cu_seqlens_k"])
def test_message_tells_what_was_given(backend, name):
    """The number of tokens and the last boundary; the first boundary."""
    tokens = {"cu_seqlens_q": 6, "cu_seqlens_k": 9}[name]
    for wrong, numbers in (([0, 2, 77], (tokens, 77)), ([33, 40, 41], (0, 33))):
        with pytest.raises(ValueError, match=f"^{name}") as caught:
            varlen(**arguments() | {name: wrong})
        assert all(re.search(rf"\b{n}\b", str(caught.value)) for n in numbers), caught.value


def test_head_size_of_zero(backend):
    """Without a scale there is none for it."""
    given = arguments() | {"query": zeros(6, 4, 0), "key": zeros(9, 2, 0)}
    with pytest.raises(ValueError, match="^(query|key|scale)"):
        varlen(**given)
    assert (given["out"] == 7.5).all()


def test_out_that_cannot_take_the_result(backend):
    """Cases 109, 118: a read-only out, and one in which elements share memory."""
    frozen = np.full((6, 4, 6), 7.5, F)
    frozen.flags.writeable = False
    one = np.full((1, 4, 6), 7.5, F)
    repeated = np.lib.stride_tricks.as_strided(one, (6, 4, 6), (0, *one.strides[1:]))
    nested = self_overlapping((2, 4, 3, 6))[0].swapaxes(1, 2)[:, :, :3]
    for wrong in (frozen, repeated):
        with pytest.raises(ValueError, match="^out"):
            varlen(**arguments() | {"out": wrong})
        assert (wrong == 7.5).all()
    given = arguments() | {"query": np.ones((4, 6, 5), F), "cu_seqlens_q": [0, 2, 4]}
    with pytest.raises(ValueError, match="^out"):
        varlen(**given | {"value": np.ones((9, 2, 3), F), "out": nested})
    assert (nested == 7.5).all()


@pytest.mark.parametrize("name", ["attn_mask", "bias", "kv_lengths", "layout", "return_weights"])
def test_options_that_it_does_not_have(backend, name):
    with pytest.raises(TypeError, match=name):
        varlen(**arguments() | {name: None})


def test_options_are_keyword_only(backend):
    given = list(arguments().values())
    with pytest.raises(TypeError):
        varlen(*given[:5], False)
    for n in range(5):
        with pytest.raises(TypeError):
            varlen(*given[:n])


def test_call_works_after_errors(backend):
    """A failed call leaves nothing behind that would change the next one."""
    wanted = varlen(**arguments()).copy()
    for name, wrong, error, *_ in ALL:
        with pytest.raises(error):
            varlen(**arguments() | {name: wrong})
    assert varlen(**arguments()).tobytes() == wanted.tobytes()
    assert (wanted[:5] == 1).all() and not wanted[5:].any()
