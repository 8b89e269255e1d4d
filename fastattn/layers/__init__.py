# SPDX-License-Identifier: MIT
"""Attention layers of the literature: weights in, NumPy arrays in and out, inference only.

Their names, and nothing else: each is in a file of its own and is thin code over the functions of
the package. It is not imported by ``import fastattn`` before it is used.
"""

__all__: list[str] = []
