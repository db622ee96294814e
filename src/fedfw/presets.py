"""Ready problems: a data set, divided among clients, with a model, all by their names."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from fedfw.data import Data, Part, load_data, partition
from fedfw.data.base import Columns
from fedfw.data.datasets import USUAL_CLIENTS, find_dataset
from fedfw.models import is_own, kind_of, make_model, usual_model
from fedfw.options import check_options, declare_keywords, option, validate_keywords
from fedfw.problems import Problem
from fedfw.problems.composed import OnDemand
from fedfw.ranks import ALONE, Ranks

_FEW_LABELS = 3
"""Labels of a client in the default split."""


@dataclass(frozen=True)
class ProblemOptions:
    """Which problem is solved: data, model and clients, by their names.

    Examples
    --------
    >>> ProblemOptions(clients=5).dataset
    'digits'
    """

    dataset: Annotated[str, option("data set; see 'fedfw data list'")] = "digits"
    data_dir: Annotated[
        str | Path | None,
        option(
            "folder of the data sets that are files",
            otherwise="$FEDFW_DATA, or a cache in your home",
            expected="a path",
        ),
    ] = None
    target: Annotated[
        str | None,
        option("column of your own table that is predicted", expected="the name of a column"),
    ] = None
    time: Annotated[
        str | None,
        option(
            "column with the time until the target, an event of 0 or 1",
            expected="the name of a column",
        ),
    ] = None
    client_column: Annotated[
        str | None,
        option(
            "column of your own table that says whose a row is", expected="the name of a column"
        ),
    ] = None
    model: Annotated[
        str | None,
        option(
            "model, such as mclr or mlp; see 'fedfw models'; or your own as my_module:make",
            otherwise="by the data",
            expected="a model's name",
        ),
    ] = None
    width: Annotated[
        int | None, option("width of the transformer", otherwise="128", ge=1, le=16384)
    ] = None
    depth: Annotated[
        int | None, option("blocks of the transformer", otherwise="4", ge=1, le=1000)
    ] = None
    heads: Annotated[
        int | None, option("attention heads of the transformer", otherwise="4", ge=1, le=1000)
    ] = None
    mixed: Annotated[
        bool | None,
        option(
            "multiply a network's layers in bfloat16 on a GPU: faster, other bits", otherwise="off"
        ),
    ] = None
    separate: Annotated[
        bool,
        option(
            "every client's gradient by itself, as a deployed client computes it: its bits, slower"
        ),
    ] = False
    l2: Annotated[float, option("adds l2/2 ||x||^2 to every client's loss", ge=0)] = 0.0
    clients: Annotated[
        int | None,
        option(
            "number of clients",
            otherwise=f"all natural owners of the partition, else {USUAL_CLIENTS}",
            ge=1,
            le=1_000_000,
        ),
    ] = None
    partition: Annotated[
        str | None,
        option(
            "who holds what: iid, labels:K, labels:K,unequal, dirichlet:ALPHA, writer, user, "
            "client, speaker, region",
            otherwise="by the data",
            expected="the name of a partition",
        ),
    ] = None
    weights: Annotated[
        Literal["equal", "samples"], option("how clients count: equal, or by their samples")
    ] = "equal"

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def columns(self) -> Columns:
        """Return the roles of the columns of a user's own table; with the linear model a target of
        whole numbers is read as numbers, not as classes.
        """
        return Columns(
            self.target,
            self.time,
            self.client_column,
            numbers=(self.model or "").lower() == "linear",
        )

    @property
    def model_size(self) -> dict[str, int]:
        """Return the sizes of the model that are given."""
        sizes = {"width": self.width, "depth": self.depth, "heads": self.heads}
        return {name: value for name, value in sizes.items() if value is not None}


@declare_keywords(ProblemOptions)
def load_problem(
    dataset: str = "digits",
    model: str | None = None,
    *,
    seed: int = 0,
    held_out: float = 0.0,
    ranks: Ranks = ALONE,
    **options: Any,
) -> Problem:
    """Return a problem by the names of its parts.

    Parameters
    ----------
    {options}
    seed : int
        Fixes the split and the start.
    held_out : float
        With this each client lends that fraction of its samples, which take the place of the test
        data.
    ranks : Ranks
        The processes among which the clients are divided; see `fedfw.join_ranks`.

    Returns
    -------
    Problem

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.load_problem("digits", "mclr", clients=10, partition="labels:3")
    >>> problem.n, len(problem.start)
    (10, 650)
    """
    validate_keywords("load_problem", options, ProblemOptions, own=("seed", "held_out", "ranks"))
    chosen = ProblemOptions(dataset=dataset, model=model, **options)
    data = load_chosen(chosen, seed)
    problem = make_problem(data, chosen, seed=seed, held_out=held_out, ranks=ranks)
    if not held_out:  # `with_held_out` makes the problem again, with samples that clients lend
        problem.remake = partial(load_problem, dataset, model, seed=seed, ranks=ranks, **options)
    return problem


def load_chosen(options: ProblemOptions, seed: int) -> Data:
    """Return the data set that the options name; refuse a ``data_dir`` from which this data set is
    not read.
    """
    entry, _ = find_dataset(options.dataset)
    if options.data_dir is not None and not entry.folder:
        place = "your own file" if entry.reads_path else "built in"
        raise ValueError(
            f"data-dir={str(options.data_dir)!r} changes nothing: {entry.name} is {place}, leave "
            "it out"
        )
    clients = options.clients or USUAL_CLIENTS  # for generated data
    return load_data(options.dataset, options.data_dir, clients, seed, options.columns)


def make_problem(
    data: Data,
    options: ProblemOptions,
    *,
    seed: int = 0,
    held_out: float = 0.0,
    ranks: Ranks = ALONE,
) -> Problem:
    """Return the problem of some options on data that are loaded already.

    Parameters
    ----------
    data : Data
        The data set.
    options : ProblemOptions
        The rest.
    seed : int
        Fixes the split and the start.
    held_out : float
        With this each client lends that fraction of its samples to be tested on, and the test data
        stay unseen.
    ranks : Ranks
        The processes among which the clients are divided.
    """
    model = options.model or usual_model(data)
    rule, clients = usual_division(data, options.partition, options.clients)
    module = make_model(model, data, seed, options.model_size)
    kind = kind_of(model, data)
    parts = partition(rule, data, clients, seed=seed)
    test = data.test.take()
    owners = data.test.owners.get(rule)
    if held_out:
        parts, lent = _hold_out(parts, held_out, seed, data.train)
        test = data.train.take(lent)
        owners = data.train.owners.get(rule)
        owners = None if owners is None else owners[lent]

    def samples(part: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and the targets of a client, by the indices of its samples."""
        return kind.samples(data.train.take(part))

    problem = Problem(
        module,
        kind.loss,
        [OnDemand(len(part), partial(samples, part)) for part in parts],
        kind.samples(test),
        weights=options.weights,
        convex=None if is_own(model) else kind.convex,  # a module may say it itself
        l2=options.l2,
        mixed=bool(options.mixed),
        separate=options.separate,
        per=kind.per,
        test_owners=owners,
        ranks=ranks,
    )
    problem.columns = data.columns
    problem.tests_lent = bool(held_out)
    problem.remake = None  # it would hold all data twice
    return problem


def usual_division(data: Data, partition: str | None, clients: int | None) -> tuple[str, int]:
    """Return the partition and the number of clients, each by the data where it is not given."""
    rule = (partition or usual_partition(data, clients or USUAL_CLIENTS)).lower()
    owners = data.train.owners.get(rule)
    if clients is None:
        clients = USUAL_CLIENTS if owners is None else len(set(owners.tolist()))
    return rule, clients


def usual_partition(data: Data, clients: int) -> str:
    """Return the name of the partition where none is given.

    Whole users, speakers or regions, and clients as they were drawn. Else three labels a client
    where there are more; with so few clients that some labels would have no client, shares of each
    label that differ as much (dirichlet:0.3); else iid.
    """
    natural = [  # in order of preference
        kind for kind in ("user", "client", "speaker", "region") if kind in data.train.owners
    ]
    if natural:
        return natural[0]
    if data.classes is None or data.classes <= _FEW_LABELS:
        return "iid"
    return f"labels:{_FEW_LABELS}" if clients + _FEW_LABELS - 1 >= data.classes else "dirichlet:0.3"


def _hold_out(
    parts: list[Tensor], fraction: float, seed: int, data: Part
) -> tuple[list[Tensor], Tensor]:
    """Return the indices of the samples that each client keeps, and of those that all clients lend:
    ``fraction`` of each client's, rounded down and drawn at random.

    Of windows of a text a client lends some that follow each other, and no client keeps one that
    overlaps with a lent one.
    """
    generator = torch.Generator().manual_seed(seed)
    kept: list[Tensor] = []
    lent: list[Tensor] = []
    for part in parts:
        count = int(fraction * len(part))
        if data.starts is None:  # no windows of a text
            shuffled = part[torch.randperm(len(part), generator=generator)]
        else:
            first = int(torch.randint(len(part) - count + 1, (1,), generator=generator))
            shuffled = part[data.starts[part].argsort()].roll(-first)
        kept.append(shuffled[count:])
        lent.append(shuffled[:count])
    if not any(len(piece) for piece in lent):
        raise ValueError("the clients have too few samples to lend some")
    if data.starts is not None:
        begin = data.starts[torch.cat(lent)]
        kept = [part[_clear_of(begin, data.starts[part], data.inputs.shape[1])] for part in kept]
        empty = [i for i, part in enumerate(kept) if not len(part)]
        if empty:
            raise ValueError(
                f"client {empty[0]} keeps no window that is clear of what is lent, expected less "
                "to lend"
            )
    return kept, torch.cat(lent)


def _clear_of(lent: Tensor, starts: Tensor, context: int) -> Tensor:
    """Return (m,) bool: which windows that begin at ``starts`` (m,) share no character with those
    that begin at ``lent``.
    """
    lent = lent.sort().values
    after = torch.searchsorted(lent, starts)
    # The neighbours before and after; the clamps stand for one that is missing at an end.
    nearest = (lent[(after - 1).clamp(min=0)], lent[after.clamp(max=len(lent) - 1)])
    return torch.stack([(starts - place).abs() > context for place in nearest]).all(0)
