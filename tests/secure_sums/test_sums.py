"""Whole sums: what the server obtains is the survivors' sum to the bit, or a named error."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfw
from fedfw.secure_sums import (
    AtomEncoding,
    Batch,
    ListError,
    Ring,
    Server,
    Terms,
    TermsError,
    TooFewSharesError,
    TooFewSignaturesError,
)
from fedfw.secure_sums.terms import colluders_among
from tests.secure_sums.federation import Federation, random_numbers


@pytest.mark.parametrize(
    ("dealing", "at_upload", "at_agreement", "at_reveal"),
    [
        ((), (), (), ()),
        ((2,), (), (), ()),
        ((), (0, 5), (), ()),
        ((), (), (1, 3), ()),
        ((), (), (), (0, 4)),
        ((6,), (1,), (2,), ()),
        ((), (1,), (2,), (3,)),
    ],
)
def test_a_sum_is_that_of_the_survivors_to_the_bit(
    dealing: tuple[int, ...],
    at_upload: tuple[int, ...],
    at_agreement: tuple[int, ...],
    at_reveal: tuple[int, ...],
) -> None:
    federation = Federation(7, dropouts=2, entries=19)
    federation.set_up(absent=dealing)
    numbers = random_numbers(federation)
    found = federation.sum(numbers, 0, {*dealing, *at_upload}, at_agreement, at_reveal)
    survivors = [i for i in range(7) if i not in {*dealing, *at_upload}]
    assert found.clients == tuple(survivors)
    assert found.total.tolist() == sum(numbers[i] for i in survivors).tolist()


@pytest.mark.parametrize("modulus_span", [1, 200, 70_000, 1 << 40])
def test_many_rounds_of_sampled_clients_with_restarts_between_any_two_phases(
    modulus_span: int,
) -> None:
    federation = Federation(6, span=modulus_span, rounds=3, invited=4, dropouts=1, first=5)
    federation.set_up()
    for number in range(5, 8):
        numbers = random_numbers(federation, number)
        federation.server.start_round(number)
        plan = federation.server._batch().plan(number)
        absent = {plan.invited[number % 4]}
        for _ in range(3):
            federation.phase(numbers, absent)
            federation.restart()
        found = federation.server.finish()
        assert set(found.clients) == set(plan.invited) - absent
        assert (found.total == sum(numbers[i] for i in found.clients)).all()


def test_a_sparse_graph_sums_with_dropouts() -> None:
    changes = {"degree": 6, "threshold": 5}
    federation = Federation(14, dropouts=2, colluders=1, changes=changes)
    federation.set_up()
    numbers = random_numbers(federation)
    found = federation.sum(numbers, at_upload={3, 8})
    assert (found.total == sum(numbers[i] for i in found.clients)).all()
    assert len(found.clients) == 12
    graph = federation.server._batch().plan(0)
    assert all(len(graph.neighbours(i)) == 6 for i in range(14))
    assert all(i in graph.neighbours(j) for i in range(14) for j in graph.neighbours(i))


def test_too_many_dropouts_are_a_named_error_at_every_phase() -> None:
    federation = Federation(5, dropouts=1, rounds=4)
    federation.set_up()
    numbers = random_numbers(federation)
    with pytest.raises(ListError, match="3 uploads, expected at least 4"):
        federation.sum(numbers, 0, at_upload={0, 1})
    federation.server.abandon_round()
    with pytest.raises(TooFewSignaturesError):
        federation.sum(numbers, 1, at_agreement={0, 1, 2})
    federation.server.abandon_round()
    with pytest.raises(TooFewSharesError):
        federation.sum(numbers, 2, at_reveal={0, 1, 2})
    federation.server.abandon_round()
    found = federation.sum(numbers, 3)
    assert (found.total == sum(numbers)).all()


def test_atoms_are_summed_exactly() -> None:
    ball = fedfw.L1Ball(0.3)
    encoding = AtomEncoding(ball, (2, 5))
    gradients = torch.randn(5, 2, 5, generator=torch.Generator().manual_seed(0))
    atoms = [ball.lmo(g) for g in gradients]
    federation = Federation(5, entries=10, span=encoding.span)
    federation.set_up()
    integers = [encoding.encode(atom).integers for atom in atoms]
    found = federation.sum([encoding.to_numbers(one) for one in integers])
    total = torch.stack(integers).sum(0)
    assert torch.equal(encoding.decode(found.total, 5), 0.3 * total.double())
    assert encoding.accepts(found.total, 5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"threshold": 5}, "threshold must exceed"),
        ({"threshold": 11}, "must not exceed the number of holders"),
        ({"least": 1}, "least must be"),
        ({"dropouts": 9}, "could disconnect"),
        ({"colluders": 1, "dropouts": 8, "threshold": 7, "least": 3}, "could disconnect"),
        ({"invited": 11}, "invited"),
        ({"modulus": 4}, "modulus"),
        ({"degree": 5}, "degree"),
        ({"degree": 4, "threshold": 3, "dropouts": 4}, "could disconnect"),
        ({"entries": 0}, "entries"),
        ({"entries": 1 << 50}, "entries"),
        ({"rounds": 1 << 40}, "rounds"),
        ({"run": b""}, "run"),
    ],
)
def test_terms_that_would_hide_too_little_are_refused(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(TermsError, match=reason):
        Federation(10, changes=changes)


def test_a_sparse_graph_stays_connected_without_any_clients_that_terms_allow_to_miss() -> None:
    """The server chooses who drops out, with the graph in view: it cannot cut the graph of n = 12
    and degree 4 by taking out any three clients, and terms refuse a fourth.
    """
    from itertools import combinations

    federation = Federation(12, changes={"degree": 4, "threshold": 4, "least": 9, "dropouts": 3})
    federation.set_up()
    plan = federation.server._batch().plan(0)
    for removed in combinations(range(12), 3):
        left = set(range(12)) - set(removed)
        reached: set[int] = set()
        frontier = {min(left)}
        while frontier:
            reached |= frontier
            around = {j for i in frontier for j in plan.neighbours(i)}
            frontier = (around & left) - reached
        assert reached == left


def test_colluding_neighbours_are_bounded_by_the_exact_tail() -> None:
    from scipy.stats import hypergeom

    for count, chosen, colluders in ((1000, 50, 20), (1000, 50, 100), (500, 40, 30)):
        bound = colluders_among(chosen, count, colluders, 10)
        cases = count * 10 * 1024
        tails = [hypergeom(count - 1, colluders, chosen).sf(k) * cases for k in (bound, bound - 1)]
        assert tails[0] <= 2.0**-40 < tails[1]
    assert (
        Terms.for_owners(
            b"r", tuple(i.to_bytes(32, "big") for i in range(1000)), entries=1, span=1
        ).threshold
        == 26
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 1 << 62), st.lists(st.integers(0, 1 << 62), max_size=30))
def test_packing_round_trips(modulus: int, values: list[int]) -> None:
    ring = Ring(modulus)
    numbers = np.array([value % modulus for value in values], ring.dtype)
    data = ring.pack(numbers)
    assert len(data) == ring.packed_nbytes(len(numbers)) == -(-len(values) * ring.bits // 8)
    assert ring.unpack(data, len(numbers)).tolist() == numbers.tolist()


def test_packing_of_many_numbers_crosses_chunks() -> None:
    for modulus in (2, 32, 1 << 9, 5):
        ring = Ring(modulus)
        numbers = np.random.default_rng(0).integers(0, modulus, 140_001).astype(ring.dtype)
        assert (ring.unpack(ring.pack(numbers), len(numbers)) == numbers).all()


def test_the_fewest_bits_hold_every_sum() -> None:
    assert [Ring.for_sum(n, 2).bits for n in (5, 10, 50)] == [4, 5, 7]
    for count, span in ((1, 1), (7, 1), (8, 1), (10, 2), (1000, 1)):
        ring = Ring.for_sum(count, span)
        assert ring.modulus > count * span >= ring.modulus // 2 or ring.bits == 1


def test_a_batch_begins_again_without_a_member_that_did_not_open() -> None:
    federation = Federation(5, invited=4, dropouts=1)
    federation.phase()
    with pytest.raises(ListError, match="client 3 did not open"):
        federation.phase(absent={3})
    federation.server = Server(federation.terms)
    for _ in range(4):
        federation.phase(absent={3})
    numbers = random_numbers(federation)
    found = federation.sum(numbers, at_upload={1})
    assert found.clients == (0, 2, 4)
    assert (found.total == sum(numbers[i] for i in found.clients)).all()
    assert [journal.entry.starts for journal in federation.journals] == [2, 2, 2, 1, 2]


def test_every_draw_of_the_graph_needs_all_openings() -> None:
    """Another value of one member gives another graph, and other keys and signatures with it."""
    owners = tuple(i.to_bytes(32, "big") for i in range(60))
    terms = replace(Terms.for_owners(b"r", owners, entries=1, span=1, invited=40), degree=10)
    values = [bytes([i]) * 32 for i in range(60)]
    one = Batch(terms, tuple(range(60)), tuple(values))
    other = Batch(terms, tuple(range(60)), (*values[:59], bytes(32)))
    assert one.context != other.context
    assert one.plan(0).circle != other.plan(0).circle
    assert one.plan(0).invited != other.plan(0).invited
    assert len(one.plan(0).invited) == 40
    assert one.plan(0).circle != one.plan(1).circle
