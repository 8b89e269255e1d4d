# SPDX-License-Identifier: MIT
# The forward pass of a decoder of Llama's kind: RMSNorm, rotary positions, grouped heads, SwiGLU.
# Used by generation, and by whoever wants to read how a model sits on fastattn.
# It chooses no tokens and reads no files: smollm2 fills these weights from one.
"""A decoder of Llama's kind: float32 weights, keys and values in one KVCache per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import fastattn


class Config(NamedTuple):
    """Sizes of a model. Heads are `head_size` wide, `n_heads` of queries share `n_kv_heads`."""

    n_layers: int = 12
    width: int = 512
    n_heads: int = 8
    n_kv_heads: int = 2
    head_size: int = 64
    hidden: int = 1408
    vocabulary: int = 8192
    rope_base: float = 10000.0
    epsilon: float = 1e-5
    max_tokens: int | None = None  # what it was trained for; None: any number


class Layer(NamedTuple):
    """Weights of a layer, float32; matrices are (outputs, inputs)."""

    attention_norm: np.ndarray
    query_key_value: np.ndarray  # rows: heads of queries, of keys, of values: one product for all
    attention_output: np.ndarray
    mlp_norm: np.ndarray
    gate_up: np.ndarray  # rows: gate, then up
    down: np.ndarray


class Model(NamedTuple):
    """A config and its weights; `head` may be `embedding` itself (tied)."""

    config: Config
    embedding: np.ndarray
    layers: Sequence[Layer]
    norm: np.ndarray
    head: np.ndarray

    def n_weights(self) -> int:
        """How many there are; what is tied counts once."""
        total = sum(weight.size for layer in self.layers for weight in layer)
        total += self.embedding.size + self.norm.size
        return total + (0 if self.head is self.embedding else self.head.size)


def random_model(config: Config, *, seed: int = 0, tied: bool = False) -> Model:
    """Weights drawn so that activations keep their size through the layers; they know nothing."""
    rng = np.random.default_rng(seed)

    def matrix(n_outputs: int, n_inputs: int, scale: float = 1.0) -> np.ndarray:
        w = rng.standard_normal((n_outputs, n_inputs), dtype=np.float32)
        w *= np.float32(scale / np.sqrt(n_inputs))
        return w

    def norm() -> np.ndarray:
        return rng.uniform(0.5, 1.5, config.width).astype(np.float32)

    c = config
    embedding = matrix(c.vocabulary, c.width, np.sqrt(c.width))
    layers = [
        Layer(
            attention_norm=norm(),
            query_key_value=matrix((c.n_heads + 2 * c.n_kv_heads) * c.head_size, c.width),
            attention_output=matrix(c.width, c.n_heads * c.head_size),
            mlp_norm=norm(),
            gate_up=matrix(2 * c.hidden, c.width),
            down=matrix(c.width, c.hidden),
        )
        for _ in range(c.n_layers)
    ]
    return Model(c, embedding, layers, norm(), embedding if tied else matrix(*embedding.shape))


def new_caches(
    config: Config, batch: int, *, capacity: int = 0, dtype: Any = "float32"
) -> list[fastattn.KVCache]:
    """An empty cache for each layer."""
    sizes = (batch, config.n_kv_heads, config.head_size)
    return [
        fastattn.KVCache(*sizes, capacity=capacity, dtype=dtype) for _ in range(config.n_layers)
    ]


def _linear(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    if len(x) <= 16:
        # The same product the other way round: OpenBLAS copies the right one of two matrices first,
        # which for a few rows costs more than the product (1.2 to 2 times, 2 to 16 rows, 2 cores).
        return np.ascontiguousarray((weight @ x.T).T)
    return x @ weight.T


def _rms_norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    square = np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[1])
    return x / np.sqrt(square + np.float32(epsilon)) * weight


def _rotation(config: Config, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of (batch, tokens) positions: (batch, tokens, 1, head_size / 2)."""
    exponents = np.arange(0, config.head_size, 2) / -config.head_size
    angles = positions[:, :, None, None] * config.rope_base**exponents
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> None:
    """Rotary positions, in place: the first half of a head is rotated with the second."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    rotated = first * cos - second * sin
    second *= cos
    second += first * sin
    first[...] = rotated


def _rounded(x: np.ndarray, dtype: Any) -> np.ndarray:
    return x.astype(dtype, copy=False).astype(np.float32, copy=False)


def _swiglu(x: np.ndarray, layer: Layer) -> np.ndarray:
    gate_up = _linear(x, layer.gate_up)
    gate, up = gate_up[:, : gate_up.shape[1] // 2], gate_up[:, gate_up.shape[1] // 2 :]
    # gate * sigmoid(gate), by a tanh because exp(-gate) overflows.
    activated = np.tanh(gate * np.float32(0.5))
    activated += 1
    activated *= gate
    activated *= up
    activated *= np.float32(0.5)
    return _linear(activated, layer.down)


def forward(
    model: Model,
    ids: np.ndarray,
    caches: Sequence[fastattn.KVCache] | None = None,
    *,
    lengths: np.ndarray | None = None,
    dtype: Any = "float32",
) -> np.ndarray:
    """Token ids (batch, tokens) -> float32 (batch, tokens, width), ready for `logits`.

    With caches the tokens follow those in them and are appended; of each entry only the first
    `lengths` are real (all by default), the rest is padding and its rows mean nothing. Without,
    they are whole sequences, whose keys and values are rounded to `dtype` as a cache would.
    """
    c = model.config
    n_batch, n_tokens = ids.shape
    past = np.zeros(n_batch, np.int64) if caches is None else caches[0].lengths
    cos, sin = _rotation(c, past[:, None] + np.arange(n_tokens))
    keys, values = c.n_heads, c.n_heads + c.n_kv_heads  # where they begin
    # The last query of an entry is at its last token, but where padding follows it.
    offset = "lower_right" if lengths is None else past

    # All but the attention treats tokens one by one, so it runs on (batch * tokens, width).
    x = model.embedding[ids.reshape(-1)]
    for i, layer in enumerate(model.layers):
        qkv = _linear(_rms_norm(x, layer.attention_norm, c.epsilon), layer.query_key_value)
        qkv = qkv.reshape(n_batch, n_tokens, -1, c.head_size)
        _rotate(qkv[:, :, :values], cos, sin)
        # Views, read where they lie.
        query, key, value = qkv[:, :, :keys], qkv[:, :, keys:values], qkv[:, :, values:]
        if caches is None:
            key, value = _rounded(key, dtype), _rounded(value, dtype)
            context = fastattn.scaled_dot_product_attention(
                query, key, value, is_causal=True, layout="bshd"
            )
        else:
            # Storage is (batch, heads, tokens, head_size); a half cache wants rounded tokens, while
            # the query stays float32.
            key, value = (
                part.astype(caches[i].dtype, copy=False).swapaxes(1, 2) for part in (key, value)
            )
            caches[i].append(key, value, lengths=lengths)
            context = caches[i].attend(query, q_offset=offset, layout="bshd")
        x += _linear(context.reshape(n_batch * n_tokens, -1), layer.attention_output)
        x += _swiglu(_rms_norm(x, layer.mlp_norm, c.epsilon), layer)
    return _rms_norm(x, model.norm, c.epsilon).reshape(n_batch, n_tokens, -1)


def logits(model: Model, states: np.ndarray) -> np.ndarray:
    """What `forward` returned (..., width) -> scores of the next token (..., vocabulary)."""
    scores = _linear(states.reshape(-1, states.shape[-1]), model.head)
    return scores.reshape(*states.shape[:-1], -1)
