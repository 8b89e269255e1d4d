# SPDX-License-Identifier: MIT
# LuongAttention: scores, modes, the attentional state, positions, errors.
# Used by the suite, on every backend.
# Windows and Gaussians themselves are tested in test_local.py.
"""Each score with each mode follows the formulas of the paper."""

import numpy as np
import pytest
from check import assert_bits_equal, draw
from layer_formulas import attend, near, uniform, wide

from fastattn.layers import LuongAttention

SCORES = ["dot", "general", "concat", "location"]
MODES = ["global", "local-m", "local-p"]


def case(rng, dtype, score, mode, *, query_dim=4, key_dim=5, columns=40, half_width=2.3,
         combine=False):  # fmt: skip
    """Arguments of the layer, and the size of the memory."""
    key_dim = query_dim if score == "dot" else key_dim
    given = {"score": score, "mode": mode}
    if score == "general":
        given["weight"] = uniform(rng, (query_dim, key_dim), dtype)
    if score == "concat":
        given["weight"] = uniform(rng, (query_dim + key_dim, 7), dtype)
        given["attention_v"] = draw(rng, 7, dtype)
    if score == "location":
        given["weight"] = uniform(rng, (query_dim, columns), dtype)
    if mode != "global":
        given["half_width"] = half_width
    if mode == "local-p":
        given["position_weight"] = uniform(rng, (query_dim, 6), dtype)
        given["position_v"] = draw(rng, 6, dtype)
    if combine:
        given["combine_weight"] = uniform(rng, (key_dim + query_dim, 8), dtype)
    if not combine and score == "dot" and mode != "local-p":
        given["dtype"] = dtype
    return given, key_dim


def formula(given, query, memory, lengths=None, position=0, allowed=True):
    """Of the sequence form (batch, queries, dim), (batch, keys, dim); result and weights."""
    q, s = wide(query), np.where(np.isfinite(wide(memory)), wide(memory), 0)
    n_queries, n_keys = q.shape[1], s.shape[1]
    weight = wide(given.get("weight"))
    if given["score"] == "dot":
        scores = q @ s.swapaxes(1, 2)
    elif given["score"] == "general":
        scores = q @ weight @ s.swapaxes(1, 2)
    elif given["score"] == "location":
        scores = (q @ weight)[..., :n_keys]
    else:
        shape = (*q.shape[:2], n_keys)
        both = [
            np.broadcast_to(x, (*shape, x.shape[-1])) for x in (q[:, :, None], s[:, None, :, :])
        ]
        scores = np.tanh(np.concatenate(both, axis=-1) @ weight) @ wide(given["attention_v"])
    lengths = np.full(len(q), n_keys) if lengths is None else np.asarray(lengths)
    j = np.arange(n_keys)
    allowed = np.logical_and(allowed, j < lengths[:, None, None])
    fade = 1.0
    if given["mode"] != "global":
        width = given["half_width"]
        if given["mode"] == "local-m":
            p = np.arange(n_queries) + np.broadcast_to(position, len(q))[:, None]
        else:
            inner = np.tanh(q @ wide(given["position_weight"])) @ wide(given["position_v"])
            p = lengths[:, None] / (1 + np.exp(-inner))
            fade = np.exp(-((j - p[..., None]) ** 2) / (2 * (width / 2) ** 2))
        allowed = allowed & (abs(j - p[..., None]) <= width)
    _, weights = attend(scores, s, allowed)
    weights = weights * fade
    out = weights @ s
    if "combine_weight" in given:
        out = np.tanh(np.concatenate([out, q], axis=-1) @ wide(given["combine_weight"]))
    return out, weights


@pytest.mark.parametrize("combine", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("score", SCORES)
def test_every_score_and_mode(backend, rng, dtype, score, mode, combine):
    """A sequence with lengths, and each query of it as a step."""
    given, key_dim = case(rng, dtype, score, mode, combine=combine)
    layer = LuongAttention(**given)
    assert layer.dtype == dtype
    query, memory = draw(rng, (3, 6, 4), dtype), draw(rng, (3, 21, key_dim), dtype)
    for lengths in (None, [21, 9, 0]):
        if lengths is not None:
            memory[1, 9:], memory[2] = np.nan, np.inf
        position = [0, 3, 15] if mode == "local-m" else 0
        want = formula(given, query, memory, lengths, position)
        options = {"memory_lengths": lengths, "return_weights": True}
        got = layer(query, memory, position=position, **options)
        for one, other in zip(got, want):
            assert one.dtype == dtype
            near(one, other)
        assert not got[1][want[1] == 0].any()
        for i in (0, 4):
            now = np.array(position) + i if mode == "local-m" else 0
            step = layer(query[:, i], memory, position=now, **options)
            near(step[0], want[0][:, i])
            near(step[1], want[1][:, i])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("score", SCORES)
def test_masks(backend, rng, dtype, score, mode):
    given, key_dim = case(rng, dtype, score, mode)
    layer = LuongAttention(**given)
    query, memory = draw(rng, (2, 5, 4), dtype), draw(rng, (2, 17, key_dim), dtype)
    mask = rng.random((2, 5, 17)) < 0.6
    want = formula(given, query, memory, [17, 12], allowed=mask)
    options = {"memory_lengths": [17, 12], "return_weights": True}
    for option in (mask, np.where(mask, 0, -np.inf)):
        got = layer(query, memory, attn_mask=option, **options)
        for one, other in zip(got, want):
            near(one, other)
        step = layer(query[:, 0], memory, attn_mask=option[:, 0], **options)
        near(step[0], want[0][:, 0])
        near(step[1], want[1][:, 0])


@pytest.mark.parametrize("lead", [(), (2, 3)], ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("score", SCORES)
def test_other_numbers_of_axes(backend, rng, real, score, mode, lead):
    given, key_dim = case(rng, real, score, mode, combine=True)
    layer = LuongAttention(**given)
    query, memory = draw(rng, (*lead, 5, 4), real), draw(rng, (*lead, 17, key_dim), real)
    out, weights = layer(query, memory, return_weights=True)
    flat = formula(given, query.reshape(-1, 5, 4), memory.reshape(-1, 17, key_dim))
    near(out, flat[0].reshape(*lead, 5, 8))
    near(weights, flat[1].reshape(*lead, 5, 17))
    step, weights = layer(query[..., 0, :], memory, return_weights=True)
    near(step, flat[0].reshape(*lead, 5, 8)[..., 0, :])
    near(weights, flat[1].reshape(*lead, 5, 17)[..., 0, :])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("score", SCORES)
def test_entries_do_not_depend_on_each_other(backend, rng, dtype, score, mode):
    given, key_dim = case(rng, dtype, score, mode, combine=True, columns=70)
    layer = LuongAttention(**given)
    query, memory = draw(rng, (5, 4), dtype), draw(rng, (5, 70, key_dim), dtype)
    position = np.array([0, 69, 30, 100, 2]) if mode == "local-m" else np.zeros(5, int)
    together = layer(query, memory, position=position)
    for entry in range(5):
        alone = layer(query[entry], memory[entry], position=position[entry])
        assert_bits_equal(together[entry], alone)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("score", SCORES)
def test_nan_in_a_query_is_its_own(backend, rng, real, score, mode):
    given, key_dim = case(rng, real, score, mode)
    layer = LuongAttention(**given)
    query, memory = draw(rng, (2, 5, 4), real), draw(rng, (2, 17, key_dim), real)
    clean = layer(query, memory)
    query[1, 2, 1] = np.nan
    out = layer(query, memory)
    assert np.isnan(out[1, 2]).all()
    out[1, 2] = clean[1, 2]
    near(out, clean)


def test_repr_and_dtype():
    assert LuongAttention().dtype == np.float32
    assert LuongAttention(dtype="float64").dtype == np.float64
    layer = LuongAttention(mode="local-m", half_width=3)
    assert repr(layer) == (
        "LuongAttention(score='dot', mode='local-m', half_width=3.0, combine=False, "
        "dtype='float32')"
    )


def test_arguments_that_do_not_fit():
    w = np.ones((4, 5), np.float32)
    for name, error, given in (
        ("score", ValueError, {"score": "cosine"}),
        ("score", TypeError, {"score": 1}),
        ("mode", ValueError, {"mode": "local"}),
        ("weight", ValueError, {"score": "general"}),
        ("weight", ValueError, {"weight": w}),
        ("weight", ValueError, {"score": "general", "weight": w[0]}),
        ("attention_v", ValueError, {"score": "concat", "weight": w}),
        ("attention_v", ValueError, {"score": "general", "weight": w, "attention_v": w[0]}),
        ("attention_v", ValueError, {"score": "concat", "weight": w, "attention_v": w[:, 0]}),
        ("half_width", ValueError, {"half_width": 2}),
        ("half_width", ValueError, {"mode": "local-m"}),
        ("half_width", ValueError, {"mode": "local-m", "half_width": -1}),
        ("half_width", TypeError, {"mode": "local-m", "half_width": "1"}),
        ("position_weight", ValueError, {"mode": "local-p", "half_width": 2}),
        ("position_v", ValueError, {"position_v": w[0]}),
        ("combine_weight", ValueError, {"combine_weight": w[:3]}),
        ("combine_weight", ValueError, {"score": "general", "weight": w, "combine_weight": w}),
        ("combine_weight", TypeError, {"score": "general", "weight": w, "combine_weight": w > 0}),
        ("dtype", TypeError, {"dtype": "int8"}),
        ("weight", TypeError, {"score": "general", "weight": w, "dtype": "float64"}),
    ):
        with pytest.raises(error, match=f"^{name}: "):
            LuongAttention(**given)


def test_calls_that_do_not_fit(backend, rng):
    given, _ = case(rng, np.float32, "general", "local-m")
    layer = LuongAttention(**given)
    query, memory = draw(rng, (3, 4)), draw(rng, (3, 9, 5))
    for name, error, arguments, options in (
        ("query", TypeError, (query.astype(float), memory), {}),
        ("query", ValueError, (query[:, :3], memory), {}),
        ("query", ValueError, (query[:2], memory), {}),
        ("query", ValueError, (query[None, None], memory), {}),
        ("memory", ValueError, (query, memory[..., :4]), {}),
        ("memory", TypeError, (query, memory.astype(np.float16)), {}),
        ("memory", ValueError, (query, memory[0, 0]), {}),
        ("memory_lengths", ValueError, (query, memory), {"memory_lengths": -1}),
        ("position", TypeError, (query, memory), {"position": 1.0}),
        ("position", ValueError, (query, memory), {"position": [1, 2]}),
        ("attn_mask", ValueError, (query, memory), {"attn_mask": np.ones((3, 8), bool)}),
        ("return_weights", TypeError, (query, memory), {"return_weights": "yes"}),
    ):
        with pytest.raises(error, match=f"^{name}: "):
            layer(*arguments, **options)
    with pytest.raises(ValueError, match="^position: "):
        LuongAttention()(query, memory[..., :4], position=1)
    with pytest.raises(ValueError, match="^memory: expected at most 8 keys"):
        layer = LuongAttention(score="location", weight=np.ones((4, 8), np.float32))
        layer(query, memory)
    with pytest.raises(ValueError, match="^query: "):
        layer = LuongAttention(
            score="concat", weight=np.ones((3, 8), np.float32), attention_v=np.ones(8, np.float32)
        )
        layer(query, memory)
