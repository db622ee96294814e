"""An owner's own check of the data: what is invalid never joins, and digests say nothing without the secret."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedfw
from fedfw.deployment import Consent, DataBudget
from fedfw.deployment.data_checks import (
    InvalidDataError,
    check_data,
    describe_fit,
    keyed_digest,
    owner_secret,
)
from tests.deployment.loopback import SAMPLES, small_task
from tests.processes import start_python

TASK = small_task(fedfw.FedFW(fedfw.L1Ball(5.0), penalty=0.01))


@pytest.fixture
def owner(tmp_path: Path) -> Consent:
    return Consent.read(Consent("clinic", privacy=DataBudget(1.0, 1e-5)).write(tmp_path / "owner"))


def spoilt(value: float, dtype: torch.dtype) -> Callable[[int], Any]:
    def data(client: int) -> Any:
        inputs, targets = TASK.data(client)
        inputs[7, 2] = inputs[9, 0] = value
        return inputs.to(dtype), targets

    return data


def test_a_check_is_of_these_data_and_of_this_model(owner: Consent, tmp_path: Path) -> None:
    state = tmp_path / "state"
    found = check_data(TASK, 0, state, owner)
    assert found.samples == SAMPLES
    checks = owner.checks(0, state)
    assert checks.hold(found.data, describe_fit(TASK))
    assert not checks.hold(found.data, describe_fit(replace(TASK, model=torch.nn.Linear(4, 3, bias=False))))
    assert not checks.hold(found.data, describe_fit(replace(TASK, loss=torch.nn.functional.l1_loss)))
    assert check_data(TASK, 1, state, owner).data != found.data
    assert len(checks.made()) == 2
    check_data(TASK, 0, state, owner)
    assert len(checks.made()) == 2
    assert checks.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_samples_that_are_not_finite_are_named_to_their_owner(
    value: float, dtype: torch.dtype, owner: Consent, tmp_path: Path
) -> None:
    task = replace(TASK, data=spoilt(value, dtype))
    with pytest.raises(InvalidDataError, match=r"a NaN or an infinity in the input of sample 7, 9$"):
        check_data(task, 0, tmp_path, owner)
    assert owner.checks(0, tmp_path).made() == []


def test_samples_whose_loss_overflows_are_named(owner: Consent, tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    torch.nn.init.constant_(model.weight, 4.0)
    task = replace(TASK, model=model, data=spoilt(3e38, torch.float32), algorithm=fedfw.FedFW("linf:10"))
    with pytest.raises(InvalidDataError, match=r"a loss or a gradient that is not finite at the start of sample 7, 9"):
        check_data(task, 0, tmp_path, owner)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda client: (torch.ones(3, 4), torch.tensor([0, 9, 1])), "class numbers from 0 to 2"),
        (lambda client: (torch.ones(3, 5), torch.tensor([0, 1, 1])), "do not fit"),
        (lambda client: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_data_that_do_not_fit_are_refused(data: Any, reason: str, owner: Consent, tmp_path: Path) -> None:
    with pytest.raises(InvalidDataError, match=reason):
        check_data(replace(TASK, data=data), 0, tmp_path, owner)
    assert owner.checks(0, tmp_path).made() == []


def test_a_digest_is_an_hmac_under_a_secret_that_is_made_once(owner: Consent, tmp_path: Path) -> None:
    secret = owner.secret(0, tmp_path)
    assert len(secret) == 32
    assert owner.secret(0, tmp_path) == secret
    x = torch.arange(6.0).reshape(2, 3)
    expected = hmac.new(secret, b"fedfw: the data of one client, version 1\n", hashlib.sha256)
    expected.update(b"<f4 (2, 3)\n" + x.numpy().tobytes())
    assert keyed_digest(secret, [x]) == expected.hexdigest()
    others = [[x.double()], [x.reshape(3, 2)], [x + 1e-6], [x[:1], x[1:]], []]
    assert len({keyed_digest(secret, one) for one in ([x], *others)}) == 1 + len(others)
    another = Consent.read(Consent("clinic", privacy=DataBudget(1.0, 1e-5)).write(tmp_path / "another"))
    assert keyed_digest(another.secret(0, tmp_path), [x]) != keyed_digest(secret, [x])


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clinic.secret"
    owner_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(ValueError, match="has mode 0640, expected 0600"):
        owner_secret(path)
    path.chmod(0o600)
    path.write_text("")
    with pytest.raises(ValueError, match="has 0 bytes, expected 32"):
        owner_secret(path)


def test_processes_that_make_a_secret_at_the_same_time_agree(tmp_path: Path) -> None:
    path = tmp_path / "clinic.secret"
    code = f"from pathlib import Path; from {__name__} import *; print(owner_secret(Path({str(path)!r})).hex())"
    twins = [start_python(["-c", code]) for _ in range(4)]
    assert {twin.wait().stdout.strip() for twin in twins} == {owner_secret(path).hex()}
    assert [one.name for one in tmp_path.iterdir()] == ["clinic.secret"]
