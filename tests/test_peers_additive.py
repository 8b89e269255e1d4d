# SPDX-License-Identifier: MIT
# The comparison with other systems where scores are additive: who takes part, and who is right.
# Used by pytest; needs no other system, and checks those that are installed.
# What all comparisons have in common is in test_peers.py.
"""python -m bench.peers with additive scores, contenders made up or installed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fastattn._cli import ceilings, facts
from fastattn._cli.workloads import Workload

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "bench" / "peers.py").exists():
    pytest.skip("bench/ is not beside the tests", allow_module_level=True)
sys.path.insert(0, str(ROOT))  # where `python -m bench.peers` finds it

from fake_contenders import AdditiveOnly, DotOnly, WrongAdditive  # noqa: E402

from bench import additive, contenders, peers, rounds, tables, team  # noqa: E402

DOT = Workload("tiny-prefill", "prefill", 2, 3, 3, 17, 17, 8)
ADDITIVE = Workload("tiny-additive", "additive", 2, 3, 3, 17, 23, 16)
STEP = Workload("tiny-step", "additive", 3, 1, 1, 1, 21, 16, has_prepared_keys=True)
BUDGET = {"seconds": 0.0, "at_least": 2, "at_most": 2}
KNOWN = contenders.known()


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Limits that take no time."""
    monkeypatch.setattr(ceilings, "SAMPLE_SECONDS", 1e-4)


def measured(chosen, workload) -> dict:
    with team.Team(chosen, 2) as found:
        return rounds.run_workload(found, workload, 0, BUDGET)


def test_rates_are_values_of_tanh_and_have_two_limits():
    run = measured([contenders.FastAttn, contenders.NumPy], ADDITIVE)
    assert run["tanhs"] == ADDITIVE.amount
    for result in run["results"]:
        assert result["status"] == "ok" and result["max_error"] < 1e-5
        assert result["rate"] == ADDITIVE.tanhs / result["min_s"]
        for name in ("limit", "divide_limit"):
            assert (run[name] is not None) == (facts.native() is not None)
            share = run[name] and result["rate"] / run[name]
            assert result[f"share_of_{name}"] == share


def test_keys_are_prepared_where_the_workload_says_so():
    notes = [measured([contenders.FastAttn], w)["results"][0]["note"] for w in (ADDITIVE, STEP)]
    assert notes[0] is None and "prepare_additive_keys" in notes[1]


def test_a_wrong_additive_result_gets_no_time():
    (result,) = measured([WrongAdditive], ADDITIVE)["results"]
    assert result["status"] == "wrong" and result["min_s"] is None
    assert result["max_error"] == pytest.approx(1e-3, rel=0.1)
    assert measured([WrongAdditive], DOT)["results"][0]["status"] == "ok"


def test_each_kind_of_score_has_its_own_tables_and_contenders(monkeypatch):
    chosen = [contenders.NumPy, AdditiveOnly, DotOnly]
    args = peers.parser().parse_args(["--quick", "--threads", "1"])
    monkeypatch.setattr(peers, "QUICK", BUDGET)
    plan = [(1, DOT), (1, ADDITIVE), (1, STEP)]
    document = peers._describe(args, chosen, plan)
    peers._measure(plan, chosen, args, document, lambda *where: None)
    names = [[r["contender"] for r in run["results"]] for run in document["runs"]]
    assert names == [["numpy", "dot-only"], *[["numpy", "additive-only"]] * 2]
    assert all(entry["version"] for entry in document["contenders"])
    lines = tables.markdown(document).splitlines()
    headings = [line for line in lines if line.startswith("## ")]
    assert headings == [
        "## 1 thread: shortest times",
        "## 1 thread: details",
        "## 1 thread, additive scores: shortest times",
        "## 1 thread, additive scores: details",
    ]
    assert "* In the additive tables only: Additive only." in lines
    said = "In the other tables only, without an operator for additive scores: Dot only."
    assert f"* {said}" in lines


def test_a_plan_has_additive_workloads_last():
    args = peers.parser().parse_args(["--threads", "1", "2", "--plots", "somewhere"])
    plan = [(n, workload.is_additive) for n, workload in peers._plan(args)]
    assert plan == sorted(plan) and len(set(plan)) == 4


@pytest.mark.parametrize("name", ["ort-attention", "ort-mha", "ort-gqa", "openvino"])
def test_who_has_no_additive_operator_says_so(name):
    contender = KNOWN[name]
    assert contender.takes_part(DOT) and not contender.takes_part(ADDITIVE)
    with pytest.raises(contenders.CannotDo, match="no operator for additive scores"):
        contender(1).prepare_additive(ADDITIVE, {})


@pytest.mark.parametrize("name", ["torch-compile", "keras"])
def test_who_has_no_dot_product_says_so(name):
    contender = KNOWN[name]
    assert contender.takes_part(ADDITIVE) and not contender.takes_part(DOT)
    with pytest.raises(contenders.CannotDo, match="additive scores only"):
        contender.prepare(None, DOT, {})


def test_torch_compile_without_a_compiler_says_what_it_needs(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    contender = object.__new__(additive.TorchCompile)
    with pytest.raises(contenders.CannotDo, match="no-such-compiler is not here"):
        contender.prepare_additive(ADDITIVE, {})


@pytest.mark.parametrize(
    ("present", "backend"),
    [({"keras", "jax", "torch"}, "jax"), ({"keras", "torch"}, "torch"), ({"keras"}, None)],
)
def test_keras_runs_on_the_faster_backend_that_is_here(monkeypatch, present, backend):
    for module in ("bench.additive", "bench.contender"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: name in present)
    assert additive.Keras._backend() == backend
    assert additive.Keras.is_installed() == (backend is not None)


def test_numpys_formula_is_the_formula():
    inputs = ADDITIVE.make(np.random.default_rng(0))
    query, key, value, vector = (array.astype(np.float64) for array in inputs.values())
    scores = np.einsum("bhiju,u->bhij", np.tanh(query[:, :, :, None] + key[:, :, None]), vector)
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    out = contenders.NumPy(1).prepare_additive(ADDITIVE, inputs).call()
    np.testing.assert_allclose(out, weights @ value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [n for n, c in KNOWN.items() if c.takes_part(ADDITIVE)])
def test_each_installed_contender_computes_additive_attention(name):
    contender = KNOWN[name]
    if not contender.is_installed():
        pytest.skip(f"{name} is not installed")
    with team.Team([contender], 2) as found:
        for workload in (ADDITIVE, STEP):
            run = rounds.run_workload(found, workload, 0, BUDGET)
            (result,) = run["results"]
            assert result["status"] in ("ok", "cannot"), result
            if result["status"] == "ok":
                assert result["min_s"] > 0 and result["max_error"] < 1e-5
