"""
A callback of your own
======================

A callback looks at a run while it goes on, and may end it. A function that is given the simulation
after every round is enough; it ends the run by returning True. A class has more to say: it may put
numbers of its own into the record, and it names the reason. Either way the run is kept and
returned.
"""

import fedfw


class Patience(fedfw.Callback):
    """Ends a run when the best accuracy has not improved for some evaluations."""

    def __init__(self, evaluations: int) -> None:
        self.evaluations, self.best, self.since = evaluations, 0.0, 0
        self.reason = f"no better accuracy in {evaluations} evaluations"

    def after_round(self, simulation: fedfw.simulation.Simulation) -> bool:
        accuracy = simulation.history[-1].accuracy
        if accuracy is None:
            return False
        self.since = 0 if accuracy > self.best else self.since + 1
        self.best = max(self.best, accuracy)
        return self.since >= self.evaluations


def show(simulation: fedfw.simulation.Simulation) -> None:
    """Print the bytes that were sent so far, at evaluations."""
    record = simulation.history[-1]
    if record.accuracy is not None:
        sent = simulation.history.total("bytes_up")
        print(f"round {record.round:3d}  accuracy {record.accuracy:.3f}  {sent / 1e3:6.1f} kB up")


problem = fedfw.load_problem("digits", clients=10, partition="labels:3")
algorithm = fedfw.FedFWPlus(fedfw.L2Ball(10.0), momentum=0.9)
run = fedfw.simulate(problem, algorithm, rounds=500, eval_every=10, callbacks=[show, Patience(4)])
print(f"ended after {len(run.history)} rounds: {run.stopped}")
