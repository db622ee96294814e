"""The exceptions that fedfw defines; their messages give the bad value and what was expected."""

from collections.abc import Sequence


class NonFiniteError(ValueError):
    """A tensor has a NaN or an infinity where finite numbers are needed.

    Parameters
    ----------
    message : str
        The text of the error.
    rows : sequence of int, default ()
        The rows of the stack that are not finite, which are the numbers of the clients.

    Attributes
    ----------
    rows : tuple of int
        The same rows.

    Examples
    --------
    >>> import torch, fedfw
    >>> g = torch.tensor([[1.0, 2.0], [float("nan"), 0.0]])
    >>> try:
    ...     fedfw.L1Ball(1.0).lmo(g, batch=True)
    ... except fedfw.NonFiniteError as error:
    ...     print(error.rows)
    (1,)
    """

    def __init__(self, message: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.rows = tuple(rows)


class ContradictionError(ValueError):
    """A run's own numbers refute what its proofs rest on, such as losses that are declared convex
    and are not.

    A lower bound on the optimum holds if the losses are convex, their floor is a floor and the
    set's oracle finds the minimum. A loss below that bound, a loss below its own tangent, or a
    negative Frank-Wolfe gap says that one of these does not hold, so no bound is reported.

    Examples
    --------
    >>> import fedfw, torch
    >>> losses = [lambda x: torch.cos(x).sum()] * 2  # not convex
    >>> problem = fedfw.Problem.from_losses(losses, torch.full((2,), 0.3), convex=True)
    >>> try:
    ...     fedfw.simulate(problem, fedfw.FedFW("linf:4"), rounds=10)
    ... except fedfw.ContradictionError as error:
    ...     print("no bound:", "convex" in str(error))
    no bound: True
    """


class AtomError(ValueError):
    """Received bytes are not the encoding of an atom of the expected set and shape.

    Examples
    --------
    >>> import torch, fedfw
    >>> ball = fedfw.L1Ball(1.0)
    >>> data = ball.lmo(torch.ones(1000)).to_bytes()
    >>> try:
    ...     fedfw.Atom.from_bytes(data + b"!", ball, (1000,))
    ... except fedfw.AtomError as error:
    ...     print(error)
    1 bytes left over after the atom
    """


class NoProjectionError(NotImplementedError):
    """The set has a linear minimization oracle but no projection.

    All sets of the library have a projection, so this error can only come from a set that a user
    has defined without one.

    Examples
    --------
    >>> import torch, fedfw
    >>> class OracleOnly(fedfw.L2Ball):
    ...     _project = fedfw.ConstraintSet._project
    >>> try:
    ...     OracleOnly(1.0).project(torch.tensor([3.0, 4.0]))
    ... except fedfw.NoProjectionError as error:
    ...     print(error)
    no projection for this set: OracleOnly(r=1.0) has only a linear minimization oracle
    """


class InfeasibleError(ValueError):
    """A point that has to lie in a constraint set lies outside, or cannot be projected into it.

    `fedfw.simulate`, `fedfw.solve` and deployments raise it instead of returning a model outside of
    its set.

    Examples
    --------
    >>> from fedfw.errors import InfeasibleError
    >>> issubclass(InfeasibleError, ValueError)
    True
    """


class MessageError(ValueError):
    """A message between server and client does not have the agreed fields or values.

    Examples
    --------
    >>> from fedfw.errors import MessageError
    >>> issubclass(MessageError, ValueError)
    True
    """


class NobodyTrainedError(RuntimeError):
    """A deployed run came to its end without clients: none was ever counted, or all have left.

    Examples
    --------
    >>> from fedfw.errors import NobodyTrainedError
    >>> issubclass(NobodyTrainedError, RuntimeError)
    True
    """


class RankLostError(ConnectionError):
    """Another process of a simulation that is shared by several is gone; `fedfw resume` goes on
    from a checkpoint.

    Parameters
    ----------
    message : str
        Which process, and why it ended where that is known.

    Examples
    --------
    >>> from fedfw.errors import RankLostError
    >>> issubclass(RankLostError, ConnectionError)
    True
    """

    def __init__(self, message: str) -> None:  # an OSError's own shows no parameters
        super().__init__(message)


def missing_extra(what: str, package: str, extra: str) -> ImportError:
    """Return the error for something whose package is not installed: it says how to get it from
    fedfw's own repository.

    fedfw is installed from its repository and not from a package index, where anybody could have
    taken its name.

    Parameters
    ----------
    what : str
        What was asked for.
    package : str
        What is not installed.
    extra : str
        The extra of fedfw that has it.

    Examples
    --------
    >>> print(missing_extra("privacy", "dp-accounting", "privacy"))
    privacy needs dp-accounting, which is not installed: run  pip install -e ".[privacy]"  in
    fedfw's repository
    """
    return ImportError(
        f'{what} needs {package}, which is not installed: run  pip install -e ".[{extra}]"  in '
        "fedfw's repository"
    )
