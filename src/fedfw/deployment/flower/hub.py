"""A hub of one's own: hands the SuperLink of this machine bundles with their signatures.

Flower attaches signatures only to bundles that a SuperLink fetches from a hub, and has no hub to
install. This one answers what the SuperLink asks (``FLWR_SUPERGRID_API_URL``) from a folder that
`fedfw.deployment.flower.bundles` fills. It holds no key.

Every user of the machine can reach it, so all that it reads has a limit: a request's body, the
files, and how many connections there are.
"""

import json
import logging
import threading
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from socket import socket
from typing import Any

from fedfw.deployment.flower.bundles import Bundle, bundle_name, read_shared_file, signatures
from fedfw.deployment.flower.proxy import Address
from fedfw.deployment.flower.start import port_error

_LONGEST = 2**16  # bytes of a question
_CONNECTIONS = 32  # at a time: the SuperLink has one or two
_log = logging.getLogger(__name__)


def make_hub(folder: Path, listen: Address) -> ThreadingHTTPServer:
    """Return a server of a folder's bundles; ``serve_forever`` runs it.

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
        raise ValueError(
            f"{folder} is missing, expected a folder of signed bundles: fedfw deploy sign makes one"
        )
    if not is_loopback(listen.host):
        raise ValueError(
            f"--listen {listen}, expected an address of this machine alone, such as 127.0.0.1:8600"
        )
    try:
        return _Hub(listen, partial(_Handler, folder))
    except OSError as error:
        raise port_error("--listen", listen, error) from None


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host.

    Examples
    --------
    >>> (
    ...     is_loopback("127.0.0.1"),
    ...     is_loopback("::1"),
    ...     is_loopback("0.0.0.0"),
    ...     is_loopback("example.org"),
    ... )
    (True, True, False, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Hub(ThreadingHTTPServer):
    """A server with a thread for each connection, of which there are few at a time; others are
    closed at once.
    """

    daemon_threads = True
    request_queue_size = 2 * _CONNECTIONS

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Start a thread for a connection; close the connection at once where as many threads as
        allowed are running.
        """
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(
        self, request: socket | tuple[bytes, socket], client_address: Any
    ) -> None:
        """Answer a connection, and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class _RefusedRequest(Exception):  # noqa: N818 (it is an answer)
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """Two calls: which bundle and who signed it; and the bundle's bytes."""

    timeout = 30.0

    def __init__(self, folder: Path, *arguments: Any) -> None:
        self.folder = folder
        super().__init__(*arguments)

    def do_POST(self) -> None:
        """Answer which bundle is asked for, with its address and signatures."""
        try:
            path = self._bundle_asked_for(self._body())
            signed = signatures(path)
            Bundle.of(read_shared_file(path), path)  # what is no bundle is not announced
        except _RefusedRequest as refused:
            return self._refuse(refused.status, str(refused))
        except (OSError, ValueError) as error:
            return self._refuse_damaged(error)
        url = f"http://{Address(*self.request.getsockname()[:2])}/fab/{path.name}"
        return self._answer(HTTPStatus.OK, {"fab_url": url, "verifications": signed})

    def do_GET(self) -> None:
        """Send a bundle."""
        for path in self.folder.glob("*.fab"):
            if self.path == f"/fab/{path.name}":
                try:
                    return self._answer(HTTPStatus.OK, read_shared_file(path))
                except (OSError, ValueError) as error:
                    return self._refuse_damaged(error)
        return self._refuse(HTTPStatus.NOT_FOUND, "no such bundle")

    def _body(self) -> bytes:
        """Return the body of a request, which has a length that is stated once, as digits, and is
        not large.
        """
        lengths = self.headers.get_all("Content-Length") or []
        if "Transfer-Encoding" in self.headers or len(lengths) != 1:
            raise _RefusedRequest(HTTPStatus.LENGTH_REQUIRED, "expected one Content-Length")
        text = lengths[0].strip()
        if not (text.isascii() and text.isdigit()):
            raise _RefusedRequest(
                HTTPStatus.BAD_REQUEST, "Content-Length is no whole number of at least 0"
            )
        if len(text) > len(str(_LONGEST)) or int(text) > _LONGEST:
            raise _RefusedRequest(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {_LONGEST} bytes"
            )
        body = self.rfile.read(int(text))
        if len(body) < int(text):
            raise _RefusedRequest(HTTPStatus.BAD_REQUEST, "the body ends early")
        return body

    def _bundle_asked_for(self, body: bytes) -> Path:
        """Return the file of the bundle that the body of the SuperLink's call names; refuse another
        path, an app without a version, and a bundle that is not in the folder.
        """
        try:
            asked = json.loads(body)
            # "@publisher/app" comes without a version and is refused: only a version stands for one
            # bundle.
            path = self.folder / bundle_name(str(asked["app_id"]), str(asked["app_version"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise _RefusedRequest(HTTPStatus.NOT_FOUND, "expected @publisher/app==1.2.3") from None
        if self.path != "/v1/hub/fetch-fab" or not path.is_file():
            raise _RefusedRequest(HTTPStatus.NOT_FOUND, f"{path.name} is not here")
        return path

    def _refuse_damaged(self, error: Exception) -> None:
        """Answer that a file of the hub is not as it should be; the log says what is wrong with
        it.
        """
        _log.warning("%r", str(error))
        self._refuse(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "the hub cannot hand out this bundle; its log says why",
        )

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        self.close_connection = True
        self._answer(status, {"detail": detail})

    def _answer(self, status: HTTPStatus, content: bytes | dict[str, Any]) -> None:
        """Send a status with bytes, or with JSON."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
