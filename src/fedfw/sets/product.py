"""One set for a whole model: products over named parameters, and a matrix set on a linear layer's [W | b]."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedfw.atoms import Atom, ReadAtom, Rearranged, TupleAtom
from fedfw.atoms.composite import split_columns
from fedfw.sets.base import ConstraintSet, Request, Shape, Shapes, shapes_of


class Product:
    """A set for each parameter, by name; names may have wildcards and the first that fits counts.

    ``Product({"fc.weight": NuclearBall(5), "*.bias": LinfBall(1), "*": L2Ball(10)}).bind(model)`` is a constraint set
    on the flat vector of the model's parameters. ``bind`` also takes a mapping of names to shapes.
    """

    name: ClassVar[str] = "product"

    def __init__(self, sets: Mapping[str, ConstraintSet]) -> None:
        if not sets:
            raise ValueError("Product: expected at least one name with a set, got none")
        for pattern, part in sets.items():
            if not isinstance(part, ConstraintSet):
                raise TypeError(f"Product: {pattern!r} has {part!r}, expected a constraint set")
        self.sets = dict(sets)

    def __repr__(self) -> str:
        return f"Product({self.sets!r})"

    def bind(self, parameters: nn.Module | Shapes) -> BoundProduct:
        """The product on the flat vector of the parameters, in their order."""
        shapes = shapes_of(parameters)
        if not shapes:
            raise ValueError("Product: there are no parameters to constrain")
        chosen: dict[str, ConstraintSet] = {}
        used = set()
        for name in shapes:
            pattern = next((p for p in self.sets if fnmatchcase(name, p)), None)
            if pattern is None:
                raise ValueError(f"Product: no set for parameter {name!r}; known: {', '.join(self.sets)}")
            chosen[name] = self.sets[pattern]
            used.add(pattern)
        unused = [pattern for pattern in self.sets if pattern not in used and pattern != "*"]
        if unused:
            raise ValueError(
                f"Product: no parameter is left for {', '.join(unused)} (the first name that fits counts); "
                f"there are {', '.join(shapes)}"
            )
        return BoundProduct(tuple(shapes), tuple(chosen.values()), tuple(shapes.values()))


@dataclass(frozen=True, eq=False)
class BoundProduct(ConstraintSet):
    """A product of sets over consecutive pieces of one flat vector; made by `Product.bind`."""

    name: ClassVar[str] = "product"
    summary: ClassVar[str] = "a set for each parameter"

    names: tuple[str, ...]
    parts: tuple[ConstraintSet, ...]
    shapes: tuple[Shape, ...]
    is_polytope: bool = field(init=False)  # type: ignore[misc]
    diameter_is_exact: bool = field(init=False)  # type: ignore[misc]

    def __post_init__(self) -> None:
        for name, part, shape in zip(self.names, self.parts, self.shapes, strict=True):
            try:
                part._check_shape(shape)
            except ValueError as error:
                raise ValueError(f"parameter {name!r}: {error}") from None
        object.__setattr__(self, "is_polytope", all(part.is_polytope for part in self.parts))
        object.__setattr__(self, "diameter_is_exact", all(part.diameter_is_exact for part in self.parts))

    @property
    def strongly_convex(self) -> bool:  # type: ignore[override]
        """A product is strongly convex only when it has one part."""
        return len(self.parts) == 1 and self.parts[0].strongly_convex

    @property
    def has_projection(self) -> bool:
        return all(part.has_projection for part in self.parts)

    @property
    def fixed_size(self) -> int | None:
        return sum(map(prod, self.shapes))

    def _check_shape(self, shape: Shape) -> None:
        size = self.fixed_size
        if shape != (size,):
            raise ValueError(f"expected the flat vector of all parameters, shape ({size},), got {shape}")

    def _pieces(self, x: Tensor) -> Sequence[Tensor]:
        return split_columns(x, [prod(shape) for shape in self.shapes])

    def _each(self, x: Tensor, apply: Callable[[ConstraintSet, Tensor, Shape], Tensor]) -> list[Tensor]:
        return [
            apply(part, piece, shape)
            for part, piece, shape in zip(self.parts, self._pieces(x), self.shapes, strict=True)
        ]

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        warm = request.warm.parts if isinstance(request.warm, TupleAtom) else [None] * len(self.parts)
        atoms, bounds = [], []
        for part, piece, piece_shape, piece_warm in zip(self.parts, self._pieces(g), self.shapes, warm, strict=True):
            piece = piece.contiguous()
            atom = part._lmo(piece, piece_shape, Request(request.precision, request.tol, piece_warm))
            atoms.append(atom)
            bounds.append(atom._dot(piece) if atom.bound is None else atom.bound)
        return TupleAtom(
            shape=shape,
            batched=True,
            precision=request.precision,
            bound=torch.stack(bounds).sum(0),
            parts=tuple(atoms),
        )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return torch.stack(self._each(x, lambda part, piece, s: part._violation(piece, s))).amax(0)

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        def nearest(part: ConstraintSet, piece: Tensor, s: Shape) -> Tensor:
            inside = not part.has_projection and bool((part._violation(piece, s) <= 0).all())
            return piece if inside else part._project(piece, s)

        return torch.cat(self._each(x, nearest), 1)

    def _accepts(self, atom: Atom, shape: Shape, tol: float) -> bool:
        return (
            isinstance(atom, TupleAtom)
            and len(atom.parts) == len(self.parts)
            and all(
                part.accepts(piece, s, tol) for part, piece, s in zip(self.parts, atom.parts, self.shapes, strict=True)
            )
        )

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        parts = [part.readers(s) for part, s in zip(self.parts, self.shapes, strict=True)]
        return {TupleAtom: partial(TupleAtom.read, shape=shape, parts=parts)}

    def net_readers(self, shape: Shape, weights: Sequence[float]) -> Mapping[type[Atom], ReadAtom]:
        parts = [part.net_readers(s, weights) for part, s in zip(self.parts, self.shapes, strict=True)]
        return {TupleAtom: partial(TupleAtom.read, shape=shape, parts=parts)}

    def diameter(self, shape: Shape) -> float:
        return math.hypot(*(part.diameter(s) for part, s in zip(self.parts, self.shapes, strict=True)))

    def _norms(self, shape: Shape) -> dict[str, float]:
        from fedfw.sets.enclosing import largest_norm

        def norms(norm: str) -> list[float]:
            return [largest_norm(part, norm, s) for part, s in zip(self.parts, self.shapes, strict=True)]

        return {"l1": sum(norms("l1")), "l2": math.hypot(*norms("l2")), "linf": max(norms("linf"))}


@dataclass(frozen=True, eq=False)
class LinearLayerSet(ConstraintSet):
    """A matrix set on [W | b] (out x (in + 1)) of a linear layer, seen on the flat vector (W row by row, then b)."""

    name: ClassVar[str] = "linear-layer"
    summary: ClassVar[str] = "a matrix set on [W | b]"

    inner: ConstraintSet
    rows: int
    columns: int

    def __post_init__(self) -> None:
        self.inner._check_shape(self._matrix)

    @property
    def _matrix(self) -> Shape:
        return (self.rows, self.columns + 1)

    @property
    def strongly_convex(self) -> bool:  # type: ignore[override]
        return self.inner.strongly_convex

    @property
    def is_polytope(self) -> bool:  # type: ignore[override]
        return self.inner.is_polytope

    @property
    def has_projection(self) -> bool:
        return self.inner.has_projection

    @property
    def fixed_size(self) -> int | None:
        return prod(self._matrix)

    def _check_shape(self, shape: Shape) -> None:
        size = self.fixed_size
        if shape != (size,):
            raise ValueError(f"expected the layer's flat vector, shape ({size},), got {shape}")

    def _order(self, device: torch.device) -> Tensor:
        """Place in [W | b] of each coordinate of the flat vector."""
        return _flat_order(self._matrix, device)

    def _into_matrix(self, x: Tensor) -> Tensor:
        return torch.empty_like(x).index_copy_(1, self._order(x.device), x)

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        warm = request.warm.inner if isinstance(request.warm, Rearranged) else None
        inner = self.inner._lmo(self._into_matrix(g), self._matrix, Request(request.precision, request.tol, warm))
        return Rearranged.wrap(inner, self._order(g.device), shape)

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return self.inner._violation(self._into_matrix(x), self._matrix)

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        return self.inner._project(self._into_matrix(x), self._matrix)[:, self._order(x.device)]

    def accepts(self, atom: Atom, shape: Shape, tol: float = 1e-6) -> bool:
        if not isinstance(atom, Rearranged) or tuple(atom.shape) != tuple(shape):
            return False
        order = self._order(atom.order.device)
        return (atom.order is order or torch.equal(atom.order, order)) and self.inner.accepts(
            atom.inner, self._matrix, tol
        )

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        order = self._order(torch.device("cpu"))

        def rearranged(read: ReadAtom) -> ReadAtom:
            return lambda reader, precision: Rearranged.wrap(read(reader, precision), order, shape)

        return {kind: rearranged(read) for kind, read in self.inner.readers(self._matrix).items()}

    def diameter(self, shape: Shape) -> float:
        return self.inner.diameter(self._matrix)

    def _norms(self, shape: Shape) -> dict[str, float]:
        from fedfw.sets.enclosing import largest_norm

        return {norm: largest_norm(self.inner, norm, self._matrix) for norm in ("l1", "l2", "linf")}


@lru_cache(maxsize=32)
def _flat_order(matrix: Shape, device: torch.device) -> Tensor:
    places = torch.arange(prod(matrix), device=device).reshape(matrix)
    return torch.cat([places[:, :-1].flatten(), places[:, -1]])


def bind_to_model(constraint: ConstraintSet, shapes: Shapes) -> ConstraintSet:
    """What `ConstraintSet.bind` returns."""
    if not shapes:
        raise ValueError("there are no parameters to constrain")
    size = sum(map(prod, shapes.values()))
    if not _wants_matrix(constraint):
        constraint._check_shape((size,))
        return constraint
    weight, *rest = shapes.values()
    if len(weight) == 2 and rest == [(weight[0],)]:
        return LinearLayerSet(constraint, *weight)
    if not rest and len(weight) >= 2:
        return BoundProduct(tuple(shapes), (constraint,), (weight,))
    raise ValueError(
        f"{constraint!r} acts on matrices and this model is not one linear layer ({', '.join(shapes)}): "
        'give a set for each parameter, Product({"name": set, "*": ...})'
    )


def _wants_matrix(constraint: ConstraintSet) -> bool:
    return constraint.needs_matrix or isinstance(getattr(constraint, "groups", None), str)
