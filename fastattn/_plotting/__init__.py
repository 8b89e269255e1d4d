# SPDX-License-Identifier: MIT
"""What ``fastattn.plotting`` is made of: checks, labels, maps, words.

For ``plotting`` alone, which has the signatures and says what they mean. Nothing here is public,
and matplotlib is imported where it is used, never with the module.
"""
