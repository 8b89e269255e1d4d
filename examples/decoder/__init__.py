# SPDX-License-Identifier: MIT
# A decoder of Llama's kind in NumPy on fastattn. Used by generate.py, which shows it; read from
# here: model, generation, smollm2, comparison.
# It trains nothing and serves nobody; it is an example, no part of the package.
"""A small decoder over `fastattn.KVCache`."""
