# SPDX-License-Identifier: MIT
# Wrong arguments of additive attention.
# Used by the suite, on every backend.
# Prepared keys and their mistakes are in test_additive_keys.py.
"""A wrong call raises before anything is computed; the message begins with the argument."""

import re

import numpy as np
import pytest
from check_additive import PROJECTED, case
from test_errors import ARRAYS, MASKS, OUTS, PER_ENTRY, PER_HEAD, SCALARS, describe

import fastattn

additive = fastattn.additive_attention
F = np.float32


def zeros(*shape, dtype=F):
    return np.zeros(shape, dtype)


PARAMETERS = [
    ("attention_v", zeros(10), ValueError, "query_weight"),
    ("attention_v", zeros(1), ValueError, "query_weight"),
    ("attention_v", zeros(), ValueError),
    ("attention_v", zeros(2, 11), ValueError),
    ("attention_v", zeros(1, 11), ValueError),
    ("attention_v", zeros(2, 4, 11), ValueError),
    ("attention_v", zeros(11, dtype=int), TypeError),
    ("attention_v", zeros(11, dtype=bool), TypeError),
    ("attention_v", zeros(11, dtype=complex), TypeError),
    ("attention_v", np.ma.zeros(11), TypeError),
    ("attention_v", "v", TypeError),
    ("query_weight", zeros(11, 4), ValueError),
    ("query_weight", zeros(4, 10), ValueError),
    ("query_weight", zeros(8, 10), ValueError),
    ("query_weight", zeros(8), ValueError),
    ("query_weight", zeros(4, 8, 11), ValueError),
    ("query_weight", zeros(8, 11, dtype=int), TypeError),
    ("query_weight", np.ma.zeros((8, 11)), TypeError),
    ("query_weight", None, ValueError, "query"),
    ("key_weight", zeros(11, 9), ValueError),
    ("key_weight", zeros(9, 12), ValueError),
    ("key_weight", zeros(9, 0), ValueError),
    ("key_weight", zeros(9, 11, dtype=object), TypeError),
    ("key_weight", None, ValueError, "key"),
    ("hidden_bias", zeros(12), ValueError),
    ("hidden_bias", zeros(1), ValueError),
    ("hidden_bias", zeros(), ValueError),
    ("hidden_bias", zeros(1, 11), ValueError),
    ("hidden_bias", zeros(11, dtype=int), TypeError),
    ("query", zeros(2, 4, 3, 9), ValueError, "query_weight"),
    ("query", zeros(2, 4, 3, 0), ValueError, "query_weight"),
    ("key", zeros(2, 2, 5, 8), ValueError, "key_weight"),
    ("query", zeros(2, 4, 3, 8, dtype=np.float64), TypeError, "query, key, value"),
    ("query", zeros(2, 4, 3, 8, dtype=int), TypeError),
    ("value", zeros(2, 2, 5, 6, dtype=complex), TypeError),
    ("key", zeros(2, 2, 5, 9, dtype=object), TypeError),
]
# what the dot product refuses, sizes of heads apart
SHARED = [
    case
    for case in [*ARRAYS, *SCALARS, *PER_ENTRY, *PER_HEAD, *MASKS]
    if case[0] not in ("scale", "softcap", "alibi_slopes", "query", "key")
]
SHARED += [c for c in ARRAYS if c[0] == "query" and not isinstance(c[1], np.ndarray)]
SHARED += [c for c in ARRAYS if isinstance(c[1], np.ndarray) and c[0] == "query" and c[1].ndim < 4]


def correct(rng):
    return case(rng, heads=4, kv_heads=2, queries=3, keys=5, query_dim=8, key_dim=9)


@pytest.mark.parametrize("wrong", [*PARAMETERS, *SHARED], ids=describe)
def test_wrong_argument(backend, rng, capfd, wrong):
    """Cases 63, 77, 86, 89 for what additive attention takes."""
    name, x, error, *named = wrong
    given = correct(rng)
    out = np.full((2, 4, 3, 6), 7.5, F)
    with pytest.raises(error, match=f"^({named[0] if named else name}).*:"):
        additive(**given | {name: x}, out=out, return_lse=True)
    assert (out == 7.5).all()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("wrong", OUTS, ids=lambda c: describe(("out", *c)))
def test_wrong_out(backend, rng, wrong):
    x, error = wrong
    with pytest.raises(error, match="^out:"):
        additive(**correct(rng), out=x)


def test_without_weights_the_last_axis_is_the_hidden_size(backend, rng):
    given = case(rng, heads=4, kv_heads=2, without=PROJECTED)
    for name, other in (("query", "query_weight"), ("key", "key_weight")):
        with pytest.raises(ValueError, match=rf"^{name}: .*\b11\b.*{other}.*\b12\b"):
            additive(**given | {name: zeros(*given[name].shape[:-1], 12)})
    given["attention_v"] = None
    with pytest.raises(ValueError, match=r"^key: .*\b11\b.*query.*\b12\b"):
        additive(**given | {"key": zeros(2, 2, 7, 12)})


def test_options_of_the_dot_product_alone(backend, rng):
    for name in ("scale", "softcap", "alibi_slopes"):
        with pytest.raises(TypeError, match=name):
            additive(**correct(rng), **{name: 1.0})
    with pytest.raises(TypeError):
        additive(*case(rng, without=PROJECTED).values(), np.eye(11))


@pytest.mark.parametrize("name", ["attention_v", "hidden_bias", "sinks"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_number_is_no_vector(backend, rng, name, dtype):
    """Also where there is one head and one hidden unit."""
    given = case(rng, heads=1, hidden=1)
    with pytest.raises(ValueError, match=f"^{name}:"):
        additive(**given | {name: np.ones((), dtype)})


def test_call_works_after_errors(backend, rng):
    given = correct(rng)
    wanted = additive(**given)
    for name, x, error, *_ in [*PARAMETERS, *SHARED]:
        with pytest.raises(error) as caught:
            additive(**given | {name: x})
        assert re.match(r"[a-z_, ]+(\[\d\])?: expected", str(caught.value)), caught.value
    assert additive(**given).tobytes() == wanted.tobytes()
