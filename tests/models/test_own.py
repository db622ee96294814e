"""A user's own model from the command line, and everything that must not run it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedfw
from fedfw.cli.main import main

CODE = """
from torch import nn

def make(data, width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, data.classes))

def line(data):
    return nn.Linear(10, 1)

def nothing(data):
    return 3

def broken(data):
    return nn.Linear(data.no_such_thing, 1)

number = 3

class Net(nn.Linear):
    def __init__(self, data):
        super().__init__(10, 1)
"""
RUN = ["run", "--rounds", "1", "--constraint", "l2:5", "--per-parameter"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("my_models.py").write_text(CODE)
    Path("json.py").write_text("raise SystemExit('this must not run')")
    yield
    sys.modules.pop("my_models", None)


def test_a_function_of_the_current_folder_makes_the_model() -> None:
    problem = fedfw.load_problem("digits", "my_models:make", width=5)
    assert [tuple(shape) for shape in problem.shapes.values()] == [(5, 64), (5,), (10, 5), (10,)]
    assert problem.convex is False
    line = fedfw.load_problem("diabetes", "my_models:line", partition="iid")
    assert line.convex is True  # a linear layer with the squared loss


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("my_models:none", "my_models has no function 'none', expected one that makes a model"),
        ("my_models:number", "my_models has no function 'number'"),
        ("my_models:nothing", "made a int, expected a torch.nn.Module"),
        ("my_models:broken", "AttributeError: .*no_such_thing.* \\(my_models.py, line 14\\)"),
        ("elsewhere:make", "no file elsewhere.py in .*, expected your own module"),
        ("os:system", "no file os.py in "),
        (
            "json:make",
            "json is the name of another module, too, expected a name that no other module has",
        ),
        ("../my_models:make", "expected my_module:make, a module of the current folder"),
        ("my_models:make()", "expected my_module:make"),
        (":make", "expected my_module:make"),
        ("mcrl", "unknown model 'mcrl' .did you mean 'mclr'.., expected one of mclr"),
    ],
)
def test_what_is_refused(model: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fedfw.load_problem("digits", model)


@pytest.mark.usefixtures("no_plots")
def test_a_file_runs_code_only_where_the_user_types_it_as_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*RUN, "--model", "my_models:make", "--width", "4", "--out", "kept"]) == 0
    assert 'model = "my_models:make"' in Path("kept/config.toml").read_text()
    sys.modules.pop("my_models")
    for command in (
        ["run", "kept/config.toml", "--out", "other"],
        ["solve", "kept/config.toml"],
        ["resume", "kept"],
    ):
        assert main(command) == 2
        assert "is code, which does not run because a file says so" in capsys.readouterr().err
    assert "my_models" not in sys.modules
    assert main(["resume", "kept", "--model", "my_models:line"]) == 2
    assert "expected the run's own: my_models:make" in capsys.readouterr().err
    assert main(["resume", "kept", "--model", "my_models:make"]) == 0
