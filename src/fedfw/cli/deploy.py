"""``fedfw deploy``: a Flower app, a whole federation on this machine, and what keeps strangers out of a real one."""

from __future__ import annotations

import argparse

from fedfw.cli import deploy_check, deploy_demo, deploy_hub, deploy_init, deploy_init_node, deploy_proxy, deploy_sign
from fedfw.errors import missing_extra

VERBS = {
    "init": (deploy_init, "write a complete Flower app, to put your model, data and set into"),
    "init-node": (deploy_init_node, "write the file by which a data's owner says what a node may do with the data"),
    "demo": (deploy_demo, "run a SuperLink and SuperNodes on this machine, with TLS and keys, once"),
    "sign": (deploy_sign, "pack an app and sign it, for nodes that run nothing unsigned"),
    "hub": (deploy_hub, "hand signed bundles to the SuperLink on this machine"),
    "proxy": (deploy_proxy, "let SuperNodes, and nobody else, reach the SuperLink on this machine"),
    "check": (deploy_check, "look for ways by which an outsider could get in or a strange bundle could run"),
}

WITH_FLOWER = ("flwr", "trustme", "cryptography", "httpx", "yaml")
"""Packages that come with the extra ``fedfw[flower]``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verbs, each with its own."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (module, help_) in VERBS.items():
        verb = verbs.add_parser(name, help=help_, description=module.DESCRIPTION)
        verb.set_defaults(parser=verb)
        module.add_arguments(verb)


def execute(options: argparse.Namespace) -> int:
    """Do what the verb says."""
    try:
        status: int = VERBS[options.verb][0].execute(options)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in WITH_FLOWER:
            raise
        raise missing_extra("this", f"Flower ({error})", "flower") from None
    return status
