# SPDX-License-Identifier: MIT
"""Hierarchical attention: words to sentence vectors, sentence vectors to a document vector.

For users, through ``fastattn.layers``. Two ``AttentionPooling`` do the work, one call for each
level; the encoders between the levels are the user's own. Nothing is padded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _check_arrays as arrays
from .. import _check_options as check
from ._weights import checked_input
from .attention_pooling import AttentionPooling

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Encoder = Callable[[np.ndarray, np.ndarray], ArrayLike]


class HierarchicalAttention:
    r"""Documents as vectors, by attention to words and then to sentences [1]_.

    With encoders ``f`` and ``g`` (in the paper recurrent networks over the words of a sentence and
    the sentences of a document)::

        sentence_i = word_attention(f(words of i))
        document_d = sentence_attention(g(sentences of d))

    Parameters
    ----------
    word_attention, sentence_attention : AttentionPooling
        Each with a query of its own, both of one dtype; in the paper ``"additive"`` ones.
    word_encoder, sentence_encoder : callable, optional
        ``encoder(packed, cu_seqlens)`` gets all vectors of a level ``(n, dim)`` and where its
        sequences end, after a 0, and returns as many vectors ``(n, dim')`` of the layer's dtype.
        Without one the vectors are taken as they are.

    Attributes
    ----------
    dtype : numpy.dtype
        That of both layers, and of inputs and outputs.

    Raises
    ------
    ValueError, TypeError
        What is given for a level does not fit; the message names it.

    References
    ----------
    .. [1] Yang, Yang, Dyer, He, Smola, Hovy: Hierarchical Attention Networks for Document
       Classification (2016), NAACL, doi:10.18653/v1/N16-1174.

    Examples
    --------
    Two documents, of two sentences and of one, of 3, 2 and 4 words:

    >>> import numpy as np
    >>> from fastattn.layers import AttentionPooling, HierarchicalAttention
    >>> rng = np.random.default_rng(0)
    >>> words, sentences = (
    ...     AttentionPooling(
    ...         score="additive", query=rng.standard_normal(6), weight=rng.standard_normal((5, 6))
    ...     )
    ...     for level in range(2)
    ... )
    >>> layer = HierarchicalAttention(word_attention=words, sentence_attention=sentences)
    >>> layer(rng.standard_normal((9, 5)), [3, 2, 4], [2, 1]).shape
    (2, 5)
    """

    __slots__ = ("_word_attention", "_sentence_attention", "_word_encoder", "_sentence_encoder")

    def __init__(
        self,
        *,
        word_attention: AttentionPooling,
        sentence_attention: AttentionPooling,
        word_encoder: Encoder | None = None,
        sentence_encoder: Encoder | None = None,
    ) -> None:
        levels = (("word_attention", word_attention), ("sentence_attention", sentence_attention))
        for name, layer in levels:
            if not isinstance(layer, AttentionPooling):
                raise TypeError(f"{name}: expected an AttentionPooling, got {type(layer).__name__}")
            if layer._own is None:
                raise ValueError(f"{name}: expected a layer with a query of its own, got {layer!r}")
        for name, encoder in (
            ("word_encoder", word_encoder),
            ("sentence_encoder", sentence_encoder),
        ):
            if encoder is not None and not callable(encoder):
                raise TypeError(
                    f"{name}: expected a callable or None, got {type(encoder).__name__}"
                )
        if sentence_attention.dtype != word_attention.dtype:
            raise TypeError(
                f"sentence_attention: expected dtype {word_attention.dtype} to match "
                f"word_attention, got {sentence_attention.dtype}"
            )
        dim, sentence_dim = (layer._sizes["dim"] for _, layer in levels)
        if sentence_encoder is None and sentence_dim != dim:
            raise ValueError(
                f"sentence_attention: expected dim {dim} to match word_attention, as there is no "
                f"sentence_encoder, got {sentence_dim}"
            )
        self._word_attention, self._sentence_attention = word_attention, sentence_attention
        self._word_encoder, self._sentence_encoder = word_encoder, sentence_encoder

    def __call__(
        self,
        words: ArrayLike,
        sentence_lengths: ArrayLike,
        document_lengths: ArrayLike,
        *,
        return_weights: bool = False,
    ) -> Any:
        """Vectors of documents of any numbers of sentences of any lengths.

        Parameters
        ----------
        words : array_like (total_words, dim)
            All words of all sentences, one after the other, in the dtype of the layer.
        sentence_lengths : array_like of int (n_sentences,)
            Words of each sentence; together `total_words`.
        document_lengths : array_like of int (n_documents,)
            Sentences of each document; together `n_sentences`.
        return_weights : bool
            Also return the weights of both levels.

        Returns
        -------
        documents : ndarray (n_documents, dim)
            0 for a document without sentences. A sentence without words is a vector of zeros,
            which takes part in its document.
        word_weights : ndarray (total_words,)
            If `return_weights`; those of each sentence add up to 1.
        sentence_weights : ndarray (n_sentences,)
            If `return_weights`; those of each document add up to 1.

        Raises
        ------
        ValueError, TypeError
            An argument does not fit, or what an encoder returned; the message names it.
        """
        return_weights = check.flag(return_weights, "return_weights")
        size = self._word_attention._sizes["dim"] if self._word_encoder is None else None
        words = checked_input(words, "words", self.dtype, size)
        if words.ndim != 2:
            raise ValueError(f"words: expected shape (total_words, dim), got {words.shape}")
        word_ends = _ends(sentence_lengths, "sentence_lengths", len(words), "words")
        n_sentences = len(word_ends) - 1
        sentence_ends = _ends(document_lengths, "document_lengths", n_sentences, "sentences")

        words = self._encoded("word_encoder", words, word_ends)
        sentences, word_weights = _pooled(self._word_attention, words, word_ends, return_weights)
        sentences = self._encoded("sentence_encoder", sentences, sentence_ends)
        documents, sentence_weights = _pooled(
            self._sentence_attention, sentences, sentence_ends, return_weights
        )
        if not return_weights:
            return documents
        return documents, word_weights, sentence_weights

    def _encoded(self, name: str, vectors: np.ndarray, ends: np.ndarray) -> np.ndarray:
        is_word = name == "word_encoder"
        encoder = self._word_encoder if is_word else self._sentence_encoder
        if encoder is None:
            return vectors
        attention = self._word_attention if is_word else self._sentence_attention
        encoded = arrays.as_array(encoder(vectors, ends.copy()), name)
        wanted = (len(vectors), attention._sizes["dim"])
        if arrays.float_dtype(encoded.dtype) != self.dtype:
            raise TypeError(
                f"{name}: expected it to return dtype {self.dtype}, got {encoded.dtype}"
            )
        if encoded.shape != wanted:
            raise ValueError(f"{name}: expected it to return shape {wanted}, got {encoded.shape}")
        return encoded

    @property
    def dtype(self) -> Any:
        return self._word_attention.dtype

    def __repr__(self) -> str:
        encoders = "".join(
            f", {name}={getattr(encoder, '__name__', type(encoder).__name__)}"
            for name, encoder in (
                ("word_encoder", self._word_encoder),
                ("sentence_encoder", self._sentence_encoder),
            )
            if encoder is not None
        )
        return (
            f"HierarchicalAttention(word_attention={self._word_attention!r}, "
            f"sentence_attention={self._sentence_attention!r}{encoders})"
        )


def _pooled(
    attention: AttentionPooling, vectors: np.ndarray, ends: np.ndarray, return_weights: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    got = attention(vectors, cu_seqlens=ends, return_weights=return_weights)
    return got if return_weights else (got, None)


def _ends(lengths: Any, name: str, total: int, of: str) -> np.ndarray:
    """Where sequences of these lengths end, after a 0; all together they have `total` parts."""
    a = check.integers(lengths, name)
    if a.ndim != 1:
        raise ValueError(f"{name}: expected 1 axis of lengths, got shape {a.shape}")
    counts = [int(n) for n in (a.min(), a.max())] if a.size else [0, 0]
    if counts[0] < 0 or counts[1] > total:
        wrong = counts[0] if counts[0] < 0 else counts[1]
        raise ValueError(
            f"{name}: expected lengths of 0 to {total}, the {of} there are, got {wrong}"
        )
    ends = np.zeros(a.size + 1, np.int64)
    np.cumsum(a, dtype=np.int64, out=ends[1:])
    if ends[-1] != total:
        raise ValueError(f"{name}: expected a sum of {total}, the {of} there are, got {ends[-1]}")
    return ends
