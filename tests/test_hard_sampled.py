# SPDX-License-Identifier: MIT
# Sampled hard attention: keys drawn with the probabilities of the softmax.
# Used by the suite, on every backend.
# What it shares with the largest score is in test_hard.py and test_hard_arrays.py.
"""hard_attention(sample=generator): one number a row, and the key whose part it falls into."""

import numpy as np
import pytest
from cases import KEY_CHUNK
from check import assert_bits_equal, attend, draw, qkv
from check_scores import ALL_KINDS, KINDS, some_score, wide_scores
from check_selection import SHAPES, check_hard, some_shapes, take_rows

import fastattn

hard = fastattn.hard_attention
F = np.float32


class Prescribed(np.random.Generator):
    """A generator whose uniform numbers are those given, in C order."""

    def __init__(self, numbers):
        super().__init__(np.random.PCG64(0))
        self.numbers = np.asarray(numbers, np.float64)
        self.calls = []

    def random(self, size=None, dtype=np.float64, out=None):
        assert np.dtype(dtype) == np.float64
        self.calls.append(size)
        numbers = self.numbers if self.numbers.ndim == 0 else self.numbers.reshape(size)
        numbers = np.broadcast_to(numbers, size)
        if out is None:
            return numbers.copy()
        out[...] = numbers
        return out


def drawn(*arguments, seed=1, **options):
    sample = np.random.default_rng(seed)
    return hard(*arguments, sample=sample, return_indices=True, **options)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_score_and_option(backend, rng, dtype, kind, sample):
    """The keys drawn are those of the inverse of the cumulative probability."""
    for queries, keys in some_shapes(sample, dtype):
        score, key_dim = some_score(rng, kind, dtype, 8, 5, keys)
        q, _, v = qkv(rng, dtype, heads=2, kv_heads=1, queries=queries, keys=keys, dim=8)
        k = draw(rng, (2, 1, keys, key_dim), dtype)
        options = [
            {},
            {"is_causal": True, "q_offset": "lower_right"},
            {"attn_mask": rng.random((2, 1, queries, keys)) < 0.6, "kv_lengths": [keys // 2, 0]},
            {"attn_mask": draw(rng, (2, 1, keys)), "window": (keys // 2, 2)},
        ]
        if kind in KINDS:
            options.append({"softcap": 0.7, "alibi_slopes": draw(rng, 2, size=0.1)})
        for seed, given in enumerate(sample(options, 2)):
            check_hard(q, k, v, score=score, seed=seed, context=str(list(given)), **given)


def test_many_keys(backend, rng):
    """Many chunks and splits: the sums that lead to a key may be cut anywhere."""
    keys = 2 * KEY_CHUNK + 77
    for queries, heads in ((1, 1), (3, 4), (20, 1)):
        q, k, v = qkv(rng, lead=(1,), heads=heads, kv_heads=1, queries=queries, keys=keys, dim=8)
        check_hard(q, k, v, seed=7)
        check_hard(q, k, v, score="dot", seed=8, is_causal=True, q_offset="lower_right")


def test_ranks_layouts_and_leading_axes(backend, rng, dtype):
    """One number a row in C order of (..., heads, queries), in both layouts."""
    q, v = draw(rng, (2, 1, 4, 3, 8), dtype), draw(rng, (1, 5, 2, 9, 6), dtype)
    k = draw(rng, (2, 5, 2, 9, 8), dtype)
    out, indices = check_hard(q, k, v, seed=3)
    turned = [np.ascontiguousarray(x.swapaxes(-2, -3)) for x in (q, k, v)]
    other, other_indices = check_hard(*turned, layout="bshd", seed=3)
    assert_bits_equal(other_indices, indices)
    assert_bits_equal(other.swapaxes(-2, -3), out)
    check_hard(q[0, 0], k[0, 0], v[0, 0], seed=4)
    check_hard(q[0, 0, 0], k[0, 0, 0], v[0, 0, 0], seed=5)


def test_one_call_of_random(backend, rng):
    """float64 numbers of the shape of the rows, all at once, also for rows that see nothing."""
    q, k, v = qkv(rng, queries=5, keys=9)
    sample = Prescribed(rng.random((2, 3, 5)))
    hard(q, k, v, sample=sample, kv_lengths=[9, 0])
    assert len(sample.calls) == 1 and np.prod(sample.calls[0]) == 30


def test_ends_of_the_interval(backend, rng, dtype):
    """The least and the largest number draw the first and the last key that has a probability."""
    for queries, keys in SHAPES:
        q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
        q = q / np.asarray(4, dtype)
        first, last = 2, keys - 3
        bias = np.full(keys, -1e9)
        bias[first : last + 1] = 0
        hidden = np.arange(keys) >= 1
        for term in ({"attn_mask": bias > -1}, {"bias": bias, "attn_mask": hidden}):
            for number, wanted in ((0.0, first), (np.nextafter(1, 0), last)):
                got = hard(q, k, v, sample=Prescribed(number), return_indices=True, **term)
                assert (got[1] == wanted).all(), (term, number)


def test_hidden_keys_are_never_drawn(backend, rng):
    """Many rows and few visible keys among many, some of the hidden ones huge or NaN."""
    q, k, v = qkv(rng, lead=(1,), heads=2, queries=500, keys=40)
    mask = rng.random((500, 40)) < 0.1
    mask[:, 5] = False
    k[:, :, 5] = np.nan
    for seed in range(3):
        _, indices = check_hard(q, k, v, attn_mask=mask, seed=seed)
    assert (indices[..., ~mask.any(axis=-1)] == -1).all()
    mask[:, 7] = False
    k[:, :, 7] = 1e4
    check_hard(q, k, v, attn_mask=mask, seed=9)


def test_nan_scores(backend, rng, dtype, sample):
    """A row with a NaN score is NaN and has the index of the first; the others draw as before."""
    for queries, keys in some_shapes(sample, dtype):
        q, k, v = qkv(rng, dtype, queries=queries, keys=keys)
        clean, clean_indices = check_hard(q, k, v, seed=2)
        q[0, 0, queries - 1, 2] = np.nan
        k[1, 1, keys // 2 :, 1] = np.nan
        out, indices = check_hard(q, k, v, seed=2)
        assert (indices[1, 1] == keys // 2).all() and indices[0, 0, queries - 1] == 0
        rest = np.ones(indices.shape, bool)
        rest[0, 0, queries - 1], rest[1, 1] = False, False
        assert_bits_equal(out[rest], clean[rest])
        assert_bits_equal(indices[rest], clean_indices[rest])
        check_hard(q, k, v, seed=2, kv_lengths=keys // 2)


def test_chosen_values_pass_untouched(backend, rng, dtype):
    q, k, v = qkv(rng, dtype, queries=40, keys=9)
    v[0, :, 3:5], v[..., 0] = np.nan, -0.0
    out, indices = drawn(q, k, v)
    assert_bits_equal(out, take_rows(v, indices))
    v[1, 2, ~np.isin(np.arange(9), indices[1, 2])] = np.nan
    assert_bits_equal(drawn(q, k, v)[0], out)


@pytest.mark.parametrize("kind", ["scaled", "additive"])
def test_frequencies(backend, rng, kind):
    """Of 20000 draws each key has the share of its weight, within five standard deviations."""
    score, _ = some_score(np.random.default_rng(3), kind, F, 4, 4, 6)
    q, k, v = qkv(np.random.default_rng(4), lead=(1,), heads=1, queries=1, keys=6)
    n = 20000
    q = np.broadcast_to(q, (1, 1, n, 4))
    out, indices = drawn(q, k, v, score=score, seed=12345)
    weights = attend(wide_scores(score, F), q[:, :, :1], k, v).weights.ravel()
    counts = np.bincount(indices.ravel(), minlength=6)
    assert counts.shape == (6,)
    assert (abs(counts - n * weights) < 5 * np.sqrt(n * weights * (1 - weights))).all()
    chi_square = ((counts - n * weights) ** 2 / (n * weights)).sum()
    assert chi_square < 30  # five degrees of freedom: one seed in 70000 is beyond
    # neighbouring rows are independent: pairs of keys are as frequent as the products
    pairs = np.bincount(indices.ravel()[:-1] * 6 + indices.ravel()[1:], minlength=36)
    assert (abs(pairs - n * np.outer(weights, weights).ravel()) < 6 * np.sqrt(n / 4)).all()


def test_bits_of_any_number_of_threads(backend, rng):
    for queries, keys in ((70, 300), (1, 5000)):
        q, k, v = qkv(rng, lead=(2,), heads=3, kv_heads=1, queries=queries, keys=keys)
        with fastattn.threads(1):
            wanted = drawn(q, k, v)
        for n_threads in (2, 3, 8):
            with fastattn.threads(n_threads):
                got = drawn(q, k, v)
            assert_bits_equal(got[0], wanted[0])
            assert_bits_equal(got[1], wanted[1])


def test_generators(backend, rng):
    """Any bit generator; equal seeds draw equal keys, and the next call draws others."""
    q, k, v = qkv(rng, queries=50, keys=9)
    for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64):
        sample, twin = (np.random.Generator(kind(5)) for _ in range(2))
        first = hard(q, k, v, sample=sample, return_indices=True)[1]
        assert_bits_equal(hard(q, k, v, sample=twin, return_indices=True)[1], first)
        assert (hard(q, k, v, sample=sample, return_indices=True)[1] != first).any()


def test_no_generator(backend, rng):
    """A seed, the old RandomState and the module are refused; a wrong call draws nothing."""
    q, k, v = qkv(rng)
    for wrong in (0, True, "yes", np.random, np.random.RandomState(1), np.random.PCG64(1), 0.5):
        with pytest.raises(TypeError, match="^sample"):
            hard(q, k, v, sample=wrong)
    sample = np.random.default_rng(1)
    before = str(sample.bit_generator.state)
    with pytest.raises(ValueError, match="^kv_lengths"):
        hard(q, k, v, sample=sample, kv_lengths=8)
    with pytest.raises(ValueError, match="^out"):
        hard(q, k, v, sample=sample, out=np.zeros((2, 3, 5, 5), F))
    assert str(sample.bit_generator.state) == before


@pytest.mark.parametrize("zero", ["queries", "keys", "heads", "lead"])
def test_sizes_of_zero(backend, rng, zero):
    sizes = {"lead": (2,), "heads": 3, "queries": 5, "keys": 7} | {zero: 0}
    sizes["lead"] = (0,) if zero == "lead" else (2,)
    q, k, v = qkv(rng, **sizes)
    out, indices = check_hard(q, k, v, seed=1)
    assert (indices == -1).all() and not out.any()
