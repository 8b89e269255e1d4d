# SPDX-License-Identifier: MIT
# How the pages of docs/ become a site: `.ci/run docs`, or `sphinx-build -W -n docs OUT`. Used by
# Sphinx. The pages are plain Markdown that GitHub shows as well; the reference is made of
# docstrings. It needs no network, neither to build nor to read, and no compiler.
"""Settings of Sphinx."""

import os
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]
os.environ.setdefault("FASTATTN_BACKEND", "numpy")  # docstrings are the same in all of them

import fastattn  # noqa: E402

project = "fastattn"
author = "the fastattn authors"
copyright = author
release = version = fastattn.__version__

extensions = [
    "myst_parser",  # the pages are Markdown
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",  # the docstrings' sections; it renumbers their references, which Napoleon does not
    "names",  # of _ext: see default_role
    "mathml",  # of _ext: formulas as MathML, which browsers draw without a script from elsewhere
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # the anchors that GitHub gives to headings

autosummary_generate = True
autosummary_imported_members = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the sections say more: shapes, and what the default is
numpydoc_show_class_members = False  # the members themselves are on the page
numpydoc_class_members_toctree = False
default_role = "name"  # of _ext: `name` in a docstring is a link, if there is something to link to
add_function_parentheses = False
toc_object_entries_show_parents = "hide"
nitpicky = True

html_theme = "furo"  # see pyproject.toml
html_title = f"fastattn {release}"
html_static_path = ["_static"]
html_css_files = ["fastattn.css"]
html_copy_source = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#1b5f9e",
        "color-brand-content": "#1b6ca8",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8dbbe0",
        "color-brand-content": "#8dbbe0",
    },
}

warnings.filterwarnings("ignore", category=DeprecationWarning, module="sphinx|docutils|numpydoc")
