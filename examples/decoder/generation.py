# SPDX-License-Identifier: MIT
# Prompts to tokens: prefill in chunks, then one token at a time, for a ragged batch.
# Used by generate.py and comparison.
# It knows ids only; text belongs to smollm2.
"""Generation over caches, and the same without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .model import Model, forward, logits, new_caches

Choice = Callable[[np.ndarray], np.ndarray]  # logits (batch, vocabulary) -> tokens (batch,)
Prompts = Sequence[np.ndarray]  # int64, at least one token each, of any lengths


def greedy(scores: np.ndarray) -> np.ndarray:
    """The likeliest token of each row."""
    return scores.argmax(axis=-1)


def sampler(temperature: float, top_k: int = 0, *, seed: int = 0, batch: int = 1) -> Choice:
    """A choice that draws from softmax(scores / temperature) of the `top_k` best (0: of all).

    Each entry of the batch has a generator of its own: what it draws does not depend on the others.
    """
    rngs = np.random.default_rng(seed).spawn(batch)

    def draw(row: np.ndarray, rng: np.random.Generator) -> int:
        row = row.astype(np.float64)
        tokens = np.arange(len(row))
        if 0 < top_k < len(row):
            tokens = np.sort(np.argpartition(row, -top_k)[-top_k:])
        # The largest of scores with Gumbel noise is a draw from their softmax.
        noisy = (row[tokens] - row.max()) / temperature + rng.gumbel(size=len(tokens))
        return tokens[noisy.argmax()]

    return lambda scores: np.array([draw(row, rng) for row, rng in zip(scores, rngs)])


def padded(prompts: Prompts) -> tuple[np.ndarray, np.ndarray]:
    """(batch, longest) ids, 0 behind each prompt, and the lengths."""
    lengths = np.array([len(prompt) for prompt in prompts])
    ids = np.zeros((len(prompts), lengths.max()), np.int64)
    for row, prompt in zip(ids, prompts):
        row[: len(prompt)] = prompt
    return ids, lengths


def prefill(model: Model, caches: Sequence[Any], prompts: Prompts, chunk: int = 512) -> np.ndarray:
    """Append the prompts, `chunk` tokens at a time; the logits behind the last token of each."""
    ids, lengths = padded(prompts)
    last = np.empty((len(ids), model.config.width), np.float32)
    for start in range(0, ids.shape[1], chunk):
        part = ids[:, start : start + chunk]
        counts = np.clip(lengths - start, 0, part.shape[1])
        states = forward(model, part, caches, lengths=counts)
        ending = np.flatnonzero((counts > 0) & (start + counts == lengths))
        last[ending] = states[ending, counts[ending] - 1]
    return logits(model, last)


def generate(
    model: Model,
    prompts: Prompts,
    n_tokens: int,
    *,
    choose: Choice = greedy,
    chunk: int = 512,
    dtype: Any = "float32",
) -> Iterator[np.ndarray]:
    """Yield the next token of every prompt, int64 (batch,), `n_tokens` times; stop when you like.

    `dtype` is that of the caches: "float32", "float16" or "bfloat16".
    """
    capacity = max(map(len, prompts)) + n_tokens
    caches = new_caches(model.config, len(prompts), capacity=capacity, dtype=dtype)
    scores = prefill(model, caches, prompts, chunk)
    for step in range(n_tokens):
        tokens = choose(scores)
        yield tokens
        if step + 1 < n_tokens:
            scores = logits(model, forward(model, tokens[:, None], caches)[:, 0])


def generate_without_cache(
    model: Model,
    prompts: Prompts,
    n_tokens: int,
    *,
    choose: Choice = greedy,
    dtype: Any = "float32",
) -> Iterator[np.ndarray]:
    """The same tokens, each by a pass over the whole sequence: what a cache saves."""
    sequences = [np.asarray(prompt) for prompt in prompts]
    for _ in range(n_tokens):
        ids, lengths = padded(sequences)
        states = forward(model, ids, dtype=dtype)
        tokens = choose(logits(model, states[np.arange(len(ids)), lengths - 1]))
        yield tokens
        sequences = [np.append(sequence, token) for sequence, token in zip(sequences, tokens)]
