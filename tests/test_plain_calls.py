# SPDX-License-Identifier: MIT
# The short way of calls without options, beside the long one.
# Used by pytest.  That results are right is the business of the other files: most of their calls
# without options go this way.
"""Calls that are checked and computed in one compiled step give what all others give."""

from __future__ import annotations

import numpy as np
import pytest

import fastattn
from fastattn import _validate

f32 = np.float32
LONG_WAY = {"window": (None, None)}  # means nothing, but is an option

SHAPES = [  # query, key, value
    ((3, 5, 7), (3, 9, 7), (3, 9, 7)),
    ((2, 6, 4, 16), (2, 3, 65, 16), (2, 3, 65, 8)),
    ((2, 3, 4, 70, 33), (2, 3, 2, 50, 33), (2, 3, 2, 50, 1)),
    ((1, 1, 1, 64), (1, 1, 1, 64), (1, 1, 1, 64)),
    ((0, 2, 3, 4), (0, 2, 5, 4), (0, 2, 5, 4)),
    ((2, 4, 0, 8), (2, 2, 5, 8), (2, 2, 5, 8)),
    ((2, 4, 3, 8), (2, 2, 0, 8), (2, 2, 0, 8)),
    ((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 0)),
    ((2, 0, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)),
]


def draw(rng, shapes):
    return [rng.standard_normal(shape, dtype=f32) for shape in shapes]


@pytest.fixture(params=[name for name in fastattn.backends() if name != "numpy"])
def native(request):
    """The backends that have a short way."""
    with fastattn.use_backend(request.param):
        yield


@pytest.fixture
def checked(monkeypatch):
    """The calls that went the long way."""
    seen = []
    check = _validate.sdpa

    def spy(*arguments):
        seen.append(arguments)
        return check(*arguments)

    monkeypatch.setattr(_validate, "sdpa", spy)
    return seen


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}], ids=str)
def test_both_ways_give_the_same_bits(native, rng, checked, shapes, options):
    arrays = draw(rng, shapes)
    short = fastattn.scaled_dot_product_attention(*arrays, **options)
    assert not checked
    long = fastattn.scaled_dot_product_attention(*arrays, **options, **LONG_WAY)
    assert len(checked) == 1
    assert type(short) is np.ndarray and short.dtype == long.dtype and short.shape == long.shape
    assert short.tobytes() == long.tobytes()
    assert short.flags.c_contiguous and short.flags.writeable and short.flags.owndata


class Subclass(np.ndarray):
    pass


UNUSUAL = {
    "list": lambda x: x.tolist(),
    "float64": lambda x: x.astype(np.float64),
    "int32": lambda x: x.astype(np.int32),
    "big endian": lambda x: x.astype(">f4"),
    "strides": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "unaligned": lambda x: np.frombuffer(b"x" + x.tobytes(), "u1")[1:].view(f32).reshape(x.shape),
    "subclass": lambda x: x.view(Subclass),
    "masked": np.ma.masked_array,
    "two axes": lambda x: x[0, 0],
    "more entries": lambda x: np.concatenate([x, x]),
    "other head size": lambda x: x[..., :-1],
    "no head size": lambda x: x[..., :0],
}


@pytest.mark.parametrize("change", UNUSUAL.values(), ids=UNUSUAL)
@pytest.mark.parametrize("position", range(3))
def test_unusual_arrays_go_the_long_way(native, rng, checked, change, position):
    arrays = draw(rng, [(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)])
    arrays[position] = change(arrays[position])
    try:
        fastattn.scaled_dot_product_attention(*arrays)
    except (TypeError, ValueError):
        pass  # as for every other call; what it says is tested elsewhere
    is_allowed = position == 2 and change is UNUSUAL["no head size"]
    assert len(checked) == (0 if is_allowed else 1)


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": 1},
        {"is_causal": np.True_},
        {"scale": 1},
        {"scale": f32(0.5)},
        {"scale": float("nan")},
        {"scale": float("inf")},
        {"scale": 1e300},
        {"q_offset": 1},
        {"q_offset": "lower_right"},
        {"q_offset": False},
        {"softcap": 1.0},
        {"softcap": None},
        {"softcap": np.zeros(2)},
        {"layout": "bshd"},
        {"layout": np.zeros(2)},
        {"return_lse": True},
        {"return_weights": 1},
        {"return_lse": np.zeros(2)},
        {"attn_mask": np.ones((4, 4), bool)},
        {"bias": np.zeros((4, 4), f32)},
        {"window": 2},
        {"kv_lengths": 3},
        {"alibi_slopes": np.ones(4, f32)},
        {"sinks": np.ones(4, f32)},
        {"out": np.zeros((2, 4, 4, 8), f32)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_go_the_long_way(native, rng, checked, options):
    arrays = draw(rng, [(2, 4, 4, 8)] * 3)
    try:
        fastattn.scaled_dot_product_attention(*arrays, **options)
    except (TypeError, ValueError) as error:
        assert next(iter(options)) in str(error)
    assert len(checked) == 1


def test_numpy_is_never_bypassed(rng):
    arrays = draw(rng, SHAPES[1])
    with fastattn.use_backend("numpy"):
        plain = fastattn.scaled_dot_product_attention(*arrays)
        assert (
            plain.tobytes() == fastattn.scaled_dot_product_attention(*arrays, **LONG_WAY).tobytes()
        )
