"""A SuperNode as docs/deployment.md describes it: with TLS, a key, signed bundles alone, and an
executor with a secret.
"""

import os
import sys
from collections.abc import Sequence


def run_node(arguments: Sequence[str]) -> None:
    """Do what ``flower-supernode ARGUMENTS`` does, until the process is ended; errors are one line.

    Parameters
    ----------
    arguments : sequence of str
        As for Flower's command.
    """
    from flwr.supernode.cli.flower_supernode import flower_supernode

    sys.argv = ["flower-supernode", *arguments]
    try:
        flower_supernode()
    except Exception as error:
        print(
            f"fedfw deploy: the SuperNode has ended: {describe_error(error)}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(2)  # the thread of its own server would keep this process alive


def describe_error(error: BaseException) -> str:
    """Return the kind and the text of an error as one line.

    Examples
    --------
    >>> describe_error(OSError("no such server"))
    'OSError: no such server'
    """
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
