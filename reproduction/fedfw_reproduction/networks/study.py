"""The page: a table and a picture for each comparison, and the bars as claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from fedfw.report import human_bytes
from fedfw_reproduction.document import Cell, Document
from fedfw_reproduction.figures import Claim, Done, accuracies, average, curves_csv, panels
from fedfw_reproduction.lab import Results, Wanted, was_run
from fedfw_reproduction.networks import protocol
from fedfw_reproduction.networks.protocol import CERTIFIED_RADII, Comparison, Method
from fedfw_reproduction.networks.trainings import all_seeds
from fedfw_reproduction.protocols import Scale

PROTOTYPES = {
    "networks-cifar10": {
        "SGD, shared momentum": 0.577,
        "local AdamW, shared state": 0.548,
        "SCAFFOLD": 0.507,
        "FedAvg": 0.505,
        "FedAvgM": 0.461,
    },
    "networks-shakespeare": {
        "local AdamW, shared state": 1.534,
        "LocalMuon": 1.701,
        "server Adam": 1.735,
        "FedAvg": 1.932,
    },
}
"""What peers reached in the prototype."""
_PROTOTYPE = "one seed, and 10,000 images where it was CIFAR-10"
Found = dict[str, Done]
"""The results of methods, all seeds together, by label."""
Bar = tuple[str, bool | None, str]
"""What is claimed, whether it holds, and the numbers."""
Bars = Callable[[Found], list[Bar]]


@dataclass(frozen=True)
class Study:
    """One comparison as a section of the report, which asks for its tasks, page and claims.

    Parameters
    ----------
    name, title : str
        On the command line, and in the report.
    make : callable
        The comparison at a scale.
    bars : callable or None
        What is claimed, from the results of all methods.
    """

    name: str
    title: str
    make: Callable[[Scale], Comparison]
    bars: Bars | None = None

    def tasks(self, scale: Scale) -> list[Wanted]:
        """All runs."""
        return self.make(scale).wanted

    def show(self, scale: Scale, results: Results, page: Document) -> None:
        """A table, a sentence on the prototype's numbers, and a picture, of what there is."""
        comparison = self.make(scale)
        page.text(_protocol(comparison, scale))
        page.table(
            _header(comparison),
            [_row(comparison, method, results) for method in comparison.methods],
        )
        found = _found(comparison, results)
        if not scale.quick and self.name in PROTOTYPES:
            page.text(_against_prototype(PROTOTYPES[self.name], comparison, found))
        if found:
            self._draw(comparison, found, page)

    def claims(self, scale: Scale, results: Results) -> list[Claim]:
        """The bars; those whose runs are missing, or that a quick run cannot tell, are not tested."""
        if self.bars is None:
            return []
        comparison = self.make(scale)
        found = _found(comparison, results)
        if len(found) < len(comparison.methods):
            return [
                Claim(
                    f"The bars of “{self.title}”", None, "some of the runs are missing", self.title
                )
            ]
        judged = self.bars(found)
        if scale.quick:
            judged = [(text, None, f"{numbers} (quick)") for text, _, numbers in judged]
        return [Claim(*bar, self.title) for bar in judged]

    def _draw(self, comparison: Comparison, found: Found, page: Document) -> None:
        """What is compared against rounds, bytes and seconds."""
        figure, axes = panels(3)
        for number, (label, done) in enumerate(found.items()):
            values = done.curve(comparison.by)
            for axis, column in zip(axes, ("round", "bytes_up", "seconds"), strict=True):
                axis.plot(done.curve(column), values, color=f"C{number % 10}", label=label, lw=1.2)
        what = "test accuracy" if comparison.by == "accuracy" else "test loss"
        for axis, along in zip(axes, ("round", "bytes up in all", "seconds"), strict=True):
            axis.set(title=f"{what} against {along}", xlabel=along)
        axes[1].set_xscale("log")
        axes[0].legend(fontsize="x-small")
        data = curves_csv(found, ("accuracy", "test_loss", "bytes_up", "bytes_down", "seconds"))
        page.plot(figure, f"{self.title}: {what}", data, self.name)


# --- tables ---


def _protocol(comparison: Comparison, scale: Scale) -> str:
    """What all methods have in common, in words."""
    config = comparison.config
    most = max(len(one.runs[0].trials) for one in comparison.methods)
    by = "accuracy" if comparison.by == "accuracy" else "loss"
    sentences = (
        f"{config.model} on {config.dataset}, {config.clients} clients ({config.partition}), "
        f"{config.participation} a round, {config.rounds} rounds, {config.local_steps} local steps a round in batches "
        f"of {config.batch_size}: the same for every method.",
        comparison.note,
        f"At most {most} settings a method were tried with seed 0 at the full number of rounds, and the best {by} on a "
        f"fifth of the training data, which the clients lent, was chosen; then {scale.seeds} seeds with all training "
        "data, judged on the full test set.",
        f"Gradient methods have a set that they never notice ({protocol.UNCONSTRAINED}).",
        "Mean ± deviation over the seeds.",
        "Seconds are those of a run without evaluations, while other runs used the same machine: they compare methods, "
        "not machines.",
    )
    return " ".join(filter(None, sentences))


def _radii(comparison: Comparison) -> tuple[float, ...]:
    """At which accuracy is certified."""
    return CERTIFIED_RADII if comparison.config.get("certify") else ()


def _header(comparison: Comparison) -> tuple[str, ...]:
    radii = [f"certified at {radius:g}, %" for radius in _radii(comparison)]
    return (
        *("method", "accuracy %", *radii, "test loss", "up, a client and round", "up in all"),
        *("s", "distance from the set", "chosen"),
    )


def _row(comparison: Comparison, method: Method, results: Results) -> list[Cell]:
    width = len(_header(comparison))
    done = Done(method, all_seeds(results, method.runs))
    result = done.result
    if not was_run(result):
        return [method.label, f"not run: {result['not_run']}", *[""] * (width - 2)]
    runs = result["runs"]
    if not runs:
        return [method.label, "blew up", *[""] * (width - 3), _chosen(method, results)]
    label = method.label + (
        f" ({len(runs)} of {len(method.runs)} seeds)" if len(runs) < len(method.runs) else ""
    )
    config = method.runs[0].settled(results).config
    assert config.clients is not None
    takes_part = config.participation if isinstance(config.participation, int) else config.clients
    up = done.end("bytes_up")
    radii = [
        accuracies([run["curve"]["certified"][-1][f"{radius:g}"] for run in runs])
        for radius in _radii(comparison)
    ]
    return [
        label,
        accuracies(done.ends("accuracy")),
        *radii,
        average(done.ends("test_loss"), "{:.3f}".format),
        human_bytes(up / config.rounds / takes_part),
        human_bytes(up),
        f"{done.end('seconds'):.0f}",
        f"{_distance(done):.2g}",
        _chosen(method, results),
    ]


def _chosen(method: Method, results: Results) -> str:
    """The options of the chosen trial, and whether it is at an end of what was tried."""
    run = method.runs[0]
    own = dict(run.settled(results).config.own)
    notes = []
    for name in own:
        tried = sorted({_number(trial.config.get(name)) for trial in run.needs})
        if len(tried) > 2 and _number(run.chosen(results).config.get(name)) in (
            tried[0],
            tried[-1],
        ):
            notes.append(f"{name} at the edge")
    if lost := sum(not results[trial].get("runs") for trial in run.needs):
        notes.append(f"{lost} of {len(run.needs)} settings blew up")
    return ", ".join(f"{name} {value}" for name, value in own.items()) + (
        f" ({'; '.join(notes)})" if notes else ""
    )


def _number(value: Any) -> float:
    """What an option's values are sorted by: the number in “linear-decay:0.1”; 0 for those without
    one.
    """
    try:
        return float(str(value).rpartition(":")[2])
    except ValueError:
        return 0.0


def _distance(done: Done) -> float:
    """The largest distance of xbar from its set in the rounds that were looked at; NaN where it is
    not known.
    """
    found = [distance for run in done.result["runs"] for distance in run["curve"]["distance"]]
    return math.nan if None in found else max(found)


def _found(comparison: Comparison, results: Results) -> Found:
    """The results of the methods that have runs."""
    all_of_them = {
        method.label: Done(method, all_seeds(results, method.runs)) for method in comparison.methods
    }
    return {label: done for label, done in all_of_them.items() if done.was_run}


def _against_prototype(before: Mapping[str, float], comparison: Comparison, found: Found) -> str:
    """Which peers did better than in the prototype."""
    now = {label: found[label].end(comparison.by) for label in before if label in found}
    higher = comparison.by == "accuracy"
    better = [
        label
        for label, value in now.items()
        if (value > before[label]) == higher and value != before[label]
    ]
    shown = "{:.1%}" if higher else "{:.3f}"
    told = "; ".join(
        f"{label} ({shown.format(now[label])}, {shown.format(before[label])})" for label in better
    )
    start = f"Peers that did better than in the prototype (its number second, {_PROTOTYPE}): "
    return start + (told or "none of those compared") + "."


# --- bars ---


def cifar_bars(found: Found) -> list[Bar]:
    """Eight points above the best peer, and no worse than it in half of the rounds."""
    half = "FedLMO, half the rounds"
    peer = max(
        (label for label in found if label not in ("FedLMO", half)),
        key=lambda label: found[label].end("accuracy"),
    )
    best, ours, short = (
        100 * found[peer].end("accuracy"),
        100 * found["FedLMO"].end("accuracy"),
        100 * found[half].end("accuracy"),
    )
    return [
        (
            "CIFAR-10: FedLMO is at least 8 points above the best tuned peer",
            ours >= best + 8,
            f"FedLMO {ours:.1f} %, {peer} {best:.1f} %: {ours - best:+.1f} points",
        ),
        (
            "CIFAR-10: FedLMO with half of the rounds reaches the best peer's final accuracy",
            short >= best,
            f"FedLMO with half of the rounds {short:.1f} %, {peer} {best:.1f} %",
        ),
    ]


def payload_bars(found: Found) -> list[Bar]:
    """Four bits: within a point, at less than 1/7.5 of the bytes, inside the set."""
    four = "FedLMO, 4 bits"
    plain, few = 100 * found["FedLMO"].end("accuracy"), 100 * found[four].end("accuracy")
    share = found["FedLMO"].end("bytes_up") / found[four].end("bytes_up")
    far = _distance(found[four])
    return [
        (
            "Payloads of 4 bits are within 1 point, with at most 1/7.5 of the bytes, and xbar stays in the set",
            few >= plain - 1 and share >= 7.5 and far == 0,
            f"{few:.1f} % for {plain:.1f} %, 1/{share:.2f} of the bytes, distance {far:g}",
        )
    ]


def shakespeare_bars(found: Found) -> list[Bar]:
    """A test loss of 1.53, and not above local AdamW's."""
    peer = "local AdamW, shared state"
    ours, other = found["FedLMO"].end("test_loss"), found[peer].end("test_loss")
    return [
        ("Shakespeare: FedLMO's test loss is at most 1.53", ours <= 1.53, f"{ours:.3f}"),
        (
            "Shakespeare: FedLMO's test loss is not above local AdamW's",
            ours <= other,
            f"{ours:.3f}, {other:.3f}",
        ),
    ]


def certified_bars(found: Found) -> list[Bar]:
    """Clean accuracy, and certified at two radii."""
    clean = found["FedLMO"].end("accuracy")
    runs = found["FedLMO"].result["runs"]
    at = {
        radius: mean(run["curve"]["certified"][-1][f"{radius:g}"] for run in runs)
        for radius in (0.5, 1.0)
    }
    return [
        ("MNIST, Lipschitz constant 1: at least 97 % are right", clean >= 0.97, f"{clean:.1%}"),
        ("... at least 87 % are certified at l2 radius 0.5", at[0.5] >= 0.87, f"{at[0.5]:.1%}"),
        ("... at least 60 % are certified at l2 radius 1", at[1.0] >= 0.6, f"{at[1.0]:.1%}"),
    ]


STUDIES = (
    Study(
        "networks-cifar10", "CIFAR-10: FedLMO beside gradient methods", protocol.cifar, cifar_bars
    ),
    Study(
        "networks-certified",
        "MNIST with a certificate of robustness",
        protocol.certified,
        certified_bars,
    ),
    Study("networks-shakespeare", "Shakespeare by speaker", protocol.shakespeare, shakespeare_bars),
    Study("networks-mnist", "MNIST with a CNN", protocol.mnist),
    Study("networks-oracles", "CIFAR-10: oracle steps beside each other", protocol.oracles),
    Study("networks-payloads", "CIFAR-10: fewer bits", protocol.payloads, payload_bars),
)
"""The sections of the group ``networks``; the most important are computed first."""
