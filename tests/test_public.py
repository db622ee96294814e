"""Every public name explains itself: a docstring with all parameters and an example that runs (doctests run apart)."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

import fedfw
from tests.processes import run_python

APART = ("ALGORITHMS", "SETS", "__version__", "contrib", "optim", "testing")
DOCUMENTED = [name for name in fedfw.__all__ if name not in APART]
METHODS = [f"contrib.{name}" for name in fedfw.contrib.__all__]
CHECKS = ["check_algorithm", "check_constraint", "quadratics", "two_quadratics"]


def parameters_of(thing: Any) -> list[str]:
    """The names that somebody who calls it may give."""
    if isinstance(thing, type) and is_dataclass(thing):
        return [f.name for f in fields(thing) if f.init and not f.name.startswith("_")]
    if isinstance(thing, type) and thing.__init__ in (
        object.__init__,
        ValueError.__init__,
        NotImplementedError.__init__,
    ):
        return []
    found = inspect.signature(thing).parameters.values()
    plain = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in found if p.kind not in plain]


@pytest.mark.parametrize("name", [*DOCUMENTED, *METHODS, "optim.LMO", *(f"testing.{check}" for check in CHECKS)])
def test_it_says_what_it_does_with_every_parameter_and_an_example(name: str) -> None:
    thing: Any = fedfw
    for part in name.split("."):
        thing = getattr(thing, part)
    text = inspect.getdoc(thing) or ""
    own = thing.__dict__.get("__doc__") if isinstance(thing, type) else thing.__doc__
    assert own, f"{name} has no docstring of its own"
    assert "See the top" not in text
    assert ">>> " in text, f"{name} has no example"
    missing = [parameter for parameter in parameters_of(thing) if parameter not in text]
    assert not missing, f"the docstring of {name} does not explain {missing}"


def test_names_are_listed_once_and_importable() -> None:
    assert sorted(fedfw.__all__) == sorted(set(fedfw.__all__))
    assert set(fedfw.__all__) <= set(dir(fedfw))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedfw.nothing  # noqa: B018


_ONE_AFTER_ANOTHER = """
import importlib, pkgutil, sys
from importlib.machinery import SourceFileLoader
import fedfw
codes, compiled = {}, SourceFileLoader.get_code
SourceFileLoader.get_code = lambda self, name: codes.get(name) or codes.setdefault(name, compiled(self, name))
found = pkgutil.walk_packages(fedfw.__path__, "fedfw.")
wanted = sorted(one.name for one in found if one.ispkg or one.name.startswith(("fedfw.privacy.", "fedfw.rounds.")))
for name in wanted:
    for loaded in [key for key in sys.modules if key.partition(".")[0] == "fedfw"]:
        del sys.modules[loaded]
    importlib.import_module(name)
print(len(wanted))
"""


def test_every_package_and_the_modules_of_privacy_can_be_imported_first() -> None:
    """A circle of imports shows itself only to who comes in at the wrong place; torch stays loaded meanwhile."""
    assert int(run_python(["-c", _ONE_AFTER_ANOTHER]).stdout) > 30
