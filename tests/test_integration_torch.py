# SPDX-License-Identifier: MIT
# fastattn.integrations.torch as PyTorch's own function: values, shapes, masks, layouts, refusals.
# Used by the suite on every backend, where PyTorch is installed.
# Memory and threads are in test_integration_torch_memory.py, graphs and blocks in ..._routes.py.
"""scaled_dot_product_attention and additive_attention of tensors give PyTorch's results."""

import inspect
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from check import expected  # noqa: E402
from check_torch import DTYPES, assert_near, draw, formula, in_double, name_of, qkv  # noqa: E402

import fastattn  # noqa: E402
from fastattn.integrations.torch import (  # noqa: E402
    additive_attention,
    scaled_dot_product_attention,
)


@pytest.fixture(params=DTYPES, ids=name_of)
def dtype(request):
    return request.param


def test_the_signature_is_that_of_pytorch():
    documented = F.scaled_dot_product_attention.__doc__
    parameters = list(inspect.signature(scaled_dot_product_attention).parameters.values())
    ours = ", ".join(str(p).split(":")[0] for p in parameters[:-1])
    assert [p.name for p in parameters[:-1]] == ours.split(", ")
    first = documented[documented.index("(") + 1 : documented.index(")")]
    theirs = [part.strip().split("=") for part in first.split(",") if part.strip() != "*"]
    assert [p.name for p in parameters[:-1]] == [name for name, *_ in theirs]
    for parameter, (name, *default) in zip(parameters, theirs):
        if default:
            assert str(parameter.default) == default[0].strip(), name
    assert parameters[-1].name == "on_grad" and parameters[-1].kind is parameters[-1].KEYWORD_ONLY


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": -0.3}, {"scale": 0.0}])
def test_results_are_those_of_pytorch(backend, rng, dtype, options):
    tensors = qkv(rng, dtype)
    out = scaled_dot_product_attention(*tensors, **options)
    assert out.dtype is dtype and type(out) is torch.Tensor
    assert_near(out, in_double(*tensors, **options))


@pytest.mark.parametrize("n_queries", [1, 9, 40])
def test_causality_is_aligned_on_the_upper_left(backend, rng, n_queries):
    tensors = qkv(rng, queries=n_queries, keys=9)
    allowed = torch.ones(n_queries, 9, dtype=torch.bool).tril()
    out = scaled_dot_product_attention(*tensors, is_causal=True)
    assert_near(out, formula(*tensors, allowed))


@pytest.mark.parametrize(
    "shape", [(2, 3, 5, 7), (3, 5, 7), (2, 1, 5, 7), (1, 1, 1, 7), (5, 1), (5, 7), (1, 7)]
)
@pytest.mark.parametrize("kind", ["bool", "same", "float32"])
def test_masks_of_every_shape_and_dtype(backend, rng, dtype, shape, kind):
    tensors = qkv(rng, dtype)
    mask = draw(rng, *shape, dtype=dtype if kind == "same" else torch.float32)
    if kind == "bool":
        mask = mask > 0
    assert_near(scaled_dot_product_attention(*tensors, mask), in_double(*tensors, mask))


@pytest.mark.parametrize("dv", [4, 6])
@pytest.mark.parametrize("is_bool", [True, False])
def test_rows_without_a_key_are_zero_as_in_pytorch(backend, rng, dtype, dv, is_bool):
    tensors = qkv(rng, dtype, dv=dv)
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[[0, 3]] = False
    if not is_bool:
        mask = torch.zeros(5, 7, dtype=dtype).masked_fill(~mask, -torch.inf)
    out = scaled_dot_product_attention(*tensors, mask)
    assert_near(out, in_double(*tensors, mask))
    assert not out[:, :, [0, 3]].any()


def test_what_no_row_sees_may_be_nan(backend, rng):
    query, key, value = qkv(rng)
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[:, 4] = False
    wanted = in_double(query, key, value, mask)
    key[:, :, 4], value[:, :, 4] = torch.nan, torch.inf
    assert_near(scaled_dot_product_attention(query, key, value, mask), wanted)


@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 4), (7, 4), (7, 6)),
        ((3, 5, 4), (3, 7, 4), (3, 7, 6)),
        ((2, 2, 3, 5, 4), (2, 2, 3, 7, 4), (2, 2, 3, 7, 6)),
        ((1, 3, 5, 4), (2, 3, 7, 4), (1, 3, 7, 6)),
        ((2, 3, 5, 4), (7, 4), (3, 7, 6)),
        ((5, 4), (2, 3, 7, 4), (2, 3, 7, 6)),
        ((2, 3, 5, 4), (2, 1, 7, 4), (2, 1, 7, 6)),
        ((2, 3, 5, 4), (2, 1, 7, 4), (2, 3, 7, 6)),
        ((2, 1, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)),
        ((2, 1, 5, 4), (2, 1, 7, 4), (2, 3, 7, 6)),
        ((4, 1, 3, 5, 4), (2, 1, 7, 4), (7, 6)),
        ((2, 3, 0, 4), (2, 3, 7, 4), (2, 3, 7, 6)),
        ((2, 3, 5, 4), (2, 3, 0, 4), (2, 3, 0, 6)),
        ((2, 3, 5, 0), (2, 3, 7, 0), (2, 3, 7, 6)),
        ((0, 3, 5, 4), (1, 3, 7, 4), (0, 3, 7, 6)),
    ],
)
def test_axes_meet_as_in_pytorch(backend, rng, shapes):
    tensors = [draw(rng, *shape) for shape in shapes]
    assert_near(scaled_dot_product_attention(*tensors), in_double(*tensors))


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_grouped_heads(backend, rng, dtype, lead, kv_heads):
    tensors = qkv(rng, dtype, lead=lead, heads=6, kv_heads=kv_heads)
    out = scaled_dot_product_attention(*tensors, enable_gqa=True, is_causal=True)
    assert_near(out, in_double(*tensors, enable_gqa=True, is_causal=True))


def test_grouped_heads_of_broadcast_entries(backend, rng):
    query, key, value = qkv(rng, lead=(1,), heads=6, kv_heads=2)
    key = draw(rng, 3, 2, 7, 4)
    out = scaled_dot_product_attention(query, key, value[0], enable_gqa=True)
    assert_near(out, in_double(query, key, value[0], enable_gqa=True))


LAYOUTS = {
    "plain": lambda x: x.contiguous(),
    "bshd": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "sbhd": lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "columns": lambda x: x.mT.contiguous().mT,
    "every second": lambda x: x.repeat_interleave(2, 2)[:, :, ::2],
    "expanded": lambda x: x[:1].expand(2, -1, -1, -1),
    "one of three": lambda x: torch.stack([x, x, x], 3)[:, :, :, 1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dv", [4, 6])
def test_strides_are_read_and_kept_as_in_pytorch(backend, rng, dtype, layout, dv):
    tensors = [LAYOUTS[layout](x) for x in qkv(rng, dtype, dv=dv)]
    out = scaled_dot_product_attention(*tensors)
    assert_near(out, in_double(*tensors))
    if layout != "columns":  # which PyTorch's kernel does not take: its other path makes it plain
        assert out.stride() == F.scaled_dot_product_attention(*tensors).stride()


def test_strided_masks_and_negated_views(backend, rng):
    query, key, value = qkv(rng)
    mask = draw(rng, 7, 5).T
    assert_near(scaled_dot_product_attention(query, key, value, mask),
                in_double(query, key, value, mask))  # fmt: skip
    negated = torch.complex(query, query).conj().imag
    assert negated.is_neg()
    assert_near(scaled_dot_product_attention(negated, key, value), in_double(-query, key, value))


def test_parameters_and_inference_tensors(backend, rng):
    query, key, value = qkv(rng)
    wanted = in_double(query, key, value)
    with torch.inference_mode():
        inside = query.clone()
        assert_near(scaled_dot_product_attention(inside, key, value), wanted)
    with torch.no_grad():
        out = scaled_dot_product_attention(torch.nn.Parameter(query), key, value)
    assert_near(out, wanted)
    assert not out.requires_grad


@pytest.mark.parametrize("change", [
    {"query": "list"}, {"query": 3}, {"value": 3}, {"key": "float64"}, {"query": "int64"},
    {"query": "complex64"}, {"key": "meta"}, {"query": "sparse"}, {"key": "nested"},
    {"value": "quantized"}, {"attn_mask": "int64"}, {"attn_mask": "float64"}, {"is_causal": 1},
    {"attn_mask": "float16"}, {"attn_mask": "array"}, {"scale": "a"},
], ids=lambda change: "-".join(map(str, *change.items())))  # fmt: skip
def test_wrong_types_are_named(backend, rng, change):
    ((name, what),) = change.items()
    arguments = dict(zip(("query", "key", "value"), qkv(rng)), attn_mask=torch.zeros(5, 7))
    arguments["attn_mask"] = None if name == "is_causal" else arguments["attn_mask"]
    x = arguments.get(name)
    made = {
        "list": lambda: x.tolist(),
        "array": lambda: x.numpy(),
        "meta": lambda: x.to("meta"),
        "sparse": lambda: x.to_sparse(),
        "nested": lambda: torch.nested.nested_tensor(list(x)),
        "quantized": lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    }
    if isinstance(what, str) and isinstance(getattr(torch, what, None), torch.dtype):
        arguments[name] = x.to(getattr(torch, what))
    else:
        with warnings.catch_warnings():  # prototypes, and what is going to leave PyTorch
            warnings.simplefilter("ignore")
            arguments[name] = made[what]() if what in made else what
    with pytest.raises(TypeError, match=rf"^{name}: expected .*got "):
        scaled_dot_product_attention(**arguments)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("dropout_p: expected 0.0.*got 0.1", {"dropout_p": 0.1}),
        ("dropout_p: expected 0.0.*got -1", {"dropout_p": -1}),
        ("attn_mask: expected None with is_causal", {"is_causal": True}),
        ("attn_mask: expected a shape", {"attn_mask": torch.zeros(3, 2, 3, 5, 7)}),
        ("attn_mask: expected a shape", {"attn_mask": torch.zeros(2, 5, 7)}),
        ("key: expected head size 4", {"key": torch.zeros(2, 3, 7, 5)}),
        ("key: expected 3 or 1 heads.*enable_gqa", {"key": torch.zeros(2, 2, 7, 4)}),
        ("key: expected 2 or 1 entries along axis -4", {"key": torch.zeros(4, 3, 7, 4)}),
        ("value: expected 7 keys", {"value": torch.zeros(2, 3, 8, 4)}),
        ("query, key, value: expected at least 2 axes", {"query": torch.zeros(4)}),
        ("key: expected a number of heads that divides", {"enable_gqa": True,
         "key": torch.zeros(2, 2, 7, 4), "value": torch.zeros(2, 2, 7, 4)}),
        ("query, key, value: expected at least 3 axes", {"enable_gqa": True,
         "query": torch.zeros(5, 4)}),
        ("scale: expected a finite", {"scale": float("nan")}),
        ("on_grad: expected 'error' or 'torch', got 'x'", {"on_grad": "x"}),
    ],
)  # fmt: skip
def test_wrong_values_are_named(backend, rng, message, change):
    arguments = dict(zip(("query", "key", "value"), qkv(rng)), attn_mask=torch.zeros(5, 7))
    with pytest.raises(ValueError, match=f"^{message}"):
        scaled_dot_product_attention(**arguments | change)


def additive(query, key, value, vector, query_weight, key_weight, bias):
    """The formula, in float64."""
    tensors = [x.double() for x in (query, key, value, vector, query_weight, key_weight, bias)]
    query, key, value, vector, query_weight, key_weight, bias = tensors
    hidden = (query @ query_weight)[..., :, None, :] + (key @ key_weight + bias)[..., None, :, :]
    weights = torch.softmax(torch.tanh(hidden) @ vector, -1)
    return weights @ value, weights


@pytest.mark.parametrize("is_transposed", [False, True])
def test_additive_attention_of_tensors(backend, rng, dtype, is_transposed):
    query, key, value = qkv(rng, dtype)
    query = draw(rng, 2, 3, 5, 9, dtype=dtype)
    parameters = [draw(rng, *s, dtype=dtype) for s in ((8,), (9, 8), (4, 8), (8,))]
    if is_transposed:  # as torch.nn.Linear keeps them
        parameters[1:3] = [x.T.contiguous().T for x in parameters[1:3]]
    vector, query_weight, key_weight, bias = parameters
    out, weights = additive_attention(
        query, key, value, vector, query_weight=query_weight, key_weight=key_weight,
        hidden_bias=bias, return_weights=True,
    )  # fmt: skip
    wanted = additive(query, key, value, vector, query_weight, key_weight, bias)
    assert out.dtype is weights.dtype is dtype
    assert_near(out, wanted[0])
    assert_near(weights, wanted[1])


def test_options_of_additive_attention(backend, rng, dtype):
    query, key, value = qkv(rng, dtype, dim=8)
    vector = draw(rng, 8, dtype=torch.float32)
    tensors = {"bias": draw(rng, 3, 5, 7, dtype=dtype), "sinks": draw(rng, 3, dtype=dtype),
               "attn_mask": draw(rng, 5, 7) > -1}  # fmt: skip
    got = additive_attention(
        query, key, value, vector, **tensors, is_causal=True, q_offset="lower_right",
        kv_lengths=[7, 6], window=(4, None), return_lse=True, return_weights=True,
    )  # fmt: skip
    arrays = {name: x.double().numpy() if x.is_floating_point() else x.numpy()
              for name, x in tensors.items()}  # fmt: skip
    wanted = fastattn.additive_attention(
        *(x.double().numpy() for x in (query, key, value, vector)), **arrays, is_causal=True,
        q_offset=np.array([2, 1]), kv_lengths=[7, 6], window=(4, -1),
        return_lse=True, return_weights=True,
    )  # fmt: skip
    for x, y in zip(got, wanted):
        assert_near(x, torch.from_numpy(y))
    assert got[1].dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    same = additive_attention(
        query, key, value, vector, **tensors, is_causal=True, q_offset=torch.tensor([2, 1]),
        kv_lengths=torch.tensor([7, 6], dtype=torch.int32), window=(4, None),
    )  # fmt: skip
    assert torch.equal(same, got[0])


def test_additive_attention_with_prepared_keys(backend, rng):
    query, key, value = qkv(rng, dim=8)
    prepared = fastattn.prepare_additive_keys(key.numpy())
    vector = draw(rng, 8)
    assert torch.equal(additive_attention(query, prepared, value, vector),
                       additive_attention(query, key, value, vector))  # fmt: skip


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (TypeError, "query: expected a torch.Tensor, got None", {"query": None}),
        (TypeError, "value: expected dtype torch.float32 to match query", {"value": torch.float64}),
        (TypeError, "attention_v: expected dtype", {"attention_v": torch.int64}),
        (TypeError, "key_weight: expected a tensor on the CPU", {"key_weight": "meta"}),
        (TypeError, "kv_lengths: expected integers", {"kv_lengths": 3.5}),
        (ValueError, "kv_lengths: expected 0 to 7", {"kv_lengths": 8}),
        (ValueError, "q_offset: expected integers or 'lower_right', got 'x'", {"q_offset": "x"}),
        (ValueError, "window: expected counts", {"window": -2}),
        (ValueError, "attention_v: expected a tensor without gradient", {"attention_v": "grad"}),
    ],
)
def test_wrong_arguments_of_additive_attention_are_named(backend, rng, error, message, change):
    arguments = dict(zip(("query", "key", "value"), qkv(rng, dim=8)), attention_v=draw(rng, 8),
                     key_weight=draw(rng, 8, 8))  # fmt: skip
    ((name, what),) = change.items()
    if isinstance(what, torch.dtype) or what == "meta":
        what = arguments[name].to(what)
    elif what == "grad":
        what = arguments[name].requires_grad_()
    with pytest.raises(error, match=f"^{message}"):
        additive_attention(**arguments | {name: what})


def test_half_precision_is_rounded_once(backend, rng, dtype):
    """The oracle's own bound, for the conversion that NumPy has no words for."""
    tensors = qkv(rng, dtype, queries=40, keys=300, dim=16)
    out = scaled_dot_product_attention(*tensors)
    wide = [x.float() if dtype is not torch.float64 else x for x in tensors]
    wanted = expected(*(x.numpy() for x in wide)).out.astype(np.float64)
    assert_near(out, torch.from_numpy(wanted))
    if dtype.itemsize == 2:
        exact = scaled_dot_product_attention(*wide)
        unit = torch.finfo(dtype).eps
        assert ((out.float() - exact).abs() <= exact.abs() * unit * 0.51 + 1e-6).all()
