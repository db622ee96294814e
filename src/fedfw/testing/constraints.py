"""A check for constraint sets, those of fedfw and others."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from fedfw.atoms import Atom
from fedfw.errors import AtomError, InfeasibleError, NonFiniteError
from fedfw.sets.base import ConstraintSet, Shape
from fedfw.sets.registry import as_set

Reference = Callable[[Tensor], float]
"""Maps g (``shape``, float64) to the least value of <g, u> over the set, found independently."""


def check_constraint(
    constraint: Any,
    shape: Shape,
    *,
    reference: Reference | None = None,
    radius_scaled: Callable[[float], ConstraintSet] | None = None,
    trials: int = 12,
    tol: float = 1e-5,
    seed: int = 0,
) -> None:
    """Check that a constraint set keeps its promises for a parameter of ``shape``.

    An AssertionError names the promise that is broken, the value, its bound and the dtype.

    - the oracle's atom lies in the set and no point of the set does better: random points, other
      atoms, the projection of a far point, and ``reference`` when given;
    - points beyond an atom, which the oracle proves to be outside, are refused;
    - scaling g by a power of two leaves the atom as it is; g = 0 gives a point of the set; NaN and
      infinity raise `NonFiniteError` with the row; a tie goes the same way every time;
    - a stack gives what one call a row gives, in float16, float32 and float64;
    - an atom survives its bytes exactly, in each precision, inside the set; ``nbytes`` is their
      length; cut or lengthened bytes raise `AtomError`; ``accepts`` agrees;
    - ``step``, ``add_sum_to`` and ``dot`` agree with the dense point;
    - the projection is idempotent and non-expansive, and the oracle certifies it: w = P(v) iff
      <v - w, s - w> <= 0 for s = lmo(w - v); points that are very far away are projected into the
      set, or refused with `InfeasibleError`;
    - the diameter bounds all distances, and for sets with ``diameter_is_exact`` some pair comes
      near it where the extreme points can be searched;
    - ``radius_scaled(c)``, the set with its radius times c, has c times the atoms.

    Parameters
    ----------
    constraint : ConstraintSet or Oracle
        The set, or an object with methods ``lmo(g)`` and ``diameter(shape)``; see `OracleSet`.
    shape : tuple of int
        Of a parameter that the set is for.
    reference : callable, optional
        g (``shape``, float64) -> the least value of <g, u> over the set, found independently.
    radius_scaled : callable, optional
        c -> the set with its radius times c.
    trials, seed : int
        How many random directions are tried, and where they come from.
    tol : float
        Allowed error relative to the size of the numbers compared (atoms are float32 by default).

    Examples
    --------
    >>> import fedfw
    >>> fedfw.testing.check_constraint(
    ...     fedfw.L1Ball(2.0), (5,), reference=lambda g: -2 * float(g.abs().max())
    ... )
    """
    constraint = as_set(constraint)
    check = _Checker(constraint, tuple(shape), trials, tol, torch.Generator().manual_seed(seed))
    for part in (
        check.oracle,
        check.membership,
        check.rules,
        check.stacks,
        check.bytes,
        check.arithmetic,
        check.diameter,
    ):
        part()
    if reference is not None:
        check.against(reference)
    if constraint.has_projection:
        check.projection()
    if radius_scaled is not None:
        check.scaling(radius_scaled)


class _Checker:
    def __init__(
        self,
        constraint: ConstraintSet,
        shape: Shape,
        trials: int,
        tol: float,
        generator: torch.Generator,
    ) -> None:
        """Draw directions, and ask the oracle for their atoms."""
        self.set = constraint
        self.shape = shape
        self.tol = tol
        self.generator = generator
        self.G = self.gaussian(trials)
        self.atoms = constraint.lmo(self.G, batch=True)
        self.points = self.atoms.dense(torch.float64)
        self.size = max(
            float(self.points.flatten(1).norm(dim=1).max()), constraint.diameter(shape), 1e-300
        )

    def gaussian(self, count: int) -> Tensor:
        """Return random directions (count, *shape)."""
        return torch.randn(count, *self.shape, generator=self.generator, dtype=torch.float64)

    def allowed(self, g: Tensor) -> float:
        return self.tol * self.size * max(1.0, float(g.norm()))

    def at_most(self, value: float | Tensor, bound: float, what: str, dtype: torch.dtype) -> None:
        """Refuse a number above its bound, or NaN."""
        if not float(value) <= bound:
            raise AssertionError(
                f"{self.set!r}, {what}: {float(value):.6g}, expected at most {bound:.6g} in {dtype}"
            )

    def inside(self, x: Tensor, what: str, dtype: torch.dtype, tol: float = 1e-6) -> None:
        """Refuse a point outside of the set."""
        if not self.set.contains(x, tol):
            found = float(self.set._violation(x.double().reshape(1, -1), self.shape)[0])
            self.at_most(found, tol, f"{what} lies outside, at a relative distance", dtype)
            raise AssertionError(f"{self.set!r}, {what} is not finite: {x} in {dtype}")

    def equal(self, found: Tensor, expected: Tensor, what: str, dtype: torch.dtype) -> None:
        """Refuse tensors of which a number differs."""
        if not torch.equal(found, expected):
            self.at_most((found - expected).abs().max(), 0.0, what, dtype)
            raise AssertionError(f"{self.set!r}, {what}: {found}, expected {expected} in {dtype}")

    def membership(self) -> None:
        """Check that points are refused whose product with g is less than the atom's."""
        for g, point in zip(self.G, self.points, strict=True):
            beyond = point - 0.1 * self.size * g / g.norm()
            if self.set.contains(beyond):
                raise AssertionError(
                    f"{self.set!r}, a point outside counts as inside: its product with g is "
                    f"{float((beyond * g).sum()):.6g}, expected at least "
                    f"{float((point * g).sum()):.6g}, the oracle's, in {beyond.dtype}"
                )

    def oracle(self) -> None:
        """Check that atoms lie inside, that nothing tried is better, and that bounds hold."""
        single_points = self.set.lmo(self.G.float(), batch=True).dense(torch.float64)
        for g, s, single_point in zip(self.G, self.points, single_points, strict=True):
            excess = (g * (single_point - s)).sum()
            self.at_most(excess, self.allowed(g), "loss of the oracle's point", torch.float32)
            self.inside(s, "the oracle's atom", torch.float64)
            best = float((g * s).sum())
            bound = self.set.lmo(g).bound
            if bound is not None:
                # A bound may exceed the exact value by rounding alone.
                rounding = 1e-9 * self.size * float(g.norm())
                self.at_most(bound[0], best + rounding, "bound above <g, s>", torch.float64)
            randoms = [
                self.set.random_point(self.shape, self.generator, torch.float64) for _ in range(4)
            ]
            for z in (*self.points, *randoms):
                advantage = best - (g * z).sum()
                self.at_most(
                    advantage, self.allowed(g), "a point beats the oracle by", torch.float64
                )
            for z in randoms:
                self.inside(z, "random_point", torch.float64, 1e-5)

    def against(self, reference: Reference) -> None:
        """Compare the oracle's values with those of a reference."""
        for g, atom in zip(self.G, self.atoms, strict=True):
            least = reference(g)
            value = float(atom.dot(g))
            what = f"<g, s> = {value:.6g} differs from the reference {least:.6g} by"
            self.at_most(abs(value - least), self.allowed(g), what, torch.float64)
            if atom.bound is not None:
                rounding = 1e-9 * self.size * float(g.norm())
                self.at_most(atom.bound[0], least + rounding, "bound", torch.float64)

    def rules(self) -> None:
        """Check that scale does not matter, that ties repeat, and that NaN is refused by row."""
        g = self.G[0]
        atom = self.set.lmo(g).dense(torch.float64)
        for power in (-40, -3, 5, 60):
            scaled = self.set.lmo(g * 2.0**power).dense(torch.float64)
            what = f"scaling g by 2^{power} changes the atom by"
            self.equal(scaled, atom, what, torch.float64)
        for direction in (torch.zeros_like(g), torch.ones_like(g), -torch.ones_like(g)):
            first_answer = self.set.lmo(direction).dense(torch.float64)
            self.inside(
                first_answer, f"the answer to g = {float(direction.sum()):g} / p", torch.float64
            )
            for _ in range(5):
                answer = self.set.lmo(direction).dense(torch.float64)
                self.equal(answer, first_answer, "equal calls differ by", torch.float64)
        for not_finite in (math.nan, math.inf, -math.inf):
            with_bad = self.G[:3].clone()
            with_bad[1].view(-1)[-1] = not_finite
            with _raises(NonFiniteError, f"of g with {not_finite}") as caught:
                self.set.lmo(with_bad, batch=True)
            rows = getattr(caught[0], "rows", None)
            assert rows == (1,), f"{self.set!r}: NonFiniteError names rows {rows}, expected (1,)"

    def stacks(self) -> None:
        """Check that a stack has the atoms of single calls."""
        for dtype in (torch.float16, torch.float32, torch.float64):
            G = self.G.to(dtype)
            stack = self.set.lmo(G, batch=True)
            assert len(stack) == len(G), f"{len(stack)} atoms of {len(G)} directions in {dtype}"
            for i, g in enumerate(G):
                error = (self.set.lmo(g).dense() - stack[i].dense()).abs().max()
                self.at_most(error, self.tol * self.size, "stack and single call differ by", dtype)

    def bytes(self) -> None:
        """Check that encodings have the length that is stated, decode to the same atom, and are
        refused when damaged.
        """
        total = 0
        for dtype in (torch.float32, torch.float16, torch.float64):
            for g in self.G[:4]:
                atom = self.set.lmo(g, precision=dtype)
                data = atom.to_bytes()
                total += len(data) if dtype == torch.float32 else 0
                assert atom.nbytes == len(data), (
                    f"nbytes is {atom.nbytes}, expected {len(data)}, the length of the encoding, "
                    f"in {dtype}"
                )
                decoded = Atom.from_bytes(data, self.set, self.shape)
                self.equal(decoded.dense(), atom.dense(), "decoding changes the atom by", dtype)
                assert decoded.to_bytes() == data, (
                    f"{self.set!r}: encoding is not canonical in {dtype}"
                )
                self.inside(decoded.dense(torch.float64), "the decoded atom", dtype)
                assert self.set.accepts(decoded, self.shape), (
                    f"{self.set!r}: accepts refuses a genuine atom, {decoded.dense()}, in {dtype}"
                )
                for damaged in (data[:-1], data + b"\0", b""):
                    with _raises(AtomError, f"of {len(damaged)} bytes for {len(data)} in {dtype}"):
                        Atom.from_bytes(damaged, self.set, self.shape)
        stack_nbytes = self.set.lmo(self.G[:4], batch=True).nbytes
        assert stack_nbytes == total, (
            f"a stack counts {stack_nbytes} bytes, expected {total} as its atoms send"
        )

    def arithmetic(self) -> None:
        """Check steps, sums and products of atoms against dense ones."""
        x = self.gaussian(len(self.G))
        eta = 0.3
        dense = self.atoms.dense(torch.float64)
        total = x[0] + 0.5 * dense.sum(0)
        products = (self.G * dense).flatten(1).sum(1)
        for what, result, expected, tol in (
            ("step", self.atoms.step(x.clone(), eta), (1 - eta) * x + eta * dense, 1e-9),
            ("add_sum_to", self.atoms.add_sum_to(x[0].clone(), 0.5), total, 1e-9),
            ("dot", self.atoms.dot(self.G), products, self.tol),
        ):
            error = ((result - expected).abs() - 1e-5 * expected.abs()).max()
            what = f"{what} differs, by more than 1e-5 of the numbers,"
            self.at_most(error, tol * self.size, what, torch.float64)

    def projection(self) -> None:
        """Check that projections are inside, nearest, idempotent and not expansive."""
        distant = self.gaussian(6) * 3 * self.size / math.sqrt(self.G[0].numel())
        W = self.set.project(distant, batch=True)
        double = torch.float64
        small = self.tol * self.size
        for v, w in zip(distant, W, strict=True):
            self.inside(w, "projection", double)
            s = self.set.lmo(w - v, precision=double).dense(double)
            distance = float((v - w).norm())
            excess = ((v - w) * (s - w)).sum()
            what = "the oracle refutes the projection, <v - w, s - w>"
            self.at_most(excess, self.tol * self.size * max(self.size, distance), what, double)
            projected_twice = self.set.project(w)
            self.at_most((projected_twice - w).norm(), small, "projecting twice moves by", double)
            error = abs(self.set.distance(v) - distance)
            allowed = max(1e-6 * distance, 1e-9 * self.size)
            self.at_most(error, allowed, "error of distance", double)
        for i in range(len(distant) - 1):
            after = float((W[i] - W[i + 1]).norm())
            before = float((distant[i] - distant[i + 1]).norm())
            self.at_most(after, before + small, "distance of two projections", double)
        inside = self.set.random_point(self.shape, self.generator, double)
        self.at_most(self.set.distance(inside), small, "distance of a point of the set", double)
        for power, dtype in ((30, torch.float32), (50, torch.float32), (60, double), (300, double)):
            with suppress(InfeasibleError):
                w = self.set.project((distant[0] * 2.0**power).to(dtype))
                self.inside(w, f"projection of a point 2^{power} times as far", dtype)

    def diameter(self) -> None:
        """Check that no two points are farther apart, and that some are as far where it is
        exact.
        """
        diameter = self.set.diameter(self.shape)
        opposite = self.set.lmo(-self.G, batch=True).dense(torch.float64)
        points = torch.cat([self.points, opposite]).flatten(1)
        widest = torch.cdist(points, points).max()
        allowed = diameter + self.tol * self.size
        self.at_most(widest, allowed, "distance of two points", torch.float64)
        if self.set.diameter_is_exact:
            expected = diameter * (1 - 1e-3)
            widest_of_search = _climb(self.set, self.shape, self.G, expected)
            self.at_most(
                expected, widest_of_search, "a diameter that no points attain", torch.float64
            )

    def scaling(self, radius_scaled: Callable[[float], ConstraintSet]) -> None:
        """Check that atoms scale with the radius, and that too large ones are refused."""
        for factor in (0.5, 4.0):
            atoms = radius_scaled(factor).lmo(self.G, batch=True)
            scaled = atoms.dense(torch.float64)
            expected = factor * self.points
            error = ((scaled - expected).abs() - 1e-5 * expected.abs()).max()
            what = f"atoms of {factor} times the radius differ by more than 1e-5, by"
            self.at_most(error, 1e-6 * self.size, what, torch.float64)
            for atom, point in zip(atoms, scaled, strict=True):
                if not self.set.contains(point, 1e-3):
                    assert not self.set.accepts(atom, self.shape), (
                        f"{self.set!r} accepts an atom that is {factor} times too large"
                    )


def _climb(constraint: ConstraintSet, shape: Shape, G: Tensor, enough: float) -> float:
    """Return the largest distance between extreme points s and t that alternating steps find, s =
    lmo(t - s) and t = lmo(s - t), which never reduce it; at most until it is ``enough``.

    From random starts, and from directions with few non-zeros, which random ones seldom look like.
    It ends with the first that is ``enough``.
    """
    # Directions e_j - e_(j+1) as well: random ones seldom have few non-zeros.
    sparse = torch.zeros_like(G).flatten(1)
    indices = torch.arange(len(G)) % sparse.shape[1]
    sparse[torch.arange(len(G)), indices] = 1
    sparse[torch.arange(len(G)), (indices + 1) % sparse.shape[1]] -= 1
    best = 0.0
    for start in (G, sparse.reshape(G.shape)):
        s, t = (constraint.lmo(sign * start, batch=True).dense(torch.float64) for sign in (1, -1))
        for _ in range(10):
            best = max(best, float((s - t).flatten(1).norm(dim=1).max()))
            if best >= enough:
                return best
            s = constraint.lmo(t - s, batch=True).dense(torch.float64)
            t = constraint.lmo(s - t, batch=True).dense(torch.float64)
    return best


@contextmanager
def _raises(kind: type[Exception], what: str) -> Iterator[list[Exception]]:
    """Check that the block raises an error of this kind; the error is appended to the list."""
    caught: list[Exception] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
        return
    raise AssertionError(f"no error {what}, expected {kind.__name__}")
