"""The wire: what is counted is what is written, what is written is read to the bit, and nothing
shorter would do.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfw.algorithms import Affine
from fedfw.atoms.floats import floats_to_bytes
from fedfw.atoms.index_sets import write_index_set
from fedfw.errors import AtomError
from fedfw.rounds.vectors import (
    CHANGED,
    REPEATED,
    UNCHANGED,
    WHOLE,
    Repeat,
    decoded,
    decoded_alone,
    encoded,
    narrowest,
    whole,
    whole_nbytes,
)
from fedfw.rounds.wire import DIGEST_NBYTES, Wire, digest

DTYPES = [torch.float32, torch.float64]


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()


def differing(a: Tensor, b: Tensor) -> list[int]:
    """The coordinates in which bits differ."""
    kind = {4: np.int32, 8: np.int64}[a.element_size()]
    places: list[int] = np.flatnonzero(a.numpy().view(kind) != b.numpy().view(kind)).tolist()
    return places


def marked(places: list[int], p: int) -> Tensor:
    mask = torch.zeros(p, dtype=torch.bool)
    mask[places] = True
    return mask


def not_zero(x: Tensor) -> list[int]:
    """The coordinates of all numbers but 0.0; -0.0 is another one."""
    return differing(x, torch.zeros_like(x))


# --- one vector ---


def by_coordinates(x: Tensor, places: list[int]) -> bytes:
    """The bytes of a vector by its coordinates, put together here."""
    at = np.array(places, np.int64)
    index = write_index_set(at, len(x), np.empty(0, np.uint8))
    form = CHANGED + (4 if x.dtype == torch.float64 else 0)
    return (
        bytes([form])
        + len(places).to_bytes(4, "big")
        + index
        + floats_to_bytes(x[torch.from_numpy(at)])
    )


@st.composite
def vectors(draw: st.DrawFn, least: int = 1, most: int = 300) -> Tensor:
    """Sparse and dense ones, in both precisions, some with negative zeros, as projections make
    them.
    """
    p, dtype = draw(st.integers(least, most)), draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(p, generator=generator, dtype=torch.float64) * 10.0 ** draw(
        st.integers(-30, 30)
    )
    kept = torch.rand(p, generator=generator) < draw(
        st.sampled_from([0.0, 0.01, 0.1, 0.4, 0.9, 1.0])
    )
    zero = torch.where(x < 0, -0.0, 0.0) if draw(st.booleans()) else torch.zeros(p)
    return torch.where(kept, x, zero).to(dtype)


@given(x=vectors(), seed=st.integers(0, 1000))
def test_a_vector_arrives_to_the_bit_in_its_shorter_form(x: Tensor, seed: int) -> None:
    places = (
        torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[: seed % (len(x) + 1)]
        .sort()
        .values
    )
    known = x.clone()
    known[places] += 1
    changed = np.zeros(len(x), np.bool_)
    changed[places.numpy()] = True
    for mask, held in ((None, torch.zeros_like(x)), (changed, known)):
        named = not_zero(x) if mask is None else places.tolist()
        encoding = encoded(x, mask)
        data = encoding.write()
        assert encoding.nbytes == len(data) == min(whole_nbytes(x), len(by_coordinates(x, named)))
        assert data in (whole(x).write(), by_coordinates(x, named))
        assert same_bits(decoded(data, held), x)
        if mask is None:
            assert same_bits(decoded_alone(data, torch.ones_like(x)), x)


def test_digests_tell_vectors_apart_and_see_their_type_and_order() -> None:
    x, y = torch.arange(5.0), torch.arange(5.0).flip(0)
    told = [
        digest(x),
        digest(y),
        digest(x, y),
        digest(y, x),
        digest(x.double()),
        digest(x[:4]),
        digest(),
    ]
    assert len(set(told)) == len(told)
    assert {len(one) for one in told} == {DIGEST_NBYTES}
    assert digest(x) == digest(x.clone())
    assert digest(torch.arange(10.0)[::2]) == digest(
        torch.tensor([0.0, 2.0, 4.0, 6.0, 8.0])
    )  # not contiguous


# --- bytes from somebody who means harm ---


@given(data=st.binary(max_size=80), p=st.integers(1, 12), dtype=st.sampled_from(DTYPES))
def test_any_bytes_are_a_vector_or_refused(data: bytes, p: int, dtype: torch.dtype) -> None:
    for form in (
        b"",
        *(
            bytes([form | flag])
            for form in (WHOLE, CHANGED, REPEATED, UNCHANGED)
            for flag in (0, 4)
        ),
    ):
        for read in (decoded, decoded_alone):
            try:
                x = read(form + data, torch.zeros(p, dtype=dtype))
            except AtomError:
                continue
            assert (x.shape, x.dtype) == ((p,), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hostile_messages_are_refused(dtype: torch.dtype) -> None:
    known = torch.zeros(20, dtype=dtype)
    x = torch.zeros(20, dtype=dtype)
    x[4] = 1.5
    sparse = encoded(x).write()
    assert sparse[0] & ~4 == CHANGED
    too_many = bytes([CHANGED]) + (21).to_bytes(4, "big") + sparse[5:]
    most = bytes([CHANGED]) + (2**32 - 1).to_bytes(4, "big") + sparse[5:]
    no_form = bytes([7]) + sparse[1:]
    more_than_unchanged = bytes([UNCHANGED]) + sparse[1:]
    for value in (torch.nan, torch.inf):
        spoilt = x.clone()
        spoilt[4] = value
        for data in (
            whole(spoilt).write(),
            by_coordinates(spoilt, [4]),
            Repeat(0.5, 0.5, spoilt).write(),
        ):
            with pytest.raises(AtomError, match="not finite"):
                decoded(data, known)
    rates = [Repeat(*each, x).write() for each in ((torch.nan, 0.5), (0.5, torch.inf))]
    for data in (too_many, most, no_form, more_than_unchanged, b"", *rates):
        with pytest.raises(AtomError):
            decoded(data, known)
    for data in (Repeat(0.5, 0.5, x).write(), bytes([UNCHANGED])):
        with pytest.raises(AtomError, match="expected a vector that is whole or given by its"):
            decoded_alone(data, known)


# --- sequences of messages ---


@dataclass
class Told:
    """What an observer of a wire knows: every message so far, and which coordinates each of them
    changed.
    """

    p: int
    dtype: torch.dtype
    precision: torch.dtype
    wide: bool = False  # whether the model's numbers need the type in which it is held
    messages: list[dict[str, Tensor]] = field(
        default_factory=lambda: [{}]
    )  # by version; 0 is nothing
    changed: list[dict[str, set[int]]] = field(default_factory=lambda: [{}])
    repeat: Repeat | None = (
        None  # the one step between the last two messages, where it can be repeated
    )

    def held(self, version: int, name: str) -> Tensor:
        """What a client holds that has this message: zeros for what was left out of it."""
        return self.messages[version].get(name, torch.zeros(self.p, dtype=self.dtype))

    def shortest(self, name: str, base: int) -> int:
        """The least number of bytes for a client with the message ``base``, over all forms that
        there are.
        """
        x = self.messages[-1][name]
        places = sorted(set().union(*(step.get(name, set()) for step in self.changed[base + 1 :])))
        if base > 0 and not places:
            return 1  # this client holds it already
        named = not_zero(x) if base == 0 else places
        x = x if name == "xbar" and self.wide else x.to(self.precision)
        forms = [whole_nbytes(x), len(by_coordinates(x, named))]
        if (
            name == "xbar"
            and self.repeat is not None
            and base == len(self.messages) - 2
            and base > 0
        ):
            forms.append(len(self.repeat.write()))
        return min(forms)


def sparse_change(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    at = torch.randperm(len(x), generator=generator)[:count]
    x = x.clone()
    values = torch.randn(len(at), generator=generator).to(x.dtype)
    x[at] = torch.where(values < -0.7, -0.0, values)  # some become negative zeros
    return x


@st.composite
def courses(draw: st.DrawFn) -> dict[str, Any]:
    """A wire's life: how the model steps, which further vectors go down and how they change, and
    when it is stored.
    """
    kinds = st.sampled_from(["nothing", "few", "all", "back", "repeat", "repeat after few"])
    further = st.sampled_from(["left out", "few", "all", "same", "back"])
    messages = st.lists(
        st.fixed_dictionaries(
            {"xbar": kinds, "ybar": further, "z": further, "stored": st.booleans()}
        ),
        min_size=1,
        max_size=7,
    )
    return {
        "p": draw(st.integers(1, 80)),
        "dtype": draw(st.sampled_from([(f, f) for f in DTYPES] + [(torch.float64, torch.float32)])),
        "seed": draw(st.integers(0, 2**31)),
        "messages": draw(messages),
    }


class Course:
    """Steps a model, announces messages, and checks what every possible receiver would be sent."""

    def __init__(self, p: int, dtypes: tuple[torch.dtype, torch.dtype], seed: int) -> None:
        """Vectors are held in the first type and travel in the second one."""
        self.generator, (dtype, self.precision) = torch.Generator().manual_seed(seed), dtypes
        self.x = sparse_change(torch.zeros(p, dtype=dtype), p // 3, self.generator)
        self.further: dict[str, Tensor] = {}
        self.told, self.wire = Told(p, dtype, self.precision), Wire(self.x, self.precision)
        self.pending: dict[str, set[int]] = {}

    def few(self) -> int:
        return 1 + int(torch.randint(3, (), generator=self.generator))

    def step(
        self,
        after: Tensor,
        support: Tensor | None = None,
        repeat: Repeat | None = None,
        wide: Tensor | None = None,
    ) -> set[int]:
        self.told.wide = support is not None and after.dtype != self.precision
        after = after if support is not None else after.to(self.precision).to(after.dtype)
        places = differing(self.x, after)
        self.wire.stepped(marked(places, len(after)), support, repeat, wide=wide)
        self.x = after
        return set(places)

    def move(self, kind: str) -> None:
        """What happens to the model before the next message."""
        changed: set[int] = set()
        self.told.repeat = None
        if kind == "few" or kind == "repeat after few":
            changed |= self.step(sparse_change(self.x, self.few(), self.generator))
        elif kind == "all":
            changed |= self.step(sparse_change(self.x, len(self.x), self.generator))
        elif kind == "back":  # two steps, of which the second undoes the first
            before = self.x
            changed |= self.step(sparse_change(self.x, self.few(), self.generator))
            changed |= self.step(before)
        if "repeat" in kind:
            total = sparse_change(torch.zeros_like(self.x), self.few(), self.generator)
            if self.few() == 1:
                total = total / 3  # which float32 does not hold
            wide = narrowest(total) is torch.float64
            repeat = Repeat(0.75, 0.1, total, torch.float64 if wide else self.precision)
            support = marked(not_zero(total), len(total))
            changed |= self.step(
                Affine(0.75, 0.1, total).apply(self.x), support, repeat, torch.tensor([wide])
            )
            if kind != "repeat after few" and len(self.told.messages) > 1:
                self.told.repeat = repeat
        self.pending = {"xbar": changed}

    def announce(self, kinds: dict[str, str]) -> None:
        vectors = {"xbar": self.x}
        for name, kind in kinds.items():
            before = self.told.held(-1, name)
            oldest = self.told.held(len(self.told.messages) // 2, name)
            after = {
                "left out": None,
                "few": sparse_change(before, self.few(), self.generator),
                "all": sparse_change(before, len(before), self.generator),
                "same": before,
                "back": oldest,
            }[kind]
            if after is not None:
                vectors[name] = after
            now = torch.zeros_like(before) if after is None else after
            self.pending[name] = set(differing(before, now))
        self.told.messages.append({name: value.clone() for name, value in vectors.items()})
        self.told.changed.append(self.pending)
        assert self.wire.announce(vectors) == self.wire.version == len(self.told.messages) - 1

    def check(self) -> None:
        told, wire = self.told, self.wire
        bases = range(len(told.messages))
        for name, x in told.messages[-1].items():
            for base in bases:
                encoding = wire.encoding(name, base)
                assert encoding.nbytes == told.shortest(name, base), (name, base)
                data = encoding.write()
                assert len(data) == encoding.nbytes
                assert same_bits(decoded(data, told.held(base, name)), x), (name, base)
        everyone = [*bases, *bases]
        assert wire.nbytes(everyone) == sum(
            wire.encoding(n, base).nbytes for base in everyone for n in told.messages[-1]
        )
        for base in bases:
            assert wire.write(base) == {
                n: wire.encoding(n, base).write() for n in told.messages[-1]
            }

    def stored(self) -> None:
        """A checkpoint and a fresh wire in place of this one."""
        held = {name: value.clone() for name, value in self.wire.state().items()}
        self.wire = Wire(torch.zeros_like(self.x), self.precision)
        self.wire.load(held)


@given(course=courses())
@settings(max_examples=150)
def test_every_receiver_gets_the_exact_bits_in_the_shortest_form(course: dict[str, Any]) -> None:
    run = Course(course["p"], course["dtype"], course["seed"])
    for wanted in course["messages"]:
        run.move(wanted["xbar"])
        if wanted["stored"]:
            run.stored()  # between the step and the message that announces it
        run.announce({name: wanted[name] for name in ("ybar", "z")})
        run.check()
        if wanted["stored"]:
            run.stored()
            assert run.wire.version == len(run.told.messages) - 1


# --- what runs count ---
