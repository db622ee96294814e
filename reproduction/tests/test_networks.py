"""The study of networks: what is tried and chosen, what is the same for all methods, the bars, and
the page.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pictures import draw_nothing, forget_one
from tests.processes import run_python

from fedfw.cli.main import main
from fedfw.config import RunConfig
from fedfw_reproduction import reproduce
from fedfw_reproduction.catalogue import sections
from fedfw_reproduction.figures import Done
from fedfw_reproduction.lab import Json, Lab, Site
from fedfw_reproduction.networks import protocol, study
from fedfw_reproduction.networks.trainings import Best, Training, all_seeds
from fedfw_reproduction.protocols import FULL, QUICK, Scale

DIGITS = RunConfig.of(
    dataset="digits",
    model="mlp",
    partition="iid",
    clients=8,
    participation=4,
    constraint="l2:10",
    per_parameter=True,
    algorithm="fedavg",
    rounds=4,
    local_steps=10,
    batch_size=16,
)


def tried(*lrs: float) -> tuple[Training, ...]:
    return tuple(Training(DIGITS.having(lr=lr), held_out=True) for lr in lrs)


def test_the_best_trial_is_run_on_all_data_with_other_seeds(tmp_path: Path) -> None:
    trials = tried(1e-6, 0.5, 1e38)
    runs = [Best(trials, "accuracy", seed, every=3) for seed in (0, 1)]
    results = Lab(tmp_path).run(runs)
    accuracies = [results[trial]["runs"][0]["curve"]["accuracy"][-1] for trial in trials[:2]]
    assert accuracies[1] > accuracies[0]
    assert results[trials[2]]["runs"] == []  # it blew up, which is kept as a result, and cannot win
    for run in runs:
        assert run.chosen(results) is trials[1]
        alone = Training(replace(DIGITS.having(lr=0.5), seed=run.seed), every=3).compute(Site())
        (found,) = results[run]["runs"]
        assert found["seed"] == run.seed
        assert found["curve"]["round"] == [3, 4]
        assert found["curve"]["accuracy"] == alone["runs"][0]["curve"]["accuracy"]
        assert found["curve"]["distance"] == [0.0, 0.0]
    assert len(all_seeds(results, runs)["runs"]) == 2


def test_a_run_may_differ_from_its_trials_and_a_single_setting_is_not_tried() -> None:
    (only,) = tried(0.5)
    best = Best((only,), "test_loss", seed=2, changes=(("rounds", 2),))
    assert best.needs == ()
    run = best.settled({})
    assert (run.config.rounds, run.config.seed, run.held_out) == (2, 2, False)
    assert (only.config.rounds, only.held_out) == (4, True)


def test_the_least_loss_is_chosen_where_losses_are_compared() -> None:
    first, second = tried(0.1, 0.5)
    results = {
        first: _result(test_loss=1.0, accuracy=0.5),
        second: _result(test_loss=2.0, accuracy=0.9),
    }
    assert Best((first, second), "test_loss", 0).chosen(results) is first
    assert Best((first, second), "accuracy", 0).chosen(results) is second


@pytest.mark.parametrize("scale", [FULL, QUICK])
@pytest.mark.parametrize("one", study.STUDIES, ids=lambda one: one.name)
def test_all_methods_have_the_same_task_and_at_most_six_settings(
    one: study.Study, scale: Any
) -> None:
    comparison = one.make(scale)
    same = ("dataset", "model", "rounds", "local_steps", "seed", "weights")
    clients = ("clients", "participation", "partition", "batch_size")
    for method in comparison.methods:
        trials = method.runs[0].trials
        assert 2 <= len(set(trials)) == len(trials) <= 6
        assert [run.seed for run in method.runs] == list(range(scale.seeds))
        assert all(trial.held_out and trial.every is None for trial in trials)
        if scale is FULL:
            steps = {
                tuple(trial.config.get(name) for name in ("lr", "server_lr", "schedule"))
                for trial in trials
            }
            assert len(steps) >= 2, method.label
        for trial in trials:
            names = same if method.label == "central" else (*same, *clients)
            assert all(
                getattr(trial.config, name) == getattr(comparison.config, name) for name in names
            ), method.label


def test_central_training_takes_the_same_steps_and_samples() -> None:
    ours, central = (method.runs[0].trials[0].config for method in protocol.certified(FULL).methods)
    assert (central.clients, central.participation) == (1, 1.0)
    assert central.batch_size == ours.batch_size * ours.participation  # type: ignore[operator]
    assert central.get("certify") == ours.get("certify") == "0.1,0.25,0.5,1"


def _result(**last: Any) -> Json:
    """The result of one run whose curve has one point."""
    return {"runs": [{"seed": 0, "curve": {name: [value] for name, value in last.items()}}]}


def _done(**last: Any) -> Done:
    return Done(None, _result(**last))


PEER = {"FedAvg": _done(accuracy=0.4), "SCAFFOLD": _done(accuracy=0.5)}


@pytest.mark.parametrize(("ours", "half", "holds"), [(0.625, 0.5, True), (0.57, 0.49, False)])
def test_accuracies_are_compared_with_the_best_peer(ours: float, half: float, holds: bool) -> None:
    found = {"FedLMO": _done(accuracy=ours), "FedLMO, half the rounds": _done(accuracy=half)}
    assert [bar[1] for bar in study.cifar_bars(found | PEER)] == [holds, holds]


@pytest.mark.parametrize(
    ("accuracy", "bytes_up", "distance", "holds"),
    [
        (0.645, 1000, 0.0, True),
        (0.63, 1000, 0.0, False),
        (0.645, 1100, 0.0, False),
        (0.645, 1000, 1e-6, False),
    ],
)
def test_four_bits_must_be_as_good_and_short_and_in_the_set(
    accuracy: float, bytes_up: int, distance: float, holds: bool
) -> None:
    four = _done(accuracy=accuracy, bytes_up=bytes_up, distance=distance)
    found = {"FedLMO": _done(accuracy=0.65, bytes_up=8000), "FedLMO, 4 bits": four}
    assert [bar[1] for bar in study.payload_bars(found)] == [holds]


def test_losses_and_certified_shares_are_compared() -> None:
    text = {"FedLMO": _done(test_loss=1.52), "local AdamW, shared state": _done(test_loss=1.51)}
    assert [holds for _, holds, _ in study.shakespeare_bars(text)] == [True, False]
    robust = {"FedLMO": _done(accuracy=0.98, certified={"0.5": 0.88, "1": 0.59})}
    assert [holds for _, holds, _ in study.certified_bars(robust)] == [True, True, False]


def test_a_page_is_made_from_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clients = protocol._clients

    def two_rounds(scale: Scale, **values: Any) -> RunConfig:
        return replace(clients(scale, **values), rounds=2)

    monkeypatch.setattr(protocol, "_clients", two_rounds)
    arguments = ["reproduce", "networks-mnist", "--quick", "--out", str(tmp_path)]
    assert main([*arguments, "--seconds", "1e-9"]) == 0
    assert "0 of 28 tasks are done" in capsys.readouterr().out
    assert main([*arguments, "--markdown", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text()
    assert "not run" not in page
    assert all(f"| {label} |" in page for label in ("FedLMO", "FedAvg", "LocalMuon"))
    assert (tmp_path / "page" / "networks-mnist.svg").is_file()
    forget_one(tmp_path)  # as if time had been short
    draw_nothing(monkeypatch)
    assert main([*arguments, "--kept"]) == 0
    page = (tmp_path / "networks-mnist-quick.html").read_text()
    assert "tasks not run: not yet" in page
    assert "<svg" in page


def test_the_name_of_the_group_means_all_of_its_sections() -> None:
    meant = [
        section.name for section in sections().values() if reproduce._belongs(section, "networks")
    ]
    assert {one.name for one in study.STUDIES} <= set(meant)
    assert all(name.startswith("networks-") for name in meant)
    assert not any(
        reproduce._belongs(section, "all")
        for section in sections().values()
        if section.name in meant
    )


def test_a_machine_that_only_computes_needs_no_pictures() -> None:
    script = (
        "import sys; kept = {*sys.stdlib_module_names, 'torch', 'numpy'}\n"
        "for name in [name for name in sys.modules if name.partition('.')[0] not in kept]: del sys.modules[name]\n"
        "sys.modules.update(matplotlib=None, scipy=None, sklearn=None)\n"
        "from fedfw_reproduction.reproduce import reproduce; print(reproduce)\n"
        "try:\n"
        "    import fedfw.report.plots\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = run_python(["-c", script])
    assert "function reproduce" in done.stdout
    assert "matplotlib" in done.stdout  # it is as if they were not there
