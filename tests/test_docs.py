# SPDX-License-Identifier: MIT
# The guide's examples run as they stand, and the reference lists every public name and no other.
# Used by the suite wherever docs/ is at hand (not beside an installed wheel alone).
# That the site builds is `.ci/run docs`; results are those of functions that are tested elsewhere.
"""What the documentation says exists and works."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
if not (DOCS / "index.md").is_file():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)

BLOCK = re.compile(r"^(?:<!-- needs (\w+) -->\n)?```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
ELSEWHERE = {"__version__", "scores"}  # of the package's names: no objects with a page of their own


@pytest.mark.parametrize("page", ["index.md", "which-attention.md", "pytorch.md", "onnx.md"])
def test_examples_of_pages_run(backend, page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = BLOCK.findall((DOCS / page).read_text("utf-8"))
    assert blocks
    for needed, block in blocks:
        if needed:
            pytest.importorskip(needed)
        exec(compile(block, page, "exec"), names)


def listed():
    """The names of the reference with their modules, of all its autosummary tables."""
    found = set()
    for page in (DOCS / "api").glob("*.md"):
        module = None
        for line in page.read_text("utf-8").splitlines():
            if line.startswith(".. currentmodule:: "):
                module = line.split()[-1]
            elif module and re.fullmatch(r"   \w+", line):
                found.add((module, line.strip()))
    return found


@pytest.mark.parametrize(
    "module", ["fastattn", "fastattn.scores", "fastattn.layers", "fastattn.plotting"]
)
def test_the_reference_lists_every_public_name(module):
    public = set(importlib.import_module(module).__all__) - ELSEWHERE
    if module == "fastattn.scores":
        public.remove("attention")  # it is the package's
    assert {name for where, name in listed() if where == module} == public


def test_pictures_of_pages_are_there():
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).is_file(), (page.name, target)
