# SPDX-License-Identifier: MIT
"""What all layers have in common: a dtype, one line that describes them, and that they stay as
they are.

For the layers of this package. It checks no weights (``_weights``) and computes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Layer:
    """A base class: everything is set once, with `_set`.

    Copies and pickles are plain ones; any number of threads may call a layer, as nothing of it
    ever changes.
    """

    _dtype: Any

    def _set(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: a {type(self).__name__} cannot be changed; make another one")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    @property
    def dtype(self) -> np.dtype:
        """That of the weights, the inputs and the outputs."""
        return self._dtype

    def _facts(self) -> dict[str, Any]:
        """What `repr` tells: sizes and options by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = {**self._facts(), "dtype": self._dtype.name}
        return f"{type(self).__name__}({', '.join(f'{n}={x!r}' for n, x in facts.items())})"


def rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A result in the dtype of the layer: at the end, once; without warnings."""
    if x.dtype == dtype:
        return x
    with np.errstate(all="ignore"):
        result = x.astype(dtype)
        np.add(1.0, 1.0)  # NumPy clears the processor's flags before it works: none stays behind
    return result
