"""Sphinx configuration."""

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
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "avalanche_dco"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
