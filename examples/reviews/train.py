# SPDX-License-Identifier: MIT
# Trains the judge of reviews in PyTorch and writes weights.npz beside this file. Run by people:
# `python examples/reviews/train.py` (one thread, about a minute); everything is seeded.
# Nothing else needs it or PyTorch. It does not touch the reviews that the example shows.
"""The same model as model.py, with padding and gradients."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import texts
import torch
from torch import nn

STEPS, BATCH, RATE, SEED = 1800, 64, 6e-3, 1
EMBEDDING, SIZE, UNITS, N_BEFORE = 16, 16, 16, 4
FORGET = 0.15  # of the words that do not judge are unknown ones, so that these mean nothing
KEPT = {*texts.WORDS[True], *texts.WORDS[False], "not", "nothing"}


class Pooling(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(size, UNITS)
        self.query = nn.Linear(UNITS, 1, bias=False)

    def forward(self, x, is_real):
        """(..., n, size) to (..., size); rows without anything real give 0."""
        scores = self.query(torch.tanh(self.hidden(x)))[..., 0]
        alpha = torch.softmax(scores.masked_fill(~is_real, -1e9), dim=-1) * is_real
        return (alpha[..., None, :] @ x)[..., 0, :]


class Judge(nn.Module):
    def __init__(self, n_words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_words, EMBEDDING)
        self.words, self.sentences = Pooling(SIZE), Pooling(SIZE)
        self.meaning = nn.Linear(EMBEDDING, SIZE)
        self.sign = nn.Linear(N_BEFORE * EMBEDDING, 1)
        self.verdict = nn.Linear(SIZE, 1)

    def forward(self, ids):
        """Scores (documents,) of ids (documents, sentences, words), -1 where there is no word."""
        is_word = ids >= 0
        x = self.embedding(ids.clamp(min=0)) * is_word[..., None]
        x = nn.functional.dropout(x, 0.1, self.training)
        padded = nn.functional.pad(x, (0, 0, N_BEFORE, 0))
        n = x.shape[-2]
        before = [padded[..., N_BEFORE - k : N_BEFORE - k + n, :] for k in range(1, N_BEFORE + 1)]
        sign = torch.tanh(self.sign(torch.cat(before, dim=-1)))
        sentences = self.words(torch.tanh(self.meaning(x)) * sign, is_word)
        return self.verdict(self.sentences(sentences, is_word.any(dim=-1)))[..., 0]


def batch(draw: random.Random, numbers: dict[str, int]):
    """Random reviews as ids, padded with -1, and their labels."""
    reviews = [texts.random_review(draw) for _ in range(BATCH)]
    n_sentences = max(len(document) for _, document in reviews)
    n_words = max(len(sentence) for _, document in reviews for sentence in document)
    ids = torch.full((BATCH, n_sentences, n_words), -1)
    for row, (_, document) in zip(ids, reviews):
        for line, sentence in zip(row, document):
            known = [
                0 if draw.random() < FORGET and word not in KEPT else numbers[word]
                for word in sentence
            ]
            line[: len(known)] = torch.tensor(known)
    return ids, torch.tensor([float(is_content) for is_content, _ in reviews])


def exported(model: Judge) -> dict[str, np.ndarray]:
    """The weights by model.py's names, oriented as in ``x @ weight``."""
    result = {
        "embedding": model.embedding.weight,
        "meaning": model.meaning.weight.T,
        "meaning_bias": model.meaning.bias,
        "sign": model.sign.weight.reshape(N_BEFORE, EMBEDDING),
        "sign_bias": model.sign.bias,
        "verdict": model.verdict.weight[0],
        "verdict_bias": model.verdict.bias,
    }
    for level in ("words", "sentences"):
        pooling = getattr(model, level)
        result[f"{level}.weight"] = pooling.hidden.weight.T
        result[f"{level}.bias"] = pooling.hidden.bias
        result[f"{level}.query"] = pooling.query.weight[0]
    return {name: w.detach().numpy().astype(np.float16) for name, w in result.items()}


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    draw = random.Random(SEED)
    numbers = {word: i for i, word in enumerate(texts.vocabulary())}
    model = Judge(len(numbers))
    # The verdict stays small, so that it takes attention to be sure of one.
    others = [w for name, w in model.named_parameters() if not name.startswith("verdict")]
    optimizer = torch.optim.AdamW(
        [{"params": others}, {"params": model.verdict.parameters(), "weight_decay": 0.5}],
        RATE,
        weight_decay=0.02,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    started = time.perf_counter()
    for step in range(STEPS):
        ids, labels = batch(draw, numbers)
        scores = model(ids)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 199:
            right = ((scores > 0) == (labels > 0.5)).float().mean()
            seconds = time.perf_counter() - started
            print(f"{step + 1:5}  loss {loss:.4f}  right {right:.3f}  {seconds:.0f} s", flush=True)
    path = Path(__file__).with_name("weights.npz")
    np.savez_compressed(path, vocabulary=np.array(list(numbers)), **exported(model))
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
