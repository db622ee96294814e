"""FedLMO: oracle steps from the shared model along a shared momentum, for networks and for convex
problems.

    client i:  x <- xbar,  m_i <- m
               K times:  m_i <- beta m_i + (1 - beta) (grad f_i(x) - c_i + c)     (before any m: m_i <- the gradient)
                         x   <- (1 - eta_t/K) x + (eta_t/K) lmo_D(m_i)
               it sends its net atom s_i, for which x = (1 - a_t) xbar + a_t s_i, and m_i, and how
               c_i changes: c_i <- the mean of its K gradients, without corrections
    server:    xbar <- (1 - a_t) xbar + a_t (mean of the s_i),   m <- mean of the m_i,   c <- mean of the c_i

Here a_t = 1 - (1 - eta_t/K)^K. Means of s_i and m_i are over those present, the mean of the c_i
over all that were ever present, all with the weights w_i. A client that was never present uses its
gradient as it is. Every x and every xbar is a convex combination of points of D, whoever takes
part.

c_i and c are control variates: grad f_i(x) - c_i + c approximates the gradient of F, whoever the
client is, so that clients with different data take the same direction. For convex losses
docs/studies/theory.md proves a rate in which neither their differences nor K appear. `renew_every` leaves
the c_i as they are for some rounds; in between nothing but atoms travels. A c_i renewed so seldom
is the gradient at xbar alone: it has to serve for the local points of many rounds. With
`oracle_at="server"` clients send the mean of K gradients at xbar, and the server takes one oracle
step.

The momentum is that of Muon and Scion (Jordan et al. 2024; Pethick et al., arXiv 2502.07529),
shared as in FedCM and Mime (Xu et al. 2021; Karimireddy et al. 2021) and in both FedMuon (Takezawa
et al., arXiv 2509.26337; Liu et al., arXiv 2510.27403). The control variates are those of SCAFFOLD
(Karimireddy et al. 2020).

With `compress` a client sends the change of c_i compressed, and how m_i differs from what it would
be if all K gradients were their mean, which the change tells. Both sides add the decoded change to
c_i, so what it lost is part of the next change, which is error feedback; m_i is sent anew in every
round, and loses nothing for good either. With few bits a number (`bits:4`) dense net atoms are sent
as s_i - xbar in the same way: the server shrinks xbar plus the decoded difference into D, so s_i is
still a point of D. Other compressors would leave little of a dense s_i and leave it as it is.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedfw.algorithms.contract import (
    Aggregate,
    Contract,
    Gradient,
    Kept,
    Lmo,
    Message,
    Payload,
    Plan,
    Reveals,
    Server,
    Setting,
    State,
    Up,
)
from fedfw.algorithms.local_oracle import LocalOracleSteps, to_the_mean
from fedfw.algorithms.oracle_steps import exact_server, mean_of, move_server, sent_down, with_mean
from fedfw.atoms import Atom
from fedfw.atoms.mixture import mix
from fedfw.compression import Compress, refuse_useless
from fedfw.options import option


@dataclass(frozen=True)
class FedLMO(LocalOracleSteps):
    """Oracle steps from the shared model along a shared momentum, with control variates.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; for whole networks `fedfw.layer_balls` makes one.
    momentum : float
        beta, the weight of the past. With 0 no momentum travels.
    schedule : str, Schedule or callable
        Step sizes eta_t of rounds (not of local steps, which are K times shorter); see `Scheduled`.
    correction : bool
        Whether control variates take out the differences between clients; their changes are one
        more vector up.
    renew_every : int
        After so many rounds the control variates are renewed. Above 1 the momentum stays with the
        client in its round.
    oracle_at : {"clients", "server"}
        Who calls the oracle.
    compress : str
        What is done to the momentum and to changes of control variates: "topk:64", for example; see
        `fedfw.compression`. "bits:8", "bits:4" and "bits:2" are for dense net atoms, too.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.load_problem("digits", clients=10, partition="labels:3")
    >>> run = fedfw.simulate(problem, fedfw.FedLMO(fedfw.L2Ball(10.0)), rounds=50, local_steps=3, participation=3)
    >>> run.history[-1].accuracy > 0.8
    True
    """

    _: KW_ONLY
    correction: Annotated[
        bool, option("control variates, which take out the differences between clients")
    ] = True
    renew_every: Annotated[
        int, option("rounds between two renewals of the control variates", ge=1)
    ] = 1
    oracle_at: Annotated[
        Literal["clients", "server"],
        option("who calls the oracle: the clients, or the server once a round"),
    ] = "clients"
    compress: Compress = "none"

    name: ClassVar[str] = "fedlmo"
    title: ClassVar[str] = "FedLMO"
    contract: ClassVar[Contract] = Contract(
        down=("xbar", "m", "c"),
        remembers={"x": Kept.REBUILT, "c": Kept.REBUILT, "visited": Kept.REBUILT},
        reveals=Reveals.GRADIENTS,
        shares="every client's averaged gradients (its momentum, and how its control variate changes) in each round",
        weighted=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.oracle_at == "server":
            if self.renew_every > 1:
                raise ValueError(
                    f"renew_every={self.renew_every}, expected 1 with oracle_at='server': one vector is sent"
                )
            shares = "the mean of every client's gradients in each round"
            object.__setattr__(
                self,
                "contract",
                replace(self.contract, up=Up.VECTOR, down=("xbar",), shares=shares),
            )

    # --- before the first round ---

    def plan(self, setting: Setting) -> Plan:
        refuse_useless(self.compress, setting.constraint, setting.shape, setting.shapes)
        if (
            self.compressor is not None
            and self.compressor.keeps_all
            and not setting.constraint.has_projection
        ):
            raise ValueError(
                f"compress={self.compress!r}, expected none with {setting.constraint!r}: what was decoded may lie "
                "outside of the set, and without a projection there is no way back into it"
            )
        return super().plan(setting)

    def renews(self, t: int) -> bool:
        """Whether the control variates change in round t."""
        return self.correction and (self.renew_every == 1 or (t - 1) % self.renew_every == 0)

    def sends(self, t: int, p: int) -> dict[str, int]:
        if self.oracle_at == "server":
            return {}
        change = {"change": p} if self.renews(t) else {}
        return change | ({"m": p} if self.beta and self.renew_every == 1 else {})

    def start_clients(self, x: Tensor) -> State:
        controls = (
            {"c": torch.zeros_like(x), "visited": x.new_zeros(len(x), 1)} if self.correction else {}
        )
        return super().start_clients(x) | controls

    def start_server(self, x: Tensor) -> Server:
        return exact_server(x)

    # --- a round ---

    def broadcast(
        self, plan: Plan, server: Server, who: Tensor, x: Tensor, t: int
    ) -> tuple[Server, Message]:
        vectors = {} if self.oracle_at == "server" else self._shared(server)
        return server, Message(t, server.xbar, vectors)

    def _shared(self, server: Server) -> dict[str, Tensor]:
        """The mean momentum m and the mean control variate c, each (p,), once there are some."""
        found = {"m": server.vectors["m"]} if "m" in server.vectors else {}
        return found | (
            {"c": sent_down(server, _mean_control(server))} if "total" in server.vectors else {}
        )

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        message = message.to(state["x"].dtype)
        begin = message.xbar.expand(len(state["x"]), -1)
        if self.oracle_at == "server":
            gradients = torch.stack(
                [gradient(begin, plain=True)[1] for _ in range(plan.local_steps)]
            )
            return {}, {"vector": gradients.mean(0) - state.get("c", 0)}
        x, m, total = begin, message.vectors.get("m"), torch.zeros_like(begin)
        eta, atoms = plan.rates(message.t).eta, list[Atom]()
        counted = (
            plan.local_steps if self.renew_every == 1 else 1
        )  # of the gradients, in the new c_i
        for k in range(plan.local_steps):
            _, g = gradient(x, plain=True)
            total = total + g if k < counted else total
            g = self._corrected(g, state, message)
            m = g if m is None else torch.lerp(g, m.expand_as(g), self.beta)
            atoms.append(lmo(m))
            x = atoms[-1].step(x.clone(), eta)
        assert m is not None
        _, shares = plan.mixing(message.t)
        payload: Payload = {"atom": mix(atoms, shares)}
        beside = self.sends(message.t, 1)
        if "change" in beside:
            payload["change"] = total / counted - state["c"]
        if "m" in beside:
            payload["m"] = m
        return {}, payload

    def apply(
        self, plan: Plan, shared: State, message: Message, payload: Mapping[str, Atom]
    ) -> State:
        change = payload.get("vector" if self.oracle_at == "server" else "change")
        if change is None or not self.correction:
            return shared
        return shared | {
            "c": shared["c"] + change.dense(),
            "visited": torch.ones_like(shared["visited"]),
        }

    def predicted(
        self, plan: Plan, state: State, message: Message, name: str, sent: Mapping[str, Atom]
    ) -> Tensor | float:
        if name != "m":
            return 0.0
        change = sent["change"].dense() if "change" in sent else None
        return self._expected(plan, message.vectors, change, state.get("visited", 0.0))

    def _expected(
        self,
        plan: Plan,
        shared: Mapping[str, Tensor],
        change: Tensor | None,
        visited: Tensor | float,
        weight: Tensor | float = 1.0,
    ) -> Tensor | float:
        """What m_i (m, p) would be if all K gradients were their mean, which the change tells; else
        the shared m.

        Compressed runs send only how m_i differs from it. It is linear, so with the sums over
        clients of the changes, of the weights of those that had a c_i, and of all weights, it is
        the sum over clients.
        """
        m = shared.get("m")
        if self.compressor is None or (m is None and change is None):
            return 0.0
        if change is None:
            return weight * shared["m"]
        g = change + visited * shared["c"] if "c" in shared else change
        return g if m is None else torch.lerp(g, weight * m, self.beta**plan.local_steps)

    def _corrected(self, g: Tensor, state: State, message: Message) -> Tensor:
        """g - c_i + c, (m, p), of the clients that have a c_i; of the others g."""
        if not self.correction or "c" not in message.vectors:
            return g
        return g + state["visited"] * (message.vectors["c"] - state["c"])

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        if self.oracle_at == "server":
            return self._oracle_step(plan, server, aggregate, t)
        change = aggregate.beside.get("change")
        vectors = self._controls(server, change, aggregate)
        if "m" in aggregate.beside:
            old = 0.0 if aggregate.new is None else aggregate.weight - aggregate.new
            expected = self._expected(plan, self._shared(server), change, old, aggregate.weight)
            vectors["m"] = sent_down(server, (aggregate.beside["m"] + expected) / aggregate.weight)
        return move_server(
            replace(server, vectors=vectors), *to_the_mean(plan, aggregate, t), aggregate
        )

    def repeatable(self, plan: Plan, aggregate: Aggregate, t: int) -> tuple[float, float] | None:
        # The server's own oracle step is made from what it alone remembers, so clients cannot
        # repeat it from a sum.
        return None if self.oracle_at == "server" else super().repeatable(plan, aggregate, t)

    def _oracle_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        """m <- beta m + (1 - beta) (mean of the corrected gradients), xbar <- (1 - eta) xbar + eta
        lmo(m).
        """
        direction, m, eta = (
            aggregate.mean,
            server.vectors.get("m"),
            plan.rates(t).eta * plan.local_steps,
        )
        if "total" in server.vectors and aggregate.new is not None:
            direction = direction + _mean_control(server) * (1 - aggregate.new / aggregate.weight)
        m = direction if m is None else torch.lerp(direction, m, self.beta)
        vectors = self._controls(server, aggregate.total, aggregate) | {"m": m}
        atom = plan.lmo(m.to(vectors["rest"].dtype if "rest" in vectors else m.dtype), t)
        return with_mean(replace(server, vectors=vectors), atom.step(mean_of(server).clone(), eta))

    def _controls(
        self, server: Server, change: Tensor | None, aggregate: Aggregate
    ) -> dict[str, Tensor]:
        """The sum of all c_i, (p,) in float64, and the weight (1,) of the clients that have one."""
        if change is None or aggregate.new is None:
            return dict(server.vectors)
        total, seen = server.vectors.get("total", 0), server.vectors.get("seen", 0)
        return dict(server.vectors) | {"total": total + change, "seen": seen + aggregate.new}

    def regroup(self, server: Server, clients: State, weights: Tensor | None = None) -> Server:
        if "total" not in server.vectors:
            return server
        seen = clients["visited"] if weights is None else clients["visited"] * weights[:, None]
        total = (clients["c"].double() * seen).sum(0)
        return replace(server, vectors=server.vectors | {"total": total, "seen": seen.sum(0)})


def _mean_control(server: Server) -> Tensor:
    """c (p,): the mean of the c_i of all clients that have one."""
    mean: Tensor = server.vectors["total"] / server.vectors["seen"].clamp(min=1e-30)
    return mean
