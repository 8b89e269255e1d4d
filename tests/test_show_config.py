# SPDX-License-Identifier: MIT
# What show_config says, as text and as a dictionary.
# Used by pytest.
# Whether the facts are true of the machine is asked where they come from: backends, threads.
"""A bug report with the output of show_config() tells what ran, and why."""

import platform

import numpy as np
import pytest

import fastattn

FACTS = [
    "version", "backend", "backend_reason", "backends", "threads", "threads_reason", "compiler",
    "asserts", "numpy", "python", "missing",
]  # fmt: skip


def test_the_dictionary_has_the_documented_facts():
    facts = fastattn.show_config(as_dict=True)
    assert list(facts) == FACTS
    assert facts["version"] == fastattn.__version__
    assert facts["backends"] == fastattn.backends()
    assert facts["numpy"] == np.__version__
    assert facts["python"] == platform.python_version()
    assert isinstance(facts["asserts"], bool)
    assert facts["backend_reason"]
    assert facts["threads_reason"]


def test_the_dictionary_follows_the_context(backend):
    outside = fastattn.show_config(as_dict=True)["threads"]
    with fastattn.threads(outside + 3):
        facts = fastattn.show_config(as_dict=True)
    assert facts["backend"] == backend
    assert "context" in facts["backend_reason"]
    assert facts["threads"] == outside + 3
    assert "context" in facts["threads_reason"]
    assert fastattn.show_config(as_dict=True)["threads"] == outside


def test_text_has_a_line_for_each_fact_and_returns_nothing(capsys):
    assert fastattn.show_config() is None
    text = capsys.readouterr().out
    facts = fastattn.show_config(as_dict=True)
    for fact in ("version", "backend", "backend_reason", "threads", "compiler", "numpy", "python"):
        assert str(facts[fact]) in text, fact
    assert all(name in text for name in facts["backends"])


def test_what_is_missing_is_explained():
    for name, why in fastattn.show_config(as_dict=True)["missing"].items():
        assert name not in fastattn.backends()
        assert why


def test_the_compiler_is_named_where_there_is_one():
    facts = fastattn.show_config(as_dict=True)
    if facts["backends"] == ["numpy"]:
        assert (facts["compiler"], facts["asserts"]) == ("none", False)
    else:
        assert facts["compiler"] not in ("", "none")


@pytest.mark.parametrize("value", [True, False])
def test_asking_changes_nothing(value, capsys):
    before = fastattn.get_backend(), fastattn.get_num_threads(), fastattn.backends()
    fastattn.show_config(as_dict=value)
    assert (fastattn.get_backend(), fastattn.get_num_threads(), fastattn.backends()) == before
