"""Everything that can be reproduced, by name and in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from fedfw_reproduction.tables import by_columns, judged, verdict

Claims = Callable[[Scale, Any], list[Claim]]


def _no_claims(scale: Scale, found: Any) -> list[Claim]:
    return []


def _no_files(scale: Scale, found: Any) -> dict[str, str]:
    return {}


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
        claims: Claims = _no_claims,
        failures: Callable[[Any], list[str]] = lambda found: [],
        summary: Callable[[Any], str] | None = None,
        columns: Sequence[str] | None = None,
        files: Callable[[Scale, Any], dict[str, str]] = _no_files,
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
        )


WITH_BASELINES = ("table1", "table1-cifar")
"""The sections that have more rows with ``baselines``."""


def sections(baselines: bool = False) -> dict[str, Section]:
    """By name; ``baselines`` adds FedDA, FedADMM and projected FedAvg to table 1."""

    def first_table(name: str, title: str, entries: Sequence[tuple[str, str, str, str]]) -> Section:
        def lines(scale: Scale) -> Any:
            return judged(table1.lines(entries, scale, baselines))

        return Section.of(name, title, lines, table1.show, summary=verdict, columns=table1.COLUMNS)

    def table(module: Any, name: str, title: str) -> Section:
        def lines(scale: Scale) -> Any:
            return judged(module.lines(scale))

        claims: Claims = getattr(module, "claims", _no_claims)
        return Section.of(
            name, title, lines, module.show, claims, summary=verdict, columns=module.COLUMNS
        )

    def small(name: str, title: str) -> Section:
        cells, show = (
            getattr(figures, part) for part in (f"{_word(name)}_cells", f"show_{_word(name)}")
        )
        claims: Claims = getattr(figures, f"{_word(name)}_claims", _no_claims)
        return Section.of(name, title, cells, show, claims)

    def alone(module: Any, name: str, title: str, partial: bool = False) -> Section:
        made = Section.of(
            name,
            title,
            module.cells,
            module.show,
            getattr(module, "claims", _no_claims),
            files=getattr(module, "files", _no_files),
        )
        return replace(made, apart=True, partial=partial)

    found = (
        first_table("table1", "Table 1: softmax regression", table1.SMALL),
        first_table("table1-cifar", "Table 1, continued: CIFAR-10", table1.CIFAR),
        table(table2, "table2", "Table 2: networks"),
        table(table3, "table3", "Table 3: minibatches"),
        small("participation", "Participation"),
        small("penalty", "The initial penalty lam_0"),
        small("traffic", "Residual against bytes"),
        small("anchors", "Anchors"),
        small("certificate", "The certificate"),
        small("momentum", "Momentum and schedules"),
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
        small("split", "Split constraints"),
        small("local-steps", "Local steps"),
        small("oracle-errors", "Oracle errors"),
        Section.of(
            "theory", "Theory", bounds.cells, bounds.show, bounds.claims, failures=bounds.failures
        ),
        alone(steps, "steps", "Steps from curvature", partial=True),
        Section(
            "privacy",
            "What an atom reveals",
            leakage.tasks,
            leakage.show,
            leakage.claims,
            apart=True,
        ),
        alone(private_training, "dp", "What privacy costs"),
        alone(hospitals, "hospitals", "Real hospitals"),
        *(
            Section(s.name, s.title, s.tasks, s.show, s.claims, apart=True, partial=True)
            for s in networks.STUDIES
        ),
        alone(convex_lmo, "networks-convex", "FedLMO on convex problems", partial=True),
        alone(
            frontier, "frontier", "The frontier: residual against bytes and rounds", partial=True
        ),
    )
    return {section.name: section for section in found}


def _word(name: str) -> str:
    return name.replace("-", "_")
