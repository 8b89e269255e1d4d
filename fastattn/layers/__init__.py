# SPDX-License-Identifier: MIT
"""Attention layers of the literature: weights in, NumPy arrays in and out, inference only.

Their names, and nothing else: each is in a file of its own and is thin code over the functions of
the package. It is not imported by ``import fastattn`` before it is used.

===========================  ====================================================================
``BahdanauAttention``        additive attention of a decoder, its memory projected once
``LuongAttention``           dot, general, concat and location scores; global and local
``MultiHeadAttention``       self-attention, cross-attention, steps with a cache; from PyTorch
``TransformerEncoderLayer``  with norms and feed-forward network; from PyTorch
``TransformerDecoderLayer``  the same with attention to an encoder's output
``AttentionPooling``         a sequence made one vector by a query, learned or given
``HierarchicalAttention``    documents as vectors: pooling of words, then of sentences
``AttentionOverAttention``   where in a document the answer to a question stands
``AttentivePooling``         two texts pooled by what each place of one finds in the other
``ABCNN1``, ``ABCNN2``       attention of two texts before a convolution, and after one
``match_matrix``             what these two look at
``PreparedMemory``           of `BahdanauAttention.prepare`
``ProjectedMemory``          of `MultiHeadAttention.project_memory`
===========================  ====================================================================
"""

from .abcnn import ABCNN1, ABCNN2, match_matrix
from .attention_over_attention import AttentionOverAttention
from .attention_pooling import AttentionPooling
from .attentive_pooling import AttentivePooling
from .bahdanau import BahdanauAttention, PreparedMemory
from .hierarchical import HierarchicalAttention
from .luong import LuongAttention
from .multi_head import MultiHeadAttention, ProjectedMemory
from .transformer_decoder import TransformerDecoderLayer
from .transformer_encoder import TransformerEncoderLayer

__all__ = [
    "ABCNN1",
    "ABCNN2",
    "AttentionOverAttention",
    "AttentionPooling",
    "AttentivePooling",
    "BahdanauAttention",
    "HierarchicalAttention",
    "LuongAttention",
    "MultiHeadAttention",
    "PreparedMemory",
    "ProjectedMemory",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "match_matrix",
]
