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

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fedfw.deployment.flower.proxy_texts import HAPROXY, NGINX
from fedfw.options import check_options, option

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
_PLAIN_PATH = r"^/[A-Za-z0-9/._+@%=,~-]*$"
_PLAIN_NAME = r"^[A-Za-z0-9.-]+$"


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
    def parse(cls, text: str) -> "Address":
        """Return an address from ``HOST:PORT``; an IPv6 host stands in brackets."""
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:/\[\]]+)):([0-9]{1,5})", text)
        if match is None or int(match[3]) > 65535:
            raise ValueError(f"{text!r} is no address, expected HOST:PORT such as 127.0.0.1:8000")
        return cls(match[1] or match[2], int(match[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _file(help_: str, pattern: str = _PLAIN_PATH) -> Any:
    """Declare an option that is a path of plain characters: any other would need the quoting of
    nginx or HAProxy, and one that is quoted wrongly could end a directive.
    """
    expected = (
        "an absolute path of letters, digits and /._+@%=,~- alone; move the file or make a link to "
        "it"
    )
    return option(help_, expected=expected, pattern=pattern)


@dataclass(frozen=True)
class ProxySettings:
    """The contents of a configuration: its options, and two addresses.

    Parameters
    ----------
    listen : Address
        The public address.
    superlink : Address
        Where the SuperLink listens; only its own host should reach it.
    """

    listen: Address
    superlink: Address
    certificate: Annotated[str, _file("the public certificate (PEM)")] = "/etc/fedfw/server.pem"
    key: Annotated[str, _file("the certificate's private key (PEM)")] = "/etc/fedfw/server.key"
    ca: Annotated[str, _file("the authority of the SuperLink's certificate (PEM)")] = (
        "/etc/fedfw/ca.crt"
    )
    superlink_name: Annotated[
        str,
        option(
            "a DNS name in the SuperLink's certificate; neither program verifies IP addresses",
            expected="a DNS name such as localhost",
            pattern=_PLAIN_NAME,
        ),
    ] = "localhost"
    work_dir: Annotated[
        str, _file("nginx: a folder for its socket and for bodies, which only its user can read")
    ] = "/var/cache/fedfw-proxy"
    stream_module: Annotated[
        str,
        _file('nginx: the file of its stream module; "" where it is built in', f"^$|{_PLAIN_PATH}"),
    ] = "/usr/lib/nginx/modules/ngx_stream_module.so"
    largest: Annotated[int, option("longest message up in MB", ge=1)] = 64
    connections: Annotated[int, option("connections of one address", ge=1)] = 100
    rate: Annotated[int, option("calls a second of one address, over ten seconds", ge=1)] = 50
    bodies: Annotated[
        int, option("bodies above 10 kB that one address sends at the same time", ge=1)
    ] = 4

    def __post_init__(self) -> None:
        """Check the addresses, and that the socket's path is as short as the system requires."""
        check_options(self)
        for name, address in (("listen", self.listen), ("superlink", self.superlink)):
            if ":" not in address.host and re.fullmatch(_PLAIN_NAME, address.host) is None:
                raise ValueError(f"{name}={str(address)!r}, expected an IP address or a host name")
        socket = len(f"{self.work_dir}/{SOCKET}".encode())
        if socket > _LONGEST_SOCKET:
            raise ValueError(
                f"work_dir={self.work_dir!r}: the path of the socket in it has {socket} bytes; "
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
    values = {
        "listen": str(settings.listen),
        "superlink": str(settings.superlink),
        "certificate": settings.certificate,
        "key": settings.key,
        "ca": settings.ca,
        "superlink_name": settings.superlink_name,
        "work": settings.work_dir,
        "load_module": f"load_module {settings.stream_module};" if settings.stream_module else "",
        "socket": f"{settings.work_dir}/{SOCKET}",
        "largest_mb": str(settings.largest),
        "largest_bytes": str(settings.largest * 2**20),
        "connections": str(settings.connections),
        "rate": str(settings.rate),
        "burst": str(settings.rate * BURST_SECONDS),
        "bodies": str(settings.bodies),
        "operations": "|".join(OPERATIONS),
        "urls": " ".join(f"/v1/fleet/{name}" for name in OPERATIONS),
        "large_digits": str(LARGE_DIGITS),
        # The same limit, as the least number with so many digits.
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
    executable = shutil.which(program, path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
    if executable is None:
        raise FileNotFoundError(
            f"{program} is not installed: expected it on the PATH or in /usr/sbin; on Debian, "
            "install nginx, libnginx-mod-stream and haproxy"
        )
    if program == "haproxy":
        return [executable, "-db", "-f", str(config)]
    # A master process of root's would start workers that cannot read its folders.
    user = " user root;" if os.geteuid() == 0 else ""
    return [executable, "-e", "stderr", "-c", str(config), "-g", f"daemon off;{user}"]
