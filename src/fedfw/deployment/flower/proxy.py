"""The configuration of nginx or HAProxy as the public address of a SuperLink.

Flower answers SuperNodes, operators and executors at one address, and leaves the operators' paths
open to all who reach them. So the SuperLink listens on 127.0.0.1, and a reverse proxy in front of
it forwards the calls of registered SuperNodes and refuses everything else. Both configurations
written here do the same:

- TLS 1.2 or later, and HTTP/1.1 only.
- One request line for each call in `OPERATIONS`; every other request line is answered 404.
- Only the headers in `HEADERS` reach the SuperLink.
- A body needs one Content-Length, at most ``largest`` bytes.
- Each address has a limit of connections, which counts from the first packet on, so before TLS, a
  limit of calls a second, and a limit of large bodies at the same time. IPv6 addresses count by
  their /64.
- Handshakes, heads, pauses within bodies and idle connections have time limits.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedfw.deployment.flower.proxy_texts import HAPROXY, NGINX

PROGRAMS = {"nginx": NGINX, "haproxy": HAPROXY}
"""The template of each program's configuration."""
OPERATIONS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "get-run",
    "get-fab",
    "pull-messages",
    "push-messages",
    "pull-object",
    "push-object",
    "confirm-message-received",
)
"""The calls of a SuperNode with a registered key. Registering is not among them: the operator does
that.
"""
HEADERS = (
    "accept",
    "content-type",
    "flwr-component-name",
    "flwr-package-name",
    "flwr-package-version",
    "flwr-public-key",
    "flwr-signature",
    "flwr-timestamp",
)
"""The headers of a SuperNode's call that the SuperLink reads."""
LARGE_DIGITS = 5
"""A body is large, and limited in number, where its Content-Length has so many digits: from 10,000
bytes on. Smaller ones fit into HAProxy's buffer, so that it receives them whole before the
SuperLink hears of them.
"""
BURST_SECONDS = 10
"""Calls are counted over so many seconds: a node that is handed a message makes a dozen of them at
once.
"""
SOCKET = "tls.sock"
"""The socket in nginx's work folder between its two halves."""
_LONGEST_SOCKET = 107  # bytes of a Unix socket's path
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+@%=,~-]+")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9.-]+")


class Address(NamedTuple):
    """Where a server listens.

    Examples
    --------
    >>> Address.parse("127.0.0.1:8000")
    Address(host='127.0.0.1', port=8000)
    >>> str(Address.parse("[::1]:443"))
    '[::1]:443'
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """From ``HOST:PORT``; an IPv6 host stands in brackets."""
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:/\[\]]+)):([0-9]{1,5})", text)
        if match is None or int(match[3]) > 65535:
            raise ValueError(f"address={text!r}, expected HOST:PORT such as 127.0.0.1:8000")
        return cls(match[1] or match[2], int(match[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class ProxySettings:
    """What a configuration is written from.

    Parameters
    ----------
    listen : Address
        The public address.
    superlink : Address
        Where the SuperLink listens; only its own host should reach it.
    certificate, key : Path
        The public certificate chain and its private key, as PEM files.
    ca : Path
        The certificate of the authority that issued the SuperLink's own certificate.
    superlink_name : str
        A DNS name in the SuperLink's certificate. Neither program verifies IP addresses.
    work_dir : Path
        A folder that only the proxy's user can read: nginx's process id, its socket, and bodies
        that are on their way.
    stream_module : str
        The file of nginx's stream module; empty where nginx has it built in.
    largest : int
        Megabytes of the longest body.
    connections, rate, bodies : int
        Connections, calls a second (over ten seconds), and large bodies at the same time, of one
        address.
    """

    listen: Address
    superlink: Address
    certificate: Path = Path("/etc/fedfw/server.pem")
    key: Path = Path("/etc/fedfw/server.key")
    ca: Path = Path("/etc/fedfw/ca.crt")
    superlink_name: str = "localhost"
    work_dir: Path = Path("/var/cache/fedfw-proxy")
    stream_module: str = "/usr/lib/nginx/modules/ngx_stream_module.so"
    largest: int = 64
    connections: int = 100
    rate: int = 50
    bodies: int = 4

    def __post_init__(self) -> None:
        for name in ("certificate", "key", "ca", "work_dir", "stream_module"):
            text = str(getattr(self, name))
            plain = _PLAIN_PATH.fullmatch(text) is not None and text.startswith("/")
            if not plain and not (name == "stream_module" and text == ""):
                # Neither program's quoting is worth the risk of a path that ends a directive.
                raise ValueError(
                    f"{name}={text!r}: expected an absolute path of letters, digits and /._+@%=,~- alone; "
                    "move the file or make a link to it"
                )
        for name in ("listen", "superlink"):
            address: Address = getattr(self, name)
            host = address.host
            if ":" not in host and _PLAIN_NAME.fullmatch(host) is None:
                raise ValueError(f"{name}={str(address)!r}: expected an IP address or a host name")
        if _PLAIN_NAME.fullmatch(self.superlink_name) is None:
            raise ValueError(
                f"superlink_name={self.superlink_name!r}: expected a DNS name such as localhost"
            )
        for name in ("largest", "connections", "rate", "bodies"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name}={value}: expected at least 1")
        socket = len(str(self.work_dir / SOCKET).encode())
        if socket > _LONGEST_SOCKET:
            raise ValueError(
                f"work_dir={str(self.work_dir)!r}: the path of the socket in it has {socket} bytes; "
                f"expected at most {_LONGEST_SOCKET}, so choose a shorter path"
            )


def write_config(program: str, settings: ProxySettings) -> str:
    """Return the configuration of a program, as text.

    Parameters
    ----------
    program : str
        One of `PROGRAMS`.
    settings : ProxySettings
        Addresses, files and limits.
    """
    if program not in PROGRAMS:
        raise ValueError(f"program={program!r}: expected {' or '.join(PROGRAMS)}")
    values = {
        "listen": str(settings.listen),
        "superlink": str(settings.superlink),
        "certificate": str(settings.certificate),
        "key": str(settings.key),
        "ca": str(settings.ca),
        "superlink_name": settings.superlink_name,
        "work": str(settings.work_dir),
        "load_module": f"load_module {settings.stream_module};" if settings.stream_module else "",
        "socket": str(settings.work_dir / SOCKET),
        "largest_mb": str(settings.largest),
        "largest_bytes": str(settings.largest * 2**20),
        "connections": str(settings.connections),
        "rate": str(settings.rate),
        "burst": str(settings.rate * BURST_SECONDS),
        "bodies": str(settings.bodies),
        "operations": "|".join(OPERATIONS),
        "urls": " ".join(f"/v1/fleet/{name}" for name in OPERATIONS),
        "large_digits": str(LARGE_DIGITS),
        "large_bytes": str(10 ** (LARGE_DIGITS - 1)),
        "set_headers": "\n".join(
            f"    proxy_set_header {name} $http_{name.replace('-', '_')};" for name in HEADERS
        ),
        "kept_headers": "|".join(("host", "content-length", *HEADERS)),
    }
    return re.sub("@([a-z_]+)@", lambda match: values[match[1]], PROGRAMS[program])


def proxy_command(program: str, config: Path) -> list[str]:
    """Return the command that runs nginx or HAProxy with a configuration until the process is
    ended.

    Parameters
    ----------
    program : str
        One of `PROGRAMS`.
    config : Path
        What `write_config` has written.

    Raises
    ------
    FileNotFoundError
        If the program is not installed.
    """
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
    if found is None:
        raise FileNotFoundError(
            f"{program} is not installed: expected it on the PATH or in /usr/sbin; on Debian, install "
            "nginx, libnginx-mod-stream and haproxy"
        )
    if program == "haproxy":
        return [found, "-db", "-f", str(config)]
    # A master process of root's would start workers that cannot read its folders.
    user = " user root;" if os.geteuid() == 0 else ""
    return [found, "-e", "stderr", "-c", str(config), "-g", f"daemon off;{user}"]
