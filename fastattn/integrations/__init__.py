# SPDX-License-Identifier: MIT
"""fastattn where users already are: one module a framework, each imports its own and no other's.

For users, by ``import fastattn.integrations.torch`` and so on; nothing else in the package imports
a framework. This file is empty: a framework costs nothing until its module is imported.
"""
