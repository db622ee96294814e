"""Write the lock files: exact versions, with hashes, of what scripts/setup.sh and scripts/audit.sh
install.

    python3 scripts/lock.py                 # about ten minutes; then run the tests and commit the files
    python3 scripts/lock.py --only torch    # or audit: one of the smaller files alone

requirements.lock is what fedfw needs, requirements-all.lock what every extra adds. Versions are
resolved for the Python that runs this script. Hashes are of the wheels that pip chooses for every
Python in `PYTHONS` on every machine in `MACHINES`; the head of requirements.lock says for which of
them that went well.

requirements-torch.lock is torch by itself, in the version of constraints.txt. The builds of one
version differ between indexes (with and without CUDA): it has the hashes of the package index's
builds, and of the build that pip would install here, whose hash no index publishes. The CUDA
libraries of the index's builds are not locked: set-up takes the exact versions that torch's own
metadata names, without hashes.

scripts/audit.lock is pip-audit with all that it needs, and zizmor, which checks workflows.
"""

from __future__ import annotations

import argparse
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


AUDIT = ("pip-audit==2.10.1", "zizmor==1.32.0")
PARTS = ("requirements", "torch", "audit")


def main() -> int:
    """Resolve, gather hashes and write the files that were asked for."""
    parser = argparse.ArgumentParser(description="Write the lock files.")
    parser.add_argument("--only", choices=PARTS, help="one part [all]")
    only = parser.parse_args().only
    write = {"requirements": lock_requirements, "torch": lock_torch, "audit": lock_audit}
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        pip = Pip(Path(folder))
        for part in PARTS if only is None else (only,):
            write[part](pip)
    return 0


def lock_requirements(pip: Pip) -> None:
    """Write requirements.lock and requirements-all.lock."""
    everything = pip.resolve(f"{ROOT}[{EXTRAS}]", ROOT / "constraints.txt")
    pins = pip.write_pins(everything)
    needed = pip.resolve(str(ROOT), ROOT / "constraints.txt", pins)
    hashes, head = pip.all_hashes(pins)
    plain = {name: version for name, version in everything.items() if name in needed}
    added = {name: version for name, version in everything.items() if name not in needed}
    (ROOT / "requirements.lock").write_text(head + blocks(plain, hashes))
    (ROOT / "requirements-all.lock").write_text(
        HEAD + "-r requirements.lock\n" + blocks(added, hashes)
    )


def lock_torch(pip: Pip) -> None:
    """Write requirements-torch.lock: a block for the index's builds, and one for what pip would
    install here.
    """
    version = (ROOT / "constraints.txt").read_text().strip().removeprefix("torch==")
    [here] = pip.report("--no-deps", f"torch=={version}")
    builds = {
        here["metadata"]["version"]: {here["download_info"]["archive_info"]["hashes"]["sha256"]}
    }
    for python, machine in product(PYTHONS, MACHINES):
        # Three signs of equality: the build of exactly this name, not one with a local version such
        # as 2.13.0+cpu.
        pins = pip.write_text(f"torch==={version}\n")
        builds.setdefault(version, set()).add(pip.hashes(pins, python, machine)["torch"])
    text = HEAD + "# scripts/setup.sh takes the block of the build that pip would choose.\n"
    for build in sorted(builds):
        text += blocks({"torch": build}, {"torch": builds[build]})
    (ROOT / "requirements-torch.lock").write_text(text)


def lock_audit(pip: Pip) -> None:
    """Write scripts/audit.lock."""
    versions = pip.resolve(AUDIT[0]) | pip.resolve(AUDIT[1])
    hashes, head = pip.all_hashes(pip.write_pins(versions))
    (ROOT / "scripts" / "audit.lock").write_text(head + blocks(versions, hashes))


def blocks(versions: dict[str, str], hashes: dict[str, set[str]]) -> str:
    """Lines of a lock file: each version with its hashes."""
    found = []
    for name in sorted(versions):
        lines = [
            f"{name}=={versions[name]}",
            *(f"    --hash=sha256:{one}" for one in sorted(hashes[name])),
        ]
        found.append(" \\\n".join(lines) + "\n")
    return "".join(found)


class Pip:
    """The pip of an environment, asked what it would install."""

    def __init__(self, environment: Path) -> None:
        self.environment = environment

    def resolve(self, package: str, *constraints: Path) -> dict[str, str]:
        """Versions by name of all that a package needs, without torch and the package itself."""
        options = [option for path in constraints for option in ("-c", str(path))]
        found = {_name(one): one["metadata"]["version"] for one in self.report(*options, package)}
        return {name: version for name, version in found.items() if name not in ("torch", "fedfw")}

    def hashes(self, pins: Path, python: str, machine: str = "") -> dict[str, str]:
        """The SHA-256 by name of the wheels that pip chooses for a Python, on this or on another
        kind of machine.
        """
        place = [
            "--target",
            str(self.environment / "nothing"),
            "--python-version",
            python,
            "--only-binary=:all:",
        ]
        if machine:
            tags = [
                *(f"manylinux_2_{minor}" for minor in range(GLIBC, 4, -1)),
                "manylinux2014",
                "manylinux2010",
                "manylinux1",
            ]
            place += [f"--platform={tag}_{machine}" for tag in tags]
        report = self.report("--no-deps", *place, "-r", str(pins))
        return {
            _name(one): one["download_info"]["archive_info"]["hashes"]["sha256"] for one in report
        }

    def all_hashes(self, pins: Path) -> tuple[dict[str, set[str]], str]:
        """Return the SHA-256s by name for every Python and machine, and the head of the lock file,
        which says for which of them there are wheels of all packages.
        """
        hashes: dict[str, set[str]] = {}
        head = HEAD
        for python in PYTHONS:
            for name, digest in self.hashes(pins, python).items():
                hashes.setdefault(name, set()).add(digest)
        for python, machine in product(PYTHONS, MACHINES):
            try:
                found = self.hashes(pins, python, machine)
            except subprocess.CalledProcessError:
                print(
                    f"{machine}, Python {python}: no wheel of some package, so hashes are left out",
                    file=sys.stderr,
                )
                continue
            head += f"# hashes for Linux {machine} Python {python}\n"
            for name, digest in found.items():
                hashes.setdefault(name, set()).add(digest)
        return hashes, head

    def write_pins(self, versions: dict[str, str]) -> Path:
        """A file of exact versions."""
        return self.write_text(
            "".join(f"{name}=={version}\n" for name, version in versions.items())
        )

    def write_text(self, text: str) -> Path:
        """A file for pip."""
        path = self.environment / "pins.txt"
        path.write_text(text)
        return path

    def report(self, *arguments: str) -> list[dict[str, Any]]:
        """What pip would install, from its own report."""
        out = self.environment / "report.json"
        options = (
            "--quiet",
            "--disable-pip-version-check",
            "--dry-run",
            "--ignore-installed",
            "--report",
            str(out),
        )
        subprocess.run(
            [self.environment / "bin/python", "-m", "pip", "install", *options, *arguments],
            check=True,
        )
        return json.loads(out.read_text())["install"]  # type: ignore[no-any-return]


def _name(entry: dict[str, Any]) -> str:
    name: str = entry["metadata"]["name"]
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    sys.exit(main())
