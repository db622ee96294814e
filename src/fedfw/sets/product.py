"""Sets for a whole model: products of sets over named parameters, and a matrix set on a linear
layer's [W | b].
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedfw.atoms import Atom, ReadAtom, Rearranged, TupleAtom
from fedfw.atoms.composite import split_columns
from fedfw.sets.base import ConstraintSet, Request, Shape, Shapes, shapes_of


class Product:
    """A different set for each parameter of a model, chosen by the parameter's name.

    It suits networks in which, for example, weight matrices should have low rank and biases should
    be bounded. A product becomes a `ConstraintSet` by `bind`, which applies it to a model. An atom
    of the product is a tuple with an atom of each set, in the order of the parameters.

    Parameters
    ----------
    sets : mapping from str to ConstraintSet, str or Oracle
        Sets by parameter name, texts such as ``"l1:10"``, or objects as `OracleSet` takes them. A
        name may contain wildcards (``*``, ``?``, ``[...]``); each parameter takes the first name
        that matches it, so a final ``"*"`` covers the parameters that are left.

    Raises
    ------
    ValueError
        If there are no sets.
    TypeError
        If a value is not a constraint set.

    Notes
    -----
    The oracle calls the oracle of every set on its piece of g, and the projection does the same.
    Parameters of one shape with equal spectral sets, such as those of a transformer's blocks, share
    a call, because a GPU treats a long stack of matrices faster than several short ones. The
    squared diameter is the sum of the squared diameters.

    Examples
    --------
    >>> import torch, fedfw
    >>> model = torch.nn.Linear(4, 3)
    >>> product = fedfw.Product({"weight": fedfw.NuclearBall(5.0), "*": fedfw.LinfBall(1.0)}).bind(
    ...     model
    ... )
    >>> product.lmo(torch.ones(15)).kind
    'rank 1 + sign vector'
    """

    name: ClassVar[str] = "product"

    def __init__(self, sets: Mapping[str, Any]) -> None:
        """Store a set, which may be given as text, for each pattern of parameter names, in order:
        of the patterns that match a name the first is used.
        """
        from fedfw.sets.registry import as_set  # fedfw.sets.registry imports this module

        if not sets:
            raise ValueError("Product: expected at least one name with a set, got none")
        self.sets: dict[str, ConstraintSet] = {}
        for pattern, given in sets.items():
            part = as_set(given)
            if not isinstance(part, ConstraintSet):
                raise TypeError(f"Product: {pattern!r} has {part!r}, expected a constraint set")
            self.sets[pattern] = part

    def __repr__(self) -> str:
        return f"Product({self.sets!r})"

    def bind(self, parameters: nn.Module | Shapes) -> BoundProduct:
        """Return the product as a constraint set on the flat vector of a model's parameters.

        Parameters
        ----------
        parameters : nn.Module or mapping from str to tuple of int
            The model, of which all trainable parameters are constrained, or the names and shapes of
            the parameters.

        Returns
        -------
        BoundProduct
            A set for tensors of shape (size,), where ``size`` is the total number of entries.

        Raises
        ------
        ValueError
            If there are no parameters, a parameter matches no name, a name other than ``"*"``
            matches no parameter, or a set is not defined for the shape of its parameter.

        Examples
        --------
        >>> import torch, fedfw
        >>> fedfw.Product({"*": fedfw.L2Ball(3.0)}).bind({"w": (2, 2), "b": (2,)}).entries
        6
        """
        shapes = shapes_of(parameters)
        if not shapes:
            raise ValueError("Product: there are no parameters to constrain")
        chosen: dict[str, ConstraintSet] = {}
        used = set()
        for name in shapes:
            pattern = next((p for p in self.sets if fnmatchcase(name, p)), None)
            if pattern is None:
                raise ValueError(
                    f"Product: no set for parameter {name!r}; known: {', '.join(self.sets)}"
                )
            chosen[name] = self.sets[pattern]
            used.add(pattern)
        unused = [pattern for pattern in self.sets if pattern not in used and pattern != "*"]
        if unused:
            raise ValueError(
                f"Product: no parameter is left for {', '.join(unused)} (each takes the first name "
                f"that matches it); there are {', '.join(shapes)}"
            )
        return BoundProduct(tuple(shapes), tuple(chosen.values()), tuple(shapes.values()))


class FlatSet(ConstraintSet):
    """Base class of the sets on flat vectors that are made of sets of their parts."""

    @abstractmethod
    def _parts(self) -> list[tuple[ConstraintSet, Shape]]:
        """Return the sets of the parts, each with the shape of what it acts on."""

    def _pieces(self, x: Tensor) -> Sequence[Tensor]:
        """Return what each part acts on of the flat vectors x (n, p): the columns of its parameter,
        as views.
        """
        return split_columns(x, [prod(shape) for _, shape in self._parts()])

    def _joined(self, pieces: Sequence[Tensor]) -> Tensor:
        """Return the flat vectors (n, p) of such pieces."""
        return torch.cat(list(pieces), 1)

    def _each(
        self, x: Tensor, apply: Callable[[ConstraintSet, Tensor, Shape], Tensor]
    ) -> list[Tensor]:
        """Return the results of ``apply(set, piece, shape)`` for all parts, in order."""
        pairs = zip(self._parts(), self._pieces(x), strict=True)
        return [apply(part, piece, shape) for (part, shape), piece in pairs]

    @property
    def is_polytope(self) -> bool:  # type: ignore[override]
        """Return whether all parts are polytopes."""
        return all(part.is_polytope for part, _ in self._parts())

    @property
    def diameter_is_exact(self) -> bool:  # type: ignore[override]
        """Return whether the diameters of all parts are exact."""
        return all(part.diameter_is_exact for part, _ in self._parts())

    @property
    def has_projection(self) -> bool:
        return all(part.has_projection for part, _ in self._parts())

    @property
    def entries(self) -> int:
        """Return the number of entries of the flat vector."""
        return sum(prod(shape) for _, shape in self._parts())

    def _check_shape(self, shape: Shape) -> None:
        """Refuse any shape but that of the flat vector of all parameters."""
        size = self.entries
        if shape != (size,):
            raise ValueError(
                f"expected the flat vector of all parameters, shape ({size},), got {shape}"
            )

    def _violation(self, x: Tensor, shape: Shape) -> Tensor:
        return torch.stack(self._each(x, lambda part, piece, s: part._violation(piece, s))).amax(0)

    def _project(self, x: Tensor, shape: Shape) -> Tensor:
        """Return the projections of the rows of x, part by part. A part without a projection is
        left as it is where all rows lie inside of it, and raises NoProjectionError otherwise.
        """

        def nearest(part: ConstraintSet, piece: Tensor, s: Shape) -> Tensor:
            """Return the projection of rows (n, p_part) on a part with parameters of shape s."""
            inside = not part.has_projection and bool((part._violation(piece, s) <= 0).all())
            if inside:
                return piece
            return part._nearest(piece, s)

        return self._joined(self._each(x, nearest))

    def _extent(self, shape: Shape) -> float:
        # a point that is near for one part can be far for another: each part finds out for itself
        return math.inf

    def _is_coarse(self, shape: Shape, dtype: torch.dtype) -> bool:
        return any(part._frame(s, dtype).coarse for part, s in self._parts())

    def _round_into(self, x: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
        return self._joined(self._each(x, lambda part, piece, s: part._rounded(piece, s, dtype)))

    def _shrink(self, x: Tensor, shape: Shape, precision: torch.dtype) -> Tensor:
        return self._joined(self._each(x, lambda part, piece, s: part._shrink(piece, s, precision)))

    def _face(self, support: Tensor, shape: Shape) -> ConstraintSet | None:
        """Return the face of the only part; None where there are several."""
        (part, own_shape), *others = self._parts()
        if others:
            return None
        (places,) = self._joined([torch.arange(self.entries, device=support.device)[None]])
        return part._face(places[support], own_shape)

    def diameter(self, shape: Shape) -> float:
        return math.hypot(*(part.diameter(s) for part, s in self._parts()))

    def _norms(self, shape: Shape) -> dict[str, float]:
        """Return the largest norms of the whole vector from those of the parts: l1 norms add up, l2
        norms do so in squares, and of linf norms the largest counts.
        """
        from fedfw.sets.containment import largest_norm

        def norms(norm: str) -> list[float]:
            """Return each part's largest norm of this kind."""
            return [largest_norm(part, norm, s) for part, s in self._parts()]

        return {"l1": sum(norms("l1")), "l2": math.hypot(*norms("l2")), "linf": max(norms("linf"))}


@dataclass(frozen=True, eq=False)
class BoundProduct(FlatSet):
    """A product of sets over consecutive pieces of one flat vector, made by `Product.bind`.

    Parameters
    ----------
    names : tuple of str
        Names of the parameters.
    parts : tuple of ConstraintSet
        The set of each parameter.
    shapes : tuple of tuple of int
        The shape of each parameter; the flat vector has the sum of their sizes.

    Raises
    ------
    ValueError
        If a set is not defined for the shape of its parameter.

    Examples
    --------
    >>> import torch, fedfw
    >>> product = fedfw.Product({"w": fedfw.Simplex(1.0), "b": fedfw.L2Ball(5.0)}).bind(
    ...     {"w": (3,), "b": (2,)}
    ... )
    >>> product.lmo(torch.tensor([3.0, 1.0, 2.0, -3.0, 4.0])).dense().round(decimals=4).tolist()
    [0.0, 1.0, 0.0, 3.0, -4.0]
    """

    name: ClassVar[str] = "product"

    names: tuple[str, ...]
    parts: tuple[ConstraintSet, ...]
    shapes: tuple[Shape, ...]

    def __post_init__(self) -> None:
        """Check that every part fits its parameter's shape."""
        for name, part, shape in zip(self.names, self.parts, self.shapes, strict=True):
            try:
                part._check_shape(shape)
            except ValueError as error:
                raise ValueError(f"parameter {name!r}: {error}") from None

    def _parts(self) -> list[tuple[ConstraintSet, Shape]]:
        return list(zip(self.parts, self.shapes, strict=True))

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        """Return each part's atom; parameters with the same set and shape share one call of its
        oracle.
        """
        pieces = [piece.contiguous() for piece in self._pieces(g)]
        atoms: dict[int, Atom] = {}
        for indices in self._calls():  # of parts with one set and one shape
            first = indices[0]
            together = pieces[first]
            if len(indices) > 1:
                together = torch.cat([pieces[i] for i in indices])
            answer = self.parts[first]._lmo(together, self.shapes[first], request)
            atoms |= zip(indices, _parted(answer, len(indices)), strict=True)
        parts = tuple(atoms[i] for i in range(len(pieces)))
        # The bound on the minimum is the sum of those of the parts; an exact part's is its product.
        bounds = [
            part._dot(piece) if part.bound is None else part.bound
            for part, piece in zip(parts, pieces, strict=True)
        ]
        return TupleAtom(
            shape=shape,
            batched=True,
            precision=request.precision,
            bound=torch.stack(bounds).sum(0),
            parts=parts,
        )

    def _calls(self) -> list[list[int]]:
        """Return the numbers of the parameters that share one call of the oracle: those with equal
        sets and shapes.
        """
        calls: dict[object, list[int]] = {}
        for i, (part, shape) in enumerate(zip(self.parts, self.shapes, strict=True)):
            calls.setdefault((part, shape) if part.likes_long_stacks else i, []).append(i)
        return list(calls.values())

    def pieces(self, shape: Shape) -> tuple[int, ...]:
        return tuple(map(prod, self.shapes))

    def _accepts(self, atom: Atom, shape: Shape, tol: float) -> bool:
        return self._all_accept(atom, lambda part, piece, s: part.accepts(piece, s, tol))

    def accepts_net(self, atom: Atom, shape: Shape, tol: float = 1e-6) -> bool:
        fits = not atom.batched and tuple(atom.shape) == tuple(shape)
        return fits and self._all_accept(
            atom, lambda part, piece, s: part.accepts_net(piece, s, tol)
        )

    def _all_accept(self, atom: Atom, accept: Callable[[ConstraintSet, Atom, Shape], bool]) -> bool:
        """Return whether ``accept(set, atom, shape)`` says yes for each parameter."""
        return (
            isinstance(atom, TupleAtom)
            and len(atom.parts) == len(self.parts)
            and all(accept(*part) for part in zip(self.parts, atom.parts, self.shapes, strict=True))
        )

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        parts = [part.readers(s) for part, s in zip(self.parts, self.shapes, strict=True)]
        return {TupleAtom: partial(TupleAtom.read, shape=shape, parts=parts)}

    def net_readers(self, shape: Shape, weights: Sequence[float]) -> Mapping[type[Atom], ReadAtom]:
        parts = [
            part.net_readers(s, weights) for part, s in zip(self.parts, self.shapes, strict=True)
        ]
        return {TupleAtom: partial(TupleAtom.read, shape=shape, parts=parts)}


def _parted(atom: Atom, count: int) -> list[Atom]:
    """Return a stack of ``count`` times n atoms as ``count`` stacks of n."""
    if count == 1:
        return [atom]
    tensors = {name: getattr(atom, name).chunk(count) for name in (*atom.stacked, "bound")}
    return [
        replace(atom, **{name: chunks[i] for name, chunks in tensors.items()}) for i in range(count)
    ]


@dataclass(frozen=True, eq=False)
class LinearLayerSet(FlatSet):
    """A matrix set on the matrix [W | b] of a linear layer, made by `ConstraintSet.bind`.

    The matrix has one row per output, and its last column is the bias. The set itself acts on the
    flat vector of the layer, which holds W row by row and then b.

    Parameters
    ----------
    inner : ConstraintSet
        The matrix set.
    rows : int
        Number of outputs of the layer.
    columns : int
        Number of inputs of the layer, without the bias.

    Raises
    ------
    ValueError
        If the matrix set is not defined for a matrix of shape (rows, columns + 1).

    Examples
    --------
    >>> import torch, fedfw
    >>> bound = fedfw.SpectralBall(1.0).bind(torch.nn.Linear(2, 3))
    >>> bound.entries, bound.lmo(torch.ones(9)).dense().shape
    (9, torch.Size([9]))
    """

    name: ClassVar[str] = "linear-layer"

    inner: ConstraintSet
    rows: int
    columns: int

    def __post_init__(self) -> None:
        self.inner._check_shape(self._matrix)

    @property
    def _matrix(self) -> Shape:
        """Return the shape of [W | b]."""
        return (self.rows, self.columns + 1)

    def _parts(self) -> list[tuple[ConstraintSet, Shape]]:
        return [(self.inner, self._matrix)]

    def _order(self, device: torch.device) -> Tensor:
        """Return the place in [W | b] of each coordinate of the flat vector."""
        return _flat_order(self._matrix, device)

    def _pieces(self, x: Tensor) -> Sequence[Tensor]:
        """Return the flat vectors (n, p) with their coordinates in the order of [W | b]."""
        return [torch.empty_like(x).index_copy_(1, self._order(x.device), x)]

    def _joined(self, pieces: Sequence[Tensor]) -> Tensor:
        return pieces[0][:, self._order(pieces[0].device)]

    def _lmo(self, g: Tensor, shape: Shape, request: Request) -> Atom:
        inner = self.inner._lmo(self._pieces(g)[0], self._matrix, request)
        return Rearranged.wrap(inner, self._order(g.device), shape)

    def pieces(self, shape: Shape) -> tuple[int, ...]:
        return self.rows * self.columns, self.rows

    def accepts(self, atom: Atom, shape: Shape, tol: float = 1e-6) -> bool:
        """Return whether an atom is one of the inner set, rearranged in this layer's order."""
        if not isinstance(atom, Rearranged) or tuple(atom.shape) != tuple(shape):
            return False
        order = self._order(atom.order.device)
        return (atom.order is order or torch.equal(atom.order, order)) and self.inner.accepts(
            atom.inner, self._matrix, tol
        )

    def readers(self, shape: Shape) -> Mapping[type[Atom], ReadAtom]:
        """Return the functions that decode an atom, by kind: those of the inner set, with the
        coordinates rearranged in this layer's order.
        """
        order = self._order(torch.device("cpu"))

        def rearranged(read: ReadAtom) -> ReadAtom:
            """Return a reader of the inner set that rearranges the atom it reads."""
            return lambda reader, precision: Rearranged.wrap(read(reader, precision), order, shape)

        return {kind: rearranged(read) for kind, read in self.inner.readers(self._matrix).items()}


@lru_cache(maxsize=32)
def _flat_order(matrix: Shape, device: torch.device) -> Tensor:
    """Return for each coordinate of the flat vector, its place in the row-major matrix [W | b]."""
    places = torch.arange(prod(matrix), device=device).reshape(matrix)
    return torch.cat([places[:, :-1].flatten(), places[:, -1]])


def bind_to_model(constraint: ConstraintSet, shapes: Shapes) -> ConstraintSet:
    """Return the set on the flat vector of a model's parameters, as `ConstraintSet.bind` returns
    it.

    Parameters
    ----------
    constraint : ConstraintSet
        A vector set or a matrix set.
    shapes : mapping from str to tuple of int
        Names and shapes of the parameters, in order.

    Returns
    -------
    ConstraintSet
        The set itself, or a matrix set in the form of a `LinearLayerSet` or a `BoundProduct`.

    Raises
    ------
    ValueError
        If there are no parameters, or a matrix set meets a model that is not one linear layer.

    Examples
    --------
    >>> import fedfw
    >>> from fedfw.sets.product import bind_to_model
    >>> bind_to_model(fedfw.L1Ball(1.0), {"weight": (3, 4), "bias": (3,)})
    L1Ball(r=1.0)
    """
    if not shapes:
        raise ValueError("there are no parameters to constrain")
    size = sum(map(prod, shapes.values()))
    if not constraint.needs_matrix:
        constraint._check_shape((size,))
        return constraint
    weight, *rest = shapes.values()
    # One linear layer with its bias; or a single matrix or kernel.
    if len(weight) == 2 and rest == [(weight[0],)]:
        return LinearLayerSet(constraint, *weight)
    if not rest and len(weight) >= 2:
        return BoundProduct(tuple(shapes), (constraint,), (weight,))
    raise ValueError(
        f"{constraint!r} acts on matrices and this model is not one linear layer "
        f"({', '.join(shapes)}): "
        'give a set for each parameter, Product({"name": set, "*": ...})'
    )
