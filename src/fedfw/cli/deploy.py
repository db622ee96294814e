"""``fedfw deploy``: a Flower app folder, and a whole federation on this machine to see it run."""

from __future__ import annotations

import argparse

from fedfw.cli import deploy_demo, deploy_init

VERBS = {
    "init": (deploy_init, "write a complete Flower app, to put your model, data and set into"),
    "demo": (deploy_demo, "run a SuperLink and SuperNodes on this machine, with TLS and keys, once"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verbs, each with its own."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (module, help_) in VERBS.items():
        verb = verbs.add_parser(name, help=help_, description=module.DESCRIPTION)
        verb.set_defaults(parser=verb)
        module.add_arguments(verb)


def execute(options: argparse.Namespace) -> int:
    """Do what the verb says."""
    status: int = VERBS[options.verb][0].execute(options)
    return status
