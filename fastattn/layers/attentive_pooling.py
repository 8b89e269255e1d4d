# SPDX-License-Identifier: MIT
"""Attentive pooling: two texts, each pooled with a view to the other.

For users, through ``fastattn.layers``. The best partner of each token is found by
``hard_attention``; the matrix of all pairs is never in memory. The convolution or recurrent network
that makes the tokens' vectors stays outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _check_arrays as arrays
from .. import _check_options as check
from .._projection import project
from ..functional import scaled_dot_product_attention
from ..hard import hard_attention
from . import _sequences
from ._weights import Weights

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class AttentivePooling:
    r"""Two-way attention of two texts to each other [1]_.

    With ``G = tanh(x @ weight @ y^T)``, over real tokens only::

        pooled_x = softmax(max over j of G[i, j]) . x
        pooled_y = softmax(max over i of G[i, j]) . y

    Parameters
    ----------
    weight : array_like (x_dim, y_dim)
        Float: `U` of the paper.

    Attributes
    ----------
    dtype : numpy.dtype
        That of the weight, and of inputs and outputs.

    Raises
    ------
    ValueError, TypeError
        The weight is no float matrix.

    References
    ----------
    .. [1] dos Santos, Tan, Xiang, Zhou: Attentive Pooling Networks (2016), arXiv:1602.03609.

    Examples
    --------
    >>> import numpy as np
    >>> from fastattn.layers import AttentivePooling
    >>> rng = np.random.default_rng(0)
    >>> layer = AttentivePooling(weight=rng.standard_normal((4, 5)))
    >>> question, answer = rng.standard_normal((2, 7, 4)), rng.standard_normal((2, 9, 5))
    >>> pooled_question, pooled_answer = layer(question, answer, y_lengths=[9, 6])
    >>> pooled_question.shape, pooled_answer.shape
    ((2, 4), (2, 5))
    """

    __slots__ = ("_weight", "_dtype")

    def __init__(self, *, weight: ArrayLike) -> None:
        weights = Weights({"weight": weight})
        self._weight = weights.take("weight", "x_dim", "y_dim")
        if self._weight is None:
            raise ValueError("weight: expected an array (x_dim, y_dim), got None")
        self._dtype = weights.dtype

    def __call__(
        self,
        x: ArrayLike,
        y: ArrayLike,
        *,
        x_lengths: ArrayLike | None = None,
        y_lengths: ArrayLike | None = None,
        return_weights: bool = False,
    ) -> tuple:
        """Pool both.

        Parameters
        ----------
        x : array_like (..., x_length, x_dim)
        y : array_like (..., y_length, y_dim)
            In the dtype of the layer, with the same leading axes.
        x_lengths, y_lengths : int or array_like of int (...), optional
            How many tokens of each are real. What comes after may be anything.
        return_weights : bool
            Also return what the tokens are weighted with.

        Returns
        -------
        pooled_x : ndarray (..., x_dim)
        pooled_y : ndarray (..., y_dim)
            0 where either text is empty: no token has a partner.
        weights_x : ndarray (..., x_length)
        weights_y : ndarray (..., y_length)
            If `return_weights`.

        Raises
        ------
        ValueError, TypeError
            An argument does not fit; the message names it.
        """
        return_weights = check.flag(return_weights, "return_weights")
        x, y = _sequences.pair(x, y, ("x", "y"), self._dtype, self._weight.shape)
        lead, n_x, n_y = x.shape[:-2], x.shape[-2], y.shape[-2]
        x_lengths = _sequences.lengths(x_lengths, "x_lengths", lead, n_x, "x")
        y_lengths = _sequences.lengths(y_lengths, "y_lengths", lead, n_y, "y")
        x_lengths, y_lengths = (
            np.full(lead, n) if given is None else given
            for n, given in ((n_x, x_lengths), (n_y, y_lengths))
        )
        acc = self._weight.dtype
        # in the dtype of the scores, with an axis of one head
        sides = (
            project(x[..., None, :, :], self._weight, None, acc),
            np.asarray(y[..., None, :, :], acc, order="C"),  # strides may not order its sums
        )
        scores_x = _best(*sides, y_lengths)
        scores_y = _best(*sides[::-1], x_lengths)
        # without a partner no token takes part
        pooled_x, weights_x = _pool(x, scores_x, np.where(y_lengths > 0, x_lengths, 0))
        pooled_y, weights_y = _pool(y, scores_y, np.where(x_lengths > 0, y_lengths, 0))
        if not return_weights:
            return pooled_x, pooled_y
        return pooled_x, pooled_y, weights_x, weights_y

    @property
    def dtype(self) -> Any:
        return self._dtype

    def __repr__(self) -> str:
        x_dim, y_dim = self._weight.shape
        return f"AttentivePooling(x_dim={x_dim}, y_dim={y_dim})"


def _best(rows: np.ndarray, others: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The tanh of each row's largest product with one of the others; anything without any.

    tanh grows with its argument, so that the largest product is the largest tanh, too.
    """
    _, partners = hard_attention(
        rows, others, others[..., :0], score="dot", kv_lengths=lengths, return_indices=True
    )
    if others.shape[-2] == 0:
        return np.zeros(rows.shape[:-1], rows.dtype)
    chosen = np.take_along_axis(others, np.maximum(partners, 0)[..., None], axis=-2)
    with np.errstate(all="ignore"):
        best = np.tanh(np.einsum("...d,...d->...", rows, chosen))
        np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays behind
    return best


def _pool(x: np.ndarray, scores: np.ndarray, lengths: np.ndarray) -> tuple:
    """Softmax of the scores (..., 1, length), and what of x it makes: as a bias to no products."""
    nothing = np.zeros((*(1,) * (x.ndim - 2), 1, 1, 0), arrays.float_dtype(x.dtype))
    real = _sequences.real(lengths, x.shape[-2])
    pooled, weights = scaled_dot_product_attention(
        nothing,
        x[..., None, :, :0],
        x[..., None, :, :],
        bias=np.where(real[..., None, :], scores, scores.dtype.type(0))[..., None, :],
        scale=1.0,
        kv_lengths=lengths,
        return_weights=True,
    )
    return pooled[..., 0, 0, :], weights[..., 0, 0, :]
