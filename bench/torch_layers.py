# SPDX-License-Identifier: MIT
"""The layers' workloads with PyTorch: ``nn.MultiheadAttention``, and formulas where it has none.

Used by ``bench/contenders.py``, eagerly, and by ``bench/additive.py``, through ``torch.compile``.
Nothing imports PyTorch here: the contender hands it over.
"""

from __future__ import annotations

import functools

import numpy as np

from .contender import Prepared
from .layer_calls import heads_first, one_row_each, steps_to_numpy

__all__ = ["torch_layer"]


def torch_layer(torch, workload, inputs, compiled=None) -> Prepared:
    """A workload of ``bench/layers.py``.

    Parameters
    ----------
    torch : module
        In inference mode already.
    compiled : callable, optional
        What makes of a function of tensors a faster one.
    """
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    for name in tensors:
        if name.endswith("_weight"):  # as a Linear keeps it
            tensors[name] = tensors[name].T.contiguous()
    return _FORMULAS[workload.layer](torch, compiled or _as_it_is, workload, **tensors)


def _as_it_is(function):
    return function


def _bahdanau(
    torch, compiled, workload,
    queries, memory, attention_v, query_weight, key_weight, hidden_bias,
):  # fmt: skip
    linear = torch.nn.functional.linear

    @compiled
    def step(query, keys):
        terms = torch.tanh(linear(query, query_weight)[:, None] + keys)
        weights = torch.softmax(terms @ attention_v, -1)
        return (weights[:, None] @ memory)[:, 0]

    project = functools.partial(linear, memory, key_weight, hidden_bias)
    kept = project() if workload.has_prepared_keys else None
    queries = list(queries)

    def call():
        keys = project() if kept is None else kept
        return [step(query, keys) for query in queries]

    return Prepared(call, steps_to_numpy)


def _hierarchical(torch, compiled, workload, words, **weights):
    n_words, n_sentences = workload.sentence_lengths, workload.document_lengths
    words, no_word = _padded(torch, words, n_words)
    where, no_sentence = _padded(torch, torch.arange(len(n_words)), n_sentences)

    def pooled(level, x, is_padding):
        weight, bias, query = (weights[f"{level}_{name}"] for name in ("weight", "bias", "query"))
        scores = torch.tanh(torch.nn.functional.linear(x, weight, bias)) @ query
        alphas = torch.softmax(scores.masked_fill(is_padding, -torch.inf), -1)
        return (alphas[:, None] @ x)[:, 0]

    @compiled
    def documents(words):
        sentences = pooled("word", words, no_word)
        return pooled("sentence", sentences[where], no_sentence)

    n_rows = no_word.numel() + no_sentence.numel()
    share = no_word.sum() + no_sentence.sum()
    note = f"batches padded beforehand, {100 * share / n_rows:.0f} % of their vectors are padding"
    return Prepared(functools.partial(documents, words), one_row_each, note)


def _padded(torch, rows, lengths):
    """Sequences that lie one after the other as a padded batch, and where there is padding."""
    is_real = torch.from_numpy(np.arange(lengths.max()) < lengths[:, None])
    padded = rows.new_zeros((*is_real.shape, *rows.shape[1:]))
    padded[is_real] = rows
    return padded, ~is_real


def _multi_head(torch, compiled, workload, x, output_weight, output_bias, **weights):
    names = ("query", "key", "value")
    module = torch.nn.MultiheadAttention(workload.dim, workload.n_q_heads, batch_first=True)
    module.load_state_dict(
        {
            "in_proj_weight": torch.cat([weights[f"{name}_weight"] for name in names]),
            "in_proj_bias": torch.cat([weights[f"{name}_bias"] for name in names]),
            "out_proj.weight": output_weight,
            "out_proj.bias": output_bias,
        }
    )
    module.eval()
    options = {"need_weights": False}
    if workload.is_causal:
        n_tokens = workload.n_queries
        # The module asks for both: True is hidden here.
        mask = torch.ones(n_tokens, n_tokens, dtype=torch.bool).triu(1)
        options |= {"attn_mask": mask, "is_causal": True}

    @compiled
    def attention(x):
        return module(x, x, x, **options)[0]

    call = functools.partial(attention, x)
    note = ""
    if compiled is _as_it_is:
        taken = "in" if _takes_fast_path(torch, call) else "not in"
        note = f"nn.MultiheadAttention, {taken} its fast path"
    return Prepared(call, functools.partial(heads_first, workload), note)


def _takes_fast_path(torch, call) -> bool:
    """Whether a call of the module is one operator."""
    with torch.profiler.profile() as profile:
        call()
    return any(event.key == "aten::_native_multi_head_attention" for event in profile.events())


_FORMULAS = {
    "bahdanau": _bahdanau,
    "hierarchical": _hierarchical,
    "multi-head": _multi_head,
}
