"""A check for people who write their own constraint set, which our tests run on every set of ours."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedfw.atoms import Atom
from fedfw.errors import AtomError, NonFiniteError
from fedfw.sets.base import ConstraintSet, Shape

Reference = Callable[[Tensor], float]
"""Maps g (``shape``, float64) to the least value of <g, u> over the set, found independently."""


def check_constraint(
    constraint: ConstraintSet,
    shape: Shape,
    *,
    reference: Reference | None = None,
    radius_scaled: Callable[[float], ConstraintSet] | None = None,
    trials: int = 12,
    tol: float = 1e-5,
    seed: int = 0,
) -> None:
    """Check that a constraint set keeps its promises for a parameter of ``shape``; AssertionError
    says which broke.

    - the oracle's atom lies in the set and no point of the set does better: random points, other
      atoms, the projection of a far point, and ``reference`` when given;
    - scaling g by a power of two leaves the atom as it is; g = 0 gives a point of the set; NaN and
      infinity raise `NonFiniteError` with the row; a tie goes the same way every time;
    - a stack gives what one call a row gives, in float32 and float64;
    - an atom survives its bytes exactly, in each precision, inside the set; ``nbytes`` is their
      length; cut or lengthened bytes raise `AtomError`; ``accepts`` agrees;
    - ``step``, ``add_to`` and ``dot`` agree with the dense point;
    - the projection is idempotent and non-expansive, and the oracle certifies it: w = P(v) iff <v -
      w, s - w> <= 0 for s = lmo(w - v); points that are very far away are projected into the set as
      well;
    - the diameter bounds all distances, and for sets with ``diameter_is_exact`` some pair comes
      near it where the extreme points can be searched;
    - ``radius_scaled(c)``, the set with its radius times c, has c times the atoms.

    Parameters
    ----------
    constraint : ConstraintSet
        The set.
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
    >>> fedfw.testing.check_constraint(fedfw.L1Ball(2.0), (5,), reference=lambda g: -2 * float(g.abs().max()))
    """
    check = _Checker(constraint, tuple(shape), trials, tol, torch.Generator().manual_seed(seed))
    for part in (
        check.oracle,
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
        self.set, self.shape, self.tol, self.generator = constraint, shape, tol, generator
        self.G = self.gaussian(trials)
        self.atoms = constraint.lmo(self.G, batch=True)
        self.points = self.atoms.dense(torch.float64)
        self.size = max(
            float(self.points.flatten(1).norm(dim=1).max()), constraint.diameter(shape), 1e-300
        )

    def gaussian(self, count: int) -> Tensor:
        return torch.randn(count, *self.shape, generator=self.generator, dtype=torch.float64)

    def allowed(self, g: Tensor) -> float:
        return self.tol * self.size * max(1.0, float(g.norm()))

    def oracle(self) -> None:
        single = self.set.lmo(self.G.float(), batch=True).dense(torch.float64)
        for g, s, rough in zip(self.G, self.points, single, strict=True):
            worse = float((g * (rough - s)).sum())
            assert worse <= self.allowed(g), f"in float32 the oracle's answer is worse by {worse}"
            assert self.set.contains(s), f"the oracle's atom lies outside {self.set!r}"
            best = float((g * s).sum())
            bound = self.set.lmo(g).bound
            assert bound is None or float(bound[0]) <= best + 1e-9 * self.size * float(g.norm()), (
                "bound above <g, s>"
            )
            randoms = [
                self.set.random_point(self.shape, self.generator, torch.float64) for _ in range(4)
            ]
            for z in (*self.points, *randoms):
                assert best <= float((g * z).sum()) + self.allowed(g), (
                    f"a point of {self.set!r} beats its oracle"
                )
            for z in randoms:
                assert self.set.contains(z, 1e-5), f"random_point lies outside {self.set!r}"

    def against(self, reference: Reference) -> None:
        for g, atom in zip(self.G, self.atoms, strict=True):
            least, found = reference(g), float(atom.dot(g))
            assert abs(found - least) <= self.allowed(g), (
                f"oracle: <g, s> = {found}, independently {least}"
            )
            if atom.bound is not None:
                bound = float(atom.bound[0])
                assert bound <= least + 1e-9 * self.size * float(g.norm()), (
                    f"bound {bound} above the minimum {least}"
                )

    def rules(self) -> None:
        g = self.G[0]
        plain = self.set.lmo(g).dense(torch.float64)
        for power in (-40, -3, 5, 60):
            scaled = self.set.lmo(g * 2.0**power).dense(torch.float64)
            assert torch.equal(scaled, plain), f"scaling g by 2^{power} changes the atom"
        zero = self.set.lmo(torch.zeros_like(g))
        assert self.set.contains(zero.dense(torch.float64)), "g = 0 gives a point outside the set"
        for tied in (torch.zeros_like(g), torch.ones_like(g), -torch.ones_like(g)):
            first = self.set.lmo(tied).dense(torch.float64)
            assert self.set.contains(first), "ties give a point outside the set"
            for _ in range(5):
                again = self.set.lmo(tied).dense(torch.float64)
                assert torch.equal(first, again), "ties go another way every time"
        for bad in (math.nan, math.inf, -math.inf):
            spoilt = self.G[:3].clone()
            spoilt[1].view(-1)[-1] = bad
            with _raises(NonFiniteError) as caught:
                self.set.lmo(spoilt, batch=True)
            rows = getattr(caught[0], "rows", None)
            assert rows == (1,), f"NonFiniteError names rows {rows}, expected (1,)"

    def stacks(self) -> None:
        for dtype in (torch.float32, torch.float64):
            G = self.G.to(dtype)
            stack = self.set.lmo(G, batch=True)
            assert len(stack) == len(G)
            for i, g in enumerate(G):
                one, of_stack = self.set.lmo(g).dense(), stack[i].dense()
                error = float((one - of_stack).abs().max())
                assert error <= self.tol * self.size, (
                    f"stack and single call differ by {error} in {dtype}"
                )

    def bytes(self) -> None:
        total = 0
        for precision in (torch.float32, torch.float16, torch.float64):
            for g in self.G[:4]:
                atom = self.set.lmo(g, precision=precision)
                data = atom.to_bytes()
                total += len(data) if precision == torch.float32 else 0
                assert atom.nbytes == len(data), (
                    f"nbytes says {atom.nbytes}, the encoding has {len(data)}"
                )
                back = Atom.from_bytes(data, self.set, self.shape)
                assert torch.equal(back.dense(), atom.dense()), (
                    f"{precision}: decoding changes the atom"
                )
                assert back.to_bytes() == data, f"{precision}: encoding is not canonical"
                assert self.set.contains(back.dense(torch.float64)), (
                    f"{precision}: the decoded atom is outside"
                )
                assert self.set.accepts(back, self.shape), (
                    f"{precision}: a genuine atom is not accepted"
                )
                for damaged in (data[:-1], data + b"\0", b""):
                    with _raises(AtomError):
                        Atom.from_bytes(damaged, self.set, self.shape)
        counted = self.set.lmo(self.G[:4], batch=True).nbytes
        assert counted == total, f"a stack counts {counted} bytes, its atoms send {total}"

    def arithmetic(self) -> None:
        x, eta = self.gaussian(len(self.G)), 0.3
        dense = self.atoms.dense(torch.float64)
        moved = self.atoms.step(x.clone(), eta)
        assert torch.allclose(moved, (1 - eta) * x + eta * dense, atol=1e-9 * self.size), "step"
        weights = torch.linspace(-1, 1, len(x), dtype=torch.float64)
        added = self.atoms.add_to(x.clone(), weights)
        columns = weights.reshape(-1, *[1] * len(self.shape))
        assert torch.allclose(added, x + columns * dense, atol=1e-9 * self.size), "add_to"
        products = (self.G * dense).flatten(1).sum(1)
        assert torch.allclose(self.atoms.dot(self.G), products, atol=self.tol * self.size), "dot"

    def projection(self) -> None:
        far = self.gaussian(6) * 3 * self.size / math.sqrt(self.G[0].numel())
        W = self.set.project(far, batch=True)
        for v, w in zip(far, W, strict=True):
            assert self.set.contains(w), f"projection lies outside {self.set!r}"
            s = self.set.lmo(w - v, precision=torch.float64).dense(torch.float64)
            excess = float(((v - w) * (s - w)).sum())
            allowed = self.tol * self.size * max(self.size, float((v - w).norm()))
            assert excess <= allowed, (
                f"the oracle refutes the projection: <v - w, s - w> = {excess}"
            )
            again = self.set.project(w)
            assert float((again - w).norm()) <= self.tol * self.size, (
                "projecting twice moves the point"
            )
            assert math.isclose(
                self.set.distance(v), float((v - w).norm()), rel_tol=1e-6, abs_tol=1e-9 * self.size
            )
        for i in range(len(far) - 1):
            apart, before = float((W[i] - W[i + 1]).norm()), float((far[i] - far[i + 1]).norm())
            assert apart <= before + self.tol * self.size, "projection drives two points apart"
        inside = self.set.random_point(self.shape, self.generator, torch.float64)
        assert self.set.distance(inside) <= self.tol * self.size, (
            "a point of the set is at a distance from it"
        )
        for power, dtype in (
            (30, torch.float32),
            (50, torch.float32),
            (60, torch.float64),
            (300, torch.float64),
        ):
            w = self.set.project((far[0] * 2.0**power).to(dtype))
            assert self.set.contains(w), (
                f"projection of a point 2^{power} times as far lies outside {self.set!r}"
            )

    def diameter(self) -> None:
        diameter = self.set.diameter(self.shape)
        opposite = self.set.lmo(-self.G, batch=True).dense(torch.float64)
        everything = torch.cat([self.points, opposite]).flatten(1)
        widest = float(torch.cdist(everything, everything).max())
        assert widest <= diameter + self.tol * self.size, (
            f"two points are {widest} apart, diameter says {diameter}"
        )
        if self.set.diameter_is_exact:
            enough = diameter * (1 - 1e-3)
            found = _climb(self.set, self.shape, self.G, enough)
            assert found >= enough, f"the diameter {diameter} is not attained: found {found}"

    def scaling(self, radius_scaled: Callable[[float], ConstraintSet]) -> None:
        for factor in (0.5, 4.0):
            atoms = radius_scaled(factor).lmo(self.G, batch=True)
            scaled = atoms.dense(torch.float64)
            assert torch.allclose(scaled, factor * self.points, atol=1e-6 * self.size), (
                "radius scaling"
            )
            for atom, point in zip(atoms, scaled, strict=True):
                if not self.set.contains(point, 1e-3):
                    assert not self.set.accepts(atom, self.shape), (
                        f"an atom {factor} times too large is accepted"
                    )


def _climb(constraint: ConstraintSet, shape: Shape, G: Tensor, enough: float) -> float:
    """Largest distance found between extreme points: s = lmo(t - s), t = lmo(s - t) only ever
    drives them apart.

    From random starts, and from directions with few non-zeros, which random ones seldom look like.
    It ends with the first that is ``enough``.
    """
    sparse = torch.zeros_like(G).flatten(1)
    places = torch.arange(len(G)) % sparse.shape[1]
    sparse[torch.arange(len(G)), places] = 1
    sparse[torch.arange(len(G)), (places + 1) % sparse.shape[1]] -= 1
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
def _raises(kind: type[Exception]) -> Iterator[list[Exception]]:
    caught: list[Exception] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
        return
    raise AssertionError(f"expected {kind.__name__}")
