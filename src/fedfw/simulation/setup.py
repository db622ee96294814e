"""The preparation of a simulation before its first round: memories, oracles, a private run's plan,
and what is refused.
"""

import warnings
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedfw.algorithms.contract import Algorithm, Run
from fedfw.algorithms.optin import gathers_gradients, has_points
from fedfw.portable import physical_memory
from fedfw.privacy.steps import PrivacyPlan, PrivateOracles
from fedfw.problems.checks import validate_splitting
from fedfw.problems.composed import SplitLosses
from fedfw.problems.oracles import ClientOracles, PlainOracles
from fedfw.problems.problem import Problem
from fedfw.ranks import Ranks
from fedfw.rounds.client_steps import Method
from fedfw.rounds.fingerprint import Fingerprint
from fedfw.rounds.memory import ClientMemory, EveryRow, SplitMemory, TouchedRows
from fedfw.rounds.options import Options
from fedfw.rounds.participation import Participation
from fedfw.rounds.robustness import refuse_uncertifiable
from fedfw.sets.base import ConstraintSet
from fedfw.sets.containment import TRIED, contains_set
from fedfw.simulation.polishing import validate_polishing


def new_memory(
    problem: Problem,
    method: Method,
    run: Run,
    participation: Participation,
    options: Options,
    start: Tensor,
    privacy: PrivacyPlan | None = None,
) -> ClientMemory:
    """Return the memory of all clients, which begin at start (p,): a row for each, or only for
    those that take part where they are few.
    """

    def begin(points: Tensor) -> dict[str, Tensor]:
        """Return the memory (m, p) of clients that begin at these points (m, p)."""
        state = method.init(run, points)
        if privacy is not None:
            private = privacy.in_float64(state.client.private)
            state = state._replace(client=state.client._replace(private=private))
        # Rows are written one by one: no two entries may share their memory.
        return {name: values.clone() for name, values in state.flat().items()}

    losses = problem.losses
    state_at_start = begin(start[None].clone())
    own_clients = losses.own if isinstance(losses, SplitLosses) else range(problem.n)
    memory: ClientMemory
    if few_take_part(problem, participation, options):
        memory = TouchedRows(len(own_clients), state_at_start)
    else:
        memory = EveryRow(begin(start.repeat(len(own_clients), 1)), len(own_clients))
    if problem.ranks.size == 1:
        return memory
    return SplitMemory(memory, own_clients, problem.n, state_at_start, problem.ranks)


def plan_privacy(
    problem: Problem,
    algorithm: Algorithm,
    constraint: ConstraintSet,
    participation: Participation,
    options: Options,
) -> PrivacyPlan | None:
    """Return how a promise is kept, with noise for as many rounds as any client takes part in; None
    without a promise.
    """
    promise = options.promise
    sizes = problem.losses.sizes
    if promise is None or sizes is None:
        return None
    return PrivacyPlan.of(
        promise,
        algorithm,
        constraint,
        shape=tuple(problem.start.shape),
        fewest_samples=int(sizes.min()),
        rounds=max(1, int(participation.attended(options.rounds).max())),
        local_steps=options.local_steps,
        batch_size=options.batch_size,
    )


def choose_oracles(
    problem: Problem, privacy: PrivacyPlan | None, options: Options
) -> ClientOracles:
    """Where the clients' gradients and atoms come from: plainly, or with noise for a promise."""
    losses = problem.losses
    if privacy is not None:
        return PrivateOracles(privacy, losses)
    return PlainOracles(losses, options.local_steps, options.batch_size, options.seed, losses.sizes)


Groups = list[tuple[Tensor, ConstraintSet]]


def constraint_groups(
    constraint: ConstraintSet, relax: Mapping[int, Any] | None, problem: Problem
) -> Groups:
    """Return the clients by the set they use: first those that keep the constraint itself."""
    device = problem.start.device
    relax = dict(relax or {})
    unknown = [i for i in relax if not (isinstance(i, int) and 0 <= i < problem.n)]
    if unknown:
        raise ValueError(
            f"relax names clients {unknown}, expected numbers from 0 to {problem.n - 1}"
        )
    keepers = [i for i in range(problem.n) if i not in relax]
    if not keepers:
        raise ValueError(
            "relax names every client: some client must keep the constraint, or it is dropped "
            "altogether"
        )
    groups = [(torch.tensor(keepers, device=device), constraint)]
    by_set: dict[int, tuple[list[int], Any]] = {}
    for i, looser in sorted(relax.items()):
        clients, _ = by_set.setdefault(id(looser), ([], looser))
        clients.append(i)
    for clients, looser in by_set.values():
        bound = problem.bind(looser)
        _refuse_smaller(constraint, bound, problem, clients[0])
        groups.append((torch.tensor(clients, device=device), bound))
    return groups


def _refuse_smaller(
    constraint: ConstraintSet, looser: ConstraintSet, problem: Problem, client: int
) -> None:
    """Refuse a set that does not contain the constraint; warn where neither is proven."""
    inside = contains_set(looser, constraint, tuple(problem.start.shape))
    if inside is False:
        raise ValueError(
            f"relax: the set of client {client}, {looser!r}, does not contain the constraint "
            f"{constraint!r}"
        )
    # None: neither a proof nor a point outside was found.
    if inside is None:
        warnings.warn(
            f"relax: it is not known whether the set of client {client}, {looser!r}, contains the "
            f"constraint {constraint!r}: {TRIED} of its extreme points do lie inside, and nothing "
            "more was proven",
            stacklevel=2,
        )


_MANY_BYTES = 2**30
_LARGE_STATE = 2**25
"""Numbers of all clients together from which rounds are not replayed: it would take memory and save
little time.
"""


def refuse_contradictions(
    problem: Problem,
    algorithm: Algorithm,
    constraint: ConstraintSet,
    participation: Participation,
    options: Options,
) -> None:
    """Refuse options that contradict each other, the algorithm or the problem."""
    if algorithm.projects and not constraint.has_projection:
        raise ValueError(
            f"{algorithm.name} projects, and {constraint!r} has only a linear minimization oracle"
        )
    if options.batch_size is not None and problem.losses.sizes is None:
        raise ValueError("batch_size needs clients with samples; these are plain functions")
    losses = problem.losses
    private = options.promise is not None
    validate_splitting(losses.per, losses.weighs, batch_size=options.batch_size, private=private)
    if options.tol is not None and not problem.losses.countable:
        raise ValueError(
            f"tol={options.tol:g} needs the loss over all clients, which generated clients do not "
            "give"
        )
    if options.tol is not None and problem.convex is not True:
        raise ValueError(
            "tol needs a certificate, and the losses are not known to be convex (convex=True says "
            "so)"
        )
    if options.relax and (not has_points(algorithm) or gathers_gradients(algorithm)):
        raise ValueError(
            f"relax does not go with {algorithm.name}: its clients have no points of their own in "
            "a set"
        )
    if options.polish is not None:
        _validate_polishing(problem, constraint, private)
    if options.promise is not None:
        if options.tol is not None:
            raise ValueError(
                "tol needs a certificate, which reveals the data: it does not go with privacy"
            )
        if options.relax:
            raise ValueError(
                "relax does not go with privacy: clients with another set would need other noise"
            )
        if problem.losses.sizes is None:
            raise ValueError("privacy is for clients with samples; these are plain functions")
    if problem.mixed and problem.start.device.type != "cuda":
        raise ValueError(
            "mixed multiplies in bfloat16 on a GPU, and this run is on the device "
            f"{problem.start.device}: expected device=cuda, or no mixed"
        )
    refuse_uncertifiable(problem, options)
    _refuse_what_does_not_fit(problem, participation, options)


def _validate_polishing(problem: Problem, constraint: ConstraintSet, private: bool) -> None:
    """Refuse polishing where sums of gradients are private or cannot be computed."""
    if private:
        raise ValueError(
            "polish takes exact sums of gradients: it does not go with privacy, leave one out"
        )
    if not problem.losses.countable:
        raise ValueError(
            "polish needs sums over all clients, which generated clients do not give: leave it out"
        )
    validate_polishing(constraint, problem.start.numel())


def few_take_part(problem: Problem, participation: Participation, options: Options) -> bool:
    """Return whether to keep only the rows of clients that took part: most clients never do, or all
    rows would take a gigabyte.
    """
    expected = participation.expected
    start = problem.start
    if expected is None or 2 * expected > problem.n:
        return False
    all_rows = problem.n * start.numel() * start.element_size()
    # Less than half of all clients take part in all rounds together.
    return 2 * expected * options.rounds < problem.n or all_rows > _MANY_BYTES


def can_be_replayed(
    problem: Problem, participation: Participation, options: Options, method: Method
) -> bool:
    """Return whether all rounds launch the same kernels, and are short enough that a GPU should
    replay them.
    """
    if problem.n * problem.start.numel() > _LARGE_STATE:
        return False
    same_work = (
        participation.is_full
        and options.batch_size is None
        and not options.relax
        and options.promise is None
    )
    rule = method.rule
    plain = not rule.reports_curvature and method.channels.compressor is None
    # The atoms of several steps are combined by weights that the host reads, which a recording
    # cannot do.
    one_step = not rule.uses_oracles or options.local_steps == 1
    return (
        problem.ranks.size == 1
        and problem.start.is_cuda
        and problem.losses.plain_kernels
        and same_work
        and plain
        and one_step
    )


def _refuse_what_does_not_fit(
    problem: Problem, participation: Participation, options: Options
) -> None:
    """Refuse a run whose clients' states would take more than the memory there is."""
    if few_take_part(problem, participation, options):
        return
    tensor_count = 4  # of clients x parameters, which every algorithm holds at the same time
    start = problem.start
    client_count = len(problem.losses.all_clients(start.device))
    needed = tensor_count * client_count * start.numel() * start.element_size()
    available: int | None
    if start.device.type == "cuda":
        available = torch.cuda.get_device_properties(start.device).total_memory
    else:
        available = physical_memory()
    if available is not None and needed > available:
        raise ValueError(
            f"{client_count} clients with {start.numel():,} parameters each take about "
            f"{needed / 1e9:.0f} GB, and this "
            f"machine has {available / 1e9:.0f} GB: fewer clients (groups of users or writers) fit"
        )


def refuse_different_runs(ranks: Ranks, run: Fingerprint, options: Options) -> None:
    """Refuse ranks that were given different runs, such as models whose start was drawn without a
    seed.
    """
    other_options = {
        name: repr(getattr(options, name)) for name in ("tol", "eval_every", "certify")
    }
    settings = ranks.all_gather_object({**run, **other_options})
    differing = [
        name
        for name in settings[0]
        if any(of_rank.get(name) != settings[0][name] for of_rank in settings)
    ]
    if differing:
        raise ValueError(
            f"ranks were given different runs: {', '.join(differing)} differ, expected the same on "
            "every rank. A model's start is the same after torch.manual_seed on every rank"
        )


def refuse_drift(ranks: Ranks, t: int, xbar: Tensor) -> None:
    """Refuse to continue where ranks, all of which take the server's step of round t, hold
    different models after it.
    """
    if ranks.size == 1:
        return
    digests = [int(digest) for (digest,) in ranks.numbers(zlib.crc32(xbar.cpu().numpy().tobytes()))]
    if len(set(digests)) > 1:
        raise RuntimeError(
            f"round {t}: ranks hold different models (digests {digests}), expected one: they need "
            "the same version of "
            "torch, the same kind of processor and as many threads"
        )
