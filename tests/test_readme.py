# SPDX-License-Identifier: MIT
# The README's examples and the docstrings' run as they stand.
# Used by the suite wherever the README is at hand (not beside an installed wheel alone).
# Their results are those of functions that are tested elsewhere.
"""What users copy works."""

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


@pytest.mark.skipif(not README.is_file(), reason="the README is not beside the tests")
def test_readme(backend):
    blocks = re.findall(
        r"^```python\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) >= 4
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["context"].shape == (16, 1, 1, 256)
    np.testing.assert_allclose(names["alignment"].sum(axis=-1), 1, rtol=1e-5)
    assert names["cache"].lengths.tolist() == [353, 353]
    hidden = np.arange(50) >= names["lengths"][:, None]
    assert not names["alignment"][:, 0, 0][hidden].any()


DOCUMENTED = ["functional", "additive", "additive_keys", "cache", "scores"]
DOCUMENTED += [
    f"layers.{name}" for name in ("bahdanau", "luong", "multi_head", "transformer_encoder")
]


@pytest.mark.parametrize("module", DOCUMENTED)
def test_docstrings(backend, module):
    failed, attempted = doctest.testmod(importlib.import_module(f"fastattn.{module}"))
    assert attempted and not failed
