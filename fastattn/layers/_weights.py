# SPDX-License-Identifier: MIT
"""The weights that a layer is made of: one dtype, shapes that fit, memory of their own.

For the layers of this package: each takes its weights by name and shape, in which sizes have names,
too, and then checks what it is called with. It computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _check_arrays as arrays


class Weights:
    """What a layer was given, by name; None for what it was not.

    ``weights.take("query_weight", "query_dim", "units")`` returns a matrix and remembers its sizes;
    whatever has ``units`` later must have as many.

    Attributes
    ----------
    dtype : numpy.dtype
        The one that all share, and that the layer's inputs and outputs have.
    acc : numpy.dtype
        In which the layer computes, and in which weights are taken: float64 for float64, else
        float32.
    sizes : dict of str to int
        What the names of sizes stand for.
    """

    def __init__(
        self, given: Mapping[str, Any], *, like: str | None = None, dtype: Any = None
    ) -> None:
        """`dtype`, if there is one, is that of `like`, which the weights must have as well.

        Without weights and without it the dtype is float32.
        """
        self._given = {name: arrays.as_array(x, name) for name, x in given.items() if x is not None}
        self.sizes: dict[str, int] = {}
        self._sources: dict[str, str] = {}  # of each size: the weight that said it
        self.dtype = self._shared_dtype(like, dtype)
        self.acc = accumulator(self.dtype)

    def _shared_dtype(self, first: str | None, shared: Any) -> Any:
        for name, array in self._given.items():
            dtype = arrays.float_dtype(array.dtype)
            if dtype is None:
                raise TypeError(f"{name}: expected dtype {arrays.DTYPES}, got {array.dtype}")
            if first is None:
                shared, first = dtype, name
            elif dtype != shared:
                raise TypeError(f"{name}: expected dtype {shared} to match {first}, got {dtype}")
        return arrays.FLOAT32 if first is None else shared

    def know(self, size: str, n: int, source: str) -> None:
        """Say what the name of a size stands for, and who says so."""
        self.sizes[size] = n
        self._sources[size] = source

    def agree(self, size: str, axes: Mapping[str, int]) -> None:
        """Let a size be what most weights say, so that it is the odd one that is wrong.

        `axes` tells where each weight has it; the first one is right where none has a majority.
        """
        said = {
            name: self._given[name].shape[axis]
            for name, axis in axes.items()
            if name in self._given and self._given[name].ndim > axis
        }
        if said:
            numbers = list(said.values())
            n = max(numbers, key=numbers.count)
            self.know(size, n, next(name for name in said if said[name] == n))

    def need(self, name: str, *shape: str | int) -> Any:
        """The same as `take` for a weight that cannot be left out."""
        if name not in self._given:
            raise TypeError(f"{name}: expected an array, got None")
        return self.take(name, *shape)

    def take(self, name: str, *shape: str | int) -> Any:
        """A read-only copy in `acc`, or None if it was not given.

        `shape` has a number or the name of a size for each axis.
        """
        if name not in self._given:
            return None
        array = self._given[name]
        fits = array.ndim == len(shape)
        for axis, size in enumerate(shape if fits else ()):
            n = array.shape[axis]
            if isinstance(size, int):
                fits = fits and n == size
            else:
                self._sources.setdefault(size, name)
                fits = fits and n == self.sizes.setdefault(size, n)
        if not fits:
            raise ValueError(f"{name}: expected {self._wanted(shape)}, got shape {array.shape}")
        taken = np.array(array, dtype=self.acc, order="C")
        taken.flags.writeable = False
        return taken

    def _wanted(self, shape: tuple[str | int, ...]) -> str:
        comma = "," if len(shape) == 1 else ""
        text = f"shape ({', '.join(map(str, shape))}{comma})"
        known = [
            f"{size} = {self.sizes[size]} (from {self._sources[size]})"
            for size in dict.fromkeys(shape)
            if isinstance(size, str) and size in self.sizes
        ]
        return text + (" with " + ", ".join(known) if known else "")

    def input(self, x: Any, name: str, size: str | int | None = None) -> np.ndarray:
        """Check what a layer is called with: its dtype, and its last axis unless `size` is None."""
        return checked_input(x, name, self.dtype, self.sizes.get(size, size) if size else None)


def accumulator(dtype: Any) -> np.dtype:
    """The dtype in which a layer of `dtype` computes."""
    return arrays.FLOAT64 if dtype == arrays.FLOAT64 else arrays.FLOAT32


def checked_input(x: Any, name: str, dtype: np.dtype, size: int | None) -> np.ndarray:
    """An array (..., size) in the dtype of the layer; `size` None takes any."""
    array = arrays.as_array(x, name)
    found = arrays.float_dtype(array.dtype)
    if found is None or found != dtype:  # None equals float64 for NumPy
        raise TypeError(f"{name}: expected dtype {dtype}, that of the weights, got {array.dtype}")
    if array.ndim == 0 or (size is not None and array.shape[-1] != size):
        raise ValueError(f"{name}: expected a last axis of size {size}, got shape {array.shape}")
    return array
