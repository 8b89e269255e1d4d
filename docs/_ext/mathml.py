# SPDX-License-Identifier: MIT
# Formulas as MathML, made by the converter that docutils brings along.
# Used by conf.py. It numbers no equations and knows what that converter knows of LaTeX.
"""A Sphinx renderer of math that needs no JavaScript, so that pages are whole without a network."""

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.errors import ExtensionError


def _converted(text, as_block):
    try:
        return tex2mathml(text, as_block=as_block)
    except MathError as error:
        raise ExtensionError(f"formula {text!r}: {error}") from error


def visit_inline(self, node):
    self.body.append(_converted(node.astext(), as_block=False))
    raise nodes.SkipNode


def visit_display(self, node):
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(_converted(node.astext(), as_block=True))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_display, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
