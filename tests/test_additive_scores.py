# SPDX-License-Identifier: MIT
# How exact additive scores are, where that is hard.
# Used by the suite, on every backend.
# Ordinary data and all that follows the scores are in test_additive.py.
"""|error| <= 2e-6 * sum |a tanh| + 4 * 2**-24 * min(sum |a|, 1024), for every finite input.

2e-6 is 34 * 2**-24: float64 may have as many units of its own.
"""

import numpy as np
import pytest
from check import assert_close
from check_additive import case, expected_additive

import fastattn

F = np.float32
LARGEST = float(np.finfo(F).max)
SIZES = [1, 2, 3, 7, 8, 9, 33, 64, 255, 2048]
N = 40  # scores for each kind of input


def scores(query, key, vector):
    """The scores themselves: the lse of rows that see one key. All arguments are (N, U)."""
    query, key = query[:, None, None], key[:, None, None]
    return fastattn.additive_attention(query, key, key[..., :1], vector, return_lse=True)[1].ravel()


def exact(query, key, vector):
    """The scores, and the promised bound of their errors."""
    wide, unit = (np.float64, 2.0**-24) if query.dtype == F else (np.longdouble, 2.0**-53)
    terms = np.tanh(query.astype(wide) + key.astype(wide)) * vector.astype(wide)
    total = abs(vector.astype(wide)).sum()
    bound = 2e-6 * 2.0**24 * unit * abs(terms).sum(axis=-1) + 4 * unit * min(total, 1024.0)
    return terms.sum(axis=-1), bound


def as_doubles(kind, x):
    """Inputs of a kind in float64, whose range is larger."""
    if kind == "overflowing":
        return np.sign(x) * np.finfo(np.float64).max
    if kind in ("tiny", "subnormal", "any size", "huge"):
        return np.sign(x) * abs(x) ** 8
    return 8 * x if kind == "wide" else x


def signs(rng, shape):
    return rng.choice([-1.0, 1.0], shape)


def exponents(rng, shape, low, high):
    return signs(rng, shape) * 10.0 ** rng.uniform(low, high, shape)


# name -> pairs of queries and keys (N, U), whose sums are of that kind
INPUTS = {
    "normal": lambda rng, s: (rng.standard_normal(s), rng.standard_normal(s)),
    "wide": lambda rng, s: (30 * rng.standard_normal(s), 30 * rng.standard_normal(s)),
    "bending": lambda rng, s: (signs(rng, s) * rng.uniform(3, 10, s), rng.uniform(-1, 1, s)),
    "tiny": lambda rng, s: (1e-30 * rng.standard_normal(s), 1e-30 * rng.standard_normal(s)),
    "subnormal": lambda rng, s: (1e-40 * rng.standard_normal(s), 1e-42 * rng.standard_normal(s)),
    "small": lambda rng, s: (exponents(rng, s, -8, -1), exponents(rng, s, -8, -1)),
    "any size": lambda rng, s: (exponents(rng, s, -38, 38), exponents(rng, s, -38, 38)),
    "huge": lambda rng, s: (1e38 * signs(rng, s), 1e38 * signs(rng, s)),
    "overflowing": lambda rng, s: (LARGEST * signs(rng, s), LARGEST * signs(rng, s)),
    "zero": lambda rng, s: (np.zeros(s), -np.zeros(s)),
}
VECTORS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "one sign": lambda rng, n: rng.uniform(0.5, 1.0, n),
    "large": lambda rng, n: 1e4 * rng.standard_normal(n),
    "huge": lambda rng, n: 1e30 * rng.standard_normal(n),
    "tiny": lambda rng, n: 1e-30 * rng.standard_normal(n),
    "any size": lambda rng, n: exponents(rng, n, -10, 10),
    "one": lambda rng, n: 7.0 * np.eye(n)[n // 2],
}


def cancelling(rng, shape, gap, size):
    """Sums that are small differences of large numbers."""
    key = (size * rng.standard_normal(shape)).astype(F)
    return (-key + (gap * size * rng.standard_normal(shape)).astype(F)).astype(F), key


INPUTS |= {
    "opposite": lambda rng, s: cancelling(rng, s, 0.0, 1e30),
    "nearly opposite": lambda rng, s: cancelling(rng, s, 1e-6, 40.0),
    "nearly opposite, far out": lambda rng, s: cancelling(rng, s, 1e-7, 1e7),
}


@pytest.mark.parametrize("vectors", list(VECTORS))
@pytest.mark.parametrize("inputs", list(INPUTS))
def test_the_bound_holds(backend, rng, real, inputs, vectors):
    """Every kind of input with every kind of vector, at every hidden size."""
    for hidden in SIZES:
        query, key = INPUTS[inputs](rng, (N, hidden))
        if real == np.float64:
            query, key = as_doubles(inputs, query), as_doubles(inputs, key)
        query, key = query.astype(real), key.astype(real)
        vector = VECTORS[vectors](rng, hidden).astype(real)
        got = scores(query, key, vector)
        wanted, bound = exact(query, key, vector)
        error = abs(got - wanted)
        assert np.isfinite(got).all(), f"hidden size {hidden}"
        worst = np.argmax(error - bound)
        assert (error <= bound).all(), f"hidden size {hidden}: {error[worst]} > {bound[worst]}"


@pytest.mark.parametrize("hidden", [17, 255, 2048])
def test_terms_of_one_size(backend, real, hidden):
    """Far queries, and vectors of equal numbers: a long sum would be rounded alike each time."""
    query, key = np.full((1, hidden), 400.0, real), np.zeros((1, hidden), real)
    for number in np.linspace(0.5, 8.0, N).astype(real):
        vector = np.full(hidden, number)
        wanted, bound = exact(query, key, vector)
        error = abs(scores(query, key, vector) - wanted)
        assert (error <= bound).all(), f"{number}: {error} > {bound}"


@pytest.mark.parametrize("period", [1, 2, 3, 16])
def test_units_that_are_alike(backend, rng, period):
    """Units that hold the same numbers, with sums near 0, where the bound is narrowest: a rounding
    that happens in one of them happens in all, and does not average out."""
    n_scores = 1000
    for hidden in (17, 18, 24, 33, 128, 2048):
        unit = np.arange(hidden) % period
        size = rng.choice([10.4, 3.0, 1.0, 0.1], (n_scores, 1))
        query = size * rng.uniform(-1, 1, (n_scores, period))
        gap = 10.0 ** rng.uniform(-9, -2, (n_scores, 1)) * rng.standard_normal((n_scores, period))
        vectors = rng.uniform(0.5, 2.0, (n_scores, period))
        q, k, a = (x[:, unit].astype(F) for x in (query, gap - query, vectors))
        lse = fastattn.additive_attention(  # a score, a head
            q[:, None], k[:, None], np.zeros((n_scores, 1, 1), F), a, return_lse=True
        )[1]
        terms = a * np.tanh(q.astype(np.float64) + k)
        bound = 2e-6 * abs(terms).sum(-1) + 4 * 2.0**-24 * np.minimum(abs(a).sum(-1), 1024)
        error = abs(lse[:, 0] - terms.sum(-1))
        assert (error <= bound).all(), f"hidden size {hidden}: {(error / bound).max()} of the bound"


@pytest.mark.parametrize("kinds", [("tiny", "huge"), ("normal", "overflowing"), ("any size",)])
def test_kinds_beside_each_other(backend, rng, kinds):
    """Rows and units of different kinds in one call: the choice of a path must see all of them."""
    shape = (N, 65)
    picked = rng.integers(0, len(kinds), shape)
    pairs = [INPUTS[kind](rng, shape) for kind in kinds]
    query, key = (np.choose(picked, [pair[n] for pair in pairs]).astype(F) for n in range(2))
    vector = VECTORS["normal"](rng, 65).astype(F)
    wanted, bound = exact(query, key, vector)
    assert (abs(scores(query, key, vector) - wanted) <= bound).all()
    # all queries meet all keys
    full = fastattn.additive_attention(
        query, key, np.eye(N, dtype=F), vector, return_weights=True, return_lse=True
    )
    want = expected_additive(query, key, np.eye(N, dtype=F), vector)
    assert_close(full[0], want.out, slack=want.out_slack)
    assert_close(full[1], want.lse, slack=want.lse_slack)


@pytest.mark.parametrize("given", ["float32", "float64"])
def test_overflow_is_one(backend, given):
    """Sums beyond the float range are 1 or -1, equal numbers of opposite signs 0; never NaN."""
    big = float(np.finfo(given).max)
    query = np.array([[big], [big], [-big], [1.0]], given)
    key = np.array([[big], [-big], [-big], [-big]], given)
    lse = fastattn.additive_attention(
        query[:, None], key[:, None], key[:, None], np.ones(1), return_lse=True
    )[1]
    assert lse.ravel().tolist() == [1.0, 0.0, -1.0, -1.0]


@pytest.mark.parametrize("given", ["float32", "float64"])
def test_projections_that_overflow(backend, given):
    """Terms beyond the float range cancel or saturate; the sums of the others keep their bits."""
    big = 2.0 ** (np.finfo(given).maxexp - 1)  # so that only the range is a problem
    x = np.array([[big, big, -big], [big, 0, big], [0.5, 0.25, 1]], given)
    weight = np.array([[2.0, 4.0, 0.5], [0.5, -4.0, 0], [2.5, 0, 0]], given)
    # 1st row: 2 + 1/2 - 5/2 = 0, 4 - 4 = 0, 1/2; 2nd: 4.5, 4, 1/2; 3rd: 3.625, 1, 0.25
    sums = np.array([[0, 0, big / 2], [big, big, big / 2], [3.625, 1, 0.25]])
    zero = np.zeros((3, 1, 3), given)
    for unit in range(3):
        vector = np.eye(3)[unit]
        for query, key, name in ((x[:, None], zero, "query"), (zero, x[:, None], "key")):
            lse = fastattn.additive_attention(
                query, key, zero, vector, return_lse=True, **{f"{name}_weight": weight}
            )[1]
            assert_close(lse.ravel(), np.tanh(sums[:, unit]), slack=1e-6)
    bias = np.full(3, big, given)
    lse = fastattn.additive_attention(
        -x[:2], x[:2], x[:2], None, hidden_bias=bias, attn_mask=np.eye(2, dtype=bool),
        return_lse=True,
    )[1]  # fmt: skip
    assert np.isfinite(lse).all()


def test_parameters_of_other_dtypes(backend, rng, dtype):
    """Any float dtype; they count as numbers of the dtype of the scores."""
    given = case(rng, dtype)
    wanted = fastattn.additive_attention(**given)
    for other in (np.float64, np.float32, np.longdouble, ">f4"):
        if dtype == np.float64 and np.dtype(other).itemsize == 4:
            continue
        turned = {
            n: given[n].astype(other)
            for n in ("attention_v", "query_weight", "key_weight", "hidden_bias")
        }
        got = fastattn.additive_attention(**given | turned)
        assert got.tobytes() == wanted.tobytes(), other
