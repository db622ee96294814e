"""The result of a simulation."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedfw.algorithms.contract import Algorithm
from fedfw.notebook import html_card
from fedfw.problems.problem import Problem
from fedfw.report.tables import human_bytes
from fedfw.rounds.folders import RunFolder
from fedfw.rounds.records import History
from fedfw.rounds.setup import Certificate
from fedfw.simulation.polishing import Polishing


@dataclass(repr=False)
class Run:
    """The result of a simulation.

    Parameters
    ----------
    problem, algorithm : Problem, Algorithm
        What was run; the algorithm has all defaults filled in, such as its penalty.
    x : Tensor
        xbar, (p,), in ``named_parameters()`` order; in the parameter's shape where the model is one
        matrix. It lies in the set up to the rounding of the rounds: 1e-6 of the set's size in
        float64, and 1e-3 in float32. With relaxed clients it may lie outside.
    feasible : Tensor
        In the same shape, the model that is returned. It is xbar, or with relaxed clients a point
        of the set near it. Where the rounding of the rounds has moved that out of the set by more
        than 1e-6 of the set's size, it is the projection, if the set has one. With ``polish`` it is
        what polishing made of that point.
    history : History
        A record of each round.
    lower_bound : float or None
        The best proven lower bound on the optimum; where none is better, what the loss is never
        below.
    certificate : Certificate
        What the lower bound rests on, or why there is none.
    stopped : str
        Why the run ended.
    dense_sums : int
        How many dense sums of gradients the server was given.
    out : Path or None
        The run folder.
    privacy : str or None
        What was promised and how it was kept, in words.
    polishing : Polishing or None
        What ``polish="support"`` did after the last round. The history is of the rounds; its bytes
        are those of the polishing.

    Examples
    --------
    >>> import fedfw
    >>> run = fedfw.simulate(
    ...     fedfw.testing.two_quadratics(), fedfw.FrankWolfe(fedfw.Box(-1.0, 1.0)), rounds=5
    ... )
    >>> float(run.x), run.history[-1].loss, run.stopped
    (1.0, 4.0, 'all that were asked for')
    >>> run
    Run
      algorithm: Frank-Wolfe on Box(lo=-1.0, hi=1.0)
      rounds: 5 (all that were asked for)
      reached: loss 4
      proven: gap 0, optimum at least 4
      sent up: 90 B of payload and 160 B of checks, without transport

    A run can be pickled where its problem and its schedule can. Unpickle nothing but your own
    files.
    """

    problem: Problem
    algorithm: Algorithm
    x: Tensor
    feasible: Tensor
    history: History
    lower_bound: float | None
    certificate: Certificate
    stopped: str
    dense_sums: int = 0
    out: Path | None = None
    privacy: str | None = None
    polishing: Polishing | None = None

    def __repr__(self) -> str:
        lines = [f"  {name}: {value}" for name, value in self._facts().items()]
        return "\n".join(["Run", *lines])

    def _repr_html_(self) -> str:
        return html_card("Run", self._facts() | {"problem": repr(self.problem), "folder": self.out})

    def _facts(self) -> dict[str, str]:
        """Return the algorithm, rounds, measures, proofs and bytes of the run in words, without
        those that are missing.
        """
        latest = self.history.last
        algorithm = (
            f"{self.algorithm.title or self.algorithm.name} on {self.algorithm.constraint!r}"
        )
        described = {"algorithm": algorithm, "rounds": f"{len(self.history)} ({self.stopped})"}
        measures = ("loss", "test_loss", "accuracy", "concordance", "epsilon")
        measured = [(name, latest(name)) for name in measures]
        numbers = [f"{name} {value:.4g}" for name, value in measured if value is not None]
        if numbers:
            described["reached"] = ", ".join(numbers)
        proven = []
        if latest("gap") is not None:
            proven.append(f"gap {latest('gap'):.4g}")
        if self.lower_bound is not None and self.lower_bound != self.problem.floor:
            proven.append(f"optimum at least {self.lower_bound:.4g}")
        if proven:
            described["proven"] = ", ".join(proven)
        if self.polishing is not None:
            described["polished"] = str(self.polishing)
        payload = human_bytes(self.history.total("bytes_up"))
        checks = human_bytes(self.history.total("evidence_up"))
        described["sent up"] = f"{payload} of payload and {checks} of checks, without transport"
        return described

    @property
    def model(self) -> nn.Module:
        """A trained copy of the module, inside the set, in evaluation mode."""
        return self.problem.trained(self.feasible).eval()

    def support(self, tol: float = 1e-3) -> Tensor:
        """Return the coordinates of the model that are not negligible.

        Parameters
        ----------
        tol : float
            The share of the largest magnitude above which a coordinate counts; 0 for all that are
            not zero.

        Returns
        -------
        Tensor
            Their positions in ascending order, (k,), in the flat vector of parameters.

        Examples
        --------
        >>> import fedfw
        >>> problem = fedfw.load_problem("sparse:50", "logistic", clients=4)
        >>> run = fedfw.simulate(problem, fedfw.FedFWPlus("l1:3"), rounds=50)
        >>> len(run.support(0.1)) <= len(run.support()) <= len(run.support(0.0))
        True
        """
        if not 0 <= tol < 1:
            raise ValueError(f"tol={tol}, expected a share of at least 0 and below 1")
        size = self.feasible.flatten().abs()
        return (size > tol * size.max()).nonzero().flatten()

    def facts(self) -> dict[str, Any]:
        """Return the facts of a run that a run folder holds beside its history and model."""
        return {
            "algorithm": repr(self.algorithm),
            "constraint": repr(self.algorithm.constraint),
            "stopped": self.stopped,
            "lower_bound": self.lower_bound,
            "certificate": str(self.certificate),
            "polishing": None if self.polishing is None else asdict(self.polishing),
        }

    def save(self, folder: str | Path) -> Path:
        """Write history, model and facts into a new folder, which `fedfw.load_run` reads.

        Parameters
        ----------
        folder : path
            Must not hold a run yet.

        Returns
        -------
        Path
            The folder.

        Examples
        --------
        >>> import tempfile
        >>> import fedfw
        >>> problem = fedfw.testing.two_quadratics()
        >>> run = fedfw.simulate(problem, fedfw.FrankWolfe("box:-1,1"), rounds=3)
        >>> sorted(path.name for path in run.save(f"{tempfile.mkdtemp()}/run").glob("*.*"))
        ['.lock', 'history.jsonl', 'model.pt', 'run.json']
        """
        target = RunFolder(Path(folder))
        target.save_model(self.model)
        target.save_facts(self.facts())
        target.save_history(self.history)  # last: a folder that has one is complete
        target.release()
        return target.path

    def plot(self, path: str | Path | None = None) -> Any:
        """Return a matplotlib figure of the run.

        Parameters
        ----------
        path : path, optional
            A file to save it to as well, which ends in .png, .svg or .pdf.

        Returns
        -------
        matplotlib.figure.Figure
            A notebook shows it.
        """
        from fedfw.report.plots import plot_runs, save_figure

        figure = plot_runs({self.algorithm.name: self.history})
        if path is not None:
            save_figure(figure, Path(path))
        return figure
