"""The lock files fit pyproject.toml, and the audit never takes silence for a clean bill."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


def locked(file: str) -> dict[str, str]:
    """Versions by name; a line of the file is a comment, another lock file's name, or a version with its hashes."""
    text = (ROOT / file).read_text()
    rest = ENTRY.sub("", text).split("\n")
    assert all(not line or line.startswith(("#", "-r requirements.lock")) for line in rest)
    return {name: version for name, version, _ in ENTRY.findall(text)}


def test_what_pyproject_asks_for_is_locked() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, needed = pyproject["project"], pyproject["project"]["dependencies"] + pyproject["build-system"]["requires"]
    torch = (ROOT / "constraints.txt").read_text().strip().removeprefix("torch==")
    plain = locked("requirements.lock") | {"torch": torch}
    everything = plain | locked("requirements-all.lock")
    extras = [one for extra in project["optional-dependencies"].values() for one in extra]
    for wanted, versions in ((needed, plain), (extras, everything)):
        for requirement in map(Requirement, wanted):
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_torch_is_locked_by_itself() -> None:
    plain, added = locked("requirements.lock"), locked("requirements-all.lock")
    assert not set(plain) & set(added)
    assert not any(name == "torch" or name.startswith(("nvidia", "cuda", "triton")) for name in plain | added)
    text = (ROOT / "requirements-torch.lock").read_text()
    assert all(not line or line.startswith("#") for line in ENTRY.sub("", text).split("\n"))
    torch = (ROOT / "constraints.txt").read_text().strip().removeprefix("torch==")
    builds = {}
    for name, version, hashes in ENTRY.findall(text):
        assert name == "torch"
        assert version.partition("+")[0] == torch
        builds[version] = hashes.count("--hash=sha256:")
    covered = [
        line for line in (ROOT / "requirements.lock").read_text().splitlines() if line.startswith("# hashes for")
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
        r"^ *(awk .*) requirements-torch\.lock >\S+$", (ROOT / "scripts" / "setup.sh").read_text(), re.M
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
def test_the_audit_tells_apart_clean_flawed_and_unknown(audited: Any, status: int, told: str) -> None:
    report = "" if audited is None else json.dumps({"dependencies": audited})
    command = [sys.executable, str(ROOT / "scripts" / "audit.py")]
    done = subprocess.run(command, input=report, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert told in done.stdout + done.stderr
