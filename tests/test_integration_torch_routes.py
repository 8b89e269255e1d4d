# SPDX-License-Identifier: MIT
# fastattn.integrations.torch: which way a call takes. Gradients, use_fastattn, torch.compile.
# Used by the suite on every backend, where PyTorch is installed.
# Results are test_integration_torch.py's matter.
"""Blocks route what fastattn computes and nothing else; graphs hold one operator."""

import shutil
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from check_torch import DTYPES, assert_near, draw, in_double, name_of, qkv  # noqa: E402
from torch.nn.attention.bias import causal_lower_right  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as imported_before  # noqa: E402

from fastattn.integrations import _torch_calls  # noqa: E402
from fastattn.integrations.torch import (  # noqa: E402
    additive_attention,
    scaled_dot_product_attention,
    use_fastattn,
)

# what PyTorch's own modules warn of when they are first used
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

OPERATOR = torch.ops.fastattn.scaled_dot_product_attention
ADDITIVE = torch.ops.fastattn.additive_attention


@pytest.fixture
def computed(monkeypatch):
    """The threads of the calls that fastattn has computed, in order."""
    calls = []

    def spy(*args, original=_torch_calls.sdpa, **options):
        result = original(*args, **options)
        calls.append(threading.get_ident())
        return result

    monkeypatch.setattr(_torch_calls, "sdpa", spy)
    return calls


@pytest.fixture(autouse=True)
def compile_afresh():
    torch._dynamo.reset()


# -------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", ["query", "key", "value", "attn_mask"])
def test_a_wanted_gradient_is_an_error_or_left_to_pytorch(backend, rng, computed, name):
    arguments = dict(zip(("query", "key", "value"), qkv(rng)), attn_mask=draw(rng, 5, 7))
    wanted = in_double(*arguments.values())
    arguments[name].requires_grad_()
    with pytest.raises(ValueError, match=f"^{name}: expected a tensor without gradient, got one"):
        scaled_dot_product_attention(**arguments)
    out = scaled_dot_product_attention(**arguments, on_grad="torch")
    out.sum().backward()
    assert arguments[name].grad is not None
    assert not computed
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            out = scaled_dot_product_attention(**arguments)
            assert_near(out, wanted)
            assert not out.requires_grad
    assert len(computed) == 2


def test_forward_gradients_are_not_lost(backend, rng):
    query, key, value = qkv(rng)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(query, torch.ones_like(query))
        with pytest.raises(ValueError, match="^query: expected a tensor without gradient"):
            scaled_dot_product_attention(dual, key, value)
        out = scaled_dot_product_attention(dual, key, value, on_grad="torch")
        assert torch.autograd.forward_ad.unpack_dual(out).tangent is not None


def test_inside_of_transforms(backend, rng, computed):
    query, key, value = qkv(rng)
    with pytest.raises(TypeError, match="^query: expected a tensor with memory of its own"):
        torch.vmap(scaled_dot_product_attention)(query, key, value)
    with use_fastattn():
        out = torch.vmap(F.scaled_dot_product_attention)(query, key, value)
    assert_near(out, in_double(query, key, value))
    assert not computed


# ----------------------------------------------------------------------------------------- blocks


class Model(torch.nn.Module):
    """Self-attention as models are written."""

    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(12, 36)

    def forward(self, x):
        heads = self.project(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(-2)


def test_a_block_routes_models_and_earlier_imports(backend, rng, computed):
    model, x = Model(), draw(rng, 2, 5, 12)
    with torch.no_grad():
        wanted = model(x)
        with use_fastattn():
            assert_near(model(x), wanted)
            assert len(computed) == 1
            imported_before(*qkv(rng))
            assert len(computed) == 2
        model(x)
    assert len(computed) == 2


def test_multi_head_attention_is_not_reached_and_stays_right(backend, rng, computed):
    module = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    x = draw(rng, 2, 5, 12)
    for is_training in (True, False):
        with torch.no_grad():
            wanted = module.train(is_training)(x, x, x, need_weights=False)[0]
            with use_fastattn():
                assert_near(module(x, x, x, need_weights=False)[0], wanted)
    assert not computed


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_a_block_takes_all_arguments(backend, rng, computed, dtype):
    query, key, value = qkv(rng, dtype, heads=6, kv_heads=2)
    mask = draw(rng, 5, 7) > 0
    with use_fastattn():
        for args, options in (
            ((query, key, value, mask, 0.0, False), {"scale": 0.5, "enable_gqa": True}),
            ((query, key, value), {"attn_mask": mask.to(dtype), "enable_gqa": True}),
            ((), {"query": query, "key": key, "value": value, "enable_gqa": True}),
        ):
            out = F.scaled_dot_product_attention(*args, **options)
            doubles = {n: x.double() if torch.is_tensor(x) and x.is_floating_point() else x
                       for n, x in options.items()}  # fmt: skip
            args = [x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in args]
            with torch._C.DisableTorchFunction():
                assert_near(out, F.scaled_dot_product_attention(*args, **doubles))
    assert len(computed) == 3


def test_what_fastattn_does_not_compute_is_left_to_pytorch(backend, rng, computed):
    query, key, value = qkv(rng, dv=4)
    wanted = in_double(query, key, value)
    with use_fastattn():
        grad = query.clone().requires_grad_()
        out = F.scaled_dot_product_attention(grad, key, value)
        out.sum().backward()
        assert grad.grad is not None
        assert_near(out, wanted)
        F.scaled_dot_product_attention(query, key, value, dropout_p=0.5)
        meta = F.scaled_dot_product_attention(*(x.to("meta") for x in (query, query, query)))
        assert meta.device.type == "meta"
        lower_right = F.scaled_dot_product_attention(query, key, value, causal_lower_right(5, 7))
        for wrong in ((query, key[..., :3], value), (query, key[:, :2], value), (3, key, value)):
            with pytest.raises((RuntimeError, TypeError)) as ours:
                F.scaled_dot_product_attention(*wrong)
            with (
                pytest.raises((RuntimeError, TypeError)) as theirs,
                torch._C.DisableTorchFunction(),
            ):
                F.scaled_dot_product_attention(*wrong)
            assert str(ours.value) == str(theirs.value)
    assert not computed
    allowed = torch.ones(5, 7, dtype=torch.bool).tril(2)
    assert_near(lower_right, in_double(query, key, value, allowed))


def test_a_block_that_refuses_gradients(backend, rng, computed):
    query, key, value = qkv(rng)
    query.requires_grad_()
    with use_fastattn(on_grad="error"), pytest.raises(ValueError, match="^query: .*gradient"):
        F.scaled_dot_product_attention(query, key, value)
    with use_fastattn(on_grad="error"), use_fastattn():
        with pytest.raises(ValueError, match="^query: .*gradient"):
            F.scaled_dot_product_attention(query, key, value)
    F.scaled_dot_product_attention(query, key, value)
    with pytest.raises(ValueError, match="^on_grad: expected 'error' or 'torch', got None"):
        use_fastattn(on_grad=None)


def test_blocks_nest_and_end_with_errors(backend, rng, computed):
    tensors = qkv(rng)
    block = use_fastattn()
    with block:
        with pytest.raises(KeyError), use_fastattn():
            F.scaled_dot_product_attention(*tensors)
            raise KeyError
        F.scaled_dot_product_attention(*tensors)
        with block:
            F.scaled_dot_product_attention(*tensors)
        F.scaled_dot_product_attention(*tensors)
        assert len(computed) == 4
    F.scaled_dot_product_attention(*tensors)
    assert len(computed) == 4
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_block_is_of_its_thread_alone(backend, rng, computed):
    tensors = qkv(rng)
    inside, outside_done = threading.Event(), threading.Event()
    routed = []

    def work():
        with use_fastattn():
            inside.set()
            assert outside_done.wait(60)
            F.scaled_dot_product_attention(*tensors)
            routed.append(threading.get_ident())

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(60)
    F.scaled_dot_product_attention(*tensors)
    assert not computed
    outside_done.set()
    thread.join()
    assert computed == routed and len(routed) == 1


# ----------------------------------------------------------------------------------------- graphs


def operators(function, *args, **options):
    """The result of a compiled function, and the operators of its graph."""
    found = []

    def keep(graph, inputs):
        found.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    return torch.compile(function, backend=keep, fullgraph=True)(*args, **options), found


def routed(query, key, value):
    with use_fastattn():
        return F.scaled_dot_product_attention(query * 2, key, value)


def test_a_compiled_function_holds_one_operator(backend, rng):
    query, key, value = qkv(rng)
    wanted = in_double(query * 2, key, value)

    def plain(query, key, value):
        return scaled_dot_product_attention(query * 2, key, value)

    def inner(query, key, value):
        return F.scaled_dot_product_attention(query * 2, key, value)

    for function in (plain, routed):
        out, found = operators(function, query, key, value)
        assert OPERATOR.default in found or OPERATOR in found or any(
            "fastattn" in str(x) for x in found), found  # fmt: skip
        assert F.scaled_dot_product_attention not in found
        assert_near(out, wanted)
    with use_fastattn():
        out, found = operators(inner, query, key, value)
    assert F.scaled_dot_product_attention not in found
    assert_near(out, wanted)
    out, found = operators(inner, query, key, value)  # the block has ended: compiled once more
    assert F.scaled_dot_product_attention in found


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_compiled_calls_with_masks_groups_and_layouts(backend, rng, dtype, dynamic):
    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=dynamic)
    def function(query, key, value, mask):
        out = scaled_dot_product_attention(
            query.transpose(1, 2), key, value, mask, enable_gqa=True, scale=0.5
        )
        return out.transpose(1, 2).flatten(-2)

    for n in (5, 6):
        query, key, value = qkv(rng, dtype, heads=6, kv_heads=2, queries=n, dv=4)
        query, mask = query.transpose(1, 2).contiguous(), draw(rng, n, 7) > -1
        out = function(query, key, value, mask)
        wanted = in_double(query.transpose(1, 2), key, value, mask, enable_gqa=True, scale=0.5)
        assert_near(out, wanted.transpose(1, 2).flatten(-2))


def test_compiled_additive_attention(backend, rng):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(query, key, value, vector):
        return additive_attention(
            query * 2, key, value, vector, kv_lengths=[7, 4], window=(3, None), is_causal=True,
            q_offset="lower_right", return_lse=True, return_weights=True,
        )  # fmt: skip

    query, key, value = qkv(rng, dim=8)
    vector = draw(rng, 8)
    got = function(query, key, value, vector)
    wanted = additive_attention(
        query * 2, key, value, vector, kv_lengths=[7, 4], window=(3, None), is_causal=True,
        q_offset="lower_right", return_lse=True, return_weights=True,
    )  # fmt: skip
    assert len(got) == 3 and all(map(torch.equal, got, wanted))


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a compiler")
def test_inductor(rng, monkeypatch, tmp_path):
    """PyTorch's own compiler, which generates code around the operator."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    query, key, value = qkv(rng, dv=4)
    query = query.transpose(1, 2).contiguous().transpose(1, 2)
    function = torch.compile(lambda *x: routed(*x).transpose(1, 2).flatten(-2) + 1, fullgraph=True)
    with torch.no_grad():
        out = function(query, key, value)
    assert_near(out, in_double(query * 2, key, value).transpose(1, 2).flatten(-2) + 1)


def test_the_operators_keep_the_rules_of_pytorch(backend, rng):
    """Their fakes tell the truth, they change no argument, and return no memory of one."""
    plain = qkv(rng, torch.bfloat16, dv=4)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in plain]
    moved = [x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for x in plain]
    for tensors in (
        plain,
        turned,
        moved,
        qkv(rng),
        [x[0] for x in plain],
        [x[0, 0] for x in plain],
    ):
        torch.library.opcheck(OPERATOR, (*tensors, None, False, None))
        rest = [None] * 9 + [True, True, 3, -1, True, True]
        torch.library.opcheck(ADDITIVE, (*tensors, *rest))


def test_exported_and_traced(backend, rng):
    tensors = qkv(rng)

    class Attention(torch.nn.Module):
        def forward(self, query, key, value):
            return scaled_dot_product_attention(query, key, value, is_causal=True)

    program = torch.export.export(Attention(), tensors)
    assert any(node.target is OPERATOR.default for node in program.graph.nodes)
    others = qkv(rng)
    wanted = in_double(*others, is_causal=True)
    assert_near(program.module()(*others), wanted)
    traced = torch.fx.experimental.proxy_tensor.make_fx(Attention())(*tensors)
    assert_near(traced(*others), wanted)


def test_a_compiled_gradient_is_refused_too(backend, rng):
    query, key, value = qkv(rng)
    function = torch.compile(scaled_dot_product_attention, backend="eager")
    with pytest.raises(ValueError, match="^query: expected a tensor without gradient"):
        function(query.requires_grad_(), key, value)
    with torch.no_grad():
        assert_near(function(query, key, value), in_double(query, key, value))
