# SPDX-License-Identifier: MIT
# The decoder of model.py in PyTorch, on the same weights: what it is compared with.
# Used by comparison; importing it needs no PyTorch.
# It is written for speed as a user of PyTorch would, without torch.compile and without samples.
"""Greedy generation in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .generation import Prompts
from .model import Model


def generate_in_torch(
    model: Model, prompts: Prompts, n_tokens: int, *, dtype: Any = "float32"
) -> Iterator[np.ndarray]:
    """The model in PyTorch on the same weights; greedy, prompts of one length, one prefill.

    Its cache is allocated once. PyTorch has no attention of float32 queries over half keys, so keys
    and values are rounded to `dtype`, but kept as float32.
    """
    import torch
    from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

    c = model.config
    tensor = torch.from_numpy  # shares the memory
    layers = [[tensor(weight) for weight in layer] for layer in model.layers]
    embedding, norm, head = (tensor(w) for w in (model.embedding, model.norm, model.head))
    ids = tensor(np.stack(prompts))
    n_batch, n_prompt = ids.shape
    total = n_prompt + n_tokens
    rounding = getattr(torch, str(dtype))
    store = torch.zeros(2, c.n_layers, n_batch, c.n_kv_heads, total, c.head_size)
    exponents = torch.arange(0, c.head_size, 2, dtype=torch.float64) / -c.head_size
    angles = torch.arange(total)[:, None, None] * c.rope_base**exponents
    cos, sin = angles.cos().float(), angles.sin().float()  # (positions, 1, half a head)

    def rotated(x, start):
        first, second = x.chunk(2, dim=-1)
        cosine, sine = cos[start : start + x.shape[1]], sin[start : start + x.shape[1]]
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)

    @torch.inference_mode()
    def step(ids, start):
        n = ids.shape[1]
        x = embedding[ids]
        for i, (norm_1, query_key_value, output, norm_2, gate_up, down) in enumerate(layers):
            states = rms_norm(x, norm_1.shape, norm_1, c.epsilon)
            qkv = linear(states, query_key_value).view(n_batch, n, -1, c.head_size)
            query, key, value = qkv.split([c.n_heads, c.n_kv_heads, c.n_kv_heads], dim=2)
            query, key = rotated(query, start), rotated(key, start)
            for place, part in zip(store[:, i], (key, value)):
                place[:, :, start : start + n] = part.to(rounding).transpose(1, 2)
            context = scaled_dot_product_attention(
                query.transpose(1, 2),
                *store[:, i, :, :, : start + n],
                is_causal=n > 1,
                enable_gqa=c.n_heads != c.n_kv_heads,
            )
            x = x + linear(context.transpose(1, 2).reshape(n_batch, n, -1), output)
            gate, up = linear(rms_norm(x, norm_2.shape, norm_2, c.epsilon), gate_up).chunk(2, -1)
            x = x + linear(silu(gate) * up, down)
        last = rms_norm(x[:, -1], norm.shape, norm, c.epsilon)
        return linear(last, head).argmax(dim=-1)

    start = 0
    for _ in range(n_tokens):
        tokens = step(ids, start)
        yield tokens.numpy()
        start, ids = start + ids.shape[1], tokens[:, None]
