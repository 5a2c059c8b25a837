"""Sphinx configuration."""

from docutils import nodes
from sphinx.application import Sphinx

project = "avalanche_dco"
author = "The avalanche_dco authors"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # pages render formulas without a network
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["dollarmath", "colon_fence", "amsmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # docs/run_pages.py runs the notebook, and the tests do
exclude_patterns = ["_build", "report"]  # what `make docs` and `make report` write
html_theme = "furo"
html_title = "avalanche_dco"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["custom.css"]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"


def _keep_spreads_together(app: Sphinx, doctree: nodes.document) -> None:
    """No line break within "0.32 ± 0.01"."""
    for text in list(doctree.findall(nodes.Text)):
        if " ± " in text:
            text.parent.replace(text, nodes.Text(text.replace(" ± ", "\u00a0±\u00a0")))


def setup(app: Sphinx) -> None:
    """Register what is above."""
    app.connect("doctree-read", _keep_spreads_together)
