"""Numbers of "auto" in a deployment: worked out from one number of each client's data, sent when it
is first met.
"""

from dataclasses import dataclass, field

from fedfw.algorithms.contract import Algorithm
from fedfw.algorithms.rules import StepRule
from fedfw.deployment.messages import TOO_LARGE, Hello
from fedfw.deployment.task import Task
from fedfw.errors import MessageError
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
        """Keep a client's numbers; raises `MessageError` for numbers that no data have."""
        for name in ("gradient_norm", "smoothness"):
            value = getattr(hello, name)
            if value is not None and not 0 <= value < TOO_LARGE:
                raise MessageError(
                    f"client {hello.client} reports a {name} of {value}, expected a number of at "
                    "least 0"
                )
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
        norms = {
            client: hello.gradient_norm
            for client, hello in self.hellos.items()
            if hello.gradient_norm is not None
        }
        weights = self._weights(list(norms))
        return mean_gradient_norm(list(norms.values()), list(weights.values())) if norms else None

    def smoothness(self) -> float | None:
        """Return L' = n max w_i L_i; None without reports."""
        constants = {
            client: hello.smoothness
            for client, hello in self.hellos.items()
            if hello.smoothness is not None
        }
        weights = self._weights(list(constants))
        return (
            max(
                (len(constants) * weights[client] * value for client, value in constants.items()),
                default=0.0,
            )
            or None
        )

    def local_smoothness(self) -> float | None:
        """Return max L_i; None where no client reported it."""
        constants = [
            hello.smoothness for hello in self.hellos.values() if hello.smoothness is not None
        ]
        return max(constants, default=0.0) or None

    def _weights(self, clients: list[int]) -> dict[int, float]:
        return {client: self.task.weight(client, clients) for client in clients}
