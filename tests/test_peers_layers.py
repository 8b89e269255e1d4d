# SPDX-License-Identifier: MIT
# The comparison of layers: workloads, their formulas in float64, verdicts, tables, the loop.
# Used by pytest; needs no other system, and checks those that are installed.
# What all comparisons have in common is in test_peers.py.
"""python -m bench.peers with layers: a decoding loop, documents, multi-head attention."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fastattn._cli import ceilings, facts, workloads

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "bench" / "peers.py").exists():
    pytest.skip("bench/ is not beside the tests", allow_module_level=True)
sys.path.insert(0, str(ROOT))  # where `python -m bench.peers` finds it

from fake_contenders import Forgetful, WrongLayer  # noqa: E402

from bench import contenders, layers, ours, peers, rounds, serving, team  # noqa: E402
from bench.reference import Reference  # noqa: E402

LOOP = layers.Seq2Seq("tiny-loop", "layer", 3, 1, 1, 4, 7, 16)
STEPS = dataclasses.replace(LOOP, name="tiny-steps", has_prepared_keys=True)
PAGES = layers.Documents(
    "tiny-pages", "layer", 1, 1, 1, 3, 22, 8, units=6, documents=((3, 12), (1,), (2, 1, 3))
)
HEADS = layers.MultiHead("tiny-heads", "prefill", 2, 4, 4, 9, 9, 8)
CAUSAL = dataclasses.replace(HEADS, name="tiny-heads-causal", is_causal=True)
TINY = (LOOP, STEPS, PAGES, HEADS, CAUSAL)
BUDGET = {"seconds": 0.0, "at_least": 2, "at_most": 2}
KNOWN = contenders.known()


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Limits that take no time."""
    monkeypatch.setattr(ceilings, "SAMPLE_SECONDS", 1e-4)


def measured(chosen, *tiny) -> list:
    with team.Team(chosen, 2) as found:
        return [rounds.run_workload(found, workload, 0, BUDGET) for workload in tiny]


def reference(workload) -> tuple:
    """Its inputs, and what is right."""
    inputs = workload.make(np.random.default_rng(0))
    return inputs, Reference(workload, inputs, np.random.default_rng(1))


@pytest.mark.parametrize("workload", [*TINY, *layers.WORKLOADS], ids=lambda w: w.name)
def test_a_workload_survives_the_way_to_its_process(workload):
    fields = json.loads(json.dumps(dataclasses.asdict(workload)))
    found = serving.from_fields(fields)
    assert found == workload and type(found) is type(workload)
    assert serving.group(found) == "layers"


def test_fastattn_and_numpy_are_right_and_have_no_limit_but_in_mha():
    for run in measured([contenders.FastAttn, contenders.NumPy], *TINY):
        assert run["group"] == "layers" and run["n_rows_compared"] == run["n_rows"]
        for result in run["results"]:
            assert result["status"] == "ok" and result["max_error"] < 2e-6, run["name"]
            assert len(result["samples_s"]) == 2 and result["times_fastattn"] > 0
            rate = run["flops"] / result["min_s"] if "heads" in run["name"] else None
            assert result["rate"] == rate
        assert (run["limit"] is None) == (rate is None or facts.native() is None)


def test_notes_say_where_the_keys_are_prepared():
    loop, steps = measured([contenders.FastAttn], LOOP, STEPS)
    assert "in the time" in loop["results"][0]["note"]
    assert "beforehand" in steps["results"][0]["note"]


def test_needed_operations_are_counted():
    assert HEADS.flops == HEADS.amount == 2 * 4 * 18 * 32**2 + 4 * 2 * 4 * 81 * 8
    assert CAUSAL.flops == 2 * 4 * 18 * 32**2 + 4 * 2 * 4 * 45 * 8
    assert LOOP.flops - STEPS.flops == 2 * 3 * 7 * 16**2 and LOOP.amount is None
    assert PAGES.flops == 2 * (22 + 6) * (8 * 6 + 6 + 8)


def test_the_documents_are_those_of_the_title():
    (han,) = (w for w in layers.WORKLOADS if isinstance(w, layers.Documents))
    assert (len(han.documents), han.head_size, han.units) == (256, 200, 100)
    lengths = han.sentence_lengths
    assert (lengths.min(), lengths.max(), lengths.sum()) == (3, 40, han.n_keys)
    assert (han.document_lengths.min(), han.document_lengths.max()) == (2, 30)


def test_the_formula_of_documents_forgets_no_word():
    inputs, found = reference(PAGES)
    words, start, sentences = inputs["words"].astype(np.float64), 0, []
    for n_words in PAGES.sentence_lengths:
        some = words[start : start + n_words]
        start += n_words
        hidden = np.tanh(some @ inputs["word_weight"] + inputs["word_bias"])
        weights = np.exp(hidden @ inputs["word_query"])
        sentences.append(weights @ some / weights.sum())
    last = np.array(sentences[-3:])
    hidden = np.tanh(last @ inputs["sentence_weight"] + inputs["sentence_bias"])
    weights = np.exp(hidden @ inputs["sentence_query"])
    wanted = weights @ last / weights.sum()
    np.testing.assert_allclose(found._expected.out[0, 0, 2], wanted, rtol=1e-12)


@pytest.mark.parametrize("workload", TINY, ids=lambda w: w.name)
def test_rounding_to_16_bits_is_wrong_and_float32_is_not(workload):
    inputs, found = reference(workload)
    out = found._expected.out
    assert found.judge(out.astype(np.float32)).is_correct
    assert not found.judge(out.astype(np.float16).astype(np.float32)).is_correct
    prepared = contenders.NumPy(1).prepare_layer(workload, inputs)
    assert found.judge(prepared.to_numpy(prepared.call()), "numpy").is_correct


def test_a_wrong_layer_gets_no_time():
    chosen = [contenders.FastAttn, WrongLayer, Forgetful]
    loop, causal = measured(chosen, LOOP, CAUSAL)
    for run, status in ((loop, "ok"), (causal, "wrong")):
        fine, wrong, forgetful = run["results"]
        assert fine["status"] == "ok"
        assert wrong["status"] == "wrong" and wrong["min_s"] is None
        assert wrong["max_error"] == pytest.approx(1e-3, rel=0.1)
        assert forgetful["status"] == status  # it has no causal mask


def test_who_has_no_layers_is_not_started():
    for name in ("ort-attention", "openvino", "jax", "keras", "torch-loop"):
        assert not KNOWN[name].takes_part(LOOP)
        with pytest.raises(contenders.CannotDo, match="no layers"):
            KNOWN[name].prepare_layer(None, LOOP, {})
    assert not any(storage.takes_part(HEADS) for storage in ours.STORAGES)
    for name in ("fastattn", "torch", "torch-compile", "numpy"):
        assert all(map(KNOWN[name].takes_part, TINY))


def test_the_group_is_measured_when_it_is_asked_for(monkeypatch, capsys):
    def plan(*arguments):
        args = peers.parser().parse_args(["--threads", "1", *arguments])
        return [workload.name for _, workload in peers._plan(args)]

    every = [workload.name for workload in layers.WORKLOADS]
    assert plan("--group", "layers") == every
    assert plan("--group", "layers", "--quick") == ["seq2seq", "han", "mha-b8", "mha-b1"]
    assert plan("--workload", "mha-b8") == ["mha-b8"]
    assert not set(every) & set(plan())
    assert peers.main(["--list"]) == 0
    assert "256 documents 4004 sentences 86243 words D200 U100" in capsys.readouterr().out


def test_the_tables_and_the_picture_of_the_group(monkeypatch, tmp_path):
    monkeypatch.setattr(workloads, "WORKLOADS", ())
    monkeypatch.setattr(serving, "WORKLOADS", TINY)
    chosen = {cls.name: cls for cls in (contenders.FastAttn, contenders.NumPy)}
    monkeypatch.setattr(contenders, "known", lambda: chosen)
    monkeypatch.setattr(peers, "QUICK", BUDGET)
    path = tmp_path / "peers.md"
    arguments = ["--quick", "--group", "layers", "--threads", "1", "--markdown", str(path)]
    try:
        import matplotlib  # noqa: F401

        arguments += ["--plots", str(tmp_path / "pictures")]
    except ImportError:
        pass
    assert peers.main(arguments) == 0
    lines = path.read_text().splitlines()
    assert "## 1 thread, layers: shortest times" in lines
    assert any(line.startswith("* Layers: weights are in each one's own form") for line in lines)
    assert sum(line.startswith("| tiny-") for line in lines) == 3 * len(TINY)
    if "--plots" in arguments:
        assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["layers.png"]


@pytest.mark.parametrize("name", ["torch", "torch-compile"])
def test_pytorch_computes_layers_where_it_is_installed(name):
    if not KNOWN[name].is_installed():
        pytest.skip("PyTorch is not installed")
    for run in measured([KNOWN[name]], *TINY):
        (result,) = run["results"]
        assert result["status"] in ("ok", "cannot"), result
        if result["status"] == "ok":
            assert result["max_error"] < 2e-6
            is_module = name == "torch" and "heads" in run["name"]
            assert ("fast path" in (result["note"] or "")) == is_module
