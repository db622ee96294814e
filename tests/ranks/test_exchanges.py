"""What ranks tell each other, and how clients are divided among them."""

import os
import re
import shlex
import subprocess
import sys
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfw.cli import main
from fedfw.cli.main import _parsed
from fedfw.ranks import Ranks, divided
from fedfw.ranks.presence import has_ended, process_namespace
from fedfw.rounds.records import read_history
from tests.processes import run_python
from tests.ranks import exchanges
from tests.ranks.launch import run_ranks

LOADS = st.lists(st.integers(1, 1000), min_size=3, max_size=9)


@pytest.mark.xdist_group("ranks")
def test_three_ranks_tell_each_other_everything() -> None:
    for ended in run_ranks(3, ["-m", "tests.ranks.exchanges"], timeout=120):
        assert ended.status == 0, ended.said


def test_a_process_alone_is_what_it_was_given() -> None:
    for check in exchanges.CHECKS:
        check(Ranks())


def largest(loads: list[int], cuts: list[int]) -> int:
    return max(sum(loads[a:b]) for a, b in pairwise(cuts))


@given(LOADS, st.integers(1, 3))
def test_ranks_finish_together_as_nearly_as_can_be(loads: list[int], k: int) -> None:
    cuts = divided(loads, k)
    assert cuts[0] == 0
    assert cuts[-1] == len(loads)
    assert (np.diff(cuts) >= 1).all()
    inner = combinations(range(1, len(loads)), k - 1)
    assert largest(loads, cuts) == min(largest(loads, [0, *some, len(loads)]) for some in inner)


def test_every_rank_needs_a_client() -> None:
    with pytest.raises(ValueError, match="3 ranks for 2 clients"):
        divided([5, 5], 3)


@pytest.mark.usefixtures("no_plots")
@pytest.mark.xdist_group("ranks")
def test_the_command_line_shares_a_run_and_trials(tmp_path: Path) -> None:
    """Under torchrun `fedfw run` divides the clients and `fedfw tune` the trials; one process finds
    the same.
    """
    asked = ["--clients", "4", "--rounds", "3", "--algorithm", "fedavg", "--constraint", "l2:10"]
    grid = ["--grid", "lr=0.01,0.1,0.3"]
    for command in (["run", *asked, "--lr", "0.1"], ["tune", *asked, *grid]):
        ending = ".toml" if command[0] == "tune" else ""
        assert main([*command, "--out", str(tmp_path / f"one{ending}")]) == 0
        first, other = run_ranks(
            2, ["-m", "fedfw", *command, "--out", str(tmp_path / f"two{ending}")]
        )
        assert first.status == 0, first.said
        assert other.status == 0
        assert not other.said  # the first one speaks for all
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "two.csv").read_text()
    assert (tmp_path / "one.toml").read_text() == (tmp_path / "two.toml").read_text()
    one, two = (read_history(tmp_path / name / "history.jsonl") for name in ("one", "two"))
    assert two[-1].loss == pytest.approx(one[-1].loss, rel=1e-6)
    assert two.total("bytes_up") == one.total("bytes_up")


def test_commands_that_are_not_shared_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        main(["sets"])
    assert "sets does not divide its work among processes" in capsys.readouterr().err


# --- How a rank notices that another process of its machine ended ---


def test_a_process_that_ended_is_seen_before_anybody_asks_for_its_status() -> None:
    assert not has_ended(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not has_ended(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(child.pid)  # it is still in the table of processes
    finally:
        child.communicate()
    assert has_ended(child.pid)


def test_processes_of_one_machine_share_a_namespace() -> None:
    code = "from fedfw.ranks.presence import process_namespace; print(process_namespace())"
    found = run_python(["-c", code])
    assert found.stdout.strip() == str(process_namespace())


# --- The jobs for clusters in docs/cluster: their syntax, and that fedfw understands the commands
# in them ---

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
    nodes, each = (
        int(re.search(rf"{flag} (\d+)", script)[1]) for flag in ("--nnodes", "--nproc-per-node")
    )
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == nodes
    assert int(container["resources"]["requests"]["cpu"]) == each
    assert f"{job['metadata']['name']}-0.{service['metadata']['name']}:" in script
    assert pod["subdomain"] == service["metadata"]["name"]
    assert (
        service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    )
    assert_understood(re.search(r"-m fedfw (.+)$", script, re.M)[1])
