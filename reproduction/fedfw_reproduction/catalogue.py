"""Everything that can be reproduced, by name and in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedfw_reproduction import (
    bounds,
    convex_lmo,
    counterexample,
    hospitals,
    one_for_both,
    private_training,
    steps,
    table1,
    table2,
    table3,
)
from fedfw_reproduction import small_figures as figures
from fedfw_reproduction.document import Document
from fedfw_reproduction.figures import Claim, filled, tasks_in
from fedfw_reproduction.frontier import study as frontier
from fedfw_reproduction.lab import NOT_YET, Results, Wanted
from fedfw_reproduction.leakage import study as leakage
from fedfw_reproduction.networks import study as networks
from fedfw_reproduction.protocols import Scale
from fedfw_reproduction.regression import cost, coverage, heart, ovarian
from fedfw_reproduction.tables import by_columns, verdict


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
        """Whether everything it needs was computed; what has no data is left out by the sections
        themselves.
        """
        return all(results[task].get("not_run") != NOT_YET for task in self.tasks(scale))

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        cells: Callable[[Scale], Any],
        show: Callable[[Scale, Any, Document], None],
        claims: Callable[[Scale, Any], list[Claim]] = lambda scale, found: [],
        *,
        failures: Callable[[Any], list[str]] = lambda found: [],
        summary: Callable[[Any], str] | None = None,
        columns: Sequence[str] | None = None,
        files: Callable[[Scale, Any], dict[str, str]] = lambda scale, found: {},
        apart: bool = False,
        partial: bool = False,
    ) -> Section:
        """A section that gives its cells, in mappings and lists, and is shown with their results in
        these places.
        """
        made = lru_cache(cells)

        def fill(scale: Scale, results: Results) -> Any:
            return filled(made(scale), results)

        return cls(
            name,
            title,
            lambda scale: (
                tasks_in(made(scale)) if columns is None else by_columns(made(scale), columns)
            ),
            lambda scale, results, page: show(scale, fill(scale, results), page),
            lambda scale, results: claims(scale, fill(scale, results)),
            lambda scale, results: failures(fill(scale, results)),
            None if summary is None else lambda scale, results: summary(fill(scale, results)),
            lambda scale, results: files(scale, fill(scale, results)),
            apart,
            partial,
        )


WITH_BASELINES = ("table1", "table1-cifar")
"""The sections that have more rows with ``baselines``."""


def sections(baselines: bool = False) -> dict[str, Section]:
    """By name; ``baselines`` adds FedDA, FedADMM and projected FedAvg to table 1."""

    def table1_of(entries: Sequence[tuple[str, str, str, str]]) -> Callable[[Scale], Any]:
        return lambda scale: table1.lines(entries, scale, baselines)

    found = (
        Section.of(
            "table1",
            "Table 1: softmax regression",
            table1_of(table1.SMALL),
            table1.show,
            summary=verdict,
            columns=table1.COLUMNS,
        ),
        Section.of(
            "table1-cifar",
            "Table 1, continued: CIFAR-10",
            table1_of(table1.CIFAR),
            table1.show,
            summary=verdict,
            columns=table1.COLUMNS,
        ),
        Section.of(
            "table2",
            "Table 2: networks",
            table2.lines,
            table2.show,
            summary=verdict,
            columns=table2.COLUMNS,
        ),
        Section.of(
            "table3",
            "Table 3: minibatches",
            table3.lines,
            table3.show,
            table3.claims,
            summary=verdict,
            columns=table3.COLUMNS,
        ),
        Section.of(
            "participation",
            "Participation",
            figures.participation_cells,
            figures.show_participation,
            figures.participation_claims,
        ),
        Section.of(
            "penalty",
            "The initial penalty lam_0",
            figures.penalty_cells,
            figures.show_penalty,
            figures.penalty_claims,
        ),
        Section.of(
            "traffic",
            "Residual against bytes",
            figures.traffic_cells,
            figures.show_traffic,
            figures.traffic_claims,
        ),
        Section.of(
            "anchors",
            "Anchors",
            figures.anchors_cells,
            figures.show_anchors,
            figures.anchors_claims,
        ),
        Section.of(
            "certificate", "The certificate", figures.certificate_cells, figures.show_certificate
        ),
        Section.of(
            "momentum", "Momentum and schedules", figures.momentum_cells, figures.show_momentum
        ),
        Section.of(
            "one-for-both",
            "One algorithm for both kinds of set",
            one_for_both.cells,
            one_for_both.show,
        ),
        Section.of(
            "counterexample",
            "Counterexample",
            counterexample.cells,
            counterexample.show,
            counterexample.claims,
        ),
        Section.of("split", "Split constraints", figures.split_cells, figures.show_split),
        Section.of(
            "local-steps", "Local steps", figures.local_steps_cells, figures.show_local_steps
        ),
        Section.of(
            "oracle-errors",
            "Oracle errors",
            figures.oracle_errors_cells,
            figures.show_oracle_errors,
            figures.oracle_errors_claims,
        ),
        Section.of(
            "theory", "Theory", bounds.cells, bounds.show, bounds.claims, failures=bounds.failures
        ),
        Section.of(
            "steps",
            "Steps from curvature",
            steps.cells,
            steps.show,
            steps.claims,
            apart=True,
            partial=True,
        ),
        Section(
            "privacy",
            "What an atom reveals",
            leakage.tasks,
            leakage.show,
            leakage.claims,
            apart=True,
        ),
        Section.of(
            "dp",
            "What privacy costs",
            private_training.cells,
            private_training.show,
            private_training.claims,
            apart=True,
        ),
        Section.of(
            "hospitals",
            "Real hospitals",
            hospitals.cells,
            hospitals.show,
            hospitals.claims,
            apart=True,
        ),
        Section.of(
            "heart",
            "Heart disease",
            heart.cells,
            heart.show,
            heart.claims,
            apart=True,
        ),
        Section.of(
            "ovarian",
            "Ovarian cancer",
            ovarian.cells,
            ovarian.show,
            ovarian.claims,
            apart=True,
        ),
        Section.of(
            "estimators-cost",
            "Cost of a fit",
            cost.cells,
            cost.show,
            cost.claims,
            apart=True,
            partial=True,
        ),
        Section.of(
            "estimators-coverage",
            "Coverage of intervals",
            coverage.cells,
            coverage.show,
            coverage.claims,
            apart=True,
            partial=True,
        ),
        *(
            Section(s.name, s.title, s.tasks, s.show, s.claims, apart=True, partial=True)
            for s in networks.STUDIES
        ),
        Section.of(
            "networks-convex",
            "FedLMO on convex problems",
            convex_lmo.cells,
            convex_lmo.show,
            apart=True,
            partial=True,
        ),
        Section.of(
            "frontier",
            "The frontier: residual against bytes and rounds",
            frontier.cells,
            frontier.show,
            frontier.claims,
            files=frontier.files,
            apart=True,
            partial=True,
        ),
    )
    return {section.name: section for section in found}
