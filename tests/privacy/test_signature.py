"""A promise's signature is the same text in every process: a deployed client has a new one for each message."""

from __future__ import annotations

import json

import pytest
import torch

import fedfw
from fedfw import Privacy
from fedfw.privacy.steps import PrivacyPlan
from tests.processes import run_python

pytest.importorskip("dp_accounting")
SETS = {
    "l1": fedfw.L1Ball(1.0),
    "ksparse": fedfw.KSparse(2, 1.0),
    "simplex": fedfw.Simplex(1.0),
    "capped": fedfw.CappedSimplex(1.0),
    "hypersimplex": fedfw.Hypersimplex(2),
    "hull": fedfw.Hull(torch.eye(8)),
    "box": fedfw.Box(-1.0, 2.0),
    "linf": fedfw.LinfBall(1.0),
    "l2": fedfw.L2Ball(1.0),
    "product": fedfw.Product({"a": fedfw.L1Ball(1.0), "b": fedfw.Simplex(1.0)}).bind({"a": (5,), "b": (3,)}),
}


def signature(name: str, **changes: int) -> str:
    options = {"rounds": 5, "local_steps": 1} | changes
    algorithm, promise = fedfw.FedFW(SETS[name]), Privacy(1.0, 1e-5, noise=50.0)
    plan = PrivacyPlan.of(
        promise,
        algorithm,
        SETS[name],
        shape=(8,),
        fewest_samples=40,
        batch_size=None,
        **options,  # type: ignore[arg-type]
    )
    return plan.signature


def test_another_process_has_the_same_signatures() -> None:
    code = f"import json; from {__name__} import *; print(json.dumps({{name: signature(name) for name in SETS}}))"
    assert json.loads(run_python(["-c", code]).stdout) == {name: signature(name) for name in SETS}


@pytest.mark.parametrize("name", SETS)
def test_no_signature_holds_an_address(name: str) -> None:
    assert " at 0x" not in signature(name)


def test_a_round_of_more_local_steps_is_another_promise() -> None:
    assert signature("l1", local_steps=5, rounds=1) != signature("l1", local_steps=1, rounds=5)
