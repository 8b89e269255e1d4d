# SPDX-License-Identifier: MIT
# The catalog: every kind of score, and every rule of which keys take part, one test for each.
# Used by the suite, on every backend.
# It is a table of contents; sizes, dtypes and extremes are in the files of the functions.
"""Each row of the two tables, as a public function and as a formula of a few lines."""

import numpy as np
import pytest
from check import assert_bits_equal, assert_close

import fastattn
from fastattn import scores

ROWS = {}


def row(name):
    def enter(function):
        ROWS[name] = function
        return function

    return enter


def softmax(s):
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def soft(rng, score, formula, dim=4, key_dim=4):
    """attention with a score, and its formula on one head: (queries, dim), (keys, dim)."""
    q, k, v = draw(rng, 5, dim), draw(rng, 7, key_dim), draw(rng, 7, 3)
    s = formula(q.astype(np.float64), k.astype(np.float64))
    assert_close(fastattn.attention(q, k, v, score=score), softmax(s) @ v)


@row("dot")
def _(rng):
    soft(rng, "dot", lambda q, k: q @ k.T)


@row("scaled dot")
def _(rng):
    soft(rng, "scaled_dot", lambda q, k: q @ k.T / 2)


@row("general")
def _(rng):
    weight = draw(rng, 4, 6)
    soft(rng, scores.General(weight), lambda q, k: q @ weight @ k.T, key_dim=6)


@row("additive")
def _(rng):
    a, wq, wk, b = draw(rng, 8), draw(rng, 4, 8), draw(rng, 6, 8), draw(rng, 8)

    def formula(q, k):
        return np.tanh((q @ wq)[:, None] + k @ wk + b) @ a

    soft(rng, scores.Additive(a, wq, wk, b), formula, key_dim=6)


@row("concat")
def _(rng):
    weight, a = draw(rng, 4 + 6, 8), draw(rng, 8)

    def formula(q, k):
        pairs = [[np.concatenate([x, y]) for y in k] for x in q]
        return np.tanh(np.array(pairs) @ weight) @ a

    soft(rng, scores.Concat(weight, a), formula, key_dim=6)


@row("cosine")
def _(rng):
    def formula(q, k):
        lengths = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(k, axis=1)
        return q @ k.T / lengths / 0.2

    soft(rng, scores.Cosine(0.2), formula)


@row("location")
def _(rng):
    weight = draw(rng, 4, 7)
    soft(rng, scores.Location(weight), lambda q, k: q @ weight)


def heads(rng):
    """Arguments of two heads, and their scaled scores."""
    q, k, v = draw(rng, 2, 5, 4), draw(rng, 2, 7, 4), draw(rng, 2, 7, 3)
    return q, k, v, q.astype(np.float64) @ k.swapaxes(1, 2) / 2


@row("soft, global")
def _(rng):
    q, k, v, s = heads(rng)
    out, weights = fastattn.attention(q, k, v, return_weights=True)
    assert_close(out, softmax(s) @ v)
    assert_close(weights, softmax(s))


@row("hard")
def _(rng):
    q, k, v, s = heads(rng)
    out, indices = fastattn.hard_attention(q, k, v, return_indices=True)
    assert_bits_equal(indices, s.argmax(axis=-1))
    assert_bits_equal(out, np.stack([v[h, s[h].argmax(axis=-1)] for h in range(2)]))


@row("hard, sampled")
def _(rng):
    q, k, v, s = heads(rng)
    out = fastattn.hard_attention(q, k, v, sample=np.random.default_rng(5))
    numbers = np.random.default_rng(5).random((2, 5, 1))
    chosen = (softmax(s).cumsum(axis=-1) > numbers).argmax(axis=-1)
    assert_bits_equal(out, np.stack([v[h, chosen[h]] for h in range(2)]))


def windowed(s, centers, half_width):
    near = abs(np.arange(7) - centers[..., None]) <= half_width
    return softmax(np.where(near, s, -np.inf))


@row("local-m")
def _(rng):
    q, k, v, s = heads(rng)
    out = fastattn.local_attention(q, k, v, centers=np.arange(5), half_width=2)
    assert_close(out, windowed(s, np.arange(5), 2) @ v)


@row("local-p")
def _(rng):
    q, k, v, s = heads(rng)
    w_p, v_p = draw(rng, 4, 6), draw(rng, 6)
    centers = 7 / (1 + np.exp(-(np.tanh(q @ w_p) @ v_p)))
    fade = np.exp(-((np.arange(7) - centers[..., None]) ** 2) / (2 * 1.0**2))
    out = fastattn.local_attention(q, k, v, centers=centers, half_width=2, sigma=1.0)
    assert_close(out, (windowed(s, centers, 2) * fade) @ v)


def masked(rng, allowed, **options):
    """Every function whose keys are all soft takes the option; so does hard attention."""
    q, k, v, s = heads(rng)
    s = np.where(allowed, s, -np.inf)
    assert_close(fastattn.attention(q, k, v, **options), softmax(s) @ v)
    assert_close(fastattn.scaled_dot_product_attention(q, k, v, **options), softmax(s) @ v)
    every = {"centers": 0, "half_width": 7}
    assert_close(fastattn.local_attention(q, k, v, **every, **options), softmax(s) @ v)
    indices = fastattn.hard_attention(q, k, v, return_indices=True, **options)[1]
    assert_bits_equal(indices, s.argmax(axis=-1))
    additive = np.where(allowed, np.tanh(q[:, :, None] + k[:, None]).sum(axis=-1), -np.inf)
    out = fastattn.additive_attention(q, k, v, None, **options)
    assert_close(out, softmax(additive) @ v)


i, j = np.arange(5)[:, None], np.arange(7)


@row("sliding window")
def _(rng):
    masked(rng, (i - 2 <= j) & (j <= i + 1), window=(2, 1))


@row("causal")
def _(rng):
    masked(rng, j <= i, is_causal=True)


@row("padding")
def _(rng):
    masked(rng, j < 4, kv_lengths=4)
    masked(rng, j < 4, attn_mask=j < 4)


@pytest.mark.parametrize("name", ROWS)
def test_row(backend, rng, name):
    ROWS[name](rng)
