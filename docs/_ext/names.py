# SPDX-License-Identifier: MIT
# What `a name` in a docstring is: a link where it is one of the package's, else just a name.
# Used by conf.py as the default role. It documents nothing and imports no more than the package.
"""A role that finds public names wherever they are written, and never misses a parameter's."""

import importlib

from docutils import nodes
from sphinx.addnodes import pending_xref

# Those that come first keep a name that several have.
MODULES = ("fastattn", "fastattn.layers", "fastattn.scores", "fastattn.plotting")


def _targets():
    found = {}
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            if not name.startswith("__") and name != "scores":
                found.setdefault(name, f"{module}.{name}")
                found.setdefault(f"{module}.{name}", f"{module}.{name}")
    return found


def setup(app):
    targets = _targets()

    def role(name, rawtext, text, lineno, inliner, options=None, content=None):
        target = targets.get(text)
        if target is None:
            return [nodes.literal(rawtext, text)], []
        reference = pending_xref(
            rawtext,
            nodes.literal(rawtext, text, classes=["xref", "py"]),
            refdomain="py",
            reftype="obj",
            reftarget=target,
            refdoc=inliner.document.settings.env.docname,
            refexplicit=False,
            refwarn=True,
        )
        return [reference], []

    app.add_role("name", role)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
