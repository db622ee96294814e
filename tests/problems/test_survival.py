"""Cox's loss and the concordance index against loops over all pairs; Cox problems from gradients to
certificates.
"""

import math
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedfw
from fedfw.problems.cox import CoxLosses
from fedfw.problems.modules import ModuleLosses

DTYPES = (torch.float32, torch.float64)
EFRON = partial(fedfw.cox_loss, ties="efron")
LOSSES = {"breslow": fedfw.cox_loss, "efron": EFRON}


def patients(
    samples: int, seed: int = 0, ties: bool = False, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Inputs (samples, 4), and targets with about half of the events seen."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 4, generator=draw, dtype=torch.float64)
    times = torch.rand(samples, generator=draw, dtype=torch.float64) * 10
    events = torch.randint(0, 2, (samples,), generator=draw).double()
    return inputs.to(dtype), torch.stack([events, times.ceil() if ties else times], 1).to(dtype)


def by_loops(scores: list[float], targets: list[list[float]]) -> float:
    total = 0.0
    for (event, time), score in zip(targets, scores, strict=True):
        if event:
            at_risk = [s for s, (_, t) in zip(scores, targets, strict=True) if t >= time]
            total += math.log(sum(math.exp(s) for s in at_risk)) - score
    return total / len(scores)


def concordance_by_loops(scores: list[float], targets: list[list[float]]) -> float | None:
    right, pairs = 0.0, 0
    for s, (event, time) in zip(scores, targets, strict=True):
        for other, (also, later) in zip(scores, targets, strict=True):
            if event and (time < later or (time == later and not also)):
                pairs += 1
                right += 1.0 if s > other else 0.5 if s == other else 0.0
    return right / pairs if pairs else None


def problem(
    clients: list[Any],
    dtype: torch.dtype = torch.float64,
    loss: Any = fedfw.cox_loss,
    **options: Any,
) -> fedfw.Problem:
    model = nn.Linear(4, 1, bias=False, dtype=dtype)
    nn.init.zeros_(model.weight)
    return fedfw.Problem(model, loss, clients, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ties", [False, True])
def test_the_loss_is_that_of_the_loops(ties: bool, dtype: torch.dtype) -> None:
    inputs, targets = patients(40, ties=ties, dtype=dtype)
    for scores in (inputs[:, 0], 5 * inputs[:, 1], torch.zeros(40, dtype=dtype)):
        expected = by_loops(scores.tolist(), targets.tolist())
        assert float(fedfw.cox_loss(scores[:, None], targets)) == pytest.approx(expected, rel=1e-6)
        shuffled = torch.randperm(40)
        assert float(fedfw.cox_loss(scores[shuffled], targets[shuffled])) == pytest.approx(
            expected, rel=1e-6
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_censored_and_a_single_patient_have_loss_zero(dtype: torch.dtype) -> None:
    inputs, targets = patients(6, dtype=dtype)
    censored = targets * torch.tensor([0.0, 1.0], dtype=dtype)
    alone = torch.tensor([[1.0, 3.0]], dtype=dtype)
    assert float(fedfw.cox_loss(inputs[:, 0], censored)) == 0
    assert float(fedfw.cox_loss(inputs[:1, 0], alone)) == 0
    value, gradient = problem([(inputs, censored), (inputs[:1], alone)], dtype).value_and_gradient(
        inputs[0]
    )
    assert (value, gradient.abs().max().item()) == (0, 0)
    assert fedfw.concordance(inputs[:, 0], censored) is None
    assert fedfw.concordance(inputs[:1, 0], alone) is None


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("ties", [False, True])
def test_the_closed_form_is_torchs_gradient(ties: bool, loss: Any) -> None:
    clients = [patients(m, seed, ties) for seed, m in enumerate((7, 30, 30, 1, 12))]
    closed = problem(clients, loss=loss, weights=[7, 30, 30, 1, 12])
    other = fedfw.Problem(
        nn.Sequential(nn.Linear(4, 1, bias=False, dtype=torch.float64)),
        loss,
        clients,
        weights=closed.weights,
    )
    assert isinstance(closed.losses, CoxLosses)
    assert isinstance(other.losses, ModuleLosses)
    assert closed.losses.per == other.losses.per == "client"
    for x in torch.randn(3, 4, dtype=torch.float64):
        (value, gradient), (expected, slope) = (
            closed.value_and_gradient(x),
            other.value_and_gradient(x),
        )
        assert value == pytest.approx(expected, rel=1e-12)
        assert torch.allclose(gradient, slope, rtol=1e-10, atol=1e-13)
        some = torch.tensor([4, 1])
        for one, two in zip(
            *(p.losses.value_and_gradient(x.expand(2, -1), some, None) for p in (closed, other)),
            strict=True,
        ):
            assert torch.allclose(one, two, rtol=1e-10, atol=1e-13)


# --- Efron's ties ---


def efron_by_loops(scores: list[float], targets: list[list[float]]) -> float:
    """The sum over tie groups of log(risk - l/d events), less the events' scores."""
    total = 0.0
    for time in {t for event, t in targets if event}:
        at_risk = [s for s, (_, t) in zip(scores, targets, strict=True) if t >= time]
        events = [s for s, (e, t) in zip(scores, targets, strict=True) if e and t == time]
        top = max(at_risk)
        risk_sum = math.fsum(math.exp(s - top) for s in at_risk)
        event_sum = math.fsum(math.exp(s - top) for s in events)
        for rank in range(len(events)):
            total += math.log(risk_sum - rank / len(events) * event_sum) + top
        total -= math.fsum(events)
    return total / len(scores)


rows = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 5), st.integers(-40, 40)), min_size=1, max_size=30
)


@settings(max_examples=150, deadline=None)
@given(rows)
def test_efrons_loss_is_that_of_the_loops(drawn: list[tuple[int, int, int]]) -> None:
    targets = torch.tensor([[event, time] for event, time, _ in drawn], dtype=torch.float64)
    scores = torch.tensor([score / 4 for *_, score in drawn], dtype=torch.float64)
    expected = efron_by_loops(scores.tolist(), targets.tolist())
    found = float(EFRON(scores, targets))
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-12)
    assert found >= 0
    assert found <= float(fedfw.cox_loss(scores, targets)) + 1e-12
    # Whole numbers as targets, and another order of the patients.
    shuffled = torch.randperm(len(drawn))
    assert float(EFRON(scores[shuffled], targets.long()[shuffled])) == pytest.approx(
        expected, rel=1e-10, abs=1e-12
    )


def test_efrons_gradient_is_that_of_finite_differences() -> None:
    inputs, targets = patients(25, 1, ties=True)
    scores = (3 * inputs[:, 0]).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: EFRON(s, targets), scores)


def test_without_ties_efrons_loss_is_breslows() -> None:
    inputs, targets = patients(40, 2)
    for scale in (1.0, 1e3):
        scores = scale * inputs[:, 0]
        assert float(EFRON(scores, targets)) == pytest.approx(
            float(fedfw.cox_loss(scores, targets)), rel=1e-12
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_client_alone_has_the_bits_that_it_has_in_a_stack(dtype: torch.dtype) -> None:
    clients = [patients(20, seed, True, dtype) for seed in range(5)]
    together = problem(clients, dtype, EFRON).losses
    x = torch.randn(5, 4, dtype=dtype)
    values, gradients = together.value_and_gradient(x, torch.arange(5), None)
    for i, client in enumerate(clients):
        alone = problem([client], dtype, EFRON).losses
        value, gradient = alone.value_and_gradient(x[i : i + 1], torch.tensor([0]), None)
        assert torch.equal(value[0], values[i])
        assert torch.equal(gradient[0], gradients[i])


def test_efrons_smoothness_bounds_the_hessian() -> None:
    for seed in range(10):
        inputs, targets = patients(15, seed, ties=True)
        p = problem([(inputs, targets)], loss=EFRON)
        bound = p.smoothness()
        assert bound is not None
        for x in torch.randn(5, 4, dtype=torch.float64):
            sides = [
                [p.value_and_gradient(x + step * unit)[1] for unit in torch.eye(4).double()]
                for step in (1e-5, -1e-5)
            ]
            hessian = (torch.stack(sides[0]) - torch.stack(sides[1])) / 2e-5
            assert float(torch.linalg.matrix_norm(hessian, 2)) <= bound


def test_other_ties_are_refused() -> None:
    inputs, targets = patients(9)
    with pytest.raises(ValueError, match="ties='exact', expected 'breslow' or 'efron'"):
        fedfw.cox_loss(inputs[:, 0], targets, ties="exact")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"cox_loss with \{'ties': 'exact'\}, expected"):
        problem([(inputs, targets)], loss=partial(fedfw.cox_loss, ties="exact"))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize(
    "algorithm", [fedfw.FedFWPlus(fedfw.L1Ball(1.0)), fedfw.FedAvg(fedfw.L1Ball(1.0))]
)
def test_runs_come_to_the_certified_optimum(algorithm: fedfw.Algorithm, loss: Any) -> None:
    clients = [patients(m, seed, ties=True) for seed, m in enumerate((40, 30))]
    one = problem(clients, loss=loss, test=patients(30, 7), test_owners=torch.arange(30) % 2)
    assert one.convex
    optimum = fedfw.solve(one, fedfw.L1Ball(1.0))
    run = fedfw.simulate(one, algorithm, rounds=200, eval_every=200)
    last = run.history[-1]
    assert last.loss is not None
    assert run.lower_bound <= optimum.value
    assert -1e-9 <= optimum.residual(last.loss) < 0.1
    scores = (one.test_data[0] @ run.x.flatten()).tolist()  # type: ignore[index]
    targets = one.test_data[1].tolist()  # type: ignore[index]
    assert last.concordance == concordance_by_loops(scores, targets)
    assert last.concordances == {
        str(i): concordance_by_loops(scores[i::2], targets[i::2]) for i in (0, 1)
    }
    assert last.accuracy is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ties", [False, True])
def test_concordance_is_that_of_the_loops(ties: bool, dtype: torch.dtype) -> None:
    inputs, targets = patients(50, 3, ties, dtype)
    for scores in (inputs[:, 0], inputs[:, 1].round()):
        assert fedfw.concordance(scores[:, None], targets) == concordance_by_loops(
            scores.tolist(), targets.tolist()
        )
    seen = targets.clone()
    seen[:, 0] = 1
    assert fedfw.concordance(-seen[:, 1], seen) == 1
    assert fedfw.concordance(seen[:, 1], seen) == 0
    assert fedfw.concordance(torch.zeros(50), seen) == 0.5


def test_other_shapes_are_refused_with_the_reason() -> None:
    clients = [patients(9, seed) for seed in (0, 1)]
    assert problem(clients).losses.per == "client"  # so neither minibatches nor privacy
    with pytest.raises(
        ValueError, match=r"test_owners of shape \(3,\), expected one for 9 test samples"
    ):
        problem(clients, test=clients[0], test_owners=torch.arange(3))


# --- large scores, and what inputs have in common ---


def exact_loss(scores: list[Fraction], targets: list[list[float]], efron: bool = False) -> float:
    """The loss of exact scores: only their differences within a risk set are rounded."""
    total = 0.0
    seen: dict[float, int] = {}
    for (event, time), score in zip(targets, scores, strict=True):
        if event:
            at_risk = [s for s, (_, t) in zip(scores, targets, strict=True) if t >= time]
            tied = [s for s, (e, t) in zip(scores, targets, strict=True) if e and t == time]
            rank = seen.get(time, 0)
            seen[time] = rank + 1
            largest = max(at_risk)
            risk = sum(math.exp(float(s - largest)) for s in at_risk)
            if efron:
                risk -= rank / len(tied) * sum(math.exp(float(s - largest)) for s in tied)
            total += math.log(risk) + float(largest - score)
    return total / len(scores)


def far_apart(seed: int, ties: bool) -> tuple[Tensor, Tensor]:
    """Few patients with whole numbers of thousands: scores are exact in float64, and as large as
    the parameters.
    """
    draw = torch.Generator().manual_seed(seed)
    m = int(torch.randint(2, 7, (), generator=draw))
    inputs = torch.randint(0, 10, (m, 2), generator=draw).double() * 1000
    times = torch.randint(1, 4 if ties else 100, (m,), generator=draw).double()
    return inputs, torch.stack([torch.ones(m, dtype=torch.float64), times], 1)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ties", [False, True])
def test_large_scores_lose_no_digits(ties: bool, dtype: torch.dtype, loss: Any) -> None:
    at = 1e-5 if dtype == torch.float32 else 1e-12
    for seed in range(40):
        inputs, targets = far_apart(seed, ties)
        if dtype == torch.float32:
            inputs /= 1000  # whole numbers below 2^24
        draw = torch.Generator().manual_seed(seed)
        x = torch.randint(-1000, 1000, (2,), generator=draw).to(dtype) * (
            10 if dtype == torch.float32 else 10**6
        )
        x[0] *= seed % 2  # often some scores are equal and others far away
        first, second = (Fraction(number) for number in x.tolist())
        exact = [Fraction(a) * first + Fraction(b) * second for a, b in inputs.tolist()]
        expected = exact_loss(exact, targets.tolist(), efron=loss is EFRON)
        clients = [(inputs.to(dtype), targets.to(dtype))]
        model = nn.Linear(2, 1, bias=False, dtype=dtype)
        for module in (model, nn.Sequential(model)):
            p = fedfw.Problem(module, loss, clients)
            value, gradient = p.value_and_gradient(x)
            assert value == pytest.approx(expected, rel=at, abs=at)
            assert bool(gradient.isfinite().all())
        scores = torch.tensor([float(score) for score in exact], dtype=dtype)
        assert float(loss(scores, targets.to(dtype))) == pytest.approx(expected, rel=at, abs=at)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("radius", [1e4, 1e6, 1e8])
def test_the_bound_is_below_every_loss_however_large_the_scores(
    radius: float, dtype: torch.dtype, loss: Any
) -> None:
    for seed in range(12):
        inputs, targets = far_apart(seed, ties=True)
        model = nn.Linear(2, 1, bias=False, dtype=dtype)
        nn.init.zeros_(model.weight)
        p = fedfw.Problem(model, loss, [(inputs, targets)])
        run = fedfw.simulate(p, fedfw.FrankWolfe(fedfw.CappedSimplex(radius)), rounds=15)
        points = [run.x, torch.zeros(2), *radius * torch.eye(2, dtype=torch.float64)]
        losses = [p.value_and_gradient(x, exact=True)[0] for x in points]
        if dtype == torch.float64:
            losses += [record.loss for record in run.history if record.loss is not None]
        assert 0 <= run.lower_bound <= min(losses) * (1 + 1e-12)


@pytest.mark.parametrize("common", [0.0, 1950.0, 1.7e9, 1e12])
def test_what_inputs_have_in_common_changes_no_certificate(common: float) -> None:
    """A year or a time stamp is added to all scores, and the loss looks at their differences alone."""
    for seed in range(6):
        inputs, targets = patients(8, seed, ties=True)
        shifted = (
            inputs * 100
        ).round() / 100 + common  # rounded to the spacing of numbers so large
        inputs = shifted - shifted[0]
        plain, other = problem([(inputs, targets)]), problem([(shifted, targets)])
        optimum = fedfw.solve(plain, fedfw.L1Ball(3.0), tol=1e-9, max_steps=300)
        run = fedfw.simulate(other, fedfw.FrankWolfe(fedfw.L1Ball(3.0)), rounds=30)
        assert run.lower_bound <= optimum.value * (1 + 1e-12)
        assert other.value(run.x) == pytest.approx(plain.value(run.x), rel=1e-12)


# --- targets that are no pairs of an event and a time ---

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1.0, NAN], "row 3 has the time nan, expected a finite number"),
        ([0.0, NAN], "row 3 has the time nan"),
        ([1.0, INF], "row 3 has the time inf"),
        ([1.0, -INF], "row 3 has the time -inf"),
        ([-1.0, 2.0], "row 3 has the event -1, expected 1 where the event was seen and 0"),
        ([0.5, 2.0], r"row 3 has the event 0\.5"),
        ([2.0, 2.0], "row 3 has the event 2"),
        ([NAN, 2.0], "row 3 has the event nan"),
    ],
)
def test_targets_that_say_nothing_are_refused_by_their_row(
    row: list[float], message: str, dtype: torch.dtype
) -> None:
    inputs, targets = patients(6, dtype=dtype)
    broken = targets.clone()
    broken[3] = torch.tensor(row, dtype=dtype)
    layer = nn.Linear(4, 1, bias=False, dtype=dtype)
    for model in (layer, nn.Sequential(layer)):
        with pytest.raises(ValueError, match="client 1: " + message):
            fedfw.Problem(model, fedfw.cox_loss, [(inputs, targets), (inputs, broken)])
        with pytest.raises(ValueError, match="the test data: " + message):
            fedfw.Problem(model, fedfw.cox_loss, [(inputs, targets)], (inputs, broken))
    for function in (fedfw.cox_loss, fedfw.concordance):
        with pytest.raises(ValueError, match=message):
            function(inputs[:, 0], broken)


def test_swapped_and_missing_columns_are_refused() -> None:
    inputs, targets = patients(6)
    with pytest.raises(
        ValueError, match=r"client 0: row 0 has the event .*swapped, targets\.flip\(1\)"
    ):
        problem([(inputs, targets.flip(1))])
    assert problem([(inputs, targets.flip(1).flip(1))]).n == 1
    for other in (targets[:, :1], targets[:, 0], torch.cat([targets, targets], 1), targets[:, :0]):
        with pytest.raises(
            ValueError, match=r"client 0: targets of shape .*expected one score and a pair"
        ):
            problem([(inputs, other)])
        with pytest.raises(
            ValueError, match=r"concordance: targets of shape .*expected one score and a pair"
        ):
            fedfw.concordance(inputs[:, 0], other)
