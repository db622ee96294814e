"""A closed federation behind nginx, with a hostile client, whose server is replaced by a hostile
one.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from fedfw.cli import main
from fedfw.cli.deploy_init import copy_app
from fedfw.deployment.consent import CONSENT, Consent
from fedfw.deployment.ledger import charged
from fedfw.deployment.refusal import Refusal
from fedfw.deployment.terms import DataBudget

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

from fedfw.deployment.flower.local import LocalFederation

from .test_apps import finished, records, wait_until
from .test_proxy import installed

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(
        not installed("nginx"),
        reason="nginx is not installed: apt-get install nginx libnginx-mod-stream",
    ),
]
BUDGET = DataBudget(4.0, 1e-5)
APP = '''
"""The signed app: client 2 damages its answers, and the server's half does what its host wants."""

from pathlib import Path

from flwr.app import ConfigRecord

from federation.task import make_task
from fedfw.deployment.flower import client_app, server_app


def damage(message, context, call_next):
    reply = call_next(message, context)
    fields = dict(reply.content.get("fedfw", {}))
    if context.node_config["partition-id"] == 2 and fields.get("payload"):
        fields["payload"] = bytes(byte ^ 255 for byte in fields["payload"])
        reply.content["fedfw"] = ConfigRecord(fields)
    return reply


client = client_app(make_task, mods=[damage])


code = Path("{folder}/attack.py")  # what a server's process runs is its host's business: no signature binds it
if code.exists():
    exec(code.read_text(), {})
server = server_app(make_task)
'''
ATTACK = '''
import json
from dataclasses import replace
from pathlib import Path

from fedfw.deployment.training import TrainingServer
from fedfw.rounds.vectors import encoded
from fedfw.rounds.wire import digest

seen = Path("{folder}/seen.jsonl")
open_round, take = TrainingServer.open, TrainingServer.take


def altered(server, order):
    """Each round has another name, a full weight and a corner of the set as its model."""
    slopes = server.task.start.double() + order.t
    model = server.task.constraint.lmo(slopes.to(server.task.start)).dense().double()
    return replace(
        order,
        run=f"{order.run}-{order.t}",
        weight=1.0,
        t=1,
        counted=0,
        base=0,
        vectors={"xbar": encoded(model).write()},
        memory={"x": encoded(model.to(server.task.start)).write()},
        digest=digest(model),
        report=True,
    )


def hostile_orders(server, online):
    orders = open_round(server, online)
    if Path("{folder}/alter").exists():
        return {client: altered(server, order) for client, order in orders.items()}
    return orders


def watched(server, client, received):
    with open(seen, "a") as file:
        one = {name: value.hex() if isinstance(value, bytes) else value for name, value in received.items()}
        file.write(json.dumps([client, one]) + "\\n")
    return take(server, client, received)


TrainingServer.open, TrainingServer.take = hostile_orders, watched
'''


def private_app(folder: Path) -> Path:
    """An app for three clients, signed by whom the owners trust."""
    copy_app(folder / "app")
    project = folder / "app" / "pyproject.toml"
    lines = [
        "clients = 3" if line.startswith("clients = ") else line
        for line in project.read_text().splitlines()
    ]
    project.write_text("\n".join(lines) + "\n")
    (folder / "app" / "federation" / "apps.py").write_text(APP.replace("{folder}", str(folder)))
    return folder / "app"


def train(federation: LocalFederation, app: Path, name: str, **options: Any) -> str:
    usual = {
        "algorithm": "fedfw",
        "constraint": "l1:10",
        "penalty": 1e-4,
        "momentum": 0.9,
        "rounds": 5,
    }
    how = {"out": str(federation.folder / name), "round-timeout": 60.0, "start-timeout": 60.0}
    return federation.submit(app, usual | how | options, f"run-{name}")


def answers(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """All that the hostile server was sent, by client."""
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in (folder / "seen.jsonl").read_text().splitlines():
        client, fields = json.loads(line)
        found[client].append(fields)
    return found


def test_a_server_that_was_replaced_learns_nothing_beyond_the_budget(tmp_path: Path) -> None:
    app = private_app(tmp_path)
    owners = Consent(privacy=BUDGET)
    with LocalFederation(
        tmp_path / "federation", 3, consent=owners, proxies=["nginx"]
    ) as federation:
        folder = federation.folder
        homes = [folder / "consent" / f"client-{client}" for client in range(3)]
        for client, home in enumerate(homes):
            state = ("--partition-id", str(client), "--state-dir", str(folder / "state"))
            assert main(["deploy", "check-data", str(home), "--app", str(app), *state]) == 0

        def ledger(client: int) -> list[Any]:
            return Consent.read(homes[client] / CONSENT).ledger(client, folder / "state").releases()

        # Five rounds with an honest server: the hostile client's answers are refused, the others'
        # count.
        run = train(federation, app, "honest", privacy="eps=2,delta=1e-6")
        history = finished(federation, run, folder / "honest")
        assert [record.participants for record in history] == [2] * 5
        refused = sum((Counter(record.refused) for record in history), Counter[str]())
        assert refused.keys() == {"bad atom"}
        before = [len(ledger(client)) for client in range(3)]
        assert before == [5, 5, refused["bad atom"]]
        kept = [charged(ledger(client)) for client in range(3)]
        assert all(1.5 < eps <= 2 for eps, _ in kept)

        # The server's processes end, and hostile ones take their place, with its database, address
        # and keys.
        federation.kill("superexec")
        federation.kill("superlink")
        (tmp_path / "attack.py").write_text(ATTACK.replace("{folder}", str(tmp_path)))
        federation.start_superlink()
        for name, more in {"plain": {}, "greedy": {"privacy": "eps=100,delta=1e-6"}}.items():
            run = train(federation, app, name, **more)
            wait_until(lambda run=run: not federation.running(run), f"the end of {run}")  # type: ignore[misc]
            assert sum(record.participants for record in records(folder / name)) == 0
        said = Counter(
            (one["kind"], one["payload"]) for of in answers(tmp_path).values() for one in of
        )
        assert {kind for kind, _ in said} == {"refused"}
        honest_texts = {reason.encode().hex() for reason in (Refusal.PLAIN, Refusal.PROMISE)}
        damaged = {bytes(byte ^ 255 for byte in bytes.fromhex(text)).hex() for text in honest_texts}
        assert {payload for _, payload in said} == honest_texts | damaged
        assert [charged(ledger(client)) for client in range(3)] == kept

        # Each order begins a run of its own: what is left of the budget is spent, and after that
        # nothing is said.
        (tmp_path / "seen.jsonl").unlink()
        (tmp_path / "alter").touch()
        run = train(federation, app, "altered", privacy="eps=0.5,delta=1e-6", rounds=8)
        wait_until(lambda: not federation.running(run), "the end of the altered run")
        for client, of in answers(tmp_path).items():
            steps = [one for one in of if one["kind"] == "step"]
            rest = [one for one in of if one["kind"] != "step"]
            assert 0 < len(steps) == len(ledger(client)) - before[client]
            assert all("loss" not in one for one in steps)
            assert {(one["kind"], one["payload"], one["digest"]) for one in rest} <= {
                ("leaving", "", "")
            }
        for client in range(3):
            eps, delta = charged(ledger(client))
            assert kept[client][0] < eps <= BUDGET.eps * (1 + 1e-9)
            assert delta <= BUDGET.delta * (1 + 1e-9)
