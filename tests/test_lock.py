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


def test_torch_comes_from_constraints_alone() -> None:
    plain, added = locked("requirements.lock"), locked("requirements-all.lock")
    assert not set(plain) & set(added)
    assert not any(name == "torch" or name.startswith(("nvidia", "cuda", "triton")) for name in plain | added)


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
