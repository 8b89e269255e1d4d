# SPDX-License-Identifier: MIT
"""Who is compared: fastattn, NumPy, PyTorch and JAX, a class each, and the list of all contenders.

Used by ``bench/child.py``, which runs one of them, and by ``bench/peers.py``, which lists them.  It
measures nothing, and imports a contender's packages only when that contender is made.

`Contender.prepare` turns inputs into the contender's own form, outside of what is timed.
``bench/graphs.py`` has those that build a graph first: ONNX Runtime and OpenVINO;
``bench/additive.py`` those for additive scores only.
"""

from __future__ import annotations

import functools

import numpy as np

import fastattn
from fastattn._cli import measure

from .contender import CannotDo, Contender, Prepared

__all__ = ["CannotDo", "Contender", "Prepared", "known"]


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

    def prepare_additive(self, workload, inputs):
        call, note = measure.caller(workload, inputs), ""
        if workload.has_prepared_keys:
            call()  # the first call with such keys brings them into the kernel's form
            note = "keys of prepare_additive_keys, made beforehand; the others' are projected only"
        return Prepared(call, note=note)


class NumPy(Contender):
    """The formula as one writes it with NumPy: two products and a softmax."""

    name, title = "numpy", "NumPy"
    differences = (
        "plain NumPy: the formula in six lines, which holds all scores at once (additive: all"
        " values of tanh as well)"
    )

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

    def prepare_additive(self, workload, inputs):
        query, key, value, vector = inputs.values()

        def call():
            terms = query[:, :, :, None] + key[:, :, None]
            np.tanh(terms, out=terms)
            terms *= vector
            scores = terms.sum(axis=-1)
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            return scores @ value

        return Prepared(call)


class Torch(Contender):
    """``torch.nn.functional.scaled_dot_product_attention`` under ``inference_mode``."""

    name, title = "torch", "PyTorch"
    packages, pip = ("torch",), "torch"
    differences = (
        "PyTorch: tensors in, a fresh tensor out, inference mode, enable_gqa=True; additive: the"
        " formula, eagerly, by tanh, sum, softmax and matmul"
    )

    def __init__(self, n_threads):
        super().__init__(n_threads)
        import torch

        torch.set_num_threads(n_threads)
        # For good, as entering it is no part of a call; it ends with the object.
        self._mode = torch.inference_mode()
        self._mode.__enter__()
        self._torch = torch

    def prepare(self, workload, inputs):
        tensors = [self._torch.from_numpy(array) for array in inputs.values()]
        options = {"is_causal": workload.is_causal}
        if workload.n_q_heads != workload.n_kv_heads:
            options["enable_gqa"] = True
        attention = self._torch.nn.functional.scaled_dot_product_attention
        call = functools.partial(attention, *tensors, **options)
        return Prepared(call, lambda out: out.numpy())

    def prepare_additive(self, workload, inputs):
        tensors = [self._torch.from_numpy(array) for array in inputs.values()]
        call = functools.partial(self._additive(), *tensors)
        return Prepared(call, lambda out: out.numpy())

    def _additive(self):
        """The formula as a function of tensors."""
        torch = self._torch

        def attention(query, key, value, vector):
            scores = (vector * torch.tanh(query[:, :, :, None] + key[:, :, None])).sum(-1)
            return torch.softmax(scores, -1) @ value

        return attention


class Jax(Contender):
    """``jax.nn.dot_product_attention``, compiled by ``jax.jit`` before it is timed."""

    name, title = "jax", "JAX"
    packages, pip = ("jax", "jaxlib"), "jax"
    differences = (
        "JAX: jitted, arrays on the device in its own layout, block_until_ready; additive: the"
        " formula, jitted"
    )

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

    def prepare_additive(self, workload, inputs):
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_platforms", "cpu")
        arrays = [jax.device_put(array) for array in inputs.values()]

        @jax.jit
        def compiled(query, key, value, vector):
            scores = (vector * jnp.tanh(query[:, :, :, None] + key[:, :, None])).sum(-1)
            return jax.nn.softmax(scores) @ value

        def call():
            return compiled(*arrays).block_until_ready()

        call()
        return Prepared(call)


def known() -> dict[str, type[Contender]]:
    """All contenders by name, in the order of the tables."""
    from . import additive, graphs

    classes = [
        FastAttn,
        Torch,
        graphs.OrtAttention,
        graphs.OrtMultiHead,
        graphs.OrtGroupQuery,
        graphs.OpenVINO,
        additive.TorchCompile,
        Jax,
        additive.Keras,
        NumPy,
    ]
    return {cls.name: cls for cls in classes}
