# SPDX-License-Identifier: MIT
"""The contenders without dot products of their own: ``torch.compile``, and Keras' layer.

Used through ``bench/contenders.py``, which has the additive calls of all others.  Both compile
before they are timed; neither changes the formula by hand.  Both have additive scores;
``torch.compile`` has the layers as well.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import shutil
import sys
from importlib.util import find_spec

from .contenders import CannotDo, Contender, Prepared, Torch
from .torch_layers import torch_layer

__all__ = ["Keras", "TorchCompile"]


class TorchCompile(Torch):
    """PyTorch's formula through ``torch.compile``: fused loops in C++ instead of large tensors."""

    name, title = "torch-compile", "torch.compile"
    differences = (
        "torch.compile: PyTorch's formula or layer in the default mode, static shapes, compiled"
        " beforehand; of a decoding loop, each step"
    )
    prepare = Contender.prepare
    prepare_cached = Contender.prepare_cached
    prepare_packed = Contender.prepare_packed

    def __init__(self, n_threads):
        os.environ.update(
            # In this process: the workers of a pool would still run while others are measured.
            TORCHINDUCTOR_COMPILE_THREADS="1",
            # The compiler can do what the CPU can: trying takes half of the first compilation.
            TORCHINDUCTOR_VEC_ISA_OK="1",
        )
        super().__init__(n_threads)

    def prepare_additive(self, workload, inputs):
        tensors = [self._torch.from_numpy(array) for array in inputs.values()]
        call = functools.partial(self._compiler()(self._additive()), *tensors)
        call()  # compiles
        return Prepared(call, lambda out: out.numpy())

    def prepare_layer(self, workload, inputs):
        prepared = torch_layer(self._torch, workload, inputs, self._compiler())
        prepared.call()  # compiles
        return prepared

    def _compiler(self):
        """What makes of a function a compiled one.

        Raises
        ------
        CannotDo
            If there is no C++ compiler.
        """
        compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
        if not shutil.which(compiler):
            raise CannotDo(f"needs a C++ compiler, and {compiler} is not here")
        return functools.partial(self._torch.compile, dynamic=False)


class Keras(Contender):
    """``keras.layers.AdditiveAttention``, on JAX, jitted as by ``predict``, or else on PyTorch."""

    name, title = "keras", "Keras"
    packages, pip = ("keras",), "keras jax"
    differences = (
        "Keras: layers.AdditiveAttention(use_scale=True), called with stateless_call under jax.jit"
        " on JAX, eagerly in inference mode on PyTorch; its version says which"
    )

    @classmethod
    def _backend(cls):
        """Which of the backends that it can run on is here, the faster one first."""
        return next(filter(find_spec, ("jax", "torch")), None)

    @classmethod
    def is_installed(cls):
        return super().is_installed() and cls._backend() is not None

    @classmethod
    def version(cls):
        backend = cls._backend()
        return (
            f"{importlib.metadata.version('keras')} on {backend}"
            f" {importlib.metadata.version(backend)}"
        )

    def __init__(self, n_threads):
        super().__init__(n_threads)
        os.environ["KERAS_BACKEND"] = self._backend()  # Keras reads it once, at its import
        if self._backend() == "torch":
            self._torch = Torch(n_threads)  # its threads, and inference mode
        import keras

        self._keras = keras

    def prepare_additive(self, workload, inputs):
        *arrays, vector = inputs.values()
        shape = arrays[0].shape
        # (batch, length, size): Keras' layer has no axis of heads
        arrays = [array.reshape(-1, *array.shape[2:]) for array in arrays]
        query, key, value = arrays
        layer = self._keras.layers.AdditiveAttention(use_scale=True)
        layer.build([query.shape, value.shape, key.shape])
        layer.set_weights([vector])
        make = self._with_jax if self._backend() == "jax" else self._with_torch
        to_numpy = self._keras.ops.convert_to_numpy
        return Prepared(make(layer, [query, value, key]), lambda out: to_numpy(out).reshape(shape))

    def _with_jax(self, layer, arrays):
        import jax

        jax.config.update("jax_platforms", "cpu")
        weights = [weight.value for weight in layer.weights]
        arrays = [jax.device_put(array) for array in arrays]

        @jax.jit
        def compiled(weights, arrays):
            return layer.stateless_call(weights, [], arrays)[0]

        def call():
            return compiled(weights, arrays).block_until_ready()

        call()  # compiles
        return call

    def _with_torch(self, layer, arrays):
        import torch

        return functools.partial(layer, [torch.from_numpy(array) for array in arrays])
