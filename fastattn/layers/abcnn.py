# SPDX-License-Identifier: MIT
"""ABCNN: two texts matched token by token, before or after a convolution.

For users, through ``fastattn.layers``: the attention parts of both architectures. The convolution
stays in the user's framework. Only `match_matrix`, whose result it is, returns the matrix of all
pairs; the differences of all pairs are never in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _check_options as check
from ._texts import Texts
from ._weights import Weights

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def match_matrix(
    x: ArrayLike,
    y: ArrayLike,
    *,
    x_lengths: ArrayLike | None = None,
    y_lengths: ArrayLike | None = None,
) -> np.ndarray:
    """How well tokens of two texts match [1]_: ``A[i, j] = 1 / (1 + |x_i - y_j|)``.

    Parameters
    ----------
    x : array_like (..., x_length, dim)
        float16, bfloat16, float32 or float64.
    y : array_like (..., y_length, dim)
        In the same dtype, with the same leading axes.
    x_lengths, y_lengths : int or array_like of int (...), optional
        How many tokens of each are real. What comes after may be anything.

    Returns
    -------
    ndarray (..., x_length, y_length)
        0 where either token is not real.

    Raises
    ------
    ValueError, TypeError
        An argument does not fit; the message names it.

    References
    ----------
    .. [1] Yin, Schuetze, Xiang, Zhou: ABCNN: Attention-Based Convolutional Neural Network for
       Modeling Sentence Pairs (2016), arXiv:1512.05193.

    Examples
    --------
    >>> import numpy as np
    >>> from fastattn.layers import match_matrix
    >>> match_matrix(np.array([[0.0, 0.0]]), np.array([[0.0, 0.0], [3.0, 4.0]]))
    array([[1.        , 0.16666667]])
    """
    texts = Texts(x, y, x_lengths, y_lengths)
    matrix = np.empty((*texts.x.shape[:-1], texts.y.shape[-2]), texts.dtype)
    for entry, rows, match in texts.matches():
        matrix[entry][rows] = match
    return matrix


class ABCNN1:
    r"""Attention before the convolution [1]_: a second feature map for each of two texts.

    With `A` of `match_matrix`: ``maps_x = A @ x_weight``, ``maps_y = A^T @ y_weight``, to be
    stacked with the texts themselves as a second channel of the convolution.

    Parameters
    ----------
    x_weight : array_like (y_length, dim)
        Float: `W0` of the paper.
    y_weight : array_like (x_length, dim)
        Float: `W1`. The weights fix the lengths to which texts are padded.

    Attributes
    ----------
    dtype : numpy.dtype
        That of both weights, and of inputs and outputs.

    Raises
    ------
    ValueError, TypeError
        A weight does not fit; the message names it.

    References
    ----------
    .. [1] Yin, Schuetze, Xiang, Zhou: ABCNN (2016), arXiv:1512.05193, section 4.1.

    Examples
    --------
    >>> import numpy as np
    >>> from fastattn.layers import ABCNN1
    >>> rng = np.random.default_rng(0)
    >>> layer = ABCNN1(x_weight=rng.standard_normal((9, 4)), y_weight=rng.standard_normal((7, 4)))
    >>> x, y = rng.standard_normal((2, 7, 4)), rng.standard_normal((2, 9, 4))
    >>> maps_x, maps_y = layer(x, y, x_lengths=[7, 5])
    >>> np.stack([x, maps_x], axis=1).shape  # (batch, channels, length, dim)
    (2, 2, 7, 4)
    """

    __slots__ = ("_x_weight", "_y_weight", "_dtype")

    def __init__(self, *, x_weight: ArrayLike, y_weight: ArrayLike) -> None:
        for name, given in (("x_weight", x_weight), ("y_weight", y_weight)):
            if given is None:
                raise ValueError(f"{name}: expected an array, got None")
        weights = Weights({"x_weight": x_weight, "y_weight": y_weight})
        self._x_weight = weights.take("x_weight", "y_length", "dim")
        self._y_weight = weights.take("y_weight", "x_length", "dim")
        self._dtype = weights.dtype

    def __call__(
        self,
        x: ArrayLike,
        y: ArrayLike,
        *,
        x_lengths: ArrayLike | None = None,
        y_lengths: ArrayLike | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Make both feature maps.

        Parameters
        ----------
        x : array_like (..., x_length, dim)
        y : array_like (..., y_length, dim)
            In the dtype of the layer, with the same leading axes.
        x_lengths, y_lengths : int or array_like of int (...), optional
            How many tokens of each are real. What comes after may be anything.

        Returns
        -------
        maps_x : ndarray (..., x_length, dim)
        maps_y : ndarray (..., y_length, dim)
            Rows of tokens that are not real are 0.

        Raises
        ------
        ValueError, TypeError
            An argument does not fit; the message names it.
        """
        texts = Texts(x, y, x_lengths, y_lengths, self._dtype, self._x_weight.shape[1])
        for name, text, weight, of in (
            ("x", texts.x, self._y_weight, "y_weight"),
            ("y", texts.y, self._x_weight, "x_weight"),
        ):
            if text.shape[-2] != len(weight):
                raise ValueError(
                    f"{name}: expected length {len(weight)} to match {of}, got shape {text.shape}"
                )
        maps_x, maps_y = (np.zeros(text.shape, self._x_weight.dtype) for text in (texts.x, texts.y))
        with np.errstate(all="ignore"):
            for entry, rows, match in texts.matches():
                maps_x[entry][rows] = match @ self._x_weight
                maps_y[entry] += match.T @ self._y_weight[rows]
        return tuple(maps.astype(self._dtype, copy=False) for maps in (maps_x, maps_y))

    @property
    def dtype(self) -> Any:
        return self._dtype

    def __repr__(self) -> str:
        y_length, dim = self._x_weight.shape
        return f"ABCNN1(x_length={len(self._y_weight)}, y_length={y_length}, dim={dim})"


class ABCNN2:
    r"""Attention after the convolution [1]_: pooling over windows, weighted by how tokens match.

    With `A` of `match_matrix`, over the convolution's outputs x and y::

        pooled_x[t] = sum over k = t .. t + width - 1 of a[k] x[k],    a[k] = sum over j of A[k, j]

    and the same for y with the sums of columns.

    Parameters
    ----------
    width : int
        At least 1; the width of the convolution's filters, so that a text gets its length back.

    References
    ----------
    .. [1] Yin, Schuetze, Xiang, Zhou: ABCNN (2016), arXiv:1512.05193, section 4.2.

    Examples
    --------
    >>> import numpy as np
    >>> from fastattn.layers import ABCNN2
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.standard_normal((2, 9, 4)), rng.standard_normal((2, 8, 4))
    >>> pooled_x, pooled_y = ABCNN2(width=3)(x, y, y_lengths=[8, 5])
    >>> pooled_x.shape, pooled_y.shape
    ((2, 7, 4), (2, 6, 4))
    """

    __slots__ = ("_width",)

    def __init__(self, *, width: int) -> None:
        self._width = check.integer(width, "width")
        if self._width < 1:
            raise ValueError(f"width: expected at least 1, got {self._width}")

    def __call__(
        self,
        x: ArrayLike,
        y: ArrayLike,
        *,
        x_lengths: ArrayLike | None = None,
        y_lengths: ArrayLike | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pool both.

        Parameters
        ----------
        x : array_like (..., x_length, dim)
            float16, bfloat16, float32 or float64.
        y : array_like (..., y_length, dim)
            In the same dtype, with the same leading axes.
        x_lengths, y_lengths : int or array_like of int (...), optional
            How many tokens of each are real. What comes after may be anything.

        Returns
        -------
        pooled_x : ndarray (..., x_length - width + 1, dim)
        pooled_y : ndarray (..., y_length - width + 1, dim)
            Tokens that are not real add nothing to a window.

        Raises
        ------
        ValueError, TypeError
            An argument does not fit; the message names it.
        """
        texts = Texts(x, y, x_lengths, y_lengths)
        for name, array in (("x", texts.x), ("y", texts.y)):
            if array.shape[-2] < self._width - 1:
                raise ValueError(
                    f"{name}: expected a length of at least {self._width - 1} for windows of "
                    f"{self._width}, got shape {array.shape}"
                )
        sums_x, sums_y = (np.zeros(text.shape[:-1], texts.acc) for text in (texts.x, texts.y))
        with np.errstate(all="ignore"):
            for entry, rows, match in texts.matches():
                sums_x[entry][rows] = match.sum(axis=1)
                sums_y[entry] += match.sum(axis=0)
            return tuple(
                self._pooled(text, real, sums).astype(texts.dtype, copy=False)
                for text, real, sums in (
                    (texts.x, texts.x_real, sums_x),
                    (texts.y, texts.y_real, sums_y),
                )
            )

    def _pooled(self, text: np.ndarray, real: np.ndarray, sums: np.ndarray) -> np.ndarray:
        weighted = np.where(real[..., None], text.astype(sums.dtype) * sums[..., None], 0)
        n = text.shape[-2] - self._width + 1
        pooled = np.zeros((*text.shape[:-2], n, text.shape[-1]), sums.dtype)
        for k in range(self._width):
            pooled += weighted[..., k : k + n, :]
        return pooled

    def __repr__(self) -> str:
        return f"ABCNN2(width={self._width})"
