# SPDX-License-Identifier: MIT
"""What each option costs: one shape, one option at a time, best backend and NumPy.

Used through ``pytest bench``.  It checks no values: what an option must give is the business of the
test suite.
"""

from __future__ import annotations

import pytest

import fastattn

from .workloads import OPTION_SHAPE, OPTIONS


@pytest.mark.benchmark(min_rounds=3, max_time=0.5)
@pytest.mark.parametrize("option", OPTIONS)
def test_option(benchmark, rng, option, backend):
    benchmark.group = f"{OPTION_SHAPE.title} on {backend}"
    inputs = OPTION_SHAPE.make(rng)
    options = OPTIONS[option](rng, OPTION_SHAPE)
    benchmark(fastattn.scaled_dot_product_attention, **inputs, **options)
