# SPDX-License-Identifier: MIT
"""Additive attention: the named workloads, prepared keys, the kernel's three forms, each option.

Used through ``pytest bench``.  How it compares with the machine's limits and with other systems is
measured in turns: ``python -m fastattn bench``, ``python -m bench.peers``.
"""

from __future__ import annotations

import dataclasses

import pytest

import fastattn
from fastattn._cli import measure

from .workloads import (
    ADDITIVE_FORMS,
    ADDITIVE_OPTIONS,
    ADDITIVE_SHAPE,
    WORKLOADS,
    by_name,
)

pytestmark = pytest.mark.benchmark(min_rounds=3, max_time=0.5)


@pytest.mark.parametrize(
    "workload", [w for w in WORKLOADS if w.is_additive], ids=lambda workload: workload.name
)
def test_workload(benchmark, record, rng, workload, backend):
    benchmark.group = workload.title
    inputs = workload.make(rng)
    out = benchmark(measure.caller(workload, inputs))
    record(workload, inputs, out)


@pytest.mark.parametrize("keys", ["prepared", "as they are"])
def test_prepared_keys(benchmark, record, rng, keys, backend):
    step = dataclasses.replace(by_name("additive-step"), has_prepared_keys=keys == "prepared")
    benchmark.group = f"a decoding step on {backend}"
    inputs = step.make(rng)
    call = measure.caller(step, inputs)
    call()  # the first one packs prepared keys
    record(step, inputs, benchmark(call))


@pytest.mark.parametrize("form", ADDITIVE_FORMS)
def test_form(benchmark, record, rng, form, backend):
    benchmark.group = f"forms of tanh, {ADDITIVE_SHAPE.title} on {backend}"
    inputs = ADDITIVE_SHAPE.make(rng)
    inputs["key"][..., 0] = ADDITIVE_FORMS[form]
    out = benchmark(measure.caller(ADDITIVE_SHAPE, inputs))
    record(ADDITIVE_SHAPE, inputs, out)


@pytest.mark.parametrize("option", ADDITIVE_OPTIONS)
def test_option(benchmark, rng, option, backend):
    benchmark.group = f"{ADDITIVE_SHAPE.title} on {backend}"
    inputs = ADDITIVE_SHAPE.make(rng)
    options = ADDITIVE_OPTIONS[option](rng, ADDITIVE_SHAPE)
    benchmark(fastattn.additive_attention, **inputs, **options)
