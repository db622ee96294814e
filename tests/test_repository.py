"""The documentation site has every page and every public name, and the paper stands where people
look for it.
"""

import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fedfw
from fedfw.atoms import quantised
from tests.data.files import DATA
from tests.processes import run_python

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DOI = "10.1007/978-3-031-70352-2_4"


GENERATED = ("_build", "api", "gallery")
"""Folders of docs/ that a build of the site writes."""


def pages() -> list[Path]:
    """Return all pages of the site, relative to its folder."""
    found = [page.relative_to(DOCS) for page in DOCS.rglob("*.md")]
    return [page for page in found if page.parts[0] not in GENERATED]


def entries(page: Path) -> list[str]:
    """Return the pages that stand in the tables of contents of a page."""
    text = (DOCS / page).read_text()
    found = []
    for tree in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in tree.splitlines():
            if line.strip() and not line.startswith(":"):
                target = re.sub(r".*<(.*)>", r"\1", line.strip())
                found.append(os.path.normpath(page.parent / target))
    return found


def test_every_page_stands_in_one_table_of_contents() -> None:
    listed = [target for page in pages() for target in entries(page)]
    expected = {str(page.with_suffix("")) for page in pages()} - {"index"}
    assert sorted(listed) == sorted(expected | {"gallery/index", "api/index"})


def test_the_reference_has_every_public_name(tmp_path: Path) -> None:
    pytest.importorskip("sphinx_gallery")
    space = {"__file__": str(tmp_path / "conf.py")}  # it writes beside itself
    exec(compile((DOCS / "conf.py").read_text(), "conf.py", "exec"), space)
    listed = set(
        re.findall(r"^   (fedfw\.\S+)$", (tmp_path / "api" / "index.rst").read_text(), re.MULTILINE)
    )
    modules = {"contrib", "estimators", "optim", "testing"}
    assert {
        f"fedfw.{name}" for name in fedfw.__all__ if name not in modules | {"__version__"}
    } <= listed
    assert {
        "fedfw.optim.LMO",
        "fedfw.estimators.CoxRegression",
        "fedfw.testing.check_constraint",
        "fedfw.algorithms.contrib.FedMuon",
    } <= listed


def test_the_paper_is_cited_on_top_of_readme_and_site_and_in_the_citation_file() -> None:
    for page in ("README.md", "docs/index.md"):
        assert DOI in (ROOT / page).read_text()[:2500]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    paper = citation["references"][0]
    assert paper["doi"] == DOI
    assert [author["family-names"] for author in paper["authors"]] == [
        "Dadras",
        "Banerjee",
        "Prakhya",
        "Yurtsever",
    ]
    assert (
        citation["license"]
        == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    )


def test_the_page_of_sets_says_how_long_blocks_are() -> None:
    assert f"Blocks have {quantised.BLOCK} numbers" in (DOCS / "sets.md").read_text()


# --- The pages run as written: Python blocks print the text that follows them, and fedfw's commands
# work ---

BLOCK = re.compile(r"^```(python|text|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of every block of a page, in order."""
    return BLOCK.findall((ROOT / page).read_text())


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        *(
            f"docs/{page}.md"
            for page in (
                *("index", "getting-started", "problems", "sets", "certificates", "faq"),
                "secure-sums",
                *(
                    "central",
                    "howto/objectives",
                    "howto/dropouts",
                    "howto/estimators",
                    "howto/weights",
                    "howto/logging",
                    "howto/own",
                    "howto/regression",
                    "howto/save",
                    "howto/sparsity",
                    "howto/gpu",
                    "howto/pretrained",
                ),
            )
        ),
    ],
)
def test_python_runs_and_prints_what_the_page_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page")
    monkeypatch.setitem(
        sys.modules, "page", module
    )  # dataclasses look for the module of their class
    said = ""
    ran = 0
    for language, text in blocks(page):
        if language == "python":
            out = io.StringIO()
            with redirect_stdout(out):
                exec(compile(text, page, "exec", dont_inherit=True), module.__dict__)
            said, ran = out.getvalue(), ran + 1
        elif language == "text":
            assert said == text
    assert ran


def test_commands_of_getting_started_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shell = "".join(
        text for language, text in blocks("docs/getting-started.md") if language == "bash"
    )
    commands = [
        shlex.split(line, comments=True) for line in shell.splitlines() if line.startswith("fedfw ")
    ]
    assert commands
    for _, *arguments in commands:
        run_python(["-m", "fedfw", *arguments])
    assert (tmp_path / "first" / "model.pt").exists()


def test_what_contributing_runs_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    files = re.findall(r"(?:bash|python3) ([\w./-]+)", text)
    modules = re.findall(r"-m (fedfw_reproduction.bench[\w.]*)", text)
    assert files
    assert modules
    assert all((ROOT / file).is_file() for file in files)
    assert all(find_spec(module) is not None for module in modules)


# --- Every public name explains itself ---

APART = ("ALGORITHMS", "SETS", "__version__", "contrib", "estimators", "optim", "testing")
DOCUMENTED = [name for name in fedfw.__all__ if name not in APART]
METHODS = [f"contrib.{name}" for name in fedfw.contrib.__all__]
CHECKS = ["check_algorithm", "check_constraint", "quadratics", "two_quadratics"]


def parameters_of(thing: Any) -> list[str]:
    """The names that somebody who calls it may give."""
    if isinstance(thing, type) and is_dataclass(thing):
        return [f.name for f in fields(thing) if f.init and not f.name.startswith("_")]
    if isinstance(thing, type) and thing.__init__ in (
        object.__init__,
        ValueError.__init__,
        NotImplementedError.__init__,
    ):
        return []
    found = inspect.signature(thing).parameters.values()
    plain = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in found if p.kind not in plain]


@pytest.mark.parametrize(
    "name", [*DOCUMENTED, *METHODS, "optim.LMO", *(f"testing.{check}" for check in CHECKS)]
)
def test_it_says_what_it_does_with_every_parameter_and_an_example(name: str) -> None:
    thing: Any = fedfw
    for part in name.split("."):
        thing = getattr(thing, part)
    text = inspect.getdoc(thing) or ""
    own = thing.__dict__.get("__doc__") if isinstance(thing, type) else thing.__doc__
    assert own, f"{name} has no docstring of its own"
    assert "See the top" not in text
    assert ">>> " in text, f"{name} has no example"
    missing = [parameter for parameter in parameters_of(thing) if parameter not in text]
    assert not missing, f"the docstring of {name} does not explain {missing}"


def test_names_are_listed_once_and_importable() -> None:
    assert sorted(fedfw.__all__) == sorted(set(fedfw.__all__))
    assert set(fedfw.__all__) <= set(dir(fedfw))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedfw.nothing  # noqa: B018


_ONE_AFTER_ANOTHER = """
import importlib, pkgutil, sys
from importlib.machinery import SourceFileLoader
import fedfw
codes, compiled = {}, SourceFileLoader.get_code
SourceFileLoader.get_code = lambda self, name: codes.get(name) or codes.setdefault(name, compiled(self, name))
found = pkgutil.walk_packages(fedfw.__path__, "fedfw.")
wanted = sorted(one.name for one in found if one.ispkg or one.name.startswith(("fedfw.privacy.", "fedfw.rounds.")))
for name in wanted:
    for loaded in [key for key in sys.modules if key.partition(".")[0] == "fedfw"]:
        del sys.modules[loaded]
    importlib.import_module(name)
print(len(wanted))
"""


def test_every_package_and_the_modules_of_privacy_can_be_imported_first() -> None:
    """A circle of imports shows itself only to who comes in at the wrong place; torch stays loaded
    meanwhile.
    """
    assert int(run_python(["-c", _ONE_AFTER_ANOTHER]).stdout) > 30


# --- The lock files fit pyproject.toml, and the audit never takes silence for a clean bill ---

ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


def locked(file: str) -> dict[str, str]:
    """Versions by name; a line of the file is a comment, another lock file's name, or a version
    with its hashes.
    """
    text = (ROOT / file).read_text()
    rest = ENTRY.sub("", text).split("\n")
    assert all(not line or line.startswith(("#", "-r requirements.lock")) for line in rest)
    return {name: version for name, version, _ in ENTRY.findall(text)}


def test_what_pyproject_asks_for_is_locked() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, needed = (
        pyproject["project"],
        pyproject["project"]["dependencies"] + pyproject["build-system"]["requires"],
    )
    torch = (ROOT / "constraints.txt").read_text().strip().removeprefix("torch==")
    plain = locked("requirements.lock") | {"torch": torch}
    everything = plain | locked("requirements-all.lock")
    extras = [one for extra in project["optional-dependencies"].values() for one in extra]
    for wanted, versions in ((needed, plain), (extras, everything)):
        for requirement in map(Requirement, wanted):
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), (
                requirement
            )


def test_torch_is_locked_by_itself() -> None:
    plain, added = locked("requirements.lock"), locked("requirements-all.lock")
    assert not set(plain) & set(added)
    assert not any(
        name == "torch" or name.startswith(("nvidia", "cuda", "triton")) for name in plain | added
    )
    text = (ROOT / "requirements-torch.lock").read_text()
    assert all(not line or line.startswith("#") for line in ENTRY.sub("", text).split("\n"))
    torch = (ROOT / "constraints.txt").read_text().strip().removeprefix("torch==")
    builds = {}
    for name, version, hashes in ENTRY.findall(text):
        assert name == "torch"
        assert version.partition("+")[0] == torch
        builds[version] = hashes.count("--hash=sha256:")
    covered = [
        line
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if line.startswith("# hashes for")
    ]
    assert builds[torch] == len(covered)  # a wheel for each Python on each kind of machine


def test_the_audits_own_packages_are_locked() -> None:
    versions = locked("scripts/audit.lock")
    assert "pip-audit" in versions
    script = (ROOT / "scripts" / "audit.sh").read_text()
    assert "--no-deps --require-hashes -r scripts/audit.lock" in script


@pytest.mark.parametrize("build", ["2.13.0", "2.13.0+cpu", "2.13.0+cu126"])
def test_set_up_takes_the_hashes_of_the_build_that_it_installs(tmp_path: Path, build: str) -> None:
    """The line of scripts/setup.sh that picks a block of the lock file, on a file of two builds."""
    [line] = re.findall(
        r"^ *(awk .*) requirements-torch\.lock >\S+$",
        (ROOT / "scripts" / "setup.sh").read_text(),
        re.M,
    )
    blocks = {
        version: f"torch=={version} \\\n    --hash=sha256:{digit * 64} \\\n    --hash=sha256:{digit * 63}f\n"
        for version, digit in (("2.13.0", "a"), ("2.13.0+cpu", "b"))
    }
    (tmp_path / "lock").write_text("# a comment\n" + "".join(blocks.values()))
    command = ["bash", "-c", f"build={build}; {line} lock"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == blocks.get(build, "")


CLEAN = {"name": "a", "version": "1", "vulns": []}
FLAWED = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
SKIPPED = {"name": "c", "skip_reason": "it could not be looked up"}


@pytest.mark.parametrize(
    ("audited", "status", "told"),
    [
        ([CLEAN], 0, "1 versions were audited, 0 vulnerabilities are known."),
        ([CLEAN, FLAWED], 1, "b 2: CVE-1, fixed in 3"),
        ([CLEAN, SKIPPED], 2, "could not be asked about 1 of 2 versions"),
        ([FLAWED, SKIPPED], 2, "b 2: CVE-1, fixed in 3"),
        ([], 2, "could not be asked about any version"),
        (None, 2, "could not be asked about any version"),
    ],
)
def test_the_audit_tells_apart_clean_flawed_and_unknown(
    audited: Any, status: int, told: str
) -> None:
    report = "" if audited is None else json.dumps({"dependencies": audited})
    command = [sys.executable, str(ROOT / "scripts" / "audit.py")]
    done = subprocess.run(command, input=report, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert told in done.stdout + done.stderr


# --- The examples run and end where their text says ---

EXAMPLES = Path(__file__).parent.parent / "examples"


EXPECTED = {
    "hospitals.py": "concordance 0.85" if (DATA / "tcga-brca").exists() else "",
    "regression.py": "selects age, smoker, diabetes, duration",
    "first_run.py": "at most 10",
    "sets_and_atoms.py": "refused: 1 bytes left over after the atom",
    "certificate.py": "the central optimum is 1.26",
    "network.py": "FedLMO: test accuracy 0.9",
    "compressed_exchange.py": "gradients, top 16 (EF21)  residual 0.00",
    "own_data.py": "largest coefficients: [2, 7, 11, 19, 26]",
    "own_model_and_set.py": "accuracy 0.9",
    "own_algorithm.py": "fedfw+     ends at  0.999",
    "own_callback.py": "no better accuracy in 4 evaluations",
}


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
def test_example(name: str, expected: str) -> None:
    if not expected:
        pytest.skip("its data are not at hand")
    script = ["-W", "error::DeprecationWarning:__main__", EXAMPLES / name]
    alone = {"MPLBACKEND": "Agg", "FEDFW_DATA": str(DATA)}  # nobody looks at windows
    assert expected in run_python(script, alone).stdout


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == EXPECTED.keys()


def test_the_steps_of_the_theorem_have_their_lines_of_code() -> None:
    page = (DOCS / "privacy.md").read_text()
    table = page.split("### What a deployed client promises")[1].split("### ")[0]
    rows = re.findall(r"^\|[^|]+\| `(fedfw[.\w]+)` \| `(.+)` \|$", table, re.MULTILINE)
    assert len(rows) == sum(line.startswith("| ") for line in table.splitlines()) - 1
    for place, line in rows:
        module, *names = next(
            (".".join(parts[:cut]), *parts[cut:])
            for parts in [place.split(".")]
            for cut in (len(parts) - 1, len(parts) - 2)
            if parts[cut - 1].islower()
        )
        found: object = import_module(module)
        for name in names:
            found = getattr(found, name)
        assert line in [text.strip() for text in inspect.getsource(found).splitlines()], (
            place,
            line,
        )  # type: ignore[arg-type]


def test_the_trust_model_names_tests_that_there_are() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) >= 15
    for path, name in named:
        file = ROOT / path if path.startswith("tests/") else ROOT / "tests" / "deployment" / path
        assert f"def {name}(" in file.read_text(), (path, name)
