# SPDX-License-Identifier: MIT
"""The commands behind `python -m fastattn`.

Used by ``fastattn/__main__.py`` alone: importing fastattn does not import this package.  Nothing
here computes attention for users.

=============  =====================================================================================
``info``       what runs here, how it was chosen, and what is missing
``selftest``   random calls on every backend against float64: ``cases`` and ``oracle``
``bench``      the named ``workloads`` beside NumPy and limits: ``measure``, ``ceilings``,
               ``report``, ``plot``
``facts``      what the commands have to know about this installation, and their usage errors
``console``    tables, notes and progress bars, with or without rich
=============  =====================================================================================

NumPy is all they need; rich and matplotlib are imported where they are used, if they are there.
"""
