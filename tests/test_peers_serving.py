# SPDX-License-Identifier: MIT
# The comparison on 16-bit floats, caches and packed sequences: workloads, verdicts, tables.
# Used by pytest; needs no other system, and checks those that are installed.
# What all comparisons have in common is in test_peers.py.
"""python -m bench.peers with the workloads of inference servers."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fastattn._cli import ceilings, facts, oracle, workloads
from fastattn._cli.workloads import Workload

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "bench" / "peers.py").exists():
    pytest.skip("bench/ is not beside the tests", allow_module_level=True)
sys.path.insert(0, str(ROOT))  # where `python -m bench.peers` finds it

from fake_contenders import WrongInt8  # noqa: E402

from bench import contenders, ours, peers, rounds, serving, tables, team  # noqa: E402
from bench.contender import is_ours  # noqa: E402
from bench.reference import Reference  # noqa: E402

STORAGES = tuple(storage.name for storage in ours.STORAGES)
DENSE = Workload("tiny-decode", "decode", 2, 6, 2, 1, 65, 8)
HALF = dataclasses.replace(DENSE, name="tiny-half", dtype="float16")
CACHED = serving.Cached(
    "tiny-cached", "decode", 2, 6, 2, 1, 300, 8, dtype="float16", storages=STORAGES
)
RAGGED = serving.packed("tiny-ragged", "prefill", (5, 1, 40), 6, 2, 8)
MIX = serving.packed("tiny-mix", "decode", (5, 70, 1, 64), 6, 2, 8)
BUDGET = {"seconds": 0.0, "at_least": 1, "at_most": 1}
KNOWN = contenders.known()


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Limits that take no time."""
    monkeypatch.setattr(ceilings, "READ_BYTES", 2**20)
    monkeypatch.setattr(ceilings, "SAMPLE_SECONDS", 1e-4)


def measured(chosen, workload) -> dict:
    with team.Team(chosen, 1) as found:
        return rounds.run_workload(found, workload, 0, BUDGET)


def reference(workload) -> tuple:
    """Its inputs, and what is right."""
    inputs = workload.make(np.random.default_rng(0))
    return inputs, Reference(workload, inputs, np.random.default_rng(1))


def test_names_are_unique_and_every_group_has_workloads():
    every = [*workloads.WORKLOADS, *serving.WORKLOADS]
    assert len({workload.name for workload in every}) == len(every)
    assert {serving.group(workload) for workload in every} == set(serving.GROUPS)


@pytest.mark.parametrize("workload", [DENSE, HALF, CACHED, RAGGED, MIX], ids=lambda w: w.name)
def test_a_workload_survives_the_way_to_its_process(workload):
    fields = json.loads(json.dumps(dataclasses.asdict(workload)))
    assert serving.from_fields(fields) == workload


def test_packed_workloads_count_real_tokens_only():
    assert RAGGED.flops == RAGGED.amount == 4 * 6 * 8 * (5**2 + 1 + 40**2)
    assert MIX.bytes == MIX.amount == 2 * 2 * 8 * (5 + 70 + 1 + 64) * 4
    assert (RAGGED.n_rows, MIX.n_rows) == (6 * 46, 6 * 4)
    assert {name: a.shape for name, a in MIX.make(np.random.default_rng(0)).items()} == {
        "query": (4, 6, 8),
        "key": (140, 2, 8),
        "value": (140, 2, 8),
    }


def test_rates_of_decoding_steps_count_bytes_as_they_are_held():
    vectors = 2 * 2 * 2 * 300
    run = measured([contenders.FastAttn, *ours.STORAGES], CACHED)
    held = {"fastattn-float32": 4 * 8, "fastattn-int8": 8 + 4}
    assert [r["contender"] for r in run["results"]] == ["fastattn", *STORAGES]
    for result in run["results"]:
        assert result["status"] == "ok", result
        amount = vectors * held.get(result["contender"], 2 * 8)
        assert result["rate"] == amount / result["min_s"]
        assert (result["share_of_limit"] is None) == (facts.native() is None)
    assert tables.best_peer(run) is None  # they are all fastattn


def test_a_storage_takes_part_where_it_is_named():
    for storage in ours.STORAGES:
        assert storage.takes_part(CACHED)
        assert not any(map(storage.takes_part, (DENSE, HALF, RAGGED, MIX)))
        assert not storage.takes_part(dataclasses.replace(CACHED, storages=()))


def test_an_int8_cache_is_excused_for_its_rounding_and_no_more():
    inputs, found = reference(CACHED)
    out = ours.Int8(1).prepare_cached(CACHED, inputs).call()
    assert found.judge(out, "fastattn-int8", "int8").is_correct
    assert not found.judge(out, "fastattn").is_correct  # its error is larger than float16's
    off = out.astype(np.float64) - found._expected.out
    assert 1 < 8 * np.abs(off / found._int8).max() < 6  # in standard deviations, of 96 numbers
    for factor in (0, 0.9, np.nan):
        assert not found.judge(out * np.float16(factor), "fastattn-int8", "int8").is_correct


def test_others_may_round_weights_to_16_bits_and_we_may_not():
    workload = dataclasses.replace(HALF, n_keys=2000)
    inputs, found = reference(workload)
    exact = oracle.attention(**inputs, want_weights=True)
    weights = exact.weights.astype(np.float16).reshape(2, 2, 3, -1)  # of each group of heads
    out = (weights.astype(np.float64) @ inputs["value"]).reshape(exact.out.shape)
    assert found.judge(out.astype(np.float32), "other").is_correct
    assert not found.judge(out.astype(np.float32), "fastattn").is_correct
    assert not found.judge(1.02 * out, "other").is_correct


@pytest.mark.parametrize("workload", [RAGGED, MIX], ids=lambda w: w.name)
def test_packed_sequences_are_compared_one_by_one(workload):
    run = measured([contenders.FastAttn], workload)
    assert run["group"] == "packed" and run["n_rows_compared"] == workload.n_rows
    assert run["results"][0]["status"] == "ok" and run["results"][0]["max_error"] < 1e-6
    inputs, found = reference(workload)
    prepared = contenders.FastAttn(1).prepare_packed(workload, inputs)
    out = prepared.to_numpy(prepared.call()).copy()
    assert found.judge(out).is_correct
    out[:, :, -1] = out[:, :, 0]
    assert not found.judge(out).is_correct


def test_a_sample_of_a_large_packed_batch_has_the_end_of_each_sequence(monkeypatch):
    monkeypatch.setattr("fastattn._cli.measure.ORACLE_PRODUCTS", 6 * 8 * 5**2)
    _, found = reference(RAGGED)
    assert {4, 5, 45} <= set(found.rows) and len(found.rows) < 10
    assert found.n_rows == 6 * len(found.rows)


def plan(*arguments) -> list:
    found = peers._plan(peers.parser().parse_args(["--threads", "1", *arguments]))
    return [workload.name for _, workload in found]


def test_groups_are_measured_when_they_are_asked_for(monkeypatch):
    monkeypatch.setattr(workloads, "WORKLOADS", (DENSE,))
    monkeypatch.setattr(serving, "WORKLOADS", (MIX, HALF, CACHED))
    assert plan() == plan("--quick") == plan("--group", "dense") == ["tiny-decode"]
    assert plan("--group", "packed", "--group", "half") == ["tiny-half", "tiny-mix"]
    assert plan("--workload", "tiny-mix", "--workload", "tiny-decode") == [
        "tiny-decode",
        "tiny-mix",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--group", "caches", "--contender", "numpy"], "none of these contenders takes part"),
        (["--workload", "mixx"], "unknown workload 'mixx', did you mean 'mix'?"),
    ],
)
def test_a_request_that_cannot_be_carried_out(capsys, arguments, message):
    assert peers.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_bfloat16_needs_a_package(monkeypatch, capsys):
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    assert peers.main(["--workload", "decode-b1-bfloat16"]) == 2
    assert "pip install ml_dtypes" in capsys.readouterr().err


def test_each_group_has_tables_of_its_own_and_a_wrong_form_of_ours_is_an_error(
    monkeypatch, tmp_path
):
    few = dataclasses.replace(CACHED, name="tiny-few", storages=("fastattn-int8",))
    one = dataclasses.replace(CACHED, name="tiny-one", storages=("fastattn-paged-16",))
    monkeypatch.setattr(serving, "WORKLOADS", (few, one, MIX))
    chosen = [contenders.FastAttn, WrongInt8, ours.Paged16]
    monkeypatch.setattr(contenders, "known", lambda: {cls.name: cls for cls in chosen})
    monkeypatch.setattr(peers, "FULL", BUDGET)
    path = tmp_path / "peers.md"
    names = ["--group", "caches", "--group", "packed", "--threads", "1"]
    assert peers.main([*names, "--markdown", str(path)]) == 1
    lines = path.read_text().splitlines()
    headings = [line for line in lines if line.startswith("## ")]
    assert headings == [
        f"## 1 thread, {group}: {what}"
        for group in ("caches", "packed sequences")
        for what in ("shortest times", "details")
    ]
    columns = "| workload | fastattn | fastattn-int8 | fastattn-paged-16 | best peer |"
    assert any(line.startswith(columns) for line in lines)
    rows = [line.split(" | ") for line in lines if line.startswith(("| tiny-few", "| tiny-one"))]
    assert rows[0][2].startswith("WRONG") and rows[0][3] == ""
    assert rows[1][2] == "" and rows[1][3] != ""


@pytest.mark.parametrize("name", [n for n in KNOWN if not is_ours(n)])
def test_each_installed_contender_computes_what_it_takes_part_in(name):
    contender = KNOWN[name]
    if not contender.is_installed():
        pytest.skip(f"{name} is not installed")
    taken = [w for w in (HALF, CACHED, RAGGED, MIX) if contender.takes_part(w)]
    for workload in (dataclasses.replace(HALF, dtype="bfloat16"),) if taken else ():
        if serving.has_dtype(workload):
            taken.append(workload)
    with team.Team([contender], 1) as found:
        for workload in taken:
            (result,) = rounds.run_workload(found, workload, 0, BUDGET)["results"]
            assert result["status"] in ("ok", "cannot"), (workload.name, result)
