"""A hub of one's own: hands the SuperLink of this machine bundles with their signatures.

Flower attaches signatures only to bundles that a SuperLink fetches from a hub. This one answers what the SuperLink asks
(``FLWR_SUPERGRID_API_URL``) from a folder that `fedfw.deployment.flower.bundles` fills. It holds no key.
"""

from __future__ import annotations

import json
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from fedfw.deployment.flower.bundles import bundle_name, signatures
from fedfw.deployment.flower.proxy import Address

_LONGEST = 2**16  # bytes of a question


def make_hub(folder: Path, listen: Address) -> ThreadingHTTPServer:
    """A server of a folder's bundles; ``serve_forever`` runs it.

    Parameters
    ----------
    folder : Path
        Bundles and signatures.
    listen : Address
        An address of this machine alone.

    Returns
    -------
    ThreadingHTTPServer
    """
    if not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r}, expected a folder of signed bundles: fedfw deploy sign makes one")
    if not is_loopback(listen.host):
        raise ValueError(f"listen={str(listen)!r}, expected an address of this machine alone, such as 127.0.0.1:8600")
    return ThreadingHTTPServer(listen, partial(_Handler, folder))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Handler(BaseHTTPRequestHandler):
    """Two calls: which bundle and who signed it; and the bundle's bytes."""

    timeout = 30.0

    def __init__(self, folder: Path, *arguments: Any) -> None:
        self.folder = folder
        super().__init__(*arguments)

    def do_POST(self) -> None:
        try:
            asked = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), _LONGEST)))
            # "@publisher/app" comes without a version and is refused: only a version stands for one bundle.
            path = self.folder / bundle_name(str(asked["app_id"]), str(asked["app_version"]))
        except (ValueError, TypeError, KeyError):
            return self._answer(HTTPStatus.NOT_FOUND, {"detail": "expected @publisher/app==1.2.3"})
        if self.path != "/v1/hub/fetch-fab" or not path.is_file():
            return self._answer(HTTPStatus.NOT_FOUND, {"detail": f"{path.name} is not here"})
        at = Address(*self.request.getsockname()[:2])
        found = {"fab_url": f"http://{at}/fab/{path.name}", "verifications": signatures(path)}
        return self._answer(HTTPStatus.OK, found)

    def do_GET(self) -> None:
        for path in self.folder.glob("*.fab"):
            if self.path == f"/fab/{path.name}":
                return self._answer(HTTPStatus.OK, path.read_bytes())
        return self._answer(HTTPStatus.NOT_FOUND, {"detail": "no such bundle"})

    def _answer(self, status: HTTPStatus, content: bytes | dict[str, Any]) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
