"""Packages of other people add algorithms and sets by entry points."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fedfw.algorithms.registry import _find_problem as find_algorithms_problem
from fedfw.plugins import PluginTable
from fedfw.sets.registry import _find_problem as find_sets_problem

PACKAGE = Path(__file__).parents[1] / "examples" / "package"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that has the example package, and everything that this
    one has.
    """
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    )
    # Through `site`, because the repository's own packages are installed by .pth files.
    line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (Path(found.stdout.strip()) / "repository.pth").write_text(line)
    build = tmp_path_factory.mktemp("build")
    for file in PACKAGE.iterdir():
        if file.is_file():
            (build / file.name).write_bytes(file.read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
    ]
    subprocess.run([*command, "--no-build-isolation", "--no-index", str(build)], check=True)
    return python


def ask(python: Path, *arguments: str, cwd: Path) -> str:
    """What the command line says in that environment."""
    done = subprocess.run(
        [python, "-m", "fedfw", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_package_adds_an_algorithm_and_a_set(python: Path, tmp_path: Path) -> None:
    chosen = ("--algorithm", "slow", "--slowness", "0.25", "--constraint", "ellipsoid:3")
    said = ask(
        python,
        "run",
        "--dataset",
        "digits",
        *chosen,
        "--rounds",
        "3",
        "--clients",
        "4",
        cwd=tmp_path,
    )
    assert "ellipsoid:3" in said


def test_names_are_those_of_the_entry_points() -> None:
    from fedfw.algorithms.registry import ALGORITHMS
    from fedfw.sets.registry import SETS

    assert find_algorithms_problem("fedfw", ALGORITHMS["fedfw"]) is None
    assert "expected that of its entry point" in str(
        find_algorithms_problem("other", ALGORITHMS["fedfw"])
    )
    assert "expected a subclass" in str(find_algorithms_problem("mine", str))
    assert "expected a subclass" in str(find_algorithms_problem("mine", 3))
    assert find_sets_problem("l1", SETS["l1"]) is None
    assert "expected that of its entry point" in str(find_sets_problem("other", SETS["l1"]))
    assert "expected a fedfw.sets.registry.Entry" in str(find_sets_problem("l1", SETS["l1"].cls))


def test_a_package_that_breaks_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "broken-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    lines = [
        "[fedfw.tests]",
        "absent = no_such_module:Thing",
        "good = pathlib:Path",
        "taken = pathlib:PurePath",
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    table: PluginTable[object] = PluginTable("fedfw.tests", {"taken": 1}, lambda name, found: None)
    with pytest.warns(UserWarning, match="left out") as caught:
        assert set(table) == {"taken", "good"}
    said = [str(each.message) for each in caught]
    assert (table["taken"], table["good"]) == (1, Path)
    assert any("absent of broken" in line and "no_such_module" in line for line in said)
    assert any("taken of broken" in line and "expected another name" in line for line in said)
