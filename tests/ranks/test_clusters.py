"""The jobs for clusters in docs/cluster: their syntax, and that fedfw understands the commands in them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from fedfw.cli.main import _parsed

CLUSTER = Path(__file__).parents[2] / "docs" / "cluster"
yaml = pytest.importorskip("yaml")


def assert_bash(script: str) -> None:
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).stderr == ""


def assert_understood(arguments: str) -> None:
    """The parser of the command line takes these arguments of fedfw."""
    words = [word for word in shlex.split(arguments) if not word.startswith("${")]
    _parsed(words, words[0])


def test_the_slurm_job_is_a_script_with_commands_that_fedfw_knows() -> None:
    script = (CLUSTER / "sweep.sbatch").read_text()
    assert_bash(script)
    asked = re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script, re.M)
    assert {"nodes", "ntasks-per-node", "cpus-per-task", "time"} <= dict(asked).keys()
    commands = re.findall(r"^on_all_nodes (?!\()(.+)$", script, re.M)
    assert len(commands) == 2
    for command in commands:
        assert_understood(command)


def test_the_kubernetes_job_starts_as_many_pods_as_torchrun_waits_for() -> None:
    service, job = yaml.safe_load_all((CLUSTER / "sweep.yaml").read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    script = container["args"][0]
    assert_bash(script)
    nodes, each = (int(re.search(rf"{flag} (\d+)", script)[1]) for flag in ("--nnodes", "--nproc-per-node"))
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == nodes
    assert int(container["resources"]["requests"]["cpu"]) == each
    assert f"{job['metadata']['name']}-0.{service['metadata']['name']}:" in script
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert_understood(re.search(r"-m fedfw (.+)$", script, re.M)[1])
