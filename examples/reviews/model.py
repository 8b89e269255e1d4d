# SPDX-License-Identifier: MIT
# The judge of reviews in NumPy, its attention by fastattn. Used by hierarchical_documents.py.
# It loads weights.npz, which train.py made; it trains nothing and prints nothing.
"""Words are looked up, signed by those before them, and pooled; so are sentences; then judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastattn.layers import AttentionPooling, HierarchicalAttention

WEIGHTS = Path(__file__).with_name("weights.npz")


class Judgement(NamedTuple):
    """Of one document: how likely it is content, and what was looked at."""

    content: float
    words: list[np.ndarray]  # of each sentence: a weight for each word
    sentences: np.ndarray  # a weight for each sentence


class Judge:
    """Documents, as lists of sentences of words, to judgements."""

    def __init__(self, path: Path = WEIGHTS) -> None:
        with np.load(path) as file:
            arrays = dict(file)
        self._numbers = {str(word): i for i, word in enumerate(arrays.pop("vocabulary"))}
        self._weights = w = {name: array.astype(np.float32) for name, array in arrays.items()}
        word_attention, sentence_attention = (
            AttentionPooling(
                score="additive",
                query=w[f"{level}.query"],
                weight=w[f"{level}.weight"],
                bias=w[f"{level}.bias"],
            )
            for level in ("words", "sentences")
        )
        self._layer = HierarchicalAttention(
            word_attention=word_attention,
            sentence_attention=sentence_attention,
            word_encoder=self._signed,
        )

    def _signed(self, words: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Each word's meaning times a number from -1 to 1 that the words before it decide: what is
        "not fresh" is something else than what is fresh.

        All words of all sentences at once; nothing comes before a sentence's first word.
        """
        place = np.arange(len(words)) - np.repeat(ends[:-1], np.diff(ends))
        sign = self._weights["sign_bias"]
        for back, weight in enumerate(self._weights["sign"], start=1):
            before = np.zeros_like(words)
            before[back:] = words[:-back]
            before[place < back] = 0
            sign = sign + before @ weight
        meaning = np.tanh(words @ self._weights["meaning"] + self._weights["meaning_bias"])
        return meaning * np.tanh(sign)[:, None]

    def judge(self, documents: Sequence[Sequence[Sequence[str]]]) -> list[Judgement]:
        """All documents in one go: nothing is padded, whatever their sentences' lengths are."""
        sentences = [sentence for document in documents for sentence in document]
        lengths = [len(sentence) for sentence in sentences]
        counts = [len(document) for document in documents]
        ids = [self._numbers.get(word, 0) for sentence in sentences for word in sentence]
        vectors, word_weights, sentence_weights = self._layer(
            self._weights["embedding"][np.array(ids, np.int64)],
            lengths,
            counts,
            return_weights=True,
        )
        scores = vectors @ self._weights["verdict"] + self._weights["verdict_bias"]
        content = 0.5 * (1 + np.tanh(0.5 * scores.astype(np.float64)))
        rows = np.split(word_weights, np.cumsum(lengths)[:-1])
        parts = np.split(sentence_weights, np.cumsum(counts)[:-1])
        result, first = [], 0
        for probability, part in zip(content, parts):
            result.append(Judgement(float(probability), rows[first : first + len(part)], part))
            first += len(part)
        return result
