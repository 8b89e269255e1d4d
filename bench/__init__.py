# SPDX-License-Identifier: MIT
"""Suites for pytest-benchmark, and the comparison with other systems; run from the source tree.

``pytest bench`` is for people who change a kernel and want histories, percentiles and comparisons
between commits; ``python -m bench.peers`` measures PyTorch, ONNX Runtime, OpenVINO, JAX and Keras.
The quick look, with the machine's limits beside it, is ``python -m fastattn bench``.

Nothing here gates anything by time: a slow run passes, a wrong result fails.
``pytest bench --benchmark-disable`` runs every body once, as a check that the suites still work.
"""
