"""Byte counts the project promises, hostile bytes, and atoms a server must not accept."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

import fedfw
from fedfw.atoms import Dense, LowRank, SparseSigns, SparseValues
from fedfw.sets.base import ConstraintSet, Shape

MNIST = (7850,)
FRAME = 1


def gradient(shape: Shape, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("constraint", "shape", "precision", "payload"),
    [
        (fedfw.L1Ball(10.0), MNIST, torch.float32, 2),
        (fedfw.KSparse(79, 1.0), MNIST, torch.float32, 90),
        (fedfw.LinfBall(1.0), MNIST, torch.float32, 982),
        (fedfw.Box(-1.0, 1.0), MNIST, torch.float32, 982),
        (fedfw.NuclearBall(10.0), (10, 785), torch.float16, 1590),
        (fedfw.NuclearBall(10.0), (10, 785), torch.float32, 3180),
        (fedfw.L2Ball(10.0), MNIST, torch.float32, 31400),
        (fedfw.Simplex(1.0), (256,), torch.float32, 1),
        (fedfw.Simplex(1.0), (257,), torch.float32, 2),
        (fedfw.L1Ball(1.0), (32768,), torch.float32, 2),
        (fedfw.Birkhoff(), (10, 10), torch.float32, 3),
        (fedfw.Spectrahedron(1.0), (30, 30), torch.float16, 60),
    ],
    ids=lambda value: repr(value) if isinstance(value, ConstraintSet) else None,
)
def test_promised_bytes(constraint: ConstraintSet, shape: Shape, precision: torch.dtype, payload: int) -> None:
    assert len(constraint.lmo(gradient(shape), precision=precision).to_bytes()) == payload + FRAME


def test_zero_vertex_costs_the_frame_alone() -> None:
    D = fedfw.CappedSimplex(2.0)
    G = torch.stack([torch.ones(50), -torch.ones(50)])
    atoms = D.lmo(G, batch=True)
    assert len(atoms[0].to_bytes()) == FRAME
    assert atoms.nbytes == sum(len(atom.to_bytes()) for atom in atoms) == FRAME + FRAME + 1
    back = fedfw.Atom.from_bytes(atoms[0].to_bytes(), D, (50,))
    assert D.accepts(back, (50,))
    assert back.dense().abs().sum() == 0


DECODED: list[tuple[ConstraintSet, Shape]] = [
    (fedfw.L1Ball(1.0), (100,)),
    (fedfw.L2Ball(1.0), (9,)),
    (fedfw.KSparse(7, 1.0), (300,)),
    (fedfw.KSparse(300, 1.0), (40_000,)),
    (fedfw.KSupport(3, 1.0), (50,)),
    (fedfw.GroupBall(1.0, "columns"), (3, 5)),
    (fedfw.LinfBall(1.0), (21,)),
    (fedfw.CappedSimplex(1.0), (99,)),
    (fedfw.Hypersimplex(4), (19,)),
    (fedfw.NuclearBall(1.0), (3, 4)),
    (fedfw.PartialIsometry(2, 1.0), (6, 7)),
    (fedfw.Spectrahedron(1.0), (4, 4)),
    (fedfw.Birkhoff(), (6, 6)),
    (fedfw.Hull(torch.eye(5)), (5,)),
    (fedfw.Product({"weight": fedfw.NuclearBall(1.0), "*": fedfw.KSparse(2)}).bind(torch.nn.Linear(4, 3)), (15,)),
    (fedfw.NuclearBall(1.0).bind(torch.nn.Linear(4, 3)), (15,)),
]


def test_a_hundred_thousand_hostile_strings_raise_only_atom_error() -> None:
    rng = random.Random(0)
    genuine = [[D.lmo(gradient(shape, i)).to_bytes() for i in range(5)] for D, shape in DECODED]
    accepted: list[list[tuple[bytes, fedfw.Atom]]] = [[] for _ in DECODED]
    refused = 0
    for trial in range(100_000):
        which = trial % len(DECODED)
        D, shape = DECODED[which]
        if trial % 3 == 0:
            data = rng.randbytes(rng.randrange(40))
        else:
            data = bytearray(rng.choice(genuine[which]))
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            if rng.random() < 0.3:
                data = data[: rng.randrange(len(data) + 1)] + rng.randbytes(rng.randrange(4))
        try:
            atom = fedfw.Atom.from_bytes(bytes(data), D, shape)
        except fedfw.AtomError:
            refused += 1
            continue
        if D.accepts(atom, shape):
            accepted[which].append((bytes(data), atom))
    for (D, _), atoms in zip(DECODED, accepted, strict=True):
        for some in (atoms[begin : begin + 200] for begin in range(0, len(atoms), 200)):
            inside = D.contains(torch.stack([atom.dense(torch.float64) for _, atom in some]), 1e-5, batch=True)
            assert all(inside), (D, [data for (data, _), well in zip(some, inside, strict=True) if not well])
    assert refused > 30_000
    assert sum(map(len, accepted)) > 1_000  # a mutated index is another atom of the set: harmless


def test_accepts_refuses_what_lies_outside() -> None:
    shape = (6,)
    l1 = fedfw.L1Ball(1.0)
    atom = l1.lmo(gradient(shape))
    assert isinstance(atom, SparseSigns)
    assert l1.accepts(atom, shape)
    assert not l1.accepts(dataclasses.replace(atom, scale=2.0), shape)
    assert not l1.accepts(dataclasses.replace(atom, indices=torch.tensor([[6]])), shape)
    assert not l1.accepts(atom, (7,))
    assert not l1.accepts(fedfw.L2Ball(1.0).lmo(gradient(shape)), shape)
    twice = dataclasses.replace(atom, indices=torch.tensor([[1, 1]]), signs=torch.ones(1, 2, dtype=torch.int8))
    assert not l1.accepts(twice, shape)

    l2 = fedfw.L2Ball(1.0)
    for value in (10.0, float("nan"), float("inf")):
        assert not l2.accepts(Dense(shape=shape, values=torch.full((1, 6), value)), shape)

    support = fedfw.KSupport(2, 1.0)
    wide = SparseValues(shape=shape, indices=torch.arange(6)[None], values=torch.full((1, 6), 6**-0.5), scale=1.0)
    assert not support.accepts(wide, shape)  # l2 norm 1, but six non-zeros

    nuclear = fedfw.NuclearBall(1.0)
    u, v = torch.ones(1, 3, 1), torch.ones(1, 4, 1)
    assert not nuclear.accepts(LowRank(shape=(3, 4), u=u, v=v, scale=1.0), (3, 4))
    assert nuclear.accepts(LowRank(shape=(3, 4), u=u / 3**0.5, v=v / 2, scale=1.0), (3, 4))
    isometry = fedfw.PartialIsometry(2, 1.0)
    same = torch.ones(1, 9, 2) / 3  # two equal columns: singular value 2 after multiplication
    assert not isometry.accepts(LowRank(shape=(9, 9), u=same, v=same, scale=1.0), (9, 9))


def test_a_hostile_client_moves_the_mean_by_at_most_its_share_of_the_diameter() -> None:
    D, shape, n, eta = fedfw.L1Ball(3.0), (40,), 10, 0.5
    x = D.random_point(shape)
    honest = torch.stack([D.lmo(gradient(shape, i)).dense() for i in range(n)])
    mean = honest.mean(0)
    for index in range(40):
        for sign in (-1, 1):
            hostile = SparseSigns(
                shape=shape, indices=torch.tensor([[index]]), signs=torch.tensor([[sign]], dtype=torch.int8), scale=3.0
            )
            assert D.accepts(hostile, shape)
            moved = mean + (hostile.dense() - honest[0]) / n
            shift = eta * ((x + moved) - (x + mean)).norm()
            assert shift <= eta / n * D.diameter(shape) * (1 + 1e-6)


def test_stacks_are_encoded_one_by_one_and_index_like_sequences() -> None:
    atoms = fedfw.L1Ball(1.0).lmo(gradient((3, 5)), batch=True)
    with pytest.raises(ValueError, match="one by one"):
        atoms.to_bytes()
    with pytest.raises(IndexError):
        atoms[3]
    assert len(list(atoms)) == 3
    assert torch.equal(atoms[-1].dense(), atoms.dense()[2])


def test_sparse_steps_touch_no_other_coordinate() -> None:
    x = torch.zeros(10**6)
    fedfw.L1Ball(2.0).lmo(gradient((10**6,))).add_to(x, 0.5)
    assert int((x != 0).sum()) == 1
    assert float(x.abs().max()) == 1.0
    with pytest.raises(ValueError, match="expected a tensor of shape"):
        fedfw.L1Ball(2.0).lmo(gradient((5,))).step(torch.zeros(4), 0.5)


def test_half_precision_atoms_stay_inside() -> None:
    for seed in range(20):
        for D, shape in [
            (fedfw.L2Ball(1e6), (300,)),
            (fedfw.NuclearBall(0.1), (30, 40)),
            (fedfw.SpectralBall(3.0), (20, 30)),
            (fedfw.KSupport(5, 2.0), (100,)),
        ]:
            s = D.lmo(gradient(shape, seed), precision=torch.float16).dense(torch.float64)
            assert D.contains(s, tol=1e-12)
            exact = D.lmo(gradient(shape, seed), precision=torch.float64).dense(torch.float64)
            assert float((s - exact).norm()) <= 0.02 * float(exact.norm())


@pytest.mark.parametrize(
    ("constraint", "u", "v"),
    [
        (fedfw.NuclearBall(10.0), [3e38, 0.0], [3e-39, 0.0]),
        (fedfw.NuclearBall(1.0), [1e100, 0.0], [1e-100, 0.0]),
        (fedfw.Spectrahedron(1.0), [1e-40, 1e-40], None),
        (fedfw.Spectrahedron(1.0), [1e100, 1e100], None),
        (fedfw.Spectrahedron(1.0), [1e-155, 0.0], None),
        (fedfw.Spectrahedron(1.0), [0.0, 0.0], None),
    ],
)
def test_factors_that_would_overflow_are_not_accepted(
    constraint: ConstraintSet, u: list[float], v: list[float] | None
) -> None:
    left = torch.tensor(u, dtype=torch.float64).reshape(1, 2, 1)
    right = left if v is None else torch.tensor(v, dtype=torch.float64).reshape(1, 2, 1)
    scale = constraint.r  # type: ignore[attr-defined]
    atom = LowRank(shape=(2, 2), precision=torch.float64, u=left, v=right, scale=scale, symmetric=v is None)
    assert not constraint.accepts(atom, (2, 2))


def test_a_low_rank_atom_of_too_high_rank_is_not_accepted() -> None:
    atom = fedfw.PartialIsometry(2, 1.0).lmo(gradient((9, 9)))
    assert fedfw.PartialIsometry(2, 1.0).accepts(atom, (9, 9))
    assert not fedfw.NuclearBall(1.0).accepts(atom, (9, 9))


def test_dot_takes_any_memory_layout() -> None:
    g = gradient((6, 5)).T
    atom = fedfw.L2Ball(1.0).lmo(g)
    assert float(atom.dot(g)) == pytest.approx(-float(g.norm()), rel=1e-5)
