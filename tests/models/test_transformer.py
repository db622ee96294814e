"""The transformer: its parameters, what it may look at, and that clients of different sizes learn
with it.
"""

import math

import pytest
import torch

import fedfw
from fedfw.data import Data, Part
from fedfw.data.shakespeare import cut_windows
from fedfw.models import make_model
from fedfw.models.transformer import Transformer
from fedfw.presets import ProblemOptions, make_problem

DTYPES = [torch.float32, torch.float64]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def windows(
    *sizes: int, characters: int = 7, length: int = 6
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Clients with so many windows of random characters."""
    drawn = (
        torch.randint(characters, (size, length + 1), generator=generator(size)) for size in sizes
    )
    return [(each[:, :-1], each[:, 1:]) for each in drawn]


def small(dtype: torch.dtype = torch.float32) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Transformer(7, 6, width=8, depth=2, heads=2).to(dtype)


def cyclic(*sizes: int) -> Data:
    """Texts in which 0, 1, 2, 3, 4 follow each other for ever."""
    return Data(
        "made up", *cut_windows([torch.arange(size, dtype=torch.int8) % 5 for size in sizes], 8), 5
    )


def test_the_parameters_are_those_of_the_published_size() -> None:
    part = Part(torch.zeros(2, 96, dtype=torch.int8), torch.zeros(2, 96, dtype=torch.int8))
    model = make_model("transformer", Data("made up", part, part, 65), 0)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert sum(map(math.prod, shapes.values())) == 815_360
    assert {name: shape for name, shape in shapes.items() if not name.startswith("blocks")} == {
        "embedding.weight": (65, 128),
        "position": (96, 128),
        "head.weight": (65, 128),
    }
    assert {name: shape for name, shape in shapes.items() if name.startswith("blocks.3.")} == {
        **{f"blocks.3.{role}.weight": (128, 128) for role in ("q", "k", "v", "out")},
        "blocks.3.up.weight": (512, 128),
        "blocks.3.down.weight": (128, 512),
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_character_is_predicted_from_those_before_it_alone(dtype: torch.dtype) -> None:
    model, ((inputs, _),) = small(dtype), windows(5)
    scores = model(inputs)
    assert (scores.shape, scores.dtype) == ((5, 7, 6), dtype)
    for place in range(6):
        changed = inputs.clone()
        changed[:, place] = (changed[:, place] + 1) % 7
        differs = (model(changed) - scores).abs().amax((0, 1))
        assert torch.equal(differs[:place], torch.zeros(place, dtype=dtype))
        assert bool((differs[place:] > 0).all())
    assert torch.allclose(model(inputs[:, :4]), scores[..., :4])  # shorter windows are fine


def test_clients_learn_together() -> None:
    problem = make_problem(
        cyclic(300, 200, 500), ProblemOptions(clients=3, width=8, depth=1, heads=2)
    )
    before = problem.test(problem.start)
    run = fedfw.simulate(
        problem,
        fedfw.FedAvg(fedfw.LinfBall(10.0), lr=1.5),
        rounds=8,
        local_steps=5,
        batch_size=8,
        participation=2,
        eval_every=8,
    )
    after = problem.test(run.x)
    assert before.loss > 1.5  # log 5 is 1.6
    assert after.loss < 0.5 * before.loss
    assert after.accuracy > 0.9
