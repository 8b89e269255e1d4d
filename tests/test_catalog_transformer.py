# SPDX-License-Identifier: MIT
# TransformerEncoderLayer and TransformerDecoderLayer: norms, activations, masks, states.
# Used by the suite, on every backend.
# Decoding is in test_catalog_transformer_cache.py, PyTorch's layers in
# test_oracle_torch_transformer.py.
"""Attention, feed-forward network and norms, in the order that was asked for."""

import itertools

import numpy as np
import pytest
from check import draw
from check_layers import assert_layer, decoder, encoder, poisoned
from layer_cases import CASES, build, transformer_weights
from layer_states import layer_state_of

from fastattn import layers

FORMS = list(itertools.product([False, True], ["relu", "gelu"]))
forms = pytest.mark.parametrize("norm_first, activation", FORMS)
both = pytest.mark.parametrize("name", ["encoder", "decoder"])


@both
@forms
def test_formula(backend, rng, real, name, norm_first, activation):
    """Pre- and post-norm, both activations, with biases and without any."""
    case = CASES[name](rng, real, norm_first=norm_first, activation=activation, norm_eps=1e-3)
    assert_layer(case.call(case.layer()), case.wanted(), real)

    def without(weights):
        return {n: without(x) if isinstance(x, dict) else x
                for n, x in weights.items() if "_bias" not in n}  # fmt: skip

    case.weights = without(case.weights)
    assert_layer(case.call(case.layer()), case.wanted(), real, "without biases")


@both
def test_activation_of_the_users(backend, rng, real, name):
    """Any function of an array."""
    case = CASES[name](rng, real, activation=lambda x: x * np.tanh(np.log1p(np.exp(x))))
    assert_layer(case.call(case.layer()), case.wanted(), real)


def test_gelu_is_the_exact_one(backend, rng):
    """By erf, also far from 0: the tanh form is 5e-4 away, a short series elsewhere wrong."""
    case = CASES["encoder"](rng, np.float64, activation="gelu")
    for size in (1e-3, 1.0, 5.0, 30.0):
        case.weights["linear1_bias"] = draw(rng, 9, np.float64, size)
        assert_layer(case.call(case.layer()), case.wanted(), np.float64, f"size {size}")


def masks_of(rng, rows, keys):
    holes = rng.random((6, 2, rows, keys)) < 0.6
    return {
        "none": {},
        "rows and keys": {"mask": holes[0, 0]},
        "numbers": {"mask": np.where(holes[0, 0], rng.standard_normal(holes.shape[2:]), -np.inf)},
        "entries": {"mask": holes[:, :1]},
        "padding": {"key_padding_mask": holes[:, 0, 0]},
        "padding in numbers": {"key_padding_mask": rng.standard_normal((6, keys))},
        "causal": {"is_causal": True},
        "all": {"mask": holes[1, 1], "key_padding_mask": holes[:, 0, 0], "is_causal": True},
    }


def test_masks_of_the_encoder(backend, rng, real):
    """Each kind, and their intersection; True = may attend."""
    case = CASES["encoder"](rng, real)
    layer, src = case.layer(), case.inputs["src"]
    for name, masks in masks_of(rng, 5, 5).items():
        options = {n if n == "is_causal" else f"src_{n}": x for n, x in masks.items()}
        assert_layer(layer(src, **options), encoder(case.weights, src, **options), real, name)


@pytest.mark.parametrize("is_projected", [False, True], ids=["memory", "projected"])
@pytest.mark.parametrize("which", ["tgt", "memory"])
def test_masks_of_the_decoder(backend, rng, real, which, is_projected):
    case = CASES["decoder"](rng, real)
    layer = case.layer()
    tgt, memory = case.inputs["tgt"], case.inputs["memory"]
    given = layer.project_memory(memory) if is_projected else memory
    for name, masks in masks_of(rng, 5, 5 if which == "tgt" else 7).items():
        options = {f"{which}_{n}": x for n, x in masks.items()}
        wanted = decoder(case.weights, tgt, memory, **options)
        assert_layer(layer(tgt, given, **options), wanted, real, name)


@pytest.mark.parametrize("norm_first", [False, True])
def test_padding_may_be_anything(backend, rng, dtype, norm_first):
    """Tokens that no other sees may be NaN, in source, target and memory."""
    lengths = np.array([5, 3, 1, 4, 2, 5])
    real_tokens = np.arange(5) < lengths[:, None]
    case = CASES["encoder"](rng, dtype, norm_first=norm_first)
    options = {"src_key_padding_mask": real_tokens}
    src = case.inputs["src"]
    wanted = encoder(case.weights, src, **options)
    out = case.layer()(poisoned(src, lengths), **options)
    assert_layer(out[real_tokens], wanted[real_tokens], dtype)

    case = CASES["decoder"](rng, dtype, norm_first=norm_first)
    memory_mask = np.arange(7) < lengths[:, None] + 1
    options = {"tgt_key_padding_mask": real_tokens, "memory_key_padding_mask": memory_mask}
    tgt, memory = case.inputs["tgt"], case.inputs["memory"]
    wanted = decoder(case.weights, tgt, memory, **options)
    out = case.layer()(poisoned(tgt, lengths), poisoned(memory, lengths + 1), **options)
    assert_layer(out[real_tokens], wanted[real_tokens], dtype)


def test_norm_of_large_and_of_equal_numbers(backend, rng):
    """The variance is that of the differences from the mean; equal numbers become the bias."""
    case = CASES["encoder"](rng, np.float32, norm_first=True)
    case.weights["norm1_bias"] = draw(rng, 8)
    src = case.inputs["src"] + np.float32(3000)
    src[1] = 7.0
    out = case.layer()(src) - src.astype(np.float64)
    wanted = encoder(case.weights, src) - src.astype(np.float64)
    assert abs(out - wanted).max() < 5e-3


@pytest.mark.parametrize("has_bias", [True, False], ids=["biases", "no biases"])
@both
def test_states_of_pytorch(backend, rng, real, name, has_bias):
    """By PyTorch's names, in arrays; with a prefix, out of the state of a whole model."""
    norms = 2 if name == "encoder" else 3
    weights = transformer_weights(rng, real, norms=norms)
    arrays = [draw(rng, (3, 5, 8), real)]
    if name == "decoder":
        weights["cross_attention"] = weights["self_attention"] | {
            "query_weight": draw(rng, (8, 8), real, 0.4)
        }
        arrays.append(draw(rng, (3, 7, 8), real))
    if not has_bias:
        for w in (weights, weights["self_attention"], weights.get("cross_attention", {})):
            for n in [n for n in w if "_bias" in n]:
                del w[n]
    settings = {"activation": "gelu", "norm_first": True, "norm_eps": 1e-3}
    cls = getattr(layers, f"Transformer{name.title()}Layer")
    wanted = {"encoder": encoder, "decoder": decoder}[name](weights | settings, *arrays)
    state = layer_state_of(weights)
    assert_layer(cls.from_state_dict(state, num_heads=2, **settings)(*arrays), wanted, real)
    state = layer_state_of(weights, "layers.1.") | {"norm.weight": np.ones(3, real)}
    layer = cls.from_state_dict(state, num_heads=2, prefix="layers.1.", **settings)
    assert_layer(layer(*arrays), wanted, real)
    for missing in ("linear2.weight", "norm1.weight", "self_attn.out_proj.weight"):
        less = {n: x for n, x in state.items() if not n.endswith(missing)}
        with pytest.raises(ValueError, match=missing.replace(".", r"\.")):
            cls.from_state_dict(less, num_heads=2, prefix="layers.1.", **settings)


def test_wrong_layers(rng):
    """The message begins with the argument's name."""
    good = CASES["encoder"](rng, np.float32).weights
    for changes, error, argument in [
        ({"activation": "tanh"}, ValueError, "activation"),
        ({"activation": 3}, TypeError, "activation"),
        ({"norm_eps": -1.0}, ValueError, "norm_eps"),
        ({"norm_eps": "small"}, TypeError, "norm_eps"),
        ({"linear2_weight": good["linear2_weight"].T}, ValueError, "linear2_weight"),
        ({"norm2_weight": good["norm2_weight"][1:]}, ValueError, "norm2_weight"),
        ({"self_attention": CASES["multi-head"](rng, np.float32).weights},
         ValueError, r"self_attention|\w+_weight"),
    ]:  # fmt: skip
        with pytest.raises(error, match=rf"^({argument})\b"):
            build("TransformerEncoderLayer", good | changes)


def test_wrong_calls(rng):
    """The message begins with the argument's name, which is that of this layer."""
    case = CASES["encoder"](rng, np.float32)
    layer, src = case.layer(), case.inputs["src"]
    for call, error, argument in [
        (lambda: layer(src[..., :7]), ValueError, "src"),
        (lambda: layer(src, src_mask=np.ones((5, 4), bool)), ValueError, "src_mask"),
        (lambda: layer(src, src_mask=np.ones((5, 5), int)), TypeError, "src_mask"),
        (lambda: layer(src, src_key_padding_mask=np.ones((6, 4), bool)),
         ValueError, "src_key_padding_mask"),
    ]:  # fmt: skip
        with pytest.raises(error, match=rf"^{argument}\b"):
            call()
    case = CASES["decoder"](rng, np.float32)
    layer, tgt, memory = case.layer(), case.inputs["tgt"], case.inputs["memory"]
    for call, error, argument in [
        (lambda: layer(tgt[..., :7], memory), ValueError, "tgt"),
        (lambda: layer(tgt, memory[..., :7]), ValueError, "memory"),
        (lambda: layer(tgt[:4], memory), ValueError, "tgt|memory"),
        (lambda: layer(tgt, memory, tgt_mask=np.ones((5, 7), bool)), ValueError, "tgt_mask"),
        (lambda: layer(tgt, memory, memory_mask=np.ones((5, 5), bool)), ValueError, "memory_mask"),
        (lambda: layer(tgt, memory, memory_key_padding_mask=np.ones((6, 5), bool)),
         ValueError, "memory_key_padding_mask"),
        (lambda: layer(tgt, memory, tgt_key_padding_mask=np.ones((6, 7), bool)),
         ValueError, "tgt_key_padding_mask"),
        (lambda: layer.project_memory(memory[..., :7]), ValueError, "memory"),
    ]:  # fmt: skip
        with pytest.raises(error, match=rf"^({argument})\b"):
            call()
