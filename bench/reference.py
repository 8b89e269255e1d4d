# SPDX-License-Identifier: MIT
"""What a workload's output must be, and how far from it a contender's may be.

Used by ``bench/rounds.py`` and by the suites of pytest-benchmark.  The float64 attention and the
tolerance are those of ``fastattn._cli.oracle``; here are packed sequences, and what 16 and 8 bits
excuse.  Layers are in ``bench/layer_reference.py``.

What is excused, beside that tolerance:

* an int8 cache: 8 standard deviations of what its rounding does to the element.  A number of a key
  or a value is rounded to a multiple of ``largest / 127``, an error that is spread evenly over one
  step, of variance ``step**2 / 12``.  Of a key it moves the score ``s_j`` by a variance of
  ``(scale |q|)**2 step_j**2 / 12``, and the output by ``w_j (v_j - out)`` per unit of that; of a
  value it moves the output by ``w_j``.  Variances add, as the errors are independent.
* other systems on 16-bit floats: half a unit in the last place of each weight, as they may round
  weights before the second product: ``unit * sum_j w_j |v_j|``.  fastattn promises not to.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from fastattn._cli import measure, oracle

from . import contender, layer_reference, serving

__all__ = ["Reference"]

DEVIATIONS = 8
UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


class Reference:
    """The expected output of a workload, at a sample of the query rows where it is large.

    Parameters
    ----------
    workload : Workload
    inputs : dict
        What its ``make`` has drawn.
    rng : Generator
        Draws the sample.

    Attributes
    ----------
    rows : array of int
        The rows compared, of each (batch entry, head).
    n_rows : int
        How many those are altogether.
    """

    def __init__(self, workload, inputs, rng):
        self._dtype = workload.dtype
        self._int8 = 0.0
        if isinstance(workload, serving.Packed):
            self.rows, self._expected = _packed(workload, inputs, rng)
        elif serving.group(workload) == "layers":
            self.rows = np.arange(workload.n_queries)
            self._expected = layer_reference.expected(workload, inputs)
        else:
            self.rows = measure.sample_rows(workload, rng)
            has_int8 = "fastattn-int8" in getattr(workload, "storages", ())
            self._expected = oracle.attention(
                **inputs, **workload.options, rows=self.rows, want_weights=has_int8
            )
            if has_int8:
                self._int8 = DEVIATIONS * int8_deviation(inputs, self._expected, self.rows)
        self.n_rows = math.prod(self._expected.lse.shape)

    def judge(self, result, name="fastattn", dtype_held=None) -> measure.Accuracy:
        """Compare rows of an output with those expected.

        Parameters
        ----------
        result : ndarray (batch, heads, rows, head size)
        name : str
            The contender.
        dtype_held : str, optional
            The dtype in which it holds keys and values; by default that of the workload.
        """
        excused = 0.0
        if dtype_held == "int8":
            excused = self._int8
        elif self._dtype in UNITS and not contender.is_ours(name):
            excused = UNITS[self._dtype] * self._expected.value_size
        return measure.judge(result, dataclasses.replace(self._expected, excused=excused))


def int8_deviation(inputs, expected, rows) -> np.ndarray:
    """The standard deviation of the output of an int8 cache, for the reasons above.

    Parameters
    ----------
    inputs : dict
        ``query``, ``key``, ``value``: ``(batch, heads, length, head size)``.
    expected : Expected
        Of these `rows`, with weights.
    """
    query, key, value = (array.astype(np.float64) for array in inputs.values())
    batch, n_groups, n_keys, size = key.shape
    key_step, value_step = (np.abs(a).max(axis=-1) / 127 for a in (key, value))  # (b, g, keys)

    def by_group(array):  # the query heads of a key and value head are rows of one product
        return array.reshape(batch, n_groups, -1, array.shape[-1])

    out, squares = by_group(expected.out), by_group(expected.weights) ** 2
    norms = by_group((query[:, :, rows] ** 2).sum(axis=-1, keepdims=True)) / size  # (scale |q|)**2
    moved = squares * norms * key_step[:, :, None] ** 2 / 12
    variance = squares @ (value_step[..., None] ** 2 / 12)
    # sum_j moved_j (v_j - out)**2, multiplied out
    variance = variance + moved @ value**2 - 2 * out * (moved @ value)
    variance += out**2 * moved.sum(axis=-1, keepdims=True)
    return np.sqrt(np.maximum(variance, 0)).reshape(expected.out.shape)


def _packed(workload, inputs, rng):
    """Rows of a packed workload to compare, and what they must be: sequence by sequence."""
    query, key, value = (array.swapaxes(0, 1) for array in inputs.values())  # heads first
    pairs = zip(workload.query_lengths, workload.lengths)
    n_products = workload.head_size * workload.n_q_heads * sum(a * b for a, b in pairs)
    part = min(1.0, measure.ORACLE_PRODUCTS / n_products)
    sampled, found = [], []
    for its_queries, its_keys in zip(
        serving.pieces(workload.query_lengths), serving.pieces(workload.lengths)
    ):
        n_queries = its_queries.stop - its_queries.start
        # At least the last, whose place is where a wrong length shows.
        inner = rng.permutation(n_queries - 1)[: math.ceil(part * n_queries) - 1]
        rows = np.sort(np.append(inner, n_queries - 1))
        sampled.append(its_queries.start + rows)
        arrays = (query[:, sampled[-1]], key[:, its_keys], value[:, its_keys])
        found.append(oracle.attention(*(array[None] for array in arrays)))
    both = [
        np.concatenate([getattr(one, name) for one in found], axis=2)
        for name in ("out", "lse", "value_size", "score_size")
    ]
    out, lse, value_size, score_size = both
    return np.concatenate(sampled), oracle.Expected(out, lse, None, value_size, score_size)
