# SPDX-License-Identifier: MIT
# The Transformer's layers: formula, orders, activations, caches, PyTorch's weights, errors.
# Used by the suite, on every backend; what needs PyTorch itself is skipped without it.
# Attention alone is in test_layers_multi_head.py.
"""Encoder and decoder layers follow their formulas, whole and token by token."""

import math
import pickle

import numpy as np
import pytest
from check import assert_bits_equal, draw
from layer_formulas import (
    frame_case,
    gelu,
    heads_case,
    layer_norm,
    multi_head,
    near,
    relu,
    transformer,
    wide,
)  # fmt: skip

from fastattn.layers import MultiHeadAttention, TransformerDecoderLayer, TransformerEncoderLayer
from fastattn.layers._activations import gelu as our_gelu
from fastattn.layers._norm import normalize

FORMULAS = {"relu": relu, "gelu": gelu, np.tanh: np.tanh}


def causal(n):
    return np.arange(n)[:, None] >= np.arange(n)


def encoder_case(rng, dtype, biases=True, **options):
    attention = heads_case(rng, dtype, out_dim=6, biases=biases)
    frame = frame_case(rng, dtype, biases=biases)
    layer = TransformerEncoderLayer(
        self_attention=MultiHeadAttention(**attention), **frame, **options
    )

    def formula(x, allowed=True):
        return transformer(
            frame, wide(x), [lambda y: multi_head(attention, y, y, y, allowed)[0]],
            FORMULAS[options.get("activation", "relu")], options.get("norm_first", False),
            options.get("norm_eps", 1e-5),
        )  # fmt: skip

    return layer, formula


def decoder_case(rng, dtype, biases=True, **options):
    own = heads_case(rng, dtype, out_dim=6, biases=biases)
    cross = heads_case(rng, dtype, n_heads=3, key_dim=8, out_dim=6, biases=biases)
    frame = frame_case(rng, dtype, n_norms=3, biases=biases)
    layer = TransformerDecoderLayer(
        self_attention=MultiHeadAttention(**own), cross_attention=MultiHeadAttention(**cross),
        **frame, **options,
    )  # fmt: skip

    def formula(x, memory, allowed=True, memory_allowed=True):
        memory = wide(memory)
        parts = [
            lambda y: multi_head(own, y, y, y, allowed)[0],
            lambda y: multi_head(cross, y, memory, memory, memory_allowed)[0],
        ]
        return transformer(
            frame, wide(x), parts, FORMULAS[options.get("activation", "relu")],
            options.get("norm_first", False), options.get("norm_eps", 1e-5),
        )  # fmt: skip

    return layer, formula


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("activation", ["relu", "gelu", np.tanh])
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder(backend, rng, dtype, lead, activation, norm_first):
    for biases in (True, False):
        layer, formula = encoder_case(
            rng, dtype, biases, activation=activation, norm_first=norm_first, norm_eps=1e-3
        )
        x = draw(rng, (*lead, 7, 6), dtype)
        before = x.copy()
        got = layer(x)
        assert got.dtype == dtype
        near(got, formula(x), rounds=128)
        assert_bits_equal(x, before)


@pytest.mark.parametrize("activation", ["relu", "gelu", np.tanh])
@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder(backend, rng, dtype, activation, norm_first):
    for biases in (True, False):
        layer, formula = decoder_case(
            rng, dtype, biases, activation=activation, norm_first=norm_first
        )
        x, memory = draw(rng, (2, 7, 6), dtype), draw(rng, (2, 9, 8), dtype)
        got = layer(x, memory)
        assert got.dtype == dtype
        near(got, formula(x, memory), rounds=128)
        near(layer(x, layer.project_memory(memory)), formula(x, memory), rounds=128)


def test_encoder_masks(backend, rng, real):
    layer, formula = encoder_case(rng, real)
    x = draw(rng, (3, 7, 6), real)
    is_token = np.arange(7) < np.array([[7], [4], [1]])
    mask = rng.random((7, 7)) < 0.7
    for options, allowed in (
        ({"is_causal": True}, causal(7)),
        ({"src_mask": mask}, mask),
        ({"src_key_padding_mask": is_token}, is_token[:, None, None]),
        ({"src_mask": mask, "is_causal": True}, mask & causal(7)),
        (
            {"src_mask": mask, "src_key_padding_mask": is_token},
            mask & is_token[:, None, None],
        ),
    ):
        near(layer(x, **options), formula(x, allowed), rounds=128)
    x[~is_token] = np.nan
    got = layer(x, src_key_padding_mask=is_token)
    assert np.isfinite(got[is_token]).all() and np.isnan(got[~is_token]).all()


def test_decoder_masks(backend, rng, real):
    layer, formula = decoder_case(rng, real)
    x, memory = draw(rng, (3, 7, 6), real), draw(rng, (3, 9, 8), real)
    is_token = np.arange(7) < np.array([[7], [4], [1]])
    is_key = np.arange(9) < np.array([[2], [0], [9]])
    mask, memory_mask = rng.random((7, 7)) < 0.7, rng.random((7, 9)) < 0.7
    own, cross = np.ones((3, 1, 7, 7), bool), np.ones((3, 1, 7, 9), bool)
    for options, allowed, memory_allowed in (
        ({"tgt_is_causal": True}, causal(7), cross),
        ({"tgt_mask": mask}, mask, cross),
        ({"memory_mask": memory_mask}, own, memory_mask),
        ({"tgt_key_padding_mask": is_token}, is_token[:, None, None], cross),
        ({"memory_key_padding_mask": is_key}, own, is_key[:, None, None]),
        ({"memory_is_causal": True}, own, np.arange(7)[:, None] >= np.arange(9)),
        (
            {
                "tgt_is_causal": True,
                "tgt_key_padding_mask": is_token,
                "memory_mask": memory_mask,
                "memory_key_padding_mask": is_key,
            },
            causal(7) & is_token[:, None, None],
            memory_mask & is_key[:, None, None],
        ),
    ):
        want = formula(x, memory, allowed, memory_allowed)
        near(layer(x, memory, **options), want, rounds=128)
        near(layer(x, layer.project_memory(memory), **options), want, rounds=128)


@pytest.mark.parametrize("norm_first", [False, True])
def test_token_by_token(backend, rng, real, norm_first):
    """With a cache, and prompts of different lengths."""
    encoder, encoded = encoder_case(rng, real, norm_first=norm_first)
    decoder, decoded = decoder_case(rng, real, norm_first=norm_first)
    x, memory = draw(rng, (2, 9, 6), real), draw(rng, (2, 5, 8), real)
    lengths = np.array([4, 2])
    caches = encoder.new_cache(2), decoder.new_cache(2, capacity=3)
    projected = decoder.project_memory(memory)
    with pytest.raises(TypeError, match="^memory: expected an array"):
        decoder.project_memory(projected)
    outs = [[], []]
    for tokens, counts in [(slice(0, 4), lengths), *((slice(i, i + 1), None) for i in range(4, 9))]:
        options = {"lengths": counts}
        outs[0].append(encoder(x[:, tokens], cache=caches[0], **options))
        outs[1].append(decoder(x[:, tokens], projected, cache=caches[1], **options))
    for b, n in enumerate(lengths):
        whole = np.concatenate([x[b, :n], x[b, 4:]])
        for out, want in zip(
            outs,
            (encoded(whole, causal(n + 5)), decoded(whole, memory[b], causal(n + 5))),
        ):
            out = np.concatenate([out[0][b, :n], *(step[b] for step in out[1:])])
            near(out, want, rounds=128)


def test_a_memory_that_does_not_fit_leaves_the_cache(backend, rng):
    layer, _ = decoder_case(rng, np.float32)
    cache = layer.new_cache(2)
    x, memory = draw(rng, (2, 1, 6)), draw(rng, (2, 9, 8))
    for name, arguments, options in (
        ("memory", (x, memory[..., :7]), {}),
        ("memory", (x, memory[[0, 0, 1]]), {}),
        ("memory_mask", (x, memory), {"memory_mask": np.ones((1, 8), bool)}),
        ("tgt_mask", (x, memory), {"tgt_mask": np.ones((2, 2), bool)}),
        ("tgt_is_causal", (x, memory), {"tgt_is_causal": True}),
        ("lengths", (x, memory), {"lengths": 2}),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            layer(*arguments, cache=cache, **options)
        assert not cache.lengths.any()


def test_gelu_is_exact(real):
    x = np.concatenate([np.linspace(-40, 40, 20001), np.geomspace(1e-30, 1, 50)]).astype(real)
    got = x.copy()
    our_gelu(got)
    want = gelu(x.astype(np.float64))
    unit = np.finfo(real).eps
    # exp(-x**2 / 2) has the rounding of x**2, and below the normal numbers there is less
    bound = unit * (4 + x.astype(float) ** 2) * abs(want) + 40 * np.finfo(real).tiny
    assert (abs(got - want) <= bound).all()
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], real)
    our_gelu(special)
    assert np.isnan(special[0]) and special[1] == np.inf and not special[2:].any()
    our_gelu(np.empty((0, 3), real))


def test_norm(rng, real):
    for size in (1, 9, 300):
        x = draw(rng, (500, size), real, size=3.0) + real.type(20)
        weight, bias = draw(rng, size, real), draw(rng, size, real)
        want = layer_norm(x.astype(np.longdouble), weight, bias, 1e-5)
        normalize(x, weight, bias, 1e-5)
        near(x, want, rounds=256)
    normalize(np.empty((3, 0), real), np.empty(0, real), None, 1e-5)


def test_layers_can_be_pickled(backend, rng, real):
    encoder, _ = encoder_case(rng, real, activation="gelu")
    decoder, _ = decoder_case(rng, real, activation=np.tanh)
    x, memory = draw(rng, (2, 7, 6), real), draw(rng, (2, 9, 8), real)
    again = pickle.loads(pickle.dumps((encoder, decoder)))
    assert_bits_equal(again[0](x), encoder(x))
    assert_bits_equal(again[1](x, memory), decoder(x, memory))


def test_repr(rng):
    layer, _ = encoder_case(rng, np.float32, activation=np.tanh)
    assert repr(layer) == (
        "TransformerEncoderLayer(num_heads=2, dim=6, hidden=9, activation='tanh', "
        "norm_first=False, dtype='float32')"
    )
    assert repr(decoder_case(rng, np.float32)[0]).startswith("TransformerDecoderLayer(num_heads=2")


def test_arguments_that_do_not_fit(rng):
    frame = frame_case(rng, np.float32)
    given = frame | {"self_attention": MultiHeadAttention(**heads_case(rng, np.float32, out_dim=6))}
    one = np.float32(1)
    for name, error, wrong in (
        ("self_attention", TypeError, None),
        ("self_attention", ValueError, MultiHeadAttention(**heads_case(rng, np.float32))),
        (
            "self_attention",
            ValueError,
            MultiHeadAttention(**heads_case(rng, np.float32, key_dim=7, out_dim=6)),
        ),
        ("linear1_weight", ValueError, np.full((6, 8), one)),
        ("linear1_weight", ValueError, np.full((5, 9), one)),
        ("linear2_weight", ValueError, np.full((9, 5), one)),
        ("linear2_weight", ValueError, np.full((8, 6), one)),
        ("linear1_bias", ValueError, np.full(8, one)),
        ("norm1_weight", ValueError, np.full(5, one)),
        ("norm2_bias", TypeError, np.ones(6)),
        ("norm2_weight", TypeError, None),
        ("activation", ValueError, "selu"),
        ("activation", TypeError, 3),
        ("norm_eps", ValueError, -1.0),
        ("norm_first", TypeError, "yes"),
    ):
        with pytest.raises(error, match=f"^{name}: "):
            TransformerEncoderLayer(**given | {name: wrong})
    cross = MultiHeadAttention(**heads_case(rng, np.float64, out_dim=6))
    with pytest.raises(TypeError, match="^cross_attention: "):
        TransformerDecoderLayer(**given, cross_attention=cross, norm3_weight=given["norm1_weight"])
    layer = TransformerEncoderLayer(**given | {"activation": lambda x: x[:, :2]})
    cache = layer.new_cache(2)
    with pytest.raises(ValueError, match="^activation: "):
        layer(draw(rng, (2, 3, 6)), cache=cache)
    assert not cache.lengths.any()


def test_calls_that_do_not_fit(backend, rng):
    layer, _ = encoder_case(rng, np.float32)
    x = draw(rng, (2, 7, 6))
    for name, error, given, options in (
        ("src", ValueError, x[..., :5], {}),
        ("src", ValueError, x[0, 0], {}),
        ("src", TypeError, x.astype(float), {}),
        ("src_mask", ValueError, x, {"src_mask": np.ones((6, 7), bool)}),
        ("src_mask", TypeError, x, {"src_mask": np.ones((7, 7), int)}),
        ("src_key_padding_mask", ValueError, x, {"src_key_padding_mask": np.ones((7, 2), bool)}),
        ("is_causal", TypeError, x, {"is_causal": 0.5}),
        ("lengths", ValueError, x, {"lengths": [1, 2]}),
        ("src", ValueError, x[0], {"cache": layer.new_cache(7)}),
    ):
        with pytest.raises(error, match=f"^{name}: "):
            layer(given, **options)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_torch(backend, rng, bias, activation, norm_first):
    torch = pytest.importorskip("torch")
    options = {"bias": bias, "activation": activation, "norm_first": norm_first}
    options |= {"dim_feedforward": 20, "batch_first": True, "layer_norm_eps": 1e-3}
    x, memory = draw(rng, (2, 7, 12)), draw(rng, (2, 9, 12))
    ignored = np.arange(9) >= np.array([[9], [4]])
    hidden = ~causal(7)
    t_x, t_memory, t_ignored, t_hidden = map(torch.from_numpy, (x, memory, ignored, hidden))
    encoder = torch.nn.TransformerEncoderLayer(12, 3, **options).eval()
    decoder = torch.nn.TransformerDecoderLayer(12, 3, **options).eval()
    with torch.no_grad():
        encoded = encoder(t_x, src_mask=t_hidden).numpy()
        decoded = decoder(
            t_x, t_memory, tgt_mask=t_hidden, memory_key_padding_mask=t_ignored
        ).numpy()
    layer = TransformerEncoderLayer.from_torch(encoder)
    near(layer(x, src_mask=~hidden), encoded, rounds=128)
    state = {f"a.{n}": w.numpy() for n, w in encoder.state_dict().items()}
    kept = {n: options[n] for n in ("activation", "norm_first")} | {"norm_eps": 1e-3}
    again = TransformerEncoderLayer.from_state_dict(state, num_heads=3, prefix="a.", **kept)
    assert_bits_equal(again(x), layer(x))
    layer = TransformerDecoderLayer.from_torch(decoder)
    got = layer(x, memory, tgt_is_causal=True, memory_key_padding_mask=~ignored)
    near(got, decoded, rounds=128)
    state = {f"a.{n}": w.numpy() for n, w in decoder.state_dict().items()}
    again = TransformerDecoderLayer.from_state_dict(state, num_heads=3, prefix="a.", **kept)
    assert_bits_equal(again(x, memory), layer(x, memory))


def test_prefixes_are_strings():
    for layer in (TransformerEncoderLayer, TransformerDecoderLayer):
        with pytest.raises(TypeError, match="^prefix: "):
            layer.from_state_dict({}, num_heads=3, prefix=None)


def test_torch_modules_that_cannot_be_had():
    torch = pytest.importorskip("torch")
    tanh = torch.nn.TransformerEncoderLayer(12, 3, activation=torch.tanh)
    with pytest.raises(ValueError, match="^module: .*activation"):
        TransformerEncoderLayer.from_torch(tanh)
    rough = torch.nn.TransformerEncoderLayer(12, 3, activation=torch.nn.GELU("tanh"))
    with pytest.raises(ValueError, match="^module: .*activation"):
        TransformerEncoderLayer.from_torch(rough)
    exact = torch.nn.TransformerEncoderLayer(12, 3, activation=torch.nn.GELU())
    assert "'gelu'" in repr(TransformerEncoderLayer.from_torch(exact))
    with pytest.raises(TypeError, match="^module: "):
        TransformerDecoderLayer.from_torch(exact)
    assert math.isclose(TransformerEncoderLayer.from_torch(exact)._frame.norm_eps, 1e-5)
