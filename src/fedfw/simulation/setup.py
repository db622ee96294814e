"""What a run works out before its first round: who uses which set, where to start, the penalty, the certificate."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fedfw.algorithms.base import Algorithm, Plan, Setting
from fedfw.errors import NoProjectionError
from fedfw.privacy.steps import PrivateSteps
from fedfw.problems.base import Oracle
from fedfw.problems.problem import Problem
from fedfw.sets.base import ConstraintSet
from fedfw.simulation.options import Options
from fedfw.simulation.participation import Participation

_MANY_BYTES = 2**30
_LARGE_STATE = 2**25
"""Numbers of all clients together from which rounds are not recorded: it would take memory and save little time."""


def constraint_groups(
    constraint: ConstraintSet, relax: Mapping[int, Any] | None, problem: Problem
) -> list[tuple[Tensor, ConstraintSet]]:
    """Clients by the set they use: first those that keep the constraint itself."""
    device = problem.start.device
    relax = dict(relax or {})
    strange = [i for i in relax if not (isinstance(i, int) and 0 <= i < problem.n)]
    if strange:
        raise ValueError(f"relax names clients {strange}, expected numbers from 0 to {problem.n - 1}")
    keepers = [i for i in range(problem.n) if i not in relax]
    if not keepers:
        raise ValueError("relax names every client: somebody must keep the constraint, or it is dropped altogether")
    groups = [(torch.tensor(keepers, device=device), constraint)]
    by_set: dict[int, tuple[list[int], Any]] = {}
    for i, looser in sorted(relax.items()):
        by_set.setdefault(id(looser), ([], looser))[0].append(i)
    for clients, looser in by_set.values():
        bound = problem.bind(looser)
        _refuse_smaller(constraint, bound, problem, clients[0])
        groups.append((torch.tensor(clients, device=device), bound))
    return groups


def _refuse_smaller(constraint: ConstraintSet, looser: ConstraintSet, problem: Problem, client: int) -> None:
    shape = tuple(problem.start.shape)
    g = torch.randn(16, *shape, generator=torch.Generator().manual_seed(0)).to(problem.start)
    atoms = constraint.lmo(g, batch=True).dense(torch.float64)
    if not bool(torch.as_tensor(looser.contains(atoms, 1e-5, batch=True)).all()):
        raise ValueError(
            f"relax: the set of client {client}, {looser!r}, does not contain the constraint {constraint!r}"
        )


def feasible_start(constraint: ConstraintSet, start: Tensor) -> Tensor:
    """The given parameters (p,) when they lie in the set, else their projection."""
    if constraint.contains(start):
        return start
    try:
        return constraint.project(start)
    except NoProjectionError as error:
        raise ValueError(f"the start lies outside the constraint: give a start inside ({error})") from None


def automatic_penalty(problem: Problem, constraint: ConstraintSet, start: Tensor) -> float:
    """lam_0 = zeta / (2 n diameter), zeta^2 = (1/n) sum ||grad f_i - grad F||^2 at the start (f_i scaled by n w_i)."""
    n = problem.n
    if not problem.losses.countable:
        raise ValueError('penalty="auto" asks all clients for their gradient, and these are too many: give a number')
    who = problem.losses.everyone(start.device)
    _, gradients = Oracle(problem.losses, problem.weights.to(start.dtype) * n, who, lambda: None, 0)(
        start.expand(n, -1)
    )
    zeta = float((gradients - gradients.mean(0)).double().square().sum(1).mean().sqrt())
    return zeta / (2 * n * max(constraint.diameter(tuple(start.shape)), 1e-300))


def private_steps(
    problem: Problem, algorithm: Algorithm, constraint: ConstraintSet, participation: Participation, options: Options
) -> PrivateSteps | None:
    """The gradient and the oracle of a private run, with noise for as many rounds as any client takes part in."""
    if options.privacy is None:
        return None
    if options.tol is not None:
        raise ValueError("tol needs a certificate, which tells of the data: it does not go with privacy")
    if options.relax:
        raise ValueError("relax does not go with privacy: clients with another set would need other noise")
    if problem.losses.sizes is None:
        raise ValueError("privacy is for clients with samples; these are plain functions")
    attended = torch.zeros(problem.n, dtype=torch.int64)
    for t in range(1, options.rounds + 1):
        attended[participation(t)] += 1
    return PrivateSteps.plan(
        options.privacy,
        algorithm,
        constraint,
        tuple(problem.start.shape),
        int(problem.losses.sizes.min()),
        max(1, int(attended.max())),
        options.local_steps,
        options.batch_size,
    )


def _told_of_data() -> float:
    raise ValueError('lr="auto" is worked out from the data, which a private run must not tell of: give a number')


def describe_setting(problem: Problem, constraint: ConstraintSet, start: Tensor, p: float, options: Options) -> Setting:
    """What the algorithm makes its plan from."""
    privacy = options.privacy
    if privacy is not None:
        # In place of how much gradients differ, how much clipped ones could.
        bound = privacy.clip / (2 * problem.n * max(constraint.diameter(tuple(start.shape)), 1e-300))
        common = problem.n, constraint, problem.convex, p, options.rounds, options.local_steps
        return Setting(*common, lambda: bound, _told_of_data)
    return Setting(
        problem.n,
        constraint,
        problem.convex,
        p,
        options.rounds,
        options.local_steps,
        lambda: automatic_penalty(problem, constraint, start),
        problem.smoothness,
    )


def usable_device(wanted: str | torch.device) -> torch.device:
    """The device, if it exists here."""
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device={wanted!r}, expected cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={wanted!r}: there is no CUDA device here")
    return device


def refuse_contradictions(
    problem: Problem, algorithm: Algorithm, constraint: ConstraintSet, participation: Participation, options: Options
) -> None:
    """Raise ValueError for options that make no sense together."""
    if algorithm.needs_projection and not constraint.has_projection:
        raise ValueError(f"{algorithm.name} projects, and {constraint!r} has only a linear minimization oracle")
    if options.batch_size is not None and problem.losses.sizes is None:
        raise ValueError("batch_size needs clients with samples; these are plain functions")
    if options.tol is not None and problem.convex is not True:
        raise ValueError("tol needs a certificate, and the losses are not known to be convex (convex=True says so)")
    if options.relax and not algorithm.may_relax:
        raise ValueError(f"relax does not go with {algorithm.name}: its clients have no points of their own in a set")
    _refuse_what_does_not_fit(problem, participation, options)
    if options.local_steps > 1 and not algorithm.may_step_locally:
        raise ValueError(f"local_steps={options.local_steps}: {algorithm.name} takes one step a round")


def few_take_part(problem: Problem, participation: Participation, options: Options) -> bool:
    """Whether only the rows of those who took part are kept: most never do, or all rows would take a gigabyte."""
    expected, start = participation.expected, problem.start
    if expected is None or 2 * expected > problem.n:
        return False
    all_rows = problem.n * start.numel() * start.element_size()
    return 2 * expected * options.rounds < problem.n or all_rows > _MANY_BYTES


def can_be_recorded(problem: Problem, participation: Participation, options: Options, plan: Plan) -> bool:
    """Whether rounds differ in nothing but their numbers, and are short enough that a GPU should replay them."""
    if type(plan) is not Plan or problem.n * problem.start.numel() > _LARGE_STATE:
        return False
    same_work = participation.everyone and options.batch_size is None and not options.relax and options.privacy is None
    # The atoms of several steps are weighed before they are sent: that is looking at them.
    one_step = plan.schedule is None or plan.local_steps == 1
    return problem.start.is_cuda and problem.losses.plain_kernels and same_work and one_step


def _refuse_what_does_not_fit(problem: Problem, participation: Participation, options: Options) -> None:
    """Every algorithm holds a few tensors of clients x parameters; refuse before the machine starts to swap."""
    if few_take_part(problem, participation, options):
        return
    tensors, start = 4, problem.start
    needed = tensors * problem.n * start.numel() * start.element_size()
    if start.device.type == "cuda":
        there = torch.cuda.get_device_properties(start.device).total_memory
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ValueError(
            f"{problem.n} clients with {start.numel():,} parameters each take about {needed / 1e9:.0f} GB, and this "
            f"machine has {there / 1e9:.0f} GB: fewer clients (groups of users or writers) fit"
        )


def fingerprint(plan: Plan, algorithm: Algorithm, options: Options, start: Tensor, noise: float | None = None) -> str:
    """What must agree for a checkpoint to be continued."""
    digest = hashlib.sha256(start.cpu().numpy().tobytes()).hexdigest()[:12]
    rates = [] if plan.schedule is None else [plan.rates(t) for t in range(1, min(3, options.rounds) + 1)]
    # A penalty or a step size is compared as the number it stands for, a schedule by its first rates.
    compared = (f.name for f in fields(algorithm) if f.name not in ("constraint", "penalty", "schedule", "lr"))
    chosen = ", ".join(f"{name} {getattr(algorithm, name)!r}" for name in compared)
    return (
        f"{algorithm.name} on {plan.constraint!r}, {chosen}, lam_0 {plan.lam_0!r}, lr {plan.lr!r}, "
        f"rates {[(r.eta, r.lam, r.rho) for r in rates]}, {plan.n} clients, {tuple(start.shape)} {start.dtype} "
        f"from {digest}, {options.local_steps} local steps, batch {options.batch_size}, seed {options.seed}"
        + ("" if options.privacy is None else f", {options.privacy!r}, noise {noise!r}, {options.rounds} rounds")
    )


def certificate_kind(problem: Problem, algorithm: Algorithm, options: Options) -> str:
    """What the lower bound will rest on, in words; it begins with "valid" where every round proves one."""
    if options.privacy is not None:
        return "none: it would tell of the data"
    if not problem.losses.countable:
        return "none: nobody sums over all clients"
    if problem.convex is not True:
        return "not valid: the losses are not known to be convex"
    if options.batch_size is not None:
        return "from F - gap at evaluations only: minibatch gradients prove nothing"
    if not algorithm.has_certificate:
        return "from F - gap at evaluations only"
    if not algorithm.exact:
        return "from F - gap at evaluations only: averaged gradients prove nothing"
    return "valid: from every round's oracle answers and from F - gap at evaluations"
