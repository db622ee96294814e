"""A server that does what it likes, against every client at the same time (Hypothesis, stateful).

After each step the secrets are worked out that the server could open with all shares that it has
ever got. It must never hold both secrets of a client, and never be able to take the masks out of a
sum of fewer clients than agreed. Clients answer by a named error or not at all otherwise.
"""

from functools import cache
from hashlib import sha256
from itertools import chain, combinations
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fedfw.secure_sums import (
    Client,
    ClientState,
    Journal,
    RealPrimitives,
    SecureSumError,
    Server,
    ServerState,
)
from fedfw.secure_sums.journal import Entry
from fedfw.secure_sums.messages import Agreement, Certificate, Order, Reveal, Survivors, Upload
from tests.secure_sums.federation import Federation

N, THRESHOLD, LEAST, ROUNDS = 5, 3, 3, 2
NUMBERS_OF = np.random.default_rng(1).integers(0, 3, (N, 3))
SHARES: dict[bytes, bytes] = {}
"""Every share that was dealt, and the secret that it is of."""


class Recorded(RealPrimitives):
    def split(self, secret: bytes, threshold: int, count: int) -> list[bytes]:
        shares = super().split(secret, threshold, count)
        SHARES.update(dict.fromkeys(shares, secret))
        return shares


@cache
def begun() -> tuple[Federation, list[bytes], list[Entry], bytes, dict[bytes, tuple[Any, ...]]]:
    """Return a federation after the set-up, as bytes, and what each secret is."""
    federation = Federation(N, dropouts=2, rounds=ROUNDS, entries=3, primitives=Recorded())
    federation.set_up()
    states = [client.state.to_bytes() for client in federation.clients]
    names: dict[bytes, tuple[Any, ...]] = {}
    for i, client in enumerate(federation.clients):
        for number, (mask, _, seed) in client.state.secrets.items():
            names |= {mask: ("key", number, i), seed: ("seed", number, i)}
    entries = [journal.entry for journal in federation.journals]
    return federation, states, entries, federation.server.state.to_bytes(), names


GROUPS = st.sampled_from(
    [(0, 1, 2, 3, 4)] * 3
    + [(1, 2, 3, 4), (0, 1, 2, 3), (0, 1, 2), (2, 3, 4), (0, 2, 4), (0, 1), (3,), ()]
)
CLIENTS = st.integers(0, N - 1)
NUMBERS = st.sampled_from([0, 0, 0, 1])


def bits(clients: Any) -> tuple[bool, ...]:
    return tuple(i in clients for i in range(N))


class HostileServer(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.federation, states, entries, server, self.names = begun()
        self.terms = self.federation.terms
        self.journals = [Journal(entry) for entry in entries]
        self.clients = [self.process(i, state) for i, state in enumerate(states)]
        self.kept = [[state] for state in states]
        self.relay = ServerState.from_bytes(server)
        self.uploads: dict[tuple[int, int], tuple[tuple[bool, ...], Upload]] = {}
        self.signatures: dict[tuple[Any, ...], dict[int, bytes]] = {}
        self.held: dict[tuple[Any, ...], set[int]] = {}
        self.sent: list[bytes] = []
        self.numbers: dict[tuple[int, int], Any] = {}

    def process(self, i: int, state: bytes) -> Client:
        return Client(
            self.federation.keys[i],
            self.federation.consent,
            self.journals[i],
            ClientState.from_bytes(state),
        )

    def ask(self, i: int, message: bytes, shift: int = 0) -> bytes | None:
        """Return a client's answer; None for a refusal, which has a name."""
        self.sent.append(message)
        numbers = (NUMBERS_OF[i] + shift) % 3
        try:
            answer = self.clients[i].answer(message, numbers)
        except SecureSumError:
            return None
        self.kept[i].append(self.clients[i].state.to_bytes())
        self.learn(i, answer, numbers)
        return answer

    def learn(self, i: int, answer: bytes, numbers: Any) -> None:
        """Take note of what an answer gives away."""
        kind = answer[5]
        if kind == Upload.kind:
            upload = Upload.from_bytes(answer)
            current = self.clients[i].state.current
            assert current is not None
            known = self.uploads.setdefault((upload.round, i), (current.dealers, upload))
            assert known[1] == upload, "two uploads with one mask"
            self.numbers.setdefault((upload.round, i), numbers)
        if kind == Reveal.kind:
            for share in Reveal.from_bytes(answer).shares:
                self.held.setdefault(self.names[SHARES[share]], set()).add(i)

    # --- what it can send ---

    def order(self, i: int, number: int, dealers: Any, change: int = 0) -> None:
        sealed = self.relay.sealed[number]
        others = [j for j in sorted(dealers) if j != i]
        if change == 1:  # shares that are meant for another client
            rows = [sealed[j][min({0, 1, 2} - {i, j})] for j in others]
        else:
            rows = [sealed[j][i] for j in others]
        self.ask(i, Order(number, 0, bits(dealers), tuple(rows)).to_bytes(), change)

    def show(self, i: int, number: int, survivors: Any) -> None:
        answer = self.ask(i, Survivors(number, bits(survivors)).to_bytes())
        if answer is not None:
            current = self.clients[i].state.current
            assert current is not None
            key = (number, current.dealers, bits(survivors))
            signature = Agreement.from_bytes(answer).signature
            self.signatures.setdefault(key, {})[i] = signature

    def certify(self, i: int, key: Any, forged: Any = ()) -> None:
        number, _, survivors = key
        known = dict(self.signatures[key])
        for j in forged:
            other = [some[j] for some in self.signatures.values() if j in some]
            known.setdefault(j, other[0] if other else bytes(64))
        around = [j for j in range(N) if survivors[j]]
        uploads = [self.uploads.get((number, j), self.uploads.get((1 - number, j))) for j in around]
        digests = tuple(sha256(u[1].numbers).digest() if u else bytes(32) for u in uploads)
        proofs = tuple(u[1].signature if u else bytes(64) for u in uploads)
        rows = tuple(known[j] for j in sorted(known))
        self.ask(i, Certificate(number, bits(known), rows, digests, proofs).to_bytes())

    # --- single messages ---

    @rule(number=NUMBERS, dealers=GROUPS, change=st.sampled_from([0, 0, 1, 2]), to=GROUPS)
    def send_orders(self, number: int, dealers: Any, change: int, to: Any) -> None:
        for i in to:
            self.order(i, number, dealers, change)

    @rule(number=NUMBERS, survivors=GROUPS, to=GROUPS)
    def send_lists(self, number: int, survivors: Any, to: Any) -> None:
        for i in to:
            self.show(i, number, survivors)

    @rule(data=st.data(), to=GROUPS, forged=st.sampled_from([(), (), (0, 1), (2, 3, 4)]))
    @precondition(lambda self: self.signatures)
    def send_certificates(self, data: st.DataObject, to: Any, forged: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.signatures)))
        for i in to:
            self.certify(i, key, forged)

    # --- whole attacks ---

    @rule(number=NUMBERS, pair=st.sampled_from([(0, 1), (2, 4)]))
    def squeeze(self, number: int, pair: Any) -> None:
        """Show each client a list of the same two and itself."""
        fill = [i for i in range(N) if i not in pair]
        lists = [{*pair, i if i not in pair else fill[pair.index(i)]} for i in range(N)]
        for i in range(N):
            self.order(i, number, range(N))
            self.show(i, number, lists[i])
        for key in sorted(self.signatures):
            for i in self.signatures[key]:
                self.certify(i, key)

    @rule(number=NUMBERS, one=GROUPS, other=GROUPS, dealers=GROUPS)
    def change_the_list(self, number: int, one: Any, other: Any, dealers: Any) -> None:
        """Take one list through the protocol, then another one."""
        for i in range(N):
            self.order(i, number, dealers)
        for survivors in (one, other):
            for i in range(N):
                self.show(i, number, survivors)
            key = (number, bits(dealers), bits(survivors))
            for i in self.signatures.get(key, {}):
                self.certify(i, key)

    @rule(number=NUMBERS, victim=CLIENTS)
    def starve(self, number: int, victim: int) -> None:
        """Let a victim mask for two dealers only, and drop these two from the list."""
        friends = {(victim + 1) % N, (victim + 2) % N}
        for i in range(N):
            self.order(i, number, {victim, *friends} if i == victim else range(N))
        rest = set(range(N)) - friends
        for i in rest:
            self.show(i, number, rest)
        for key in sorted(self.signatures):
            for i in sorted(rest):
                self.certify(i, key)

    # --- clients whose processes begin again ---

    @rule(i=CLIENTS, data=st.data())
    @precondition(lambda self: self.sent)
    def replay(self, i: int, data: st.DataObject) -> None:
        self.ask(i, data.draw(st.sampled_from(self.sent)))

    @rule(i=CLIENTS, back=st.integers(0, 4))
    def restart(self, i: int, back: int) -> None:
        """A client's process begins again, perhaps with an old state; its journal is whole."""
        self.clients[i] = self.process(i, self.kept[i][max(0, len(self.kept[i]) - 1 - back)])

    @rule()
    def honest_round(self) -> None:
        """The last round goes on as it should, or is refused by name: no wrong sum ever comes."""
        server = Server(self.terms, self.relay)
        try:
            server.start_round(ROUNDS - 1)
            for _ in range(3):
                for i in range(N):
                    message = server.message_for(i)
                    answer = self.ask(i, message) if message else None
                    if answer is not None:
                        server.receive(i, answer)
                server.advance()
            found = server.finish()
        except SecureSumError:
            server.abandon_round()
        else:
            assert len(found.clients) >= LEAST
            assert (found.total == sum(self.numbers[ROUNDS - 1, i] for i in found.clients)).all()
        self.relay.counters = {}

    @invariant()
    def never_a_leak(self) -> None:
        for number in range(ROUNDS):
            opened = {name for name, holders in self.held.items() if len(holders) >= THRESHOLD}
            seeds = {i for kind, where, i in opened if kind == "seed" and where == number}
            keys = {i for kind, where, i in opened if kind == "key" and where == number}
            assert not seeds & keys, "both secrets of a client"
            for some in chain.from_iterable(
                combinations(sorted(seeds), k) for k in range(1, LEAST)
            ):
                assert not self.separates(number, set(some), keys), f"a sum of {some} alone"

    def separates(self, number: int, some: set[int], keys: set[int]) -> bool:
        """Return whether the server can take the masks out of the sum of these uploads."""
        for i in some:
            if (number, i) not in self.uploads:
                return False
            dealers = self.uploads[number, i][0]
            for j in range(N):
                if j == i or not dealers[j] or j in keys:
                    continue
                both = j in some and (number, j) in self.uploads
                if not both or not self.uploads[number, j][0][i]:
                    return False
        return True


HostileServer.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestHostileServer = HostileServer.TestCase
