# SPDX-License-Identifier: MIT
"""Attention layers of the literature: weights in, NumPy arrays in and out, inference only.

Their names, and nothing else: each is in a file of its own and is thin code over the functions of
the package. It is not imported by ``import fastattn`` before it is used.
"""

from .abcnn import ABCNN1, ABCNN2, match_matrix
from .attention_over_attention import AttentionOverAttention
from .attention_pooling import AttentionPooling
from .attentive_pooling import AttentivePooling
from .hierarchical import HierarchicalAttention

__all__: list[str] = [
    "ABCNN1",
    "ABCNN2",
    "AttentionOverAttention",
    "AttentionPooling",
    "AttentivePooling",
    "HierarchicalAttention",
    "match_matrix",
]
