"""One algorithm that is best on polytopes and on smooth sets: what was tried.

Momentum with duals (FedFW+) wins on the l2 ball, anchors on the l1 ball. Tried here, all with
momentum 0.9:

anchors
    As they are: at an anchor x_i <- xbar, and the corrected direction w_i grad f_i(x_i) + y_i is
    averaged.
anchors, points kept
    The same, but x_i stay where they are, so the penalty has something to pull on.
duals from averages
    FedFW+ whose duals are set to y_i = (1/n) sum_j d_j - d_i now and then, d_i the averaged
    gradients: no gradient is computed for it, but their sum is shared.
FedLMO
    Shared momentum and control variates; every client begins each round at xbar. It sends two dense
    vectors beside each atom. It has no penalty: schedule and momentum are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedfw.algorithms import (
    Affine,
    Algorithm,
    Anchor,
    Client,
    Exchange,
    FedFWAnchored,
    FedFWPlus,
    Kind,
    Message,
    Oracles,
    Payload,
    Present,
    Reveals,
    Run,
    State,
    Sums,
)
from fedfw.config import RunConfig, build_problem
from fedfw.report import human_bytes
from fedfw.sets import parse_set
from fedfw.simulation import simulate
from fedfw.tuning import HELD_OUT
from fedfw_reproduction.cells import Cell, columns_of, data_of, device_of, placed, problem_of
from fedfw_reproduction.document import Document
from fedfw_reproduction.figures import RESIDUAL, Done, Judged, accuracies, all_run, average
from fedfw_reproduction.lab import Json, Site
from fedfw_reproduction.protocols import LMO_SIX, Scale
from fedfw_reproduction.schema import Identity, identity

PENALTIES: dict[str, tuple[float | str, ...]] = {
    "l2:10": ("theory:0.03", "theory:0.1", "theory:0.3"),
    "l1:10": (0.0, "theory:0.001", "theory:0.01"),
}
LOCAL_STEPS = (1, 3)
VARIANTS = (
    ("FedFW+", None),
    *(
        (name, m)
        for name in ("anchors", "anchors, points kept", "duals from averages")
        for m in (5, 20)
    ),
)


class KeptAnchor(Anchor):
    """An anchor that leaves x_i and xbar where they are."""

    def apply(self, run: Run, shared: State, msg: Message, payload: Payload) -> State:
        return super().apply(run, shared, msg, payload) | {"x": shared["x"]}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        return {**super().server_step(run, server, sums, msg), "xbar": server["xbar"]}


@dataclass(frozen=True)
class KeptAnchors(FedFWAnchored):
    """Anchored FedFW that leaves x_i and xbar where they are."""

    @property
    def all_exchanges(self) -> Sequence[Exchange]:
        return (KeptAnchor(self.anchor_every, self.gradient_at), self)


class SumOfAverages(Exchange):
    """The exchange that sums the averaged gradients: y_i <- -d_i, to which their mean is added."""

    label: ClassVar[str] = "sum"
    uploads: ClassVar[Mapping[str, Kind]] = {"d": Kind.VALUE}

    def local_update(
        self, run: Run, client: Client, msg: Message, oracles: Oracles
    ) -> tuple[State, Payload]:
        return client.private, {"d": client.private["d"]}

    def apply(self, run: Run, shared: State, msg: Message, payload: Payload) -> State:
        return shared | {"y": -payload["d"].double()}

    def server_step(
        self, run: Run, server: State, sums: Sums, msg: Message
    ) -> Mapping[str, Tensor | Affine]:
        return {**server, "mean": sums.total("d").double() / run.n}


@dataclass(frozen=True)
class AveragedDuals(FedFWPlus):
    """FedFW+ whose duals are set from the averaged gradients every so many rounds; for full
    participation.

    Parameters
    ----------
    every : int
        Rounds from one sum to the next; before the first round there is nothing to sum up.
    """

    every: int = 20

    reveals: ClassVar[Reveals] = Reveals.GRADIENTS
    shares: ClassVar[str] = "now and then the sum of the averaged gradients of those present"
    downloads: ClassVar[tuple[str, ...]] = (*FedFWPlus.downloads, "mean")

    @property
    def all_exchanges(self) -> Sequence[Exchange]:
        return (SumOfAverages(), self)

    def exchanges(self, run: Run, server: State, t: int) -> Sequence[Exchange]:
        due = t > 1 and (t - 1) % self.every == 0
        return self.all_exchanges if due else (self,)

    def broadcast(
        self, run: Run, server: State, xbar: Tensor, present: Present
    ) -> tuple[State, State]:
        """Send the mean down in the rounds that gathered it, and in no other."""
        if "mean" not in server:
            return super().broadcast(run, server, xbar, present)
        others = {name: vector for name, vector in server.items() if name != "mean"}
        others, vectors = super().broadcast(run, others, xbar, present)
        return others, vectors | {"mean": server["mean"]}

    def receive(self, run: Run, shared: State, msg: Message) -> State:
        if "mean" in msg.vectors:
            shared = shared | {"y": msg.vectors["mean"] + shared["y"]}
        return super().receive(run, shared, msg)


@dataclass(frozen=True)
class Variant:
    """One variant on some digits of MNIST, three labels a client; its penalty is chosen on lent
    samples.

    Parameters
    ----------
    cell : Cell
        The problem, rounds and seeds; the algorithm is the variant's own.
    name : str
        Of the variant.
    every : int or None
        Rounds from one sum to the next; None for plain FedFW+.
    penalties : tuple
        To choose from.
    momentum : float
        Of all variants.
    """

    cell: Cell
    name: str
    every: int | None
    penalties: tuple[float | str, ...]
    momentum: float = 0.9

    @property
    def title(self) -> str:
        return f"{self.label} on {self.cell.config.constraint}"

    @property
    def label(self) -> str:
        return self.name if self.every is None else f"{self.name}, m = {self.every}"

    @property
    def weight(self) -> float:
        return 2 * self.cell.weight

    def identity(self) -> Identity:
        return identity(
            "variant of fedfw",
            cell=self.cell.identity(),
            name=self.name,
            every=self.every,
            penalties=self.penalties,
            momentum=self.momentum,
        )

    def compute(self, site: Site) -> Json:
        config = placed(self.cell.config, site)
        data = data_of(config, self.cell.samples)
        lent = build_problem(config, data, HELD_OUT).to(device_of(config))
        held_out = {}
        for penalty in self.penalties:
            run = simulate(
                lent, self._algorithm(penalty), rounds=config.rounds, eval_every=config.rounds
            )
            held_out[penalty] = run.history[-1].test_loss or float("inf")
        best = min(held_out, key=held_out.__getitem__)
        runs = []
        for seed in range(self.cell.seeds):
            problem = problem_of(replace(config, seed=seed), self.cell.samples)
            run = simulate(
                problem,
                self._algorithm(best),
                rounds=config.rounds,
                eval_every=config.rounds,
                seed=seed,
            )
            runs.append(columns_of(run) | {"seed": seed})
        return {"chosen": {"penalty": best}, "runs": runs}

    def _algorithm(self, penalty: float | str) -> Algorithm:
        D, m = parse_set(self.cell.config.constraint or ""), self.every
        if m is None:
            return FedFWPlus(D, penalty=penalty, momentum=self.momentum)
        if self.name == "duals from averages":
            return AveragedDuals(D, penalty=penalty, momentum=self.momentum, every=m)
        kind = FedFWAnchored if self.name == "anchors" else KeptAnchors
        return kind(D, penalty=penalty, momentum=self.momentum, anchor_every=m, gradient_at="own")


def variants(constraint: str, scale: Scale) -> dict[str, Judged]:
    """What is compared on a set, by its row in the table."""
    config = RunConfig.of(
        dataset="mnist",
        model="mclr",
        clients=10,
        partition="labels:3",
        constraint=constraint,
        algorithm="fedfw+",
        rounds=scale.rounds,
    )
    cell = Cell(config, seeds=scale.seeds, samples=scale.some)
    tried = [
        Variant(cell, name, every=every, penalties=PENALTIES[constraint])
        for name, every in VARIANTS
    ]
    found = {variant.label: Judged.of(variant) for variant in tried}
    for K in LOCAL_STEPS:
        lmo = config.having(algorithm="fedlmo", local_steps=K)
        label = f"FedLMO, {K} local step{'s' if K > 1 else ''}"
        found[label] = Judged.of(replace(cell, config=lmo, grid=scale.thinned(LMO_SIX)))
    return found


def cells(scale: Scale) -> dict[str, dict[str, Judged]]:
    """By set and row."""
    return {constraint: variants(constraint, scale) for constraint in PENALTIES}


def show(scale: Scale, found: Mapping[str, Mapping[str, Done]], page: Document) -> None:
    if not all_run(found):
        page.text("not run: no data")
        return
    columns: dict[str, list[str]] = {}
    for row in found.values():
        for label, done in row.items():
            columns.setdefault(label, []).extend(
                (
                    average(done.ends(RESIDUAL), "{:.4f}".format),
                    accuracies(done.ends("accuracy")),
                    human_bytes(done.end("bytes_up")),
                    done.chosen,
                )
            )
    header = [
        f"{constraint}: {what}"
        for constraint in found
        for what in ("residual", "accuracy %", "up", "chosen")
    ]
    page.table(
        ("momentum 0.9 unless it was chosen", *header),
        [(label, *row) for label, row in columns.items()],
    )
    best = {
        c: min((done.end(RESIDUAL), label) for label, done in row.items())
        for c, row in found.items()
    }
    winners = "; ".join(
        f"{constraint}: {label} ({far:.4f})" for constraint, (far, label) in best.items()
    )
    names = {label.partition(",")[0] for _, label in best.values()}
    one = "One method is best on both." if len(names) == 1 else "No method tried is best on both."
    page.text(
        f"{scale.some} digits of MNIST, 3 labels a client, {scale.rounds} rounds; an anchor costs one more gradient, "
        f"and so does every local step but the first. The best residual, {winners}. {one}"
    )
