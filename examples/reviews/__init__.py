# SPDX-License-Identifier: MIT
# A judge of reviews: hierarchical attention over words and sentences. Used by
# hierarchical_documents.py, which shows it; read from here: texts, model, train (made weights.npz).
# It is an example, no part of the package, and no judge of anything but short reviews.
"""Is a review content or not, and which words of which sentences say so?"""
