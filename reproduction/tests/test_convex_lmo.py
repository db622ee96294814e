"""The study of FedLMO on convex problems: what is compared, and the sentences that come from
results.
"""

from math import prod
from pathlib import Path

import pytest
from tests.data.files import DATA, needs

from fedfw.cli import main
from fedfw_reproduction import convex_lmo, reproduce
from fedfw_reproduction.convex_lmo import (
    ANCHORED,
    LAZY_NAME,
    LOCAL_STEPS,
    RENEWALS,
    WITH_MOMENTUM,
    compared,
)
from fedfw_reproduction.lab import Site
from fedfw_reproduction.protocols import FULL, LMO_SIX, Scale


def test_every_row_has_the_same_six_settings_and_the_bars_that_were_asked_for() -> None:
    assert prod(len(values) for _, values in LMO_SIX) == 6
    found = convex_lmo.cells(FULL)
    assert (set(found["everybody"]), set(found["some"])) == (
        set(convex_lmo.BARS),
        set(convex_lmo.PARTIAL_BARS),
    )
    rows = [*found["everybody"].values(), *found["some"].values()]
    assert {row.task.grid for row in rows} == {LMO_SIX}
    assert {
        (row.task.config.clients, row.task.config.participation, row.task.samples) for row in rows
    } == {
        (10, 1.0, None),
        (30, 9, 6000),
    }
    assert all(row.optimum.tol == 1e-5 and row.task.config.rounds == 100 for row in rows)


def test_a_sum_every_m_rounds_costs_both_methods_as_much() -> None:
    """Between two sums nothing but atoms travels."""
    scale = Scale(True, seeds=1, rounds=20)
    rows = convex_lmo.renewed("synthetic(1,1), l1:10", scale)
    assert len(rows) == len(RENEWALS) * (2 * len(LOCAL_STEPS) + 1)
    lazy, anchored = (
        rows[name, 5, 1][0].task.compute(Site())["runs"][0] for name in (LAZY_NAME, ANCHORED)
    )
    assert lazy["curve"]["bytes_up"] == pytest.approx(anchored["curve"]["bytes_up"], rel=0.01)


def test_better_everywhere_is_said_only_where_it_is_so() -> None:
    keys = [(LAZY_NAME, m, K) for m in RENEWALS for K in LOCAL_STEPS]
    lazy = dict.fromkeys(keys, (1.0, 0.1))
    others = dict.fromkeys(
        [(ANCHORED, m, K) for _, m, K in keys] + [(WITH_MOMENTUM, m, 1) for m in RENEWALS],
        (1.0, 0.2),
    )
    assert "It is better everywhere." in compared({"a": lazy | others})
    momentum = others | {(WITH_MOMENTUM, 5, 1): (1.0, 0.05)}
    said = compared({"a": lazy | momentum})
    assert "9 of 9 pairs" in said
    assert "2 of 3 cases (not: a, m = 5). It is not better everywhere." in said
    assert "8 of 9 pairs (not: a, m = 20, K = 3)" in compared(
        {"a": lazy | others | {(LAZY_NAME, 20, 3): (1.0, 0.3)}}
    )


@needs("mnist")
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "QUICK", Scale(True, 1, 3, 3, samples=150, some=150))
    monkeypatch.setattr(convex_lmo, "BARS", {("l1:10", 3): 2e-4, ("l2:10", 3): 1.0})
    monkeypatch.setattr(convex_lmo, "LOCAL_STEPS", (1, 3))
    monkeypatch.setattr(convex_lmo, "LAZY", {"MNIST, l1:10": ("mnist", "labels:3", "l1:10")})
    arguments = [
        "reproduce",
        "networks-convex",
        "--quick",
        "--out",
        str(tmp_path),
        "--data-dir",
        str(DATA),
    ]
    assert main(arguments) == 0
    page = (tmp_path / "networks-convex-quick.html").read_text()
    assert page.count("<svg") == 1
    assert "better everywhere" in page
    assert "&lt;= 0.0002" in page
    assert 'class="bad' not in page  # nobody is there after three rounds, which says nothing
