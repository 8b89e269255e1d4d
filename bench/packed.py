# SPDX-License-Identifier: MIT
"""The contender that has a call for packed sequences only: PyTorch, one sequence after the other.

Used through ``bench/contenders.py``, where PyTorch's other calls are, padded batches among them.
"""

from __future__ import annotations

import numpy as np

from .contenders import Contender, Prepared, Torch
from .serving import pieces

__all__ = ["TorchLoop"]


class TorchLoop(Torch):
    """PyTorch's operator in a loop over the sequences, which needs no padding."""

    name, title = "torch-loop", "PyTorch loop"
    differences = (
        "PyTorch loop: one call for each sequence, of tensors of its own made beforehand; a list"
        " of outputs, which nothing puts together"
    )
    prepare = Contender.prepare
    prepare_additive = Contender.prepare_additive
    prepare_cached = Contender.prepare_cached
    prepare_layer = Contender.prepare_layer

    def prepare_packed(self, workload, inputs):
        where = {"query": pieces(workload.query_lengths)}
        where["key"] = where["value"] = pieces(workload.lengths)
        tensors = [
            [self._of_sequence(array[piece]) for piece in where[name]]
            for name, array in inputs.items()
        ]
        sequences = list(zip(*tensors))
        attention = self._attention(workload)

        def call():
            return [attention(*tensors) for tensors in sequences]

        def to_numpy(outs):
            return np.concatenate([self._array(out) for out in outs], axis=2)

        return Prepared(call, to_numpy)

    def _of_sequence(self, tokens):
        """``(tokens, heads, size)`` as a tensor ``(1, heads, tokens, size)``."""
        return self._tensor(np.ascontiguousarray(tokens.swapaxes(0, 1)[None]))
