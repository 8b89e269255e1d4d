# SPDX-License-Identifier: MIT
"""The workloads of layers: a decoding loop with Bahdanau's attention, documents, multi-head.

Used by ``bench/serving.py``, which chooses among all workloads.  What a contender calls for them is
in ``layer_calls.py`` and ``torch_layers.py``, what is right in ``layer_reference.py``.

Weights are inputs as any other: `make` draws them, and they are in a contender's own form, its
layer made, before the clock starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastattn._cli.workloads import Workload

__all__ = ["WORKLOADS", "Documents", "Layered", "MultiHead", "Seq2Seq", "from_fields"]


@dataclass(frozen=True)
class Layered(Workload):
    """A call of a layer, or a loop of calls; `layer` says which subclass it is."""

    layer: str = ""


@dataclass(frozen=True)
class Seq2Seq(Layered):
    """The attention of a decoder, `n_queries` steps on an encoder's `n_keys` states.

    Units, states and queries are `head_size` wide.  The query of each step is given, so that no
    contender's recurrent cell is measured; none may take two steps in one call, as a decoder has
    no query before the step before it is done.
    """

    layer: str = "bahdanau"

    @property
    def title(self) -> str:
        ends = ", keys prepared" * self.has_prepared_keys
        return f"B{self.batch} {self.n_queries} steps S{self.n_keys} U{self.head_size}{ends}"

    @property
    def flops(self) -> int:
        """Of the products: with the three weights and of weights and states; no tanh."""
        n_rows = self.batch * (self.n_queries + self.n_keys * (not self.has_prepared_keys))
        return 2 * n_rows * self.head_size**2 + 4 * self._n_visible * self.head_size

    def make(self, rng: np.random.Generator) -> dict:
        """Draw ``queries`` (steps, batch, size), ``memory`` (batch, keys, size) and weights."""
        size = self.head_size
        return {
            "queries": _normal(rng, self.n_queries, self.batch, size),
            "memory": _normal(rng, self.batch, self.n_keys, size),
            "attention_v": _small(rng, size),
            "query_weight": _weight(rng, size, size),
            "key_weight": _weight(rng, size, size),
            "hidden_bias": _normal(rng, size),
        }


@dataclass(frozen=True)
class Documents(Layered):
    """Hierarchical pooling of `n_queries` documents with `n_keys` words, without encoders.

    Parameters
    ----------
    units : int
    documents : tuple of tuple of int
        Words of each sentence of each document.
    """

    layer: str = "hierarchical"
    units: int = 0
    documents: tuple[tuple[int, ...], ...] = ()

    @property
    def title(self) -> str:
        n_sentences = sum(map(len, self.documents))
        return (
            f"{self.n_queries} documents {n_sentences} sentences {self.n_keys} words"
            f" D{self.head_size} U{self.units}"
        )

    @property
    def flops(self) -> int:
        """Of the products of both levels, with no padding."""
        n_vectors = self.n_keys + sum(map(len, self.documents))
        return 2 * n_vectors * (self.head_size * self.units + self.units + self.head_size)

    @property
    def sentence_lengths(self) -> np.ndarray:
        """Words of each sentence, one document after the other."""
        return np.array([n_words for document in self.documents for n_words in document])

    @property
    def document_lengths(self) -> np.ndarray:
        """Sentences of each document."""
        return np.array(list(map(len, self.documents)))

    def make(self, rng: np.random.Generator) -> dict:
        """Draw ``words`` (all words, size), and for both levels weight, bias and query."""
        inputs = {"words": _normal(rng, self.n_keys, self.head_size)}
        for level in ("word", "sentence"):
            inputs[f"{level}_weight"] = _weight(rng, self.head_size, self.units)
            inputs[f"{level}_bias"] = _normal(rng, self.units)
            inputs[f"{level}_query"] = _small(rng, self.units)
        return inputs


@dataclass(frozen=True)
class MultiHead(Layered):
    """Self-attention of `batch` sequences in `n_q_heads` heads, with all four projections."""

    layer: str = "multi-head"

    @property
    def title(self) -> str:
        ends = " causal" * self.is_causal
        return f"B{self.batch} S{self.n_queries} dim {self.dim} H{self.n_q_heads}{ends}"

    @property
    def dim(self) -> int:
        """Size of a token, before and after."""
        return self.n_q_heads * self.head_size

    @property
    def flops(self) -> int:
        """Of the four projections and of what each row may see."""
        n_tokens = self.batch * self.n_queries
        return 8 * n_tokens * self.dim**2 + 4 * self._n_visible * self.head_size

    def make(self, rng: np.random.Generator) -> dict:
        """Draw ``x`` (batch, tokens, dim), and of each projection a weight and a bias."""
        inputs = {"x": _normal(rng, self.batch, self.n_queries, self.dim)}
        for name in ("query", "key", "value", "output"):
            inputs[f"{name}_weight"] = _weight(rng, self.dim, self.dim)
            inputs[f"{name}_bias"] = _normal(rng, self.dim)
        return inputs


def from_fields(fields: dict) -> Layered:
    """A workload from what ``dataclasses.asdict`` made of it, by way of JSON."""
    if "documents" in fields:
        fields = fields | {"documents": tuple(map(tuple, fields["documents"]))}
    kinds = {kind.layer: kind for kind in (Seq2Seq, Documents, MultiHead)}
    return kinds[fields["layer"]](**fields)


def documents(name, n, dim, units, **others) -> Documents:
    """Documents of 2 to 30 sentences of 3 to 40 words: the same on every machine."""
    rng = np.random.default_rng(11)
    drawn = tuple(
        tuple(rng.integers(3, 41, n_sentences).tolist())
        for n_sentences in rng.integers(2, 31, n).tolist()
    )
    n_words = sum(map(sum, drawn))
    counts = (1, 1, 1, n, n_words, dim)
    return Documents(name, "layer", *counts, units=units, documents=drawn, **others)


def _normal(rng, *shape) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def _weight(rng, n_in, n_out) -> np.ndarray:
    """So small that what it makes of standard normal numbers is of order 1."""
    return _normal(rng, n_in, n_out) / np.float32(n_in**0.5)


def _small(rng, n) -> np.ndarray:
    """The vector of additive scores: they are of order 1 as well."""
    return _normal(rng, n) / np.float32(n**0.5)


WORKLOADS = (
    Seq2Seq("seq2seq", "layer", 64, 1, 1, 40, 50, 512),
    Seq2Seq("seq2seq-steps", "layer", 64, 1, 1, 40, 50, 512, has_prepared_keys=True, quick=False),
    documents("han", 256, 200, 100),
    MultiHead("mha-b8", "prefill", 8, 8, 8, 128, 128, 64),
    MultiHead("mha-b1", "prefill", 1, 12, 12, 512, 512, 64),
    MultiHead("mha-b1-causal", "prefill", 1, 12, 12, 512, 512, 64, is_causal=True, quick=False),
)
