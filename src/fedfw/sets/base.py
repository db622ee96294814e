"""What a constraint set offers, and what a new one has to write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite, prod
from typing import ClassVar, overload

import torch
from torch import Tensor, nn

from fedfw.atoms import Atom, DenseAtom, ReadAtom, SparseAtom
from fedfw.atoms.mixture import mixture_readers
from fedfw.checks import holds
from fedfw.errors import NonFiniteError, NoProjectionError
from fedfw.linalg.selection import row_norms

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
"""Shapes of a model's parameters by name, in ``named_parameters()`` order."""


@dataclass(frozen=True)
class Request:
    """What a caller may ask of an oracle beside the answer.

    Parameters
    ----------
    precision
        The precision the atom travels in.
    tol
        Relative accuracy for oracles that iterate; None for their default.
    warm
        The atoms of an earlier call, from which such an oracle may start.
    """

    precision: torch.dtype = torch.float32
    tol: float | None = None
    warm: Atom | None = None


class ConstraintSet(ABC):
    """A convex compact set D of parameter values.

    A new set is one frozen dataclass that writes `_lmo`, `_violation`, `readers` and `diameter`; optionally
    `_project`, `_norms` and `_check_shape`. The methods that start with an underscore see stacks only: tensors with
    a leading client axis and the parameter flattened, (n, p). `fedfw.testing.check_constraint` tests it.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    strongly_convex: ClassVar[bool] = False
    is_polytope: ClassVar[bool] = False
    needs_matrix: ClassVar[bool] = False
    oracle_cost: ClassVar[str] = "?"
    projection_cost: ClassVar[str] = "none"
    diameter_is_exact: ClassVar[bool] = True

    # --- what a set writes ---

    @abstractmethod
    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """(n, p) finite -> a stack of n atoms, each a minimiser of <g_i, .> over the set."""

    @abstractmethod
    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        """(n, p) float64 -> (n,): how far outside, relative to the set's size; at most 0 inside."""

    @abstractmethod
    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        """The kinds of atom the oracle returns for a parameter of ``shape``, and how to read each."""

    @abstractmethod
    def diameter(self, shape: Shape) -> float:
        """Largest Euclidean distance between two points of the set."""

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        """(n, p) float64 -> (n, p)."""
        raise NoProjectionError(f"no projection for this set: {self!r} has only a linear minimization oracle")

    def _norms(self, shape: Shape) -> dict[str, float]:
        """Largest value over the set of some of the norms l1, l2, linf, spectral, nuclear; `enclosing` fits the rest.

        By default the l2 norm of one point plus the diameter.
        """
        point = self.lmo(torch.zeros(shape)).dense(torch.float64)
        return {"l2": float(point.norm()) + self.diameter(shape)}

    def _check_shape(self, shape: Shape) -> None:
        """Raise ValueError if the set makes no sense for a parameter of ``shape``; by default every shape will do."""
        return

    def _accepts(self, atom: Atom, shape: Shape, tol: float) -> bool:
        """Whether a single atom of a kind in `readers` lies in the set.

        The default serves every set whose membership depends on the non-zero entries alone.
        """
        if isinstance(atom, SparseAtom):
            indices, values = atom.entries()
            size = prod(shape)
            if indices.numel() and not (int(indices.min()) >= 0 and int(indices.max()) < size):
                return False
            if len(set(indices[0].tolist())) != indices.numel() or not bool(values.isfinite().all()):
                return False
            if values.shape[1] == 0:
                values = values.new_zeros(1, 1)
            return bool(self._violation(values, (values.shape[1],))[0] <= tol)
        if isinstance(atom, DenseAtom):
            x = atom._dense(torch.float64)
            return bool(x.isfinite().all()) and bool(self._violation(x, shape)[0] <= tol)
        return False

    # --- what users call ---

    def lmo(
        self,
        g: Tensor,
        batch: bool = False,
        *,
        precision: torch.dtype = torch.float32,
        tol: float | None = None,
        warm: Atom | None = None,
    ) -> Atom:
        """The linear minimization oracle: an atom s of the set with <g, s> <= <g, u> for every u in the set.

        Parameters
        ----------
        g
            The parameter's shape, or (clients, *shape) with ``batch=True``.
        precision
            float32, float16 or float64: what the atom's numbers, if it has any, are rounded to and travel in.
        tol, warm
            For oracles that iterate (`NuclearBall`, `Spectrahedron`): the relative accuracy wanted, and earlier
            atoms to start from. Others are exact.

        Raises
        ------
        NonFiniteError
            If g has a NaN or an infinity; it says in which rows.
        """
        if precision not in (torch.float16, torch.float32, torch.float64):
            raise ValueError(f"precision {precision}, expected torch.float16, torch.float32 or torch.float64")
        rows, shape = self._stack(g, batch)
        check_finite(rows)
        atoms = self._lmo(rows, shape, Request(precision, tol, warm))
        return atoms if batch else atoms[0]

    def project(self, x: Tensor, batch: bool = False) -> Tensor:
        """The nearest point of the set, in the shape and dtype of ``x``."""
        rows, shape = self._stack(x, batch)
        check_finite(rows)
        return self._project(rows.double(), shape).to(x.dtype).reshape(x.shape)

    @property
    def has_projection(self) -> bool:
        """Whether `project` works."""
        return type(self)._project is not ConstraintSet._project

    @property
    def fixed_size(self) -> int | None:
        """Number of coordinates, for sets that exist in one size only."""
        return None

    @overload
    def contains(self, x: Tensor, tol: float = ...) -> bool: ...
    @overload
    def contains(self, x: Tensor, tol: float = ..., *, batch: bool) -> bool | Tensor: ...
    def contains(self, x: Tensor, tol: float = 1e-6, *, batch: bool = False) -> bool | Tensor:
        """Whether x lies in the set, up to ``tol`` times the set's size. With ``batch=True``: (n,) of bool."""
        rows, shape = self._stack(x, batch)
        finite = rows.isfinite().all(1)
        rows = torch.where(finite[:, None], rows, 0.0)
        inside = (self._violation(rows.double(), shape) <= tol) & finite
        return inside if batch else bool(inside[0])

    @overload
    def distance(self, x: Tensor) -> float: ...
    @overload
    def distance(self, x: Tensor, *, batch: bool) -> float | Tensor: ...
    def distance(self, x: Tensor, *, batch: bool = False) -> float | Tensor:
        """Euclidean distance to the set. With ``batch=True``: (n,) in float64."""
        rows, shape = self._stack(x, batch)
        check_finite(rows)
        rows = rows.double()
        gaps = row_norms(rows - self._project(rows, shape))
        return gaps if batch else float(gaps[0])

    def accepts(self, atom: Atom, shape: Shape, tol: float = 1e-6) -> bool:
        """Whether a received atom is of the right kind and shape and lies in the set, without making it dense."""
        shape = tuple(shape)
        if atom.batched or tuple(atom.shape) != shape or type(atom) not in self.readers(shape):
            return False
        return self._accepts(atom, shape, tol)

    def net_readers(self, shape: Shape, weights: Sequence[float]) -> Mapping[type[Atom], ReadAtom]:
        """How to read what `mix` makes of this set's atoms with these weights."""
        return mixture_readers(self.readers(shape), shape, weights) if len(weights) > 1 else self.readers(shape)

    def random_point(
        self, shape: Shape, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """A random point of the set: a random mixture of the atoms for a few random directions."""
        g = torch.randn(8, *shape, generator=generator, dtype=torch.float64)
        atoms = self.lmo(g, batch=True)
        weights = -torch.rand(8, generator=generator, dtype=torch.float64).clamp(min=1e-12).log()
        weights /= weights.sum()
        point = weights @ atoms.dense(torch.float64).reshape(8, -1)
        return point.reshape(shape).to(dtype)

    def bind(self, parameters: nn.Module | Shapes) -> ConstraintSet:
        """The set on the flat vector of all of a model's parameters, in ``named_parameters()`` order.

        A vector set acts on that vector. A matrix set acts on ``[W | b]`` of a model that is one linear layer.
        """
        from fedfw.sets.product import bind_to_model  # the model-wide sets are built from this class

        return bind_to_model(self, shapes_of(parameters))

    # --- helpers ---

    def __eq__(self, other: object) -> bool:
        """Whether the other is the same kind of set with the same numbers."""
        return type(other) is type(self) and all(
            _same(getattr(self, name), getattr(other, name)) for name in parameters_of(type(self))
        )

    def __hash__(self) -> int:
        return hash((type(self), repr(self)))

    def _stack(self, x: Tensor, batch: bool) -> tuple[Tensor, Shape]:
        """The tensor as (n, p) and the parameter's shape."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"expected a floating-point tensor, got {kind}")
        shape = tuple(x.shape[1:] if batch else x.shape)
        if batch and x.ndim == 0:
            raise ValueError("batch=True needs a leading client axis, got a scalar")
        if x.numel() == 0:
            raise ValueError(f"an empty tensor of shape {tuple(x.shape)} has no points")
        self._check_shape(shape)
        rows = x.detach().reshape(-1 if batch else 1, prod(shape))
        return (rows if rows.element_size() >= 4 else rows.float()), shape


def shapes_of(parameters: nn.Module | Shapes) -> dict[str, Shape]:
    """Names and shapes of what is trained, in order."""
    if isinstance(parameters, nn.Module):
        return {name: tuple(p.shape) for name, p in parameters.named_parameters() if p.requires_grad}
    return {name: tuple(shape) for name, shape in parameters.items()}


def check_finite(rows: Tensor) -> None:
    """Refuse rows (n, p) with a NaN or an infinity."""
    # A sum is one fast pass and not finite whenever an entry is not; only then is it worth looking closer.
    if holds(rows.sum(1).isfinite()):
        return
    bad = (~rows.isfinite()).any(1).nonzero().flatten().tolist()
    if bad:
        named = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
        raise NonFiniteError(f"NaN or infinity in row {named} of {len(rows)}", bad)


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is not Tensor and type(other) is not Tensor and one == other


def positive(owner: object, **values: float) -> None:
    """Refuse numbers that are not positive and finite."""
    for name, value in values.items():
        if not isinstance(value, int | float) or not isfinite(value) or value <= 0:
            raise ValueError(f"{type(owner).__name__}: {name}={value!r}, expected a positive finite number")


def positive_integer(owner: object, **values: int) -> None:
    """Refuse anything but whole numbers from 1 up."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{type(owner).__name__}: {name}={value!r}, expected a whole number of at least 1")


def parameters_of(constraint: type[ConstraintSet]) -> tuple[str, ...]:
    """Names of what the set is built from, in order."""
    return tuple(f.name for f in fields(constraint) if f.init) if is_dataclass(constraint) else ()
