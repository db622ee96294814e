"""What an atom reveals: searches and closed forms on CIFAR-100 images, against guesses that know
nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedfw_reproduction.document import Document, csv_text
from fedfw_reproduction.figures import Claim, panels
from fedfw_reproduction.lab import Json, Results, Site, Task, was_run
from fedfw_reproduction.leakage import (
    holding,
    psnr,
    readings,
    reconstruct,
    shared_gradients,
    ssim,
    trivial_guesses,
    watch_fedfw,
)
from fedfw_reproduction.leakage.readings import victims_of
from fedfw_reproduction.protocols import Scale
from fedfw_reproduction.schema import Identity, identity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RECOVERED = 25.0
"""PSNR in dB from which an image counts as recovered."""
HEADER = (
    *(
        "sent",
        "attack",
        "clients x images",
        "PSNR: median (quartiles)",
        "recovered",
        "SSIM (best guess)",
        "labels",
    ),
    *("mean image", "nearest public", "verdict"),
)
"""What is said of an attack."""
_PICTURES = 4
_GRADIENT = "gradient"


@dataclass(frozen=True)
class Attack:
    """One search on some clients, all at once.

    Parameters
    ----------
    sends : str
        ``gradient``, or the kind of set whose atoms FedFW's clients send; its radius is the least
        that holds the model.
    way : str
        What is minimised, see `fedfw_reproduction.leakage.reconstruct`.
    per_parameter : bool
        Whether each parameter has a set of its own.
    images, batch : int
        How many clients, and how many images each of them has.
    steps, optimizer, restarts
        Of the search.
    known_labels : bool
        Whether the attacker knows the labels.
    trained : bool
        Whether the model was trained on public images before.
    rounds : int
        How many rounds of atoms the attacker puts together.
    informed : bool
        Whether the search begins at the mean of public images instead of noise.
    model : str
        One of `fedfw_reproduction.leakage.MODELS`.
    seed : int
        Fixes clients, model and search.
    """

    sends: str
    way: str
    per_parameter: bool = False
    images: int = 50
    batch: int = 1
    steps: int = 5000
    optimizer: str = "lbfgs"
    restarts: int = 1
    known_labels: bool = True
    trained: bool = False
    rounds: int = 1
    informed: bool = True
    model: str = "lenet"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("images", "batch", "steps", "restarts", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}, expected at least 1")
        if self.way == "soft" and (self.sends != "l1" or self.per_parameter):
            raise ValueError("the way soft is for the vertices of one l1 ball")
        if (self.way == _GRADIENT) is not (self.sends == _GRADIENT):
            raise ValueError(
                f"way={self.way!r} with sends={self.sends!r}, expected another way: gradients are matched"
            )
        if self.sends == _GRADIENT and self.per_parameter:
            raise ValueError(
                "per-parameter changes nothing for gradients, expected it with the atoms of a set"
            )
        if self.sends == _GRADIENT and self.rounds > 1:
            raise ValueError(
                f"rounds={self.rounds} changes nothing for gradients, expected it with the atoms of a set"
            )

    @property
    def label(self) -> str:
        """What is sent, in words."""
        return self.sends + (", each parameter" if self.per_parameter else "")

    @property
    def title(self) -> str:
        return f"attack on {self.label}, {self.way}, {self.images} x {self.batch} images, {self.steps} steps"

    @property
    def weight(self) -> float:
        return 1e-2 * self.steps * self.restarts * self.rounds * (3 + self.images * self.batch)

    def identity(self) -> Identity:
        return identity(
            "attack",
            sends=self.sends,
            way=self.way,
            per_parameter=self.per_parameter,
            images=self.images,
            batch=self.batch,
            steps=self.steps,
            optimizer=self.optimizer,
            restarts=self.restarts,
            known_labels=self.known_labels,
            trained=self.trained,
            rounds=self.rounds,
            informed=self.informed,
            model=self.model,
            seed=self.seed,
        )

    def compute(self, site: Site) -> Json:
        victims, public = victims_of(
            site,
            clients=self.images,
            batch=self.batch,
            kind=self.model,
            trained=self.trained,
            seed=self.seed,
        )
        if self.sends == _GRADIENT:
            seen = [shared_gradients(victims)]
        else:
            seen = watch_fedfw(
                victims, holding(self.sends, victims.model, self.per_parameter), self.rounds
            )
        found = reconstruct(
            victims,
            seen,
            self.way,  # type: ignore[arg-type]
            steps=self.steps,
            optimizer=self.optimizer,  # type: ignore[arg-type]
            restarts=self.restarts,
            known_labels=self.known_labels,
            guess=public.mean(0) if self.informed else None,
            seed=self.seed,
        )
        truth = victims.images.flatten(0, 1)
        guesses = trivial_guesses(truth, public)
        return {
            "psnr": found.psnr.tolist(),
            "ssim": found.ssim.tolist(),
            "labels": found.labels.tolist(),
            "misfit": found.misfit.tolist(),
            "curve": found.curve,
            "guesses": {name: psnr(images, truth).tolist() for name, images in guesses.items()},
            "guesses_ssim": {
                name: ssim(images, truth).tolist() for name, images in guesses.items()
            },
            "pictures": [_packed(image) for image in found.images[:_PICTURES, 0]],
            "truth": [_packed(image) for image in victims.images[:_PICTURES, 0]],
        }


def _packed(image: Tensor) -> str:
    data = (image.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy().tobytes()
    return base64.b64encode(data).decode()


def _unpacked(text: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(3, 32, 32).transpose(1, 2, 0)


# --- what is run ---

FIGURE_ONE = ((_GRADIENT, _GRADIENT), ("l2", "through"), ("l1", "through"))
_SETS = ("l2", "linf", "ksparse:100", "l1")


def _size(scale: Scale) -> dict[str, Any]:
    return {"images": 3, "steps": 150} if scale.quick else {"images": 50, "steps": 5000}


def figure_one(scale: Scale) -> list[Attack]:
    """The paper's figure: two images, noise at the start, through the oracle."""
    steps = 1200 if scale.quick else 100_000
    return [Attack(sends, way, images=2, steps=steps, informed=False) for sends, way in FIGURE_ONE]


def by_set(scale: Scale) -> list[Attack]:
    """One image a client, every set, attackers that adapt."""
    size = _size(scale)
    joint = [Attack(sends, "explain", **size) for sends in _SETS]
    each = [
        Attack(sends, "explain", per_parameter=True, **size) for sends in _SETS if sends != "linf"
    ]
    # Their oracles keep a GPU waiting in every step.
    size = {**size, "steps": -(-size["steps"] // 5)}
    matrices = [
        Attack(sends, "explain", per_parameter=True, **size) for sends in ("group", "nuclear")
    ]
    return [
        Attack(_GRADIENT, _GRADIENT, **_size(scale)),
        *joint,
        *each,
        *matrices,
        Attack("l1", "soft", **_size(scale)),
    ]


def variations(scale: Scale) -> dict[str, list[Attack]]:
    """What else may matter, a table each."""
    size = _size(scale)
    senders = [(_GRADIENT, _GRADIENT), ("l2", "explain"), ("linf", "explain"), ("l1", "explain")]
    plain = [Attack(sends, way, **size) for sends, way in senders]
    batches = (1, 4) if scale.quick else (1, 8, 64)
    few = {b: max(2, size["images"] // b) if b > 1 else size["images"] for b in batches}
    spans = (1, 5) if scale.quick else (1, 10, 50)
    fewer = {t: max(2, size["steps"] // t) for t in spans}
    return {
        "samples a client": [
            replace(a, batch=b, images=few[b], steps=size["steps"] // (5 if b > 8 else 1))
            for b in batches
            for a in (plain[0], plain[1], plain[3])
        ],
        "rounds put together": [
            replace(a, rounds=t, steps=fewer[t])
            for t in spans
            for a in (plain[2], plain[3], Attack(_SETS[2], "explain", **size))
        ],
        "trained model": [replace(a, trained=True) for a in plain],
        "unknown labels": [
            replace(a, known_labels=False, restarts=1 if scale.quick else 3) for a in plain
        ],
        "Adam": [replace(a, optimizer="adam") for a in plain],
    }


def tasks(scale: Scale) -> list[Task]:
    others = [attack for attacks in variations(scale).values() for attack in attacks]
    return [*figure_one(scale), *by_set(scale), *others, *readings.readings(scale)]


# --- how it is shown ---


def show(scale: Scale, results: Results, page: Document) -> None:
    if not all(was_run(results[task]) for task in tasks(scale)):
        page.text("Not run: no data. It needs CIFAR-100 images.")
        return
    page.text(
        "The attacker is the server: it knows the model, x_i, xbar, the penalty and the protocol. A guess that uses no "
        "observation is the mean of public images, or the public image nearest to the truth. Protected means: no "
        f"better than these, by PSNR (0.5 dB) and by SSIM (0.1). An image counts as recovered from {RECOVERED:g} dB."
    )
    _show_figure_one(scale, results, page)
    page.heading(
        "Every set, one image a client, an attacker that asks which image explains the atom", 3
    )
    _show_attacks(by_set(scale), results, page)
    _show_quartiles(by_set(scale), results, page)
    for name, attacks in variations(scale).items():
        page.heading(f"Searches: {name}", 3)
        _show_attacks(attacks, results, page)
    page.heading("Closed forms: softmax regression, one sample", 3)
    readings.show(readings.readings(scale), results, page)


def _show_figure_one(scale: Scale, results: Results, page: Document) -> None:
    attacks = figure_one(scale)
    figure, axes = panels(3, 3.6)
    _draw_pictures(axes[0], attacks, [results[attack] for attack in attacks], 2)
    numbers = []
    for image, axis in enumerate(axes[1:]):
        for attack in attacks:
            curve = results[attack]["curve"]
            axis.semilogx(
                [step for step, _ in curve],
                [values[image] for _, values in curve],
                label=attack.label,
            )
            numbers += [(attack.label, image, step, values[image]) for step, values in curve]
        axis.set(xlabel="iteration", ylabel="PSNR (dB)", title=f"image {image + 1}")
        axis.legend(fontsize="x-small")
    caption = (
        "Figure 1 of the paper: deep leakage from gradients, and through the oracles. The flat line of the l1 ball is "
        "the attack's own: its derivative through that oracle is zero, so it never moves"
    )
    page.plot(
        figure, caption, csv_text(("sent", "image", "iteration", "psnr"), numbers), "figure-1"
    )


def picture_of(attacks: Sequence[Attack], results: Sequence[Json]) -> Figure:
    """What was found, a column an attack, the truth in the first."""
    figure, (axis,) = panels(1, 4.0)
    _draw_pictures(axis, attacks, results, len(results[0]["truth"]))
    return figure


def _draw_pictures(
    axis: Axes, attacks: Sequence[Attack], results: Sequence[Json], count: int
) -> None:
    columns = [results[0]["truth"], *(result["pictures"] for result in results)]
    stacks = [np.concatenate([_unpacked(text) for text in column[:count]]) for column in columns]
    axis.imshow(np.concatenate(stacks, axis=1))
    axis.grid(visible=False)
    axis.set(xticks=[16 + 32 * i for i in range(len(columns))], yticks=[])
    axis.set_xticklabels(["truth", *(attack.label for attack in attacks)], fontsize="x-small")


def _show_attacks(attacks: Sequence[Attack], results: Results, page: Document) -> None:
    page.table(HEADER, [row_of(attack, results[attack]) for attack in attacks])


def row_of(attack: Attack, result: Json) -> list[Any]:
    """One line of a table with `HEADER`."""
    scores = result["psnr"]
    low, middle, high = (
        quantiles(scores, n=4, method="inclusive") if len(scores) > 1 else scores * 3
    )
    guesses = {name: median(values) for name, values in result["guesses"].items()}
    how = [attack.way, attack.optimizer] + (
        [f"{attack.rounds} rounds"] if attack.rounds > 1 else []
    )
    alike = max(median(values) for values in result["guesses_ssim"].values())
    leaks = middle > max(guesses.values()) + 0.5 or median(result["ssim"]) > alike + 0.1
    labels = "known" if attack.known_labels else f"{100 * float(np.mean(result['labels'])):.0f} %"
    return [
        attack.label,
        ", ".join(how),
        f"{attack.images} x {attack.batch}",
        f"{middle:.1f} ({low:.1f} to {high:.1f})",
        f"{100 * float(np.mean([s > RECOVERED for s in scores])):.0f} %",
        f"{median(result['ssim']):.2f} ({alike:.2f})",
        labels,
        f"{guesses['mean image']:.1f}",
        f"{guesses['nearest public image']:.1f}",
        ("leaks", "bad") if leaks else ("no better than a guess", "good"),
    ]


def _show_quartiles(attacks: Sequence[Attack], results: Results, page: Document) -> None:
    figure, (axis,) = panels(1, 3.8)
    names = [f"{attack.label}\n({attack.way})" for attack in attacks]
    axis.boxplot([results[attack]["psnr"] for attack in attacks], whis=(0, 100))
    for name, style in (("mean image", "--"), ("nearest public image", ":")):
        axis.axhline(
            median(results[attacks[0]]["guesses"][name]), color="k", linestyle=style, label=name
        )
    axis.set(ylabel="PSNR (dB)")
    axis.set_xticks(range(1, len(names) + 1), names, fontsize="xx-small", rotation=60)
    axis.legend(fontsize="x-small")
    rows = [(a.label, a.way, value) for a in attacks for value in results[a]["psnr"]]
    page.plot(
        figure,
        "PSNR of the reconstructions, by what is sent",
        csv_text(("sent", "attack", "psnr"), rows),
        "sets",
    )


def claims(scale: Scale, results: Results) -> list[Claim]:
    if not all(was_run(results[task]) for task in tasks(scale)):
        return []
    middle = {attack: median(results[attack]["psnr"]) for attack in by_set(scale)}
    gradient, l2, *_ = middle.values()
    l1 = max(value for attack, value in middle.items() if attack.sends == "l1")
    guess = max(median(values) for values in results[by_set(scale)[0]]["guesses"].values())
    medians = (
        f"median PSNR {gradient:.1f} (gradients), {l2:.1f} (l2 atoms), {l1:.1f} (l1 atoms); "
        f"guesses reach {guess:.1f}"
    )
    return [
        Claim(
            "Sending oracle outputs protects data: l2 ball",
            l2 <= guess + 0.5,
            medians,
            "What an atom reveals",
        ),
        Claim("... l1 ball", l1 <= guess + 0.5, medians, "What an atom reveals"),
    ]
