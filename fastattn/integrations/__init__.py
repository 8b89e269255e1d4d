# SPDX-License-Identifier: MIT
"""Adapters for other frameworks: each imports its framework, nothing else does.

For users, by the module's own name: ``import fastattn.integrations.<framework>``.
Importing this package imports none of them; they compute no attention of their own.
"""
