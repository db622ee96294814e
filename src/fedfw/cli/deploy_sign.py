"""``fedfw deploy sign``: a bundle with the signature of somebody who vouches for it."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = (
    "Pack an app's folder, or take a bundle (.fab) as it is, and sign it. The bundle and the signature go into a "
    "folder that 'fedfw deploy hub' serves; several people may sign the same bundle. Sign what you have read."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The app, the key and the folder."""
    parser.add_argument("app", type=Path, help="an app's folder, or a bundle")
    parser.add_argument("--key", required=True, type=Path, metavar="FILE", help="made by ssh-keygen -t ed25519 -N ''")
    parser.add_argument(
        "--out", type=Path, default=Path("bundles"), metavar="FOLDER", help="where both go [%(default)s]"
    )


def execute(options: argparse.Namespace) -> int:
    """Sign, and say what owners and the operator need."""
    from fedfw.deployment.flower.bundles import Bundle, read_signing_key, trust_line

    key = read_signing_key(options.key)
    bundle = Bundle.read(options.app)
    path = bundle.sign(key, options.out)
    print(f"{path} is signed; its SHA-256 is {bundle.digest}.")
    print(f"It runs by: flwr run {bundle.spec}")
    print(f"A node runs it if the file of its --trusted-entities has the line\n{trust_line(key.public_key())}")
    return 0
