"""Everything that can be reproduced, by name and in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedfw.report.document import Document
from fedfw_reproduction import (
    anchors,
    bounds,
    certificate,
    convex_lmo,
    counterexample,
    hospitals,
    local_steps,
    momentum,
    one_for_both,
    oracle_errors,
    participation,
    penalty,
    private_training,
    split,
    steps,
    table1,
    table2,
    table3,
    traffic,
)
from fedfw_reproduction.figures import Claim
from fedfw_reproduction.frontier import study as frontier
from fedfw_reproduction.lab import NOT_YET, Results, Task, Wanted
from fedfw_reproduction.leakage import study as leakage
from fedfw_reproduction.networks import study as networks
from fedfw_reproduction.protocols import Scale


@dataclass(frozen=True)
class Section:
    """One table or figure.

    Parameters
    ----------
    name, title : str
        On the command line (`fedfw_reproduction.names`), and in the report.
    tasks : callable
        What has to be computed.
    show : callable
        Puts the results on the page.
    claims : callable
        What the results say about claims of the paper.
    failures : callable
        The names of proven bounds that did not hold, which is an error.
    summary : callable or None
        A table in a sentence or two, for the top of the report.
    files : callable
        Texts by name that are written beside the report, for other programs.
    apart : bool
        Whether it is a study of its own, which ``all`` leaves out.
    partial : bool
        Whether it can show what there is while other results are missing.
    """

    name: str
    title: str
    tasks: Callable[[Scale], Sequence[Wanted]]
    show: Callable[[Scale, Results, Document], None]
    claims: Callable[[Scale, Results], list[Claim]] = lambda scale, results: []
    failures: Callable[[Scale, Results], list[str]] = lambda scale, results: []
    summary: Callable[[Scale, Results], str] | None = None
    files: Callable[[Scale, Results], dict[str, str]] = lambda scale, results: {}
    apart: bool = False
    partial: bool = False

    def complete(self, scale: Scale, results: Results) -> bool:
        """Whether everything it needs was computed; what has no data is left out by the sections themselves."""
        return all(results[task].get("not_run") != NOT_YET for task in self.tasks(scale))


WITH_BASELINES = ("table1", "table1-cifar")
"""The sections that have more rows with ``baselines``."""


def sections(baselines: bool = False) -> dict[str, Section]:
    """By name; ``baselines`` adds FedDA, FedADMM and projected FedAvg to table 1."""

    def first_table(name: str, title: str, entries: tuple[tuple[str, str, str, str], ...]) -> Section:
        def tasks(scale: Scale) -> list[Task]:
            return table1.tasks(entries, scale, baselines)

        def show(scale: Scale, results: Results, page: Document) -> None:
            table1.show(entries, scale, baselines, results, page)

        def summary(scale: Scale, results: Results) -> str:
            return table1.summary(entries, scale, baselines, results)

        return Section(name, title, tasks, show, summary=summary)

    def of(module: object, name: str, title: str, apart: bool = False, partial: bool = False) -> Section:
        extras = {
            key: getattr(module, key) for key in ("claims", "failures", "summary", "files") if hasattr(module, key)
        }
        return Section(name, title, module.tasks, module.show, apart=apart, partial=partial, **extras)  # type: ignore[attr-defined]

    found = (
        first_table("table1", "Table 1: softmax regression", table1.SMALL),
        first_table("table1-cifar", "Table 1, continued: CIFAR-10", table1.CIFAR),
        of(table2, "table2", "Table 2: networks"),
        of(table3, "table3", "Table 3: minibatches"),
        of(participation, "participation", "Participation"),
        of(penalty, "penalty", "The initial penalty lam_0"),
        of(traffic, "traffic", "Residual against bytes"),
        of(anchors, "anchors", "Anchors"),
        of(certificate, "certificate", "The certificate"),
        of(momentum, "momentum", "Momentum and schedules"),
        of(one_for_both, "one-for-both", "One algorithm for both kinds of set"),
        of(counterexample, "counterexample", "Counterexample"),
        of(split, "split", "Split constraints"),
        of(local_steps, "local-steps", "Local steps"),
        of(oracle_errors, "oracle-errors", "Oracle errors"),
        of(bounds, "theory", "Theory"),
        of(steps, "steps", "Steps from curvature", apart=True, partial=True),
        of(leakage, "privacy", "What an atom reveals", apart=True),
        of(private_training, "dp", "What privacy costs", apart=True),
        of(hospitals, "hospitals", "Real hospitals", apart=True),
        *(Section(s.name, s.title, s.tasks, s.show, s.claims, apart=True, partial=True) for s in networks.STUDIES),
        of(convex_lmo, "networks-convex", "FedLMO on convex problems", apart=True, partial=True),
        of(frontier, "frontier", "The frontier: residual against bytes and rounds", apart=True, partial=True),
    )
    return {section.name: section for section in found}
