"""``fedfw deploy``: a Flower app, a whole federation on this machine, and what keeps strangers out
of a real one.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from fedfw.errors import missing_extra

VERBS = {
    "init": ("deploy_init", "write a complete Flower app, to put your model, data and set into"),
    "init-node": (
        "deploy_owner",
        "write the file by which a data's owner says what a node may do with the data",
    ),
    "check-data": (
        "deploy_owner",
        "find out whether an owner's data fit an app, so that they may join private runs",
    ),
    "reopen": (
        "deploy_owner",
        "look why a private client takes no orders, and let it take orders again",
    ),
    "demo": (
        "deploy_demo",
        "run a SuperLink and SuperNodes on this machine, with TLS and keys, once",
    ),
    "sign": ("deploy_operator", "pack an app and sign it, for nodes that run nothing unsigned"),
    "hub": ("deploy_operator", "hand signed bundles to the SuperLink on this machine"),
    "proxy": (
        "deploy_operator",
        "print the configuration of nginx or HAProxy, by which SuperNodes alone reach the "
        "SuperLink",
    ),
    "node": ("deploy_node", "run a SuperNode that is closed to strangers, with errors of one line"),
    "executor": (
        "deploy_node",
        "run the apps of a SuperNode in processes that have torch imported already",
    ),
    "check": (
        "deploy_operator",
        "look for ways by which an outsider could get in or a strange bundle could run",
    ),
}
"""By their names: the module that has the functions of a verb, and its line of help."""
WITH_FLOWER = ("flwr", "trustme", "cryptography", "httpx", "yaml")
"""Packages that come with the extra ``fedfw[flower]``."""


def add_arguments(parser: argparse.ArgumentParser, typed: str = "") -> None:
    """Add the verbs; the one that was typed has its arguments, and its module alone is imported:
    the hub needs no torch.

    A verb is a function, whose docstring is its description, and another one that adds its
    arguments.
    """
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (module_name, help_) in VERBS.items():
        verb = verbs.add_parser(name, help=help_)
        if name == typed:
            with _needing_flower():
                module = import_module(f"fedfw.cli.{module_name}")
            called = name.replace("-", "_")
            do = getattr(module, called)
            verb.description = do.__doc__
            verb.set_defaults(parser=verb, do=_needing_flower()(do))
            getattr(module, f"add_{called}_arguments")(verb)


@contextmanager
def _needing_flower() -> Iterator[None]:
    """Turn the error of a missing package that comes with the extra "flower" into one that says
    how to install the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in WITH_FLOWER:
            raise
        raise missing_extra("this", f"Flower ({error})", "flower") from None
