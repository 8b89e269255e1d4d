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

__all__: list[str] = [
    "ABCNN1",
    "ABCNN2",
    "AttentionOverAttention",
    "AttentionPooling",
    "AttentivePooling",
    "HierarchicalAttention",
    "match_matrix",
    "BahdanauAttention",
    "LuongAttention",
    "MultiHeadAttention",
    "PreparedMemory",
    "ProjectedMemory",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
]
