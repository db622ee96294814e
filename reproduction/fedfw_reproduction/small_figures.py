"""The small figures: sweeps over a few options of a run, by setting and label, and what is drawn of
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from fedfw import ALGORITHMS
from fedfw.config import RunConfig
from fedfw.report import human_bytes
from fedfw_reproduction.cells import Cell
from fedfw_reproduction.document import Document, csv_text
from fedfw_reproduction.figures import (
    RESIDUAL,
    Claim,
    Done,
    Judged,
    accuracies,
    all_run,
    average,
    curves_csv,
    panels,
)
from fedfw_reproduction.oracle_errors import KINDS, Sloppy
from fedfw_reproduction.protocols import Scale, six
from fedfw_reproduction.split import Weak

Options = Mapping[str, Any]
Swept = dict[str, dict[str, Done]]
"""What was done, by setting and label."""
OF_A_CELL = ("grid", "seeds", "samples", "every")
DIGITS = {"dataset": "mnist", "model": "mclr", "partition": "labels:3"}
NO_DATA = "not run: no data"


def cell_of(scale: Scale, options: Options) -> Cell:
    """A cell from options of its run and of its own; by default with the scale's rounds, seeds and
    some samples.
    """
    own = {"seeds": scale.seeds, "samples": scale.some} | {
        name: options[name] for name in OF_A_CELL if name in options
    }
    run = {"clients": 10, "rounds": scale.rounds} | {
        name: value for name, value in options.items() if name not in OF_A_CELL
    }
    return Cell(RunConfig.of(**run), **own | {"grid": scale.thinned(own.get("grid", ()))})


def swept(
    scale: Scale, settings: Mapping[str, Options], variants: Mapping[str, Options], **shared: Any
) -> dict[str, dict[str, Cell]]:
    """A cell for each variant in each setting."""
    return {
        setting: {
            label: cell_of(scale, {**shared, **own, **more}) for label, more in variants.items()
        }
        for setting, own in settings.items()
    }


def judged(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Judged]]:
    """The cells beside the optima of their problems."""
    return {
        setting: {label: Judged.of(cell) for label, cell in row.items()}
        for setting, row in cells.items()
    }


# --- the certificate ---

CERTIFIED: dict[str, dict[str, Any]] = {
    "a9a, l1:2, IID": {
        "dataset": "a9a",
        "model": "logistic",
        "partition": "iid",
        "constraint": "l1:2",
        "penalty": "theory:0.001",
    },
    "MNIST, l2:10, IID": DIGITS | {"partition": "iid", "constraint": "l2:10", "penalty": "theory"},
    "MNIST, l2:10, 3 labels": DIGITS | {"constraint": "l2:10", "penalty": "theory:3"},
}


def certificate_cells(scale: Scale) -> Any:
    """FedFW without momentum: its certificate comes with every round."""
    shared = {
        "algorithm": "fedfw",
        "momentum": 0.0,
        "rounds": scale.long_rounds,
        "samples": scale.samples,
    }
    return judged(swept(scale, CERTIFIED, {"": {"seeds": 1, "every": 1}}, **shared))


def show_certificate(scale: Scale, found: Swept, page: Document) -> None:
    """Convergence with the certificate's band: what is proven about the optimum while FedFW trains."""
    shown = {setting: row[""] for setting, row in found.items() if all_run(row)}
    if not shown:
        page.text(NO_DATA)
        return
    figure, axes = panels(len(shown))
    for axis, (setting, done) in zip(axes, shown.items(), strict=True):
        assert done.optimum is not None
        rounds, losses, bounds = (done.curve(name) for name in ("round", "loss", "lower_bound"))
        above = [max(loss - done.optimum["seeds"][0]["value"], 1e-12) for loss in losses]
        proven = [loss - bound for loss, bound in zip(losses, bounds, strict=True)]
        axis.semilogy(rounds, above, label="F - F*")
        axis.semilogy(rounds, proven, label="F - proven lower bound")
        axis.fill_between(rounds, above, proven, alpha=0.15, lw=0)
        axis.set(title=setting, xlabel="round")
    axes[0].legend()
    data = curves_csv(shown, ("loss", "lower_bound", "gap", RESIDUAL))
    page.plot(
        figure,
        "The certificate: distance from the optimum, and what is proven of it",
        data,
        "certificate",
    )


# --- local steps ---

STEPPED: dict[str, Options] = {
    "l2:10, IID": DIGITS | {"constraint": "l2:10", "partition": "iid", "penalty": "theory:3"},
    "l2:10, 3 labels": DIGITS | {"constraint": "l2:10", "penalty": "theory:3"},
    "l1:10, 3 labels": DIGITS | {"constraint": "l1:10", "penalty": "theory:0.001"},
}


def local_steps_cells(scale: Scale) -> Any:
    """FedFW on some of MNIST, from one to fifty local steps a round."""
    variants = {f"{steps} steps": {"local_steps": steps} for steps in (1, 2, 5, 10, 20, 50)}
    return judged(swept(scale, STEPPED, variants, algorithm="fedfw", momentum=0.0, every=1))


def show_local_steps(scale: Scale, found: Swept, page: Document) -> None:
    """At equal rounds, and at equal gradients."""
    if not all_run(found):
        page.text(NO_DATA)
        return
    data = {
        f"{setting}, {label}": done for setting, row in found.items() for label, done in row.items()
    }
    numbers = curves_csv(data, ("loss", "accuracy", "bytes_up", RESIDUAL))
    for by, label_of_x in (("rounds", "round"), ("gradients", "full gradients of a client")):
        figure, axes = panels(len(found))
        for axis, (setting, row) in zip(axes, found.items(), strict=True):
            for label, done in row.items():
                times = 1 if by == "rounds" else done.task.config.local_steps
                axis.loglog(
                    [times * t for t in done.curve("round")], done.curve(RESIDUAL), label=label
                )
            axis.set(title=setting, xlabel=label_of_x, ylabel="residual")
        axes[0].legend(fontsize="x-small")
        caption = f"Local steps of FedFW, {scale.some} digits of MNIST: residual by {by}"
        page.plot(figure, caption, numbers, f"local-steps-{by}")


# --- momentum and schedules ---

BETAS = (0.0, 0.5, 0.8, 0.9, 0.95)
SCHEDULES = ("convex", "nonconvex", "constant:0.02", "linear-decay:0.1")
PULLED: dict[str, Options] = {
    "l2:10": {
        "constraint": "l2:10",
        "grid": (("penalty", ("theory:0.03", "theory:0.1", "theory:0.3", "theory:1", "theory:3")),),
    },
    "l1:10": {
        "constraint": "l1:10",
        "grid": (("penalty", ("theory:0.0001", "theory:0.001", "theory:0.01", "theory:0.1")),),
    },
}


def momentum_cells(scale: Scale) -> Any:
    """FedFW+ on MNIST, three labels a client; the penalty is chosen anew for each."""
    pairs = [(beta, SCHEDULES[0]) for beta in BETAS] + [
        (beta, s) for s in SCHEDULES[1:] for beta in (0.0, 0.9)
    ]
    variants = {f"{s}, momentum {beta:g}": {"momentum": beta, "schedule": s} for beta, s in pairs}
    return judged(swept(scale, PULLED, variants, algorithm="fedfw+", every=2, **DIGITS))


def show_momentum(scale: Scale, found: Swept, page: Document) -> None:
    """What each is worth on a smooth set and on a polytope."""
    for constraint, row in found.items():
        if not all_run(row):
            page.text(f"{constraint}: {NO_DATA}")
            continue
        figure, (betas, schedules) = panels(2, 4.2)
        for label, done in row.items():
            rounds, far = done.curve("round"), done.curve(RESIDUAL)
            schedule, beta = done.task.config.get("schedule"), done.task.config.get("momentum")
            if schedule == SCHEDULES[0]:
                betas.semilogy(rounds, far, label=label)
            if beta in (0.0, 0.9):
                color = f"C{SCHEDULES.index(schedule)}"
                schedules.semilogy(rounds, far, "-" if beta else "--", color=color, label=label)
        for axis in (betas, schedules):
            axis.set(xlabel="round", ylabel="residual")
            axis.legend(fontsize="x-small")
        table = [
            (
                label,
                average(done.ends(RESIDUAL), "{:.4f}".format),
                accuracies(done.ends("accuracy")),
                f"{done.end('gap'):.3g}",
                str(done.result["chosen"].get("penalty", "-")),
            )
            for label, done in row.items()
        ]
        page.table((f"FedFW+, {constraint}", "residual", "accuracy %", "gap", "penalty"), table)
        caption = (
            f"Momentum and schedules: {scale.some} digits of MNIST, 3 labels a client, {constraint}"
        )
        page.plot(
            figure,
            caption,
            curves_csv(row, ("loss", "accuracy", "gap", RESIDUAL)),
            f"momentum-{constraint[:2]}",
        )


# --- participation: the paper's figures 2 and 3 ---

PUBLISHED = {"dataset": "synthetic:published-10", "partition": "labels:3"}
PROBABILITIES = (0.1, 0.2, 0.5, 1.0)
PARTS = {
    "convex": "softmax regression, l1 ball of radius 10",
    "network": "two hidden layers, l2 ball of radius 10",
}


def participation_cells(scale: Scale) -> Any:
    """Softmax regression with two penalties; two hidden layers with the step size of the non-convex
    schedule.
    """
    rounds = scale.long_rounds
    shared = PUBLISHED | {"rounds": rounds, "samples": scale.samples, "every": 5}
    penalties = {f"lam_0 = {lam:g}": {"penalty": lam} for lam in (0.01, 0.001)}
    convex = {f"p = {p:g}": {"participation": p} for p in PROBABILITIES}
    methods = {ALGORITHMS[name].title: {"algorithm": name} for name in ("fedfw", "fedfw+")}
    network = {
        f"p = {p:g}": {
            "participation": p,
            "schedule": f"constant:{(p * rounds + 1) ** (-2 / 3):.6f}",
        }
        for p in PROBABILITIES
    }
    of_convex = {"model": "mclr", "constraint": "l1:10", "algorithm": "fedfw", **shared}
    of_network = {"model": "mlp", "constraint": "l2:10", "penalty": 1e-3, "momentum": 0.0, **shared}
    return {
        "convex": judged(swept(scale, penalties, convex, **of_convex)),
        "network": swept(scale, methods, network, **of_network),
    }


def show_participation(scale: Scale, found: dict[str, Swept], page: Document) -> None:
    """How many clients take part."""
    for part, title in PARTS.items():
        figure, axes = panels(4)
        shown = {
            f"{setting}, {label}": done
            for setting, row in found[part].items()
            for label, done in row.items()
        }
        for (setting, row), (loss, accuracy) in zip(
            found[part].items(), (axes[:2], axes[2:]), strict=True
        ):
            for label, done in row.items():
                loss.plot(done.curve("round"), done.curve("test_loss"), label=label)
                accuracy.plot(done.curve("round"), done.curve("accuracy"), label=label)
            loss.set(title=f"{setting}: test loss", xlabel="round")
            accuracy.set(title=f"{setting}: test accuracy", xlabel="round")
        axes[0].legend()
        caption = f"Participation: {title}" + (", lam_t = 0.001" if part == "network" else "")
        page.plot(
            figure,
            caption,
            curves_csv(shown, ("test_loss", "loss", "accuracy")),
            f"participation-{part}",
        )


def participation_claims(scale: Scale, found: dict[str, Swept]) -> list[Claim]:
    """More participation converges faster; the penalty does not change that."""
    far = {
        setting: [done.end(RESIDUAL) for done in row.values()]
        for setting, row in found["convex"].items()
    }
    losses = {
        setting: [done.curve("loss")[-1] for done in row.values()]
        for setting, row in found["network"].items()
    }
    ordered = all(a >= 0.95 * b for values in (far | losses).values() for a, b in pairwise(values))
    told = [f"{setting}: residual {_listed(values)}" for setting, values in far.items()]
    told += [f"{setting}, network: loss {_listed(values)}" for setting, values in losses.items()]
    faster = "More participation converges faster (p = 0.1, 0.2, 0.5, 1; within 5 %)"
    factors = {setting: values[0] / values[-1] for setting, values in far.items()}
    ratios = "; ".join(
        f"{setting}: residual at p = 0.1 is {f:.2f} times that at p = 1"
        for setting, f in factors.items()
    )
    same = max(factors.values()) / min(factors.values()) < 1.5
    alike = "lam_0 does not change the effect of p (the two ratios within a factor of 1.5)"
    return [
        Claim(faster, ordered, "; ".join(told), "Participation"),
        Claim(alike, same, ratios, "Participation"),
    ]


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


# --- the initial penalty: the paper's figure 4 ---

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
BY_THEORY = "theory"
"""The penalty that minimises the convex bound with H taken at the start."""
_MCLR = DIGITS | {"participation": 0.5, "schedule": "convex"}
_MLP = PUBLISHED | {"model": "mlp", "participation": 1.0, "schedule": "nonconvex"}
PENALISED: dict[str, Options] = {
    "mnist-l1": _MCLR | {"constraint": "l1:10"},
    "mnist-l2": _MCLR | {"constraint": "l2:10"},
    "network-l1": _MLP | {"constraint": "l1:10"},
    "network-l2": _MLP | {"constraint": "l2:10"},
}


def penalty_cells(scale: Scale) -> Any:
    """FedFW with one lam_0."""
    variants: dict[str, Options] = {f"lam_0 = {lam:g}": {"penalty": lam} for lam in PENALTIES}
    variants |= {BY_THEORY: {"penalty": BY_THEORY}}
    settings = {
        name: {**own, "samples": scale.some if own["dataset"] == "mnist" else scale.samples}
        for name, own in PENALISED.items()
    }
    every = 1 if scale.quick else 2
    return swept(scale, settings, variants, algorithm="fedfw", momentum=0.0, every=every)


def show_penalty(scale: Scale, found: Swept, page: Document) -> None:
    """The initial penalty lam_0, in its four settings."""
    for setting, row in found.items():
        config = row[BY_THEORY].task.config
        if not all_run(row):
            page.text(f"{config.dataset}, {config.model}, {config.constraint}: {NO_DATA}")
            continue
        lam = row[BY_THEORY].result["runs"][0]["lam_0"]
        mark = "minimises the bound" if config.model == "mclr" else "by the convex formula"
        shown = {
            f"lam_0 = {lam:.2g}, {mark}" if label == BY_THEORY else label: done
            for label, done in row.items()
        }
        figure, (loss, gap, accuracy, last) = panels(4)
        for label, done in shown.items():
            style: dict[str, Any] = {"color": "black", "ls": "--"} if done is row[BY_THEORY] else {}
            for axis, column in ((loss, "loss"), (gap, "gap"), (accuracy, "accuracy")):
                axis.plot(done.curve("round"), done.curve(column), label=label, **style)
        ends = [done.curve("loss")[-1] for label, done in row.items() if label != BY_THEORY]
        last.semilogx(PENALTIES, ends, "o-")
        last.axvline(lam, color="black", ls="--", label=mark)
        loss.set(title="loss", xlabel="round")
        gap.set(title="Frank-Wolfe gap", xlabel="round", yscale="log")
        accuracy.set(title="test accuracy", xlabel="round")
        last.set(title="last loss", xlabel="lam_0")
        loss.legend(fontsize="small")
        last.legend(fontsize="small")
        some = f" ({scale.some} digits)" if config.dataset == "mnist" else ""
        caption = (
            f"lam_0: {config.model} on {config.dataset}{some}, 3 labels a client, {config.constraint}, "
            f"p = {config.participation:g}"
        )
        page.plot(
            figure, caption, curves_csv(shown, ("loss", "gap", "accuracy")), f"penalty-{setting}"
        )


def penalty_claims(scale: Scale, found: Swept) -> list[Claim]:
    """A larger penalty has a larger gap at first."""
    told, holds = [], []
    for setting, row in found.items():
        done = [one for label, one in row.items() if label != BY_THEORY]
        if all_run(done):
            early = [one.curve("gap")[2] for one in done]
            holds.append(all(a <= 1.05 * b for a, b in pairwise(early)))
            at = done[0].curve("round")[2]
            told.append(f"{setting}, round {at:.0f}: " + ", ".join(f"{v:.3g}" for v in early))
    text = (
        "A larger lam_0 gives a larger gap in the first rounds (lam_0 from 1e-4 to 1, within 5 %)"
    )
    return [Claim(text, all(holds) if holds else None, "; ".join(told), "lam_0")]


# --- residual against bytes ---

SENT = {
    **{name: (name, None) for name in ("feddr", "fedadmm", "fedavg", "fedda")},
    "fedfw": ("fedfw", 0.0),
    "fedfw+": ("fedfw+", 0.0),
    "fedfw+, momentum": ("fedfw+", 0.9),
    "fedfw-anchored": ("fedfw-anchored", None),
    "frank-wolfe": ("frank-wolfe", None),
}
"""Algorithm and momentum by label."""
_FRANK_WOLFE = (("momentum", (0.0, 0.3, 0.5, 0.7, 0.8, 0.9)),)


def traffic_cells(scale: Scale) -> Any:
    """Every algorithm at the best of six points; some of MNIST, three labels a client."""
    found: dict[str, dict[str, Cell]] = {}
    for constraint in ("l2:10", "l1:10"):
        variants = {}
        for label, (name, momentum) in SENT.items():
            grid = six(name, constraint, "mclr", "mnist", momentum=bool(momentum))
            grid = _FRANK_WOLFE if name == "frank-wolfe" else grid
            variants[label] = {"algorithm": name, "momentum": momentum, "grid": grid}
        found |= swept(scale, {constraint: {"constraint": constraint}}, variants, every=2, **DIGITS)
    return judged(found)


def show_traffic(scale: Scale, found: Swept, page: Document) -> None:
    """Residual against bytes for every algorithm."""
    for constraint, row in found.items():
        if not all_run(row):
            page.text(f"{constraint}: {NO_DATA}")
            continue
        figure, (up, both, rounds) = panels(3, 4.2)
        for i, (label, done) in enumerate(row.items()):
            far, sent, received = (
                done.curve(name) for name in (RESIDUAL, "bytes_up", "bytes_down")
            )
            atoms_alone = not ALGORITHMS[done.task.config.algorithm].shares
            style = {"color": f"C{i}", "ls": "-" if atoms_alone else "--"}
            up.loglog(sent, far, label=label, **style)
            both.loglog([a + b for a, b in zip(sent, received, strict=True)], far, **style)
            rounds.semilogy(done.curve("round"), far, **style)
        up.set(title=f"{constraint}: up", xlabel="bytes up", ylabel="residual")
        both.set(title="up and down", xlabel="bytes")
        rounds.set(title="by rounds", xlabel="round")
        up.legend(fontsize="x-small")
        table = [
            (
                label,
                average(done.ends(RESIDUAL), "{:.4f}".format),
                accuracies(done.ends("accuracy")),
                human_bytes(done.end("bytes_up")),
                human_bytes(done.end("bytes_down")),
                f"{done.seconds:.1f}",
                done.chosen,
            )
            for label, done in row.items()
        ]
        page.table(
            ("algorithm", "residual", "accuracy %", "up", "down", "seconds", "chosen"), table
        )
        digits = f"{scale.some} digits of MNIST, 3 labels a client, {constraint}"
        caption = f"Residual against bytes, {digits}; dashed: sends more than atoms"
        data = curves_csv(row, ("loss", "accuracy", "bytes_up", "bytes_down", RESIDUAL))
        page.plot(figure, caption, data, f"traffic-{constraint.partition(':')[0]}")


def traffic_claims(scale: Scale, found: Swept) -> list[Claim]:
    """FedFW+ beside FedFW."""
    told, holds = [], []
    for constraint, row in found.items():
        if all_run(row):
            plus, plain = (row[label].end(RESIDUAL) for label in ("fedfw+", "fedfw"))
            holds.append(plus < plain)
            told.append(f"{constraint}: residual {plus:.4f} (FedFW+), {plain:.4f} (FedFW)")
    verdict = all(holds) if holds else None
    return [
        Claim(
            "FedFW+ is empirically faster than FedFW",
            verdict,
            "; ".join(told),
            "Residual against bytes",
        )
    ]


# --- anchors ---

DIFFERENT: dict[str, Options] = {
    "MNIST, 3 labels": DIGITS,
    "a9a, Dirichlet(0.3)": {"dataset": "a9a", "model": "logistic", "partition": "dirichlet:0.3"},
    "synthetic, 3 labels": PUBLISHED | {"model": "mclr"},
    "synthetic(1,1)": {"dataset": "synthetic:1,1", "model": "mclr", "partition": "client"},
}
DENSE = "gradient-sharing FW"


def anchors_cells(scale: Scale) -> Any:
    """Plain and gradient-sharing algorithms, and anchors every m rounds, with and without momentum."""
    penalties = (
        ("penalty", tuple(f"theory:{k}" for k in (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1))),
    )
    variants: dict[str, Options] = {
        "FedFW": {"algorithm": "fedfw", "momentum": 0.0, "grid": penalties},
        "FedFW+": {"algorithm": "fedfw+", "momentum": 0.0, "grid": penalties},
    }
    for momentum in (0.0, 0.9):
        also = ", momentum" if momentum else ""
        variants[f"{DENSE}{also}"] = {"algorithm": "frank-wolfe", "momentum": momentum}
        for m in sorted({1, 5, 10, 20, 50, scale.rounds} - set(range(scale.rounds + 1, 51))):
            label = f"anchors{also}, {'once' if m == scale.rounds else f'm = {m}'}"
            variants[label] = {
                "algorithm": "fedfw-anchored",
                "momentum": momentum,
                "anchor_every": m,
            }
    return judged(swept(scale, DIFFERENT, variants, constraint="l1:10", samples=scale.samples))


def show_anchors(scale: Scale, found: Swept, page: Document) -> None:
    """Clients that differ, on the l1 ball: what an anchor now and then is worth, in residual
    against bytes.
    """
    shown = {setting: row for setting, row in found.items() if all_run(row)}
    if not shown:
        page.text(NO_DATA)
        return
    figure, axes = panels(len(shown), 4.2)
    data: list[tuple[object, ...]] = []
    for axis, (setting, row) in zip(axes, shown.items(), strict=True):
        points = {label: _point(done) for label, done in row.items()}
        families: dict[str, list[tuple[float, float]]] = {}
        for label, point in points.items():
            name, _, last = label.rpartition(", ")
            families.setdefault(
                name if last == "once" or last.startswith("m =") else label, []
            ).append(point)
        for family, group in families.items():
            axis.loglog(*zip(*group, strict=True), "o-" if len(group) > 1 else "s", label=family)
        axis.set(title=setting, xlabel="bytes up, all clients and rounds", ylabel="residual")
        data += [(setting, label, *point) for label, point in points.items()]
        page.heading(f"{setting}, l1 ball of radius 10", 3)
        table = [
            (
                label,
                average(done.ends(RESIDUAL), "{:.4f}".format),
                accuracies(done.ends("accuracy")),
                human_bytes(points[label][0]),
                f"{points[label][0] / points[DENSE][0]:.2%}",
                human_bytes(done.end("bytes_down")),
            )
            for label, done in row.items()
        ]
        page.table(
            ("algorithm", "residual", "accuracy %", "up", "of gradient sharing", "down"), table
        )
    axes[0].legend(fontsize="x-small")
    caption = (
        f"Residual after {scale.rounds} rounds against bytes; anchors from every round (right) to once (left). "
        "At equal rounds: an anchor costs a client one more gradient."
    )
    page.plot(
        figure, caption, csv_text(("setting", "algorithm", "bytes_up", "residual"), data), "anchors"
    )


def anchors_claims(scale: Scale, found: Swept) -> list[Claim]:
    """Bytes of atoms beside bytes of gradients."""
    told, holds = [], []
    for setting, row in found.items():
        if all_run(row):
            dense, plain = _point(row[DENSE]), _point(row["FedFW"])
            holds.append(plain[0] < dense[0])
            bytes_up = f"{human_bytes(plain[0])} up against {human_bytes(dense[0])}"
            told.append(f"{setting}: {bytes_up}, residual {plain[1]:.3f} against {dense[1]:.3f}")
    text = "Sharing atoms costs fewer bytes than sharing gradients (l1 ball, up, equal rounds; on l2 atoms are dense)"
    return [Claim(text, all(holds) if holds else None, "; ".join(told), "Anchors")]


def _point(done: Done) -> tuple[float, float]:
    """Bytes up and residual, means over the seeds."""
    return done.end("bytes_up"), max(done.end(RESIDUAL), 1e-6)


# --- split constraints ---


def split_cells(scale: Scale) -> Any:
    """From none to nearly all of the clients weak."""
    shares = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
    return {s: Weak(s, rounds=scale.rounds, seeds=scale.seeds, samples=scale.some) for s in shares}


def show_split(scale: Scale, found: dict[float, Done], page: Document) -> None:
    """What weak clients cost, and what they save."""
    if not all_run(found):
        page.text(NO_DATA)
        return
    columns = {
        "test accuracy % of the returned model": [
            100 * done.end("accuracy") for done in found.values()
        ],
        "distance of xbar from the set": [done.end("distance") for done in found.values()],
        "seconds in oracles": [done.seconds_in("oracle") for done in found.values()],
    }
    figure, axes = panels(len(columns))
    for axis, (title, values) in zip(axes, columns.items(), strict=True):
        axis.plot(list(found), values, "o-")
        axis.set(title=title, xlabel="share of weak clients")
    axes[-1].set(ylim=(0, None))
    _, far, oracle = columns.values()
    accuracy = [done.end("accuracy") for done in found.values()]
    rows = zip(found, accuracy, far, oracle, strict=True)
    caption = f"Split constraints: nuclear ball, weak clients with a Frobenius ball; {scale.some} digits, 3 labels each"
    page.plot(
        figure,
        caption,
        csv_text(("weak", "accuracy", "distance", "oracle_seconds"), list(rows)),
        "split",
    )
    table = [
        (
            f"{s:.0%}",
            accuracies(done.ends("accuracy")),
            f"{away:.3g}",
            f"{spent:.2f}",
            f"{1 - spent / oracle[0]:.0%}",
        )
        for (s, done), away, spent in zip(found.items(), far, oracle, strict=True)
    ]
    page.table(("weak clients", "accuracy %", "distance of xbar", "oracle seconds", "saved"), table)


# --- oracles that err ---

ERRING = {"l2:10": "theory:3", "l1:10": "theory:0.001"}
"""The penalty by set."""


def oracle_errors_cells(scale: Scale) -> Any:
    """FedFW with errors of every kind and size."""
    shared = {**DIGITS, "partition": "iid", "algorithm": "fedfw"}
    cells = {
        c: cell_of(scale, {**shared, "constraint": c, "penalty": penalty})
        for c, penalty in ERRING.items()
    }
    return {
        kind: {
            c: {delta: Judged.of(Sloppy(cell, kind, delta)) for delta in sizes}
            for c, cell in cells.items()
        }
        for kind, sizes in KINDS.items()
    }


Erring = dict[str, dict[str, dict[float, Done]]]


def show_oracle_errors(scale: Scale, found: Erring, page: Document) -> None:
    """How large an error may be."""
    if not all_run(found):
        page.text(NO_DATA)
        return
    far = _residuals(found)
    figure, axes = panels(len(found))
    rows: list[tuple[object, ...]] = []
    for axis, (kind, sets) in zip(axes, far.items(), strict=True):
        for constraint, row in sets.items():
            sizes, values = list(row), list(row.values())
            axis.plot(sizes[1:], values[1:], "o-", label=constraint)
            axis.axhline(values[0], ls=":", color=axis.lines[-1].get_color())
            rows += [(kind, constraint, *point) for point in row.items()]
        axis.set(title=kind, xlabel="delta", ylabel="residual", xscale="log", yscale="log")
    axes[0].legend()
    setting = f"{scale.some} digits of MNIST, IID, residual after {scale.rounds} rounds"
    caption = f"Oracle errors of FedFW: {setting} (dotted: an exact oracle)"
    page.plot(
        figure, caption, csv_text(("kind", "set", "delta", "residual"), rows), "oracle-errors"
    )
    page.text(
        "Multiplicative: delta is the share of the progress <g, x_i - s> that is lost. Additive: delta is in units of "
        "F(x^1)/n for each client, the same in every round; shrinking: that times the step size. "
        + _where_it_breaks(far)
    )


def oracle_errors_claims(scale: Scale, found: Erring) -> list[Claim]:
    """Whether errors of some size are harmless."""
    where = "Oracle errors"
    if not all_run(found):
        return [Claim("Frank-Wolfe is robust to oracle errors", None, "no data", where)]
    far = _residuals(found)
    texts = {
        (
            "multiplicative",
            0.3,
        ): "Frank-Wolfe is robust to multiplicative oracle errors (0.3 costs less than half of "
        "the residual on top)",
        (
            "additive",
            0.1,
        ): "... and to additive ones (0.1 F(x^1) in all, the same in every round, costs less than half "
        "on top)",
        ("shrinking", 0.1): "... if they shrink with the step size (0.1 F(x^1) eta_t in all)",
    }
    return [
        Claim(
            text,
            all(row[delta] < 1.5 * row[0.0] for row in far[kind].values()),
            _where_it_breaks(far),
            where,
        )
        for (kind, delta), text in texts.items()
    ]


def _residuals(found: Erring) -> dict[str, dict[str, dict[float, float]]]:
    return {
        kind: {
            c: {delta: max(done.end(RESIDUAL), 1e-7) for delta, done in row.items()}
            for c, row in sets.items()
        }
        for kind, sets in found.items()
    }


def _where_it_breaks(far: Mapping[str, Mapping[str, Mapping[float, float]]]) -> str:
    """The smallest error that doubles the residual, for each kind and set."""
    found = []
    for kind, sets in far.items():
        for constraint, row in sets.items():
            worse = [delta for delta, value in row.items() if value > 2 * row[0.0]]
            found.append(
                f"{kind}, {constraint}: {f'{worse[0]:g}' if worse else 'none of those tried'}"
            )
    return "The smallest error that doubles the residual: " + "; ".join(found) + "."
