# SPDX-License-Identifier: MIT
# The comparison with other systems: its verdicts, its document, and contenders that fail.
# Used by pytest; needs no other system, and checks those that are installed.
# It checks no speed, and no wording beyond what a reader has to be told.
"""python -m bench.peers, with NumPy and made-up contenders in the place of other systems."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from fastattn.__main__ import main as fastattn_main
from fastattn._cli import bench as bench_command
from fastattn._cli import ceilings, facts, measure, workloads
from fastattn._cli.workloads import Workload, by_name

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "bench" / "peers.py").exists():
    pytest.skip("bench/ is not beside the tests", allow_module_level=True)
sys.path.insert(0, str(ROOT))  # where `python -m bench.peers` finds it

from fake_contenders import (  # noqa: E402
    Dies,
    Missing,
    NaN,
    NoImport,
    Raises,
    Refuses,
    TellsMode,
    Wrong,
    WrongFastAttn,
)

from bench import contenders, peers, rounds, tables, team  # noqa: E402

PREFILL = Workload("tiny-prefill", "prefill", 2, 3, 3, 17, 17, 8)
CAUSAL = Workload("tiny-causal", "prefill", 1, 4, 2, 33, 33, 16, is_causal=True)
DECODE = Workload("tiny-decode", "decode", 2, 6, 2, 1, 65, 8)
STEP = Workload("tiny-step", "additive", 3, 1, 1, 1, 21, 16, has_prepared_keys=True)
TINY = (PREFILL, CAUSAL, DECODE, STEP)
KNOWN = list(contenders.known())


@pytest.fixture
def tiny(monkeypatch):
    """Workloads and limits that take no time."""
    monkeypatch.setattr(workloads, "WORKLOADS", TINY)
    monkeypatch.setattr(peers, "LENGTHS", (Workload("length-8", "prefill", 1, 4, 4, 8, 8, 64),))
    monkeypatch.setattr(ceilings, "READ_BYTES", 2**20)
    monkeypatch.setattr(ceilings, "SAMPLE_SECONDS", 1e-4)
    monkeypatch.setattr(peers, "QUICK", {"seconds": 0.0, "at_least": 2, "at_most": 2})


@pytest.fixture
def compare(monkeypatch, tmp_path, tiny):
    """compare(contenders, *arguments) -> (exit status, JSON document)."""

    def run(chosen, *arguments):
        known = {contender.name: contender for contender in chosen}
        monkeypatch.setattr(contenders, "known", lambda: known)
        path = tmp_path / "peers.json"
        status = peers.main(["--quick", "--json", str(path), *arguments])
        return status, json.loads(path.read_text()) if path.exists() else None

    return run


def by_contender(run):
    return {result["contender"]: result for result in run["results"]}


def test_the_document_has_every_workload_thread_count_and_contender(compare):
    chosen = [contenders.FastAttn, contenders.NumPy]
    status, document = compare(chosen, "--threads", "1", "2")
    assert status == 0 and document["missing"] == []
    assert [c["name"] for c in document["contenders"]] == ["fastattn", "numpy"]
    assert all(c["version"] for c in document["contenders"])
    plan = [(run["n_threads"], run["name"]) for run in document["runs"]]
    assert plan == [(n, workload.name) for n in (1, 2) for workload in TINY]
    for run in document["runs"]:
        assert run["n_rounds"] == 2
        assert (run["limit"] is not None) == (facts.native() is not None)
        assert [result["contender"] for result in run["results"]] == ["fastattn", "numpy"]
        for result in run["results"]:
            assert result["status"] == "ok" and result["max_error"] < 1e-5
            assert len(result["samples_s"]) == 2
            assert 0 < result["min_s"] <= result["median_s"]
            assert (result["share_of_limit"] is None) == (run["limit"] is None)
            assert result["peak_bytes"] is None or result["peak_bytes"] >= 0
        ours, numpy = run["results"]
        assert ours["times_fastattn"] == 1
        assert numpy["times_fastattn"] == pytest.approx(numpy["min_s"] / ours["min_s"])


@pytest.mark.parametrize(("fake", "error"), [(Wrong, 1e-3), (NaN, None)])
def test_a_wrong_result_is_reported_and_not_timed(compare, capsys, fake, error):
    status, document = compare([contenders.FastAttn, fake], "--workload", "tiny-prefill")
    assert status == 0  # the fault is not ours
    result = by_contender(document["runs"][0])[fake.name]
    assert result["status"] == "wrong" and result["min_s"] is None and result["rate"] is None
    assert result["max_error"] == (error and pytest.approx(error, rel=0.1))
    assert tables.best_peer(document["runs"][0]) is None
    assert "WRONG" in capsys.readouterr().out


def test_a_wrong_fastattn_is_an_error(compare):
    status, _ = compare([WrongFastAttn, contenders.NumPy], "--workload", "tiny-prefill")
    assert status == 1


def test_what_a_contender_cannot_do_is_said(compare, capsys):
    _, document = compare([contenders.FastAttn, Refuses])
    found = [by_contender(run)["refuses"]["status"] for run in document["runs"]]
    assert found == ["ok", "cannot", "ok", "ok"]
    text = capsys.readouterr().out
    assert "n/a (a)" in text and "(a) Refuses: no such call: no causal mask." in text


def test_a_missing_contender_is_named_with_what_brings_it(compare, capsys):
    status, document = compare([contenders.NumPy, Missing], "--workload", "tiny-decode")
    assert status == 0
    assert [c["name"] for c in document["contenders"]] == ["numpy"]
    assert document["missing"] == [
        {"name": "missing", "title": "Missing", "pip": "pip install no-such-package"}
    ]
    assert "Missing (missing) is not installed: pip install no-such-package" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--contender", "missing"], "missing is not installed: pip install no-such-package"),
        (["--contender", "nump"], "unknown contender 'nump', did you mean 'numpy'?"),
        (["--workload", "tiny"], "unknown workload 'tiny'"),
        (["--markdown", "no/such/folder/x.md"], "--markdown: cannot write into "),
    ],
)
def test_a_request_that_cannot_be_carried_out(compare, capsys, arguments, message):
    status, document = compare([contenders.NumPy, Missing], *arguments)
    assert (status, document) == (2, None)
    assert message in capsys.readouterr().err


def test_a_contender_that_fails_does_not_stop_the_others(compare, capsys):
    chosen = [contenders.FastAttn, NoImport, Raises, Dies]
    status, document = compare(chosen, "--workload", "tiny-prefill", "--workload", "tiny-causal")
    assert status == 0
    first, second = map(by_contender, document["runs"])
    assert first["fastattn"]["status"] == second["fastattn"]["status"] == "ok"
    assert "ImportError: a library is too old" in first["no-import"]["reason"]
    assert first["raises"]["reason"] == "ValueError: out of luck"
    assert second["raises"]["status"] == "ok"
    for run in (first, second):
        assert run["dies"]["status"] == "failed" and run["dies"]["min_s"] is None
        assert "exit status 7" in run["dies"]["reason"]
    assert "failed" in capsys.readouterr().out


def test_turns_are_taken_round_by_round():
    events = []

    class Limit:
        def sample(self):
            events.append("limit")
            return 5.0

    samplers = {
        "a": lambda: events.append("a") or 1.0,
        "b": lambda: events.append("b"),  # None: it has failed
    }
    times, (limit,) = measure.take_turns(
        samplers,
        [Limit()],
        seconds=0.0,
        at_least=2,
        at_most=2,
        settle=lambda: events.append("settle"),
    )
    assert events == ["settle", "limit", "a", "settle", "limit", "b"] * 2
    assert (times["a"].values, times["b"].values, limit.values) == ([1.0] * 2, [], [5.0] * 4)


def test_processes_are_limited_to_their_cpus_and_end_with_the_team():
    with team.Team([contenders.NumPy], 1) as found:
        process = found.members[0]._process
        if hasattr(os, "sched_getaffinity"):
            found.settle()
            assert not found.members[0].is_busy()
            assert len(os.sched_getaffinity(process.pid)) == 1
    assert process.poll() is not None


def test_an_interrupt_prints_what_is_done(compare, monkeypatch, capsys):
    real = rounds.run_workload

    def interrupted(found, workload, *arguments):
        if workload is CAUSAL:
            raise KeyboardInterrupt
        return real(found, workload, *arguments)

    monkeypatch.setattr(rounds, "run_workload", interrupted)
    status, document = compare([contenders.NumPy])
    assert status == 130
    assert [run["name"] for run in document["runs"]] == ["tiny-prefill"]
    assert "\ntiny-prefill " in capsys.readouterr().out


def test_markdown_has_the_tables_and_the_notes(compare, tmp_path):
    path = tmp_path / "peers.md"
    compare([contenders.FastAttn, Refuses], "--markdown", str(path), "--workload", "tiny-causal")
    lines = path.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| tiny-causal ")]
    assert len(rows) == 2 and all(line.endswith(" |") for line in rows)
    assert "* (a) Refuses: no such call: no causal mask." in lines


def test_plots_are_drawn(compare, tmp_path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "new" / "pictures"
    names = ["--threads", "1", "2", "--workload", "tiny-decode", "--workload", "tiny-step"]
    compare([contenders.FastAttn, contenders.NumPy], "--plots", str(folder), *names)
    wanted = {"time_by_length.png", "threads.png"}
    wanted |= {"share_of_limit.png", "additive.png"} if facts.native() else set()
    assert {path.name for path in folder.iterdir()} == wanted


def test_plots_without_matplotlib_are_refused(compare, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert compare([contenders.NumPy], "--plots", "x") == (2, None)
    assert "pip install 'fastattn[bench]'" in capsys.readouterr().err


def test_bench_peers_hands_the_rest_of_the_line_over(capsys):
    assert fastattn_main(["bench", "--peers", "--list"]) == 0
    assert "ort-attention" in capsys.readouterr().out


def test_bench_peers_says_where_it_is_to_be_found(monkeypatch, capsys):
    def not_found(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(bench_command, "import_module", not_found)
    assert fastattn_main(["bench", "--peers", "--quick"]) == 2
    assert "bench/peers.py of the source tree" in capsys.readouterr().err


@pytest.mark.skipif(not contenders.Torch.is_installed(), reason="needs PyTorch")
def test_pytorch_stays_in_inference_mode():
    with team.Team([TellsMode], 1) as found:
        run = rounds.run_workload(found, PREFILL, 0, {"seconds": 0, "at_least": 1, "at_most": 1})
    assert run["results"][0]["reason"] == "inference mode True"


@pytest.mark.parametrize("name", KNOWN)
def test_each_installed_contender_computes_attention(name):
    contender = contenders.known()[name]
    for package in contender.packages:
        if not contender.is_installed():
            pytest.skip(f"{package} is not installed")
    budget = {"seconds": 0.0, "at_least": 1, "at_most": 1}
    with team.Team([contender], 2) as found:
        for workload in (*TINY, by_name("smallest")):
            run = rounds.run_workload(found, workload, 0, budget)
            (result,) = run["results"]
            assert result["status"] in ("ok", "cannot"), result
            if result["status"] == "ok":
                assert result["min_s"] > 0 and result["max_error"] < 1e-5
