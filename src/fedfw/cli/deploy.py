"""``fedfw deploy``: a Flower app, a whole federation on this machine, and what keeps strangers out of a real one."""

from __future__ import annotations

import argparse
from importlib import import_module

from fedfw.errors import missing_extra

VERBS = {
    "init": "write a complete Flower app, to put your model, data and set into",
    "init-node": "write the file by which a data's owner says what a node may do with the data",
    "check-data": "find out whether an owner's data fit an app, so that they may join private runs",
    "reopen": "look why a private client takes no orders, and let it take orders again",
    "demo": "run a SuperLink and SuperNodes on this machine, with TLS and keys, once",
    "sign": "pack an app and sign it, for nodes that run nothing unsigned",
    "hub": "hand signed bundles to the SuperLink on this machine",
    "proxy": "print the configuration of nginx or HAProxy, by which SuperNodes alone reach the SuperLink",
    "node": "run a SuperNode that is closed to strangers, with errors of one line",
    "executor": "run the apps of a SuperNode in processes that have torch imported already",
    "check": "look for ways by which an outsider could get in or a strange bundle could run",
}

WITH_FLOWER = ("flwr", "trustme", "cryptography", "httpx", "yaml")
"""Packages that come with the extra ``fedfw[flower]``."""


def add_arguments(parser: argparse.ArgumentParser, typed: str = "") -> None:
    """The verbs; the one that was typed has its arguments, and it alone is imported: the hub needs no torch."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, help_ in VERBS.items():
        verb = verbs.add_parser(name, help=help_)
        if name == typed:
            module = import_module(f"fedfw.cli.deploy_{name.replace('-', '_')}")
            verb.description = module.DESCRIPTION
            verb.set_defaults(parser=verb, do=module.execute)
            module.add_arguments(verb)


def execute(options: argparse.Namespace) -> int:
    """Do what the verb says."""
    try:
        status: int = options.do(options)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in WITH_FLOWER:
            raise
        raise missing_extra("this", f"Flower ({error})", "flower") from None
    return status
