# SPDX-License-Identifier: MIT
# A reader of dates: an encoder and a decoder with Bahdanau's attention between them. Used by
# date_alignment.py, which shows it; read from here: texts, model, train (which made weights.npz).
# It is an example, no part of the package, and knows no dates but those of its formats.
"""Dates as people write them, turned into YYYY-MM-DD."""
