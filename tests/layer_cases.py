# SPDX-License-Identifier: MIT
# One case for each layer and kind of it: weights, inputs, formula.
# Used by test_layers*.py for the rules that all layers have, and by test_catalog_*.py.
# It draws numbers; the formulas are in check_layers.py and check_pooling.py.
"""Cases by name: `CASES[name](rng, dtype)` draws one. No two of its sizes are equal.

Inputs have a batch of 6 (BATCH, what nothing else is) and NaN where nothing may be used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import check_layers as formulas
import check_pooling
import numpy as np
from check import draw
from check_layers import poisoned

from fastattn import layers

BATCH = 6
LENGTHS = np.array([5, 3, 0, 1, 4, 2])
PARTS = {
    "self_attention": "MultiHeadAttention",
    "cross_attention": "MultiHeadAttention",
    "word_attention": "AttentionPooling",
    "sentence_attention": "AttentionPooling",
}


@dataclass
class Case:
    """A layer's name, what makes it, what it is called with, and its formula."""

    name: str
    weights: dict[str, Any]
    inputs: dict[str, Any]
    formula: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)  # of every call, not for the formula

    def layer(self, **changes):
        return build(self.name, self.weights | changes)

    def call(self, layer, inputs=None):
        return layer(**(self.inputs if inputs is None else inputs), **self.options)

    def wanted(self, inputs=None):
        return self.formula(self.weights, **(self.inputs if inputs is None else inputs))


def build(name, weights):
    """A layer of its weights; those of its parts are a dict. A function has none."""
    made = getattr(layers, name)
    if not isinstance(made, type):
        return made
    return made(**{n: build(PARTS[n], x) if n in PARTS else x for n, x in weights.items()})


CASES: dict[str, Callable[..., Case]] = {}


def case(name):
    def enter(function):
        CASES[name] = function
        return function

    return enter


def drawn(rng, dtype, **shapes):
    """Weights of moderate size by name."""
    return {name: draw(rng, shape, dtype, 0.4) for name, shape in shapes.items()}


WEIGHTS = {"return_weights": True}


@case("bahdanau")
def bahdanau(rng, dtype):
    weights = drawn(rng, dtype, attention_v=9, query_weight=(7, 9), key_weight=(8, 9),
                    hidden_bias=9)  # fmt: skip
    inputs = {
        "query": draw(rng, (BATCH, 4, 7), dtype),
        "memory": poisoned(draw(rng, (BATCH, 5, 8), dtype), LENGTHS),
        "value": poisoned(draw(rng, (BATCH, 5, 10), dtype), LENGTHS),
        "memory_lengths": LENGTHS,
        "attn_mask": rng.random((4, 5)) < 0.8,
    }
    return Case("BahdanauAttention", weights | {"normalizer": 1.5}, inputs,
                formulas.bahdanau, WEIGHTS)  # fmt: skip


def luong(rng, dtype, score="dot", mode="global", combine=False, keys=5):
    key_dim = 7 if score == "dot" else 8
    shapes = {
        "dot": {},
        "general": {"weight": (7, key_dim)},
        "concat": {"weight": (7 + key_dim, 9), "attention_v": 9},
        "location": {"weight": (7, keys + 6)},
    }[score]
    if mode == "local-p":
        shapes |= {"position_weight": (7, 10), "position_v": 10}
    if combine:
        shapes |= {"combine_weight": (key_dim + 7, 12)}
    weights = {"score": score, "mode": mode} | drawn(rng, dtype, **shapes)
    if mode != "global":
        weights["half_width"] = 2
    if not shapes:
        weights["dtype"] = np.dtype(dtype).name
    inputs = {
        "query": draw(rng, (BATCH, 4, 7), dtype),
        "memory": poisoned(draw(rng, (BATCH, keys, key_dim), dtype), LENGTHS),
        "memory_lengths": LENGTHS,
        "attn_mask": np.where(rng.random((4, keys)) < 0.2, -np.inf, 0.5),
    }
    if mode == "local-m":
        inputs["position"] = np.array([0, 1, 0, 2, 9, 1])
    return Case("LuongAttention", weights, inputs, formulas.luong, WEIGHTS)


for _score, _mode, _combine in (
    ("dot", "global", False),
    ("general", "global", True),
    ("concat", "local-p", False),
    ("location", "local-m", False),
    ("dot", "local-p", True),
):
    CASES[f"luong {_score} {_mode}"] = partial(luong, score=_score, mode=_mode, combine=_combine)


def multi_head_weights(rng, dtype, heads=4, kv_heads=2, sizes=(7, 8, 9), head_dims=(3, 5), out=10):
    """Weights for query, key and value of these sizes."""
    ends = (heads * head_dims[0], kv_heads * head_dims[0], kv_heads * head_dims[1])
    shapes = {}
    for name, size, end in zip(("query", "key", "value"), sizes, ends):
        shapes |= {f"{name}_weight": (size, end), f"{name}_bias": end}
    shapes |= {"output_weight": (heads * head_dims[1], out), "output_bias": out}
    return {"num_heads": heads, "num_kv_heads": kv_heads} | drawn(rng, dtype, **shapes)


@case("multi-head")
def multi_head(rng, dtype):
    lengths = np.array([12, 5, 0, 1, 11, 7])
    inputs = {
        "query": draw(rng, (BATCH, 11, 7), dtype),
        "key": poisoned(draw(rng, (BATCH, 12, 8), dtype), lengths),
        "value": poisoned(draw(rng, (BATCH, 12, 9), dtype), lengths),
        "kv_lengths": lengths,
        "key_padding_mask": rng.random((BATCH, 12)) < 0.8,
        "attn_mask": draw(rng, (11, 12)),
    }
    weights = multi_head_weights(rng, dtype)
    return Case("MultiHeadAttention", weights, inputs, formulas.multi_head, WEIGHTS)


def transformer_weights(rng, dtype, dim=8, hidden=9, norms=2, **settings):
    shapes = {"linear1_weight": (dim, hidden), "linear1_bias": hidden,
              "linear2_weight": (hidden, dim), "linear2_bias": dim}  # fmt: skip
    for n in range(1, norms + 1):
        shapes |= {f"norm{n}_weight": dim, f"norm{n}_bias": dim}
    own = multi_head_weights(rng, dtype, 2, 2, (dim,) * 3, (4, 4), dim)
    return drawn(rng, dtype, **shapes) | {"self_attention": own} | settings


@case("encoder")
def encoder(rng, dtype, length=5, **settings):
    inputs = {
        "src": draw(rng, (BATCH, length, 8), dtype),
        "src_key_padding_mask": rng.random((BATCH, length)) < 0.8,
        "is_causal": True,
    }
    weights = transformer_weights(rng, dtype, **settings)
    return Case("TransformerEncoderLayer", weights, inputs, formulas.encoder)


@case("decoder")
def decoder(rng, dtype, length=5, keys=7, **settings):
    weights = transformer_weights(
        rng, dtype, norms=3, **{"norm_first": True, "activation": "gelu"} | settings
    )
    cross = multi_head_weights(rng, dtype, 4, 4, (8, 10, 10), (2, 2), 8)
    inputs = {
        "tgt": draw(rng, (BATCH, length, 8), dtype),
        "memory": draw(rng, (BATCH, keys, 10), dtype),
        "memory_key_padding_mask": rng.random((BATCH, keys)) < 0.8,
        "tgt_is_causal": True,
    }
    return Case("TransformerDecoderLayer", weights | {"cross_attention": cross}, inputs,
                formulas.decoder)  # fmt: skip


@case("pooling dot")
def pooling_dot(rng, dtype):
    inputs = {
        "x": poisoned(draw(rng, (BATCH, 5, 7), dtype), LENGTHS),
        "query": draw(rng, (BATCH, 8), dtype),
        "lengths": LENGTHS,
        "mask": rng.random((BATCH, 5)) < 0.8,
    }
    weights = drawn(rng, dtype, weight=(7, 8))
    return Case("AttentionPooling", weights, inputs, check_pooling.pooling, WEIGHTS)


@case("pooling additive")
def pooling_additive(rng, dtype):
    weights = drawn(rng, dtype, weight=(7, 8), query=8, bias=8)
    weights |= {"score": "additive", "final_tanh": True}
    inputs = {"x": poisoned(draw(rng, (BATCH, 5, 7), dtype), LENGTHS), "lengths": LENGTHS}
    return Case("AttentionPooling", weights, inputs, check_pooling.pooling, WEIGHTS)


@case("hierarchical")
def hierarchical(rng, dtype):
    words = drawn(rng, dtype, weight=(7, 8), query=8, bias=8) | {"score": "additive"}
    sentences = drawn(rng, dtype, query=7)
    inputs = {
        "words": draw(rng, (13, 7), dtype),
        "sentence_lengths": np.array([4, 0, 5, 1, 3]),
        "document_lengths": np.array([2, 0, 3]),
    }
    weights = {"word_attention": words, "sentence_attention": sentences}
    return Case("HierarchicalAttention", weights, inputs, check_pooling.hierarchical, WEIGHTS)


def two_texts(rng, dtype, name, formula, weights, x_dim=4, y_dim=4, options=None):
    """x and y with lengths: those of the layer that calls them document and query, too."""
    names = ("document", "query") if name == "AttentionOverAttention" else ("x", "y")
    inputs = {}
    lengths = (LENGTHS, np.array([1, 7, 3, 5, 0, 2]))
    for n, length, dim, size in zip(names, lengths, (x_dim, y_dim), (5, 7)):
        inputs[n] = poisoned(draw(rng, (BATCH, size, dim), dtype), length)
        inputs[f"{n}_lengths"] = length
    return Case(name, weights, inputs, formula, options or {})


@case("attention over attention")
def attention_over_attention(rng, dtype):
    formula = check_pooling.attention_over_attention
    return two_texts(rng, dtype, "AttentionOverAttention", formula, {})


@case("attentive pooling")
def attentive_pooling(rng, dtype):
    return two_texts(rng, dtype, "AttentivePooling", check_pooling.attentive_pooling,
                     drawn(rng, dtype, weight=(4, 8)), 4, 8, WEIGHTS)  # fmt: skip


@case("match matrix")
def match_matrix(rng, dtype):
    return two_texts(rng, dtype, "match_matrix", check_pooling.match_matrix, {})


@case("abcnn1")
def abcnn1(rng, dtype):
    weights = drawn(rng, dtype, x_weight=(7, 4), y_weight=(5, 4))
    return two_texts(rng, dtype, "ABCNN1", check_pooling.abcnn1, weights)


@case("abcnn2")
def abcnn2(rng, dtype):
    return two_texts(rng, dtype, "ABCNN2", check_pooling.abcnn2, {"width": 3})
