# SPDX-License-Identifier: MIT
"""Keys of additive attention, projected once for many queries.

Made by ``prepare_additive_keys``, accepted by ``additive_attention`` in place of its key.
It only holds them: ``_validate_additive`` checks and projects, the backends compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


class AdditiveKeys:
    """Projected keys for `additive_attention`, from `prepare_additive_keys`.

    They own their memory and never change: what happens to the arrays that they were made of does
    not matter any more. Any number of calls and threads may use them at the same time, and their
    leading axes broadcast like those of a key.

    Attributes
    ----------
    shape : tuple of int
        ``(..., kv_heads, keys, hidden)``, or ``(..., keys, kv_heads, hidden)`` in the layout
        ``"bshd"``.
    dtype : numpy.dtype
        That of the key they were made of, which query and value must have, too.
    layout : {"bhsd", "bshd"}
        Order of the axes of the key they were made of, in which query and value must be, too.

    Examples
    --------
    >>> import numpy as np
    >>> import fastattn
    >>> keys = fastattn.prepare_additive_keys(np.ones((2, 1, 7, 5)), key_weight=np.ones((5, 3)))
    >>> keys
    AdditiveKeys(shape=(2, 1, 7, 3), dtype=float64, layout='bhsd')
    """

    __slots__ = ("_projected", "_dtype", "_layout", "_n_axes", "_stand_in", "_packed")

    # (..., kv_heads, keys, hidden) in the dtype of the scores: compact, read-only, own memory
    _projected: np.ndarray
    _dtype: np.dtype
    _layout: str
    _n_axes: int  # of the key: 2 if there is no head axis
    _stand_in: np.ndarray  # an array of their shape and dtype with one element, for the checks
    # What a compiled backend made of them when it first met them, by the backend's name. Only ever
    # written with setdefault, which is atomic: threads that come at once agree on one.
    _packed: dict[str, Any]

    def __init__(self, projected: np.ndarray, dtype: np.dtype, layout: str, n_axes: int) -> None:
        projected.flags.writeable = False
        self._projected = projected
        self._dtype = dtype
        self._layout = layout
        self._n_axes = n_axes
        self._stand_in = np.broadcast_to(np.empty((), dtype), self.shape)
        self._packed = {}

    def _packed_for(self, backend: str, pack: Callable[[np.ndarray, str], Any]) -> Any:
        packed = self._packed.get(backend)
        if packed is None:
            packed = self._packed.setdefault(backend, pack(self._projected, backend))
        return packed

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self._projected.shape
        if self._n_axes == 2:
            return shape[1:]
        if self._layout == "bshd":
            return (*shape[:-3], shape[-2], shape[-3], shape[-1])
        return shape

    @property
    def dtype(self) -> np.dtype:
        return self._dtype

    @property
    def layout(self) -> str:
        return self._layout

    def __repr__(self) -> str:
        return f"AdditiveKeys(shape={self.shape}, dtype={self._dtype}, layout={self._layout!r})"

    def __reduce__(self) -> tuple:
        return AdditiveKeys, (self._projected, self._dtype, self._layout, self._n_axes)
