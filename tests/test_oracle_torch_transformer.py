# SPDX-License-Identifier: MIT
# PyTorch's Transformer layers as an outside opinion, where PyTorch is installed.
# Used by the suite, on every backend; skipped without PyTorch.
# Its MultiheadAttention is in test_oracle_torch_layers.py.
"""Our Transformer layers with the weights of PyTorch's give their results, in our polarity."""

import copy
import itertools

import numpy as np
import pytest
from check import assert_bits_equal, draw
from check_layers import assert_layer

torch = pytest.importorskip("torch")

from test_oracle_torch_layers import randomized  # noqa: E402

from fastattn import layers  # noqa: E402

DIM, HEADS, HIDDEN, LENGTH, KEYS = 12, 4, 10, 7, 9
FORMS = list(itertools.product([False, True], ["relu", "gelu"], [True, False]))
forms = pytest.mark.parametrize("norm_first, activation, bias", FORMS)
both = pytest.mark.parametrize("kind", ["Encoder", "Decoder"])


@pytest.fixture(autouse=True)
def plain_pytorch():
    """Without its fast path, whose results have zeros for padding."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def made(kind, dtype, **options):
    cls = getattr(torch.nn, f"Transformer{kind}Layer")
    return randomized(cls(DIM, HEADS, HIDDEN, batch_first=True, **options), dtype)


def ours(kind):
    return getattr(layers, f"Transformer{kind}Layer")


def by_torch(module, arrays, **options):
    double = copy.deepcopy(module).double()
    options = {n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x
               for n, x in options.items()}  # fmt: skip
    with torch.no_grad():
        return double(*(torch.from_numpy(x.astype(np.float64)) for x in arrays), **options).numpy()


def inputs(rng, kind, dtype):
    lengths = (LENGTH,) if kind == "Encoder" else (LENGTH, KEYS)
    return [draw(rng, (3, n, DIM), dtype) for n in lengths]


@both
@forms
def test_forms(backend, rng, real, kind, norm_first, activation, bias):
    """Order of the norms, activation, biases: all are the module's."""
    module = made(kind, real, norm_first=norm_first, activation=activation, bias=bias,
                  layer_norm_eps=1e-3)  # fmt: skip
    arrays = inputs(rng, kind, real)
    layer = ours(kind).from_torch(module)
    assert layer.dtype == real
    assert_layer(layer(*arrays), by_torch(module, arrays), real)


def masks_of(rng, rows, keys, names):
    """(ours, PyTorch's): every row sees key 0."""
    mask, padding = rng.random((rows, keys)) < 0.6, rng.random((3, keys)) < 0.6
    mask[:, 0] = padding[:, 0] = True
    numbers = np.where(mask, rng.standard_normal(mask.shape), -np.inf)
    of_mask, of_padding, of_causal = names
    causal = np.tri(rows, keys, dtype=bool)
    per_head = np.repeat(mask[None], 3 * HEADS, axis=0)
    return [
        ({of_mask: mask}, {of_mask: ~mask}),
        ({of_mask: numbers}, {of_mask: numbers}),
        ({of_mask: per_head.reshape(3, HEADS, rows, keys)}, {of_mask: ~per_head}),
        ({of_padding: padding}, {of_padding: ~padding}),
        ({of_mask: mask, of_padding: padding}, {of_mask: ~mask, of_padding: ~padding}),
        ({of_causal: True}, {of_mask: ~causal, of_causal: True}),
        ({of_causal: True, of_padding: padding}, {of_mask: ~causal, of_padding: ~padding}),
    ]


@pytest.mark.parametrize("norm_first", [False, True])
def test_masks_of_the_encoder(backend, rng, real, norm_first):
    module = made("Encoder", real, norm_first=norm_first)
    layer, arrays = layers.TransformerEncoderLayer.from_torch(module), inputs(rng, "Encoder", real)
    names = ("src_mask", "src_key_padding_mask", "is_causal")
    for given, theirs in masks_of(rng, LENGTH, LENGTH, names):
        wanted = by_torch(module, arrays, **theirs)
        assert_layer(layer(*arrays, **given), wanted, real, str(list(given)))


@pytest.mark.parametrize("which", ["tgt", "memory"])
def test_masks_of_the_decoder(backend, rng, real, which):
    module = made("Decoder", real, norm_first=True)
    layer, arrays = layers.TransformerDecoderLayer.from_torch(module), inputs(rng, "Decoder", real)
    names = (f"{which}_mask", f"{which}_key_padding_mask", f"{which}_is_causal")
    for given, theirs in masks_of(rng, LENGTH, LENGTH if which == "tgt" else KEYS, names):
        wanted = by_torch(module, arrays, **theirs)
        assert_layer(layer(*arrays, **given), wanted, real, str(list(given)))


@pytest.mark.parametrize("activation", [torch.nn.functional.gelu, torch.nn.GELU(), torch.nn.ReLU()],
                         ids=str)  # fmt: skip
def test_activations_as_functions_and_modules(backend, rng, activation):
    module = made("Encoder", np.float64, activation=activation)
    arrays = inputs(rng, "Encoder", np.float64)
    layer = layers.TransformerEncoderLayer.from_torch(module)
    assert_layer(layer(*arrays), by_torch(module, arrays), np.float64)


@pytest.mark.parametrize("activation", [torch.nn.GELU("tanh"), torch.nn.functional.silu],
                         ids=["GELU", "silu"])  # fmt: skip
def test_other_activations_are_not_taken_for_ours(rng, activation):
    """They are computed, or refused."""
    module = made("Encoder", np.float64, activation=activation)
    arrays = inputs(rng, "Encoder", np.float64)
    try:
        layer = layers.TransformerEncoderLayer.from_torch(module)
    except ValueError as error:
        assert "activation" in str(error)
    else:
        assert_layer(layer(*arrays), by_torch(module, arrays), np.float64)


@both
def test_states_of_a_whole_model(backend, rng, real, kind):
    """nn.TransformerEncoder and -Decoder, layer by layer through their prefixes."""
    first = made(kind, real, norm_first=True, activation="gelu")
    extra = {"enable_nested_tensor": False} if kind == "Encoder" else {}
    norm = torch.nn.LayerNorm(DIM)
    model = getattr(torch.nn, f"Transformer{kind}")(first, 3, norm=norm, **extra)
    randomized(model, real)
    arrays = inputs(rng, kind, real)
    wanted = by_torch(model, arrays)
    settings = {"num_heads": HEADS, "norm_first": True, "activation": "gelu"}
    state, x = model.state_dict(), arrays[0]
    for n in range(3):
        layer = ours(kind).from_state_dict(state, prefix=f"layers.{n}.", **settings)
        x = layer(x, *arrays[1:])
    rows = x.astype(np.float64)
    rows = rows - rows.mean(axis=-1, keepdims=True)
    rows = rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + 1e-5)
    rows = rows * norm.weight.detach().double().numpy() + norm.bias.detach().double().numpy()
    assert_layer(rows.astype(real), wanted, real)


@both
def test_steps_with_a_cache(backend, rng, real, kind):
    """Token by token what PyTorch gives for the whole sequence with a causal mask."""
    module = made(kind, real, norm_first=True, activation="gelu")
    arrays = inputs(rng, kind, real)
    layer = ours(kind).from_torch(module)
    memory = [layer.project_memory(x) for x in arrays[1:]]
    cache = layer.new_cache(3)
    out = [layer(arrays[0][:, i : i + 1], *memory, cache=cache) for i in range(LENGTH)]
    name = "src_mask" if kind == "Encoder" else "tgt_mask"
    wanted = by_torch(module, arrays, **{name: ~np.tri(LENGTH, dtype=bool)})
    assert_layer(np.concatenate(out, axis=1), wanted, real)


@both
def test_weights_are_copied(rng, kind):
    module = made(kind, np.float32).train()
    arrays = inputs(rng, kind, np.float32)
    layer = ours(kind).from_torch(module)
    wanted = layer(*arrays)
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    assert_bits_equal(layer(*arrays), wanted)


@both
def test_other_modules_are_refused(kind):
    other = made("Decoder" if kind == "Encoder" else "Encoder", np.float32)
    for wrong in (other, torch.nn.Linear(2, 3), None):
        with pytest.raises(TypeError, match=r"^module\b"):
            ours(kind).from_torch(wrong)
