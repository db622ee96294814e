"""Help texts say what happens where nothing is given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedfw.algorithms.registry import ALGORITHMS
from fedfw.cli.deploy_demo import _configured
from fedfw.cli.main import main
from fedfw.config import RunConfig, all_options, app_table, completed, load
from fedfw.config.app import default_of


def help_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_what_happens_without_a_value_is_said_for_options_that_are_open_alone() -> None:
    for name, option in all_options().items():
        assert not option.otherwise or option.default is None, name
        assert not option.help.endswith(("by the data)", "(all)", "each)")), name


def test_a_run_without_options_is_what_its_help_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "run")
    config = completed(RunConfig(), load(RunConfig()))
    assert f"[{config.algorithm} with momentum {config.get('momentum')}]" in text
    assert f"[{config.constraint} for digits, else l1:30; networks l2:10 each; completion nuclear:500]" in text
    assert "[all; 64 for fedfw-sto]" in text
    for name, algorithm in ALGORITHMS.items():
        assert completed(RunConfig(algorithm=name), load(RunConfig())).batch_size == algorithm.usual_batch


def test_a_demonstration_without_options_is_what_its_help_says(capsys: pytest.CaptureFixture[str]) -> None:
    text, config = help_of(capsys, "deploy", "demo"), _configured({})
    assert f"[{config.algorithm} with momentum {config.get('momentum')}]" in text
    assert f"[{config.constraint} for digits, else l1:30; networks l2:10 each; completion nuclear:500]" in text
    for option, value in (("clients", config.clients), ("rounds", config.rounds), ("partition", config.partition)):
        assert f"[{value}]" in text.partition(f"--{option} VALUE {all_options()[option].help}")[2][:10]
    assert "(by the data)" not in text
    assert "fedfw+ with momentum" not in text
    assert "[120, and 1 more for each client above 100]" in text


@pytest.mark.parametrize(
    ("verb", "default"),
    [("sign", "[bundles]"), ("hub", "[127.0.0.1:8600]"), ("proxy", "[64]"), ("executor", "[127.0.0.1:9094]")],
)
def test_verbs_say_their_defaults(capsys: pytest.CaptureFixture[str], verb: str, default: str) -> None:
    assert default in help_of(capsys, "deploy", verb)


def test_the_table_of_an_app_says_what_an_empty_text_is() -> None:
    comments = " ".join(line.lstrip("# ") for line in app_table().as_string().splitlines() if line.startswith("#"))
    for name in ("constraint", "batch_size", "momentum", "mu"):
        assert f'["" is {default_of(all_options()[name])}]' in comments


def test_the_help_that_is_kept_is_that_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After a change of an option: `python scripts/help.py`."""
    kept = help_of(capsys, "run")
    nothing = tmp_path / "help.json"
    nothing.write_text("{}")
    monkeypatch.setattr(sys.modules["fedfw.cli.main"], "HELP", nothing)
    assert help_of(capsys, "run") == kept


def test_the_help_of_run_waits_neither_for_torch_nor_pydantic_and_the_library_not_for_pydantic() -> None:
    script = (
        "import sys, fedfw.cli\n"
        "try:\n"
        "    fedfw.cli.main(['run', '--help'])\n"
        "except SystemExit as end:\n"
        "    print(end.code, 'torch' in sys.modules, 'pydantic' in sys.modules)\n"
        "from fedfw import simulate\n"
        "print('torch' in sys.modules, 'pydantic' in sys.modules)\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "--local-steps" in out
    assert out.splitlines()[-2:] == ["0 False False", "True False"]
