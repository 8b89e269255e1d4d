# SPDX-License-Identifier: MIT
"""The activations of a Transformer's feed-forward network, in place: relu and the exact gelu.

For ``_feed_forward``. NumPy has no error function, so its complement is computed here, by a
rational function whose coefficients are in this file. It checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .._check_arrays import FLOAT32, FLOAT64

_BLOCK = 1 << 15  # numbers at once: four arrays of them stay in a core's own cache, or almost

# erfc(a / sqrt(2)) / 2 = exp(-a**2 / 2) * P(a) / Q(a) for a from 0 to _FAR, lowest power first.
# The rational form is that of Cody (1969, Math. Comp. 23) for the far intervals of erfc. The
# coefficients are ours: least squares of the relative error at Chebyshev's nodes in a / (a + 3),
# reweighted until it was even, with 60 digits (mpmath; degrees 4 and 5, 10 and 11). Their own
# relative error is 5.4e-9 for float32 and 1.1e-18 for float64. All are positive: nothing cancels.
_P = {
    FLOAT32: (
        0.50000000296888794,
        0.4371933532348318,
        0.18241977300265998,
        0.040358527307954641,
        0.004075587296039039,
    ),
    FLOAT64: (
        0.5,
        0.82747392568855199,
        0.67890787620433218,
        0.3568054919558463,
        0.13178246567543264,
        0.03557835349077741,
        0.0071011270400179225,
        0.0010359236442480068,
        0.00010611383004374991,
        6.9407015626917136e-6,
        2.2285022763267919e-7,
    ),
}
_Q = {
    FLOAT32: (
        1.0,
        1.6722716739476315,
        1.1991147314357609,
        0.46731822925404014,
        0.10117065968187962,
        0.010215852948977253,
    ),
    FLOAT64: (
        1.0,
        2.4528324121799695,
        2.8148928643239048,
        1.9991158548476362,
        0.97854121233231338,
        0.34760314310803871,
        0.091743587107333237,
        0.018064756532178659,
        0.002614073256028724,
        0.00026654652939527959,
        1.7397758782850686e-5,
        5.5860268159188871e-7,
    ),
}
_FAR = {FLOAT32: 15.0, FLOAT64: 39.0}  # the exponential is 0 there, and nothing overflows


def relu(x: np.ndarray) -> None:
    """``max(x, 0)``."""
    np.maximum(x, _zeros(x.shape[-1], x.dtype), out=x)


def gelu(x: np.ndarray) -> None:
    """``x * (1 + erf(x / sqrt(2))) / 2`` (Hendrycks, Gimpel 2016, arXiv:1606.08415), compact `x`.

    Also ``max(x, 0) - |x| * tail(|x|)`` with the tail of the normal distribution, which has small
    results of negative numbers to full precision.
    """
    flat = x.reshape(-1)
    p, q, far = _P[x.dtype], _Q[x.dtype], _FAR[x.dtype]
    room = np.empty((3, min(_BLOCK, flat.size)), x.dtype)
    zeros = _zeros(room.shape[1], x.dtype)
    for first in range(0, flat.size, _BLOCK):
        some = flat[first : first + _BLOCK]
        size, numerator, denominator = room[:, : some.size]
        np.abs(some, out=size)
        if not size.max() <= far:  # or NaN
            np.minimum(size, far, out=size)
        _polynomial(p, size, numerator)
        _polynomial(q, size, denominator)
        numerator /= denominator
        numerator *= size
        size *= size
        size *= -0.5
        np.exp(size, out=size)
        numerator *= size
        np.maximum(some, zeros[: some.size], out=some)
        some -= numerator


def _zeros(n: int, dtype: np.dtype) -> np.ndarray:
    """NumPy compares two arrays several times faster than an array and a number."""
    return np.zeros(n, dtype)


def _polynomial(coefficients: tuple[float, ...], x: np.ndarray, out: np.ndarray) -> None:
    np.multiply(x, coefficients[-1], out=out)
    for coefficient in coefficients[-2:0:-1]:
        out += coefficient
        out *= x
    out += coefficients[0]


ACTIVATIONS: dict[str, Callable[[np.ndarray], None]] = {"relu": relu, "gelu": gelu}
