"""Takes runs until a round, from their folders where there are any.

``python -m tests.simulation.resumed_runs OUT CASE:FOLDER:ROUNDS ...`` takes one after the other.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

import fedfw
from fedfw.ranks import ALONE
from fedfw.report import plots
from tests.simulation.shared_runs import many, outcome, problem

CASES = ("some", "everyone", "many")


def go_on(case: str, folder: Path, rounds: int, ranks: fedfw.Ranks = ALONE) -> dict[str, Any]:
    """The run until that round; it begins anew where there is no folder."""
    resume = bool(ranks.broadcast_object(folder.exists()))
    if case == "many":
        algorithm: fedfw.Algorithm = fedfw.FedFW("l1:5", penalty=0.1, schedule="convex")
        options: dict[str, Any] = {"participation": 5, "eval_every": 4}
        shared = many(ranks)
    else:
        algorithm = fedfw.FedFWPlus("l1:5", momentum=0.5, penalty=0.1, schedule="convex")
        options = {"participation": 0.6}
        shared = problem(torch.float64, ranks)
        if case == "everyone":
            algorithm, options = fedfw.FedFW("l1:5", penalty=0.1, schedule="convex"), {}
    return outcome(
        fedfw.simulate(shared, algorithm, rounds=rounds, out=folder, resume=resume, **options)
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Pictures of the runs take longer than the runs, and nobody looks at them here.
    plots.plot_runs = lambda *_: None  # type: ignore[assignment,misc]
    plots.save_figure = lambda figure, path: path.write_bytes(b"")  # type: ignore[assignment]
    with fedfw.join_ranks() as everybody:
        found = []
        for step in sys.argv[2:]:
            case, folder, rounds = step.split(":")
            found.append(go_on(case, Path(folder), int(rounds), everybody))
        if everybody.first:
            Path(sys.argv[1]).write_text(json.dumps(found))
