# SPDX-License-Identifier: MIT
# The named workloads, and the self-test's own cases and expected values.
# Used by pytest; nothing is measured here.
# It does not test attention: only what other figures and verdicts rest on.
"""What the command line counts as needed work, and whether its judge can be trusted."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
from pathlib import Path

import check
import check_additive
import numpy as np
import pytest

from fastattn._cli import cases, ceilings, measure, oracle
from fastattn._cli.workloads import WORKLOADS, Workload, by_name

SMALL = Workload("small", "prefill", 2, 6, 3, 5, 7, 4)


def test_names_are_unique_and_need_no_quoting():
    names = [workload.name for workload in WORKLOADS]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() for name in names)
    assert [by_name(name).name for name in names] == names


def test_flops_count_a_multiplication_and_an_addition_of_both_products():
    assert SMALL.flops == 2 * 2 * (2 * 6 * 5 * 7 * 4)


@pytest.mark.parametrize("n_queries", [3, 7, 9])
def test_flops_of_causal_count_visible_pairs_only(n_queries):
    causal = dataclasses.replace(SMALL, n_queries=n_queries, is_causal=True)
    n_pairs = sum(j <= i for i in range(n_queries) for j in range(7))
    assert causal.flops == 4 * (2 * 6 * 4) * n_pairs


def test_bytes_count_key_and_value_once_per_kv_head():
    assert SMALL.bytes == 2 * (2 * 3 * 7 * 4) * 4


def test_tanhs_count_every_hidden_channel_of_a_visible_pair():
    additive = dataclasses.replace(SMALL, kind="additive")
    assert (additive.tanhs, additive.amount) == (2 * 6 * 5 * 7 * 4,) * 2
    assert additive.flops == 2 * (2 * 6 * 5 * 7 * 4)  # the sum of the values only
    causal = dataclasses.replace(additive, is_causal=True)
    assert causal.tanhs == 2 * 6 * 4 * sum(j <= i for i in range(5) for j in range(7))
    assert SMALL.tanhs == 0


def test_additive_inputs_are_the_others_and_a_vector():
    additive = dataclasses.replace(SMALL, kind="additive")
    inputs, others = (w.make(np.random.default_rng(5)) for w in (additive, SMALL))
    vector = inputs.pop("attention_v")
    assert vector.shape == (4,) and vector.dtype == np.float32
    for name, array in inputs.items():
        check.assert_bits_equal(array, others[name])


def test_inputs_have_the_shapes_and_repeat_with_the_seed():
    one, other = (SMALL.make(np.random.default_rng(5)) for _ in range(2))
    assert {name: array.shape for name, array in one.items()} == {
        "query": (2, 6, 5, 4),
        "key": (2, 3, 7, 4),
        "value": (2, 3, 7, 4),
    }
    for name, array in one.items():
        assert array.dtype == np.float32
        check.assert_bits_equal(array, other[name])


def test_a_workload_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.batch = 3


def test_bench_folder_uses_the_same_workloads():
    path = Path(__file__).parents[1] / "bench" / "workloads.py"
    if not path.exists():
        pytest.skip("tests without the source tree")
    spec = importlib.util.spec_from_file_location("bench_workloads", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.WORKLOADS is WORKLOADS


def test_accuracy_compares_a_sample_of_rows_of_a_large_workload(monkeypatch, backend):
    monkeypatch.setattr(measure, "ORACLE_PRODUCTS", 1)
    workload = dataclasses.replace(SMALL, n_queries=9)
    inputs = workload.make(np.random.default_rng(0))
    out = measure.caller(workload, inputs)()
    found = measure.accuracy(workload, inputs, out, np.random.default_rng(0))
    assert found.is_correct and found.max_error < 1e-5
    assert found.n_rows == 2 * 6 * 4
    out[:, :, -1] += 1
    assert not measure.accuracy(workload, inputs, out, np.random.default_rng(0)).is_correct


@pytest.mark.parametrize("has_prepared_keys", [False, True])
def test_accuracy_of_an_additive_workload(monkeypatch, backend, has_prepared_keys):
    monkeypatch.setattr(measure, "ORACLE_TANHS", 1)
    workload = dataclasses.replace(
        SMALL, kind="additive", n_queries=9, has_prepared_keys=has_prepared_keys
    )
    inputs = workload.make(np.random.default_rng(0))
    out = measure.caller(workload, inputs)()
    found = measure.accuracy(workload, inputs, out, np.random.default_rng(0))
    assert found.is_correct and found.max_error < 1e-5
    assert found.n_rows == 2 * 6 * 4
    out[:, :, -1] += 1e-3
    assert not measure.accuracy(workload, inputs, out, np.random.default_rng(0)).is_correct


@pytest.mark.parametrize("is_causal", [False, True])
def test_two_independent_additive_oracles_agree(rng, is_causal):
    query, key, value = (rng.standard_normal((2, 3, n, 6)) for n in (5, 7, 7))
    vector = 3 * rng.standard_normal(6)
    mine = oracle.attention(
        query, key, value, attention_v=vector, is_causal=is_causal, want_weights=True
    )
    other = check_additive.expected_additive(query, key, value, vector, is_causal=is_causal)
    for what in ("out", "lse", "weights"):
        wanted = np.asarray(getattr(other, what), dtype=np.float64)
        assert oracle.compare(wanted, mine, what).error <= 1


class FakeNative:
    """Limits as round numbers: what is done in one second."""

    ceiling_fma = staticmethod(lambda *arguments: 800.0)
    ceiling_div = staticmethod(lambda *arguments: 30.0)


def test_limits_of_additive_workloads_are_in_values_of_tanh(monkeypatch):
    """4 multiply-adds, 8 operations, and half a division each."""
    clock = itertools.count()
    monkeypatch.setattr(ceilings.time, "perf_counter", lambda: next(clock))
    found = [
        [limit.sample() for limit in ceilings.ceilings(FakeNative, workload, "avx2", 1)]
        for workload in (SMALL, dataclasses.replace(SMALL, kind="additive"), by_name("smallest"))
    ]
    assert found == [[800.0], [100.0, 60.0], []]


@pytest.mark.parametrize("number", range(40))
def test_two_independent_oracles_agree(number):
    case = cases.draw(seed=1, number=number)
    mine = oracle.attention(**case.arrays, **case.options, want_weights=True)
    other = check.expected(**case.arrays, **case.options)
    layout = case.options.get("layout", "bhsd")
    for what in ("out", "lse", "weights"):
        wanted = np.asarray(getattr(other, what), dtype=np.float64)
        assert oracle.compare(wanted, mine, what, layout).error <= 1


def test_a_case_is_drawn_again_from_its_number():
    one, other = cases.draw(3, 7), cases.draw(3, 7)
    assert str(one) == str(other)
    for name, array in one.arrays.items():
        check.assert_bits_equal(array, other.arrays[name])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1.001])
def test_compare_forgives_neither_nan_nor_inf_nor_a_wrong_number(bad):
    ones = np.ones((1, 3, 2), np.float32)
    expected = oracle.attention(ones, ones, ones)
    assert oracle.compare(ones, expected, "out").error == 0
    result = ones.copy()
    result[0, 1, 1] = bad
    found = oracle.compare(result, expected, "out")
    assert found.error > 1 and found.where == (0, 1, 1)
