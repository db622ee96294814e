"""The examples run and end where their text says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.files import DATA
from tests.processes import NETWORKS, run_python

EXAMPLES = Path(__file__).parent.parent / "examples"


EXPECTED = {
    "hospitals.py": "concordance 0.85" if (DATA / "tcga-brca").exists() else "",
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
    assert expected in run_python(script, alone, loaded=NETWORKS).stdout


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == EXPECTED.keys()
