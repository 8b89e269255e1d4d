# SPDX-License-Identifier: MIT
# What only float64 shows: who computes it, its last digits, and the ends of its range.
# Used by the suite, on every backend.
# All options in all dtypes are in their own files, through the fixtures `dtype` and `real`.
"""float64 is computed in float64, by the forced backend, over the whole range of its numbers."""

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_close, check, draw, expected, qkv
from check_additive import case, check_additive

import fastattn
from fastattn import scores

sdpa = fastattn.scaled_dot_product_attention
D = np.float64
LARGEST = np.finfo(D).max
COMPILED = [name for name in fastattn.backends() if name != "numpy"]
# (queries, keys): short, prefill over several tiles, decode over several chunks.
SHAPES = [(5, 10), (QUERY_BLOCK + 3, 2 * KEY_TILE + 5), (1, 2 * KEY_CHUNK + 7)]


def every_kind(rng):
    """One call of each kind that reaches a backend, by the name of its entry there."""
    q, k, v = qkv(rng, D)
    given = case(rng, D)
    cu = [0, 2, 5]
    packed = [draw(rng, (5, 2, 4), D) for _ in range(3)]
    cache = fastattn.KVCache(2, 3, 4, dtype=D)
    cache.append(k[..., :4], v[..., :4])
    out, lse = sdpa(q, k, v, return_lse=True)
    return {
        "sdpa": lambda: sdpa(q, k, v),
        "additive": lambda: fastattn.additive_attention(**given),
        "varlen": lambda: fastattn.varlen_attention(*packed, cu, cu),
        "merge": lambda: fastattn.merge_attention([out, out], [lse, lse]),
        "sdpa of a score": lambda: fastattn.attention(q, k, v, score="cosine"),
        "sdpa of a cache": lambda: cache.attend(q),
        "sdpa with a window": lambda: fastattn.local_attention(q, k, v, centers=1, half_width=2),
        "sdpa of one key": lambda: fastattn.hard_attention(q, k, v, score="dot"),
    }


def test_the_forced_backend_computes_it(backend, rng, monkeypatch):
    """A spy at the compiled door, which no call of NumPy's passes, nor any other way round."""
    from fastattn import _backend

    ran = []

    class Spy:
        def __getattr__(self, entry):
            def call(*arguments):
                ran.append((entry, arguments[-2]))
                return getattr(_backend_native, entry)(*arguments)

            return call

    kinds = every_kind(rng)
    _backend_native = _backend._native
    if _backend_native is not None:
        monkeypatch.setattr(_backend, "_native", Spy())
    for kind, call in kinds.items():
        ran.clear()
        call()
        entries = [(kind.split()[0], backend)] if backend != "numpy" else []
        assert [x for x in ran if x[0] not in ("product", "sdpa_plain")] == entries, kind


@pytest.mark.skipif(len(COMPILED) < 2, reason="needs two compiled backends")
def test_compiled_backends_round_differently(rng):
    """Different vector widths sum in different orders, which shows in the last bits."""
    results = []
    given = qkv(rng, D, queries=64, keys=300, dim=64, dv=64)
    for name in COMPILED:
        with fastattn.use_backend(name):
            results.append(sdpa(*given))
    assert len({x.tobytes() for x in results}) == len(results)


@pytest.mark.parametrize("shape", SHAPES)
def test_sixteen_digits(backend, rng, shape):
    """Far closer than 1e-12 on ordinary data."""
    q, k, v = qkv(rng, D, queries=shape[0], keys=shape[1], dim=64, dv=33)
    want = expected(q, k, v)
    out, lse = sdpa(q, k, v, return_lse=True)
    assert abs(out - want.out).max() < 3e-15 and abs(lse - want.lse).max() < 2e-14


@pytest.mark.parametrize("shape", SHAPES)
def test_additive_to_sixteen_digits(backend, rng, shape):
    for hidden in (16, 33, 300) if shape[0] < 9 else (33,):
        given = case(rng, D, lead=(), heads=1, queries=shape[0], keys=shape[1], hidden=hidden)
        given["attention_v"] /= hidden
        out = check_additive(**given)
        given = {name: x.astype(np.longdouble) for name, x in given.items()}
        both = (given["query"] @ given["query_weight"])[..., :, None, :]
        both = both + (given["key"] @ given["key_weight"] + given["hidden_bias"])[..., None, :, :]
        weights = np.exp(np.tanh(both) @ given["attention_v"])
        want = weights @ given["value"] / weights.sum(axis=-1, keepdims=True)
        assert abs(out - want).max() < 1e-14


@pytest.mark.parametrize("shape", SHAPES)
def test_terms_of_other_dtypes_keep_their_digits(backend, rng, shape):
    """Biases, slopes and sinks of float64 are not rounded on their way, others are exact."""
    queries, keys = shape
    q, k, v = qkv(rng, D, queries=queries, keys=keys)
    bias = 1.0 + 1e-12 * draw(rng, (queries, keys), D)
    for options in (
        {"bias": bias, "attn_mask": draw(rng, (keys,), np.float16)},
        {"alibi_slopes": draw(rng, 3, D), "sinks": draw(rng, 3, D)},
        {"bias": bias, "softcap": 2.0, "sinks": draw(rng, 3), "is_causal": True, "q_offset": 3},
    ):
        check(q, k, v, weights=True, **options)


@pytest.mark.parametrize("shape", SHAPES)
def test_terms_at_the_ends_of_the_range(backend, rng, shape):
    """-1.8e308 is a number: alone, twice, beside a slope that overflows; only -inf hides."""
    queries, keys = shape
    q, k, v = qkv(rng, D, lead=(), heads=2, queries=queries, keys=keys)
    some = rng.random((queries, keys)) < 0.5
    low = np.full((queries, keys), -LARGEST)
    mean = np.broadcast_to(v.mean(axis=1, keepdims=True), (2, queries, v.shape[-1]))
    assert_close(sdpa(q, k, v, bias=low, attn_mask=low), mean)
    assert_close(sdpa(q, k, v, bias=-low, attn_mask=-low), mean)
    check(q, k, v, bias=low, attn_mask=-low)
    check(q, k, v, bias=np.where(some, -LARGEST, 0.0), attn_mask=np.where(some, -1e300, 1.0))
    check(q, k, v, attn_mask=np.where(some, -np.inf, -LARGEST))
    lse = sdpa(q, k, v, bias=low, return_lse=True)[1]
    assert (lse <= -0.99 * LARGEST).all() and np.isfinite(lse).all()
    slopes = np.array([1e307, 1.7e308])
    check(q, k, v, alibi_slopes=slopes, q_offset=keys - queries)
    check(q, k, v, alibi_slopes=slopes, bias=low, q_offset=keys - queries)


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_at_the_ends_of_the_range(backend, rng, shape):
    """Scores beyond 1.25e308 leave the range in units of log2."""
    queries, keys = shape
    q, k, v = np.zeros((1, queries, 2)), np.zeros((1, keys, 2)), draw(rng, (1, keys, 3), D)
    q[..., 0], k[..., 0] = 1e154, np.linspace(-1.7e154, -1.5e154, keys)
    out, lse = sdpa(q, k, v, scale=1.0, return_lse=True)
    assert_close(out, np.broadcast_to(v[:, -1:], out.shape))
    assert_close(lse, np.full(lse.shape, -1.5e308))


@pytest.mark.parametrize("size", [5e-324, 1e-310, 1e-160, 1.0, 1e160, LARGEST])
@pytest.mark.parametrize("shape", SHAPES)
def test_cosine_of_any_length(backend, rng, shape, size):
    """Keys whose squares leave the range are computed key by key, to the same digits."""
    q, k, v = qkv(rng, D, lead=(), heads=2, queries=shape[0], keys=shape[1])
    signs = np.sign(k)
    want = fastattn.attention(q, signs, v, score="cosine")
    got = fastattn.attention(q, signs * size, v, score=scores.Cosine())
    assert_close(got, want)


@pytest.mark.parametrize("sigma", [1e-200, 0.3, 7.0, 1e25])
def test_gaussian_of_any_width(backend, rng, sigma):
    q, k, v = qkv(rng, D, queries=QUERY_BLOCK + 1, keys=KEY_TILE + 9)
    centers = rng.uniform(0, KEY_TILE, QUERY_BLOCK + 1)
    options = {"centers": centers, "half_width": 40.25, "return_weights": True}
    plain = fastattn.local_attention(q, k, v, **options)[1]
    faded = fastattn.local_attention(q, k, v, sigma=sigma, **options)[1]
    with np.errstate(over="ignore", under="ignore"):
        away = (np.arange(KEY_TILE + 9) - centers[:, None].astype(np.longdouble)) / sigma
        want = plain * np.exp(-(away**2) / 2)
    # exponents up to 1022, whose last digits count
    assert (abs(faded - want) <= 5e-13 * want + np.finfo(D).tiny).all()


def test_merged_parts_keep_their_digits(backend, rng):
    q, k, v = qkv(rng, D, queries=QUERY_BLOCK + 1, keys=3 * KEY_TILE, dv=33)
    want = expected(q, k, v)
    cuts = [0, 7, KEY_TILE, 3 * KEY_TILE]
    parts = [
        sdpa(q, k[:, :, a:b], v[:, :, a:b], return_lse=True)
        for a, b in zip(cuts, cuts[1:], strict=False)
    ]
    out, lse = fastattn.merge_attention(*zip(*parts, strict=True))
    assert out.dtype == lse.dtype == D
    assert abs(out - want.out).max() < 5e-15 and abs(lse - want.lse).max() < 2e-14
    halves = [lse.astype(np.float16) for _, lse in parts]  # any dtype: as exact as they are
    out, lse = fastattn.merge_attention([out for out, _ in parts], halves)
    assert out.dtype == lse.dtype == D


@pytest.mark.parametrize("score", ["dot", scores.Additive(np.ones(4))])
def test_the_largest_score_by_its_last_digit(backend, score):
    """Scores that float32 cannot tell apart."""
    keys = np.full((1, KEY_CHUNK + 9, 4), 0.5)
    keys[0, KEY_CHUNK, 2] += 1e-12
    keys[0, 3, 1] += 0.5e-12
    values = np.arange(KEY_CHUNK + 9.0)[None, :, None]
    for queries in (1, QUERY_BLOCK + 1):
        q = np.full((1, queries, 4), 0.25)
        _, picked = fastattn.hard_attention(q, keys, values, score=score, return_indices=True)
        assert (picked == KEY_CHUNK).all()


@pytest.mark.parametrize("queries", [1, QUERY_BLOCK])
def test_projections_do_not_depend_on_the_batch(backend, rng, queries):
    """Also of float64: a BLAS would sum in another order for other numbers of rows."""
    if backend == "numpy":
        pytest.skip("promised of the compiled backends")
    given = case(rng, D, lead=(3,), queries=queries, hidden=64, query_dim=70)
    whole = fastattn.additive_attention(**given)
    for entry in range(3):
        alone = given | {name: given[name][entry : entry + 1] for name in ("query", "key", "value")}
        assert fastattn.additive_attention(**alone).tobytes() == whole[entry].tobytes()
