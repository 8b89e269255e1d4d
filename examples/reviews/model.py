# SPDX-License-Identifier: MIT
# The judge of reviews in NumPy, its attention by fastattn. Used by hierarchical_documents.py.
# It loads weights.npz, which train.py made; it trains nothing and prints nothing.
"""Words are looked up, seen with their neighbours, pooled; sentences are pooled, and judged."""

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
            word_encoder=self._with_neighbours,
        )

    def _with_neighbours(self, words: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """A convolution over three words, so that "not good" is something else than "good".

        All words of all sentences at once; where a sentence ends there is nothing beyond.
        """
        before, after = np.zeros_like(words), np.zeros_like(words)
        before[1:], after[:-1] = words[:-1], words[1:]
        starts = ends[:-1][ends[:-1] < ends[1:]]  # of sentences that have words
        before[starts] = 0
        after[ends[1:][ends[:-1] < ends[1:]] - 1] = 0
        x = np.concatenate([before, words, after], axis=-1)
        return np.tanh(x @ self._weights["convolution"] + self._weights["convolution_bias"])

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
