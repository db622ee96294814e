"""What all estimators share: parameters, data, fitted attributes and inference.

`fit` goes one of two ways (`fedfw.estimators.model`):

- without a statement about coefficients, Newton steps find the maximum-likelihood estimate from
  sums of gradients and Hessians;
- with one, a federated algorithm runs until its certified gap is small enough, and a polishing step
  decides which variables are selected.

Either way columns are standardised first, by an exchange of sums, and coefficients are reported on
the original scale.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from fedfw.estimators.after_selection import halves, infer
from fedfw.estimators.fitting import TOLERANCES, Bytes, Certificate, Sees
from fedfw.estimators.from_run import facts_of, load_fit
from fedfw.estimators.likelihoods import Likelihood
from fedfw.estimators.model import FittedModel, Settings, fit_model
from fedfw.estimators.private import NO_CERTIFICATE, promise_of
from fedfw.estimators.private import ROUNDS as PRIVATE_ROUNDS
from fedfw.estimators.reading import Target
from fedfw.estimators.searches import warn_of_search
from fedfw.estimators.sites import Sites, as_sites
from fedfw.estimators.statement import Bounds, Statement
from fedfw.simulation import Run, SavedRun, load_run

Array = npt.NDArray[Any]
Scales = Mapping[str, tuple[float, float]]
"""A mean and a scale of every column, by its name."""
ROUNDS = 2000
"""The most rounds of a fit that is not private."""


class FederatedEstimator(BaseEstimator):  # type: ignore[misc]
    """A regression whose rows are held by several clients.

    Parameters
    ----------
    constraint : set, str or None
        The set of the coefficients, such as ``"l1:8"``. It holds for the coefficients of
        standardised columns, or, with ``standardize=False``, of the columns as they are. None, the
        default, means none: the fit is maximum likelihood.
    bounds : mapping from str to (low, high), optional
        Bounds of single coefficients by the column's name, on the original scale:
        ``{"age": (0, None)}``. Beside a ball, signs alone.
    factors : mapping from str to sequence of str, optional
        The dummy variables of each factor, which enter together; with an l1 ball.
    unpenalised : sequence of str
        Columns whose coefficients the constraint leaves free; they lie in a large box.
    monotone : mapping from str to sequence of str, optional
        The dummy variables of an ordered factor's levels, from the lowest: their coefficients do
        not decrease, from 0 on.
    standardize : bool
        Whether columns are brought to mean 0 and deviation 1 first, by one exchange of sums.
    scales : mapping from str to (mean, scale), optional
        Public numbers in the place of that exchange, for every column: ``{"age": (60, 15)}``.
    constrain_intercept : bool
        Whether the constraint holds for the intercept, too; with ``standardize=False``.
    algorithm : str or class
        A federated algorithm; "auto" chooses by what the server may see and by the set.
    sees : {"gradients", "sums", "atoms"}
        What owners allow the server to see: every client's gradients; sums of gradients now and
        then, and atoms; or atoms alone.
    tol : float, optional
        The certified gap at which a fit ends, as a share of the null model's loss: 1e-4 with
        gradients, else 1e-3.
    max_rounds : int, optional
        The most rounds, by default 2000; a fit that they end warns with its gap. A private fit
        takes all of them, by default 30.
    covariance : {"model", "sandwich"}
        Standard errors of `inference_`: of the model, or robust ones.
    infer : {None, "split"}
        "split" selects variables on a half of each client's rows and infers on the other, with
        robust standard errors.
    privacy : Privacy or str, optional
        Differential privacy of every row, such as ``"eps=4,delta=1e-5"``. It needs a constraint,
        and ``scales`` or ``standardize=False``. Then there is no certificate and no inference.
    random_state : int
        Fixes what is drawn.
    """

    target: ClassVar[Target] = "number"
    deployed: ClassVar[str] = ""
    """The name of the estimator in ``fedfw deploy init --estimator``."""

    def __init__(
        self,
        constraint: Any = None,
        *,
        bounds: Bounds | None = None,
        factors: Mapping[str, Sequence[str]] | None = None,
        unpenalised: Sequence[str] = (),
        monotone: Mapping[str, Sequence[str]] | None = None,
        standardize: bool = True,
        scales: Scales | None = None,
        constrain_intercept: bool = False,
        algorithm: Any = "auto",
        sees: Sees = "gradients",
        tol: float | None = None,
        max_rounds: int | None = None,
        covariance: str = "model",
        infer: str | None = None,
        privacy: Any = None,
        random_state: int = 0,
    ) -> None:
        self.constraint = constraint
        self.bounds = bounds
        self.factors = factors
        self.unpenalised = unpenalised
        self.monotone = monotone
        self.standardize = standardize
        self.scales = scales
        self.constrain_intercept = constrain_intercept
        self.algorithm = algorithm
        self.sees = sees
        self.tol = tol
        self.max_rounds = max_rounds
        self.covariance = covariance
        self.infer = infer
        self.privacy = privacy
        self.random_state = random_state

    # --- what a subclass says ---

    @abstractmethod
    def _likelihood(self, sites: Sites) -> Likelihood:
        """Return the model of these sites."""

    def _settings(self) -> Settings:
        """Return how models are fitted, from the parameters."""
        if self.sees not in TOLERANCES:
            raise ValueError(f"sees={self.sees!r}, expected gradients, sums or atoms")
        if self.infer not in (None, "split"):
            raise ValueError(f'infer={self.infer!r}, expected None or "split"')
        if self.covariance not in ("model", "sandwich"):
            raise ValueError(f"covariance={self.covariance!r}, expected model or sandwich")
        if self.tol is not None and not (isinstance(self.tol, Real) and self.tol > 0):
            raise ValueError(f"tol={self.tol!r}, expected a number above 0")
        statement = Statement(
            self.constraint,
            dict(self.bounds or {}),
            dict(self.factors or {}),
            self.unpenalised,
            dict(self.monotone or {}),
        )
        if self.privacy is not None:
            promise_of(self.privacy)
            if self.infer is not None:
                raise ValueError(
                    f"infer={self.infer!r} beside privacy=: intervals that ignore the noise would "
                    "be too short, expected infer=None"
                )
        return Settings(
            statement,
            self.standardize,
            self.constrain_intercept,
            self.algorithm,
            self.sees,
            self.tol,
            self._most_rounds,
            _seed(self.random_state),
            self.privacy,
            None if self.scales is None else dict(self.scales),
        )

    @property
    def _most_rounds(self) -> int:
        """Return the most rounds of a fit."""
        if self.max_rounds is not None:
            return self.max_rounds
        return ROUNDS if self.privacy is None else PRIVATE_ROUNDS

    # --- data ---

    def _read(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
    ) -> Sites:
        """Return the sites of fit's arguments, and note the columns as scikit-learn does."""
        if y is None and isinstance(X, list) and X and isinstance(X[0], tuple | list):
            sites = as_sites(
                X, groups=groups, sample_weight=sample_weight, offset=offset, target=self.target
            )
            self.n_features_in_ = sites.p
            if sites.named:
                self.feature_names_in_ = np.array(sites.names, dtype=object)
            return sites
        warn_of_search(groups)
        array, targets = self._validate(X, y)
        given = X if hasattr(X, "columns") else array
        if sample_weight is not None:
            sample_weight = np.asarray(sample_weight)
        return as_sites(
            given, targets, groups, sample_weight=sample_weight, offset=offset, target=self.target
        )

    def _validate(self, X: Any, y: Any) -> tuple[Array, Array]:
        """Return X and y as arrays, by scikit-learn's checks; missing values are refused later, by
        the columns' names.
        """
        array, targets = validate_data(
            self,
            X,
            y,
            dtype=np.float64,
            ensure_all_finite=False,
            y_numeric=self.target == "number",
        )
        return array, targets

    def _validate_rows(self, X: Any) -> Array:
        """Return X as an array, by scikit-learn's checks of the rows alone."""
        array: Array = validate_data(self, X, dtype=np.float64, ensure_all_finite=False)
        return array

    def _columns(self, X: Any) -> Tensor:
        """Return X (m, p) for a prediction, checked against the columns of the fit."""
        check_is_fitted(self)
        array = validate_data(self, X, reset=False, dtype=np.float64)
        return torch.from_numpy(np.ascontiguousarray(array))

    # --- fitting ---

    def fit(self, X: Any, y: Any = None, groups: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array, frame, list of (X, y), or path
            (m, p) rows of all clients; or one pair a client; or the folder of a deployed run.
        y : array
            (m,), or (m, 2) for survival.
        groups : array, optional
            (m,): who holds a row, as in scikit-learn's splitters; without it all rows are one
            client.
        sample_weight : array, optional
            (m,).
        """
        if isinstance(X, str | Path):
            return load_fit(self, Path(X))
        return self._fit_sites(self._read(X, y, groups, sample_weight))

    @classmethod
    def from_run(cls, folder: str | Path) -> Self:
        """Return the estimator that a deployment has fitted.

        Parameters
        ----------
        folder : path
            The folder of a finished run of an app that ``fedfw deploy init --estimator`` wrote.

        Returns
        -------
        FederatedEstimator
            With its fitted attributes. `certificate_` is there where clients reported losses.
        """
        load_run(folder)  # which says what is wrong with a folder of something else
        facts = facts_of(Path(folder))
        ties = {"ties": facts["ties"]} if cls.deployed == "cox" else {}
        return load_fit(cls(facts.get("constraint"), **ties), Path(folder))

    def _fit_sites(self, sites: Sites, model: FittedModel | None = None) -> Self:
        """Fit the model to sites, with inference where there is one; ``model`` is a fit that is
        there already.
        """
        settings = self._settings()
        likelihood = self._likelihood(sites)
        held_out = None
        if self.infer == "split":
            sites, held_out = halves(sites, settings.seed)
        if model is None:
            model = fit_model(sites, likelihood, settings)
        self._take(model, sites.names)
        self._inference = infer(model, sites, held_out, likelihood, self.covariance == "sandwich")
        return self

    @property
    def inference_(self) -> Any:
        """Return the table of estimates, standard errors, p-values and intervals.

        Columns ``coef``, ``se``, ``z``, ``p``, ``low``, ``high``, and ``ratio``, ``ratio_low``,
        ``ratio_high`` for odds, rate and hazard ratios; a frame where pandas is installed, else a
        mapping by column and variable. It is refused with the reason where intervals would be
        false: after a selection on the same rows, without a maximum, and with noise for privacy.
        """
        check_is_fitted(self)
        if isinstance(self._inference, str):
            raise ValueError(self._inference)
        return self._inference

    def _take(self, model: FittedModel, names: tuple[str, ...]) -> None:
        """Set the fitted attributes of a model of the columns of these names."""
        self._names = names
        self._set_coefficients(model)
        self.selected_ = model.selected.numpy()
        private = model.certificate is NO_CERTIFICATE
        self.certificate_: Certificate | None = None if private else model.certificate
        self.bytes_: Bytes = model.bytes
        self.run_: Run | SavedRun | None = model.run
        self.n_iter_ = model.rounds

    def _set_coefficients(self, model: FittedModel) -> None:
        """Set ``coef_`` and ``intercept_`` in the shapes of the subclass."""
        self.coef_ = model.coef[0].numpy()
        self.intercept_: Any = float(model.intercept[0])


def _seed(random_state: Any) -> int:
    """Return the seed of a run; None is 0."""
    if random_state is None:
        return 0
    if not isinstance(random_state, Integral):
        raise ValueError(f"random_state={random_state!r}, expected a whole number")
    return int(random_state)
