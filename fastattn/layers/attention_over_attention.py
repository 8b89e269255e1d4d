# SPDX-License-Identifier: MIT
"""Attention over attention: which words of a document a query points at.

For users, through ``fastattn.layers``. Calls of ``attention`` for the weights of some words at a
time, which are summed; the matrix of all pairs is never in memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .. import _check_arrays as arrays
from ..scores import attention
from . import _sequences
from ._layer import rounded
from ._weights import accumulator

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_BLOCK = 1 << 19  # weights at once: rows enough for several threads
_FEWEST = 64  # rows at once, so that keys are packed for many


class AttentionOverAttention:
    r"""The attention-over-attention reader [1]_: a distribution over the words of a document.

    With ``M = document @ query^T``, over real words only::

        alpha[:, q] = softmax of M[:, q]         over the document, for each query word
        beta[d, :]  = softmax of M[d, :]         over the query, for each document word
        result      = alpha @ mean over d of beta[d, :]

    It has no weights, and takes inputs of any dtype.

    References
    ----------
    .. [1] Cui, Chen, Wei, Wang, Liu, Hu: Attention-over-Attention Neural Networks for Reading
       Comprehension (2017), arXiv:1607.04423.

    Examples
    --------
    >>> import numpy as np
    >>> from fastattn.layers import AttentionOverAttention
    >>> rng = np.random.default_rng(0)
    >>> document, query = rng.standard_normal((2, 9, 4)), rng.standard_normal((2, 3, 4))
    >>> points = AttentionOverAttention()(document, query, document_lengths=[9, 5])
    >>> points.shape, bool(np.allclose(points.sum(axis=-1), 1))
    ((2, 9), True)
    """

    __slots__ = ()

    def __call__(
        self,
        document: ArrayLike,
        query: ArrayLike,
        *,
        document_lengths: ArrayLike | None = None,
        query_lengths: ArrayLike | None = None,
    ) -> np.ndarray:
        """Attend.

        Parameters
        ----------
        document : array_like (..., document_length, dim)
            float16, bfloat16, float32 or float64.
        query : array_like (..., query_length, dim)
            In the same dtype, with the same leading axes.
        document_lengths, query_lengths : int or array_like of int (...), optional
            How many words of each are real. What comes after may be anything.

        Returns
        -------
        ndarray (..., document_length)
            0 for words that are not real, and where a document or its query is empty.

        Raises
        ------
        ValueError, TypeError
            An argument does not fit; the message names it.
        """
        document, query = _sequences.pair(document, query, ("document", "query"))
        lead, n_words, n_asked = document.shape[:-2], document.shape[-2], query.shape[-2]
        d_lengths = _sequences.lengths(
            document_lengths, "document_lengths", lead, n_words, "document"
        )
        q_lengths = _sequences.lengths(query_lengths, "query_lengths", lead, n_asked, "query")
        dtype = arrays.float_dtype(document.dtype)
        acc = accumulator(dtype)
        # entries one after the other, in the dtype of the scores
        n_entries = math.prod(lead)
        document, query = (
            x.reshape(n_entries, *x.shape[-2:]).astype(acc, copy=False) for x in (document, query)
        )
        d_lengths, q_lengths = (
            np.full(n_entries, n) if given is None else given.reshape(-1)
            for n, given in ((n_words, d_lengths), (n_asked, q_lengths))
        )
        average = np.broadcast_to(1 / np.maximum(d_lengths, 1)[:, None], document.shape[:2])
        beta = _mixed(document, query, d_lengths, q_lengths, average)
        result = _mixed(query, document, q_lengths, d_lengths, beta)
        return rounded(result.reshape(*lead, n_words), dtype)

    def __repr__(self) -> str:
        return "AttentionOverAttention()"


def _mixed(
    rows: np.ndarray,
    keys: np.ndarray,
    n_real_rows: np.ndarray,
    n_real_keys: np.ndarray,
    shares: np.ndarray,
) -> np.ndarray:
    """The weights of keys (entries, keys), of all rows together: each row has a share of them.

    Weights are made for a block of rows at a time, as no sum of exponentials is as exact as they
    are: of large scores its logarithm has lost what makes the difference.
    """
    n_entries, n_rows, n_keys = *rows.shape[:2], keys.shape[1]
    is_real = _sequences.real(n_real_rows, n_rows)
    shares = np.where(is_real, shares, 0).astype(rows.dtype, copy=False)
    result = np.zeros((n_entries, n_keys), rows.dtype)
    step = max(_FEWEST, min(n_rows, _BLOCK // max(1, n_keys)))
    n_together = max(1, _BLOCK // max(1, step * n_keys))
    for entry in range(0, n_entries, n_together):
        entries = slice(entry, entry + n_together)
        for first in range(0, n_rows, step):
            some = entries, slice(first, first + step)
            weights = _weights(rows[some], keys[entries], n_real_keys[entries])
            weights[~is_real[some]] = 0  # of padding, they may be NaN
            result[entries] += np.einsum("er,erk->ek", shares[some], weights)
            del weights  # before there are others
    # a NaN that is seen goes to all that is real, and no further
    return np.where(_sequences.real(n_real_keys, n_keys), result, rows.dtype.type(0))


def _weights(query: np.ndarray, key: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Softmax of q . k over real keys: (entries, queries, keys)."""
    _, weights = attention(
        query[:, None],  # one head
        key[:, None],
        key[:, None, :, :0],
        score="dot",
        kv_lengths=lengths,
        return_weights=True,
    )
    return weights[:, 0]
