"""How Sphinx builds the site; `make site` calls it, from nothing but local files."""

project = "Federated learning under domain shift"
html_title = project
author = "the authors of the course"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",  # brings the script and fonts that draw formulas
    "fedlab_course.site.extension",
]
exclude_patterns = ["**.ipynb_checkpoints"]
default_role = "code"
smartquotes = False
nitpicky = True

add_module_names = False
autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 120

html_theme = "sphinx_book_theme"
html_theme_options = {
    "collapse_navbar": True,  # the pages below the present one, not all pages
    "navbar_persistent": [],  # else the search field is shown twice
    "show_toc_level": 2,
    "use_download_button": False,
}
html_static_path = ["_static"]
html_domain_indices = False
html_css_files = ["course.css"]
html_js_files = ["frames.js"]

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath", "html_image"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the chapters come executed
nb_merge_streams = True
