"""A SuperNode as docs/deployment.md describes it: with TLS, a key, signed bundles alone, and an
executor with a secret; and what is checked before it starts: its files, its port and its server.

Flower ends with a traceback, or waits without a word, where one of them is not as it should be.
This file imports neither Flower nor torch at once, so that a refusal takes no seconds.
"""

import errno
import os
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedfw.deployment.flower.proxy import Address

PATIENCE = 60.0
"""Seconds to wait for a server, unless another number is given: services of one host start side by
side.
"""
_POLL = 0.25
_ATTEMPT = 5.0  # seconds for one connection


def require_file(flag: str, path: Path) -> None:
    """Refuse a file that cannot be read.

    Parameters
    ----------
    flag : str
        The option that names it.
    path : Path
        The file.

    Raises
    ------
    ValueError
        With the option, the file and the reason.
    """
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        raise ValueError(
            f"{flag} {path} cannot be read ({error.strerror or error}), expected a file of this "
            "user"
        ) from None


def require_certificates(flag: str, path: Path) -> None:
    """Refuse a file that holds no certificates."""
    require_file(flag, path)
    try:
        ssl.create_default_context(cafile=str(path))
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise ValueError(f"{flag} {path} holds no certificate in PEM form ({reason})") from None


def require_free_port(flag: str, address: Address) -> None:
    """Refuse an address at which another process listens, or which is not of this machine."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise port_error(flag, address, error) from None


def port_error(flag: str, address: Address, error: OSError) -> ValueError:
    """Return the error for an address that cannot be listened at."""
    reason = (
        f"cannot be listened at ({error.strerror or error}), expected an address of this machine"
    )
    if error.errno == errno.EADDRINUSE:
        reason = "is taken by another process, expected a free port, or the end of that process"
    return ValueError(f"{flag} {address} {reason}")


def wait_for_server(
    flag: str, address: Address, ca: Path | None, seconds: float = PATIENCE
) -> None:
    """Return when a server answers at an address, with a valid certificate if it is to have one.

    Parameters
    ----------
    flag : str
        The option that names the address.
    address : Address
        Of the server.
    ca : Path, optional
        The authority of its certificate; without one the server is not asked for TLS.
    seconds : float
        How long to wait for it.

    Raises
    ------
    ValueError
        At once, if its certificate has expired, is of another authority or for another address, or
        if it has no TLS.
    ConnectionError
        If no server answers in time.
    """
    context = None if ca is None else ssl.create_default_context(cafile=str(ca))
    # Errors of TLS are raised at once, those of the connection when the time is up.
    until = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection(address, timeout=_ATTEMPT) as plain:
                if context is None:
                    return
                with context.wrap_socket(plain, server_hostname=address.host):
                    return
        except ssl.SSLCertVerificationError as error:
            raise ValueError(
                f"{flag} {address}: the server's certificate is refused ({error.verify_message}), "
                f"expected a valid one of the authority in {ca}"
            ) from None
        except ssl.SSLError as error:
            raise ValueError(
                f"{flag} {address}: the server speaks no TLS ({error.reason or error}), expected "
                "the address of a SuperLink or of the proxy before it"
            ) from None
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() + _POLL >= until:
            raise ConnectionError(
                f"{flag} {address}: no server answers there ({reason}); waited {seconds:g} s. "
                "Start it first"
            )
        time.sleep(_POLL)


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
