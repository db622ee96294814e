"""Write the lock files: exact versions, with hashes, of what scripts/setup.sh installs beside torch and fedfw itself.

    python3 scripts/lock.py     # about ten minutes; then run the tests and commit both files

requirements.lock is what fedfw needs, requirements-all.lock what every extra adds. Versions are resolved for the Python
that runs this script. Hashes are of the wheels that pip chooses for every Python in `PYTHONS` on every machine in
`MACHINES`; the head of requirements.lock says for which of them that went well. Torch is left out because
constraints.txt has its version and because its builds of one version differ between indexes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
GLIBC = 28  # torch's wheels need glibc 2.28, so no older one has to be served
EXTRAS = "flower,privacy,docs,dev"
HEAD = """\
# Written by scripts/lock.py and read by scripts/setup.sh: do not edit by hand.
"""


def main() -> int:
    """Resolve, gather hashes and write both files."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        pip = Pip(Path(folder))
        everything = pip.resolve(f"{ROOT}[{EXTRAS}]", ROOT / "constraints.txt")
        pins = Path(folder, "pins.txt")
        pins.write_text("".join(f"{name}=={version}\n" for name, version in everything.items()))
        needed = pip.resolve(str(ROOT), ROOT / "constraints.txt", pins)
        hashes: dict[str, set[str]] = {name: set() for name in everything}
        head = HEAD
        for python in PYTHONS:
            for name, digest in pip.hashes(pins, python).items():
                hashes[name].add(digest)
        for python, machine in product(PYTHONS, MACHINES):
            try:
                found = pip.hashes(pins, python, machine)
            except subprocess.CalledProcessError:
                print(f"{machine}, Python {python}: no wheel of some package, so hashes are left out", file=sys.stderr)
                continue
            head += f"# hashes for Linux {machine} Python {python}\n"
            for name, digest in found.items():
                hashes[name].add(digest)
    blocks = {
        name: " \\\n".join(
            [f"{name}=={everything[name]}", *(f"    --hash=sha256:{one}" for one in sorted(hashes[name]))]
        )
        for name in sorted(everything)
    }
    plain = [block for name, block in blocks.items() if name in needed]
    added = [block for name, block in blocks.items() if name not in needed]
    (ROOT / "requirements.lock").write_text(head + "\n".join(plain) + "\n")
    (ROOT / "requirements-all.lock").write_text(HEAD + "-r requirements.lock\n" + "\n".join(added) + "\n")
    return 0


class Pip:
    """The pip of an environment, asked what it would install."""

    def __init__(self, environment: Path) -> None:
        self.environment = environment

    def resolve(self, package: str, *constraints: Path) -> dict[str, str]:
        """Versions by name of all that a package needs, without torch and the package itself."""
        options = [option for path in constraints for option in ("-c", str(path))]
        found = {_name(one): one["metadata"]["version"] for one in self._report(*options, package)}
        return {name: version for name, version in found.items() if name not in ("torch", "fedfw")}

    def hashes(self, pins: Path, python: str, machine: str = "") -> dict[str, str]:
        """The SHA-256 by name of the wheels that pip chooses for a Python, on this or on another kind of machine."""
        place = ["--target", str(self.environment / "nothing"), "--python-version", python, "--only-binary=:all:"]
        if machine:
            tags = [
                *(f"manylinux_2_{minor}" for minor in range(GLIBC, 4, -1)),
                "manylinux2014",
                "manylinux2010",
                "manylinux1",
            ]
            place += [f"--platform={tag}_{machine}" for tag in tags]
        report = self._report("--no-deps", *place, "-r", str(pins))
        return {_name(one): one["download_info"]["archive_info"]["hashes"]["sha256"] for one in report}

    def _report(self, *arguments: str) -> list[dict[str, Any]]:
        out = self.environment / "report.json"
        options = ("--quiet", "--disable-pip-version-check", "--dry-run", "--ignore-installed", "--report", str(out))
        subprocess.run([self.environment / "bin/python", "-m", "pip", "install", *options, *arguments], check=True)
        installed: list[dict[str, Any]] = json.loads(out.read_text())["install"]
        return installed


def _name(entry: dict[str, Any]) -> str:
    name: str = entry["metadata"]["name"]
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    sys.exit(main())
