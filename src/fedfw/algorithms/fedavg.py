"""FedAvg with a projection, and FedProx: local gradient steps from xbar, the mean of the local
models, projected.

    x_i <- xbar;   K times:  x_i <- a gradient step on f_i(x_i) + mu/2 ||x_i - xbar||^2;   xbar <- P(mean of the x_i)

The mean is over those present, with the weights w_i. With mu > 0 it is FedProx. With K = 1 it is
projected gradient descent on F, and its only fixed points are the minimisers; with more local steps
they are not, when clients differ.

With `compress` or `compress_down` a client sends how far it came from z, the point that the server
sent, and what both sides remember of it counts for those who are absent
(`fedfw.algorithms.feedback`): xbar <- P(xbar - mean of all h_i), where h_i follows z - x_i.

References: McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-efficient learning of
deep networks from decentralized data" (2017); Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith,
"Federated optimization in heterogeneous networks" (2020).
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from fedfw.algorithms.contract import (
    Aggregate,
    Contract,
    Gradient,
    Lmo,
    Message,
    Payload,
    Plan,
    Reveals,
    Server,
    State,
    Up,
)
from fedfw.algorithms.feedback import REMEMBERS, Feedback
from fedfw.algorithms.projected import ProjectedAlgorithm, descend
from fedfw.options import option


@dataclass(frozen=True)
class FedAvg(Feedback, ProjectedAlgorithm):
    """FedAvg with a projection; with a pull to the server's model it is FedProx.

    Parameters
    ----------
    constraint : ConstraintSet or Product
        The set D; it must have a projection.
    lr : float or str
        Step size of the local gradient steps; see `ProjectedAlgorithm`.
    decay : {"none", "linear"}
        Whether that step size falls from round to round; see `ProjectedAlgorithm`.
    mu : float
        FedProx's pull to the server's model.
    compress : str
        What is done to what clients send: "topk:64", for example; see `fedfw.compression`.
    compress_down : str
        What is done to the model that the server sends: "none", or "topk:64" for its 64 largest
        changes.

    Examples
    --------
    >>> import fedfw
    >>> problem = fedfw.testing.two_quadratics()
    >>> run = fedfw.simulate(problem, fedfw.FedAvg(fedfw.Box(-1.0, 1.0)), rounds=20)
    >>> round(float(run.x), 2)
    1.0
    """

    mu: Annotated[float, option("pull to the server's model: FedAvg with it is FedProx", ge=0)] = (
        0.0
    )

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    revision: ClassVar[int] = 2
    contract: ClassVar[Contract] = Contract(
        up=Up.VECTOR,
        remembers=REMEMBERS,
        reveals=Reveals.MODELS,
        shares="every client's local model in each round",
        weighted=True,
    )
    tuned_step: ClassVar[float] = 1.6

    def local_update(
        self, plan: Plan, state: State, message: Message, gradient: Gradient, lmo: Lmo
    ) -> tuple[State, Payload]:
        z = self.point(message)
        x = descend(plan, message.t, gradient, z.expand_as(state["x"]), z, self.mu, plain=True)
        if self._sends_models:
            return {}, {"vector": x}
        return {}, {"vector": z - x}

    def server_step(self, plan: Plan, server: Server, aggregate: Aggregate, t: int) -> Server:
        if self._sends_models:
            return Server(plan.project(aggregate.mean), server.vectors)
        return replace(server, xbar=plan.project(server.xbar - aggregate.mean))

    @property
    def _sends_models(self) -> bool:
        """Whether clients send their local models as they are: the server knows from where they
        came.
        """
        return self.compress == "none" and not self.sends_another_point
