"""A running federation, seen by an outsider, who has its address and the certificate of its
authority, and nothing else.

The questions change nothing: their bodies are empty, or name a key that was made for the occasion.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import TypeVar

import httpx
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedfw.deployment.flower.checks.findings import FailedCheckError, require
from fedfw.deployment.flower.proxy import Address

OPERATORS_PATHS = (
    *(
        f"/v1/control/{name}"
        for name in ("register-node", "start-run", "list-runs", "list-nodes", "stream-logs")
    ),
    *("/v1/runtime/acquire-task", "/v1/runtime/get-run"),
)
"""Calls of operators and executors."""
DETOURS = (
    *(
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/..%2fcontrol%2flist-runs",
    ),
    *(
        "//v1/control/list-runs",
        "/v1/./control/list-runs",
        "/V1/control/list-runs",
        "/v1/control/list-runs/",
    ),
    *(
        "/v1/fleet/pull-messages/../../control/list-runs",
        "/v1/fleet/;/../control/list-runs",
        "/v1%2fcontrol/list-runs",
    ),
)
"""Other spellings of such a path, by which a careless proxy is led to it."""
_REFUSED = frozenset((401, 403, 404, 405))
_NOBODY = frozenset((502, 503, 504))  # a proxy without a server behind it
_SECONDS = 15.0
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Outside:
    """An outsider's place.

    Parameters
    ----------
    address : Address
        The public address.
    ca : Path
        The authority's certificate, which every owner has.
    """

    address: Address
    ca: Path

    def status(self, path: str) -> int:
        """Return the status of the answer to an empty POST without any key."""
        context = ssl.create_default_context(cafile=str(self.ca))
        connection = HTTPSConnection(*self.address, timeout=_SECONDS, context=context)
        try:
            connection.request("POST", path, b"", {"Content-Type": PROTOBUF_MEDIA_TYPE})
            status = connection.getresponse().status
        except HTTPException as error:
            raise OSError(f"{path} is answered by no HTTP: {error!r}") from None
        finally:
            connection.close()
        if status in _NOBODY:
            raise OSError(f"{path} is answered {status}: the SuperLink is not there")
        return status


def encrypted(outside: Outside) -> str:
    """The address speaks TLS with a certificate of the authority."""
    try:
        outside.status("/")
    except ssl.SSLError as error:
        raise FailedCheckError(
            f"{outside.address} has no TLS with a certificate of {outside.ca} ({error})"
        ) from None
    return f"{outside.address} speaks TLS with a certificate of {outside.ca}"


def control_closed(outside: Outside) -> str:
    """No outsider reaches what operators ask for."""
    answers = {path: outside.status(path) for path in OPERATORS_PATHS}
    open_ = {path: status for path, status in answers.items() if status not in _REFUSED}
    # A detour that is malformed may also be answered 400; the path that it leads to would be
    # answered 200.
    detours = {path: outside.status(path) for path in DETOURS}
    open_ |= {path: status for path, status in detours.items() if status not in {*_REFUSED, 400}}
    shown = ", ".join(f"{path} is answered {status}" for path, status in open_.items())
    require(not open_, f"an outsider registers nodes, runs apps and reads logs: {shown}")
    return (
        f"{len(answers) + len(detours)} ways to register nodes, run apps, read lists and take "
        "tasks are closed"
    )


def unsigned_refused(outside: Outside) -> str:
    """Calls of a node without a signature are refused."""
    status = outside.status("/v1/fleet/pull-messages")
    require(
        status in _REFUSED,
        f"a call of a node without a signature is answered {status}, expected 401",
    )
    return f"calls of a node without a signature are refused ({status})"


def stranger_refused(outside: Outside) -> str:
    """A key that was not registered is refused, and cannot register itself."""
    private, public = generate_key_pairs()
    data = public_key_to_bytes(public)
    signed = NodeAuthHttpInterceptor(private, public)
    with FleetHttpClient.from_server_address(
        str(outside.address), False, outside.ca.read_bytes(), [signed]
    ) as fleet:
        try:
            node = _accepted(lambda: fleet.RegisterNode(RegisterNodeFleetRequest(public_key=data)))
            if node is not None:
                fleet.UnregisterNode(UnregisterNodeFleetRequest(node_id=node.node_id))
                raise FailedCheckError(
                    "a new key registered itself: --enable-supernode-auth forbids that"
                )
            request = ActivateNodeRequest(
                public_key=data, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
            )
            refused = _accepted(lambda: fleet.ActivateNode(request)) is None
            require(refused, "a key that was not registered was let in")
        except httpx.HTTPError as error:
            raise OSError(str(error).splitlines()[0]) from None
    return "a key that was not registered is refused, and cannot register itself"


def _accepted(call: Callable[[], Answer]) -> Answer | None:
    """Return the answer to an accepted call, None to a refused one (a status of 4xx); raises the
    error of a server that failed (5xx).
    """
    try:
        return call()
    except httpx.HTTPStatusError as error:
        if error.response.status_code >= 500:
            raise
        return None


ADDRESS_CHECKS: tuple[Callable[[Outside], str], ...] = (
    encrypted,
    control_closed,
    unsigned_refused,
    stranger_refused,
)
