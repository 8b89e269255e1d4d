# SPDX-License-Identifier: MIT
# Weights of layers as the states of PyTorch's modules have them.
# Used by test_catalog_multi_head.py and test_catalog_transformer.py.
# PyTorch itself has its word in test_oracle_torch_*.py.
"""Names of a `state_dict` and arrays, whose rows are outputs there."""

import numpy as np


def state_of(weights, is_packed, prefix=""):
    """Of multi-head attention, with its projections in one weight or in three."""
    names = ("query", "key", "value")
    parts = [weights[f"{n}_weight"].T for n in names]
    if is_packed:
        state = {"in_proj_weight": np.concatenate(parts)}
    else:
        state = {f"{n}_proj_weight": x for n, x in zip("qkv", parts)}
    if "query_bias" in weights:
        state["in_proj_bias"] = np.concatenate([weights[f"{n}_bias"] for n in names])
        state["out_proj.bias"] = weights["output_bias"]
    state["out_proj.weight"] = weights["output_weight"].T
    return {prefix + n: x for n, x in state.items()}


def layer_state_of(weights, prefix=""):
    """Of a Transformer layer."""
    state = state_of(weights["self_attention"], True, "self_attn.")
    if "cross_attention" in weights:
        state |= state_of(weights["cross_attention"], True, "multihead_attn.")
    for n, x in weights.items():
        if n.startswith(("linear", "norm")) and isinstance(x, np.ndarray):
            state[n.replace("_", ".")] = x.T
    return {prefix + n: x for n, x in state.items()}
