"""What a run gives back: in words, in a notebook, as a picture and as a pickle."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

import fedfw


def run_of(model: str, dtype: torch.dtype = torch.float32) -> fedfw.Run:
    x, y = torch.randn(12, 4, dtype=dtype), torch.arange(12) % 3
    module: torch.nn.Module = torch.nn.Linear(4, 3)
    if model == "module":
        module = torch.nn.Sequential(torch.nn.Flatten(), module)
    clients = [(x[:5], y[:5]), (x[5:], y[5:])]
    problem = fedfw.Problem(module.to(dtype), torch.nn.functional.cross_entropy, clients, test=(x, y), convex=True)
    return fedfw.simulate(problem, fedfw.FedFW(fedfw.L2Ball(2.0)), rounds=3)


def test_a_run_and_its_problem_say_what_they_are() -> None:
    run = run_of("linear")
    assert repr(run).startswith("Run(FedFW on L2Ball(r=2.0), 3 rounds: loss ")
    assert "seconds" not in repr(run)
    problem = "Problem(Linear model, 2 clients, 12 training samples, 12 test samples, 15 parameters, convex losses)"
    assert repr(run.problem) == problem
    page = run._repr_html_()
    assert problem in page
    assert "all that were asked for" in page
    assert "<th>clients</th><td>2</td>" in run.problem._repr_html_()


def test_texts_are_escaped_in_a_notebook() -> None:
    assert "&lt;= r" in fedfw.L1Ball(1.0)._repr_html_()
    product = fedfw.Product({"<b>": fedfw.L1Ball(1.0)})
    assert "<th>&lt;b&gt;</th><td>L1Ball(r=1.0)</td>" in product._repr_html_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", ["linear", "module"])
def test_a_run_can_be_pickled(model: str, dtype: torch.dtype) -> None:
    run = run_of(model, dtype)
    copy = pickle.loads(pickle.dumps(run))
    assert torch.equal(copy.x, run.x)
    assert list(copy.history) == list(run.history)
    assert copy.problem.value(copy.x) == run.problem.value(run.x)
    assert copy.problem.test(copy.x) == run.problem.test(run.x)
    assert (copy.stopped, copy.lower_bound, copy.certificate) == (run.stopped, run.lower_bound, run.certificate)
    assert (copy.plan.n, copy.plan.lam_0, copy.plan.schedule) == (run.plan.n, run.plan.lam_0, None)
    assert run.plan.schedule is not None  # the original keeps it
    inputs = run.problem.test_data[0]  # type: ignore[index]
    assert torch.equal(copy.model(inputs), run.model(inputs))


def test_a_picture_is_saved_where_it_is_asked_for(tmp_path: Path) -> None:
    run = run_of("linear")
    figure = run.plot(path=tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert len(figure.axes) == 4
    with pytest.raises(ValueError, match=r"a picture ends in .png, .svg or .pdf"):
        run.plot(path=str(tmp_path / "run.txt"))
