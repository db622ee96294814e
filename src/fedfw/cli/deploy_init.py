"""``fedfw deploy init``: a complete Flower app, to be changed."""

import argparse
import shlex
import shutil
import textwrap
from pathlib import Path

import tomlkit

import fedfw.deployment.flower
from fedfw.cli.arguments import adds, argument
from fedfw.config import app_table
from fedfw.deployment.consent import Consent
from fedfw.deployment.reveals import LEAK_TABLE
from fedfw.deployment.settings import APP_DEFAULTS

_OVERRIDE = """\
# An empty text stands for an option that is not given. A run can override everything below:
#   flwr run @fedfw/federation==1.0.0 NAME --run-config 'rounds=50 constraint="l1:5"'
"""
_OF_ESTIMATORS = "estimator"
"""The folder of the template whose files take the place of others in an estimator's app."""


add_init_arguments = adds(
    argument("folder", type=Path, help="a new folder"),
    argument(
        "--estimator",
        choices=("linear", "logistic", "poisson", "cox"),
        help="an app that fits a regression of fedfw.estimators to the owners' tables",
    ),
)


def init(options: argparse.Namespace) -> int:
    """Write a complete Flower app into a new folder. Its pyproject.toml lists every option with its
    default.
    """
    folder: Path = options.folder
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty")
    copy_app(folder, options.estimator)
    if options.estimator is not None:
        print(_after_estimator(folder))
        return 0
    usual = Consent()
    print(
        f"""\
{folder} is a complete Flower app. Next:
- try it on this machine:         fedfw deploy demo --app {shlex.quote(str(folder))}
- state your model, data and set: {folder / "federation" / "task.py"}
- choose a set that owners allow:  what one message reveals of a client with a single image:
{textwrap.indent(LEAK_TABLE, "    ")}
  By default owners allow {", ".join(usual.sets)}, and
  gradients of {usual.least_samples} samples or more; the app's own set,
  {APP_DEFAULTS["constraint"]}, has to be allowed by name, as 'fedfw deploy demo' does it.
- read how it gets to its hosts:  {folder / "README.md"}"""
    )
    return 0


def _after_estimator(folder: Path) -> str:
    """Return what to do with an estimator's app."""
    return f"""\
{folder} is a complete Flower app that fits a regression. Next:
- name the columns, the set and the number of owners:  {folder / "pyproject.toml"}
- read how owners name their own files and columns:    {folder / "README.md"}
- try it on this machine, with a table for each owner: fedfw deploy demo --app \
{shlex.quote(str(folder))}"""


def copy_app(folder: Path, estimator: str | None = None) -> None:
    """Copy the app that comes with fedfw to a folder, with the table of all options in its
    pyproject.toml; with an estimator, its task and its options.
    """
    template = Path(fedfw.deployment.flower.__file__).parent / "template"
    left_out = shutil.ignore_patterns("__pycache__", _OF_ESTIMATORS)
    shutil.copytree(template, folder, ignore=left_out, dirs_exist_ok=True)
    settings = app_table()
    if estimator is not None:
        from fedfw.config.estimators import estimator_table  # which imports scikit-learn

        settings = estimator_table(estimator)
        shutil.copy(template / _OF_ESTIMATORS / "task.py", folder / "federation" / "task.py")
        shutil.copy(template / _OF_ESTIMATORS / "README.md", folder / "README.md")
    table = tomlkit.dumps({"tool": {"flwr": {"app": {"config": settings}}}})
    with open(folder / "pyproject.toml", "a") as project:
        project.write(f"\n{_OVERRIDE}{table}")
