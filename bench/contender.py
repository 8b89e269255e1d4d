# SPDX-License-Identifier: MIT
"""What a contender is: what it needs, what is different about it, and how it gets its inputs.

Used by ``bench/contenders.py``, ``ours.py``, ``graphs.py``, ``additive.py`` and ``packed.py``,
which say who they are, and by what they call.  It knows none of them, and measures nothing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from fastattn._cli.workloads import Workload

from . import serving

__all__ = ["CannotDo", "Contender", "Prepared", "is_ours", "preparer"]

# The method of a contender that prepares a workload, by the workload's group.
_PREPARERS = {
    "additive": "prepare_additive",
    "caches": "prepare_cached",
    "packed": "prepare_packed",
    "layers": "prepare_layer",
}


def preparer(workload: Workload) -> str:
    """The name of the method of a contender that prepares this workload."""
    return _PREPARERS.get(serving.group(workload), "prepare")


def is_ours(name: str) -> bool:
    """Whether the contender of that name is fastattn, in whatever form."""
    return name == "fastattn" or name.startswith("fastattn-")


class CannotDo(Exception):
    """The contender has no such call; the message says what is missing."""


@dataclass
class Prepared:
    """One workload, ready to be called.

    Parameters
    ----------
    call : callable
        What is timed: computes the output and returns it in the contender's own form.
    to_numpy : callable
        Turns that into an array ``(batch, heads, queries, head size)``; not timed.
    note : str
        How the call differs from the others' on this workload; a footnote of every table.
    keep : object
        Memory that the call reads without holding it.
    """

    call: Callable[[], Any]
    to_numpy: Callable[[Any], np.ndarray] = np.asarray
    note: str = ""
    keep: Any = None


class Contender:
    """One system that computes attention.

    An instance lives in a process of its own, which runs nothing else.

    Parameters
    ----------
    n_threads : int
        How many threads to use.  The process may not have more CPUs than that either, where the
        operating system can limit it, so that no library can overlook it.
    """

    name: str  # what a user types
    title: str  # what a table says
    packages: tuple[str, ...] = ()  # what has to be importable
    pip: str = ""  # what brings them
    differences: str = ""  # what is not like the others in every one of its calls

    def __init__(self, n_threads: int):
        self.n_threads = n_threads

    @classmethod
    def is_installed(cls) -> bool:
        """Whether its packages are here; imports none of them."""
        return all(find_spec(package) for package in cls.packages)

    @classmethod
    def version(cls) -> str:
        """The version of the package it is part of."""
        return importlib.metadata.version(cls.packages[0])

    @classmethod
    def takes_part(cls, workload: Workload) -> bool:
        """Whether it has any call for such a workload; a contender without is not even started."""
        name = preparer(workload)
        return getattr(cls, name) is not getattr(Contender, name)

    @classmethod
    def dtype_held(cls, workload: Workload) -> str:
        """The dtype in which it holds the keys and values of a workload."""
        return workload.dtype

    def prepare(self, workload: Workload, inputs: dict[str, np.ndarray]) -> Prepared:
        """Make everything that a call needs.

        Parameters
        ----------
        workload : Workload
        inputs : dict
            ``query``, ``key``, ``value``, each C-contiguous ``(batch, heads, length, head size)``
            in the dtype of the workload.

        Raises
        ------
        CannotDo
            If the contender's call has no such option.
        """
        raise CannotDo("additive scores only")

    def prepare_additive(self, workload: Workload, inputs: dict[str, np.ndarray]) -> Prepared:
        """The same for a workload with additive scores: projected queries and keys.

        Parameters
        ----------
        workload : Workload
            Without causal mask and grouped heads: no named one has them.
        inputs : dict
            Also ``attention_v``, of ``(head size,)``.

        Raises
        ------
        CannotDo
            If the contender has no operator for them.
        """
        raise CannotDo("no operator for additive scores")

    def prepare_cached(self, workload: Workload, inputs: dict[str, np.ndarray]) -> Prepared:
        """The same for a decoding step on a cache, which is filled beforehand.

        Parameters
        ----------
        workload : Cached
        inputs : dict
            As for :meth:`prepare`.

        Raises
        ------
        CannotDo
            If the contender has no such cache.
        """
        raise CannotDo("no cache of its own")

    def prepare_packed(self, workload: Workload, inputs: dict[str, np.ndarray]) -> Prepared:
        """The same for many sequences of different lengths.

        Parameters
        ----------
        workload : Packed
        inputs : dict
            ``query``, ``key``, ``value``, each C-contiguous ``(tokens, heads, head size)``.  What
            `Prepared.to_numpy` returns is ``(1, heads, query tokens, head size)``.

        Raises
        ------
        CannotDo
            If the contender has no call for such a batch.
        """
        raise CannotDo("sequences of equal lengths only")

    def prepare_layer(self, workload: Workload, inputs: dict[str, np.ndarray]) -> Prepared:
        """The same for a layer with weights, or a loop of its calls.

        Parameters
        ----------
        workload : Layered
        inputs : dict
            What its ``make`` draws: weights are among them, in the orientation ``x @ weight``.

        Raises
        ------
        CannotDo
            If the contender has no such layer.
        """
        raise CannotDo("no layers")
