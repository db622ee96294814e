"""Finished runs are written and read again, and models leave for other programs."""

from pathlib import Path

import pytest
import torch

import fedfw
from fedfw.testing import two_quadratics


def digits() -> fedfw.Problem:
    return fedfw.load_problem("digits", "mclr", clients=4)


def test_a_saved_run_has_the_history_and_the_parameters(tmp_path: Path) -> None:
    problem = digits()
    run = fedfw.simulate(problem, fedfw.FedFWPlus("l1:10"), rounds=5)
    saved = fedfw.load_run(run.save(tmp_path / "run"))
    assert list(saved.history) == list(run.history)
    assert saved.lower_bound == run.lower_bound
    assert saved.constraint == repr(run.algorithm.constraint)
    fresh = saved.load_into(torch.nn.Linear(64, 10))
    inputs = torch.randn(3, 64)
    assert torch.equal(fresh(inputs), run.model(inputs))
    assert not fresh.training
    assert "5 rounds" in repr(saved)


def short_run(**options: object) -> fedfw.Run:
    return fedfw.simulate(two_quadratics(), fedfw.FedFW("box:-1,1"), rounds=2, **options)


@pytest.mark.usefixtures("no_plots")
def test_the_folder_of_a_run_is_read_like_a_saved_one(tmp_path: Path) -> None:
    run = short_run(out=tmp_path / "run")
    saved = fedfw.load_run(tmp_path / "run")
    assert list(saved.history) == list(run.history)
    assert saved.stopped == run.stopped


def test_a_folder_is_not_saved_into_twice_and_damaged_facts_are_named(tmp_path: Path) -> None:
    run = short_run()
    folder = run.save(tmp_path / "run")
    with pytest.raises(ValueError, match="already holds a run"):
        run.save(folder)
    (folder / "run.json").write_text("[1")
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        fedfw.load_run(folder)


def test_a_model_is_exported_to_torchscript_and_onnx(tmp_path: Path) -> None:
    model = fedfw.simulate(digits(), fedfw.FedFWPlus("l1:10"), rounds=3).model
    inputs = torch.randn(2, 64)
    path = tmp_path / "model"
    torch.jit.trace(model, inputs).save(path)
    assert torch.equal(torch.jit.load(path)(inputs), model(inputs))
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    torch.onnx.export(model, (inputs,), path, dynamo=False, input_names=["x"])
    (found,) = runtime.InferenceSession(path).run(None, {"x": inputs.numpy()})
    assert torch.allclose(torch.from_numpy(found), model(inputs), atol=1e-6)


def test_records_and_runs_print_few_lines() -> None:
    run = fedfw.simulate(digits(), fedfw.FedFWPlus("l1:10"), rounds=3)
    assert len(repr(run).splitlines()) <= 6
    assert len(repr(run.history[-1]).splitlines()) <= 5


@pytest.mark.parametrize("tol", [-0.1, 1.0, float("nan")])
def test_a_tolerance_of_the_support_is_a_share(tol: float) -> None:
    with pytest.raises(ValueError, match="expected a share"):
        short_run().support(tol)
