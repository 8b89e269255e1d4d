# SPDX-License-Identifier: MIT
"""Who is compared: NumPy, PyTorch and JAX, a class each, and the list of all contenders.

Used by ``bench/child.py``, which runs one of them, and by ``bench/peers.py``, which lists them.  It
measures nothing, and imports a contender's packages only when that contender is made.

`Contender.prepare` turns inputs into the contender's own form, outside of what is timed.
``bench/ours.py`` has fastattn itself; ``bench/graphs.py`` those that build a graph first, ONNX
Runtime and OpenVINO; ``bench/additive.py`` those for additive scores and layers, ``packed.py`` one
for packed sequences only; ``layer_calls.py`` and ``torch_layers.py`` what is called for layers.
"""

from __future__ import annotations

import functools

import numpy as np

from .contender import CannotDo, Contender, Prepared
from .layer_calls import numpy_layer
from .ours import FastAttn
from .serving import pieces
from .torch_layers import torch_layer

__all__ = ["CannotDo", "Contender", "FastAttn", "Prepared", "known"]


class NumPy(Contender):
    """The formula as one writes it with NumPy: two products and a softmax."""

    name, title = "numpy", "NumPy"
    differences = (
        "plain NumPy: the formula in six lines, which holds all scores at once (additive: all"
        " values of tanh as well); documents: packed, with reduceat"
    )

    @classmethod
    def version(cls):
        return np.__version__

    def prepare(self, workload, inputs):
        if workload.dtype != "float32":
            raise CannotDo("products of 16-bit floats are loops without a BLAS")
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

    def prepare_layer(self, workload, inputs):
        return numpy_layer(workload, inputs)


class Torch(Contender):
    """``torch.nn.functional.scaled_dot_product_attention`` under ``inference_mode``."""

    name, title = "torch", "PyTorch"
    packages, pip = ("torch",), "torch"
    differences = (
        "PyTorch: tensors in, a fresh tensor out, inference mode, enable_gqa=True; additive: the"
        " formula, eagerly, by tanh, sum, softmax and matmul; packed and documents: a batch padded"
        " beforehand, and a mask of what is real"
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
        tensors = [self._tensor(array) for array in inputs.values()]
        call = functools.partial(self._attention(workload), *tensors)
        return Prepared(call, self._array)

    def prepare_cached(self, workload, inputs):
        return self.prepare(workload, inputs)

    def prepare_packed(self, workload, inputs):
        if workload.kind == "decode":
            raise CannotDo(
                "these keys padded to one length would be twice as much to read: see PyTorch loop"
            )
        where, longest = pieces(workload.lengths), max(workload.lengths)
        tensors = []
        for array in inputs.values():
            padded = np.zeros((len(where), longest, *array.shape[1:]), array.dtype)
            for row, piece in zip(padded, where):
                row[: piece.stop - piece.start] = array[piece]
            tensors.append(self._tensor(np.ascontiguousarray(padded.swapaxes(1, 2))))
        is_real = np.arange(longest) < np.array(workload.lengths)[:, None]
        mask = self._tensor(is_real[:, None, None])  # for every head and query
        call = functools.partial(self._attention(workload), *tensors, attn_mask=mask)

        def to_numpy(out):
            return self._array(out).swapaxes(1, 2)[is_real].swapaxes(0, 1)[None]

        return Prepared(call, to_numpy)

    def _attention(self, workload):
        """The operator with the options of a workload."""
        options = {"is_causal": workload.is_causal}
        if workload.n_q_heads != workload.n_kv_heads:
            options["enable_gqa"] = True
        attention = self._torch.nn.functional.scaled_dot_product_attention
        return functools.partial(attention, **options)

    def _tensor(self, array):
        """An array as a tensor of the same memory; NumPy's bfloat16 is unknown to PyTorch."""
        if array.dtype.name != "bfloat16":
            return self._torch.from_numpy(array)
        return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)

    def _array(self, tensor):
        """The inverse of :meth:`_tensor`."""
        if tensor.dtype != self._torch.bfloat16:
            return tensor.numpy()
        return tensor.view(self._torch.int16).numpy().view("bfloat16")

    def prepare_additive(self, workload, inputs):
        tensors = [self._torch.from_numpy(array) for array in inputs.values()]
        call = functools.partial(self._additive(), *tensors)
        return Prepared(call, lambda out: out.numpy())

    def prepare_layer(self, workload, inputs):
        return torch_layer(self._torch, workload, inputs)

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
        if workload.dtype == "float16":
            raise CannotDo("no float16 products that are summed in float32 on CPUs")
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
    from . import additive, graphs, ours, packed

    classes = [
        FastAttn,
        *ours.STORAGES,
        Torch,
        packed.TorchLoop,
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
