"""How Sphinx makes the documentation site from these pages, the examples and the docstrings;
scripts/docs.sh runs it.

The reference is generated: every name in `fedfw.__all__` has a page in docs/api/, sorted by the
module it lives in. Nothing is downloaded, so the site can be built and read without a network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx_gallery.sorting import ExplicitOrder

import fedfw
from fedfw.data import DATASETS, MissingDataError

DOCS = Path(__file__).parent

project = "fedfw"
author = "the authors of fedfw"
copyright = f"{author}, Apache-2.0"
release = version = fedfw.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "*/cache", "performance/gpu.md"]
templates_path = ["_templates"]

html_theme = "pydata_sphinx_theme"
html_title = "fedfw"
html_theme_options = {
    "show_toc_level": 2,
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
}
html_show_sourcelink = False

myst_enable_extensions = ["colon_fence", "dollarmath"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
myst_heading_anchors = 3

autodoc_typehints = "none"  # the docstrings say what a parameter is
autosummary_generate = True
default_role = "autolink"  # `fedfw.tune` in a docstring becomes a link
numpydoc_show_class_members = False  # the template lists what a class has of its own

EXAMPLES = (
    *("first_run", "sets_and_atoms", "certificate", "compressed_exchange", "network"),
    *("own_data", "own_model_and_set", "own_algorithm", "own_callback", "hospitals", "regression"),
)
"""The order of the gallery; scripts that are not named here come last."""


def scripts_to_run() -> str:
    """A pattern of the examples that are run: all of them where the hospitals' data are at hand,
    else all others.
    """
    try:
        DATASETS["tcga-brca"].find(None)
    except MissingDataError:
        return r"^(?!.*hospitals).*\.py$"
    return r"\.py$"


sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": scripts_to_run(),
    "abort_on_example_error": True,
    "within_subsection_order": ExplicitOrder([*(f"{name}.py" for name in EXAMPLES), "*"]),
    "write_computation_times": False,  # that page would load scripts from elsewhere
    "show_memory": False,
    "show_signature": False,
    "reset_modules": ("matplotlib",),
}

TITLES = {
    "fedfw.problems": "Problems",
    "fedfw.presets": "Problems",
    "fedfw.data": "Data",
    "fedfw.simulation": "Running",
    "fedfw.solving": "The optimum",
    "fedfw.tuning": "Tuning",
    "fedfw.algorithms": "Algorithms",
    "fedfw.algorithms.registry": "Algorithms",
    "fedfw.schedules": "Algorithms",
    "fedfw.sets": "Constraint sets",
    "fedfw.atoms": "Atoms",
    "fedfw.lipschitz": "Certified networks",
    "fedfw.algorithms.contrib": "Methods that few people run",
    "fedfw.estimators": "Regression across clients",
    "fedfw.privacy": "Privacy",
    "fedfw.optim": "Central training",
    "fedfw.testing": "Testing sets and algorithms of your own",
    "fedfw.errors": "Errors",
}
"""What stands above the names of a module in the reference, in this order; other modules follow by
their own names.
"""


def public_names() -> dict[str, list[str]]:
    """Every public name with its full path, by the title that it stands under."""
    found: dict[str, list[str]] = {title: [] for title in TITLES.values()}
    for name in fedfw.__all__:
        if name.startswith("__"):
            continue
        thing = getattr(fedfw, name)
        if name in fedfw._MODULES:
            home = fedfw._MODULES[name]
            names = [f"{home}.{one}" for one in thing.__all__]
        else:
            home = fedfw._HOME_OF[name]
            names = [f"fedfw.{name}"]
        found.setdefault(TITLES.get(home, home), []).extend(names)
    return {title: names for title, names in found.items() if names}


def write_reference() -> None:
    """Write docs/api/index.rst, from which autosummary makes a page for each name."""
    text = "API reference\n=============\n\nEvery public name. ``import fedfw`` is all that they need.\n"
    for title, names in public_names().items():
        listed = "".join(f"   {name}\n" for name in names)
        text += f"\n{title}\n{'-' * len(title)}\n\n.. autosummary::\n   :toctree:\n   :nosignatures:\n\n{listed}"
    page = DOCS / "api" / "index.rst"
    page.parent.mkdir(exist_ok=True)
    for old in page.parent.glob("fedfw.*.rst"):  # of names that are no longer public
        if f"   {old.stem}\n" not in text:
            old.unlink()
    if not page.exists() or page.read_text() != text:
        page.write_text(text)


def list_names(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Let the tables `ALGORITHMS` and `SETS`, whose docstrings Sphinx cannot find, say which names
    they have.
    """
    if what == "data" and isinstance(thing, dict):
        lines[:] = ["All of them by name: " + ", ".join(f"``{key}``" for key in thing) + "."]


def is_left_out(
    app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object
) -> bool | None:
    """Return True for the methods that scikit-learn adds for metadata routing: their docstrings
    refer to pages of scikit-learn.
    """
    routing = name.startswith("set_") and name.endswith("_request")
    return True if routing or name == "get_metadata_routing" else None


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", list_names)
    app.connect("autodoc-skip-member", is_left_out)


write_reference()
