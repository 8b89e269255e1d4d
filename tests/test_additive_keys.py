# SPDX-License-Identifier: MIT
# Prepared keys of additive attention.
# Used by the suite, on every backend.
# What is computed with them is tested in test_additive*.py; here, that nothing changes.
"""Prepared keys give the bits of the keys they were made of, whatever happens meanwhile."""

import copy
import pickle
import threading

import numpy as np
import pytest
from cases import KEY_CHUNK, KEY_TILE
from check import assert_bits_equal, assert_close, draw
from check_additive import PROJECTED, case, check_additive

import fastattn

additive = fastattn.additive_attention
F = np.float32


def prepare(given, **options):
    """Prepared keys, and the arguments that remain."""
    names = ("key_weight", "hidden_bias")
    keys = fastattn.prepare_additive_keys(
        given["key"], **{n: given[n] for n in names if n in given}, **options
    )
    return {n: x for n, x in given.items() if n not in names} | {"key": keys}


@pytest.mark.parametrize("sizes", [(1, 9), (5, KEY_TILE + 1), (1, KEY_CHUNK + 3)], ids=str)
@pytest.mark.parametrize("n", range(4))
def test_bits_of_plain_keys(backend, rng, dtype, sizes, n):
    """With and without each parameter, and with options."""
    queries, n_keys = sizes
    given = case(
        rng, dtype, heads=4, kv_heads=2, queries=queries, keys=n_keys, without=PROJECTED[:n]
    )
    prepared = prepare(given)
    for options in ({}, {"is_causal": True, "q_offset": "lower_right", "kv_lengths": [n_keys, 3]}):
        options |= {"return_lse": True, "return_weights": True}
        for one, other in zip(additive(**given, **options), additive(**prepared, **options)):
            assert_bits_equal(one, other)
    check_additive(**given, keys=prepared["key"])


def test_layouts_and_ranks(backend, rng):
    given = case(rng, lead=(2, 3), heads=4, kv_heads=2)
    turned = given | {n: given[n].swapaxes(-2, -3) for n in ("query", "key", "value")}
    keys = prepare(turned, layout="bshd")
    assert keys["key"].shape == (2, 3, 7, 2, 11) and keys["key"].layout == "bshd"
    out = additive(**keys, layout="bshd")
    assert_bits_equal(out, additive(**turned, layout="bshd"))
    assert_bits_equal(out.swapaxes(-2, -3), additive(**prepare(given)))
    flat = given | {n: given[n][0, 0] for n in ("query", "key", "value")}
    assert_bits_equal(additive(**prepare(flat)), additive(**flat))
    for layout in ("bhsd", "bshd"):
        plain = given | {n: given[n][0, 0, 0] for n in ("query", "key", "value")}
        keys = prepare(plain, layout=layout)
        assert keys["key"].shape == (7, 11)
        assert_bits_equal(additive(**keys), additive(**plain))
        assert_bits_equal(additive(**keys, layout="bshd"), additive(**plain))


def test_keys_broadcast(backend, rng, dtype):
    """One set of keys for a whole batch, as for beams; values have their own axes."""
    given = case(rng, dtype, lead=(4,))
    given |= {"key": given["key"][:1], "value": given["value"][:1]}
    assert_bits_equal(additive(**prepare(given)), additive(**given))
    wide = given | {"key": np.broadcast_to(given["key"], (4, 3, 7, 8))}
    assert_bits_equal(additive(**prepare(wide)), additive(**given))
    given["value"] = draw(rng, (4, 3, 7, 6), dtype)
    assert_bits_equal(additive(**prepare(given)), additive(**given))


@pytest.mark.parametrize("without", [(), PROJECTED, PROJECTED[:2]], ids=str)
def test_they_own_their_memory(backend, rng, without):
    """What becomes of the arrays they were made of does not matter."""
    given = case(rng, without=without)
    wanted = additive(**given)
    prepared = prepare(given)
    for name in ("key", *PROJECTED):
        if name in given and name != "query_weight":
            given[name][...] = np.nan
    assert_bits_equal(additive(**prepared), wanted)
    assert_bits_equal(additive(**prepared), wanted)


def test_what_they_tell(dtype):
    keys = fastattn.prepare_additive_keys(np.zeros((2, 3, 7, 5), dtype), key_weight=np.ones((5, 4)))
    assert isinstance(keys, fastattn.AdditiveKeys)
    assert (keys.shape, keys.dtype, keys.layout) == ((2, 3, 7, 4), dtype, "bhsd")
    assert repr(keys) == f"AdditiveKeys(shape=(2, 3, 7, 4), dtype={dtype}, layout='bhsd')"
    assert not keys._projected.flags.writeable and keys._projected.base is None
    for name in ("shape", "dtype", "layout", "other"):
        with pytest.raises(AttributeError):
            setattr(keys, name, None)


def test_copies(backend, rng, dtype):
    """They can be copied and pickled."""
    given = case(rng, dtype)
    wanted = additive(**given)
    prepared = prepare(given)
    for keys in (copy.copy(prepared["key"]), pickle.loads(pickle.dumps(prepared["key"]))):
        assert repr(keys) == repr(prepared["key"])
        assert_bits_equal(additive(**prepared | {"key": keys}), wanted)


def test_many_threads(backend, rng):
    """All at once on fresh keys, with a query each."""
    given = case(rng, lead=(), keys=KEY_TILE + 3, queries=2)
    queries = [draw(rng, given["query"].shape) for _ in range(8)]
    wanted = [additive(**given | {"query": query}) for query in queries]
    prepared = prepare(given)
    got, start = [None] * 8, threading.Barrier(8)

    def work(n):
        with fastattn.use_backend(backend):
            start.wait(60)
            got[n] = [additive(**prepared | {"query": queries[n]}) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results, want in zip(got, wanted):
        for one in results:
            assert_bits_equal(one, want)


def test_backends_share_them(rng):
    """Keys prepared under one backend serve every other; its own bits are those of the key."""
    given = case(rng)
    prepared = prepare(given)
    assert_bits_equal(additive(**prepared), additive(**given))
    for name in [*fastattn.backends(), *fastattn.backends()]:
        with fastattn.use_backend(name):
            assert_close(additive(**prepared), additive(**given).astype(np.float64))


WRONG = [
    ({"key": np.zeros(5, F)}, ValueError, "key"),
    ({"key": np.zeros((7, 5), int)}, TypeError, "key"),
    ({"key": None}, TypeError, "key"),
    ({"key": np.ma.zeros((7, 5), F)}, TypeError, "key"),
    ({"key_weight": np.zeros((6, 4), F)}, ValueError, "key_weight"),
    ({"key_weight": np.zeros((5, 4, 1), F)}, ValueError, "key_weight"),
    ({"key_weight": np.zeros(5, F)}, ValueError, "key_weight"),
    ({"key_weight": np.zeros((5, 4), int)}, TypeError, "key_weight"),
    ({"hidden_bias": np.zeros(5, F)}, ValueError, "hidden_bias"),
    ({"hidden_bias": np.zeros((1, 4), F)}, ValueError, "hidden_bias"),
    ({"hidden_bias": np.zeros(4, complex)}, TypeError, "hidden_bias"),
    ({"layout": "sbhd"}, ValueError, "layout"),
    ({"layout": None}, TypeError, "layout"),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: f"{w[2]}-{w[1].__name__}")
def test_wrong_arguments(wrong):
    change, error, name = wrong
    good = {"key": np.zeros((2, 3, 7, 5), F), "key_weight": np.zeros((5, 4), F)}
    with pytest.raises(error, match=f"^{name}:"):
        fastattn.prepare_additive_keys(**good | change)


def test_wrong_use(backend, rng):
    """Each message names the argument."""
    given = case(rng)
    prepared = prepare(given)
    wrong = [
        ({"key_weight": given["key_weight"]}, ValueError, "key_weight"),
        ({"hidden_bias": given["hidden_bias"]}, ValueError, "hidden_bias"),
        ({"layout": "bshd"}, ValueError, "key|value"),
        ({"attention_v": np.ones(12)}, ValueError, "query_weight|key"),
        ({"value": given["value"][:, :, :6]}, ValueError, "value"),
        ({"value": given["value"].astype(np.float64)}, TypeError, "query, key, value"),
        ({"query": given["query"][0]}, ValueError, "key"),
        ({"query": given["query"].astype(np.float16)}, TypeError, "query, key, value"),
    ]
    for change, error, name in wrong:
        with pytest.raises(error, match=f"^({name}):"):
            additive(**prepared | change)
    square = case(rng, heads=5, queries=5, keys=5)
    with pytest.raises(ValueError, match="^key: .*'bshd'.*'bhsd'"):
        additive(**prepare(square), layout="bshd")
    with pytest.raises(TypeError, match="^key:"):
        fastattn.scaled_dot_product_attention(given["query"], prepared["key"], given["value"])
