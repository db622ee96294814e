"""Rounds that are replayed: the same as those taken step by step, here with a stand-in for the
GPU's recording.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

import fedfw
from fedfw.algorithms import Message, Rates, State
from fedfw.atoms import Atom
from fedfw.errors import NonFiniteError
from fedfw.simulation.replay import ExchangeSteps, ReplayedRounds


class Overwriting:
    """What a CUDA graph does to its results: the next replay overwrites them."""

    gave_up = False
    ready = True
    replays = 0

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.given, self.last = function, (), None  # type: tuple[Any, Any, Any]

    def __call__(self, *inputs: Tensor) -> Any:
        if self.last is None:
            self.given = tuple(tensor.clone() for tensor in inputs)
        else:  # one after another, as a device may do it
            for place, tensor in zip(self.given, inputs, strict=True):
                place.copy_(tensor)
            held = {place.untyped_storage().data_ptr() for place in self.given}
            for tensor in tensors_of(self.last):
                if tensor.untyped_storage().data_ptr() not in held:
                    tensor.zero_()
        taken = self.function(*self.given)
        self.last = taken.steps
        Overwriting.replays += 1
        return taken


def tensors_of(taken: ExchangeSteps) -> list[Tensor]:
    upload, step = taken.uploads[0], taken.step
    assert upload.after is not None
    found = [*upload.after.values(), *step.state.values(), *step.down.values()]
    for atom in upload.sent.values():
        found += parts_of(atom)
    if upload.evidence is not None:
        found.append(upload.evidence.number)
    if upload.evidence is not None and upload.evidence.q is not None:
        found.append(upload.evidence.q)
    return found


def parts_of(atom: Atom) -> list[Tensor]:
    """Return the floating-point tensors of a stack of atoms."""
    parts = vars(atom).values()
    return [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def turn_on() -> None:
        Overwriting.replays = 0
        monkeypatch.setattr("fedfw.simulation.simulator.can_be_replayed", lambda *of: True)
        monkeypatch.setattr(
            "fedfw.simulation.executor.ReplayedRounds", partial(ReplayedRounds, replay=Overwriting)
        )

    return turn_on


def problem() -> fedfw.Problem:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, 20, 6, generator=generator)
    targets = torch.randint(0, 3, (4, 20), generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
    return fedfw.Problem(model, nnf.cross_entropy, list(zip(inputs, targets, strict=True)))


@pytest.mark.parametrize("constraint", ["l1:3", "l2:3", "nuclear:3"])
@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
def test_replayed_rounds_are_the_rounds(
    name: str, constraint: str, replaying: Callable[[], None]
) -> None:
    algorithm = fedfw.ALGORITHMS[name](fedfw.parse_set(constraint))
    plain = fedfw.simulate(problem(), algorithm, rounds=12, eval_every=4)
    replaying()
    models: list[Tensor] = []
    keep = [lambda simulation: models.append(simulation.server.xbar)]
    replayed = fedfw.simulate(problem(), algorithm, rounds=12, eval_every=4, callbacks=keep)
    # Here nothing minds that decompositions wait.
    # These look at the round's number: for Adam's moments, for shorter steps, for the next
    # multiplier.
    counts = name in ("fedadam", "fedadamw", "fast-fedda", "fedpal")
    assert Overwriting.replays == (0 if counts else 12)
    assert torch.allclose(plain.x, replayed.x, rtol=1e-5, atol=1e-6)
    assert not torch.equal(models[3], models[11])  # what callbacks keep is not overwritten
    for column in ("bytes_up", "bytes_down", "participants", "eta", "lam"):
        assert plain.history.to_dict()[column] == replayed.history.to_dict()[column]
    for column in ("loss", "gap", "lower_bound", "surrogate"):
        pairs = zip(plain.history, replayed.history, strict=True)
        for one, other in ((getattr(a, column), getattr(b, column)) for a, b in pairs):
            assert (one is None) == (other is None)
            assert one is None or one == pytest.approx(other, abs=1e-5)


def test_a_number_that_is_not_one_still_names_its_client_and_round(
    replaying: Callable[[], None],
) -> None:
    replaying()
    there = problem()
    algorithm = fedfw.FedFW(fedfw.L1Ball(3.0), penalty=0.01)

    def spoil(simulation: Any) -> None:
        if simulation.t == 5:
            simulation.problem.losses._stacks[0].inputs[2, 3] = torch.nan

    with pytest.raises(NonFiniteError, match=r"round 6: .* client 2"):
        fedfw.simulate(there, algorithm, rounds=12, eval_every=100, callbacks=[spoil])


@dataclass(frozen=True)
class Slowing(fedfw.FedFW):
    """Looks at the number of the round, which no recording can know."""

    name = "slowing"

    def direction(self, d: Tensor, shared: State, msg: Message, rates: Rates) -> Tensor:
        return super().direction(d / msg.t, shared, msg, rates)


@pytest.mark.parametrize("what", ["server", "clients", "replaced", "data"])
def test_a_round_that_was_begun_ahead_is_taken_anew_where_a_callback_changes_something(
    what: str, replaying: Callable[[], None]
) -> None:
    """In place, or by another tensor: the next round sees it, as it does where nothing is begun
    ahead.
    """

    def meddle(simulation: Any) -> None:
        if simulation.t not in (3, 7, 8):
            return
        coordinator = simulation.coordinator
        if what == "server":
            coordinator.server.xbar.mul_(0.5)
        elif what == "clients":
            coordinator.memory.rows["x"][1] *= 0.5
        elif what == "replaced":
            coordinator.memory.rows["x"] = coordinator.memory.rows["x"] * 0.5
        else:
            simulation.problem.losses._stacks[0].inputs[2] *= 0.5

    algorithm = fedfw.FedFW(fedfw.L2Ball(3.0), penalty=0.01)
    plain = fedfw.simulate(problem(), algorithm, rounds=12, eval_every=5, callbacks=meddle)
    replaying()
    replayed = fedfw.simulate(problem(), algorithm, rounds=12, eval_every=5, callbacks=meddle)
    assert Overwriting.replays == 12 + 3  # those that were begun ahead in vain
    assert torch.allclose(plain.x, replayed.x, rtol=1e-6, atol=1e-7)
    assert plain.history.to_dict()["bytes_down"] == replayed.history.to_dict()["bytes_down"]


def test_an_algorithm_that_looks_at_the_round_is_not_replayed(
    replaying: Callable[[], None],
) -> None:
    algorithm = Slowing(fedfw.L1Ball(3.0), penalty=0.01)
    plain = fedfw.simulate(problem(), algorithm, rounds=8)
    replaying()
    assert torch.equal(plain.x, fedfw.simulate(problem(), algorithm, rounds=8).x)
    assert Overwriting.replays == 0


# --- Where the kernel in one pass is used; test_cuda.py compares it with float64 on a device ---
