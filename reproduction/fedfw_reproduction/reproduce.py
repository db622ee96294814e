"""The report: sections by name are computed, kept as they finish, and shown on one page."""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten

import torch

from fedfw._version import __version__
from fedfw.data import data_folder
from fedfw.ranks import ALONE, Ranks
from fedfw.report import aligned
from fedfw_reproduction.catalogue import WITH_BASELINES, Section, sections
from fedfw_reproduction.document import Cell, Document, text_of
from fedfw_reproduction.figures import Claim
from fedfw_reproduction.lab import NOT_YET, Lab, Results, Site, was_run
from fedfw_reproduction.names import GROUPS
from fedfw_reproduction.protocols import FULL, QUICK, Scale, matched_batch


def reproduce(
    name: str,
    *,
    quick: bool = False,
    out: Path,
    jobs: int | None = None,
    device: str | None = None,
    data_dir: Path | None = None,
    baselines: bool = False,
    mixed: bool = False,
    markdown: Path | None = None,
    only_kept: bool = False,
    seconds: float | None = None,
    ranks: Ranks = ALONE,
) -> int:
    """Compute what is missing, print the first tables and write the report.

    Parameters
    ----------
    name : str
        A section of the catalogue, a group of them, or ``all``.
    quick : bool
        Small and short, with the same code.
    out : Path
        Folder for the report and the kept results.
    jobs : int, optional
        Processes at a time; by default one.
    device : str, optional
        cpu or cuda.
    data_dir : Path, optional
        Folder of the data sets; by default the usual one.
    baselines : bool
        Whether table 1 has FedDA, FedADMM and FedAvg, too.
    mixed : bool
        Whether table 2's CNN multiplies in bfloat16 on a GPU; its results are kept apart from those
        in float32.
    markdown : Path, optional
        Also write the report as this Markdown file, with its plots in a folder beside it.
    only_kept : bool
        Compute nothing: a report of what is kept.
    seconds : float, optional
        Begin no task after so many seconds, and write no report: for a machine that is lent for a
        while.
    ranks : Ranks
        The processes that share the tasks; the first one writes the report.

    Returns
    -------
    int
        The exit status of the command: 1 when a proven bound fails, 130 after an interrupt, which
        keeps what is done.
    """
    if only_kept:
        _refuse_with_kept(
            {"jobs": jobs, "device": device, "data-dir": data_dir, "seconds": seconds}
        )
    jobs = 1 if jobs is None else jobs
    device = "cpu" if device is None else device
    if jobs < 1:
        raise ValueError(f"--jobs {jobs}, expected at least 1")
    if jobs > 1 and ranks.size > 1:
        raise ValueError(
            f"--jobs {jobs} under torchrun, expected 1: torchrun starts as many processes as it is told"
        )
    if markdown is not None and markdown.suffix != ".md":
        raise ValueError(
            f"--markdown {markdown}, expected a name that ends in .md: the plots go beside it"
        )
    site = Site(str(data_folder(data_dir)), device)
    if not only_kept:
        site.check()
    if seconds is not None and not seconds > 0:
        raise ValueError(f"--seconds {seconds:g}, expected a positive number")
    if seconds is not None and markdown is not None:
        raise ValueError(
            "--markdown with --seconds, which writes no report: --kept writes it afterwards"
        )
    scale = replace(QUICK if quick else FULL, mixed=mixed)
    chosen = [section for section in sections(baselines).values() if _belongs(section, name)]
    if mixed and all(section.name != "table2" for section in chosen):
        raise ValueError(
            f"--mixed with {name}, expected table2 or all: other networks are too small to gain by it"
        )
    if mixed and not only_kept and not device.startswith("cuda"):
        raise ValueError(
            f"--mixed with --device {device}, expected cuda: it multiplies in bfloat16 on a GPU"
        )
    if baselines and not any(section.name in WITH_BASELINES for section in chosen):
        raise ValueError(
            f"--baselines with {name}, expected {' or '.join(WITH_BASELINES)}, or all: others have no such rows"
        )
    lab = Lab(out, site, jobs=jobs, only_kept=only_kept, seconds=seconds, ranks=ranks)
    begin = time.monotonic()
    try:
        results = lab.run([task for section in chosen for task in section.tasks(scale)])
    except KeyboardInterrupt:
        print(
            f"\ninterrupted: what is done is kept in {out}, the same command goes on; --kept shows it"
        )
        return 130
    except OSError as error:  # a disk that is full, for example
        raise OSError(
            f"{error}. Mend that; what is done is kept in {out}, the same command goes on"
        ) from None
    if not ranks.first:
        return 0
    if seconds is not None:
        left = sum(result.get("not_run") == NOT_YET for result in results.values())
        print(
            f"{len(results) - left} of {len(results)} tasks are done and kept in {out}; {left} are left"
        )
        return 0
    command = (
        f"fedfw reproduce {name}{' --quick' if quick else ''}{' --baselines' if baselines else ''}"
    )
    command += " --mixed" if mixed else ""
    page = _report(command, chosen, scale, results, seconds=time.monotonic() - begin)
    target = out / f"{name}{'-quick' if quick else ''}{'-mixed' if mixed else ''}.html"
    page.save_html(target)
    if markdown is not None:
        page.save_markdown(markdown)
    for section in chosen:
        for file, text in section.files(scale, results).items():
            (out / file).write_text(text, encoding="utf-8")
    for table in page.first_tables:
        rows = (tuple(shorten(text_of(cell), 150) for cell in row) for row in table.rows)
        print(aligned([table.header, *rows]) + "\n")
    print(f"report: {target}")
    complete = (section for section in chosen if section.complete(scale, results))
    failed = [failure for section in complete for failure in section.failures(scale, results)]
    for failure in failed:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failed else 0


def _refuse_with_kept(given: Mapping[str, object]) -> None:
    """Refuse options that say how to compute where nothing is computed."""
    for option, value in given.items():
        if value is not None:
            raise ValueError(
                f"--{option} {value} with --kept, which computes nothing: leave one of them out"
            )


def _belongs(section: Section, name: str) -> bool:
    """Whether a section is meant by a name of the command line."""
    in_group = name in GROUPS and section.name.startswith(f"{name}-")
    return name == section.name or in_group or (name == "all" and not section.apart)


def _report(
    command: str, chosen: Sequence[Section], scale: Scale, results: Results, seconds: float
) -> Document:
    page = Document(
        "Federated Frank-Wolfe, reproduced"
        + (" (quick: small and short, for a look)" if scale.quick else "")
    )
    page.text(f"Made by `{command}`, {time.strftime('%Y-%m-%d')}.")
    complete = [section for section in chosen if section.complete(scale, results)]
    summaries = [
        (section.title, section.summary(scale, results))
        for section in chosen
        if section.summary is not None
    ]
    if summaries:
        page.heading("Summary")
        page.table(("", "in short"), summaries)
    claims = [claim for section in complete for claim in section.claims(scale, results)]
    if claims:
        page.heading("Claims")
        page.table(
            ("claim", "verdict", "found", "see"), (_verdict(claim, scale) for claim in claims)
        )
    if summaries:
        page.heading("Protocols")
        page.text(_protocols(scale))
    for section in chosen:
        page.heading(section.title)
        if section in complete or section.summary is not None or section.partial:
            section.show(scale, results, page)
        page.text(_computed(section, scale, results))
    page.text(f"Seeds 0 to {scale.seeds - 1}, unless a section says otherwise.")
    page.attachment(
        "configurations.txt", "every configuration, and what was chosen", _configurations(results)
    )
    page.footer(
        [
            f"fedfw {__version__}, torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}",
            f"{time.strftime('%Y-%m-%d')}; this call took {seconds:.0f} s; {scale}",
        ]
    )
    return page


def _protocols(scale: Scale) -> str:
    """What the columns of the tables are, with the numbers that were run."""
    small = (
        f"Everything was run small and short, to see that it works: with at most {scale.samples} samples for training "
        f"(table 3: {2 * (scale.samples or 0)}, networks: {scale.network_samples}) and fewer rounds than the paper. "
        if scale.quick
        else ""
    )
    of_networks = ""
    if scale.network_rounds != scale.rounds:
        of_networks = f" (networks: {scale.network_rounds})"
    batches = [f"{matched_batch(scale.samples)}", "table 3: 64"]
    if scale.network_samples != scale.samples:
        batches.append(f"networks: {matched_batch(scale.network_samples)}")
    grid = "at most two points of a grid of six" if scale.quick else "a grid of six points"
    return (
        f"{small}Paper: the published number. Stated: the protocol that the paper states "
        f"({'run small: ' if small else ''}10 clients, {scale.rounds} rounds{of_networks}, one full-gradient step a "
        f"round, one joint set of radius 10; table 3: 100 clients, {scale.long_rounds} rounds, 64 samples a step). "
        f"Matched: one local epoch a round in batches of {batches[0]} ({', '.join(batches[1:])}) and one set for each "
        "parameter. Ours: the stated protocol, FedFW+ with momentum on smooth sets, anchored FedFW (which shares sums "
        "of gradients) on polytopes. FedLMO: the stated protocol with FedLMO, which sends its momentum and the change "
        "of its control variate, two dense vectors, beside each atom. Every algorithm has "
        f"{grid}, each with the same number of gradients, chosen by the loss on a fifth of the training data that the "
        "clients lend, with seed 0. Residual is (F - F*)/(F(x^1) - F*), F* from `fedfw solve`."
    )


def _verdict(claim: Claim, scale: Scale) -> list[Cell]:
    words = {True: "holds", False: "does not hold", None: "not tested"}[claim.holds]
    small = " at this size" if scale.quick and claim.holds is not None else ""
    return [claim.text, (words + small, scale.kind(claim.holds)), claim.found, claim.where]


def _computed(section: Section, scale: Scale, results: Results) -> str:
    """Where the numbers of a section come from, and how long they took."""
    tasks = list(dict.fromkeys(section.tasks(scale)))
    done = [results[task] for task in tasks if was_run(results[task])]
    machines = ", ".join(
        f"{machine} ({count} tasks)"
        for machine, count in Counter(r["machine"] for r in done).items()
    )
    # The data's name alone: what the reader of a report misses is not where this machine looked for
    # it.
    left = Counter(
        (r["not_run"], r["why"].partition(":")[0])
        for task in tasks
        if not was_run(r := results[task])
    )
    missing = "".join(
        f"; {count} tasks not run: {why} ({what})" for (why, what), count in left.items()
    )
    return f"Computed on {machines or 'no machine'} in {sum(r['took'] for r in done):.0f} s of tasks{missing}."


def _configurations(results: Results) -> str:
    lines = []
    for task, result in results.items():
        chosen = f" -> {result['chosen']}" if result.get("chosen") else ""
        lines.append(
            f"{task!r}{chosen}" + ("" if was_run(result) else f" (not run: {result['not_run']})")
        )
    return "\n".join(lines) + "\n"
