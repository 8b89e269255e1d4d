# SPDX-License-Identifier: MIT
# What the files that test caches share: a cache for given tokens, and comparisons of all results.
# Used by test_cache*.py.
# The expected values are those of check.py.
"""Caches for tests."""

from __future__ import annotations

from check import assert_close

import fastattn

EVERY = {"return_lse": True, "return_weights": True}


def cache_for(key, value, **options):
    n_batch, heads, _, dim = key.shape
    options = {"value_head_size": value.shape[-1], "dtype": key.dtype} | options
    return fastattn.KVCache(n_batch, heads, dim, **options)


def assert_results(got, want, rows=slice(None), keys=slice(None), context=""):
    """(out, lse, weights) are these rows of the expected results, in all their keys."""
    at = (..., rows, slice(None))
    out, lse, weights = got
    assert_close(out, want.out[at], slack=want.out_slack[at], size=want.size[at], context=context)
    assert_close(lse, want.lse[..., rows], slack=want.lse_slack[..., rows], context=context)
    weights_at = (..., rows, keys)
    assert_close(
        weights, want.weights[weights_at], slack=want.weights_slack[weights_at], context=context
    )
    assert not want.weights[at][..., weights.shape[-1] :].any()
