"""Stragglers, attendance, tolerance, records, checkpoints."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedfw
from fedfw.experiments.quadratics import Quadratics
from fedfw.simulation.engine import Simulation
from fedfw.simulation.files import DamagedCheckpointError, load_checkpoint
from fedfw.simulation.history import History
from fedfw.simulation.participation import Participation


class TestStragglers:
    """relax: some clients use a larger, simpler set."""

    def test_the_distance_falls_as_the_theory_says_and_the_model_is_inside(self) -> None:
        q = Quadratics.on("l1")
        loose = fedfw.enclosing(q.constraint, "l2")
        relax = dict.fromkeys(range(5), loose)
        n, m = 8, 3
        apart = []

        def watch(simulation: Simulation) -> None:
            record = simulation.history[-1]
            assert record.distance <= ((n - m) / (n * m)) ** 0.5 * record.consensus + 1e-9
            apart.append(record.distance)

        algorithm = fedfw.FedFW(q.constraint, penalty=3 * q.best_penalty)
        run = fedfw.simulate(q.problem, algorithm, rounds=2000, relax=relax, callbacks=[watch])
        assert max(apart) > 1e-3
        assert apart[-1] < 0.5 * max(apart)
        assert q.constraint.contains(run.feasible)
        assert q.value(run.feasible) >= q.least - 1e-9
        model = torch.cat([p.flatten() for p in run.model.parameters()])
        assert torch.equal(model, run.feasible)
        assert run.lower_bound <= q.least + 1e-9

    def test_refusals(self) -> None:
        q = Quadratics.on("l1")
        loose = fedfw.enclosing(q.constraint, "l2")
        algorithm = fedfw.FedFW(q.constraint)
        with pytest.raises(ValueError, match="somebody must keep the constraint"):
            fedfw.simulate(q.problem, algorithm, relax=dict.fromkeys(range(8), loose))
        with pytest.raises(ValueError, match="relax names clients \\[9\\]"):
            fedfw.simulate(q.problem, algorithm, relax={9: loose})
        with pytest.raises(ValueError, match="does not contain the constraint"):
            fedfw.simulate(q.problem, algorithm, relax={1: fedfw.L2Ball(0.1)})
        for moves_clients in (fedfw.FedFWAnchored(q.constraint), fedfw.FrankWolfe(q.constraint)):
            with pytest.raises(ValueError, match="relax does not go with"):
                fedfw.simulate(q.problem, moves_clients, relax={1: loose})


class TestParticipation:
    """Who takes part."""

    def test_rates(self) -> None:
        chances = [0.1, 0.5, 0.9]
        attends = Participation(chances, 3, seed=1)
        counts = torch.zeros(3)
        for t in range(1, 2001):
            counts[attends(t)] += 1
        assert torch.allclose(counts / 2000, torch.tensor(chances), atol=0.04)
        assert attends.p == 0.1

    def test_fixed_numbers(self) -> None:
        attends = Participation(3, 10, seed=1)
        assert attends.p == pytest.approx(0.3)
        seen = [tuple(attends(t).tolist()) for t in range(1, 50)]
        assert {len(set(s)) for s in seen} == {3}
        assert len(set(seen)) > 20

    @pytest.mark.parametrize("wanted", [0.0, 1.5, 11, 0, 1, [0.5, 0.5], [0.5] * 9 + [0.0]])
    def test_refusals(self, wanted: object) -> None:
        with pytest.raises(ValueError, match="participation="):
            Participation(wanted, 10, seed=0)  # type: ignore[arg-type]

    def test_a_client_named_twice_takes_part_once(self) -> None:
        attends = Participation(lambda t: torch.tensor([1, 1, 2]), 4, seed=0)  # type: ignore[arg-type, return-value]
        assert attends(1).tolist() == [1, 2]

    def test_a_round_nobody_joins_changes_nothing(self) -> None:
        q = Quadratics.on("l1")
        points = []
        run = fedfw.simulate(
            q.problem,
            fedfw.FedFWPlus(q.constraint, penalty=0.1),
            rounds=6,
            participation=lambda t: [] if t in (3, 4) else range(8),
            callbacks=[lambda s: points.append(s.server.xbar.clone())],
        )
        assert torch.equal(points[1], points[3])
        assert not torch.equal(points[3], points[4])
        assert [r.participants for r in run.history] == [8, 8, 0, 0, 8, 8]
        assert run.history[2].bytes_up == run.history[2].bytes_down == 0


def test_tolerance_stops_with_a_proof(tmp_path: Path) -> None:
    q = Quadratics.on("simplex")
    algorithm = fedfw.FedFWAnchored(q.constraint, anchor_every=5)
    run = fedfw.simulate(q.problem, algorithm, rounds=5000, tol=0.01, out=tmp_path)
    assert len(run.history) < 5000
    assert "within tol" in run.stopped
    assert run.history[-1].loss - q.least <= 0.01
    again = fedfw.simulate(q.problem, algorithm, rounds=5000, tol=0.01, out=tmp_path, resume=True)
    assert len(again.history) == len(run.history)
    assert torch.equal(again.x, run.x)


def test_the_surrogate_is_what_it_says() -> None:
    q = Quadratics.on("l2")
    algorithm = fedfw.FedFW(q.constraint, penalty=0.1, momentum=0.9)
    points = {}

    def watch(simulation: Simulation) -> None:
        points[simulation.t] = simulation.clients["x"].clone()

    run = fedfw.simulate(q.problem, algorithm, rounds=4, participation=0.5, callbacks=[watch])
    for record in run.history:
        x = points[record.round]
        values = torch.einsum("ni,nij,nj->n", x - q.c, q.A, x - q.c) / 2
        expected = float((q.w * values).sum()) + record.lam / 2 * float((x - x.mean(0)).square().sum())
        assert record.surrogate == pytest.approx(expected)


def test_a_huge_penalty_names_client_and_round() -> None:
    q = Quadratics.on("l2")
    with pytest.raises(fedfw.NonFiniteError, match=r"round \d: NaN or infinity in the direction of client"):
        fedfw.simulate(q.problem, fedfw.FedFW(q.constraint, penalty=1e308), rounds=3, eval_every=3)


def test_a_class_is_no_algorithm() -> None:
    with pytest.raises(TypeError, match="expected an algorithm with its set"):
        fedfw.simulate(Quadratics.on("l2").problem, fedfw.FedFWPlus)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"local_steps": 0}, "local_steps=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"tol": 0.0}, "tol=0.0"),
        ({"eval_every": -1}, "eval_every=-1"),
        ({"batch_size": 3}, "plain functions"),
        ({"device": "tpu"}, "device='tpu'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    q = Quadratics.on("l1")
    with pytest.raises(ValueError, match=message):
        fedfw.simulate(q.problem, fedfw.FedFW(q.constraint), **options)  # type: ignore[arg-type]


def test_certificate_says_when_it_is_not_valid() -> None:
    q = Quadratics.on("l1")
    unknown = fedfw.Problem.from_losses([lambda x: x.sin().sum()], torch.zeros(3))
    run = fedfw.simulate(unknown, fedfw.FedFW(fedfw.L1Ball(1.0)), rounds=3)
    assert run.lower_bound is None
    assert run.certificate.startswith("not valid")
    with pytest.raises(ValueError, match="tol needs a certificate"):
        fedfw.simulate(unknown, fedfw.FedFW(fedfw.L1Ball(1.0)), rounds=3, tol=0.1)
    averaged = fedfw.simulate(q.problem, fedfw.FedFW(q.constraint, momentum=0.9), rounds=20, eval_every=10)
    assert averaged.history[5].lower_bound is None
    assert averaged.history[9].lower_bound is not None
    assert "F - gap" in averaged.certificate


def test_history_as_columns_and_csv(tmp_path: Path) -> None:
    q = Quadratics.on("l1")
    run = fedfw.simulate(q.problem, fedfw.FedFW(q.constraint), rounds=5, eval_every=2)
    columns = run.history.to_dict()
    assert columns["round"] == [1, 2, 3, 4, 5]
    assert [value is None for value in columns["loss"]] == [True, False, True, False, False]
    run.history.to_csv(tmp_path / "h.csv")
    with open(tmp_path / "h.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    assert {"seconds_gradient", "seconds_oracle", "seconds_rest"} <= set(rows[0])
    assert History.from_jsonl(run.history.to_jsonl()).to_dict() == columns
    figure = run.plot()
    assert len(figure.axes) == 4


class TestCheckpoints:
    """An interrupted run resumes to the same bits."""

    def algorithms(self, D: fedfw.ConstraintSet) -> list[fedfw.Algorithm]:
        return [
            fedfw.FedFWPlus(D, penalty=0.05, momentum=0.9),
            fedfw.FedFWSto(D, penalty=0.05),
            fedfw.FedFWAnchored(D, anchor_every=7),
        ]

    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_interrupted_and_resumed(self, tmp_path: Path, which: int) -> None:
        q = Quadratics.on("l1")
        algorithm = self.algorithms(q.constraint)[which]
        options = {"rounds": 40, "participation": 0.6, "seed": 5}
        whole = fedfw.simulate(q.problem, algorithm, out=tmp_path / "whole", **options)

        def stop(simulation: Simulation) -> None:
            if simulation.t == 27:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fedfw.simulate(q.problem, algorithm, out=tmp_path / "cut", callbacks=[stop], **options)
        with pytest.raises(ValueError, match="already holds a run"):
            fedfw.simulate(q.problem, algorithm, out=tmp_path / "cut", **options)
        resumed = fedfw.simulate(q.problem, algorithm, out=tmp_path / "cut", resume=True, **options)
        assert torch.equal(whole.x, resumed.x)
        columns = [run.history.to_dict() for run in (whole, resumed)]
        for column in columns:
            column.pop("seconds")
        assert columns[0] == columns[1]

    def test_a_damaged_checkpoint_is_passed_over(self, tmp_path: Path) -> None:
        q = Quadratics.on("l1")
        algorithm = self.algorithms(q.constraint)[0]
        whole = fedfw.simulate(q.problem, algorithm, rounds=40, out=tmp_path / "run")
        newest = sorted((tmp_path / "run").glob("checkpoint-*.bin"))
        assert [path.name for path in newest] == ["checkpoint-00000030.bin", "checkpoint-00000040.bin"]
        data = bytearray(newest[1].read_bytes())
        other_version = data.replace(b"fedfw-checkpoint 2 ", b"fedfw-checkpoint 7 ", 1)
        for spoilt in (data[:-5], data[:200] + b"x" + data[201:], b"", b"fedfw-checkpoint 2\n{", other_version):
            newest[1].write_bytes(bytes(spoilt))
            with pytest.raises(DamagedCheckpointError):
                load_checkpoint(newest[1])
            with pytest.warns(UserWarning, match="going back to the one before it"):
                resumed = fedfw.simulate(q.problem, algorithm, rounds=40, out=tmp_path / "run", resume=True)
            assert torch.equal(whole.x, resumed.x)

    def test_another_run_is_not_continued(self, tmp_path: Path) -> None:
        q = Quadratics.on("l1")
        fedfw.simulate(q.problem, fedfw.FedFW(q.constraint, penalty=0.1), rounds=10, out=tmp_path)
        for other in (
            fedfw.FedFW(q.constraint, penalty=0.2),
            fedfw.FedFW(fedfw.L1Ball(2.0), penalty=0.1),
            fedfw.FedFWPlus(q.constraint, penalty=0.1),
        ):
            with pytest.raises(ValueError, match="holds another run"):
                fedfw.simulate(q.problem, other, rounds=20, out=tmp_path, resume=True)
        with pytest.raises(ValueError, match="holds another run"):
            fedfw.simulate(
                q.problem, fedfw.FedFW(q.constraint, penalty=0.1), rounds=20, seed=1, out=tmp_path, resume=True
            )

    def test_relaxed_minibatch_local_steps_resume_to_the_same_bits(self, tmp_path: Path) -> None:
        generator = torch.Generator().manual_seed(0)
        clients = [
            (torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator))
            for size in (9, 20, 14, 14)
        ]
        network = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        problem = fedfw.Problem(network, torch.nn.functional.cross_entropy, clients)
        algorithm = fedfw.FedFWPlus(fedfw.L1Ball(3.0), penalty=0.01, momentum=0.5)
        options = {
            "rounds": 25,
            "participation": 3,
            "relax": {0: fedfw.L2Ball(3.0)},
            "local_steps": 2,
            "batch_size": 4,
        }
        whole = fedfw.simulate(problem, algorithm, **options)

        def stop(simulation: Simulation) -> None:
            if simulation.t == 17:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fedfw.simulate(problem, algorithm, out=tmp_path, callbacks=[stop], **options)
        resumed = fedfw.simulate(problem, algorithm, out=tmp_path, resume=True, **options)
        assert torch.equal(whole.x, resumed.x)

    def test_killed_at_any_moment(self, tmp_path: Path) -> None:
        """A process that is killed -9 in the middle; resuming gives the bits of an undisturbed run."""
        base = [sys.executable, "-m", "fedfw.cli"]
        flags = ["--rounds", "600", "--constraint", "l2:10", "--algorithm", "fedfw+", "--eval-every", "20"]
        whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
        alone = os.environ | {"OMP_NUM_THREADS": "1"}  # more threads than cores would wait for each other
        subprocess.run([*base, "run", *flags, "--out", whole], check=True, capture_output=True, env=alone)
        process = subprocess.Popen(
            [*base, "run", *flags, "--out", cut], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=alone
        )
        try:
            while not list(Path(cut).glob("checkpoint-*.bin")) and process.poll() is None:
                os.sched_yield()
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert not (Path(cut) / "model.pt").exists()  # it was killed before it was done
        subprocess.run([*base, "resume", cut], check=True, capture_output=True, env=alone)
        models = [torch.load(Path(folder) / "model.pt", weights_only=True) for folder in (whole, cut)]
        for name in models[0]:
            assert torch.equal(models[0][name], models[1][name])
