"""Steps from curvature: the step sizes of the schedule ``curvature``, which ``auto`` stands for
where it may be used.

2/(t+1) is far too long for badly conditioned problems. A step along d = s - x from x gains most at
gap / S, where gap = <g, x - s> and S = <Hessian d, d>. With averaged curvature, and a factor c for
momentum beta, that is

    eta_{t+1} = min(2/(t+2), c gap_t / q_t),    q_t = w q_{t-1} + (1-w) S_t,    w = max(beta, 0.9)

and eta = 0.01 until there is a first S. With a = w_i grad f_i(x_i) two gradients at hand give S
without a third one:

    S_i = max(0, <a_i^t - a_i^{t-1}, d_i^{t-1}> / eta_{t-1}) + lam_t ||d_i^{t-1}||^2

Clients that keep points of their own send gap_i and S_i beside their atom, the server adds them up
and sends eta down with the next xbar. Frank-Wolfe's server, which has the gradients, uses gap_t for
the step of the same round: with the gap of the round before, steps with momentum swing.

Whatever clients report, eta stays between a thousandth of 2/(t+1) and 2/(t+1), and one round's S
counts as at most 10 times the average so far.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfw.algorithms.rules import FrankWolfeSteps, Rates, State, StepRule, scalar
from fedfw.atoms import Atom

FIRST_STEP = 0.01
"""The step size while nothing is known of the curvature."""
LEAST = 1e-3
"""Of 2/(t+1): shorter steps would leave no difference between two gradients but their rounding
errors.
"""
LEAST_WEIGHT = 0.9
"""The least weight of the past in the average of the curvature."""
LARGEST_JUMP = 10.0
"""One round's curvature counts as at most so many times the average: no client stops all others
with one number.
"""
LARGEST = 1e15
"""Reported numbers are cut off here."""
SPARSE = 0.5
"""The share of an atom's entries that are not zero, below which atoms count as sparse."""
_FACTORS = {
    (True, False): (1.0, 0.9),
    (True, True): (1.5, 0.7),
    (False, False): (1.0, 0.65),
    (False, True): (1.8, 0.4),
}
"""(scale, power) of c = scale / (1 - beta)^power, by whether clients have points and whether atoms
are sparse.
"""
REPORTED = 2
"""How many numbers a client reports in a round: its gap and its curvature."""


def factor(beta: float, points: bool, sparse: bool) -> float:
    """Return c for momentum beta, chosen on small problems: see docs/algorithms.md.

    Parameters
    ----------
    beta : float
        The momentum.
    points : bool
        Whether clients have points of their own.
    sparse : bool
        Whether atoms name few coordinates: without momentum their curvature then overstates that of
        many steps.

    Examples
    --------
    >>> [round(factor(beta, points=True, sparse=False), 1) for beta in (0.0, 0.5, 0.9)]
    [1.0, 1.9, 7.9]
    """
    scale, power = _FACTORS[points, sparse]
    return float(scale * (1 - beta) ** -power)


def average_curvature(q: Tensor, reported: Tensor, beta: float) -> Tensor:
    """Return the average curvature q <- weight q + (1 - weight) S after one more round, where S is
    cut off at a multiple of q; 0 stands for none yet.

    Parameters
    ----------
    q : Tensor
        () in float64: the average so far.
    reported : Tensor
        (2,): gap and S of this round.
    beta : float
        The momentum.
    """
    weight = max(beta, LEAST_WEIGHT)
    measured = q > 0
    new = torch.where(measured, torch.minimum(reported[1], LARGEST_JUMP * q), reported[1])
    after = torch.where(measured, weight * q + (1 - weight) * new, new)
    return torch.where((new > 0) & after.isfinite(), after, q)


def step_size(
    q: Tensor, reported: Tensor, cap: float | Tensor, c: float, before: float | Tensor
) -> Tensor:
    """Return eta = c gap / q, () in float64, from the average curvature q () and the gap in
    ``reported`` (2,), but at most ``cap`` = 2/(t+1) and at least a fraction of that.

    ``before`` is the step size while no curvature is measured.
    """
    cap = torch.as_tensor(cap, dtype=torch.float64, device=q.device)
    measured = (q > 0) & reported[0].isfinite() & reported.any()
    eta = torch.where(measured, c * reported[0] / q, before)
    return torch.minimum(torch.maximum(eta, LEAST * cap), cap)


def init_memory(x: Tensor) -> State:
    """Return what clients at x (m, p) remember of their last step: its direction d, and
    (<a, d>, eta), which is 0 for none.
    """
    return {"move": torch.zeros_like(x), "past": x.new_zeros(len(x), 2, dtype=torch.float64)}


def measure(
    memory: State, x: Tensor, a: Tensor, g: Tensor, atom: Atom, lam: float | Tensor
) -> Tensor:
    """Return gap_i = <g_i, x_i - s_i> and S_i = max(0, <a_i - b_i, d_i> / eta) + lam |d_i|^2 of a
    stack of clients, (m, 2); zeros for those that remember no step.

    Here d_i is the direction of the last step, eta its size and b_i the gradient at its start.

    Parameters
    ----------
    memory : dict
        What `init_memory` or `remember` gave.
    x : Tensor
        (m, p): where the clients are.
    a, g : Tensor
        (m, p): w_i grad f_i(x_i), and the direction that the oracle was given.
    atom : Atom
        Its answers.
    lam : float
        The penalty.
    """
    move = memory["move"]
    slope, eta = memory["past"].unbind(1)  # <b_i, d_i>, and 0 where no step is remembered
    gap = (g.double() * x.double()).sum(1) - atom.dot(g)
    bend = ((a.double() * move.double()).sum(1) - slope) / torch.where(eta > 0, eta, 1.0)
    curvature = bend.clamp(min=0) + lam * move.double().square().sum(1)
    both = torch.stack([gap.clamp(min=0), curvature], 1)
    # Sums over clients in a's dtype stay finite.
    both = both.nan_to_num(LARGEST, LARGEST, 0).clamp(max=LARGEST)
    return torch.where(eta[:, None] > 0, both, 0.0).to(a.dtype)


def remember(begun: Tensor, after: Tensor, a: Tensor, eta: float | Tensor) -> State:
    """Return what clients remember of a step of size eta from ``begun`` to ``after`` (m, p), where
    their gradient was a.
    """
    move = ((after - begun) / eta).to(a.dtype)  # the step's direction, atom - begun
    slope = (a.double() * move.double()).sum(1)
    return {"move": move, "past": torch.stack([slope, torch.zeros_like(slope) + eta], 1)}


@dataclass(frozen=True)
class CurvatureSteps(StepRule):
    """Steps from the curvature along the clients' last steps, at most as long as another rule's.

    The runner measures: it sees the first gradient and the first oracle call of a client, and the
    shared "x" before and after `apply`. So any method whose clients take Frank-Wolfe steps from
    their own "x" can use this rule without a line of its own.

    Parameters
    ----------
    longest : FrankWolfeSteps
        The rule with the longest steps.
    factor : float
        c.
    beta : float
        The momentum.
    """

    longest: FrankWolfeSteps
    factor: float
    beta: float = 0.0

    reports_curvature: ClassVar[bool] = True
    uses_oracles: ClassVar[bool] = True

    def init(self) -> State:
        return {"eta": scalar(FIRST_STEP), "q": scalar(0.0)}

    def rates(self, state: State, t: int) -> tuple[Rates, ...]:
        return self.longest.rates_below(float(state["eta"]), t)

    def to_send(self, state: State) -> float | None:
        return float(state["eta"])

    def from_sent(self, number: float | None) -> State:
        assert number is not None
        return {"eta": scalar(number), "q": scalar(0.0)}

    def update(self, state: State, reported: Tensor, t: int) -> State:
        """Return the next step size, from the curvature that clients reported."""
        reported = reported.double().cpu()
        q = average_curvature(state["q"], reported, self.beta)
        cap = self.longest.rates({}, t + 1)[0].eta
        before = self.rates(state, t)[0].eta
        return {"eta": step_size(q, reported, cap, self.factor, before), "q": q}
