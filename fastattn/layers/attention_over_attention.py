# SPDX-License-Identifier: MIT
"""Attention over attention: which words of a document a query points at.

For users, through ``fastattn.layers``. Four calls of ``attention`` whose results are sums of
exponentials (lse), not mixtures of values; the matrix of all pairs is never in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _check_arrays as arrays
from ..scores import attention
from . import _sequences

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


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
        is_word, is_asked = _sequences.real(d_lengths, n_words), _sequences.real(q_lengths, n_asked)
        n_real = np.asarray(n_words if d_lengths is None else d_lengths)[..., None]

        # over rows: lse[d] of M[d, :]; then log of sum over d of exp(M[d, q] - lse[d])
        rows = _lse(document, query, q_lengths, None)
        share = _lse(query, document, d_lengths, _term(-rows, is_word))
        # over columns: lse[q] of M[:, q]; the result is the sum over q of
        # exp(M[d, q] - lse[q]) * beta[q], the logarithm of beta being share - log n
        columns = _lse(query, document, d_lengths, None)
        with np.errstate(all="ignore"):
            log_beta = share - np.log(n_real).astype(share.dtype)
            result = _lse(document, query, q_lengths, _term(log_beta - columns, is_asked))
            result = np.where(is_word & (n_real > 0), np.exp(result), 0)
        return result.astype(arrays.float_dtype(document.dtype), copy=False)

    def __repr__(self) -> str:
        return "AttentionOverAttention()"


def _lse(query: np.ndarray, key: np.ndarray, lengths: Any, bias: Any) -> np.ndarray:
    """log of the sum over real keys of exp(q . k + bias): (..., queries)."""
    _, lse = attention(
        query[..., None, :, :],  # one head
        key[..., None, :, :],
        key[..., None, :, :0],
        score="dot",
        kv_lengths=lengths,
        bias=None if bias is None else bias[..., None, None, :],
        return_lse=True,
    )
    return lse[..., 0, :]


def _term(x: np.ndarray, is_real: np.ndarray) -> np.ndarray:
    """What is added to the scores of keys: 0 for what is hidden anyway, or came of no key.

    A NaN of a real key stays: everything that comes of it is NaN.
    """
    return np.where(is_real & ~np.isinf(x), x, x.dtype.type(0))
