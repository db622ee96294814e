"""The command line prints what the library measures."""

import importlib.util
import json
import subprocess
import sys
from argparse import Namespace
from hashlib import sha256
from pathlib import Path

import pytest

import fedfw
from fedfw.advice import measured
from fedfw.algorithms.registry import ALGORITHMS
from fedfw.cli import data as command
from fedfw.cli import main
from fedfw.cli.arguments import FREQUENT, read_help
from fedfw.config import RunConfig, all_options, completed, load
from fedfw.data import DATASETS
from fedfw.data.sources import SOURCES, Collection, Source
from tests.data.files import write_mnist
from tests.processes import run_python


def test_import_needs_torch_numpy_and_scipy_alone() -> None:
    script = (
        "import sys, fedfw; top = {name.partition('.')[0] for name in sys.modules};"
        "print(sorted(top & {'sklearn', 'matplotlib', 'flwr', 'dp_accounting', 'hypothesis', 'pandas'}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize("verb", ["hub", "proxy"])
def test_what_stands_before_a_superlink_does_without_torch(verb: str) -> None:
    pytest.importorskip("flwr")
    script = (
        f"import sys, fedfw.cli, fedfw.deployment.flower.{verb}\n"
        "try:\n"
        f"    fedfw.cli.main(['deploy', '{verb}', '--help'])\n"
        "except SystemExit as end:\n"
        "    print(end.code, 'torch' in sys.modules)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert "--listen" in out
    assert out.splitlines()[-1] == "0 False"


def test_a_notice_is_one_line_without_source_files(tmp_path: Path) -> None:
    """In a process of its own, because pytest takes warnings to itself."""
    flags = ["--model", "mlp", "--constraint", "l2:0.1", "--rounds", "1", "--out", tmp_path / "r"]
    done = run_python(["-m", "fedfw", "run", *flags])
    noted = [
        line
        for line in done.stderr.splitlines()
        if "begins at the nearest point of the set" in line
    ]
    assert len(noted) == 1
    assert noted[0].startswith(
        "fedfw run: note: the model's parameters lie outside of the constraint set"
    )
    assert ".py" not in done.stderr


def test_an_interrupt_while_torch_is_imported_ends_in_one_line() -> None:
    script = (
        "import os, signal\n"
        "from fedfw.cli.main import _quick_end\n"
        "with _quick_end('run'):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('it went on')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nfedfw run: interrupted\n")


def test_any_command_that_is_interrupted_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedfw.cli.sets.execute", interrupted)
    assert main(["sets"]) == 130
    assert capsys.readouterr().err == "\nfedfw sets: interrupted\n"


# --- Help texts say what happens where nothing is given ---


def help_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_run_without_options_is_what_its_help_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "run")
    config = completed(RunConfig(), load(RunConfig()))
    assert f"[{config.algorithm}]" in text
    assert (
        f"[{config.constraint} for digits, else l1:30; networks l2:10 each; completion nuclear:500]"
        in text
    )
    assert "[all; 64 for fedfw-sto]" in text
    for name, algorithm in ALGORITHMS.items():
        assert (
            completed(RunConfig(algorithm=name), load(RunConfig())).batch_size
            == algorithm.default_batch_size
        )


# --- ``fedfw advise``: text, JSON, another table, and what is refused ---


def test_the_advice_names_a_command_and_a_measured_problem(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["advise", "l1:10"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "fedfw run --constraint l1:10 --algorithm fedfw" in said
    assert "atoms alone" in said
    assert any(f"Measured: {problem.title}: residual" in said for problem in measured().problems)


# --- ``fedfw data``: the lists, the tables and the pictures ---


def test_the_list_has_every_data_set_and_its_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("COLUMNS", "250")
    assert command.list_data(Namespace(data_dir=tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line and not line.startswith(" ")}
    assert [name for name in rows if name in DATASETS] == list(DATASETS)
    assert rows["digits"].endswith("built in")
    assert rows["emnist-digits"].split()[-5:] == ["240,000", "40,000", "10", "writer", "missing"]
    assert rows["mnist"].endswith("at hand")
    assert f"Folder: {tmp_path}" in lines
    assert any("synthetic:published-3" in line for line in lines)


def test_get(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"ratings"
    source = Source("http://127.0.0.1:9/file.txt", sha256(content).hexdigest())
    monkeypatch.setitem(SOURCES, "ml-100k", Collection("films", (source,), "Mind the terms."))
    with pytest.raises(OSError, match=r"http://127\.0\.0\.1:9/file\.txt"):
        command.get_data(Namespace(name="ml-100k", data_dir=tmp_path))
    (tmp_path / "films" / "file.txt").write_bytes(content)
    assert (
        command.get_data(Namespace(name="ml-100k", data_dir=tmp_path)) == 0
    )  # the server is not asked
    out = capsys.readouterr().out
    assert "Mind the terms." in out
    assert f"file.txt: already in {tmp_path / 'films'}" in out
    assert command.get_data(Namespace(name="digits", data_dir=tmp_path)) == 0
    assert "needs no download" in capsys.readouterr().out
    for name in ("cats", "emnist-small"):
        with pytest.raises(ValueError, match=f"no download of '{name}', expected one of mnist"):
            command.get_data(Namespace(name=name, data_dir=tmp_path))


# --- The epsilon calculator against the formula of the Gaussian mechanism, and against what a run
# plans ---


def test_it_says_what_a_run_plans(capsys: pytest.CaptureFixture[str]) -> None:
    problem = fedfw.load_problem("digits", clients=4, partition="iid")
    run = fedfw.simulate(
        problem, fedfw.FedFWPlus("l1:10"), rounds=3, privacy="eps=4,delta=1e-5,not_private_seed=1"
    )
    assert (
        main(
            ["privacy", "--eps", "4", "--rounds", "3", "--constraint", "l1:10", "--shape", "10x65"]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert run.privacy is not None
    assert "private choice of vertices" in out
    assert "private choice of vertices" in run.privacy
    assert f"{run.history[-1].epsilon:.4g}" in out
    assert "--privacy eps=4,delta=1e-05" in out
    flags = "--noise 5 --rounds 10 --batch-size 10 --samples 1000"
    assert main(["privacy", *flags.split()]) == 0
    assert " sampling probability 0.01 " in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "neither --eps nor --noise is given"),
        (["--eps", "4", "--batch-size", "4"], "--batch-size and --samples, the number"),
        (["--eps", "4", "--rounds", "0"], "rounds = 0, expected a whole number of at least 1"),
        (["--eps", "-1"], "eps=-1.0, expected a number from 1e-12"),
        (["--eps", "4", "--algorithm", "fedfw-anchored"], "shares exact sums of gradients"),
        (["--eps", "4", "--constraint", "nuclar:1"], "did you mean 'nuclear'?"),
    ],
)
def test_what_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["privacy", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["privacy", "--eps", "4"], ["run", "--privacy", "eps=4,delta=1e-5"]]
)
def test_without_the_extra_there_is_one_line_that_names_no_package_index(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    tmp_path: object,
) -> None:
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setattr(
        "fedfw.privacy.accounting._spent", __import__("fedfw").privacy.accounting._spent.__wrapped__
    )
    assert main(command) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines == [
        f"fedfw {command[0]}: privacy needs dp-accounting, which is not installed: "
        'run  pip install -e ".[privacy]"  in fedfw\'s repository'
    ]


# --- Help ---


def test_the_kept_help_is_that_of_the_command() -> None:
    """After a change of an option: `python scripts/help.py`."""
    path = Path(__file__).parents[2] / "scripts" / "help.py"
    spec = importlib.util.spec_from_file_location("help_script", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert read_help() == json.loads(json.dumps(script.table()))


def test_the_help_of_run_is_short_and_the_rest_is_a_word_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    texts = {}
    for words in ("--help", "--help all", "--algorithm fedlmo --help", "--algorithm=FedDR -h"):
        with pytest.raises(SystemExit):
            main(["run", *words.split()])
        texts[words] = capsys.readouterr().out
    assert len(texts["--help"].splitlines()) <= 50
    assert all(f"--{key} " in texts["--help"] for key in FREQUENT)
    assert "--alignment" not in texts["--help"]
    assert "fedfw run --help all" in texts["--help"].replace("\n", " ")
    assert "--renew-every" in texts["--algorithm fedlmo --help"]
    assert "--alpha" in texts["--algorithm=FedDR -h"]
    assert "--alpha" not in texts["--algorithm fedlmo --help"]
    for option in all_options().values():
        assert (
            f"--{option.key}" in texts["--help all"] or f"--no-{option.key}" in texts["--help all"]
        )


@pytest.mark.parametrize(
    "command", ["algorithms", "models", "sets", "data list", "privacy --eps 4"]
)
def test_tables_fit_eighty_columns_in_a_pipe_and_use_a_wide_terminal(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(command.split()) == 0
    narrow = capsys.readouterr().out.splitlines()
    assert max(map(len, narrow)) <= 80
    monkeypatch.setenv("COLUMNS", "400")
    assert main(command.split()) == 0
    assert len(capsys.readouterr().out.splitlines()) <= len(narrow)


def test_the_help_of_run_waits_neither_for_torch_nor_pydantic_and_the_library_not_for_pydantic() -> (
    None
):
    script = (
        "import sys, fedfw.cli\n"
        "try:\n"
        "    fedfw.cli.main(['run', '--help'])\n"
        "except SystemExit as end:\n"
        "    print(end.code, 'torch' in sys.modules, 'pydantic' in sys.modules)\n"
        "from fedfw import simulate\n"
        "print('torch' in sys.modules, 'pydantic' in sys.modules)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert "--local-steps" in out
    assert out.splitlines()[-2:] == ["0 False False", "True False"]
