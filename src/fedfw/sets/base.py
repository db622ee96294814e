"""The interface of a constraint set: the methods that users call, and the methods that a new set
must define.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from math import prod
from typing import Annotated, Any, ClassVar, overload

import torch
from torch import Tensor, nn

from fedfw.atoms import Atom, DenseAtom, Mixture, ReadAtom, SparseAtom
from fedfw.atoms.mixture import mixture_readers
from fedfw.checks import immediate, rows_within
from fedfw.errors import NoProjectionError
from fedfw.linalg.selection import robust_row_norms
from fedfw.linalg.stacks import check_finite
from fedfw.options import option, options_of
from fedfw.sets.projections import FAR, LOST_TO_ROUNDING, Frame, project_far, round_into

Shape = tuple[int, ...]
"""The shape of one parameter."""

Shapes = Mapping[str, Shape]
"""Shapes of a model's parameters by name, in ``named_parameters()`` order."""
Size = Annotated[
    float, option("a size of the set", gt=0, le=math.inf, expected="a positive finite number")
]
"""The type of a set's parameter that is a positive finite number; others are refused."""
Count = Annotated[
    int, option("a count", ge=1, le=2**63 - 1, expected="a whole number of at least 1")
]
"""The type of a set's parameter that is a whole number of at least 1; others are refused."""


@dataclass(frozen=True)
class Request:
    """Options that a caller of an oracle may give in addition to the direction.

    Parameters
    ----------
    precision : torch.dtype, default torch.float32
        The precision to which the atom's numbers are rounded and in which they are sent.
    tol : float or None, default None
        Relative accuracy for oracles that iterate; None means their default.

    Examples
    --------
    >>> import torch, fedfw
    >>> from fedfw.sets import Request
    >>> fedfw.L2Ball(1.0)._lmo(torch.ones(3, 4), (4,), Request(precision=torch.float16)).nbytes
    27
    """

    precision: torch.dtype = torch.float32
    tol: float | None = None


class ConstraintSet(ABC):
    """Base class of all sets: a convex and compact (closed and bounded) set D of parameter values.

    Frank-Wolfe methods need one operation from a set, its *linear minimization oracle* `lmo`: given
    a direction g it returns a point s of D that minimises the inner product ``<g, s>``. The minimum
    is always reached at an *extreme point*, a point that is not between two others, such as a
    corner. Extreme points usually have a short description, so the oracle returns an `Atom`, which
    stores that description instead of a dense tensor. A set also offers the Euclidean *projection*
    (the nearest point of D), a membership test, and the *diameter* (the largest distance between
    two points).

    Below, ``shape`` is the shape of the parameter that is constrained, p is its number of entries
    and n is a number of clients. With ``batch=True`` the first axis of a tensor is the client axis,
    and every client is treated separately.

    Attributes
    ----------
    name : str
        The name by which `parse_set` and the command line know the set.
    is_polytope : bool
        Whether the set has finitely many extreme points.
    needs_matrix : bool
        Whether the set is defined for matrices only.
    entries : int or None
        The number of entries of a parameter, where the set has one size only.
    likes_long_stacks : bool
        Whether one call of the oracle on a long stack is faster than several calls on short ones.
        Its atoms then have a ``bound``.
    diameter_is_exact : bool
        Whether `diameter` is exact rather than an upper bound.

    Notes
    -----
    A new set is a frozen dataclass that defines `_lmo`, `_violation`, `readers` and `diameter`, and
    optionally `_project`, `_extent`, `_shrink`, `_norms`, `_check_shape` and `_accepts`. The
    methods that start with an underscore receive stacks only: tensors of shape (n, p) with the
    client axis first and the parameter flattened. `fedfw.testing.check_constraint` tests a new set.

    Examples
    --------
    >>> import torch, fedfw
    >>> ball = fedfw.L1Ball(2.0)
    >>> g = torch.tensor([1.0, -3.0, 2.0])
    >>> atom = ball.lmo(g)
    >>> atom.dense().tolist(), float(atom.dot(g))
    ([0.0, 2.0, 0.0], -6.0)
    >>> ball.contains(g), ball.diameter((3,))
    (False, 4.0)
    """

    name: ClassVar[str] = ""
    is_polytope: ClassVar[bool] = False
    needs_matrix: ClassVar[bool] = False
    likes_long_stacks: ClassVar[bool] = False
    diameter_is_exact: ClassVar[bool] = True

    # --- the methods that a set defines ---

    @abstractmethod
    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Map finite g (n, p) to a stack of n atoms, each of which minimises <g_i, .> over the
        set.
        """

    @abstractmethod
    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        """Map x (n, p) in float64 to (n,): how far outside x is, relative to the set's size; at
        most 0 inside.
        """

    @abstractmethod
    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        """Return the kinds of atom that the oracle can return, each with the function that decodes
        it.

        Parameters
        ----------
        shape : tuple of int
            Shape of the parameter.

        Returns
        -------
        Mapping from a subclass of Atom to ReadAtom
            A function takes a `fedfw.atoms.bits.Reader` and a precision. It fills in all that is
            not sent because it follows from the set and the shape, such as the radius.
        """

    @abstractmethod
    def diameter(self, shape: Shape) -> float:
        """Return the largest Euclidean distance between two points of the set.

        Parameters
        ----------
        shape : tuple of int
            Shape of the parameter.

        Returns
        -------
        float
            The diameter, or an upper bound on it where ``diameter_is_exact`` is False.

        Examples
        --------
        >>> import torch, fedfw
        >>> fedfw.LinfBall(1.0).diameter((2, 8))
        8.0
        """

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        """Return x (n, p) in float64 -> the nearest points of the set, (n, p).

        It need only be accurate for points near the set: `project` verifies the results for others.
        """
        raise NoProjectionError(
            f"no projection for this set: {self!r} has only a linear minimization oracle"
        )

    def _extent(self, shape: Shape) -> float:
        """Return about the size of the set, in the l2 norm, by which `project` judges whether a
        point is far away.

        By default the diameter. Infinity means that `_project` itself finds the points that are
        far.
        """
        return self.diameter(shape)

    def _is_coarse(self, shape: Shape, dtype: torch.dtype) -> bool:
        """Return whether rounding to ``dtype`` may move a point out of the set by more than it may
        be outside.
        """
        extent = self._extent(shape)
        zero = torch.zeros(shape, dtype=torch.float64)
        point = self.lmo(zero, precision=torch.float64).dense(torch.float64)
        rounding = torch.finfo(dtype).eps / 2 * (float(point.norm()) + extent)
        return not rounding <= LOST_TO_ROUNDING * extent

    def _frame(self, shape: Shape, dtype: torch.dtype) -> Frame:
        """Return the constants that `project` uses for parameters of this shape and dtype; they are
        computed once and stored.
        """
        frames: dict[tuple[Shape, torch.dtype], Frame] = self.__dict__.setdefault("_frames", {})
        if (shape, dtype) not in frames:
            with immediate():
                extent = self._extent(shape) or 1.0  # a single point has extent 0
                far = min(FAR * extent, torch.finfo(torch.float64).max)
                frames[shape, dtype] = Frame(extent, far, self._is_coarse(shape, dtype))
        return frames[shape, dtype]

    def _nearest(self, x: Tensor, shape: Shape) -> Tensor:
        """Map x (n, p) of any size to the nearest points of the set, (n, p) in float64; NaN and
        infinity are refused.
        """
        frame = self._frame(shape, torch.float64)
        if rows_within(x, frame.far):
            return self._project(x.double(), shape)
        check_finite(x)
        return project_far(self, x.double(), shape, frame.extent)

    def _rounded(self, x: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Round points x (n, p) of the set in float64 to near points of the set in ``dtype``."""
        if self._frame(shape, dtype).coarse:
            return self._round_into(x, shape, dtype)
        return x.to(dtype)

    def _round_into(self, x: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Round points x (n, p) of the set in float64 to a dtype with which they may leave it."""
        return round_into(self, x, shape, dtype)

    def _shrink(self, x: Tensor, shape: Shape, precision: torch.dtype) -> Tensor:
        """Map finite x (n, p) in float64 to points of the set near them, (n, p) in ``precision``.

        By default the nearest ones. A set overrides it where something cheaper lies in the set as
        well, or to stay inside when it rounds.
        """
        return self._rounded(self._nearest(x, shape), shape, precision)

    def _face(self, support: Tensor, shape: Shape) -> ConstraintSet | None:
        """Return the points that are zero outside of a support (k,), as a set of vectors (k,).

        None for sets whose atoms are no sparse vectors.
        """
        return None

    def _norms(self, shape: Shape) -> dict[str, float]:
        """Return largest values over the set of some of the norms l1, l2, linf, spectral and
        nuclear.

        `enclosing` derives bounds on the other norms from these. By default: the l2 norm of one
        point plus the diameter.
        """
        point = self.lmo(torch.zeros(shape)).dense(torch.float64)
        return {"l2": float(point.norm()) + self.diameter(shape)}

    def _check_shape(self, shape: Shape) -> None:
        """Raise ValueError if the set is not defined for a parameter of ``shape``."""
        if self.needs_matrix and len(shape) < 2:
            raise ValueError(
                f"{type(self).__name__} needs a matrix, got a parameter of shape {shape}"
            )
        if self.entries not in (None, prod(shape)):
            raise ValueError(
                f"{self!r} is for {self.entries} entries, got a parameter of shape {shape}"
            )

    def _accepts(self, atom: Atom, shape: Shape, tol: float) -> bool:
        """Return whether a single atom of a kind in `readers` has valid indices and finite values,
        and lies in the set up to ``tol`` times its size.

        The default is right for every set whose membership depends on the non-zero entries alone.
        """
        if isinstance(atom, SparseAtom):
            indices, values = atom.entries()  # each (1, k)
            size = prod(shape)
            if indices.numel() and not (int(indices.min()) >= 0 and int(indices.max()) < size):
                return False
            # An index that occurs twice would add up to an entry that nothing has checked.
            if len(set(indices[0].tolist())) != indices.numel() or not bool(
                values.isfinite().all()
            ):
                return False
            if values.shape[1] == 0:  # the origin
                values = values.new_zeros(1, 1)
            return bool(self._violation(values, (values.shape[1],))[0] <= tol)
        if isinstance(atom, DenseAtom):
            x = atom._dense(torch.float64)
            return bool(x.isfinite().all()) and bool(self._violation(x, shape)[0] <= tol)
        return False

    # --- the methods that users call ---

    def lmo(
        self,
        g: Tensor,
        batch: bool = False,
        *,
        precision: torch.dtype = torch.float32,
        tol: float | None = None,
    ) -> Atom:
        """Return the linear minimization oracle: an atom s of the set with ``<g, s> <= <g, u>`` for
        every u in the set.

        Ties go to the lowest index, so that equal calls give equal answers.

        Parameters
        ----------
        g : Tensor
            The direction, usually a gradient: the parameter's shape, or ``(n, *shape)`` with
            ``batch=True``.
        batch : bool, default False
            Whether the first axis of g is the client axis.
        precision : torch.dtype, default torch.float32
            float16, float32 or float64: the precision to which the atom's numbers are rounded and
            in which they are sent. The rounded atom still lies in the set.
        tol : float, optional
            Relative accuracy for oracles that iterate (`NuclearBall`, `SpectralBall`,
            `PartialIsometry`, `Spectrahedron`). The others are exact.

        Returns
        -------
        Atom
            One atom, or a stack of n atoms with ``batch=True``.

        Raises
        ------
        NonFiniteError
            If g has a NaN or an infinity; the error lists the rows.
        TypeError
            If g is not a floating-point tensor.
        ValueError
            If the precision is unknown, g is empty, or the set is not defined for g's shape.

        Examples
        --------
        >>> import torch, fedfw
        >>> atoms = fedfw.L1Ball(1.0).lmo(torch.tensor([[1.0, -3.0], [2.0, 0.0]]), batch=True)
        >>> len(atoms), atoms.dense().tolist()
        (2, [[0.0, 1.0], [-1.0, 0.0]])
        """
        if precision not in (torch.float16, torch.float32, torch.float64):
            raise ValueError(
                f"precision {precision}, expected torch.float16, torch.float32 or torch.float64"
            )
        rows, shape = self._stack(g, batch)
        check_finite(rows)
        atoms = self._lmo(rows, shape, Request(precision, tol))
        if batch:
            return atoms
        return atoms[0]

    def project(self, x: Tensor, batch: bool = False) -> Tensor:
        """Return the Euclidean projection: the point of the set that is nearest to ``x``.

        Parameters
        ----------
        x : Tensor
            The point: the parameter's shape, or ``(n, *shape)`` with ``batch=True``; finite.
        batch : bool, default False
            Whether the first axis of x is the client axis.

        Returns
        -------
        Tensor
            The nearest point, with the shape and dtype of x. It lies in the set up to 1e-6 of the
            set's size; in 16 bits, a set without an interior is violated by up to 8 times the
            dtype's epsilon.

        Raises
        ------
        NoProjectionError
            If the set has an oracle only; see `has_projection`.
        NonFiniteError
            If x has a NaN or an infinity.
        InfeasibleError
            If x is so far away that no result could be verified, or the dtype has no points of the
            set.

        Notes
        -----
        The result for a point that is farther away than about 1e6 times the size of the set is
        verified. Its distance exceeds the least one by at most 2^-20 of the set's size, or by 32
        roundings of the point where those are more.

        Examples
        --------
        >>> import torch, fedfw
        >>> fedfw.LinfBall(1.0).project(torch.tensor([0.5, -7.0])).tolist()
        [0.5, -1.0]
        """
        rows, shape = self._stack(x, batch)
        return self._rounded(self._nearest(rows, shape), shape, x.dtype).reshape(x.shape)

    def shrink(self, x: Tensor, batch: bool = False) -> Tensor:
        """Return a point of the set near ``x``, for an x that was in the set before it was
        compressed.

        It is cheaper than `project` where that takes a singular value decomposition: a spectral
        ball divides the matrix by a proven bound on its largest singular value.

        Parameters
        ----------
        x : Tensor
            The point: the parameter's shape, or ``(n, *shape)`` with ``batch=True``; finite.
        batch : bool, default False
            Whether the first axis of x is the client axis.

        Returns
        -------
        Tensor
            A point of the set, with the shape and dtype of x; x itself, up to rounding, if it lies
            well inside.

        Raises
        ------
        NoProjectionError
            If the set has an oracle only.
        NonFiniteError
            If x has a NaN or an infinity.

        Examples
        --------
        >>> import torch, fedfw
        >>> x = fedfw.SpectralBall(1.0).shrink(torch.diag(torch.tensor([1.5, 0.5])))
        >>> 0.98 <= float(x[0, 0]) <= 1 and 0.32 <= float(x[1, 1]) <= 1 / 3
        True
        """
        rows, shape = self._stack(x, batch)
        check_finite(rows)
        return self._shrink(rows.double(), shape, x.dtype).reshape(x.shape)

    def pieces(self, shape: Shape) -> tuple[int, ...]:
        """Return the lengths of the consecutive pieces of a flat value that are parameters of their
        own, as far as known.
        """
        return (prod(shape),)

    @property
    def entries(self) -> int | None:
        """Return the number of entries of a parameter, if the set has one size only."""
        return None

    @property
    def has_projection(self) -> bool:
        """Return whether `project` and `distance` work for this set."""
        return type(self)._project is not ConstraintSet._project

    @overload
    def contains(self, x: Tensor, tol: float = ...) -> bool: ...
    @overload
    def contains(self, x: Tensor, tol: float = ..., *, batch: bool) -> bool | Tensor: ...
    def contains(self, x: Tensor, tol: float = 1e-6, *, batch: bool = False) -> bool | Tensor:
        """Return whether ``x`` lies in the set, up to a tolerance.

        Parameters
        ----------
        x : Tensor
            The point: the parameter's shape, or ``(n, *shape)`` with ``batch=True``.
        tol : float, default 1e-6
            How far outside x may be, relative to the size of the set. What `project` returns in
            float32 and float64 is inside with the default. In 16 bits, points of a set without an
            interior need 8 times the dtype's epsilon.
        batch : bool, default False
            Whether the first axis of x is the client axis.

        Returns
        -------
        bool or Tensor
            The answer; with ``batch=True`` a tensor of bool of shape (n,). A point with a NaN or an
            infinity is not inside.

        Examples
        --------
        >>> import torch, fedfw
        >>> fedfw.L2Ball(1.0).contains(torch.tensor([[0.6, 0.8], [3.0, 4.0]]), batch=True).tolist()
        [True, False]
        """
        rows, shape = self._stack(x, batch)
        finite = rows.isfinite().all(1)
        rows = torch.where(finite[:, None], rows, 0.0)  # `_violation` needs finite numbers
        inside = (self._violation(rows.double(), shape) <= tol) & finite
        if batch:
            return inside
        return bool(inside[0])

    def distance(self, x: Tensor) -> float:
        """Return the Euclidean distance from ``x`` to the set, which is zero inside.

        Parameters
        ----------
        x : Tensor
            The point, in the parameter's shape; finite.

        Returns
        -------
        float
            The distance.

        Raises
        ------
        NoProjectionError
            If the set has no projection, because the distance is computed from it.
        NonFiniteError
            If x has a NaN or an infinity.

        Examples
        --------
        >>> import torch, fedfw
        >>> round(fedfw.L2Ball(1.0).distance(torch.tensor([3.0, 4.0])), 6)
        4.0
        """
        rows, shape = self._stack(x, batch=False)
        return float(robust_row_norms(rows.double() - self._nearest(rows, shape)))

    def accepts(self, atom: Atom, shape: Shape, tol: float = 1e-6) -> bool:
        """Return whether an atom that was received is of a kind of this set, has the right shape
        and lies in the set.

        A server calls this before it uses what a client sent. The check does not build the dense
        tensor unless the atom itself is dense, so it costs about as much as reading the atom.

        Parameters
        ----------
        atom : Atom
            A single atom; a stack is not accepted.
        shape : tuple of int
            Shape of the parameter.
        tol : float, default 1e-6
            How far outside the atom may be, relative to the size of the set.

        Returns
        -------
        bool
            True if the atom can be used.

        Examples
        --------
        >>> import torch, fedfw
        >>> atom = fedfw.L1Ball(3.0).lmo(torch.ones(5))
        >>> fedfw.L1Ball(3.0).accepts(atom, (5,)), fedfw.L1Ball(1.0).accepts(atom, (5,))
        (True, False)
        """
        shape = tuple(shape)
        if atom.batched or tuple(atom.shape) != shape or type(atom) not in self.readers(shape):
            return False
        return self._accepts(atom, shape, tol)

    def accepts_net(self, atom: Atom, shape: Shape, tol: float = 1e-6) -> bool:
        """Return whether a net of several atoms that was received can be used, as `accepts` says of
        one atom.

        Each part of a mixture must be accepted by itself: parts that lie far outside could cancel
        in the mixture, and overflow where it is worked out in another order or precision.

        Parameters
        ----------
        atom : Atom
            What `fedfw.atoms.mix` made of several atoms, a single one: a `Mixture`, or one dense
            vector. One atom of the set may also be given.
        shape : tuple of int
            Shape of the parameter.
        tol : float, default 1e-6
            How far outside the net, or a part of it, may be, relative to the size of the set.

        Returns
        -------
        bool
            True if the net can be used.

        Examples
        --------
        >>> import torch, fedfw
        >>> from fedfw.atoms import Dense, Mixture
        >>> far = torch.tensor([[1e20, 0.0]])
        >>> parts = (Dense(shape=(2,), values=far), Dense(shape=(2,), values=-far))
        >>> fedfw.L2Ball(1.0).accepts_net(
        ...     Mixture(shape=(2,), parts=parts, weights=(0.5, 0.5)), (2,)
        ... )
        False
        """
        shape = tuple(shape)
        if atom.batched or tuple(atom.shape) != shape:
            return False
        if isinstance(atom, Mixture):
            return all(self.accepts(part, shape, tol) for part in atom.parts)
        if isinstance(atom, DenseAtom):
            return self.contains(atom.dense(torch.float64), tol)
        return self.accepts(atom, shape, tol)

    def net_readers(self, shape: Shape, weights: Sequence[float]) -> Mapping[type[Atom], ReadAtom]:
        """Return the kinds of atom that `fedfw.atoms.mix` makes of this set's atoms, each with the
        function that decodes it.

        Parameters
        ----------
        shape : tuple of int
            Shape of the parameter.
        weights : sequence of float
            The weights of the mixture, one for each local step.

        Returns
        -------
        Mapping from a subclass of Atom to ReadAtom
            As for `readers`; with a single weight it is the same mapping.
        """
        if len(weights) > 1:
            return mixture_readers(self.readers(shape), shape, weights)
        return self.readers(shape)

    def random_point(
        self,
        shape: Shape,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return a random point of the set: a random convex combination of the atoms for eight
        random directions.

        Parameters
        ----------
        shape : tuple of int
            Shape of the parameter.
        generator : torch.Generator, optional
            The source of random numbers; by default torch's global one.
        dtype : torch.dtype, default torch.float32
            The dtype of the result.

        Returns
        -------
        Tensor
            A point of the given shape. Its distribution is not uniform.

        Examples
        --------
        >>> import torch, fedfw
        >>> x = fedfw.Simplex(1.0).random_point((5,), torch.Generator().manual_seed(0))
        >>> fedfw.Simplex(1.0).contains(x)
        True
        """
        g = torch.randn(8, *shape, generator=generator, dtype=torch.float64)
        atoms = self.lmo(g, batch=True)
        # Exponential draws over their sum are uniform on the simplex; the clamp is against log 0.
        weights = -torch.rand(8, generator=generator, dtype=torch.float64).clamp(min=1e-12).log()
        weights /= weights.sum()
        point = weights @ atoms.dense(torch.float64).reshape(8, -1)
        return point.reshape(shape).to(dtype)

    def bind(self, parameters: nn.Module | Shapes) -> ConstraintSet:
        """Return the set on the flat vector of all trainable parameters of a model.

        The flat vector holds the parameters one after the other, in ``named_parameters()`` order. A
        vector set acts on this vector. A matrix set acts on the matrix ``[W | b]`` of a model that
        is one linear layer with weights W and bias b, or on the single matrix of a model without a
        bias. For other models use `Product`, which takes a set for each parameter.

        Parameters
        ----------
        parameters : nn.Module or mapping from str to tuple of int
            The model, or the names and shapes of its parameters.

        Returns
        -------
        ConstraintSet
            A set for tensors of shape (size,), where ``size`` is the total number of entries.

        Raises
        ------
        ValueError
            If there are no parameters, or this is a matrix set and the model is not one linear
            layer.

        Examples
        --------
        >>> import torch, fedfw
        >>> layer = torch.nn.Linear(4, 3)
        >>> bound = fedfw.NuclearBall(2.0).bind(layer)
        >>> bound.lmo(torch.ones(3 * 4 + 3)).dense().shape
        torch.Size([15])
        """
        # Imported here because that module imports this one.
        from fedfw.sets.product import bind_to_model

        return bind_to_model(self, shapes_of(parameters))

    # --- helpers ---

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, declared in options_of(kind).items():
            declared.check(getattr(self, name), kind.__name__)

    def __eq__(self, other: object) -> bool:
        """Return whether ``other`` is a set of the same class with equal parameters."""
        return type(other) is type(self) and all(
            _same(getattr(self, name), getattr(other, name)) for name in parameters_of(type(self))
        )

    def __hash__(self) -> int:
        return hash((type(self), repr(self)))

    def _stack(self, x: Tensor, batch: bool) -> tuple[Tensor, Shape]:
        """Return the tensor as rows (n, p) in at least float32, and the parameter's shape; refuse
        what is no floating-point tensor, is empty, or has a shape without this set.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = getattr(x, "dtype", type(x).__name__)
            raise TypeError(f"expected a floating-point tensor, got {kind}")
        shape = tuple(x.shape[1:] if batch else x.shape)
        if batch and x.ndim == 0:
            raise ValueError("batch=True needs a leading client axis, got a scalar")
        if x.numel() == 0:
            raise ValueError(f"an empty tensor of shape {tuple(x.shape)} has no points")
        self._check_shape(shape)
        rows = x.detach().reshape(-1, prod(shape))
        return (rows if rows.element_size() >= 4 else rows.float()), shape


def shapes_of(parameters: nn.Module | Shapes) -> dict[str, Shape]:
    """Return names and shapes of the trainable parameters, in order.

    Parameters
    ----------
    parameters : nn.Module or mapping from str to tuple of int
        The model, of which parameters with ``requires_grad`` count, or the names and shapes
        themselves.

    Returns
    -------
    dict from str to tuple of int
        The shape of each parameter.

    Examples
    --------
    >>> import torch
    >>> from fedfw.sets.base import shapes_of
    >>> shapes_of(torch.nn.Linear(4, 3))
    {'weight': (3, 4), 'bias': (3,)}
    """
    if isinstance(parameters, nn.Module):
        return {
            name: tuple(p.shape) for name, p in parameters.named_parameters() if p.requires_grad
        }
    return {name: tuple(shape) for name, shape in parameters.items()}


def _same(one: object, other: object) -> bool:
    """Return whether two parameters of a set are equal; tensors are compared entry by entry."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is not Tensor and type(other) is not Tensor and one == other


def parameters_of(constraint: type[ConstraintSet]) -> tuple[str, ...]:
    """Return names of the parameters from which a set is built, in order.

    Parameters
    ----------
    constraint : type
        A subclass of ConstraintSet.

    Returns
    -------
    tuple of str
        The names of the arguments of the constructor.

    Examples
    --------
    >>> import fedfw
    >>> from fedfw.sets.base import parameters_of
    >>> parameters_of(fedfw.KSparse)
    ('k', 'r')
    """
    if is_dataclass(constraint):
        return tuple(f.name for f in fields(constraint) if f.init)
    return ()
