"""The consent of the owner of data: read on the owner's machine, by installed code."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedfw.deployment.answers import AnswerCount, CountError
from fedfw.deployment.consent_text import consent_text
from fedfw.deployment.data_checks import DataChecks, owner_secret
from fedfw.deployment.files import (
    create_private,
    make_private_folder,
    others_can_write,
    owner_only,
    require_private,
)
from fedfw.deployment.ledger import Ledger
from fedfw.deployment.limits import JobLimits
from fedfw.deployment.promise import Promise
from fedfw.deployment.refusal import Refusal, RefusedError, require_allowed
from fedfw.deployment.terms import DataBudget, Terms
from fedfw.options import options_of, parse_table

CONSENT = "consent.toml"
"""The file's name in an owner's folder."""
STATE = "state"
"""The folder of a client's memory in an owner's folder."""
_TABLES: tuple[tuple[str, type[Any], str], ...] = (
    ("privacy", DataBudget, "eps and delta"),
    ("limits", JobLimits, "memory, seconds or data-memory"),
)
"""The tables of an owner's file: what they are read to, and what they have."""


@dataclass(frozen=True)
class Consent(Terms):
    """The consent of the owner of a client's data.

    Parameters
    ----------
    folder : Path, optional
        Where the file was read from. The ledger lies beside it and must be there. Without a file
        the ledger is kept in the client's folder, and made when it is needed.

    Examples
    --------
    >>> Consent().share
    ('atoms',)
    >>> Consent(share=("atoms", "everything"))
    Traceback (most recent call last):
        ...
    ValueError: share=('atoms', 'everything'), expected a list out of atoms, losses, numbers,
    gradients, models
    """

    folder: Path | None = None

    def admit(self, samples: int | None, batch_size: int | None, client: int, state: Path) -> None:
        """Count an answer before it is computed from the data, or refuse it.

        Parameters
        ----------
        samples : int or None
            How many the client has; None for data that are no samples.
        batch_size : int or None
            How many of them are in a gradient; None for all.
        client : int
            The client's number.
        state : Path
            The client's folder.

        Raises
        ------
        RefusedError
            If a gradient would have too few samples, or if there were as many answers as the owner
            allows.
        """
        require_allowed(
            (samples or 0) >= self.least_samples,
            Refusal.SAMPLES,
            f"{samples or 0} samples here, expected at least least-samples = {self.least_samples}",
        )
        self._check_steps(1, batch_size)
        count = self.count(client, state)
        try:
            if self.folder is None:
                create_private(count.path)
            allowed = count.add(self.most_rounds)
        except CountError as error:
            raise RefusedError(Refusal.COUNT, str(error)) from None
        require_allowed(
            allowed,
            Refusal.ROUNDS,
            f"{count.path} has as many answers as most-rounds = {self.most_rounds} allows",
        )

    def ledger(self, client: int, state: Path) -> Ledger:
        """Return the ledger of the data.

        Parameters
        ----------
        client : int
            The client's number, which stands for the data where the owner has given them no name.
        state : Path
            The client's folder, which holds the ledger's witness, and the ledger where there is no
            file of consent.
        """
        return Ledger(
            self._file(client, state, ".ledger.jsonl"), state / f"{self._name(client)}.witness"
        )

    def promise(self, client: int, state: Path) -> Promise:
        """Return the promise on the data, which says whether orders are taken; parameters as for
        `ledger`.
        """
        return Promise(self.folder or state, self._name(client))

    def checks(self, client: int, state: Path) -> DataChecks:
        """Return the checks of the data that their owner has made; parameters as for `ledger`."""
        return DataChecks(self._file(client, state, ".checks.json"))

    def secret(self, client: int, state: Path) -> bytes:
        """Return the owner's secret, by which data are recognised and which is never sent;
        parameters as for `ledger`.
        """
        return owner_secret(self._file(client, state, ".secret"))

    def count(self, client: int, state: Path) -> AnswerCount:
        """Return the count of answers that were computed from the data, beside the ledger;
        parameters as for `ledger`.
        """
        return AnswerCount(self._file(client, state, ".answers"))

    def _name(self, client: int) -> str:
        """Return what the names of the files of the data begin with."""
        return self.data_set or f"client-{client}"

    def _file(self, client: int, state: Path, suffix: str) -> Path:
        """Return one of the files of the data that last."""
        return (self.folder or state) / f"{self._name(client)}{suffix}"

    # --- the file ---

    @classmethod
    def read(cls, path: str | Path) -> Consent:
        """Return the owner's file.

        Raises
        ------
        ValueError
            If it cannot be read, if others can read or change it, or if it has an unknown key or a
            bad value.
        """
        path = Path(path)
        try:
            with open(path, encoding="utf-8") as file:
                mode = os.fstat(file.fileno()).st_mode
                table = tomllib.loads(file.read())
        except OSError as error:
            raise ValueError(
                f"consent={str(path)!r}: {error.strerror}, expected a file that 'fedfw deploy "
                "init-node' wrote"
            ) from None
        except ValueError as error:
            raise ValueError(f"{path} is no TOML: {error}") from None
        require_private(path, mode)
        options = _values(cls, table, str(path), more=[key for key, _, _ in _TABLES])
        for key, kind, expected in _TABLES:
            inner = table.get(key)
            if inner is None:
                continue
            # A budget has no defaults; the limits of a job have.
            if not isinstance(inner, dict) or (
                kind is DataBudget and not {"eps", "delta"} <= inner.keys()
            ):
                raise ValueError(f"{path}: {key} = {inner!r}, expected a table with {expected}")
            options[key] = kind(**_values(kind, inner, f"{path} [{key}]"))
        return cls(**options, folder=path.absolute().parent)

    def write(self, folder: Path) -> Path:
        """Prepare an owner's folder: the file of consent, an empty ledger, a secret, the folder of
        the client's memory.

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
            raise ValueError(
                f"others can write {folder}, expected chmod go-w: a ledger there would be refused"
            )
        path = folder / CONSENT
        # Without a budget the text shows this one as a comment.
        budget = self.privacy or DataBudget(eps=1.0, delta=1e-6)
        with open(path, "x", encoding="utf-8", opener=owner_only) as file:
            file.write(consent_text(self, budget))
        make_private_folder(folder / STATE)
        if self.data_set:
            owned = replace(self, folder=folder)
            # With a name of the data the files do not depend on the client's number, here 0.
            create_private(owned.ledger(0, folder).path)
            create_private(owned.count(0, folder).path)
            owned.secret(0, folder)
        return path


def _values(
    cls: Any, table: Mapping[str, Any], source: str, more: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the options of a dataclass from a table of TOML."""
    given = {
        key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
    }
    return parse_table(options_of(cls).values(), given, source, more)
