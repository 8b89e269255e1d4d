# SPDX-License-Identifier: MIT
"""Who is compared: fastattn, NumPy, PyTorch and JAX, a class each, and the list of all contenders.

Used by ``bench/child.py``, which runs one of them, and by ``bench/peers.py``, which lists them.  It
measures nothing, and imports a contender's packages only when that contender is made.

A class says what it needs and what is different about it; `Contender.prepare` turns inputs into
the contender's own form, outside of what is timed.  ``bench/graphs.py`` has those that build a
graph first: ONNX Runtime and OpenVINO.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

import fastattn
from fastattn._cli import measure
from fastattn._cli.workloads import Workload

__all__ = ["CannotDo", "Contender", "Prepared", "known"]


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

    def prepare(self, workload: Workload, inputs: dict[str, np.ndarray]) -> Prepared:
        """Make everything that a call needs.

        Parameters
        ----------
        workload : Workload
        inputs : dict
            ``query``, ``key``, ``value``, each C-contiguous ``(batch, heads, length, head size)``.

        Raises
        ------
        CannotDo
            If the contender's call has no such option.
        """
        raise NotImplementedError


class FastAttn(Contender):
    """This package, from NumPy arrays to a NumPy array."""

    name, title = "fastattn", "fastattn"

    def __init__(self, n_threads):
        super().__init__(n_threads)
        fastattn.set_num_threads(n_threads)

    @classmethod
    def version(cls):
        return f"{fastattn.__version__}, {fastattn.get_backend()}"

    def prepare(self, workload, inputs):
        return Prepared(measure.caller(workload, inputs))


class NumPy(Contender):
    """The formula as one writes it with NumPy: two products and a softmax."""

    name, title = "numpy", "NumPy"
    differences = "plain NumPy: the formula in six lines, which holds all scores at once"

    @classmethod
    def version(cls):
        return np.__version__

    def prepare(self, workload, inputs):
        query, key, value = inputs["query"], inputs["key"], inputs["value"]
        batch, n_heads, n_queries, head_size = query.shape
        n_groups, n_keys = key.shape[1:3]
        # The query heads of a group are rows of one product: what a careful user would do.
        rows = query.reshape(batch, n_groups, -1, head_size)
        keys = key.swapaxes(-1, -2)
        scale = np.float32(head_size**-0.5)
        hidden = ~np.tri(n_queries, n_keys, dtype=bool) if workload.is_causal else None
        by_head = (batch, n_heads, n_queries, n_keys)

        def call():
            scores = (rows * scale) @ keys
            if hidden is not None:
                np.copyto(scores.reshape(by_head), -np.inf, where=hidden)
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            return (scores @ value).reshape(query.shape)

        return Prepared(call)


class Torch(Contender):
    """``torch.nn.functional.scaled_dot_product_attention`` under ``inference_mode``."""

    name, title = "torch", "PyTorch"
    packages, pip = ("torch",), "torch"
    differences = "PyTorch: tensors in, a fresh tensor out, inference mode, enable_gqa=True"

    def __init__(self, n_threads):
        super().__init__(n_threads)
        import torch

        torch.set_num_threads(n_threads)
        torch.inference_mode().__enter__()  # for good: entering it is no part of a call
        self._torch = torch

    def prepare(self, workload, inputs):
        tensors = [self._torch.from_numpy(array) for array in inputs.values()]
        options = {"is_causal": workload.is_causal}
        if workload.n_q_heads != workload.n_kv_heads:
            options["enable_gqa"] = True
        attention = self._torch.nn.functional.scaled_dot_product_attention
        call = functools.partial(attention, *tensors, **options)
        return Prepared(call, lambda out: out.numpy())


class Jax(Contender):
    """``jax.nn.dot_product_attention``, compiled by ``jax.jit`` before it is timed."""

    name, title = "jax", "JAX"
    packages, pip = ("jax", "jaxlib"), "jax"
    differences = "JAX: jitted, arrays on the device in its own layout, block_until_ready"

    def prepare(self, workload, inputs):
        import jax

        jax.config.update("jax_platforms", "cpu")
        arrays = [  # (batch, length, heads, head size)
            jax.device_put(np.ascontiguousarray(array.swapaxes(1, 2))) for array in inputs.values()
        ]
        attention = jax.nn.dot_product_attention
        compiled = jax.jit(functools.partial(attention, is_causal=workload.is_causal))

        def call():
            return compiled(*arrays).block_until_ready()

        call()  # compiles, which takes much more memory than a call
        return Prepared(call, lambda out: np.asarray(out).swapaxes(1, 2))


def known() -> dict[str, type[Contender]]:
    """All contenders by name, in the order of the tables."""
    from . import graphs

    classes = [
        FastAttn,
        Torch,
        graphs.OrtAttention,
        graphs.OrtMultiHead,
        graphs.OrtGroupQuery,
        graphs.OpenVINO,
        Jax,
        NumPy,
    ]
    return {cls.name: cls for cls in classes}
