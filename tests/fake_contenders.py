# SPDX-License-Identifier: MIT
# Contenders that are wrong, refuse, fail or die.
# Used by test_peers.py, and imported by the processes in which the comparison runs them.
# They test nothing themselves; without the folder bench/ this file cannot be imported.
"""What a comparison must be able to stand."""

from __future__ import annotations

import dataclasses
import os

import numpy as np

from bench import contenders, ours


class Wrong(contenders.NumPy):
    name, title = "wrong", "Wrong"

    def prepare(self, workload, inputs):
        prepared = super().prepare(workload, inputs)
        return contenders.Prepared(lambda: prepared.call() + np.float32(1e-3))


class WrongFastAttn(Wrong):
    name = "fastattn"


class WrongAdditive(contenders.NumPy):
    """Right with dot products."""

    name, title = "wrong-additive", "Wrong additive"

    def prepare_additive(self, workload, inputs):
        prepared = super().prepare_additive(workload, inputs)
        return contenders.Prepared(lambda: prepared.call() + np.float32(1e-3))


class AdditiveOnly(contenders.NumPy):
    name, title = "additive-only", "Additive only"
    prepare = contenders.Contender.prepare


class DotOnly(contenders.NumPy):
    name, title = "dot-only", "Dot only"
    prepare_additive = contenders.Contender.prepare_additive


class NaN(contenders.NumPy):
    name, title = "nan", "NaN"

    def prepare(self, workload, inputs):
        prepared = super().prepare(workload, inputs)
        return contenders.Prepared(lambda: prepared.call() * np.float32(np.nan))


class Missing(contenders.NumPy):
    name, title = "missing", "Missing"
    packages, pip = ("no_such_package",), "no-such-package"


class Refuses(contenders.NumPy):
    name, title = "refuses", "Refuses"

    def prepare(self, workload, inputs):
        if workload.is_causal:
            raise contenders.CannotDo("no causal mask")
        return super().prepare(workload, inputs)


class Raises(contenders.NumPy):
    name, title = "raises", "Raises"

    def prepare(self, workload, inputs):
        if workload.name == "tiny-prefill":
            raise ValueError("out of luck")
        return super().prepare(workload, inputs)


class NoImport(contenders.NumPy):
    name, title = "no-import", "No import"

    def __init__(self, n_threads):
        raise ImportError("a library is too old")


class Dies(contenders.NumPy):
    """Its third call ends the process: the first gives the verdict, one warms, one is timed."""

    name, title = "dies", "Dies"

    def prepare(self, workload, inputs):
        prepared, n_calls = super().prepare(workload, inputs), 0

        def call():
            nonlocal n_calls
            n_calls += workload.name != "smallest"
            if n_calls == 3:
                os._exit(7)
            return prepared.call()

        return contenders.Prepared(call)


class WrongInt8(ours.Int8):
    """Rounded to 6 bits instead of 8."""

    def prepare_cached(self, workload, inputs):
        inputs = {name: np.round(array * 16) / 16 for name, array in inputs.items()}
        return super().prepare_cached(workload, inputs)


class WrongLayer(contenders.NumPy):
    name, title = "wrong-layer", "Wrong layer"

    def prepare_layer(self, workload, inputs):
        prepared = super().prepare_layer(workload, inputs)
        return contenders.Prepared(
            prepared.call, lambda out: prepared.to_numpy(out) + np.float32(1e-3)
        )


class Forgetful(contenders.NumPy):
    """Has no causal mask, and does not say so."""

    name, title = "forgetful", "Forgetful"

    def prepare_layer(self, workload, inputs):
        return super().prepare_layer(dataclasses.replace(workload, is_causal=False), inputs)


class TellsMode(contenders.Torch):
    name, title = "tells-mode", "Tells mode"

    def prepare(self, workload, inputs):
        raise contenders.CannotDo(f"inference mode {self._torch.is_inference_mode_enabled()}")
