"""What the proxy lets through, and that nothing else of a request ever reaches the SuperLink."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("trustme")

from fedfw.deployment.flower import proxy as module
from fedfw.deployment.flower.keys import make_certificates
from fedfw.deployment.flower.proxy import OPERATIONS, Address, Proxy, RefusedRequest, Request

HEADERS = (
    *("Host: 10.0.0.1:8443", "Accept: application/x-protobuf", "Accept-Encoding: gzip", "Connection: keep-alive"),
    *("flwr-public-key: QUJD", "flwr-signature: c2ln", "flwr-timestamp: 2026-01-01T00:00:00+00:00"),
)


def head(*lines: str, first: str = "POST /v1/fleet/pull-messages HTTP/1.1", length: str | None = "3") -> bytes:
    stated = () if length is None else (f"Content-Length: {length}",)
    return "\r\n".join([first, *HEADERS, *stated, *lines, "", ""]).encode("latin-1")


def status_of(data: bytes) -> int:
    with pytest.raises(RefusedRequest) as refused:
        Request.parse(data)
    return refused.value.status


def test_a_nodes_call_is_passed_on_with_what_the_superlink_reads() -> None:
    request = Request.parse(head())
    assert (request.operation, request.length) == ("pull-messages", 3)
    written = request.written(Address("127.0.0.1", 8000)).decode()
    assert written.startswith("POST /v1/fleet/pull-messages HTTP/1.0\r\nhost: 127.0.0.1:8000\r\n")
    for header in ("flwr-public-key: QUJD", "flwr-signature: c2ln", "content-length: 3"):
        assert f"\r\n{header}\r\n" in written
    assert "gzip" not in written
    assert "keep-alive" not in written


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/docs", "/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"),
        *("/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/fleet/", "/v1/fleet", "/v1/fleet/no-such"),
        *("/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs", "/v1/fleet/..%2fcontrol%2flist-runs"),
        *("//v1/fleet/get-run", "/v1//fleet/get-run", "/v1/./fleet/get-run", "/V1/fleet/get-run", "/v1/fleet/Get-Run"),
        *("/v1/fleet/get-run/", "/v1/fleet/get-run?x=1", "/v1/fleet/get-run#x", "/v1/fleet/get-run;x", "*"),
        *("/v1/fleet/get-run/../../control/list-runs", "/v1/fleet/get%2Drun", "http://a/v1/fleet/get-run", "a:443"),
        *("/v1\\fleet\\get-run", "/v1/fleet/get-run\t", "/v1/fleet/get-run /v1/control/list-runs"),
    ],
)
def test_every_other_path_is_not_found(path: str) -> None:
    assert status_of(head(first=f"POST {path} HTTP/1.1")) == 404


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS", "CONNECT", "TRACE", "PRI", "post", "POSTT", ""])
def test_every_other_method_is_not_found(method: str) -> None:
    assert status_of(head(first=f"{method} /v1/fleet/get-run HTTP/1.1")) == 404


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.10", "http/1.1", "HTTP/1.1 ", ""])
def test_every_other_version_is_not_found(version: str) -> None:
    assert status_of(head(first=f"POST /v1/fleet/get-run {version}")) == 404


@pytest.mark.parametrize(
    "line",
    [
        *("Transfer-Encoding: chunked", "transfer-encoding: identity", "TRANSFER-ENCODING : chunked", "Trailer: x"),
        *("Expect: 100-continue", "Upgrade: h2c", "Content-Length: 3", "content-length: 4", "flwr-signature: b"),
        *("Host: b", " folded: x", "\tfolded", "no colon", ": no name", "name : x", "na me: x", "a: \x7f", "a: \xe9"),
        *("a: x\ny: z", "a: x\rTransfer-Encoding: chunked", "", "a: \x0b", "a\x00b: x"),
    ],
)
def test_headers_that_two_readers_could_read_in_two_ways_are_refused(line: str) -> None:
    assert status_of(head(line)) == 400


@pytest.mark.parametrize(
    ("length", "status"),
    [
        *((None, 411), ("", 411), ("+3", 411), ("-3", 411), ("0x3", 411), ("3, 3", 411), ("3 3", 411), ("1e3", 411)),
        *(("9" * 5000, 411), (str(2**40), 413), (str(module.BODY_LIMIT + 1), 413), ("\xb2", 400)),
    ],
)
def test_a_body_has_one_plain_length_below_the_limit(length: str | None, status: int) -> None:
    assert status_of(head(length=length)) == status


@given(
    position=st.integers(0, 400),
    removed=st.integers(0, 3),
    inserted=st.one_of(
        st.binary(max_size=6),
        st.sampled_from([b"\r\n", b"\n", b"\r\n\r\n", b"\r\n ", b"/../", b"%2e", b"Content-Length: 9\r\n", b" "]),
    ),
)
def test_whatever_is_accepted_is_passed_on_as_one_call_of_the_fleet(
    position: int, removed: int, inserted: bytes
) -> None:
    plain = head()
    data = plain[:position] + inserted + plain[position + removed :]
    data = data[: data.find(b"\r\n\r\n") + 4] if b"\r\n\r\n" in data else data  # as the proxy reads it
    try:
        request = Request.parse(data)
    except RefusedRequest:
        return
    written = request.written(Address("127.0.0.1", 8000)).decode("ascii")
    first, *lines = written.removesuffix("\r\n\r\n").split("\r\n")
    names = [line.partition(":")[0] for line in lines]
    call = re.fullmatch(r"POST /v1/fleet/([a-z-]+) HTTP/1\.0", first)
    assert call is not None
    assert call[1] in OPERATIONS
    assert len(names) == len(set(names))
    assert names.count("content-length") == names.count("host") == 1
    assert not {"transfer-encoding", "connection", "x-forwarded-for"} & set(names)


# --- over real connections ---


class FakeSuperLink:
    """Answers every call with its own length, and remembers what it was sent."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head_ = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: ([0-9]+)", head_)
        assert length is not None
        body = await reader.readexactly(int(length[1]))
        self.seen.append(head_ + body)
        answer = f"{len(body)} bytes".encode()
        start = f"HTTP/1.1 200 OK\r\nserver: secret\r\ncontent-type: x\r\ncontent-length: {len(answer)}\r\n\r\n"
        writer.write(start.encode() + answer)
        writer.close()


def through_proxy(folder: Path, sent: Sequence[bytes], *, there: bool = True) -> tuple[list[bytes], FakeSuperLink]:
    """Send texts to a proxy, one connection each; returns what came back until the proxy closed or fell silent."""
    make_certificates(folder)

    async def talk() -> tuple[list[bytes], FakeSuperLink]:
        superlink = FakeSuperLink()
        inner = await asyncio.start_server(superlink.serve, "127.0.0.1", 0)
        at = Address("127.0.0.1", inner.sockets[0].getsockname()[1])
        if not there:
            inner.close()
        server = await Proxy(at).start(Address("127.0.0.1", 0), folder / "server.pem", folder / "server.key")
        port = server.sockets[0].getsockname()[1]
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        answers = []
        for data in sent:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(data)
            answers.append(await asyncio.wait_for(reader.read(), 20))
            writer.close()
        server.close()
        inner.close()
        return answers, superlink

    return asyncio.run(talk())


def test_calls_pass_and_a_connection_serves_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 1.0)  # then the silent connection is closed
    [answer], superlink = through_proxy(tmp_path, [head() + b"abc" + head(length="5") + b"12345"])
    assert [call.partition(b"\r\n\r\n")[2] for call in superlink.seen] == [b"abc", b"12345"]
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert b"3 bytes" in answer
    assert answer.endswith(b"5 bytes")
    assert b"secret" not in answer


def test_nothing_can_be_smuggled_behind_a_call(tmp_path: Path) -> None:
    hidden = b"POST /v1/control/list-runs HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    sent = [
        head() + b"abc" + hidden,
        head("Transfer-Encoding: chunked") + b"0\r\n\r\n" + hidden,
        head("Content-Length: 0") + b"abc" + hidden,
    ]
    answers, superlink = through_proxy(tmp_path, sent)
    assert [re.findall(rb"HTTP/1.1 (\d+)", answer) for answer in answers] == [[b"200", b"404"], [b"400"], [b"400"]]
    assert len(superlink.seen) == 1
    assert not any(b"control" in call for call in superlink.seen)


def test_long_heads_slow_senders_and_a_missing_superlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 1.0)
    endless = b"POST /v1/fleet/get-run HTTP/1.1\r\n" + b"a: " + b"x" * 40_000
    answers, superlink = through_proxy(tmp_path, [endless, b"POST /v1/fl", head(length="100") + b"too little"])
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 431", b"", b""]
    assert superlink.seen == []
    [answer], _ = through_proxy(tmp_path, [head() + b"abc"], there=False)
    assert answer.startswith(b"HTTP/1.1 502")


def test_memory_for_bodies_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IN_MEMORY", 1000)
    answers, superlink = through_proxy(tmp_path, [head(length="1001") + b"x" * 1001])
    assert answers[0].startswith(b"HTTP/1.1 503")
    assert superlink.seen == []


def test_the_network_is_encrypted(tmp_path: Path) -> None:
    make_certificates(tmp_path)

    async def in_the_clear() -> bytes:
        server = await Proxy(Address("127.0.0.1", 1)).start(
            Address("127.0.0.1", 0), tmp_path / "server.pem", tmp_path / "server.key"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        writer.write(head() + b"abc")
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        server.close()
        return answer

    assert b"HTTP" not in asyncio.run(in_the_clear())


@pytest.mark.parametrize("text", ["", "10.0.0.1", ":80", "a:b", "a:99999", "http://a:80", "::1:80", "a b:80"])
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"address={text!r}, expected HOST:PORT")):
        Address.parse(text)
