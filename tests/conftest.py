"""One thread and fixed seeds: results do not depend on the machine's load."""

import pytest
import torch

torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
