# SPDX-License-Identifier: MIT
# Generates tokens by a decoder of Llama's kind in NumPy, its keys and values in fastattn.KVCache.
# Run by people as a script; its test imports main. The model is in the folder decoder.
# It has no PyTorch (--compare uses it if there is one), downloads nothing and trains nothing.
"""Text generation over a KV cache; `python generate.py --help` says how."""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from decoder import comparison, smollm2
from decoder.generation import generate, greedy, sampler
from decoder.model import Config, Model, random_model

import fastattn

DESCRIPTION = """\
Generate tokens by a decoder of Llama's kind in plain NumPy, with fastattn.KVCache.

The default model has random weights: it needs NumPy alone, and what it says is noise.
--model smollm2 is a real one of 135 million weights that answers in English."""

EPILOG = f"""\
examples:
  python generate.py                             random weights, one prompt of 32 tokens
  python generate.py --context 40 3 17           a ragged batch of three prompts
  python generate.py --model smollm2 "What is the capital of France?" "Name a fruit."
  python generate.py --compare                   with the cache, without one, and in PyTorch
  python generate.py --compare --context 4096    the same where attention costs something

--model smollm2 needs: {smollm2.INSTALL}
--compare uses PyTorch if it is installed, and rich for its table.
OMP_NUM_THREADS=1 sets the threads of fastattn, NumPy and PyTorch; FASTATTN_BACKEND=numpy (or
another name of fastattn.backends()) forces a backend."""

ROUNDS = 3
SIZES = {  # option: field of Config
    "layers": "n_layers",
    "width": "width",
    "heads": "n_heads",
    "kv-heads": "n_kv_heads",
    "hidden": "hidden",
    "vocabulary": "vocabulary",
}
LOWEST = {"tokens": 1, "chunk": 1, "top-k": 0, "seed": 0, "rounds": 1}
LOWEST |= {name: 1 for name in SIZES}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("prompt", nargs="*", help="texts, each a prompt of its own (--model smollm2 only)")
    add("--model", choices=("random", "smollm2"), default="random", help="default: random")
    add(
        "--context",
        type=int,
        nargs="+",
        metavar="N",
        help="prompts of N random tokens instead of texts (default: one of 32)",
    )
    add("--tokens", type=int, default=64, metavar="N", help="to generate (default: 64)")
    add("--chunk", type=int, default=512, metavar="N", help="tokens of a prefill (default: 512)")
    add(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        default="float32",
        help="of the cache; queries stay float32 (default: float32)",
    )
    add("--temperature", type=float, default=0.0, metavar="T", help="0, the default, is greedy")
    add(
        "--top-k", type=int, default=0, metavar="K", help="draw from the K likeliest (default: all)"
    )
    add("--seed", type=int, default=0, help="of draws, weights and random prompts (default: 0)")

    sizes = parser.add_argument_group("sizes of the random model")
    for name, field in SIZES.items():
        default = getattr(Config(), field)
        sizes.add_argument(
            f"--{name}", dest=field, type=int, metavar="N", help=f"default: {default}"
        )
    sizes.add_argument("--tied", action="store_true", help="the head is the embedding")

    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--compare", action="store_true", help="time three ways to the same greedy tokens"
    )
    group.add_argument("--rounds", type=int, metavar="N", help=f"all in turn (default: {ROUNDS})")
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit with a message where an option makes no sense."""
    for name, lowest in LOWEST.items():
        value = getattr(options, SIZES.get(name, name.replace("-", "_")))
        if value is not None and value < lowest:
            parser.error(f"--{name}: expected at least {lowest}, got {value}")
    if not 0 <= options.temperature < math.inf:
        parser.error(f"--temperature: expected a number from 0 on, got {options.temperature}")
    if options.top_k and not options.temperature:
        parser.error("--top-k draws, which --temperature 0 does not: give a --temperature")
    for n in options.context or ():
        if n < 1:
            parser.error(f"--context: expected at least 1, got {n}")
    if options.prompt and options.context:
        parser.error("--context replaces the prompt: give one of them")
    if not all(text.strip() for text in options.prompt):
        parser.error("a prompt is empty")
    if options.model == "random" and options.prompt:
        parser.error("random weights read no text: add --model smollm2, or use --context")
    if options.compare:
        if options.temperature:
            parser.error("--compare is greedy: leave --temperature out")
        if options.tokens < 2:
            parser.error("--compare: expected --tokens of at least 2")
    elif options.rounds is not None:
        parser.error("--rounds belongs to --compare")


def _model(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Model:
    """The model that was asked for; ModuleNotFoundError where one of its packages is missing."""
    given = {field: getattr(options, field) for field in SIZES.values()}
    given = {field: value for field, value in given.items() if value is not None}
    if options.model == "smollm2":
        if given or options.tied:
            parser.error("--model smollm2 has sizes of its own")
        smollm2.load_tokenizer()
        return smollm2.load_model()
    config = Config()._replace(**given)
    if config.width % (2 * config.n_heads):
        parser.error(f"--width {config.width}: expected a multiple of 2 * {config.n_heads} heads")
    if config.n_heads % config.n_kv_heads:
        parser.error(
            f"--heads {config.n_heads}: expected a multiple of {config.n_kv_heads} kv heads"
        )
    config = config._replace(head_size=config.width // config.n_heads)
    return random_model(config, seed=options.seed, tied=options.tied)


def _prompts(options: argparse.Namespace, config: Config) -> list[np.ndarray]:
    if options.prompt:
        # Bytes that the shell passes outside its encoding arrive as surrogates: no model knows any.
        texts = [text.encode("utf-8", "surrogateescape") for text in options.prompt]
        return [smollm2.encode(text.decode("utf-8", "replace")) for text in texts]
    rng = np.random.default_rng(options.seed)
    return [rng.integers(0, config.vocabulary, n) for n in options.context or [32]]


def _generate(model: Model, prompts: list[np.ndarray], dtype: Any, options: Any) -> None:
    """Generate, and print tokens or text."""
    choose = greedy
    if options.temperature:
        choose = sampler(options.temperature, options.top_k, seed=options.seed, batch=len(prompts))
    end = smollm2.end_of_text() if options.prompt else -1
    rows: list[np.ndarray] = []
    ended = np.zeros(len(prompts), bool)
    start = now = first = time.perf_counter()
    for tokens in generate(
        model, prompts, options.tokens, choose=choose, chunk=options.chunk, dtype=dtype
    ):
        now = time.perf_counter()
        first = first if rows else now
        rows.append(tokens)
        ended |= tokens == end
        if ended.all():
            break
    for i, (prompt, tokens) in enumerate(zip(prompts, np.array(rows).T.tolist())):
        if options.prompt:
            tokens = tokens[: tokens.index(end)] if end in tokens else tokens
            print(f"> {options.prompt[i]}\n{smollm2.decode(tokens).strip()}\n")
        else:
            text = " ".join(map(str, tokens))
            print(textwrap.fill(f"{len(prompt)} tokens -> {text}", 99, subsequent_indent="    "))
    line = f"Prefill of {sum(map(len, prompts))} tokens {1000 * (first - start):.0f} ms"
    if len(rows) > 1:
        seconds = (now - first) / (len(rows) - 1)
        line += f", then {1000 * seconds:.2f} ms a step: {len(prompts) / seconds:.0f} tokens/s"
    print(line)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    _check(parser, options)
    try:
        # The caches know the names of dtypes; NumPy knows bfloat16 by ml_dtypes only.
        dtype = fastattn.KVCache(0, 1, 1, dtype=options.dtype).dtype
    except ImportError as error:
        print(f"{error}", file=sys.stderr)
        return 1
    try:
        model = _model(parser, options)
    except ModuleNotFoundError as error:
        print(f"{error}. This model needs three packages:\n  {smollm2.INSTALL}", file=sys.stderr)
        return 1
    prompts = _prompts(options, model.config)
    longest = max(map(len, prompts)) + options.tokens
    if model.config.max_tokens is not None and longest > model.config.max_tokens:
        parser.error(
            f"{longest} tokens with --tokens: the model knows {model.config.max_tokens} at most"
        )
    if options.compare and len(set(map(len, prompts))) > 1:
        parser.error("--compare: expected prompts of one length")

    c = model.config
    print(
        f"{options.model} model, {model.n_weights() / 1e6:.0f} million weights, {c.n_layers} layers"
        f" of {c.width}, {c.n_heads} heads on {c.n_kv_heads}; cache {dtype}\n"
    )
    is_right = True
    if options.compare:
        is_right = comparison.report(
            model,
            prompts,
            options.tokens,
            chunk=options.chunk,
            dtype=dtype,
            rounds=options.rounds or ROUNDS,
        )
    else:
        _generate(model, prompts, dtype, options)
    print(
        f"fastattn {fastattn.__version__}, backend {fastattn.get_backend()},"
        f" {fastattn.get_num_threads()} thread(s)"
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # a console without a letter prints ? for it
    sys.exit(main())
