"""The leakage study from its first task to its page, and the command that runs one attack."""

from pathlib import Path

import pytest
import torch
from tests.data.files import DATA, needs

from fedfw.cli.main import main
from fedfw_reproduction.lab import Site
from fedfw_reproduction.leakage import readings
from fedfw_reproduction.leakage import study as leakage
from fedfw_reproduction.leakage.readings import ClosedForm, cifar100_images
from fedfw_reproduction.leakage.study import Attack

needs_images = needs("cifar100-small")


@needs_images
def test_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leakage, "_size", lambda scale: {"images": 2, "steps": 2})
    monkeypatch.setattr(readings, "train", lambda model, images, labels, steps, seed: None)
    short = [
        Attack(sends, way, images=2, steps=2, informed=False) for sends, way in leakage.FIGURE_ONE
    ]
    monkeypatch.setattr(leakage, "figure_one", lambda scale: short)
    arguments = ["reproduce", "privacy", "--quick"]
    assert main([*arguments, "--out", str(tmp_path), "--data-dir", str(DATA)]) == 0
    page = (tmp_path / "privacy-quick.html").read_text()
    assert page.count("<svg") == 2
    for name in (
        "samples a client",
        "rounds put together",
        "trained model",
        "unknown labels",
        "Closed forms",
    ):
        assert name in page
    assert "Sending oracle outputs protects data: l2 ball" in page
    assert (
        main([*arguments, "--data-dir", str(tmp_path / "none"), "--out", str(tmp_path / "other")])
        == 0
    )
    assert "Not run: no data" in (tmp_path / "other" / "privacy-quick.html").read_text()


@needs_images
@pytest.mark.parametrize(
    ("form", "exact"),
    [
        (ClosedForm("gradient", images=3), True),
        (ClosedForm("l2:10", True, 3), True),
        (ClosedForm("nuclear:10", images=3), True),
        (ClosedForm("group:10", images=3), True),
        (ClosedForm("l1:10", images=3), False),
    ],
)
def test_closed_forms_are_exact_where_theory_says_so(form: ClosedForm, exact: bool) -> None:
    result = form.compute(Site(str(DATA)))
    assert all(result["labels"])
    assert (len(result["cosine"]) == 3) is exact
    assert all(value > 0.999 for value in result["cosine"])


@needs_images
def test_one_attack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "found.png"
    arguments = [
        "attack",
        "--sends",
        "l1",
        "--images",
        "2",
        "--steps",
        "2",
        "--data-dir",
        str(DATA),
    ]
    assert main([*arguments, "--out", str(picture)]) == 0
    assert "no better than a guess" in capsys.readouterr().out
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--images", "0"], "images=0, expected at least 1"),
        (["--way", "soft", "--sends", "l2"], "soft is for the vertices"),
        (["--data-dir", "/nowhere"], "CIFAR-100"),
    ],
)
def test_bad_values_are_refused(
    flags: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", *flags]) == 2
    assert told in capsys.readouterr().err


def test_the_binary_version_of_cifar100(tmp_path: Path) -> None:
    records = torch.randint(0, 100, (3, 2 + 3072), dtype=torch.uint8)
    (tmp_path / "cifar-100-binary").mkdir()
    (tmp_path / "cifar-100-binary" / "train.bin").write_bytes(records.numpy().tobytes())
    images, labels = cifar100_images(tmp_path)
    assert torch.equal(labels, records[:, 1].long())
    assert torch.equal(images.flatten(1), records[:, 2:])
