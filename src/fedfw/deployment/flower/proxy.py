"""The public front of a SuperLink: TLS, and nothing but the calls that a registered SuperNode makes.

Flower answers nodes, operators and executors at one address, and lets everybody in who finds the operators' paths. So
the SuperLink listens on 127.0.0.1, and this proxy is all that the world can reach. It reads a request strictly, refuses
what it does not know, and writes a new request from the parts that it has understood: what a stranger typed is never
passed on.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

OPERATIONS = frozenset(
    (
        *("activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "get-fab", "pull-messages"),
        *("push-messages", "pull-object", "push-object", "confirm-message-received"),
    )
)
"""What a SuperNode with a registered key asks for. It never registers itself: the operator does that."""
BODY_LIMIT = 64 * 2**20
"""Bytes of the longest body that is forwarded, unless another limit is given."""
_PASSED_ON = re.compile(r"flwr-[a-z0-9-]+|x-flwr-client|accept|content-type")  # headers that the SuperLink reads
_UNPRINTABLE = re.compile(rb"[^\t\x20-\x7e]")
_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*(.*?)[ \t]*")
_HEAD_LIMIT = 16 * 2**10  # bytes of a request line with its headers
_IN_MEMORY = 2**30  # bytes of all bodies that are held at the same time
_CONNECTIONS = 1000
_PATIENCE = 30.0  # seconds for a handshake, a head, the SuperLink's answer, and before the first byte of a body is due
_SLOWEST = 128 * 2**10  # bytes a second that a body must at least come with
_log = logging.getLogger(__name__)


class RefusedRequest(Exception):  # noqa: N818 (it is an answer, no fault of ours)
    """A request that is not forwarded.

    Parameters
    ----------
    status : HTTPStatus
        What is answered.
    reason : str
        Why, for the log; it never contains what the stranger sent.
    """

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


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
class Request:
    """The head of a request that may be forwarded.

    Parameters
    ----------
    operation : str
        One of `OPERATIONS`.
    headers : mapping of str to str
        Those that the SuperLink reads, with names in lower case.
    length : int
        Bytes of the body that follows.
    """

    operation: str
    headers: Mapping[str, str]
    length: int

    @classmethod
    def parse(cls, head: bytes, body_limit: int = BODY_LIMIT) -> Request:
        r"""Read a head, up to and with its empty line.

        Parameters
        ----------
        head : bytes
            What came from the network.
        body_limit : int
            Bytes of the longest body.

        Raises
        ------
        RefusedRequest
            If it is anything but one well-formed POST to an operation of the fleet with a stated length.

        Examples
        --------
        >>> head = b"POST /v1/fleet/get-run HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nflwr-signature: s\r\n\r\n"
        >>> Request.parse(head)
        Request(operation='get-run', headers={'flwr-signature': 's'}, length=3)
        """
        lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        if any(_UNPRINTABLE.search(line) for line in lines):
            raise RefusedRequest(HTTPStatus.BAD_REQUEST, "the head has bytes that are no printable ASCII")
        first, *rest = (line.decode("ascii") for line in lines)
        # One spelling of a path is accepted, so there is no other one to be normalised by whoever comes next.
        path = re.fullmatch(r"POST /v1/fleet/([a-z-]+) HTTP/1\.1", first)
        if path is None or path[1] not in OPERATIONS:
            raise RefusedRequest(HTTPStatus.NOT_FOUND, "no operation of the fleet")
        fields: dict[str, str] = {}
        for line in rest:
            header = _HEADER.fullmatch(line)
            if header is None or header[1].lower() in fields:
                raise RefusedRequest(HTTPStatus.BAD_REQUEST, "a header is malformed or stands there twice")
            fields[header[1].lower()] = header[2]
        if fields.keys() & {"transfer-encoding", "upgrade", "expect", "trailer"}:
            raise RefusedRequest(HTTPStatus.BAD_REQUEST, "the body is not sent plainly")
        length = fields.get("content-length", "")
        if re.fullmatch("[0-9]{1,18}", length) is None:
            raise RefusedRequest(HTTPStatus.LENGTH_REQUIRED, "no length of the body")
        if int(length) > body_limit:
            raise RefusedRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body of more than {body_limit} bytes")
        passed_on = {name: value for name, value in fields.items() if _PASSED_ON.fullmatch(name)}
        return cls(path[1], passed_on, int(length))

    def written(self, host: Address) -> bytes:
        """The head of the new request for the SuperLink."""
        headers = {"host": str(host), **self.headers, "content-length": str(self.length)}
        # In version 1.0 the end of the connection is the end of the answer: it never comes in chunks.
        lines = [f"POST /v1/fleet/{self.operation} HTTP/1.0", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("ascii")


class Proxy:
    """Forwards what `Request.parse` accepts to a SuperLink on this machine, and answers everything else itself.

    Parameters
    ----------
    superlink : Address
        Where the SuperLink listens; only this machine should reach it.
    ca : Path, optional
        The certificate of the authority of the SuperLink's own certificate; without it the SuperLink is asked in the
        clear.
    body_limit : int
        Bytes of the longest body.
    """

    def __init__(self, superlink: Address, ca: Path | None = None, body_limit: int = BODY_LIMIT) -> None:
        self.superlink, self.body_limit = superlink, body_limit
        self._inner = None if ca is None else ssl.create_default_context(cafile=str(ca))
        self._connections = self._held = 0

    async def start(self, listen: Address, certificate: Path, key: Path) -> asyncio.Server:
        """Listen, with TLS of version 1.2 or later.

        Parameters
        ----------
        listen : Address
            The public address; port 0 takes a free one.
        certificate, key : Path
            The server's certificate chain and its private key, as PEM files.

        Returns
        -------
        asyncio.Server
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        return await asyncio.start_server(
            self._serve,
            *listen,
            limit=_HEAD_LIMIT,
            ssl=context,
            ssl_handshake_timeout=_PATIENCE,
            ssl_shutdown_timeout=_PATIENCE / 10,
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: its requests, one after another, until one of them is refused or nobody speaks."""
        self._connections += 1
        welcome = self._connections <= _CONNECTIONS
        try:
            with suppress(OSError, asyncio.IncompleteReadError):  # the other side has gone, or is too slow
                while welcome and await self._answer(reader, writer):
                    pass
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection may be used again."""
        try:
            try:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE)
            except asyncio.LimitOverrunError:
                raise RefusedRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too long") from None
            request = Request.parse(head, self.body_limit)
            await self._forward(request, reader, writer)
        except RefusedRequest as refused:
            peer = writer.get_extra_info("peername") or ("somebody",)
            _log.warning("%s is answered %d: %s", peer[0], refused.status, refused)
            text = f"{refused.status.phrase}\n"
            writer.write(
                f"HTTP/1.1 {refused.status.value} {refused.status.phrase}\r\ncontent-type: text/plain\r\n"
                f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode("ascii")
            )
            await asyncio.wait_for(writer.drain(), _PATIENCE)
            return False
        return True

    async def _forward(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = bytearray()
        try:
            async with asyncio.timeout(_seconds(request.length)):
                while len(body) < request.length:
                    part = await reader.read(min(request.length - len(body), _HEAD_LIMIT))
                    if not part:
                        raise ConnectionError("the body is cut off")
                    if self._held + len(part) > _IN_MEMORY:
                        raise RefusedRequest(HTTPStatus.SERVICE_UNAVAILABLE, "too many bodies at the same time")
                    body += part
                    self._held += len(part)
            try:
                answer = await asyncio.wait_for(self._ask(request, body), _seconds(request.length))
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
                raise RefusedRequest(HTTPStatus.BAD_GATEWAY, "the SuperLink does not answer") from None
        finally:
            self._held -= len(body)
        writer.write(answer)
        await asyncio.wait_for(writer.drain(), _seconds(len(answer)))

    async def _ask(self, request: Request, body: bytes | bytearray) -> bytes:
        """The SuperLink's whole answer to a request, with a head that allows the node to go on."""
        reader, writer = await asyncio.open_connection(*self.superlink, limit=_HEAD_LIMIT, ssl=self._inner)
        try:
            writer.write(request.written(self.superlink) + body)
            first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            content = await reader.read()
        finally:
            writer.close()
        if int(fields.get("content-length", len(content))) != len(content):
            raise ValueError("the SuperLink's answer is cut off")
        status = first.partition(" ")[2]
        kept = {name: value for name, value in fields.items() if _PASSED_ON.fullmatch(name)}
        head = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in kept.items())]
        return "\r\n".join([*head, f"content-length: {len(content)}", "", ""]).encode("latin-1") + content


def _seconds(count: int) -> float:
    """How long so many bytes may take."""
    return _PATIENCE + count / _SLOWEST
