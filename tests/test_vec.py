# SPDX-License-Identifier: MIT
# The vector vocabulary, wrapper by wrapper, on every compiled backend through the probe.
# Used by pytest.  Kernels are tested elsewhere.
"""Vector wrappers against wider floats; vec/scalar.h has the contract of each."""

import numpy as np
import pytest
from cases import EXHAUSTIVE

native = pytest.importorskip("fastattn._native")
f32 = np.float32
# with room for the error of the exact value itself: long double is double on some systems
HAS_LONG_DOUBLE = np.finfo(np.longdouble).eps < np.finfo(np.float64).eps
exact_double = pytest.mark.skipif(not HAS_LONG_DOUBLE, reason="needs a wider float than double")


@pytest.fixture(params=native.backend_names())
def probe(request):
    return lambda op, *arrays: native.probe(request.param, op, *arrays)


def ulps(got, expected):
    """Return the error in units of the last place of the exact value."""
    last = np.spacing(np.abs(expected).astype(got.dtype)).astype(expected.dtype)
    return np.abs(got - expected) / last


def wide(x):
    """The same numbers as wider floats."""
    return x.astype(np.float64 if x.dtype == f32 else np.longdouble)


def every_float(step):
    """Every `step`-th of all 2**32 floats, NaN and subnormals included."""
    return np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(f32)


def many_doubles(n):
    """Numbers evenly over the bits of all doubles, NaN and subnormals included."""
    return (np.arange(n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.float64)


def special(real):
    tiny, large = (1e-40, 3.4e38) if real == f32 else (1e-310, 1.7e308)
    return np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, tiny, large, -large], real)


def pairs(real):
    a, b = np.meshgrid(special(real), special(real))
    return a.ravel().copy(), b.ravel().copy()


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_arithmetic_is_ieee(probe, real, op):
    a, b = pairs(real)
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[op]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(probe(op, a, b), function(a, b))


def test_fma_is_a_times_b_plus_c(probe, rng, real):
    a, b, c = rng.standard_normal((3, 1003)).astype(real)
    exact = wide(a) * b + c
    error = np.max(np.abs(probe("fma", a, b, c) - exact))
    assert error <= 8 * np.finfo(real).eps  # two roundings


@pytest.mark.parametrize("name", native.backend_names())
def test_fma_rounds_once_where_the_machine_has_it(real, name):
    """(1 + 2^-12)^2 - (1 + 2^-11) is 2^-24, which a rounded product loses; 2^-27 for doubles."""
    x = 2.0**-12 if real == f32 else 2.0**-27
    a, c = np.full((2, 19), 1 + x, real), np.full(19, -1 - 2 * x, real)
    got = native.probe(name, "fma", a[0], a[1], c)
    np.testing.assert_array_equal(got, np.full(19, 0 if name == "scalar" else x * x, real))


def test_max_returns_the_second_where_either_is_nan(probe, real):
    a, b = pairs(real)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(probe("max", a, b), np.where(a > b, a, b))


def test_comparisons_are_false_for_nan(probe, real):
    a, b = pairs(real)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(probe("lt", a, b), (a < b).astype(real))
        np.testing.assert_array_equal(probe("eq", a, b), (a == b).astype(real))


def test_select_abs_and_copysign_keep_every_bit(probe, rng, real):
    a, b, c = rng.choice(special(real), (3, 333))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(probe("select", a, b, c), np.where(a < 0, b, c))
    assert probe("abs", a).tobytes() == np.abs(a).tobytes()
    assert probe("copysign", a, b).tobytes() == np.copysign(a, b).tobytes()


def test_fractions_and_powers_of_two(probe, real):
    least = -126 if real == f32 else -1022
    x = np.concatenate([np.arange(least, 3 - least), np.arange(-20, 20) + 0.5]).astype(real)
    x = np.concatenate([x, np.linspace(least - 0.5, 1.9 - least, 4001, dtype=real)])
    nearest = np.rint(x)
    np.testing.assert_array_equal(probe("fraction", x), x - nearest)
    powers = np.ldexp(real.type(0.5), nearest.astype(int))  # exact, as np.exp2 of float32 is not
    np.testing.assert_array_equal(probe("half_pow2", x), np.where(nearest == least, 0, powers))
    assert np.isnan(probe("fraction", np.array([np.nan], real))).all()


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_16_bit_floats(probe, name):
    """To nearest, ties to even, as NumPy and ml_dtypes do it; every number of the type is kept."""
    half = np.float16 if name == "f16" else pytest.importorskip("ml_dtypes").bfloat16
    every = np.arange(1 << 16, dtype=np.uint16).view(half).astype(f32)
    np.testing.assert_array_equal(probe(name, every), every)
    edges = np.array([65519.99, 65520, -65520, 3.4e38, 2.0**-25, 2.0**-24], f32)
    x = np.concatenate([every_float(1009), edges])
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(probe(name, x), x.astype(half).astype(f32))


def test_8_bit_integers(probe):
    every = np.arange(-128, 128).astype(f32)
    np.testing.assert_array_equal(probe("i8", every), every)


def test_operations_across_lanes(probe, rng, real):
    lanes = int(probe("lanes", np.zeros(1, real))[0])
    x = rng.integers(-50, 50, 4 * lanes).astype(real)  # small integers: every order is exact
    blocks = x.reshape(-1, lanes)
    np.testing.assert_array_equal(probe("hsum", x), np.repeat(blocks.sum(1), lanes))
    np.testing.assert_array_equal(probe("hmax", x), np.repeat(blocks.max(1), lanes))
    np.testing.assert_array_equal(probe("iota", x), np.tile(np.arange(lanes), 4))
    whole = rng.integers(-50, 50, (3, lanes, lanes)).astype(real)
    sums = probe("hsums", whole.ravel())[: 3 * lanes]
    np.testing.assert_array_equal(sums, whole.sum(axis=-1).ravel())
    square = rng.standard_normal((3, lanes, lanes)).astype(real)
    np.testing.assert_array_equal(probe("transpose", square.ravel()), square.swapaxes(1, 2).ravel())


def test_sums_across_lanes_are_pairs_of_halves(probe, rng, real):
    """The order of additions is part of the contract: halves, then quarters, ..."""
    lanes = int(probe("lanes", np.zeros(1, real))[0])
    x = rng.standard_normal(50 * lanes).astype(real)
    sums = x.reshape(-1, lanes)
    while sums.shape[1] > 1:
        sums = sums[:, : sums.shape[1] // 2] + sums[:, sums.shape[1] // 2 :]
    np.testing.assert_array_equal(probe("hsum", x), np.repeat(sums.ravel(), lanes))


def test_bytes_become_truth_values(probe, real):
    raw = np.array([0, 1, 255, 128, 0, 0, 2, 64] * 8, np.uint8)
    got = probe("bytes", np.concatenate([raw.view(real), np.zeros(64, real)]))
    np.testing.assert_array_equal(got[:64], (raw != 0).astype(real))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33])
def test_parts_touch_the_first_numbers_only(probe, real, n):
    x = np.arange(1, n + 1, dtype=real)
    np.testing.assert_array_equal(probe("add", x, x), 2 * x)


def test_exp2_is_within_2_ulp(probe):
    x = np.concatenate([np.linspace(-125.4, 127.4, 400_001), -np.logspace(-30, 2.09, 100_001)])
    x = np.concatenate([x, np.linspace(-1, 1, 300_001)]).astype(f32)
    assert np.max(ulps(probe("exp2", x), np.exp2(x.astype(np.float64)))) <= 2.0


def test_exp2_over_all_floats(probe):
    """Each promise over the whole range: 2 ulp, exactly 0 from -125.5 down, NaN stays."""
    x = every_float(1009)
    got = probe("exp2", x)
    with np.errstate(invalid="ignore"):
        small, middle = x <= -125.5, (x > -125.5) & (x <= 127.5)
    assert small.any() and middle.any() and np.isnan(x).any()
    assert got[small].tobytes() == bytes(4 * small.sum())  # +0
    assert np.isnan(got[np.isnan(x)]).all()
    assert np.max(ulps(got[middle], np.exp2(x[middle].astype(np.float64)))) <= 2.0


def test_exp2_where_its_polynomial_ends(probe):
    """The worst of all floats lie near +-1/2; every one of them if the run is exhaustive."""
    ends = np.array([0.25, 1.0], f32).view(np.uint32)
    x = np.arange(*ends, 1 if EXHAUSTIVE else 17, dtype=np.uint32).view(f32)
    for part in (x, -x):
        assert np.max(ulps(probe("exp2", part), np.exp2(part.astype(np.float64)))) <= 2.0


def test_exp2_at_the_edges(probe):
    x = np.array([0, -0.0, 1, -1, -125, -125.5, -150, -3.4e38, -np.inf, np.nan], f32)
    expected = np.array([1, 1, 2, 0.5, 2.0**-125, 0, 0, 0, 0, np.nan], f32)
    np.testing.assert_array_equal(probe("exp2", x), expected)


def test_tanh_is_within_3_ulp_also_near_zero(probe):
    x = np.concatenate([np.linspace(-12, 12, 300_001), np.logspace(-37, 1.5, 200_001)])
    x = np.concatenate([x, -np.logspace(-37, 30, 100_001)]).astype(f32)
    assert np.max(ulps(probe("tanh", x), np.tanh(x.astype(np.float64)))) <= 3.0


def test_tanh_over_all_floats(probe):
    x = every_float(2003)
    got, nan = probe("tanh", x), np.isnan(x)
    assert np.isnan(got[nan]).all()
    assert np.max(ulps(got[~nan], np.tanh(x[~nan].astype(np.float64)))) <= 3.0


def test_tanh_at_the_edges(probe):
    x = np.array([0.0, -0.0, 10, -10, 1e38, -1e38, np.inf, -np.inf, np.nan], f32)
    expected = np.array([0.0, -0.0, 1, -1, 1, -1, 1, -1, np.nan], f32)
    got = probe("tanh", x)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[:8]), np.signbit(expected[:8]))


def test_an_unknown_operation_is_refused(probe):
    with pytest.raises(ValueError, match="no_such_operation"):
        probe("no_such_operation", np.zeros(8, f32))


def test_exp_twice_is_within_1_1_ulp(probe):
    x = np.concatenate([np.linspace(-43, 43, 400_001), np.linspace(-1, 1, 300_001)]).astype(f32)
    assert np.max(ulps(probe("exp_twice", x), np.exp(2 * x.astype(np.float64)))) <= 1.1


def test_quotients_are_within_2_5_ulp(probe, rng):
    a = rng.standard_normal(200_000).astype(f32)
    b = (1 + np.exp(rng.uniform(-20, 85, a.size))).astype(f32)
    zero = np.zeros_like(a)
    assert np.max(ulps(probe("add_quotient", a, b, zero), a / b.astype(np.float64))) <= 2.5
    np.testing.assert_array_equal(probe("add_quotient", zero, b, a), a)


@pytest.mark.parametrize("name", native.backend_names())
def test_ceilings_count_what_all_threads_do(name):
    lanes = int(native.probe(name, "lanes", np.zeros(1, f32))[0])
    assert native.ceiling_div(name, 1, 10) == 10 * 8 * lanes
    for ceiling in (native.ceiling_fma, native.ceiling_div):
        assert ceiling(name, 2, 10) == 2 * ceiling(name, 1, 10) > 0


@exact_double
def test_exp2_of_doubles(probe, rng):
    """Each promise over the whole range: 2 ulp, exactly 0 from -1021.5 down, NaN stays."""
    x = np.concatenate([many_doubles(400_001), rng.uniform(-1021.5, 1023.5, 400_001)])
    x = np.concatenate([x, rng.uniform(-1, 1, 200_001), -np.logspace(-300, 3, 50_001)])
    got = probe("exp2", x)
    with np.errstate(invalid="ignore"):
        small, middle = x <= -1021.5, (x > -1021.5) & (x <= 1023.5)
    assert got[small].tobytes() == bytes(8 * small.sum())  # +0
    assert np.isnan(got[np.isnan(x)]).all()
    assert np.max(ulps(got[middle], np.exp2(wide(x[middle])))) <= 2.0
    edges = np.array([0, -0.0, 1, -1, -1021, -1021.5, -2000, -1.7e308, -np.inf, np.nan])
    expected = np.array([1, 1, 2, 0.5, 2.0**-1021, 0, 0, 0, 0, np.nan])
    np.testing.assert_array_equal(probe("exp2", edges), expected)


@exact_double
def test_tanh_of_doubles(probe, rng):
    """3 ulp, also near zero, where the sign of zeros stays; exactly 1 beyond 20; NaN stays."""
    x = np.concatenate([many_doubles(300_001), np.linspace(-22, 22, 300_001)])
    x = np.concatenate([x, rng.uniform(0.5, 0.7, 200_001), -np.logspace(-307, 1.5, 100_001)])
    got, nan = probe("tanh", x), np.isnan(x)
    assert np.isnan(got[nan]).all()
    assert np.max(ulps(got[~nan], np.tanh(wide(x[~nan])))) <= 3.0
    edges = np.array([0.0, -0.0, 20, -20, 1e308, -1e308, np.inf, -np.inf, np.nan])
    got, expected = probe("tanh", edges), np.array([0.0, -0.0, 1, -1, 1, -1, 1, -1, np.nan])
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got[:8]), np.signbit(expected[:8]))


@exact_double
def test_exp_twice_and_quotients_of_doubles(probe, rng):
    x = np.concatenate([np.linspace(-354, 354, 400_001), rng.uniform(-1, 1, 300_001)])
    assert np.max(ulps(probe("exp_twice", x), np.exp(2 * wide(x)))) <= 1.1
    a = rng.standard_normal(100_000)
    b = 1 + np.exp(rng.uniform(-20, 700, a.size))
    zero = np.zeros_like(a)
    assert np.max(ulps(probe("add_quotient", a, b, zero), wide(a) / b)) <= 2.5
    np.testing.assert_array_equal(probe("add_quotient", zero, b, a), a)
