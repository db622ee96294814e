"""Numbers of "auto" in a deployment: worked out from one number of each client's data, sent when it
is first met.
"""

from dataclasses import dataclass, field

from fedfw.algorithms.contract import Algorithm
from fedfw.algorithms.rules import StepRule
from fedfw.deployment.messages import Hello
from fedfw.deployment.task import Task
from fedfw.rounds.setup import mean_gradient_norm


@dataclass
class Reported:
    """The numbers that clients reported of their data.

    Parameters
    ----------
    task : Task
        What is trained.
    hellos : dict of int to Hello
        By the clients' numbers; the first word of each counts.
    """

    task: Task
    hellos: dict[int, Hello] = field(default_factory=dict)

    def note(self, hello: Hello) -> None:
        """Keep a client's numbers, whose range the message has checked."""
        if hello.client < self.task.clients:
            self.hellos.setdefault(hello.client, hello)

    def configured(self) -> tuple[Algorithm, StepRule]:
        """Return the algorithm with its penalty and its step size as numbers, and its rule."""
        setting = self.task.setting(
            rms_gradient_norm=self.rms_gradient_norm,
            smoothness=self.smoothness,
            local_smoothness=self.local_smoothness,
        )
        return self.task.algorithm.configure(setting)

    def rms_gradient_norm(self) -> float | None:
        """Return the root mean square of n w_i ||grad f_i|| at the start; None without reports."""
        norms = self._numbers("gradient_norm")
        if not norms:
            return None
        weights = [self.task.weight(client, list(norms)) for client in norms]
        return mean_gradient_norm(list(norms.values()), weights)

    def smoothness(self) -> float | None:
        """Return L' = n max w_i L_i over the n clients that reported L_i; None without reports, and
        where all are 0, which gives no step size.
        """
        reported = self._numbers("smoothness")
        clients = list(reported)
        weighted = [
            len(clients) * self.task.weight(client, clients) * smoothness
            for client, smoothness in reported.items()
        ]
        return max(weighted, default=0.0) or None

    def local_smoothness(self) -> float | None:
        """Return max L_i; None where no client reported it."""
        return max(self._numbers("smoothness").values(), default=0.0) or None

    def _numbers(self, name: str) -> dict[int, float]:
        """Return a number of each client that reported it, by the clients' numbers."""
        values = {client: getattr(hello, name) for client, hello in self.hellos.items()}
        return {client: value for client, value in values.items() if value is not None}
