"""What the owner of data allows: read on the owner's machine, by installed code, whatever a server or an app says."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from fedfw.algorithms.base import Algorithm, Reveals
from fedfw.deployment.files import make_private_folder, others_can_write, owner_only
from fedfw.deployment.ledger import Ledger, Release, spent
from fedfw.options import check_options, nearest, option, options_of
from fedfw.sets.product import Product

if TYPE_CHECKING:
    from fedfw.deployment.task import Task

CONSENT = "consent.toml"
"""The file's name in an owner's folder."""
STATE = "state"
"""The folder of a client's memory in an owner's folder."""
Share = Literal["atoms", "losses", "numbers", "gradients", "models"]
SHARES: tuple[Share, ...] = get_args(Share)
"""All that a client can share."""
_NEEDED = {Reveals.ATOMS: "atoms", Reveals.MODELS: "models", Reveals.GRADIENTS: "gradients"}
TOLD = "steps from curvature, whose clients tell the server two numbers of their data in every round"
_ROUNDING = 1 + 1e-9


class Refusal(StrEnum):
    """Why a client does not do what it is asked for. These texts are all that travels; its log has the details."""

    ALGORITHM = "the owner does not allow this algorithm"
    SHARED = "the owner does not allow what this algorithm shares"
    SET = "the owner does not allow this set"
    SIZE = "the owner does not allow so many parameters"
    PLAIN = "the owner allows private runs alone"
    SEED = "the owner does not allow noise from a seed"
    PROMISE = "the promise is weaker than the owner's budget"
    LEDGER = "the ledger of the data is missing or damaged"

    @classmethod
    def told(cls, payload: bytes) -> str:
        """The text that a client sent, where it is one of these."""
        text = payload.decode(errors="replace")
        return text if text in list(cls) else "for no known reason"


class RefusedError(ValueError):
    """The owner does not allow something; the text is for the owner's own log, ``reason`` is what may travel."""

    def __init__(self, reason: Refusal, details: str) -> None:
        super().__init__(details)
        self.reason = reason


@dataclass(frozen=True)
class DataBudget:
    """The privacy budget of a data set, over all runs, names and restarts.

    Examples
    --------
    >>> DataBudget(eps=4.0, delta=2.0)
    Traceback (most recent call last):
        ...
    ValueError: delta=2.0, expected a number above 0 and below 1
    """

    eps: Annotated[float, option("epsilon of all private releases together", gt=0)]
    delta: Annotated[float, option("delta of all private releases together", gt=0, lt=1)]
    required: Annotated[bool, option("refuse runs that are not private")] = True

    def __post_init__(self) -> None:
        check_options(self)

    def affords(self, releases: Sequence[Release]) -> bool:
        """Whether releases stay within the budget."""
        eps, delta = spent(releases)
        return eps <= self.eps * _ROUNDING and delta <= self.delta * _ROUNDING


@dataclass(frozen=True)
class Consent:
    """What the owner of a client's data allows.

    Parameters
    ----------
    folder : Path, optional
        Where the file was read from. The ledger lies beside it and must be there. Without a file the ledger is kept in
        the client's folder, and made when it is needed.

    Examples
    --------
    >>> Consent().share
    ('atoms',)
    >>> Consent(share=("atoms", "everything"))
    Traceback (most recent call last):
        ...
    ValueError: share=('atoms', 'everything'), expected a list out of atoms, losses, numbers, gradients, models
    """

    data_set: Annotated[
        str,
        option(
            "the owner's name for these data: there is one ledger for each name",
            expected="letters, digits, '-' and '_'",
            pattern=r"^[A-Za-z0-9_-]*$",
        ),
    ] = ""
    share: Annotated[
        tuple[Share, ...],
        option("what may be sent to the server", expected=f"a list out of {', '.join(SHARES)}"),
    ] = ("atoms",)
    algorithms: Annotated[
        tuple[str, ...] | None, option("algorithms that may run", expected="a list of names of algorithms")
    ] = None
    sets: Annotated[
        tuple[str, ...] | None, option("constraint sets that may be used", expected="a list of names of sets")
    ] = None
    most_parameters: Annotated[int | None, option("how many parameters a model may have", ge=1)] = None
    privacy: DataBudget | None = None
    seeded_noise: Annotated[
        bool, option("accept private runs whose noise comes from a seed, for tests", scope="python")
    ] = False
    folder: Path | None = None

    def __post_init__(self) -> None:
        check_options(self)

    # --- what is allowed ---

    def check(self, task: Task) -> None:
        """Refuse a task that the owner does not allow.

        Raises
        ------
        RefusedError
            With what was asked for and what is allowed.
        """
        algorithm, size = task.algorithm, len(task.start)
        if self.algorithms is not None and algorithm.name not in self.algorithms:
            raise RefusedError(Refusal.ALGORITHM, f"algorithm={algorithm.name}, expected {_listed(self.algorithms)}")
        needed = _NEEDED[algorithm.contract.reveals]
        if needed not in ("atoms", *self.share):
            raise RefusedError(
                Refusal.SHARED, f"{algorithm.name} shares {algorithm.contract.shares}: {needed!r} is not in share"
            )
        if algorithm.tells and needed == "atoms" and "numbers" not in self.share:
            raise RefusedError(Refusal.SHARED, f"{algorithm.name} with {TOLD}: 'numbers' is not in share")
        if self.sets is not None and (strange := _sets_of(algorithm) - set(self.sets)):
            raise RefusedError(Refusal.SET, f"constraint={_listed(sorted(strange))}, expected {_listed(self.sets)}")
        if self.most_parameters is not None and size > self.most_parameters:
            raise RefusedError(Refusal.SIZE, f"{size} parameters, expected at most {self.most_parameters}")
        self._check_promise(task)

    def _check_promise(self, task: Task) -> None:
        promise, budget = task.options.promise, self.privacy
        if promise is None:
            if budget is not None and budget.required:
                raise RefusedError(Refusal.PLAIN, "the run promises no privacy, expected one that does")
            return
        if promise.not_private_seed is not None and not self.seeded_noise:
            raise RefusedError(Refusal.SEED, f"not_private_seed={promise.not_private_seed}, expected none")
        if budget is not None and (promise.eps > budget.eps or promise.delta > budget.delta):
            allowed = f"at most eps {budget.eps:g} and delta {budget.delta:g}"
            raise RefusedError(Refusal.PROMISE, f"the run promises {promise}, expected {allowed}")

    def allows_numbers(self, task: Task) -> bool:
        """Whether the numbers of "auto" may be told to the server of a task."""
        try:
            self.check(task)
        except RefusedError:
            return False
        return "numbers" in self.share

    def affords(self, releases: Sequence[Release]) -> bool:
        """Whether private releases stay within the budget of the data set, if it has one."""
        return self.privacy is None or self.privacy.affords(releases)

    def ledger(self, client: int, state: Path) -> Ledger:
        """The ledger of the data.

        Parameters
        ----------
        client : int
            The client's number, which stands for the data where the owner has given them no name.
        state : Path
            The client's folder, which holds the ledger's witness, and the ledger where there is no file of consent.
        """
        name = self.data_set or f"client-{client}"
        return Ledger((self.folder or state) / f"{name}.ledger.jsonl", state / f"{name}.witness")

    # --- the file ---

    @classmethod
    def read(cls, path: str | Path) -> Consent:
        """The owner's file.

        Raises
        ------
        ValueError
            If it cannot be read, if others can read or change it, or if it has an unknown key or a bad value.
        """
        path = Path(path)
        try:
            with open(path, encoding="utf-8") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                table = tomllib.loads(file.read())
        except OSError as error:
            raise ValueError(
                f"consent={str(path)!r}: {error.strerror}, expected a file that 'fedfw deploy init-node' wrote"
            ) from None
        except ValueError as error:
            raise ValueError(f"{path} is no TOML: {error}") from None
        if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ValueError(f"{path} has mode {mode:04o}, expected 0600: nobody else may read or change it")
        own = _values(cls, table, str(path), more=("privacy",))
        privacy = table.get("privacy")
        if privacy is not None:
            if not isinstance(privacy, dict) or not {"eps", "delta"} <= privacy.keys():
                raise ValueError(f"{path}: privacy = {privacy!r}, expected a table with eps and delta")
            own["privacy"] = DataBudget(**_values(DataBudget, privacy, f"{path} [privacy]"))
        return cls(**own, folder=path.absolute().parent)

    def write(self, folder: Path) -> Path:
        """Prepare an owner's folder: the file of consent, an empty ledger and the folder of the client's memory.

        Parameters
        ----------
        folder : Path
            Made if it is missing. A ledger that is there already is kept.

        Returns
        -------
        Path
            The file of consent.

        Raises
        ------
        FileExistsError
            If there is a file of consent already.
        """
        make_private_folder(folder)
        if others_can_write(folder.stat()):
            raise ValueError(f"others can write {folder}, expected chmod go-w: a ledger there would be refused")
        path = folder / CONSENT
        with open(path, "x", encoding="utf-8", opener=owner_only) as file:
            file.write(self.text())
        make_private_folder(folder / STATE)
        if self.data_set:
            replace(self, folder=folder).ledger(0, folder).create()
        return path

    def text(self) -> str:
        """The file, with an explanation of every line."""
        budget = self.privacy or DataBudget(1.0, 1e-6)
        lines = [f"{key} = {_toml(getattr(budget, key))}" for key in ("eps", "delta", "required")]
        return _TEXT.format(
            data_set=_line("data-set", self.data_set or None, "clinic-7"),
            share=_line("share", list(self.share), []),
            algorithms=_line("algorithms", self.algorithms, ["fedfw", "fedfw+"]),
            sets=_line("sets", self.sets, ["l1", "ksparse"]),
            most_parameters=_line("most-parameters", self.most_parameters, 1000000),
            privacy="\n".join(f"# {line}" if self.privacy is None else line for line in ("[privacy]", *lines)),
        )


_TEXT = """\
# What the owner of these data allows. The node's installed code keeps to this file, whatever a server or an app says.
# Mode 0600: nobody else may read or change it. It is read anew for every message.

# The owner's name for the data. The ledger NAME.ledger.jsonl beside this file has every private release that was made
# from them, over all runs. Keep the name when the data grow or change, and never remove, edit or put back a ledger.
{data_set}

# What may be sent to the server:
#   atoms      extreme points of the constraint set; they are always allowed
#   losses     the client's loss at the model, and the number of a certificate
#   numbers    the norm of its first gradient and its smoothness, for a penalty or a step size of "auto"; its gap and
#              its curvature in every round, for a schedule of "curvature"
#   gradients  whole gradients, sums and averages of them: fedfw-anchored, fedlmo, fedmuon, fedmuon-cv, frank-wolfe,
#              scaffold, fedadamw, fedda, fast-fedda
#   models     local models: fedavg, fedavgm, fedcm, fedadam
{share}

# The algorithms that may run; by default all that share no more than this.
{algorithms}

# The constraint sets that may be used, by their names in 'fedfw sets'; by default all of them.
{sets}

# How many parameters a model may have; by default any number.
{most_parameters}

# The privacy budget of the data, for all runs together. With this table, runs that are not private are refused unless
# required is false, and a private one ends when the budget is spent.
{privacy}
"""


def _line(key: str, value: Any, example: Any) -> str:
    """A key with its value, or as a comment with an example where it is not given."""
    return f"# {key} = {_toml(example)}" if value is None else f"{key} = {_toml(value)}"


def _toml(value: Any) -> str:
    return json.dumps(value)  # what these values are in JSON they are in TOML


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _sets_of(algorithm: Algorithm) -> set[str]:
    """The names of an algorithm's sets, as on the command line."""
    constraint = algorithm.constraint
    return {one.name for one in constraint.sets.values()} if isinstance(constraint, Product) else {constraint.name}


def _values(cls: Any, table: Mapping[str, Any], source: str, more: Sequence[str] = ()) -> dict[str, Any]:
    """The options of a dataclass from a table of TOML."""
    declared = {one.key: one for one in options_of(cls).values() if one.textual}
    for key in table:
        if key not in (known := [*declared, *more]):
            raise ValueError(f"{source}: unknown key {key!r}{nearest(key, known)}, expected {', '.join(known)}")
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items() if key in declared}
    return {declared[key].name: declared[key].parse(value, source) for key, value in given.items()}
