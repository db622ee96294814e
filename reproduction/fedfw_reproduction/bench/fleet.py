"""What a large fleet costs: seconds a round, and the SuperLink's memory and database for each node.

    python -m fedfw_reproduction.bench.fleet [--nodes 10 200 1000] [--rounds 5] [--write]

The SuperLink, with TLS and node keys, its executor and the server's half of an app run behind a
proxy. The nodes are all in this process. These light nodes make the calls of a SuperNode, each over
a connection of its own and with a key of its own: heartbeats every 24 to 27 s, a look for messages
3 s after one that found none, and for each message eleven calls, the app's bundle included where the
run is new. `fedfw.deployment.Client` computes their answers. They leave out a SuperNode's process
for each message, which takes time on its owner's host and not on the server's.

On one machine the nodes take processor time from the SuperLink: read the seconds as an upper bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionMetadata  # type: ignore[attr-defined]
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.task_identity import TaskIdentity

from fedfw.deployment import Client
from fedfw.deployment.flower.local import HOST, OPEN, LocalFederation
from fedfw_reproduction.bench import fleet_task
from fedfw_reproduction.bench.pages import machine, markdown, publish
from fedfw_reproduction.bench.transport import message_of, order_of

NOTES = [
    "Flower's SuperLink is one Python process that answers calls one after another. A client's round is sixteen calls:",
    "eleven of the node's, five of the server's app. An idle node looks for messages every three seconds. *CPU when",
    "idle* is the share of a core that these looks take before the run begins: towards 100 % calls queue, and rounds",
    "become longer than their work. *Ours* is what `DeployedServer` takes. *Asked again* counts nodes that were asked",
    "more than once who they are, *absent* answers that came too late; waiting times are the default ones, which",
    "follow the number of clients. The light nodes take processor time from the SuperLink, so the seconds are an upper",
    "bound. A SuperNode's own process for each message takes time on its owner's host and is not in the table.",
]
_IDLE = 3.0  # seconds between looks of an idle SuperNode
_HEARTBEAT = 30.0
_SIGNATURE_LASTS = 60.0  # seconds; the SuperLink takes signed times for five minutes
_RETRIES = 8
Reply = TypeVar("Reply")


class CallError(Exception):
    """The SuperLink answered a call with an error; the text has its status and reason."""


@dataclass
class LightNode:
    """A node that makes a SuperNode's calls, over one connection.

    Parameters
    ----------
    client : Client
        What answers.
    address : tuple of str and int
        Of the proxy, or of the SuperLink.
    source : str
        The node's own address: proxies limit the connections and calls of one address.
    tls : ssl.SSLContext
        Trusts the SuperLink's certificate.
    worker : ThreadPoolExecutor
        Where answers are computed.
    """

    client: Client
    address: tuple[str, int]
    source: str
    tls: ssl.SSLContext
    worker: ThreadPoolExecutor
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP384R1())
    )
    calls: int = 0
    answered: int = 0
    failed: int = 0
    hellos: int = 0

    def __post_init__(self) -> None:
        self.public = public_key_to_bytes(self.key.public_key())
        self.node = Node()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._runs: set[int] = set()
        self._headers = ""
        self._signed = -_SIGNATURE_LASTS
        self._lock = asyncio.Lock()  # one connection for heartbeats and messages

    async def live(self) -> None:
        """Activate the node, then look for messages and answer them until the task is cancelled."""
        answer = await self._call(
            "activate-node",
            ActivateNodeRequest(public_key=self.public, heartbeat_interval=_HEARTBEAT),
            ActivateNodeResponse,
        )
        self.node = Node(node_id=answer.node_id)
        beat = asyncio.create_task(self._beat())
        try:
            while True:
                try:
                    found = await self._pull_and_answer()
                except CallError:
                    self.failed += 1
                    found = False
                if not found:
                    await asyncio.sleep(_IDLE)
        finally:
            beat.cancel()
            if self._streams is not None:
                self._streams[1].close()

    async def _beat(self) -> None:
        """Send a heartbeat now and then, for ever."""
        request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=_HEARTBEAT)
        while True:
            await asyncio.sleep(_HEARTBEAT * random.uniform(0.8, 0.9))
            with suppress(CallError):
                await self._call("send-node-heartbeat", request, SendNodeHeartbeatResponse)

    async def _pull_and_answer(self) -> bool:
        """Look for a message and answer it; return whether there was one."""
        pulled = await self._call(
            "pull-messages", PullMessagesRequest(node=self.node), PullMessagesResponse
        )
        if not pulled.messages_list:
            return False
        began = time.monotonic()
        header, tree = message_from_proto(pulled.messages_list[0]), pulled.message_object_trees[0]
        run = header.metadata.run_id
        if run not in self._runs:
            described = await self._call(
                "get-run", GetRunRequest(node=self.node, run_id=run), GetRunResponse
            )
            request = GetFabRequest(node=self.node, hash_str=described.run.fab_hash, run_id=run)
            await self._call("get-fab", request, GetFabResponse)
            self._runs.add(run)
        contents: dict[str, bytes] = {}
        for one in iterate_object_tree(tree):
            contents[one.object_id] = await self._pull(run, one.object_id)
        name = header.metadata.message_id
        confirmed = ConfirmMessageReceivedRequest(
            node=self.node, run_id=run, message_object_id=name
        )
        await self._call("confirm-message-received", confirmed, ConfirmMessageReceivedResponse)
        message: Any = inflate_object_from_contents(name, contents)
        message.metadata.__dict__["_message_id"] = name
        loop = asyncio.get_running_loop()
        reply = await loop.run_in_executor(self.worker, self._answer, message)
        await self._push(run, reply, time.monotonic() - began)
        self.answered += 1
        return True

    def _answer(self, message: Message) -> Message:
        """Return the client's answer to a question or an order."""
        torch.set_num_threads(1)
        if message.metadata.message_type == "query":
            self.hellos += 1
            fields = self.client.hello().fields()
        else:
            fields = self.client.handle(order_of(message)).fields()
        return message_of(fields, reply_to=message)

    async def _pull(self, run: int, name: str) -> bytes:
        """Return an object of a message, once the server's app has sent it."""
        for _ in range(100):
            request = PullObjectRequest(node=self.node, run_id=run, object_id=name)
            answer = await self._call("pull-object", request, PullObjectResponse)
            if answer.object_available:
                return bytes(answer.object_content)
            await asyncio.sleep(1.0)  # the server's app has announced it and not yet sent it
        raise CallError(f"object {name} never came")

    async def _push(self, run: int, reply: Message, seconds: float) -> None:
        """Send an answer, which took these seconds, with its objects."""
        objects = get_all_nested_objects(reply)
        tree: ObjectTree = get_object_tree(reply)
        header = remove_content_from_message(reply)
        request = PushMessagesRequest(
            node=self.node,
            messages_list=[message_to_proto(header)],
            message_object_trees=[tree],
            clientapp_runtime_list=[seconds],
        )
        answer = await self._call("push-messages", request, PushMessagesResponse)
        for name in answer.objects_to_push:
            pushed = PushObjectRequest(
                node=self.node,
                run_id=run,
                session_id=answer.session_id,
                object_id=name,
                object_content=objects[name].deflate(),
            )
            await self._call("push-object", pushed, PushObjectResponse)

    async def _call(self, name: str, request: Any, kind: type[Reply]) -> Reply:
        """Make a call and return its answer; where a connection ends or the server is overloaded, try
        again, as a SuperNode does.
        """
        body = request.SerializeToString(deterministic=True)
        async with self._lock:
            for attempt in range(_RETRIES):
                self.calls += 1
                try:
                    status, data = await asyncio.wait_for(self._exchange(name, body), 30.0)
                except (OSError, asyncio.IncompleteReadError, TimeoutError):
                    status, data = 503, b""
                    self._streams = None
                if status == 200:
                    answer: Any = kind()
                    answer.ParseFromString(data)
                    return answer  # type: ignore[no-any-return]
                if status not in (502, 503, 504):
                    break
                await asyncio.sleep(min(2.0**attempt, 20.0) * random.random())
        raise CallError(f"{name} is answered {status}: {data[:200]!r}")

    async def _exchange(self, name: str, body: bytes) -> tuple[int, bytes]:
        """Post a call over the node's connection; return the status and the body of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                *self.address, ssl=self.tls, server_hostname=HOST, local_addr=(self.source, 0)
            )
        reader, writer = self._streams
        head = f"POST /v1/fleet/{name} HTTP/1.1\r\n{self._signed_headers()}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
        data = await reader.readexactly(int(fields.get("content-length", "0")))
        if fields.get("connection") == "close":
            writer.close()
            self._streams = None
        return int(first.split()[1]), data

    def _signed_headers(self) -> str:
        """Return the headers of a call with a signature that the SuperLink still takes."""
        if time.monotonic() - self._signed >= _SIGNATURE_LASTS:
            stamp = now().isoformat()
            signature = sign_message(self.key, stamp.encode("ascii"))
            headers = {
                "Host": HOST,
                "Content-Type": PROTOBUF_MEDIA_TYPE,
                "Accept": PROTOBUF_MEDIA_TYPE,
                "flwr-public-key": b64encode(self.public).decode(),
                "flwr-timestamp": stamp,
                "flwr-signature": b64encode(signature).decode(),
                **dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()),
            }
            self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self._signed = time.monotonic()
        return self._headers


def register(federation: LocalFederation, nodes: list[LightNode]) -> None:
    """Register the nodes' keys with the SuperLink, as `flwr supernode register` does."""
    ca = (federation.folder / "keys" / "ca.crt").read_bytes()
    with ControlHttpClient.from_server_address(
        f"{HOST}:{federation.port}", False, ca, []
    ) as control:
        for node in nodes:
            control.RegisterNode(RegisterNodeRequest(public_key=node.public))


def resources(group: int) -> tuple[float, float]:
    """Return megabytes of resident memory and seconds of processor time of a group of processes."""
    pages = ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                pages += int((process / "statm").read_text().split()[1])
                ticks += int(fields[11]) + int(fields[12])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, ticks / os.sysconf("SC_CLK_TCK")


async def watch(
    federation: LocalFederation, process: str, out: Path, found: dict[str, Any]
) -> None:
    """Note when rounds end, and what the server's processes have used, until the run has ended."""
    history = out / "history.jsonl"
    groups = {name: federation._processes[name].pid for name in ("superlink", "superexec")}
    while federation.running(process):
        used = {name: resources(group) for name, group in groups.items()}
        for name, (memory, _) in used.items():
            found[name] = max(found[name], memory)
        lines = history.read_text().count("\n") if history.exists() else 0
        while len(found["ends"]) < lines:
            found["ends"].append(time.monotonic())
            found["cpu"].append(used["superlink"][1])
            print(f"  round {len(found['ends'])} has ended", file=sys.stderr, flush=True)
        await asyncio.sleep(0.2)


async def train(
    federation: LocalFederation, nodes: list[LightNode], app: Path, config: dict[str, Any]
) -> dict[str, Any]:
    """Start the nodes, measure them idle, then submit a run and watch it to its end."""
    tasks = [asyncio.create_task(node.live()) for node in nodes]
    while not all(node.node.node_id for node in nodes):
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.2)
    await asyncio.sleep(_IDLE)
    idle, cpu = time.monotonic(), resources(federation._processes["superlink"].pid)[1]
    await asyncio.sleep(4 * _IDLE)
    spent = resources(federation._processes["superlink"].pid)[1] - cpu
    found: dict[str, Any] = {"ends": [], "cpu": [], "superlink": 0.0, "superexec": 0.0}
    found["idle"] = spent / (time.monotonic() - idle)
    out = federation.folder / "out"
    found["began"] = time.monotonic()
    process = await asyncio.to_thread(federation.submit, app, {**config, "out": str(out)}, "run")
    await watch(federation, process, out, found)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if not (out / "done.json").exists():
        raise RuntimeError(f"the run ended early:\n{federation.log(process, 40)}")
    found["records"] = [
        json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()
    ]
    return found


def own_address(number: int) -> str:
    """Return an address of this machine for a node."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


def measure(count: int, rounds: int, proxy: str) -> dict[str, Any]:
    """Return what a run with so many nodes, in this process, takes."""
    for name in ("_run_id", "_node_id", "_task_id"):
        # Flower's messages can be made only where it says that an app runs.
        setattr(TaskIdentity, name, 1)
    random.seed(0)
    with tempfile.TemporaryDirectory(prefix="fleet") as name:
        folder = Path(name)
        app = folder / "app"
        subprocess.run(
            [sys.executable, "-m", "fedfw", "deploy", "init", str(app)],
            check=True,
            stdout=subprocess.PIPE,
        )
        shutil.copy(fleet_task.__file__, app / "federation" / "task.py")
        config = {"clients": count, "rounds": rounds}
        task = fleet_task.make_task(config)
        local = LocalFederation(folder / "federation", 0, proxies=[proxy] if proxy else [])
        with local as federation, ThreadPoolExecutor(1) as worker:
            tls = ssl.create_default_context(cafile=str(federation.folder / "keys" / "ca.crt"))
            host, _, port = federation.addresses[0].rpartition(":")
            nodes = []
            for number in range(count):
                client = Client(task, number, folder / "state", consent=OPEN)
                nodes.append(LightNode(client, (host, int(port)), own_address(number), tls, worker))
            register(federation, nodes)
            found = asyncio.run(train(federation, nodes, app, config))
            database = sum(path.stat().st_size for path in federation.folder.glob("superlink.db*"))
            traffic = federation.traffic()["total-bytes"]
    ends, records = found["ends"], found["records"]
    return {
        "nodes": count,
        "first": ends[0] - found["began"],
        "round": statistics.median(later - earlier for earlier, later in pairwise(ends)),
        "cpu": statistics.median(later - earlier for earlier, later in pairwise(found["cpu"])),
        "idle": found["idle"],
        "ours": statistics.median(record["seconds"]["server"] for record in records),
        "absent": sum(record["invited"] - record["participants"] for record in records),
        "asked_again": sum(node.hellos for node in nodes) - count,
        "failed": sum(node.failed for node in nodes),
        "superlink": found["superlink"],
        "server_app": found["superexec"],
        "database": database,
        "traffic": traffic / sum(node.answered for node in nodes),
    }


HEADER = [
    "nodes",
    "s until the first round has ended",
    "s a round",
    "of them ours",
    "SuperLink CPU s a round",
    "CPU when idle",
    "SuperLink MB",
    "server app MB",
    "database MB",
    "bytes a node and message",
    "asked again",
    "absent",
]


def row_of(found: dict[str, Any]) -> list[str]:
    """Return a line of the table."""
    return [
        f"{found['nodes']:,}",
        f"{found['first']:.0f}",
        f"{found['round']:.1f}",
        f"{found['ours']:.2f}",
        f"{found['cpu']:.1f}",
        f"{100 * found['idle']:.0f} %",
        f"{found['superlink']:.0f}",
        f"{found['server_app']:.0f}",
        f"{found['database'] / 1e6:.1f}",
        f"{found['traffic']:.0f}",
        f"{found['asked_again']}",
        f"{found['absent']}",
    ]


def a_node(small: dict[str, Any], large: dict[str, Any]) -> str:
    """Return what each further node takes, in words."""
    more = large["nodes"] - small["nodes"]
    superlink = 1e3 * (large["superlink"] - small["superlink"]) / more
    app = 1e3 * (large["server_app"] - small["server_app"]) / more
    database = (large["database"] - small["database"]) / 1e3 / more
    return (
        f"From {small['nodes']:,} to {large['nodes']:,} nodes each takes {superlink:.0f} kB of the SuperLink's memory, "
        f"{app:.0f} kB of the server app's, {database:.1f} kB of database, and "
        f"{1e3 * large['cpu'] / large['nodes']:.0f} ms of the SuperLink's processor time a round."
    )


def main() -> None:
    """Measure fleets of each size, each in a process of its own, and print the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 200, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--proxy",
        choices=["haproxy", "nginx", ""],
        default="haproxy",
        help="in front of the SuperLink",
    )
    parser.add_argument("--write", action="store_true", help="write reproduction/reports/fleet.md")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        # What was started ends with this process.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        print(json.dumps(measure(options.one, options.rounds, options.proxy)))
        return
    results = []
    for count in options.nodes:
        print(f"{count} nodes", file=sys.stderr, flush=True)
        flags = ["--one", str(count), "--rounds", str(options.rounds), "--proxy", options.proxy]
        command = [sys.executable, "-m", "fedfw_reproduction.bench.fleet", *flags]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        results.append(json.loads(printed.splitlines()[-1]))
        print(" | ".join(row_of(results[-1])), file=sys.stderr, flush=True)
    sizes = " ".join(map(str, options.nodes))
    lines = [
        "# What a large fleet costs",
        "",
        f"`python -m fedfw_reproduction.bench.fleet --nodes {sizes} --rounds {options.rounds} --write`:",
        f"a SuperLink with TLS and node keys behind {options.proxy or 'no proxy'}, and as many light nodes, all on",
        "one machine.",
        machine(),
        f"The machine's load average was {os.getloadavg()[2]:.1f} on {os.cpu_count()} cores.",
        "",
        *markdown(HEADER, [row_of(found) for found in results]),
        "",
        *(a_node(small, large) for small, large in pairwise(results)),
        "",
        *NOTES,
    ]
    publish(lines, "fleet.md" if options.write else None)


if __name__ == "__main__":
    main()
