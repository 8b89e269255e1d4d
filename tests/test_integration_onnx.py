# SPDX-License-Identifier: MIT
# ONNX's Attention, computed by fastattn, in onnx's reference evaluator.
# Used by the suite, on every backend; skipped without onnx.
# How attention is computed is the matter of other files; here it is the operator's own rules.
"""onnx's node tests of Attention pass; what they leave out agrees with the formula in float64."""

import importlib
import itertools
import types
import warnings

import numpy as np
import pytest
from check import assert_bits_equal, assert_close, draw

onnx = pytest.importorskip("onnx", minversion="1.23")  # before, its node tests were wrong

from onnx import helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from fastattn.integrations import onnx as integration  # noqa: E402
from fastattn.integrations.onnx import Attention  # noqa: E402

INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")
DOUBLE, FLOAT16 = onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16
F = np.float32


# --------------------------------------------------------------------------------- onnx's own tests


def node_tests():
    """The cases of onnx whose model is one Attention node, not its expansion into others."""
    with warnings.catch_warnings():  # what onnx computes there overflows here and there
        warnings.simplefilter("ignore")
        cases = importlib.import_module("onnx.backend.test.case.node")
        importlib.import_module("onnx.backend.test.case.node.attention")
    return [
        c for c in cases._NodeTestCases if [n.op_type for n in c.model.graph.node] == ["Attention"]
    ]


CASES = node_tests()


def attributes_of(case):
    return {a.name: helper.get_attribute_value(a) for a in case.model.graph.node[0].attribute}


def test_the_node_tests_are_all_there():
    opsets = [case.model.opset_import[0].version for case in CASES]
    # onnx 1.23 has 69, 13 and 11
    assert all(opsets.count(opset) >= least for opset, least in ((23, 60), (24, 12), (25, 10)))
    modes = {attributes_of(case).get("qk_matmul_output_mode", 0) for case in CASES}
    assert modes == {0, 1, 2, 3}
    ranks = {case.data_sets[0][0][0].ndim for case in CASES}
    dtypes = {case.data_sets[0][0][0].dtype.name for case in CASES}
    assert (ranks, dtypes) == ({3, 4}, {"float32", "float16", "bfloat16"})


@pytest.fixture
def calls(monkeypatch):
    """The options of each call of fastattn by the integration."""
    made = []
    real = integration.scaled_dot_product_attention

    def counting(*arrays, **options):
        made.append(options)
        return real(*arrays, **options)

    monkeypatch.setattr(integration, "scaled_dot_product_attention", counting)
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.removeprefix("test_attention_"))
def test_node_test_passes_and_fastattn_computes_it(backend, calls, case):
    runner = pytest.importorskip("onnx.backend.test.runner").Runner
    evaluator = ReferenceEvaluator(case.model, new_ops=[Attention])
    assert type(evaluator.rt_nodes_[0]) is Attention
    for inputs, outputs in case.data_sets:
        calls.clear()
        got = evaluator.run(None, dict(zip(evaluator.input_names, inputs)))
        assert len(calls) == 1
        runner.assert_similar_outputs(outputs, got, case.rtol, case.atol)


# -------------------------------------------------------------------------------------- the formula


def evaluate(inputs, *, opset=25, outputs=("Y",), **attributes):
    """The outputs of a model of one node, by name; absent inputs and outputs are left out."""
    inputs = {name: x for name, x in inputs.items() if x is not None}
    node = helper.make_node(
        "Attention",
        [name if name in inputs else "" for name in INPUTS],
        [name if name in outputs else "" for name in OUTPUTS],
        **attributes,
    )
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(x.dtype.newbyteorder("=")), None
            )
            for name, x in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    got = ReferenceEvaluator(model, new_ops=[Attention]).run(list(outputs), inputs)
    return got[0] if len(outputs) == 1 else dict(zip(outputs, got))


def formula(Q, K, V, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, *,
            heads=None, kv_heads=None, is_causal=0, scale=None, softcap=0.0, window=(-1, -1),
            pads=True):  # fmt: skip
    """Y, and what each qk_matmul_output_mode gives, in float64: entry by entry, head by head.

    `heads` says that Q, K and V have three axes; `pads` that short masks hide (from opset 24 on).
    """
    Q, K, V = (x.astype(np.float64) for x in (Q, K, V))
    if heads is not None:
        Q, K, V = (
            np.stack(np.split(x, n, axis=2), axis=1)
            for x, n in ((Q, heads), (K, kv_heads), (V, kv_heads))
        )
    offset = 0
    if past_key is not None:
        offset = past_key.shape[2]
        K = np.concatenate([past_key.astype(np.float64), K], axis=2)
        V = np.concatenate([past_value.astype(np.float64), V], axis=2)
    shape = (*Q.shape[:3], K.shape[2])
    group = Q.shape[1] // K.shape[1]
    if scale is None:
        scale = Q.shape[3] ** -0.5

    bias = np.zeros(shape)
    if attn_mask is not None:
        mask = attn_mask
        if mask.dtype == bool:
            mask = np.where(mask, 0.0, -np.inf)
        mask = mask.astype(np.float64)
        if pads:
            missing = shape[3] - mask.shape[-1]
            mask = np.pad(
                mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=-np.inf
            )
        bias += mask
    modes = [np.zeros(shape) for _ in range(4)]
    Y = np.zeros((*shape[:3], V.shape[3]))
    for b, h, i in np.ndindex(shape[:3]):
        if nonpad_kv_seqlen is not None:
            offset = int(nonpad_kv_seqlen[b]) - shape[2]
        for j in range(shape[3]):
            p = i + offset
            sees = nonpad_kv_seqlen is None or j < nonpad_kv_seqlen[b]
            sees &= not is_causal or j <= p
            sees &= window[0] == -1 or j >= p - window[0]
            sees &= window[1] == -1 or j <= p + window[1]
            if not sees:
                bias[b, h, i, j] = -np.inf
            score = scale * (Q[b, h, i] @ K[b, h // group, j])
            modes[0][b, h, i, j] = score
            modes[1][b, h, i, j] = softcap * np.tanh(score / softcap) if softcap else score
        seen = np.flatnonzero(bias[b, h, i] > -np.inf)
        row = np.full(shape[3], -np.inf)
        row[seen] = modes[1][b, h, i, seen] + bias[b, h, i, seen]
        modes[2][b, h, i] = row
        if len(seen):
            weights = np.exp(row[seen] - row[seen].max())
            weights /= weights.sum()
            modes[3][b, h, i, seen] = weights
            Y[b, h, i] = weights @ V[b, h // group, seen]
    if heads is not None:
        Y = np.concatenate(list(np.moveaxis(Y, 1, 0)), axis=2)
    return Y, modes


def tensors(rng, dtype=F, *, rank=4, batch=2, heads=4, kv_heads=2, queries=3, keys=5, past=0,
            size=8, v_size=6):  # fmt: skip
    """Q, K, V and a past, by name; no two sizes are equal but batch and kv_heads."""
    shapes = {
        "Q": (batch, heads, queries, size),
        "K": (batch, kv_heads, keys, size),
        "V": (batch, kv_heads, keys, v_size),
    }
    if rank == 3:
        shapes = {name: (b, s, h * d) for name, (b, h, s, d) in shapes.items()}
    if past:
        shapes["past_key"] = (batch, kv_heads, past, size)
        shapes["past_value"] = (batch, kv_heads, past, v_size)
    return {name: draw(rng, shape, dtype) for name, shape in shapes.items()}


CACHES = ("none", "past", "nonpad")
MASKS = ("none", "bool", "float", "heads", "row", "short")


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("cache", CACHES)
def test_every_option_and_output_agrees_with_the_formula(backend, rng, sample, dtype, rank, cache):
    choices = itertools.product(MASKS, (0, 1), (0.0, 1.5), ((-1, -1), (2, 1)), range(4))
    for mask, is_causal, softcap, window, mode in sample(choices, 12):
        inputs = tensors(rng, dtype, rank=rank, past=4 if cache == "past" else 0)
        total = 9 if cache == "past" else 5
        if cache == "nonpad":
            inputs["nonpad_kv_seqlen"] = np.array([4, 2])
        inputs["attn_mask"] = {
            "none": None,
            "bool": rng.random((2, 1, 3, total)) < 0.6,
            "float": draw(rng, (2, 4, 3, total), dtype),
            "heads": draw(rng, (4, 3, total), dtype),
            "row": np.where(rng.random(total) < 0.3, -np.inf, 0.5).astype(dtype),
            "short": rng.random((3, total - 1)) < 0.6,
        }[mask]
        heads = {} if rank == 4 else {"q_num_heads": 4, "kv_num_heads": 2}
        got = evaluate(
            inputs,
            outputs=OUTPUTS,
            is_causal=is_causal,
            softcap=softcap,
            left_window_size=window[0],
            right_window_size=window[1],
            qk_matmul_output_mode=mode,
            **heads,
        )
        split = {} if rank == 4 else {"heads": 4, "kv_heads": 2}
        Y, modes = formula(**inputs, is_causal=is_causal, softcap=softcap, window=window, **split)
        case = f"{mask} {is_causal} {softcap} {window} {mode}"
        assert all(x.dtype == dtype for x in got.values())
        assert_close(got["Y"], Y, context=f"Y {case}")
        assert_close(got["qk_matmul_output"], modes[mode], slack=2e-6, context=f"qk {case}")
        for name, new in (("key", "K"), ("value", "V")):
            wanted = inputs[new]
            if rank == 3:
                wanted = wanted.reshape(2, 5, 2, -1).swapaxes(1, 2)
            if cache == "past":
                wanted = np.concatenate([inputs[f"past_{name}"], wanted], axis=2)
            assert_bits_equal(got[f"present_{name}"], wanted)


def test_fewer_new_keys_than_queries_after_a_past(backend, rng):
    # The position is the number of past keys, 4, and not what would end with the last key.
    inputs = tensors(rng, queries=3, keys=2, past=4)
    got = evaluate(
        inputs,
        is_causal=1,
        outputs=("Y", "qk_matmul_output"),
        qk_matmul_output_mode=3,
    )
    Y, modes = formula(**inputs, is_causal=1)
    assert_close(got["Y"], Y)
    assert (got["qk_matmul_output"] != 0).sum(axis=3)[0, 0].tolist() == [5, 6, 6]
    assert_close(got["qk_matmul_output"], modes[3])


@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_lies_beyond_nonpad_is_never_used(backend, rng, dtype, bad, is_causal):
    inputs = tensors(rng, dtype)
    inputs["nonpad_kv_seqlen"] = np.array([4, 1])
    for name in "KV":
        inputs[name][0, :, 4:] = inputs[name][1, :, 1:] = 0
    clean = evaluate(inputs, is_causal=is_causal)
    for name in "KV":
        inputs[name][0, :, 4:] = inputs[name][1, :, 1:] = bad
    got = evaluate(
        inputs,
        is_causal=is_causal,
        outputs=("Y", "qk_matmul_output"),
        qk_matmul_output_mode=2,
    )
    assert np.isfinite(clean.astype(F)).all()
    assert_bits_equal(got["Y"], clean)
    qk = got["qk_matmul_output"].astype(F)
    assert np.isneginf(qk[0, ..., 4:]).all() and np.isneginf(qk[1, ..., 1:]).all()


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_what_a_mask_hides_is_never_used(backend, rng, dtype, kind):
    inputs = tensors(rng, dtype)
    mask = np.arange(5) != 2
    inputs["attn_mask"] = mask if kind == "bool" else np.where(mask, 0, -np.inf).astype(dtype)
    clean = evaluate(inputs)
    inputs["K"][:, :, 2] = inputs["V"][:, :, 2] = np.nan
    got = evaluate(inputs, outputs=("Y", "qk_matmul_output"), qk_matmul_output_mode=2)
    assert_bits_equal(got["Y"], clean)
    assert np.isneginf(got["qk_matmul_output"].astype(F)).sum() == 2 * 4 * 3


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_rows_that_see_no_key_are_zero(backend, rng, dtype, kind):
    inputs = tensors(rng, dtype)
    mask = np.ones((3, 5), bool)
    mask[1] = False
    inputs["attn_mask"] = mask if kind == "bool" else np.where(mask, 0, -np.inf).astype(dtype)
    Y, modes = formula(**inputs)
    for mode in (2, 3):
        got = evaluate(inputs, outputs=("Y", "qk_matmul_output"), qk_matmul_output_mode=mode)
        assert not got["Y"][:, :, 1].any()
        assert_close(got["Y"], Y)
        assert_close(got["qk_matmul_output"], modes[mode], slack=2e-6)


@pytest.mark.parametrize("is_causal", [0, 1])
def test_lengths_of_zero_and_below_the_queries(backend, rng, is_causal):
    inputs = tensors(rng, batch=3)
    inputs["nonpad_kv_seqlen"] = np.array([0, 2, 5])  # with 3 queries: offsets -3, -1 and 2
    got = evaluate(inputs, is_causal=is_causal)
    assert not got[0].any()
    assert got[1, :, 0].any() != bool(is_causal)
    assert_close(got, formula(**inputs, is_causal=is_causal)[0])


@pytest.mark.parametrize("rank", [3, 4])
def test_strided_inputs_give_the_bits_of_compact_ones(backend, rng, dtype, rank):
    heads = {} if rank == 4 else {"q_num_heads": 4, "kv_num_heads": 2}
    inputs = tensors(rng, dtype, rank=rank, past=4)
    inputs["attn_mask"] = rng.random((2, 4, 3, 9)) < 0.7
    wanted = evaluate(inputs, **heads)
    strided = {}
    for name, x in inputs.items():
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        wide[..., ::2] = x
        strided[name] = wide[..., ::2]
    assert_bits_equal(evaluate(strided, **heads), wanted)
    strided = {name: np.asfortranarray(x) for name, x in inputs.items()}
    assert_bits_equal(evaluate(strided, **heads), wanted)
    strided = {name: np.flip(np.flip(x).copy()) for name, x in inputs.items()}
    assert_bits_equal(evaluate(strided, **heads), wanted)


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 5), (2, 0, 5), (2, 3, 0), (0, 0, 0)])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("mode", range(4))
def test_empty_axes(backend, rng, rank, mode, batch, queries, keys):
    heads = {} if rank == 4 else {"q_num_heads": 4, "kv_num_heads": 2}
    inputs = tensors(rng, rank=rank, batch=batch, queries=queries, keys=keys)
    got = evaluate(inputs, outputs=OUTPUTS, qk_matmul_output_mode=mode, is_causal=1, **heads)
    Y = (batch, 4, queries, 6) if rank == 4 else (batch, queries, 24)
    assert got["Y"].shape == Y
    assert not got["Y"].any()
    assert got["qk_matmul_output"].shape == (batch, 4, queries, keys)
    assert got["present_key"].shape == (batch, 2, keys, 8)


# ------------------------------------------------------------------------- what opsets differ in


@pytest.mark.parametrize("opset", [23, 24, 25])
def test_short_masks_hide_from_opset_24_on(backend, rng, opset):
    inputs = tensors(rng)
    inputs["attn_mask"] = draw(rng, (3, 1))
    wanted = formula(**inputs, pads=opset > 23)[0]
    assert_close(evaluate(inputs, opset=opset), wanted)
    for short in (draw(rng, (3, 4)), rng.random((4, 3, 2)) < 0.7, np.zeros((3, 0), F)):
        inputs["attn_mask"] = short
        if opset == 23:
            with pytest.raises(ValueError, match="attn_mask: expected a shape that broadcasts"):
                evaluate(inputs, opset=opset)
        else:
            assert_close(evaluate(inputs, opset=opset), formula(**inputs)[0])


@pytest.mark.parametrize("opset", [24, 25])
def test_a_mask_may_be_shorter_than_a_length(backend, rng, opset):
    inputs = tensors(rng)
    inputs["attn_mask"] = draw(rng, (3, 3))
    inputs["nonpad_kv_seqlen"] = np.array([5, 2])
    for is_causal in (0, 1):
        got = evaluate(inputs, opset=opset, is_causal=is_causal)
        assert_close(got, formula(**inputs, is_causal=is_causal)[0])


@pytest.mark.parametrize("opset", [23, 24, 25])
@pytest.mark.parametrize("mode", range(4))
def test_modes_are_the_same_in_all_opsets(backend, rng, opset, mode):
    inputs = tensors(rng)
    inputs["attn_mask"] = draw(rng, (2, 1, 3, 5))
    got = evaluate(
        inputs,
        opset=opset,
        outputs=("Y", "qk_matmul_output"),
        softcap=0.5,
        scale=3.0,
        is_causal=1,
        qk_matmul_output_mode=mode,
    )
    Y, modes = formula(**inputs, softcap=0.5, scale=3.0, is_causal=1)
    assert_close(got["Y"], Y)
    assert_close(got["qk_matmul_output"], modes[mode], slack=1e-5)


def test_heads_may_be_told_of_four_axes_before_opset_25(rng):
    inputs = tensors(rng)
    wanted = evaluate(inputs)
    for opset in (23, 24):
        got = evaluate(inputs, opset=opset, q_num_heads=4, kv_num_heads=2)
        assert_bits_equal(got, wanted)


# ----------------------------------------------------------------------------------- dtypes


def test_double_precision_of_float32_inputs(backend, rng):
    inputs = {name: 4 * x for name, x in tensors(rng, queries=7, keys=40).items()}
    got = evaluate(
        inputs,
        softmax_precision=DOUBLE,
        outputs=("Y", "qk_matmul_output"),
        qk_matmul_output_mode=3,
    )
    Y, modes = formula(**inputs)
    assert_bits_equal(got["Y"], Y.astype(F))
    assert_bits_equal(got["qk_matmul_output"], modes[3].astype(F))


@pytest.mark.parametrize("precision", [1, FLOAT16, 16])
def test_lower_precision_is_a_least_one(backend, rng, precision):
    inputs = tensors(rng)
    assert_bits_equal(evaluate(inputs, softmax_precision=precision), evaluate(inputs))


@pytest.mark.parametrize(
    ("own", "of_value"),
    [("float32", "float16"), ("float32", "float64"), ("float16", "float32"),
     ("float16", "bfloat16"), ("bfloat16", "float64")],
)  # fmt: skip
def test_values_of_another_type(backend, rng, own, of_value):
    if "bfloat16" in (own, of_value):
        bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    own, of_value = (np.dtype(bfloat16 if x == "bfloat16" else x) for x in (own, of_value))
    inputs = tensors(rng, own, past=4)
    for name in ("V", "past_value"):
        inputs[name] = inputs[name].astype(of_value)
    got = evaluate(inputs, outputs=OUTPUTS)
    assert [x.dtype for x in got.values()] == [own, own, of_value, own]
    assert_close(got["Y"], formula(**inputs)[0])


def test_integers_in_masks_are_added(backend, rng, dtype):
    inputs = tensors(rng, dtype)
    for kind in (np.int8, np.uint8, np.int64):
        inputs["attn_mask"] = rng.integers(0, 5, (4, 3, 5)).astype(kind)
        assert_close(evaluate(inputs), formula(**inputs)[0])
    inputs["attn_mask"] = np.full((3, 5), np.iinfo(np.int64).min)  # a number: it hides nothing
    inputs["attn_mask"][:, 2] = 0
    assert_close(evaluate(inputs), formula(**inputs)[0])


# ------------------------------------------------------------------------------- what is computed


def test_no_matrix_is_made_unless_it_is_asked_for(monkeypatch, calls, rng):
    def never(*_):
        raise AssertionError("nobody asked for products")

    inputs = tensors(rng)
    monkeypatch.setattr(integration, "_scores", never)
    for mode in range(4):
        evaluate(inputs, qk_matmul_output_mode=mode)
        evaluate(inputs, outputs=OUTPUTS[:3], qk_matmul_output_mode=mode)
    assert [options["return_weights"] for options in calls] == [False] * 8


def test_unnamed_outputs_are_no_inputs_of_later_nodes(rng):
    # The reference evaluator keeps all outputs by name, and "" also stands for an absent input.
    nodes = [
        helper.make_node("Attention", ["Q", "K", "V"], ["H", "", "", "qk"]),
        helper.make_node("Attention", ["H", "K", "V", "", "", ""], ["Y"]),
    ]
    inputs = tensors(rng, heads=2, queries=5, v_size=8)
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info(name, 1, None) for name in "QKV"],
        [helper.make_empty_tensor_value_info("Y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    got = ReferenceEvaluator(model, new_ops=[Attention]).run(None, inputs)[0]
    first = evaluate(inputs)
    assert_bits_equal(got, evaluate({**inputs, "Q": first}))


def test_the_class_alone(rng):
    inputs = tensors(rng)
    got = Attention.eval(*inputs.values(), is_causal=1)
    assert_bits_equal(got, evaluate(inputs, is_causal=1))


# ------------------------------------------------------------------------------------------ errors

X = np.ones((2, 4, 3, 8), F)
FLAT = {"Q": np.ones((2, 3, 32), F), "K": np.ones((2, 5, 16), F), "V": np.ones((2, 5, 12), F)}
PAST = {"past_key": np.ones((2, 2, 4, 8), F), "past_value": np.ones((2, 2, 4, 6), F)}


@pytest.mark.parametrize(
    ("changes", "attributes", "error", "message"),
    [
        ({"Q": X.astype(int)}, {}, TypeError, "Q: expected dtype float16, .*, got int64"),
        ({"K": np.ones((2, 2, 5, 8))}, {}, TypeError,
         "K: expected dtype float32 to match Q, got float64"),
        ({"V": np.ones((2, 2, 5, 6), bool)}, {}, TypeError, "V: expected dtype .*, got bool"),
        ({"Q": X[0, 0]}, {}, ValueError, r"Q: expected 3 or 4 axes, got shape \(3, 8\)"),
        ({"K": np.ones((2, 5, 16), F)}, {}, ValueError, "K: expected 4 axes to match Q, got shape"),
        ({"K": np.ones((1, 2, 5, 8), F)}, {}, ValueError,
         "K: expected batch size 2 to match Q, got 1"),
        ({"V": np.ones((3, 2, 5, 6), F)}, {}, ValueError,
         "V: expected batch size 2 to match Q, got 3"),
        ({"K": np.ones((2, 2, 5, 7), F)}, {}, ValueError,
         "K: expected head size 8 to match Q, got 7"),
        ({"V": np.ones((2, 1, 5, 6), F)}, {}, ValueError, "V: expected 2 heads to match K, got 1"),
        ({"V": np.ones((2, 2, 4, 6), F)}, {}, ValueError, "V: expected 5 keys to match K, got 4"),
        ({"K": np.ones((2, 3, 5, 8), F), "V": np.ones((2, 3, 5, 6), F)}, {}, ValueError,
         "K: expected a number of heads that divides the 4 of Q, got 3"),
        ({"Q": X[..., :0], "K": X[:, :2, :, :0], "V": X[:, :2]}, {}, ValueError,
         "Q: expected a head size above 0, or the attribute scale"),
        ({"attn_mask": np.ones((3, 6), F)}, {}, ValueError,
         r"attn_mask: expected a shape that broadcasts to \(2, 4, 3, 5\)"),
        ({"attn_mask": np.ones((4, 5), F)}, {}, ValueError, r"attn_mask: .*, got \(4, 5\)"),
        ({"past_key": PAST["past_key"]}, {}, ValueError, "past_value: .* beside past_key"),
        ({"past_value": PAST["past_value"]}, {}, ValueError, "past_key: .*, got none"),
        ({**PAST, "past_key": X[0]}, {}, ValueError,
         r"past_key: expected shape \(2, 2, past, 8\), got \(4, 3, 8\)"),
        ({**PAST, "past_value": np.ones((2, 2, 3, 6), F)}, {}, ValueError,
         r"past_value: expected shape \(2, 2, 4, 6\), got \(2, 2, 3, 6\)"),
        ({**PAST, "past_key": np.ones((2, 2, 4, 8))}, {}, TypeError,
         "past_key: expected dtype float32 to match K, got float64"),
        ({**PAST, "nonpad_kv_seqlen": np.array([1, 2])}, {}, ValueError,
         "nonpad_kv_seqlen: expected none beside past_key"),
        ({"nonpad_kv_seqlen": np.array([1, 6])}, {}, ValueError,
         "nonpad_kv_seqlen: expected 0 to 5, the number of keys, got 6"),
        ({"nonpad_kv_seqlen": np.array([-1, 2])}, {}, ValueError, "nonpad_kv_seqlen: .*, got -1"),
        ({"nonpad_kv_seqlen": np.array([1])}, {}, ValueError,
         r"nonpad_kv_seqlen: expected shape \(2,\), .*, got \(1,\)"),
        ({"nonpad_kv_seqlen": np.ones(2, F)}, {}, TypeError,
         "nonpad_kv_seqlen: expected integers, got dtype float32"),
        ({"nonpad_kv_seqlen": np.array([1, 2])}, {"opset": 23}, ValueError,
         "nonpad_kv_seqlen: expected opset 24 or newer, got opset 23"),
        ({}, {"left_window_size": 2, "opset": 24}, ValueError,
         "left_window_size: expected opset 25 or newer, got opset 24"),
        ({}, {"right_window_size": -2}, ValueError, "right_window_size: expected -1 .*, got -2"),
        ({}, {"qk_matmul_output_mode": 4}, ValueError, "qk_matmul_output_mode: expected 0 to 3"),
        ({}, {"softmax_precision": 7}, ValueError, "softmax_precision: expected 1 .*, got 7"),
        ({}, {"softcap": -1.0}, ValueError, "softcap: expected"),
        ({}, {"scale": float("nan")}, ValueError, "scale: expected a finite number, got nan"),
        ({}, {"is_causal": 2}, TypeError, "is_causal: expected True or False"),
        ({}, {"q_num_heads": 4}, ValueError, "q_num_heads: expected none, as Q has 4 axes, got 4"),
        ({}, {"kv_num_heads": 4, "opset": 23}, ValueError,
         "kv_num_heads: expected 2, the heads of K, got 4"),
        (FLAT, {}, ValueError, "q_num_heads: expected a number, as Q has 3 axes, got none"),
        (FLAT, {"q_num_heads": 4}, ValueError, "kv_num_heads: expected a number, as K"),
        (FLAT, {"q_num_heads": 5, "kv_num_heads": 2}, ValueError,
         "q_num_heads: expected a number that divides the last axis of Q, 32, got 5"),
        (FLAT, {"q_num_heads": 0, "kv_num_heads": 2}, ValueError, "q_num_heads: .*, got 0"),
        (FLAT, {"q_num_heads": 4, "kv_num_heads": 8}, ValueError,
         "kv_num_heads: expected a number that divides the last axis of V, 12, got 8"),
        ({}, {"opset": 22}, ValueError, "Attention: expected opset 23 or newer, got 22"),
        ({}, {"dropout": 1}, TypeError, "'dropout'"),
    ],
)  # fmt: skip
def test_mistakes_are_named(rng, changes, attributes, error, message):
    with pytest.raises(error, match=message):
        evaluate({**tensors(rng), **changes}, **attributes)


def test_an_operator_of_the_future_is_refused():
    node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"])
    params = {"opsets": {"": 99}, "new_ops": None, "log": print}
    schema = types.SimpleNamespace(since_version=26, attributes={})
    with pytest.raises(ValueError, match="opsets 23 to 25, got that of opset 26"):
        Attention(node, params, schema)


def test_without_onnx_the_import_says_how_to_get_it(run_python):
    done = run_python(
        """
import sys
import fastattn.integrations
assert "onnx" not in sys.modules
sys.modules["onnx"] = None
try:
    import fastattn.integrations.onnx
except ImportError as error:
    print(error)
"""
    )
    assert 'pip install "fastattn[onnx]"' in done.stdout, done.stderr
