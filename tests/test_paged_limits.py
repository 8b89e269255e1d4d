# SPDX-License-Identifier: MIT
# PagedKVCache: empty sizes, dtypes by name, the edges of arrays.
# Used by the suite, on every backend where something is computed; forbidden pages need Linux.
# Scarce memory is in test_paged_memory.py, wrong calls in test_paged_errors.py.
"""What is at the edge of what a paged cache can be."""

import itertools

import numpy as np
import pytest
from check import draw
from check_int8 import as_dtype, as_dtypes
from check_paged import Tracked
from test_memory import LINUX

import fastattn

F = np.float32
COMPILED = [name for name in fastattn.backends() if name != "numpy"]
THREE = [("float32",) * 3, ("float16", "float16", "float32"), ("int8", "float32", "float32")]


@pytest.mark.parametrize("names", THREE, ids="-".join)
def test_zero_sizes(backend, rng, names):
    """Cases 74 and 75: any size may be 0."""
    kind = as_dtypes(names)
    names = ("pages", "heads", "size", "value", "tokens", "queries")
    for sizes in itertools.product((0, 2), repeat=6):
        n = dict(zip(names, sizes))
        shape = {"kv_heads": n["heads"], "dim": n["size"], "dv": n["value"]}
        tracked = Tracked(kind, n["pages"], 1, **shape)
        ids = [tracked.add(), tracked.add()]
        if n["pages"]:
            tracked.append(rng, ids[:1], [n["tokens"]])
        tracked.append(rng, ids, [0, 0])
        tracked.check(rng, ids, [n["queries"], 1], scale=1.0, context=str(n))
        tracked.check_state()
        if n["size"] == 0:
            with pytest.raises(ValueError, match="^(query|scale)"):
                tracked.cache.attend(ids, tracked.queries(rng, 2))
        if n["heads"] == 0:
            with pytest.raises(ValueError, match="^query"):
                tracked.cache.attend(ids, draw(rng, (2, 2, n["size"]), kind[2]), scale=1.0)
        tracked.truncate(ids, [0, 0])
        tracked.check(rng, ids, [1, n["queries"]], scale=1.0)


@pytest.mark.parametrize("name", [
    "float32", "float64", "float16", "f2", ">f4", F, float, "int8", "i1", np.int8,
])  # fmt: skip
def test_dtypes_by_name(name):
    cache = fastattn.PagedKVCache(1, 1, 1, 2, dtype=name)
    assert cache.dtype is np.dtype(np.dtype(name).type) and cache.dtype.isnative


def test_bfloat16_by_name():
    kind = as_dtype("bfloat16")
    for name in ("bfloat16", kind):
        assert fastattn.PagedKVCache(1, 1, 1, 2, dtype=name).dtype == kind


FENCED = """
import numpy as np
import fastattn
from cases import KEY_CHUNK, KEY_TILE, QUERY_BLOCK
from check import assert_bits_equal
from check_varlen import cumulated
from guard import after_fence, before_fence

rng = np.random.default_rng(3)
mixes = [
    [(3, 5), (0, 2), (2, 1)],
    [(1, KEY_CHUNK + 1), (3, 9), (1, 3)],
    [(QUERY_BLOCK + 1, KEY_TILE + 1), (2, 2), (QUERY_BLOCK, 7)],
]
for dtype, given in (("f4", "f4"), ("f8", "f8"), ("f2", "f2"), ("i1", "f4"), ("i1", "f2")):
    for page_size, pairs in zip((1, 17, 64), mixes):
        def results(fence):
            n = sum(keys for _, keys in pairs)
            cache = fastattn.PagedKVCache(n + 3, page_size, 2, 5, value_head_size=3, dtype=dtype)
            ids = fence(np.array([cache.add_sequence() for _ in pairs]))
            cu = [fence(cumulated(n)) for n in zip(*pairs)]
            cache.append(ids, fence(keys), fence(values), cu_seqlens=cu[1])
            out = fence(np.full((len(query), 4, 3), np.nan, given))
            return cache.attend(ids, fence(query), cu_seqlens_q=cu[0], out=out, return_lse=True,
                                alibi_slopes=fence(slopes), sinks=fence(sinks),
                                q_offset=fence(np.array([k - q for q, k in pairs])))

        rows, n = (sum(x) for x in zip(*pairs))
        shapes = ((rows, 4, 5), (n, 2, 5), (n, 2, 3))
        query, keys, values = (rng.standard_normal(shape).astype(given) for shape in shapes)
        slopes, sinks = rng.random((len(pairs), 4)).astype("f4"), rng.random(4).astype("f4")
        wanted = results(np.array)
        for fence in (before_fence, after_fence):
            for one, other in zip(results(fence), wanted):
                assert_bits_equal(one, other, f"{dtype} {pairs} {fence}")
print("done")
"""


@LINUX
@pytest.mark.parametrize("name", COMPILED)
def test_forbidden_pages(name, run_python):
    """Cases 58, 79: around every argument of append and attend."""
    done = run_python(FENCED, FASTATTN_BACKEND=name)
    assert done.stdout.strip() == "done", done
