# SPDX-License-Identifier: MIT
# The sizes at which tiles, blocks and chunks end, and the seed of the run.
# Used by the test files for their parameters.
# It decides nothing about results; it only asks the planner where its edges are.
"""Edge sizes: T - 1, T, T + 1 for every tile size T that the planner uses."""

from __future__ import annotations

import os
import random

SEED = int(os.environ.get("FASTATTN_TEST_SEED") or random.SystemRandom().randrange(2**31))
os.environ["FASTATTN_TEST_SEED"] = str(SEED)  # pytest-xdist's workers must agree on the tests
EXHAUSTIVE = os.environ.get("FASTATTN_TEST_EXHAUSTIVE", "") not in ("", "0")


def _tiles():
    """(rows per block, keys per tile, keys per split) of prefill, (tile, chunk) of decode."""
    try:
        from fastattn import _native
    except ImportError:
        return (48, 128, 4096), (32, 512)
    prefill = _native.plan(1, 2, 2, 1024, 1024, 64, 64)
    decode = _native.plan(1, 8, 2, 1, 4096, 64, 64)
    return (
        (prefill["row_block"], prefill["key_tile"], prefill["key_chunk"]),
        (decode["key_tile"], decode["key_chunk"]),
    )


(QUERY_BLOCK, KEY_TILE, KEY_SPLIT), (DECODE_TILE, KEY_CHUNK) = _tiles()


def around(*tiles):
    """The sizes just below, at and above each tile size."""
    return sorted({t + d for t in tiles for d in (-1, 0, 1) if t + d > 0})


VECTOR_EDGES = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33]
ALL_SIZES = sorted({*VECTOR_EDGES, 63, 64, 65, 127, 128, 129, *around(KEY_TILE), 2 * KEY_TILE + 1})
QUERY_EDGES = sorted({1, 2, 3, 5, 7, *around(QUERY_BLOCK), 2 * QUERY_BLOCK + 1})
KEY_EDGES = sorted({1, 2, 7, 9, 33, *around(KEY_TILE), 2 * KEY_TILE - 1, 2 * KEY_TILE + 1})
CHUNK_EDGES = sorted({*around(DECODE_TILE, KEY_CHUNK), 2 * DECODE_TILE + 1, 2 * KEY_CHUNK + 1})
SPLIT_EDGES = sorted({*around(KEY_SPLIT), 2 * KEY_SPLIT + 1})
HEAD_SIZES = [*range(1, 41), 63, 64, 65, 80, 88, 96, 112, 127, 128, 129, 160, 192, 255, 256, 257]
