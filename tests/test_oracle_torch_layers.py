# SPDX-License-Identifier: MIT
# PyTorch's MultiheadAttention as an outside opinion, where PyTorch is installed.
# Used by the suite, on every backend; skipped without PyTorch.
# Its Transformer layers are in test_oracle_torch_transformer.py.
"""layers.MultiHeadAttention with the weights of torch.nn.MultiheadAttention gives its results.

PyTorch computes in float64, with the same weights. Its masks are True = ignore, ours True = may
attend; a row that may see nothing is NaN there, and so no case for a comparison.
"""

import copy

import numpy as np
import pytest
from check import assert_bits_equal, draw
from check_int8 import as_dtype
from check_layers import assert_layer

torch = pytest.importorskip("torch")

from fastattn.layers import MultiHeadAttention  # noqa: E402

HEADS, DIM, QUERIES, KEYS = 4, 12, 11, 13


def randomized(module, dtype, seed=0):
    """With numbers for all weights: PyTorch's own biases begin as zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.4)
    return module.to(getattr(torch, np.dtype(dtype).name)).eval()


def made(dtype, **options):
    return randomized(torch.nn.MultiheadAttention(DIM, HEADS, batch_first=True, **options), dtype)


def by_torch(module, arrays, **options):
    """(out, weights of each head) in float64."""
    double = copy.deepcopy(module).double()
    options = {n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x
               for n, x in options.items()}  # fmt: skip
    arrays = [torch.from_numpy(x.astype(np.float64)) for x in arrays]
    with torch.no_grad():
        out, weights = double(*arrays, average_attn_weights=False, **options)
    return out.numpy(), weights.numpy()


def compare(module, arrays, ours=None, theirs=None, context=""):
    got = MultiHeadAttention.from_torch(module)(*arrays, **ours or {}, return_weights=True)
    wanted = by_torch(module, arrays, **theirs or {})
    assert_layer(got, wanted, arrays[0].dtype, context)


@pytest.fixture
def arrays(rng, real):
    """query, key, value of 3 entries."""
    return [draw(rng, (3, n, DIM), real) for n in (QUERIES, KEYS, KEYS)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dims", [{}, {"kdim": 5}, {"vdim": 6}, {"kdim": 5, "vdim": 6}], ids=str)
def test_projections(backend, rng, real, arrays, dims, bias):
    """One packed weight, or three; with and without biases."""
    for n, name in ((1, "kdim"), (2, "vdim")):
        if name in dims:
            arrays[n] = draw(rng, (3, KEYS, dims[name]), real)
    compare(made(real, bias=bias, **dims), arrays)


def test_self_attention(backend, real, arrays):
    compare(made(real), [arrays[0]] * 3)
    out = MultiHeadAttention.from_torch(made(real))(arrays[0])
    assert_layer(out, by_torch(made(real), [arrays[0]] * 3)[0], real)


def test_order_of_axes_and_dropout_are_the_modules_own(rng):
    """Weights do not depend on batch_first; inference has no dropout, in training mode neither."""
    plain = made(np.float32)
    other = torch.nn.MultiheadAttention(DIM, HEADS, dropout=0.7, batch_first=False)
    other.load_state_dict(plain.state_dict())
    other.train()
    x = draw(rng, (3, QUERIES, DIM))
    wanted = MultiHeadAttention.from_torch(plain)(x)
    assert_bits_equal(MultiHeadAttention.from_torch(other)(x), wanted)


def masks_of(rng):
    """name -> (ours, PyTorch's): every row sees key 0."""
    rows, heads, padding = (rng.random(shape) < 0.6 for shape in
                            ((QUERIES, KEYS), (3, HEADS, QUERIES, KEYS), (3, KEYS)))  # fmt: skip
    rows[:, 0] = heads[..., 0] = padding[:, 0] = True
    numbers = np.where(rows, rng.standard_normal(rows.shape), -np.inf)
    flat = (3 * HEADS, QUERIES, KEYS)
    causal = np.tri(QUERIES, KEYS, dtype=bool)

    def as_numbers(mask):
        return np.where(mask, 0.0, -np.inf)

    return {
        "padding": ({"key_padding_mask": padding}, {"key_padding_mask": ~padding}),
        "bool": ({"attn_mask": rows}, {"attn_mask": ~rows}),
        "float": ({"attn_mask": numbers}, {"attn_mask": numbers}),
        "heads": ({"attn_mask": heads}, {"attn_mask": ~heads.reshape(flat)}),
        "both": ({"key_padding_mask": padding, "attn_mask": rows},
                 {"key_padding_mask": ~padding, "attn_mask": ~rows}),
        "both, float": ({"key_padding_mask": padding, "attn_mask": numbers},
                        {"key_padding_mask": as_numbers(padding), "attn_mask": numbers}),
        "causal": ({"is_causal": True}, {"attn_mask": ~causal}),
        "causal and padding": ({"is_causal": True, "key_padding_mask": padding},
                               {"key_padding_mask": ~padding, "attn_mask": ~causal}),
    }  # fmt: skip


def test_masks(backend, rng, real, arrays):
    """Each kind that PyTorch has, in our polarity."""
    for name, (ours, theirs) in masks_of(rng).items():
        compare(made(real), arrays, ours, theirs, name)


def test_average_of_the_heads(rng):
    """PyTorch's default is the mean of ours over the axis of heads."""
    module, x = made(np.float64), draw(rng, (3, QUERIES, DIM), np.float64)
    weights = MultiHeadAttention.from_torch(module)(x, return_weights=True)[1]
    tensor = torch.from_numpy(x)
    with torch.no_grad():
        wanted = module(tensor, tensor, tensor)[1].numpy()
    assert_layer(weights.mean(axis=-3), wanted, np.float64)


def test_steps_with_a_cache(backend, rng, real):
    """Token by token what PyTorch gives for the whole sequence with a causal mask."""
    module, x = made(real), draw(rng, (3, QUERIES, DIM), real)
    layer = MultiHeadAttention.from_torch(module)
    cache = layer.new_cache(3)
    out = np.concatenate([layer(x[:, i : i + 1], cache=cache) for i in range(QUERIES)], axis=1)
    hidden = ~np.tri(QUERIES, dtype=bool)
    assert_layer(out, by_torch(module, [x] * 3, attn_mask=hidden)[0], real)


@pytest.mark.parametrize("dims", [{}, {"kdim": 5, "vdim": 6}], ids=str)
def test_state_dicts(backend, real, rng, arrays, dims):
    """Tensors by name, alone or with a prefix among those of a model."""
    for n, name in ((1, "kdim"), (2, "vdim")):
        if name in dims:
            arrays[n] = draw(rng, (3, KEYS, dims[name]), real)
    module = made(real, **dims)
    wanted = MultiHeadAttention.from_torch(module)(*arrays)
    model = torch.nn.ModuleDict(
        {"first": made(real), "second": module, "norm": torch.nn.Linear(2, 3)}
    )
    for state, options in (
        (module.state_dict(), {}),
        (model.state_dict(), {"prefix": "second."}),
        ({n: x.numpy() for n, x in module.state_dict().items()}, {}),
    ):
        layer = MultiHeadAttention.from_state_dict(state, num_heads=HEADS, **options)
        assert_bits_equal(layer(*arrays), wanted)


def test_modules_stay_their_own(rng):
    """Weights are copied: training goes on without the layer, and the module is as it was."""
    module, x = made(np.float32), draw(rng, (3, QUERIES, DIM))
    layer = MultiHeadAttention.from_torch(module)
    wanted = layer(x)
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    assert_bits_equal(layer(x), wanted)
    assert all(p.requires_grad for p in module.parameters())


def test_half_types(backend, rng, dtype):
    """A module in bfloat16 makes a layer in bfloat16."""
    module = made(dtype)
    x = draw(rng, (3, QUERIES, DIM), dtype)
    layer = MultiHeadAttention.from_torch(module)
    assert layer.dtype == as_dtype(dtype.name)
    assert_layer(layer(x), by_torch(module, [x] * 3)[0], dtype)


@pytest.mark.parametrize(
    "option, name", [("add_bias_kv", "bias_k"), ("add_zero_attn", "add_zero_attn")]
)
def test_what_is_not_there_is_refused(option, name):
    with pytest.raises(ValueError, match=name):
        MultiHeadAttention.from_torch(made(np.float32, **{option: True}))


def test_other_things_than_modules_are_refused():
    for wrong in (torch.nn.Linear(2, 3), 3, None):
        with pytest.raises(TypeError, match=r"^module\b"):
            MultiHeadAttention.from_torch(wrong)
