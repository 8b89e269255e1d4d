# SPDX-License-Identifier: MIT
# The command line: what it prints, what it refuses, and its exit status.
# Used by pytest; every command runs in this process, a few again in a child.
# It checks no speed, and no wording beyond what a script or a bug report relies on.
"""python -m fastattn info, selftest, bench."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import numpy as np
import pytest

import fastattn
from fastattn.__main__ import main
from fastattn._cli import bench, ceilings, console, info, workloads
from fastattn._cli.workloads import Workload, by_name


@contextmanager
def start_child(*arguments):
    """Start a Python that imports this very package; it does not outlive the block."""
    paths = [str(Path(fastattn.__file__).parents[1]), os.environ.get("PYTHONPATH")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    arguments = [sys.executable, "-W", "ignore", *arguments]
    with Popen(arguments, env=env, stdout=PIPE, stderr=PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def test_version_from_a_child():
    with start_child("-m", "fastattn", "--version") as child:
        out, err = child.communicate(timeout=60)
    assert (out.strip(), err) == (f"fastattn {fastattn.__version__}", "")


def test_no_command_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as raised:
        main([])
    assert raised.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_info_says_what_was_chosen_and_why(capsys, backend):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    config = fastattn.show_config(as_dict=True)
    for name in ("version", "backend", "threads_reason", "compiler", "numpy", "python"):
        assert str(config[name]) in text
    chosen = [line for line in text.splitlines() if line.endswith("chosen")]
    assert len(chosen) == 1 and chosen[0].split()[0] == backend


def test_info_json_repeats_show_config(capsys):
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    config = fastattn.show_config(as_dict=True)
    assert {name: found[name] for name in config} == config
    runs_here = [entry["name"] for entry in found["compiled"] if entry["runs_here"]]
    assert [*runs_here, "numpy"] == fastattn.backends()


def test_info_tells_how_to_get_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr(info, "find_spec", lambda name: None)
    assert main(["info"]) == 0
    assert "pip install 'fastattn[bench]'" in capsys.readouterr().out


def test_selftest_passes(capsys, backend):
    assert main(["selftest", "--cases", "30", "--backend", backend]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith(backend)] == [
        [backend, "30", "ok"]
    ]


def test_selftest_covers_every_backend_by_default(capsys):
    assert main(["selftest", "--cases", "1"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{name} " in text for name in fastattn.backends())


def test_selftest_reports_a_wrong_result_and_how_to_see_it_again(capsys, monkeypatch):
    right = fastattn.scaled_dot_product_attention

    def wrong(*args, **options):
        results = right(*args, **options)
        results[0][...] += np.asarray(1).astype(results[0].dtype)
        return results

    monkeypatch.setattr(fastattn, "scaled_dot_product_attention", wrong)
    assert main(["selftest", "--cases", "2", "--seed", "4", "--backend", "numpy"]) == 1
    text = capsys.readouterr().out
    assert "2 FAILED" in text
    again = [line for line in text.splitlines() if line.startswith("again: python -m fastattn ")]
    assert len(again) == 2
    assert main(again[1].split()[4:]) == 1
    assert "numpy, case 1: FAILED" in capsys.readouterr().out


def test_selftest_reports_an_exception_as_a_failure(capsys, monkeypatch):
    def broken(*args, **options):
        raise SystemError("contract broken")

    monkeypatch.setattr(fastattn, "scaled_dot_product_attention", broken)
    assert main(["selftest", "--cases", "1", "--backend", "numpy"]) == 1
    assert "SystemError: contract broken" in capsys.readouterr().out


@pytest.fixture
def tiny(monkeypatch):
    """Workloads and measurements that take no time, one of each kind."""
    prefill = Workload("tiny-prefill", "prefill", 1, 2, 2, 33, 33, 8)
    decode = Workload("tiny-decode", "decode", 1, 4, 2, 1, 65, 8)
    additive = Workload("tiny-additive", "additive", 2, 1, 1, 9, 33, 8)
    monkeypatch.setattr(workloads, "WORKLOADS", (prefill, decode, by_name("smallest"), additive))
    monkeypatch.setattr(ceilings, "READ_BYTES", 2**20)
    monkeypatch.setattr(ceilings, "SAMPLE_SECONDS", 1e-4)
    monkeypatch.setattr(bench, "QUICK", (0.0, 2, 2))


def test_bench_json_has_times_rates_and_the_verdict(capsys, backend, tiny):
    assert main(["bench", "--quick", "--json", "--backend", backend]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["backend"] == backend
    names = [workload.name for workload in workloads.WORKLOADS]
    assert [result["name"] for result in document["workloads"]] == names
    for result in document["workloads"]:
        assert result["is_correct"] and result["max_error"] < 1e-5
        assert 0 < result["min_s"] <= result["median_s"]
        assert result["n_rounds"] == 2
        has_rate = result["kind"] != "call"
        assert (result["rate"] is not None) == has_rate
        assert (result["limit"] is not None) == (has_rate and backend != "numpy")
        is_divided = result["kind"] == "additive" and backend != "numpy"
        assert (result["share_of_divide_limit"] is not None) == is_divided


def test_bench_prints_a_table_and_writes_the_same_as_json(capsys, tmp_path, tiny):
    path = tmp_path / "bench.json"
    assert main(["bench", "--quick", "--workload", "smallest", "--json", str(path)]) == 0
    assert "\nsmallest " in capsys.readouterr().out
    assert [w["name"] for w in json.loads(path.read_text())["workloads"]] == ["smallest"]


def test_bench_prints_both_limits_of_additive_scores(capsys, backend, tiny):
    arguments = ["bench", "--quick", "--workload", "tiny-additive", "--backend", backend]
    assert main(arguments) == 0
    text = " ".join(capsys.readouterr().out.split())
    has_limits = backend != "numpy"
    assert " G tanh/s" in text
    assert bool(re.search(r"\d% / \d+%", text)) == has_limits
    assert bool(re.search(r"divide [\d. to]+ G tanh/s", text)) == has_limits


def test_bench_uses_the_threads_asked_for(capsys, tiny):
    assert main(["bench", "--quick", "--workload", "smallest", "--json", "--threads", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["n_threads"] == 3


def test_bench_fails_on_a_wrong_result(capsys, monkeypatch, tiny):
    right = fastattn.scaled_dot_product_attention
    monkeypatch.setattr(
        fastattn,
        "scaled_dot_product_attention",
        lambda *args, **options: right(*args, **options) + 1,
    )
    assert main(["bench", "--quick", "--workload", "smallest"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_bench_mentions_a_variable_that_slows_numpy(capsys, monkeypatch, tiny):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    assert main(["bench", "--quick", "--workload", "smallest"]) == 0
    assert "OPENBLAS_CORETYPE=Prescott" in capsys.readouterr().out


def test_bench_list_names_every_workload(capsys):
    assert main(["bench", "--list"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{workload.name} " in text for workload in workloads.WORKLOADS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--workload", "s51"], "unknown workload 's51', did you mean 's512'?"),
        (["bench", "--backend", "mmx"], "--backend: expected one of "),
        (["selftest", "--backend", "mmx"], "--backend: expected one of "),
        (["bench", "--json", "no/such/folder/x.json"], "--json: cannot write into "),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(capsys, arguments, message):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


@pytest.mark.parametrize("number", ["0", "-1", "1025", "two"])
def test_a_bad_number_of_threads_is_refused(capsys, number):
    with pytest.raises(SystemExit) as raised:
        main(["bench", "--threads", number])
    assert raised.value.code == 2
    assert "from 1 to 1024" in capsys.readouterr().err


def test_plot_without_matplotlib_tells_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    assert main(["bench", "--plot", "x.png"]) == 2
    assert "pip install 'fastattn[bench]'" in capsys.readouterr().err


def test_plot_is_drawn(tmp_path, tiny):
    pytest.importorskip("matplotlib")
    path = tmp_path / "bench.svg"
    assert main(["bench", "--quick", "--plot", str(path)]) == 0
    assert path.read_text().lstrip().startswith("<?xml")


def test_an_interrupt_prints_what_is_done_and_exits_with_130(capsys, monkeypatch, tiny):
    real = bench._measure

    def interrupted(workload, *args):
        if workload.name == "tiny-decode":
            raise KeyboardInterrupt
        return real(workload, *args)

    monkeypatch.setattr(bench, "_measure", interrupted)
    assert main(["bench", "--quick"]) == 130
    captured = capsys.readouterr()
    assert "\ntiny-prefill " in captured.out and "\ntiny-decode " not in captured.out
    assert captured.err == "interrupted\n"


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for one child on Windows")
def test_ctrl_c_ends_a_child_without_a_traceback():
    code = """
import signal
from fastattn.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
print("ready", flush=True)
exit(main())
"""
    with start_child("-c", code, "selftest", "--cases", "1000000") as child:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == 130
        assert child.stderr.read() == "interrupted\n"


@pytest.mark.skipif(os.name == "nt", reason="another error on Windows")
def test_a_closed_pipe_is_no_error():
    with start_child("-m", "fastattn", "bench", "--list") as child:
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(timeout=60) == 0


def test_a_table_wider_than_the_terminal_becomes_one_list_per_row(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "20")
    console.table(["name", "first", "second"], [["row", "1" * 12, "2" * 12]])
    assert capsys.readouterr().out.split() == ["row", "first", "1" * 12, "second", "2" * 12]
