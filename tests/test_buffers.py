# SPDX-License-Identifier: MIT
# Memory and array kinds: read-only, misaligned, byte-swapped, half types, lists, subclasses.
# Used by the suite, on every backend.
# Strides and ranks are in test_layouts.py.
"""Whatever NumPy can hold works or is refused by name; bytes are never misread."""

import numpy as np
import pytest
from cases import KEY_TILE
from check import assert_bits_equal, assert_close, check, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
NAMES = ("query", "key", "value")


def three(rng, dtype=np.float32, **sizes):
    return dict(zip(NAMES, qkv(rng, dtype, **sizes)))


def test_read_only_arrays(backend, rng, dtype):
    """Case 109: no input needs to be writable, and none gets its flag changed."""
    given = three(rng, dtype)
    given |= {
        "attn_mask": rng.random((5, 7)) < 0.7,
        "bias": rng.standard_normal((5, 7)).astype(np.float32),
        "kv_lengths": np.array([7, 4]),
        "q_offset": np.array([2, 0]),
        "alibi_slopes": np.array([0.5, 0.2, 0.1], np.float32),
        "sinks": np.array([0.5, 0.2, 0.1], np.float32),
    }
    wanted = sdpa(**given, is_causal=True)
    for name, array in given.items():
        frozen = array.copy()
        frozen.flags.writeable = False
        assert_bits_equal(sdpa(**(given | {name: frozen}), is_causal=True), wanted, name)
        assert not frozen.flags.writeable
    shared = np.broadcast_to(given["key"][:1, :1], (2, 3, 7, 4))
    check(given["query"], shared, given["value"])


def test_memory_maps_and_raw_bytes(backend, rng, dtype, tmp_path):
    """Cases 109, 110: memmap (aligned or not) and frombuffer."""
    given = three(rng, dtype)
    wanted = sdpa(**given)
    for name, array in given.items():
        raw = np.frombuffer(array.tobytes(), dtype).reshape(array.shape)
        assert_bits_equal(sdpa(**(given | {name: raw})), wanted, name)
        for shift in (0, 1):
            path = tmp_path / f"{name}{shift}"
            path.write_bytes(b"x" * shift + array.tobytes())
            mapped = np.memmap(path, np.uint8, "r", shift, (array.nbytes,))
            mapped = mapped.view(dtype).reshape(array.shape)
            assert_bits_equal(np.asarray(sdpa(**(given | {name: mapped}))), wanted, name)


def misaligned(array, shift=1):
    """A copy whose data lie `shift` bytes past an aligned address."""
    raw = np.empty(array.nbytes + 16, np.uint8)[shift : shift + array.nbytes]
    copy = raw.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def packed_field(array):
    """The same values as a field of a packed record."""
    records = np.zeros(array.shape, np.dtype([("pad", "u1"), ("x", array.dtype)]))
    records["x"] = array
    return records["x"]


@pytest.mark.parametrize("make", [misaligned, packed_field], ids=lambda f: f.__name__)
def test_misaligned_data(backend, rng, dtype, make):
    """Case 110: data that are not aligned to their own item size."""
    given = three(rng, dtype, queries=9, keys=KEY_TILE + 1)
    given |= {
        "bias": rng.standard_normal((9, KEY_TILE + 1)).astype(np.float32),
        "attn_mask": rng.standard_normal((3, 9, KEY_TILE + 1)),
        "kv_lengths": np.array([KEY_TILE, 7]),
        "sinks": np.array([0.5, 0.2, 0.1], np.float32),
    }
    wanted = sdpa(**given)
    for name, array in given.items():
        assert_bits_equal(sdpa(**(given | {name: make(array)})), wanted, name)
    assert_bits_equal(sdpa(**{n: make(a) for n, a in given.items()}), wanted)


def test_float64_at_half_alignment(backend, rng):
    """Case 110: doubles four bytes past their alignment."""
    given = three(rng, np.float64)
    wanted = sdpa(**given)
    assert_bits_equal(sdpa(**{n: misaligned(a, 4) for n, a in given.items()}), wanted)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_byte_swapped_data(backend, rng, kind):
    """Case 112: foreign byte order is converted, operand by operand; the output is native."""
    given = three(rng, kind)
    given |= {"bias": rng.standard_normal((5, 7)), "kv_lengths": np.array([7, 4])}
    wanted = sdpa(**given)
    for name, array in given.items():
        swapped = array.astype(array.dtype.newbyteorder())
        got = sdpa(**(given | {name: swapped}))
        assert got.dtype.isnative
        assert_bits_equal(got, wanted, name)
    swapped = {n: a.astype(a.dtype.newbyteorder()) for n, a in given.items()}
    out = np.full(wanted.shape, np.nan, kind)
    assert sdpa(**swapped, out=out) is out
    assert_bits_equal(out, wanted)


def test_masked_arrays_are_refused(backend, rng):
    """Case 113: their mask would be lost silently."""
    given = three(rng) | {"attn_mask": np.zeros((5, 7), np.float32), "bias": np.zeros((5, 7))}
    for name, array in given.items():
        with pytest.raises(TypeError, match=name):
            sdpa(**(given | {name: np.ma.array(array, mask=array > 0)}))
    with pytest.raises(TypeError, match="out"):
        sdpa(**given, out=np.ma.zeros((2, 3, 5, 6), np.float32))


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_lists_subclasses_and_array_likes(backend, rng):
    """Case 113: anything that np.asarray turns into floats works; the result is a plain array."""
    q, k, v = (x.astype(np.float64) for x in qkv(rng, lead=(), heads=1))
    wanted = sdpa(q, k, v)
    got = sdpa(q.tolist(), k.tolist(), v.tolist())
    assert type(got) is np.ndarray and got.dtype == np.float64
    assert_bits_equal(got, wanted)

    class Sub(np.ndarray):
        pass

    class Like:
        def __init__(self, array):
            self.array = array

        def __array__(self, dtype=None, copy=None):
            return self.array

    got = sdpa(q.view(Sub), Like(k), v.view(Sub))
    assert type(got) is np.ndarray
    assert_bits_equal(got, wanted)
    flat = sdpa(np.asmatrix(q[0]), np.asmatrix(k[0]), np.asmatrix(v[0]))
    assert type(flat) is np.ndarray and flat.shape == (5, 6)
    assert_close(flat, wanted[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["i4", "u2", "?", "c8", "O", "U3", "M8[s]", "V4", "g"])
def test_other_dtypes_are_refused(backend, rng, name, kind):
    """Cases 113, 114, 116: integers, uint16 with half bits, complex, object, strings, records."""
    if kind == "g" and np.dtype("g") == np.dtype("d"):
        kind = "c16"
    given = three(rng)
    wrong = np.zeros(given[name].shape, kind)
    with pytest.raises(TypeError, match=name):
        sdpa(**(given | {name: wrong}))
    with pytest.raises(TypeError):
        sdpa(*(np.zeros(a.shape, kind) for a in given.values()))
    with pytest.raises(TypeError):
        sdpa(**(given | {name: np.zeros(given[name].shape, [("x", "f4")])}))


def test_mixed_dtypes_are_refused(backend, rng, dtype):
    """Case 114: query, key and value share a dtype; the message tells all three."""
    given = three(rng, dtype)
    other = np.float64 if dtype == np.float32 else np.float32
    for name in NAMES:
        with pytest.raises(TypeError, match=r"(?s)^(?=.*query)(?=.*key)(?=.*value)") as caught:
            sdpa(**(given | {name: given[name].astype(other)}))
        assert np.dtype(other).name in str(caught.value) and dtype.name in str(caught.value)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_types_in_any_form(backend, rng, kind):
    """Case 116: C order, Fortran order, steps and read-only memory of half types."""
    if kind == "bfloat16":
        kind = pytest.importorskip("ml_dtypes").bfloat16
    given = three(rng, kind)
    wanted = sdpa(**given)
    assert wanted.dtype == np.dtype(kind)
    for name, array in given.items():
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), kind)
        wide[..., ::2] = array
        frozen = array.copy()
        frozen.flags.writeable = False
        for form in (np.asfortranarray(array), wide[..., ::2], frozen, misaligned(array)):
            assert_close(sdpa(**(given | {name: form})), wanted.astype(np.float64))
    out, lse, weights = sdpa(**given, return_lse=True, return_weights=True)
    assert out.dtype == weights.dtype == np.dtype(kind) and lse.dtype == np.float32
