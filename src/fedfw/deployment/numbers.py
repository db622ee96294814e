"""Numbers of "auto" in a deployment: worked out from one number of each client's data, told when it
is first met.
"""

from dataclasses import dataclass, field

from fedfw.algorithms.contract import Algorithm
from fedfw.deployment.messages import TOO_LARGE, Hello
from fedfw.deployment.task import Task
from fedfw.errors import MessageError
from fedfw.rounds.setup import mean_steepness


@dataclass
class Reported:
    """What clients said of themselves.

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
        """Keep a client's numbers; raises `MessageError` for numbers that nobody's data have."""
        for name in ("steepness", "smoothness"):
            value = getattr(hello, name)
            if value is not None and not 0 <= value < TOO_LARGE:
                raise MessageError(
                    f"client {hello.client} reports a {name} of {value}, expected a number of at least 0"
                )
        if hello.client < self.task.clients:
            self.hellos.setdefault(hello.client, hello)

    def resolved(self) -> Algorithm:
        """The algorithm with its penalty and its step size as numbers."""
        setting = self.task.setting(
            steepness=self.steepness,
            smoothness=self.smoothness,
            local_smoothness=self.local_smoothness,
        )
        plan = self.task.resolved().plan(setting)
        return self.task.resolved(penalty=plan.lam_0, lr=plan.lr)

    def steepness(self) -> float | None:
        """The root mean square of n w_i ||grad f_i|| at the start; None where nobody reported it."""
        each = {
            client: one.steepness
            for client, one in self.hellos.items()
            if one.steepness is not None
        }
        weights = self._weights(list(each))
        return mean_steepness(list(each.values()), list(weights.values())) if each else None

    def smoothness(self) -> float | None:
        """L' = n max w_i L_i; None where nobody reported it."""
        each = {
            client: one.smoothness
            for client, one in self.hellos.items()
            if one.smoothness is not None
        }
        weights = self._weights(list(each))
        return (
            max(
                (len(each) * weights[client] * value for client, value in each.items()), default=0.0
            )
            or None
        )

    def local_smoothness(self) -> float | None:
        """Return max L_i; None where no client reported it."""
        each = [one.smoothness for one in self.hellos.values() if one.smoothness is not None]
        return max(each, default=0.0) or None

    def _weights(self, clients: list[int]) -> dict[int, float]:
        return {client: self.task.weight(client, clients) for client in clients}
