"""`check_algorithm` passes for every method, and refuses broken ones for the right reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import fedfw
from fedfw.algorithms import Client, Kind, Message, Oracles, Payload, Present, Run, State, Sums
from fedfw.atoms import Atom
from fedfw.testing import check_algorithm
from tests.table import METHODS, classes

D = fedfw.L2Ball(1.0)
PLAIN: dict[str, Any] = {"penalty": 0.1, "momentum": 0.0, "schedule": "convex"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_passes(name: str, dtype: torch.dtype) -> None:
    check_algorithm(METHODS[name], problem=classes(dtype), rounds=4)


# --- methods that are broken, each in one way ---


class Broken(fedfw.FedFW):
    """A method that would be well."""

    name, title = "broken", "Broken"


class WrongDirection(Broken):
    def public_direction(self, run: Run, shared: State, msg: Message) -> Tensor:
        return 2 * super().public_direction(run, shared, msg)


class WithoutDuals(fedfw.FedFWPlus):
    """Absentees keep their duals, and its server does not."""

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        return server, {}


class WrongMeans(fedfw.FedFWPlus):
    means: ClassVar[Mapping[str, str]] = {"xbar": "x", "ybar": "x"}


class WritesToShared(Broken):
    def apply(self, run: Run, shared: State, msg: Message, payload: Payload) -> State:
        return {"x": payload["atom"].step(shared["x"], msg.step)}


class WritesToMessage(Broken):
    def receive(self, run: Run, shared: State, msg: Message) -> State:
        msg.vectors["xbar"].mul_(0.5)
        return shared


class WritesToServer(Broken):
    def server_step(self, run: Run, server: State, sums: Sums, msg: Message) -> State:
        xbar = server["xbar"].mul_(1 - msg.step)
        return {"xbar": xbar.add_(sums.total("atom"), alpha=msg.step / run.n)}


class WritesToGradient(Broken):
    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        g = oracles.gradient(client.shared["x"])
        g += msg.rates[0].lam * (client.shared["x"] - msg.xbar)
        return client.private, {"atom": oracles.lmo(g)}


class MixesClients(Broken):
    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        private, _ = super().local_update(run, client, msg, oracles)
        x = client.shared["x"]
        mean = x.mean(0).expand_as(x)
        return private, {"atom": run.constraint.lmo(oracles.gradient(mean), batch=True)}


@dataclass(frozen=True, kw_only=True)
class AppliesPrivateState(Broken):
    """What the gradient was reaches `apply` behind the contract's back."""

    seen: dict[str, Tensor] = field(default_factory=dict, compare=False)

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        private, payload = super().local_update(run, client, msg, oracles)
        self.seen["a"] = oracles.gradient(client.shared["x"])
        return private, payload

    def apply(self, run: Run, shared: State, msg: Message, payload: Payload) -> State:
        x = payload["atom"].stepped(shared["x"], msg.step)
        return {"x": x - 1e-9 * self.seen["a"]}


class RemembersOutsideOfItsState(fedfw.FrankWolfe):
    """A checkpoint does not have what is written on a tensor."""

    name, title = "remembers", "Remembers"

    def server_step(self, run: Run, server: State, sums: Sums, msg: Message) -> State:
        count = getattr(server["xbar"], "count", 0) + 1
        after = dict(super().server_step(run, server, sums, msg))
        xbar = after["xbar"] * (1 - 1e-3 * count)
        xbar.count = count
        return after | {"xbar": xbar}


class SharesAndKeeps(Broken):
    def init_client(self, run: Run, x: Tensor) -> Client:
        shared, private = super().init_client(run, x)
        return Client(shared, private | {"x": x.clone()})


class UndeclaredUpload(Broken):
    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        private, payload = super().local_update(run, client, msg, oracles)
        return private, payload | {"a": oracles.gradient(client.shared["x"])}


class UndeclaredDownload(Broken):
    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        return server, {"twice": 2 * xbar}


class OutsideOfTheSet(Broken):
    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        private, payload = super().local_update(run, client, msg, oracles)
        atom: Atom = fedfw.L2Ball(2.0).lmo(-payload["atom"].dense(), batch=True)
        return private, {"atom": atom}


class LeavesTheSet(fedfw.FrankWolfe):
    name, title = "leaves", "Leaves"

    def server_step(self, run: Run, server: State, sums: Sums, msg: Message) -> State:
        return {"xbar": server["xbar"] - sums.mean("gradient")}


class Nameless(Broken):
    name = ""


class GridWithoutItsOption(Broken):
    @classmethod
    def grid(cls, setting: Any) -> dict[str, Any]:
        return {"slowness": (0.1, 0.9)}


class MissingUpload(fedfw.FrankWolfe):
    """It declares more than it sends."""

    name, title = "missing", "Missing"
    uploads: ClassVar[Mapping[str, Kind]] = {"gradient": Kind.VALUE, "curvature": Kind.VALUE}


REFUSED: dict[type[fedfw.Algorithm], str] = {
    WrongDirection: "public_direction is off by",
    WithoutDuals: "ybar is off the mean of the clients' y",
    WrongMeans: "ybar is off the mean of the clients' x",
    WritesToShared: "a client's function writes to its argument x",
    WritesToMessage: "a client's function writes to its argument xbar",
    WritesToServer: "broadcast or server_step writes to its argument xbar",
    WritesToGradient: "local_update writes to an oracle's result",
    MixesClients: "a client alone takes another step than in a stack",
    AppliesPrivateState: "the server rebuilds another x than clients hold",
    RemembersOutsideOfItsState: "a resumed run takes another step",
    SharesAndKeeps: r"\['x'\] are shared and private",
    UndeclaredUpload: r"local_update returned \['a', 'atom'\], expected the entries of uploads",
    UndeclaredDownload: r"broadcast sends \['twice'\], expected the names of downloads",
    OutsideOfTheSet: "declared as an atom of the set, and lies outside of it",
    LeavesTheSet: "xbar lies outside of the set",
    Nameless: "has no name for the command line",
    GridWithoutItsOption: r"the grid names \['slowness'\], which are no options",
    MissingUpload: r"local_update returned \['gradient'\], expected the entries of uploads",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_broken_method_is_refused_for_its_reason(kind: type[fedfw.Algorithm]) -> None:
    options = PLAIN if issubclass(kind, fedfw.FedFW) else {"momentum": 0.0, "schedule": "convex"}
    with pytest.raises((AssertionError, ValueError), match=REFUSED[kind]):
        check_algorithm(kind(D, **options))


def test_the_methods_are_broken_in_what_they_change_alone() -> None:
    check_algorithm(Broken(D, **PLAIN))
