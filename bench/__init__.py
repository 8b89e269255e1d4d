# SPDX-License-Identifier: MIT
"""Suites for pytest-benchmark; run ``pytest bench`` from the root of the source tree.

Used by people who change a kernel and want histories, percentiles and comparisons between commits.
The quick look, with the machine's limits beside it, is ``python -m fastattn bench``.

Nothing here gates anything by time: a slow run passes, a wrong result fails.
``pytest bench --benchmark-disable`` runs every body once, as a check that the suites still work.
"""
