"""The printed configurations in nginx and HAProxy: what they forward, what they refuse, and what
one address can take.

The programs are Debian's packages (nginx with libnginx-mod-stream, and haproxy); a test of one that
is not installed is skipped.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedfw.deployment.flower.proxy import (
    HEADERS,
    OPERATIONS,
    PROGRAMS,
    Address,
    ProxySettings,
    proxy_command,
    write_config,
)

HOST = "127.0.0.1"
OTHER = "127.0.0.2"
"""Another address of this machine, from which a test attacks."""
CONNECTIONS = 3000
SECONDS = 20.0
SENT = (
    *(
        "Host: 10.0.0.1:8443",
        "Accept: application/x-protobuf",
        "Accept-Encoding: gzip",
        "Connection: keep-alive",
    ),
    *("flwr-public-key: QUJD", "flwr-signature: c2ln", "flwr-timestamp: 2026-01-01T00:00:00+00:00"),
)


def head(
    *lines: str, first: str = "POST /v1/fleet/pull-messages HTTP/1.1", length: str | None = "3"
) -> bytes:
    stated = () if length is None else (f"Content-Length: {length}",)
    return "\r\n".join([first, *SENT, *stated, *lines, "", ""]).encode("latin-1")


# --- the text ---


def settings_in(folder: Path, **changes: object) -> ProxySettings:
    values: dict[str, object] = {
        "listen": Address(HOST, 9443),
        "superlink": Address(HOST, 8000),
        "certificate": str(folder / "server.pem"),
        "key": str(folder / "server.key"),
        "ca": str(folder / "ca.crt"),
        "work_dir": str(folder),
    }
    return ProxySettings(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"certificate": "/a b/server.pem"},
            "certificate='/a b/server.pem', expected an absolute path",
        ),
        ({"key": "/a;b"}, "key='/a;b', expected an absolute path"),
        ({"ca": "ca.crt"}, "ca='ca.crt', expected an absolute path"),
        ({"stream_module": "x;y"}, "stream_module='x;y', expected an absolute path"),
        ({"work_dir": "/" + "w" * 110}, "has 120 bytes; expected at most 107"),
        ({"listen": Address("a;b", 1)}, "listen='a;b:1', expected an IP address or a host name"),
        ({"superlink_name": "a b"}, "superlink_name='a b', expected a DNS name"),
        ({"largest": 0}, "largest=0, expected a whole number of at least 1"),
        ({"connections": 0}, "connections=0, expected a whole number of at least 1"),
        ({"bodies": -1}, "bodies=-1, expected a whole number of at least 1"),
    ],
)
def test_what_cannot_stand_in_a_configuration_is_refused(
    changes: Mapping[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        settings_in(Path("/keys"), **changes)


@pytest.mark.parametrize(
    "text", ["", "10.0.0.1", ":80", "a:b", "a:99999", "http://a:80", "::1:80", "a b:80"]
)
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{text!r} is no address, expected HOST:PORT")):
        Address.parse(text)


def test_the_headers_of_flowers_nodes_are_forwarded() -> None:
    pytest.importorskip("flwr")
    import httpx
    from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import generate_key_pairs
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=PullMessagesResponse().SerializeToString())

    interceptors = [
        RuntimeVersionHttpInterceptor("SuperNode"),
        NodeAuthHttpInterceptor(*generate_key_pairs()),
    ]
    client = FleetHttpClient("https://a", interceptors=interceptors)
    client._client = httpx.Client(transport=httpx.MockTransport(answer))
    client.PullMessages(PullMessagesRequest())
    of_http = {"host", "accept-encoding", "connection", "user-agent", "content-length"}
    assert set(seen[0].headers) - of_http == set(HEADERS)
    assert seen[0].url.path == "/v1/fleet/pull-messages"


def test_the_calls_are_those_that_flower_has() -> None:
    pytest.importorskip("flwr")
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    paths = {path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    refused = {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert {f"/v1/fleet/{name}" for name in OPERATIONS} == paths - refused


# --- the programs ---


class FakeSuperLink(socketserver.ThreadingTCPServer):
    """Answers every call with the length of its body, over TLS, and keeps what it was sent."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, keys: Path) -> None:
        super().__init__((HOST, 0), _Answering)
        self.seen: list[tuple[bytes, int]] = []
        self.port = self.server_address[1]
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(keys / "server.pem", keys / "server.key")
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def finish_request(self, request: Any, client_address: Any) -> None:
        with suppress(OSError), self._tls.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        super().__exit__(*error)


class _Answering(socketserver.StreamRequestHandler):
    server: FakeSuperLink

    def handle(self) -> None:
        received = b""
        for line in self.rfile:
            received += line
            if line != b"\r\n":
                continue
            length = re.search(rb"(?i)\r\ncontent-length: ([0-9]+)\r\n", received)
            body = self.rfile.read(int(length[1])) if length else b""
            if length and len(body) < int(length[1]):
                return
            self.server.seen.append((received, len(body)))
            answer = f"{len(body)} bytes"
            start = f"HTTP/1.1 200 OK\r\nserver: secret\r\ncontent-type: x\r\ncontent-length: {len(answer)}"
            self.wfile.write(f"{start}\r\n\r\n{answer}".encode())
            received = b""


class Front:
    """A running program in front of a SuperLink."""

    def __init__(
        self, program: str, port: int, process: subprocess.Popen[bytes], keys: Path
    ) -> None:
        self.program, self.port, self.process = program, port, process
        self.tls = ssl.create_default_context(cafile=str(keys / "ca.crt"))

    def connect(self, source: str = HOST) -> ssl.SSLSocket:
        plain = socket.create_connection(
            (HOST, self.port), timeout=SECONDS, source_address=(source, 0)
        )
        return self.tls.wrap_socket(plain, server_hostname=HOST)

    def said(self, data: bytes, source: str = HOST) -> bytes:
        """What comes back until the proxy closes the connection or has answered once."""
        with self.connect(source) as connection:
            with suppress(OSError):  # it may refuse before it has read everything
                connection.sendall(data)
            return read_answer(connection)

    def status(self, data: bytes, source: str = HOST) -> int:
        """The status of the answer, 0 for a connection that is closed without one."""
        with self.connect(source) as connection:
            with suppress(OSError):
                connection.sendall(data)
            found = re.match(rb"HTTP/1\.1 ([0-9]{3}) ", read_answer(connection, head_only=True))
        return int(found[1]) if found else 0

    def resident(self) -> int:
        """Megabytes of memory of all its processes."""
        pages = 0
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == self.process.pid:  # its group
                    pages += int((process / "statm").read_text().split()[1])
        return pages * resource.getpagesize() // 2**20


def read_answer(connection: ssl.SSLSocket, head_only: bool = False) -> bytes:
    said = b""
    with suppress(OSError):
        while part := connection.recv(65536):
            said += part
            top, end, body = said.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: ([0-9]+)", top)
            if end and (head_only or (length and len(body) >= int(length[1]))):
                break
    return said


@contextmanager
def running(
    program: str,
    keys: Path,
    superlink: int,
    changes: Mapping[str, str] | None = None,
    **limits: int,
) -> Iterator[Front]:
    """Start a program with the configuration that is printed, some texts in it replaced."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    work = keys.parent / f"{program}-{port}"
    work.mkdir(mode=0o700)
    text = write_config(
        program,
        settings_in(
            keys,
            listen=Address(HOST, port),
            superlink=Address(HOST, superlink),
            work_dir=str(work),
            **limits,
        ),
    )
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    config = work / "config"
    config.write_text(text)
    with open(work / "log", "wb") as log:
        process = subprocess.Popen(
            proxy_command(program, config),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )
    try:
        for _ in range(400):
            with suppress(OSError), socket.create_connection((HOST, port), timeout=SECONDS):
                break
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        assert process.poll() is None, (work / "log").read_text()
        yield Front(program, port, process, keys)
    finally:
        process.terminate()
        process.wait(SECONDS)


def installed(program: str) -> bool:
    """Whether a test can start a program."""
    if program == "nginx" and not Path(ProxySettings.stream_module).exists():
        return False
    return (
        shutil.which(program, path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin") is not None
    )


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("trustme")
    from fedfw.deployment.flower.keys import make_certificates

    folder = tmp_path_factory.mktemp("f") / "k"  # the path of a Unix socket is short
    make_certificates(folder)
    (folder / "server.pem.key").symlink_to("server.key")
    return folder


@pytest.fixture(scope="module")
def superlink(keys: Path) -> Iterator[FakeSuperLink]:
    with FakeSuperLink(keys) as running_:
        yield running_


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if not installed(name):
        pytest.skip(f"{name} is not installed: apt-get install nginx libnginx-mod-stream haproxy")
    return name


@pytest.fixture(scope="module")
def front(program: str, keys: Path, superlink: FakeSuperLink) -> Iterator[Front]:
    with running(program, keys, superlink.port) as started:
        yield started


pytestmark = pytest.mark.xdist_group("proxy")


def test_a_nodes_call_is_forwarded_with_what_the_superlink_reads(
    front: Front, superlink: FakeSuperLink
) -> None:
    for name in OPERATIONS:
        superlink.seen.clear()
        more = (
            "X-Forwarded-For: 1.2.3.4",
            "Forwarded: for=a",
            "flwr-task-token: a",
            "Cookie: a",
            "X_odd: a",
        )
        said = front.said(head(*more, first=f"POST /v1/fleet/{name} HTTP/1.1") + b"abc")
        assert said.startswith(b"HTTP/1.1 200 ")
        assert said.endswith(b"3 bytes")
        assert b"secret" not in said
        [(received, length)] = superlink.seen
        first, *lines = received.decode().removesuffix("\r\n\r\n").split("\r\n")
        names = [line.partition(":")[0].lower() for line in lines]
        assert (first, length) == (f"POST /v1/fleet/{name} HTTP/1.1", 3)
        assert len(names) == len(set(names))
        assert set(names) - {"connection"} == {"host", "content-length"} | {"accept"} | {
            line.partition(":")[0] for line in SENT if line.startswith("flwr-")
        }


PATHS = (
    *(
        "/",
        "/docs",
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
    ),
    *(
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/",
        "/v1/fleet",
        "/v1/fleet/no-such",
    ),
    *(
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/..%2fcontrol%2flist-runs",
    ),
    *(
        "//v1/fleet/get-run",
        "/v1//fleet/get-run",
        "/v1/./fleet/get-run",
        "/V1/fleet/get-run",
        "/v1/fleet/Get-Run",
    ),
    *("/v1/fleet/get-run/", "/v1/fleet/get-run?x=1", "/v1/fleet/get-run;x", "/v1/fleet/get-run%20"),
    *(
        "/v1/fleet/get-run/../../control/list-runs",
        "/v1/fleet/get%2Drun",
        "http://10.0.0.1:8443/v1/fleet/get-run",
    ),
    *("/v1/fleet/xget-run", "/x/v1/fleet/get-run", "/v1/fleet/get-run-x", "/v1\\fleet\\get-run"),
)


def test_every_other_path_is_not_found(front: Front, superlink: FakeSuperLink) -> None:
    superlink.seen.clear()
    answers = {path: front.status(head(first=f"POST {path} HTTP/1.1") + b"abc") for path in PATHS}
    assert answers == dict.fromkeys(PATHS, 404)
    assert superlink.seen == []


def test_every_other_request_line_is_refused(front: Front, superlink: FakeSuperLink) -> None:
    superlink.seen.clear()
    lines = [
        *(
            f"{method} /v1/fleet/get-run HTTP/1.1"
            for method in ("GET", "HEAD", "PUT", "OPTIONS", "TRACE", "post", "")
        ),
        *(
            f"POST /v1/fleet/get-run {version}"
            for version in ("HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "http/1.1", "")
        ),
        *("CONNECT a:443 HTTP/1.1", "POST * HTTP/1.1", "POST a:443 HTTP/1.1"),
        "POST http://a/v1/fleet/get-run HTTP/1.1",
        *(
            "POST /v1/fleet/get-run\x0b HTTP/1.1",
            "POST /v1/fleet/get-run /v1/control/list-runs HTTP/1.1",
        ),
        *(
            "POST /v1/fleet/get-run#x HTTP/1.1",
            "POST /v1/fleet/get-run\x00 HTTP/1.1",
            "PRI * HTTP/2.0",
        ),
        "POST /../../v1/control/list-runs HTTP/1.1",
    ]
    answers = {line: front.status(head(first=line) + b"abc") for line in lines}
    assert {
        line: status
        for line, status in answers.items()
        if status not in (0, 400, 404, 405, 501, 505)
    } == {}
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    assert b"HTTP/1.1 200" not in front.said(preface)
    assert superlink.seen == []


def test_nothing_can_be_smuggled_behind_a_call(front: Front, superlink: FakeSuperLink) -> None:
    superlink.seen.clear()
    hidden = b"POST /v1/control/list-runs HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    with front.connect() as connection:
        connection.sendall(head() + b"abc" + hidden)
        said = read_answer(connection)
        if said.count(b"HTTP/1.1 ") < 2:
            said += read_answer(connection)
    assert re.findall(rb"HTTP/1\.1 ([0-9]{3})", said) == [b"200", b"404"]
    ambiguous = [
        head("Transfer-Encoding: chunked") + b"0\r\n\r\n" + hidden,
        head("Transfer-Encoding: chunked", length=None) + b"3\r\nabc\r\n0\r\n\r\n" + hidden,
        head("transfer-encoding: identity") + b"abc",
        head("TRANSFER-ENCODING: xchunked") + b"abc",
        head("Content-Length: 4") + b"abcd",
        head("Content-Length: 0") + b"abc" + hidden,
        head(length="3, 4") + b"abc",
    ]
    assert {front.status(data) for data in ambiguous} <= {0, 400, 501}
    assert [received.partition(b"\r\n")[0] for received, _ in superlink.seen] == [
        b"POST /v1/fleet/pull-messages HTTP/1.1"
    ]


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (None, {411}),
        ("", {400, 411}),
        ("-3", {400}),
        ("0x3", {400}),
        ("1e3", {400}),
        ("9" * 40, {400, 413}),
    ],
)
def test_a_body_has_one_plain_length(
    front: Front, superlink: FakeSuperLink, length: str | None, expected: set[int]
) -> None:
    superlink.seen.clear()
    assert front.status(head(length=length) + b"abc") in expected
    assert superlink.seen == []


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
@given(
    position=st.integers(0, 300),
    removed=st.integers(0, 3),
    inserted=st.one_of(
        st.binary(max_size=6),
        st.sampled_from(
            [b"\r\n", b"\n", b"\r\n\r\n", b"\r\n ", b"/../", b"%2e", b"Content-Length: 9\r\n", b" "]
        ),
    ),
)
def test_all_that_reaches_the_superlink_are_calls_of_the_fleet(
    front: Front, superlink: FakeSuperLink, position: int, removed: int, inserted: bytes
) -> None:
    superlink.seen.clear()
    plain = head()
    data = plain[:position] + inserted + plain[position + removed :] + b"abc"
    with front.connect() as connection:
        connection.sendall(data)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)  # a head without its end is not waited for
        read_answer(connection)
    for received, _ in superlink.seen:
        first, *lines = received.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        call = re.fullmatch(r"POST /v1/fleet/([a-z-]+) HTTP/1\.1", first)
        assert call[1] in OPERATIONS
        names = [line.partition(":")[0].lower() for line in lines]
        assert set(names) <= {"host", "content-length", "connection", *HEADERS}
        assert names.count("content-length") == names.count("host") == 1


def test_a_superlink_that_is_away_is_said_and_not_hidden(program: str, keys: Path) -> None:
    pytest.importorskip("flwr")
    from fedfw.deployment.flower.checks import ADDRESS_CHECKS, Outside, Verdict, findings
    from fedfw.deployment.flower.local import free_port

    with running(program, keys, free_port()) as front:
        assert front.status(head() + b"abc") in (502, 503)
        results = findings(ADDRESS_CHECKS, Outside(Address(HOST, front.port), keys / "ca.crt"))
    assert [one.verdict for one in results] == [
        Verdict.OK,
        Verdict.OK,
        Verdict.UNKNOWN,
        Verdict.UNKNOWN,
    ]


def test_a_superlink_with_another_certificate_is_not_believed(
    program: str, keys: Path, tmp_path: Path, superlink: FakeSuperLink
) -> None:
    from fedfw.deployment.flower.keys import make_certificates

    make_certificates(tmp_path / "other")
    superlink.seen.clear()
    with (
        FakeSuperLink(tmp_path / "other") as impostor,
        running(program, keys, impostor.port) as front,
    ):
        assert front.status(head() + b"abc") in (502, 503)
        assert impostor.seen == []


def test_the_network_is_encrypted(front: Front, superlink: FakeSuperLink) -> None:
    superlink.seen.clear()
    with socket.create_connection((HOST, front.port), timeout=SECONDS) as connection:
        connection.sendall(head() + b"abc")
        said = b""
        with suppress(OSError):
            said = connection.recv(1000)
    assert b" 200 " not in said
    assert superlink.seen == []
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ssl calls the version deprecated
        old.minimum_version = ssl.TLSVersion.TLSv1_1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    connection = socket.create_connection((HOST, front.port), timeout=SECONDS)
    with connection, pytest.raises(ssl.SSLError, match="alert protocol version"):
        old.wrap_socket(connection)


# --- what one address can take ---


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Enough of them for both ends of the connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * CONNECTIONS:
        pytest.skip(f"this process may open {hard} files; the test needs {2 * CONNECTIONS}")
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (2 * CONNECTIONS if soft < 2 * CONNECTIONS else soft, hard)
    )
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def hold(front: Front, stack: ExitStack, source: str, tls: bool) -> socket.socket | None:
    """Open a connection that says nothing; None where it is refused."""
    with suppress(OSError):
        connection = socket.create_connection(
            (HOST, front.port), timeout=SECONDS, source_address=(source, 0)
        )
        stack.enter_context(connection)
        if not tls:
            return connection
        connection = front.tls.wrap_socket(connection, server_hostname=HOST)
        stack.enter_context(connection)
        return connection
    return None


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:  # reset
        return False


PATIENT = dict.fromkeys(("30s", "60s", "65s"), "600s")
"""Nothing is closed for its silence while a slow machine opens connections."""


@pytest.mark.parametrize("tls", [False, True], ids=["TCP", "TLS"])
def test_silent_connections_of_one_address_leave_the_others_served(
    program: str, keys: Path, superlink: FakeSuperLink, descriptors: None, tls: bool
) -> None:
    with running(program, keys, superlink.port, PATIENT) as front, ExitStack() as stack:
        found = [hold(front, stack, OTHER, tls) for _ in range(CONNECTIONS)]
        held = [connection for connection in found if connection is not None]
        for _ in range(10):
            assert front.status(head() + b"abc") == 200
        assert front.resident() < 150
        still_open = sum(map(is_open, held))
        assert 0 < still_open <= ProxySettings.connections
        with suppress(OSError):
            assert front.status(head() + b"abc", OTHER) == 0  # its share is spent


@pytest.mark.parametrize(
    "tls", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["TCP", "TLS"]
)
def test_silent_connections_of_many_addresses_leave_the_others_served(
    program: str, keys: Path, superlink: FakeSuperLink, descriptors: None, tls: bool
) -> None:
    share = ProxySettings.connections
    with running(program, keys, superlink.port, PATIENT) as front, ExitStack() as stack:
        sources = [f"127.0.0.{2 + number // share}" for number in range(CONNECTIONS)]
        held = [hold(front, stack, source, tls) for source in sources]
        for _ in range(10):
            assert front.status(head() + b"abc") == 200
        assert front.resident() < 250
        assert (
            sum(is_open(connection) for connection in held if connection is not None) == CONNECTIONS
        )


def test_bodies_have_limits(program: str, keys: Path, superlink: FakeSuperLink) -> None:
    superlink.seen.clear()
    size = 8 * 2**20
    with running(program, keys, superlink.port, largest=8, bodies=2) as front, ExitStack() as stack:
        assert front.status(head(length=str(size + 1))) == 413
        before, held = front.resident(), []
        for _ in range(2):
            connection = stack.enter_context(front.connect(OTHER))
            connection.sendall(head(length=str(size)) + b"x" * (size - 1))
            held.append(connection)
        assert front.status(head(length=str(size)) + b"x" * 1000, OTHER) == 503
        assert (
            front.resident() - before < 10
        )  # less than the bodies: they are on disk, or not yet taken
        assert front.status(head() + b"abc", OTHER) == 200  # short ones are not counted
        assert front.said(head(length=str(size)) + b"x" * size).endswith(f"{size} bytes".encode())
        for connection in held:
            connection.sendall(b"x")
            assert read_answer(connection).endswith(f"{size} bytes".encode())
        assert front.said(head(length=str(size)) + b"x" * size, OTHER).endswith(
            f"{size} bytes".encode()
        )
    assert [length for _, length in superlink.seen] == [3, *[size] * 4]


def test_slow_bodies_of_one_address_leave_the_others_served(
    program: str, keys: Path, superlink: FakeSuperLink
) -> None:
    with running(program, keys, superlink.port) as front, ExitStack() as stack:
        for length in (9_000, 90_000):
            for _ in range(45):  # within the address's share of connections
                connection = stack.enter_context(front.connect(OTHER))
                with suppress(OSError):  # some are refused before they are read
                    connection.sendall(head(length=str(length)) + b"x" * (length // 2))
        for length in (3, 9_000, 90_000):
            assert front.status(head(length=str(length)) + b"x" * length) == 200


def test_calls_of_one_address_have_a_limit(
    program: str, keys: Path, superlink: FakeSuperLink
) -> None:
    with running(program, keys, superlink.port, rate=1) as front:
        with front.connect(OTHER) as connection:
            answers = []
            for _ in range(40):
                connection.sendall(head() + b"abc")
                answers.append(read_answer(connection)[9:12])
                if not answers[-1] or answers[-1] != b"200":
                    break
        assert answers[0] == b"200"
        assert answers[-1] == b"503"
        assert front.status(head() + b"abc") == 200


def test_silence_has_an_end(program: str, keys: Path, superlink: FakeSuperLink) -> None:
    superlink.seen.clear()
    unfinished = [b"", b"POST /v1/fl", head() + b"a", head(length="200000") + b"x" * 100_000]
    with (
        running(program, keys, superlink.port, {"30s": "1s", "60s": "1s"}) as front,
        ExitStack() as stack,
    ):
        plain = stack.enter_context(socket.create_connection((HOST, front.port), timeout=SECONDS))
        connections = [stack.enter_context(front.connect()) for _ in unfinished]
        for connection, data in zip(connections, unfinished, strict=True):
            connection.sendall(data)
        for connection in connections:
            said = read_answer(connection)  # ends because the proxy closes
            assert said == b"" or re.match(rb"HTTP/1\.1 (408|504) ", said)
        with suppress(ConnectionResetError):
            assert plain.recv(1) == b""
    assert not any(length for _, length in superlink.seen)


def test_long_heads_are_refused(front: Front, superlink: FakeSuperLink) -> None:
    superlink.seen.clear()
    endless = b"POST /v1/fleet/get-run HTTP/1.1\r\nHost: a\r\na: " + b"x" * 40_000
    assert front.status(endless) in (0, 400, 414, 431)
    assert superlink.seen == []
