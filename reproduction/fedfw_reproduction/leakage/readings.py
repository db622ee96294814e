"""Samples read off what clients of softmax regression send, without a search; and the clients of
the leakage study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfw.data import MissingDataError
from fedfw.sets import Product, parse_set, shapes_of
from fedfw_reproduction.document import Document
from fedfw_reproduction.lab import Json, Results, Site
from fedfw_reproduction.leakage import MODELS, Victims, psnr, shared_gradients, train
from fedfw_reproduction.leakage.closed_forms import cosine, from_rank_one, from_rows, to_unit_range
from fedfw_reproduction.protocols import Scale
from fedfw_reproduction.schema import Identity, identity

GRADIENT = "gradient"


def cifar100_images(folder: Path) -> tuple[Tensor, Tensor]:
    """CIFAR-100's training images (m, 3, 32, 32) in bytes and their 100 fine labels, or those of a
    piece of it.
    """
    whole = folder / "cifar-100-binary" / "train.bin"
    piece = folder / "cifar100-small" / "cifar100_5_per_class.npz"
    if whole.is_file():
        records = np.fromfile(whole, np.uint8).reshape(
            -1, 2 + 3 * 32 * 32
        )  # coarse label, fine label, pixels
        return torch.from_numpy(records[:, 2:].reshape(-1, 3, 32, 32)), torch.from_numpy(
            records[:, 1]
        ).long()
    if not piece.is_file():
        raise MissingDataError(
            f"neither {whole} nor {piece} is there: CIFAR-100's publisher has its binary version"
        )
    with np.load(piece, allow_pickle=False) as held:
        return torch.from_numpy(held["x"]), torch.from_numpy(held["y"]).long()


def victims_of(
    site: Site, *, clients: int, batch: int = 1, kind: str, trained: bool = False, seed: int = 0
) -> tuple[Victims, Tensor]:
    """Clients with CIFAR-100 images and a model of a kind, and public images that are nobody's."""
    images, labels = cifar100_images(site.folder)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    count = clients * batch
    if count >= len(images):
        raise ValueError(f"{clients} clients with {batch} images each, and there are {len(images)}")
    device = torch.device(site.device)
    x, y = images.float().to(device) / 255, labels.to(device)
    own, public = order[:count], order[count:]
    torch.manual_seed(seed)
    model = MODELS[kind]().to(device)
    if trained:
        train(model, x[public], y[public], 2000, seed)
    shape = (clients, batch)
    victims = Victims(
        model,
        images=x[own].reshape(*shape, *x.shape[1:]),
        labels=y[own].reshape(shape),
        classes=100,
    )
    return victims, x[public]


@dataclass(frozen=True)
class ClosedForm:
    """Reading samples off a linear layer, without a search."""

    sends: str
    per_parameter: bool = False
    images: int = 50
    seed: int = 0
    weight: float = 1.0

    @property
    def label(self) -> str:
        return self.sends + (", each parameter" if self.per_parameter else "")

    @property
    def title(self) -> str:
        return f"closed form on {self.label}"

    def identity(self) -> Identity:
        return identity(
            "closed form",
            sends=self.sends,
            per_parameter=self.per_parameter,
            images=self.images,
            seed=self.seed,
        )

    def compute(self, site: Site) -> Json:
        victims, _ = victims_of(site, clients=self.images, kind="softmax", seed=self.seed)
        layer = victims.model[-1]  # type: ignore[index]
        g = shared_gradients(victims).sent
        likeness, scores, labels, nbytes = [], [], [], 0
        constraint: Any = None
        if self.sends != GRADIENT:
            constraint = parse_set(self.sends)
            constraint = (Product({"*": constraint}) if self.per_parameter else constraint).bind(
                shapes_of(layer)
            )
        for row, image, label in zip(g, victims.images[:, 0], victims.labels[:, 0], strict=True):
            atom = None if constraint is None else constraint.lmo(row)
            sent = -row if atom is None else atom.dense()
            nbytes = 4 * len(row) if atom is None else len(atom.to_bytes())
            W, b = (
                sent[: layer.weight.numel()].reshape(layer.weight.shape),
                sent[layer.weight.numel() :],
            )
            labels.append(int((W.sum(1) + b).argmax()) == int(label))
            sample = None if atom is None else from_rank_one(atom, image.numel())
            if (
                sample is None
                and float(b.abs().max()) > 0
                and int(W[b.abs().argmax()].count_nonzero()) > 1
            ):
                sample = from_rows(W, b)
            if sample is not None:
                likeness.append(cosine(sample, image))
                scores.append(
                    float(psnr(to_unit_range(sample, tuple(image.shape)) * image.max(), image))
                )
        return {"cosine": likeness, "psnr": scores, "labels": labels, "nbytes": nbytes}


def readings(scale: Scale) -> list[ClosedForm]:
    """What is read off a linear layer, set by set."""
    images = 10 if scale.quick else 50
    joint = [
        ClosedForm(sends, images=images)
        for sends in (
            GRADIENT,
            "l2:10",
            "linf:10",
            "ksparse:k=100,r=10",
            "l1:10",
            "group:10",
            "nuclear:10",
        )
    ]
    each = [ClosedForm(sends, per_parameter=True, images=images) for sends in ("l2:10", "l1:10")]
    return [*joint, *each]


def show(forms: Sequence[ClosedForm], results: Results, page: Document) -> None:
    """A line a set."""
    rows = []
    for form in forms:
        result = results[form]
        exact = result["cosine"]
        rows.append(
            (
                form.label,
                f"{result['nbytes']:,}",
                "none" if not exact else f"{min(exact):.6f}",
                "-" if not exact else f"{median(result['psnr']):.1f}",
                f"{100 * float(np.mean(result['labels'])):.0f} %",
            )
        )
    page.table(
        ("sent", "bytes", "the sample: least cosine", "PSNR, brightness known", "labels read off"),
        rows,
    )
