"""Write the public signatures of this version to tests/signatures.txt, which the next versions are
compared with.

    python scripts/signatures.py           # when a version is released
    python scripts/signatures.py --check   # which of them are gone or changed, and not in BREAKING.md

A line is one promise: a function or class with its parameters and defaults, a public method, field
or constant of a class, a command with its options, a key of a TOML file, or a name of an algorithm,
set, model or data set. What ``docs/promise.md`` leaves out is left out: names that begin with an
underscore, ``fedfw.algorithms.contrib``, the laboratory and deployments' messages.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from fedfw import ALGORITHMS, SETS, __all__
from fedfw.algorithms import contrib
from fedfw.cli.deploy import VERBS
from fedfw.cli.main import COMMANDS
from fedfw.config import all_options
from fedfw.config.run_config import owners
from fedfw.data import DATASETS
from fedfw.deployment import Consent
from fedfw.models import MODELS
from fedfw.options import options_of

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "signatures.txt"
BREAKING = ROOT / "BREAKING.md"
CHANGELOG = ROOT / "CHANGELOG.md"
MODULES = ("fedfw.algorithms", "fedfw.estimators", "fedfw.flower", "fedfw.optim", "fedfw.testing")
"""Modules whose ``__all__`` is public beside that of fedfw."""
SECTION = re.compile(r"^## ", re.MULTILINE)


def public_things() -> dict[str, Any]:
    """Return every public name with what it stands for; one that stands in two places once."""
    fedfw = import_module("fedfw")
    found = {f"fedfw.{name}": getattr(fedfw, name) for name in __all__ if name != "__version__"}
    for module_name in MODULES:
        module = import_module(module_name)
        for name in module.__all__:
            thing = getattr(module, name)
            if not any(thing is one for one in found.values()):
                found[f"{module_name}.{name}"] = thing
    return {name: one for name, one in found.items() if not inspect.ismodule(one)}


def parameters(function: Any) -> str:
    """Return names, kinds and defaults of a function's parameters, without annotations."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    shown = []
    for one in signature.parameters.values():
        default = one.default
        if default is not inspect.Parameter.empty and "<" in repr(default):
            default = ...  # a function or a class, whose text differs between processes
        shown.append(one.replace(annotation=inspect.Parameter.empty, default=default))
    return str(inspect.Signature(shown))


def members(name: str, cls: type, public: list[type]) -> Iterator[str]:
    """Yield the public members of a class that no public base class has."""
    bases = [f"{base.__module__}.{base.__name__}" for base in cls.__mro__[1:] if base in public]
    yield f"{name}: subclass of {', '.join(sorted(bases)) or 'none'}"
    annotated = {key for base in cls.__mro__ for key in vars(base).get("__annotations__", {})}
    for key in sorted(annotated | set(dir(cls))):
        holders = [
            base
            for base in cls.__mro__
            if key in vars(base) or key in vars(base).get("__annotations__", {})
        ]
        if key.startswith("_") or not holders:
            continue
        if not holders[0].__module__.startswith("fedfw") or (
            holders[0] in public and holders[0] is not cls
        ):
            continue
        value = inspect.getattr_static(cls, key, None)
        function = getattr(value, "__func__", value)
        if inspect.isfunction(function):
            yield f"{name}.{key}{parameters(function)}"
        else:
            yield f"{name}.{key}"


def python_signatures() -> Iterator[str]:
    """Yield the signatures of what Python code uses."""
    things = public_things()
    public = [one for one in things.values() if inspect.isclass(one)]
    for name, thing in things.items():
        if inspect.isclass(thing):
            yield f"{name}{parameters(thing)}"
            yield from members(name, thing, public)
        else:
            yield f"{name}{parameters(thing)}" if callable(thing) else name


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every command and verb with its parser."""
    for command, (module_name, _) in COMMANDS.items():
        module = import_module(module_name)
        if command == "deploy":
            for verb, (verb_module, _) in VERBS.items():
                parser = argparse.ArgumentParser()
                adder = f"add_{verb.replace('-', '_')}_arguments"
                getattr(import_module(f"fedfw.cli.{verb_module}"), adder)(parser)
                yield f"deploy {verb}", parser
            continue
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        verbs = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
        if verbs:
            yield from ((f"{command} {verb}", one) for verb, one in verbs[0].choices.items())
        else:
            yield command, parser


def of_contrib(name: str) -> bool:
    """Return whether only methods of contrib have an option."""
    found = owners(name)
    return bool(found) and all(
        ALGORITHMS[one].__module__.startswith(contrib.__name__) for one in found
    )


def command_signatures() -> Iterator[str]:
    """Yield the commands with their options, and the keys and names that they take."""
    for command, parser in parsers():
        yield f"fedfw {command}"
        for action in parser._actions:
            written = action.option_strings or [action.dest]
            if isinstance(action, argparse._HelpAction) or of_contrib(
                action.dest.removeprefix("option ")
            ):
                continue
            value = "" if action.nargs == 0 else " VALUE"
            yield from (f"fedfw {command} {one}{value}" for one in written)
    for name, option in all_options().items():
        if not of_contrib(name):
            yield f"key of a run: {option.key}"
    for option in options_of(Consent).values():
        yield f"key of an owner's file: {option.key}"
    yield from (
        f"algorithm: {name}"
        for name, cls in ALGORITHMS.items()
        if not cls.__module__.startswith(contrib.__name__)
    )
    for kind, table in {"set": SETS, "model": MODELS, "data set": DATASETS}.items():
        yield from (f"{kind}: {name}" for name in table)


def signatures() -> list[str]:
    """Return all public signatures, sorted."""
    return sorted({*python_signatures(), *command_signatures()})


def promised() -> list[str]:
    """Return the signatures of the last version, without the head of their file."""
    return FILE.read_text(encoding="utf-8").splitlines()[1:]


def name_of(signature: str) -> str:
    """Return what BREAKING.md must name for a signature that is gone or changed.

    Examples
    --------
    >>> name_of("fedfw.solve(problem, *, tol=0.1)"), name_of("fedfw.FedFW: subclass of none")
    ('fedfw.solve', 'fedfw.FedFW')
    >>> name_of("fedfw run --lr VALUE"), name_of("key of a run: lr")
    ('fedfw run --lr', 'lr')
    """
    if signature.startswith("fedfw "):
        return signature.removesuffix(" VALUE")
    if signature.startswith("fedfw."):
        return re.split(r"[(:]", signature)[0]
    return signature.rpartition(": ")[2]


def unannounced(before: list[str], now: list[str], breaking: str) -> list[str]:
    """Return the signatures that are gone or changed, and that the first section of BREAKING.md
    does not name in backticks.
    """
    newest = SECTION.split(breaking)[1]
    announced = set(re.findall(r"`([^`]+)`", newest))
    return [one for one in before if one not in set(now) and name_of(one) not in announced]


def released_version() -> str:
    """Return the newest version of CHANGELOG.md that is not in development."""
    headings = SECTION.split(CHANGELOG.read_text(encoding="utf-8"))[1:]
    versions = [heading.split()[0] for heading in headings]
    return next(version for version in versions if "dev" not in version)


def main() -> int:
    """Write the file, or check it; return the exit status."""
    parser = argparse.ArgumentParser(description="write or check tests/signatures.txt")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    if parser.parse_args().check:
        found = unannounced(promised(), signatures(), BREAKING.read_text(encoding="utf-8"))
        print("\n".join(found) or "every signature that changed stands in BREAKING.md")
        return int(bool(found))
    head = f"# public signatures of fedfw {released_version()}, written by scripts/signatures.py"
    FILE.write_text("\n".join([head, *signatures()]) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
