"""Options are declared once: checks, refusals, signatures and help all follow from the declaration."""

import inspect
import math
import pydoc
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedfw
from fedfw.deployment import Deployment
from fedfw.options import (
    LARGEST,
    LARGEST_WHOLE,
    check_options,
    option,
    options_of,
)
from fedfw.presets import ProblemOptions, load_problem
from fedfw.rounds.options import Options
from fedfw.simulation import simulate
from fedfw.tuning import tune

DECLARED: dict[str, type] = {
    "Options": Options,
    "ProblemOptions": ProblemOptions,
    "Deployment": Deployment,
    **{cls.__name__: cls for cls in fedfw.ALGORITHMS.values()},
}
WHOLE, POSITIVE, SHARE = (
    "a whole number of at least 1",
    "a number above 0",
    "a number of at least 0",
)
REFUSED: dict[str, tuple[list[Any], str]] = {
    # of a run
    "rounds": ([0, -1, 2.0, "3", True, None, 10**15], WHOLE),
    "participation": (
        ["half", None, True, math.nan, {0: 1.0}],
        "a probability, a number of clients",
    ),
    "relax": ([[1], 3, "l2:1"], "a dictionary {client: set}"),
    "local_steps": ([0, 1.0, None, 10**9], WHOLE),
    "batch_size": ([0, 2.5, "64", 10**9], WHOLE),
    "tol": ([0.0, -1.0, math.inf, math.nan, "1", 1e39], POSITIVE),
    "eval_every": ([0, -1, True, 10**13], WHOLE),
    "certify": (
        ["", "0.1;0.2", "-1", 0.0, [0.1, -1.0], [], True],
        "positive numbers, or text such as 0.1,0.25,0.5",
    ),
    "polish": (["all", True, 1], "one of support"),
    "seed": ([-1, 2**63, 1.0, None], "a whole number of at least 0 and below 9223372036854775808"),
    "device": ([3, True], "cpu or cuda"),
    "privacy": ([4.0, ("eps", 4)], "a Privacy, or text such as eps=4,delta=1e-5"),
    # of a problem
    "dataset": ([None, 3], "text"),
    "data_dir": ([3, True], "a path"),
    "target": ([3], "the name of a column"),
    "time": ([3], "the name of a column"),
    "client_column": ([3], "the name of a column"),
    "model": ([3], "a model's name"),
    "width": ([0, 2.0, "8", 10**6], WHOLE),
    "depth": ([0, True, 10**6], WHOLE),
    "heads": ([0, -1, 10**6], WHOLE),
    "mixed": ([1, "yes"], "true or false"),
    "separate": ([1, "yes", None], "true or false"),
    "l2": ([-0.1, math.nan, math.inf, "0", 1e39], SHARE),
    "clients": ([0, 2.0, "ten", 10**9], WHOLE),
    "partition": ([3], "the name of a partition"),
    "weights": (["size", None, 1.0], "one of equal, samples"),
    # of a deployment
    "run_name": (["", "a b", "a/b", None, "ä"], "letters, digits, '-' and '_'"),
    "out": ([3], "a path"),
    "resume": ([1, "true", None], "true or false"),
    "round_timeout": ([0.0, -1.0, math.inf], POSITIVE),
    "start_timeout": ([0.0, math.nan], POSITIVE),
    "leave_after": ([-1, 1.5], "a whole number of at least 0"),
    "rebind": (
        ["three", "1,", "-1", 3, None],
        "clients' numbers with commas between them, or 'all'",
    ),
    "tell_loss": ([1, None], "true or false"),
    "share_gradients": (["yes"], "true or false"),
    # of algorithms
    "schedule": ([3, 0.5, ["convex"]], "one of convex, nonconvex, stochastic"),
    "penalty": (
        [-1.0, "some", "auto:x", "theory:-2", True, None, math.nan, math.inf],
        "a number of at least 0",
    ),
    "momentum": (
        [1.0, -0.1, "much", True, None, math.nan],
        "a number of at least 0 and below 1, or auto",
    ),
    "anchor_every": ([0, 2.0, None, "often"], WHOLE),
    "gradient_at": (["x", None, 1], "one of xbar, own"),
    "correction": ([1, "yes", None], "true or false"),
    "renew_every": ([0, 2.0, None], WHOLE),
    "compress": (
        ["4", "bits", "bits:3", "topk:0", "bits:4 ", None, 4],
        "none, topk:K (the K largest numbers)",
    ),
    "compress_down": (["4", "bits:4", "topk:0", "topk", None, 4], "none, or topk:K"),
    "extrapolation": (["some", None, 1], "one of none, nesterov"),
    "lr": ([0.0, -1.0, "fast", "auto:0", True, None, math.inf], "a "),
    "decay": (["cosine", None, 1], "one of none, linear"),
    "mu": ([-1.0, math.inf, "1"], SHARE),
    "eta": ([0.0, -1.0, math.inf], POSITIVE),
    "alpha": ([0.0, 2.0, math.nan], "a number above 0 and below 2"),
    "server_lr": ([0.0, -0.5], POSITIVE),
    "server_momentum": ([1.0, -0.1, math.nan, "0.9"], "a number of at least 0 and below 1"),
    "alignment": ([1.0, -0.1, math.nan, None], "a number of at least 0 and below 1"),
    "beta1": ([1.0, -0.1, None], "a number of at least 0 and below 1"),
    "beta2": ([1.0, -0.1, None], "a number of at least 0 and below 1"),
    "tau": ([0.0, -1e-3, math.inf], POSITIVE),
    "strong": ([-0.1, math.inf, "1"], SHARE),
    "beta": ([0.0, -1.0, math.nan], POSITIVE),
    "multiplier_every": ([0, 2.0, None], WHOLE),
    "weight_decay": ([-0.1, math.inf, None], SHARE),
}
"""Values that are refused, by the name of the option, and how the sentence that says what was
expected begins.
"""
ALLOWED: dict[str, list[Any]] = {
    "rounds": [1, 10**9],
    "participation": [0.5, 3, 1, [0.1, 0.2], (0.5,), lambda t: [0]],
    "clients": [None, 1, 10**6],
    "batch_size": [None, 1],
    "tol": [None, 1e-9, 1],
    "certify": [None, 0.1, 1, "0.1,0.5", [0.1, 0.5], (1.0,)],
    "seed": [0, 2**63 - 1],
    "privacy": [None, "eps=1,delta=1e-5", fedfw.Privacy(1.0, 1e-5)],
    "l2": [0, 0.0, 3.5],
    "out": [None, "some/where"],
    "schedule": [None, "convex", "constant:0.1", lambda t: 0.5],
    "penalty": [0, 0.0, 2.5, "auto", "theory", "auto:0.3", "theory:10"],
    "momentum": [0, 0.0, 0.99, "auto"],
    "compress": [
        "none",
        "bits:2",
        "bits:4",
        "bits:8",
        "topk:64",
        "rank:4",
        "atoms:8",
    ],
    "anchor_every": [1, 50, "auto"],
    "compress_down": ["none", "topk:1"],
    "lr": [1, 0.5, "auto", "theory", "auto:2"],
    "alpha": [1e-9, 1, 1.999],
    "strong": [0, 0.0, 0.5],
}


def make(cls: type, **values: Any) -> Any:
    return cls(fedfw.L1Ball(1.0), **values) if issubclass(cls, fedfw.Algorithm) else cls(**values)


def every_option() -> list[tuple[str, str]]:
    return [(name, key) for name, cls in DECLARED.items() for key in options_of(cls)]


def test_every_option_has_values_that_are_refused_here() -> None:
    assert {key for _, key in every_option()} == set(REFUSED)


@pytest.mark.parametrize(("name", "key"), every_option())
def test_what_is_out_of_range_is_refused_with_the_value_and_what_was_expected(
    name: str, key: str
) -> None:
    cls, (values, expected) = DECLARED[name], REFUSED[key]
    for value in [*values, object()]:
        with pytest.raises(ValueError) as caught:
            make(cls, **{key: value})
        assert str(caught.value).startswith(f"{key}={value!r}, expected {expected}")
    for value in ALLOWED.get(key, []):
        made = make(cls, **{key: value})
        assert getattr(made, key) is value
        check_options(made)


@pytest.mark.parametrize("name", DECLARED)
def test_every_field_is_an_option_with_help_and_a_default_that_is_allowed(name: str) -> None:
    cls = DECLARED[name]
    declared = options_of(cls)
    assert list(declared) == [f.name for f in fields(cls) if f.name not in ("constraint", "_")]
    made = make(cls)
    for key, one in declared.items():
        assert one.name == key
        assert one.key == key.replace("_", "-")
        assert one.help
        assert one.help[0] != " "
        assert not one.help.endswith(".")  # a full stop is put where the help becomes a sentence
        assert one.default == getattr(made, key)
        one.check(one.default)
    with pytest.raises(TypeError):
        make(cls, nothing_of_this_name=1)


@pytest.mark.parametrize(
    ("function", "declared", "own"),
    [
        (simulate, Options, {"problem", "algorithm", "callbacks", "progress", "out", "resume"}),
        (tune, Options, {"problem", "algorithm", "grid", "budget", "by", "progress"}),
        (load_problem, ProblemOptions, {"seed", "held_out", "ranks"}),
    ],
)
def test_signatures_and_help_list_exactly_what_is_declared(
    function: Callable[..., Any], declared: type, own: set[str]
) -> None:
    parameters, text = (
        inspect.signature(function).parameters,
        pydoc.render_doc(function, renderer=pydoc.plaintext),
    )
    assert set(parameters) == own | set(options_of(declared))
    assert "{options}" not in text
    for key, one in options_of(declared).items():
        assert parameters[key].default == one.default
        assert f"{key} : {one.expected}" in text
        assert one.help[1:] in " ".join(text.split())
    for key in own:
        assert key in text
    given = [p for p in parameters.values() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert len(given) == 2


def explained_by(kind: type) -> set[str]:
    """Return the parameters that a docstring explains, or says which base class does."""
    text = inspect.cleandoc(kind.__doc__ or "")
    found = set(re.findall(r"^(\w+) : ", text, re.MULTILINE))
    for names, base in re.findall(r"^([\w, ]+)\n    See `(\w+)`\.$", text, re.MULTILINE):
        (holder,) = [each for each in kind.__mro__[1:] if each.__name__ == base]
        found |= set(names.split(", ")) & explained_by(holder)
    return found


@pytest.mark.parametrize("name", fedfw.ALGORITHMS)
def test_the_help_of_an_algorithm_explains_its_options(name: str) -> None:
    kind = fedfw.ALGORITHMS[name]
    assert {"constraint", *options_of(kind)} <= explained_by(kind)


# --- the declarations themselves ---


@dataclass(frozen=True)
class Garden:
    """A class with one option of each kind, and a field that is none."""

    beds: Annotated[int, option("number of beds", ge=1, le=9)] = 3
    depth: Annotated[float, option("depth in metres", gt=0, lt=2)] = 0.5
    name: Annotated[str, option("what it is called")] = "ours"
    fence: Annotated[bool, option("whether there is a fence")] = False
    soil: Annotated[Literal["clay", "sand"] | None, option("kind of soil")] = None
    water: Annotated[int | float | str, option("water a day", expected="litres, or auto")] = "auto"
    keeper: Annotated[
        Callable[[int], str] | None, option("who comes", scope="python", expected="a function")
    ] = None
    notes: str = ""

    def __post_init__(self) -> None:
        check_options(self)


GARDEN = options_of(Garden)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("beds", "a whole number of at least 1 and at most 9"),
        ("depth", "a number above 0 and below 2"),
        ("name", "text"),
        ("fence", "true or false"),
        ("soil", "one of clay, sand"),
        ("water", "litres, or auto"),
        ("keeper", "a function"),
    ],
)
def test_what_is_expected_is_worked_out_from_type_and_limits(key: str, expected: str) -> None:
    assert GARDEN[key].expected == expected
    with pytest.raises(ValueError, match=f"^{key}=.*, expected {expected}$"):
        Garden(**{key: [1]})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("beds", "7", 7),
        ("beds", 7, 7),
        ("beds", "0.7e1", 7),
        ("depth", "1", 1.0),
        ("depth", 1, 1.0),
        ("depth", "1e-3", 0.001),
        ("name", "7", "7"),
        ("name", "true", "true"),
        ("fence", "true", True),
        ("fence", "false", False),
        ("fence", True, True),
        ("soil", "sand", "sand"),
        ("water", "3", 3),
        ("water", "3.5", 3.5),
        ("water", "auto", "auto"),
    ],
)
def test_text_becomes_what_is_declared(key: str, text: Any, value: Any) -> None:
    parsed = GARDEN[key].parse(text, "garden.toml")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("beds", "7.5"),
        ("beds", 7.0),
        ("beds", "10"),
        ("depth", "2"),
        ("depth", "nan"),
        ("depth", "x"),
        ("fence", "yes"),
        ("soil", "peat"),
    ],
)
def test_text_that_is_refused_names_its_source_and_key(key: str, text: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"^garden\.toml: {key} = .*, expected {GARDEN[key].expected}$"
    ):
        GARDEN[key].parse(text, "garden.toml")


@given(st.integers() | st.floats() | st.text(max_size=8) | st.booleans() | st.none())
def test_a_value_is_taken_as_it_is_or_refused(value: object) -> None:
    for one in GARDEN.values():
        try:
            found = one.check(value)
        except ValueError as refusal:
            found, told = value, str(refusal)
        else:
            told = f"{one.name}={value!r}, expected {one.expected}"
        assert found is value or found == value
        expected = one.expected
        if one.name == "water" and type(value) is int and abs(value) > LARGEST_WHOLE:
            expected += " and at most 1e+12"
        if one.name == "water" and type(value) is float and LARGEST < abs(value) < math.inf:
            expected += " and at most 1e+38"
        assert told == f"{one.name}={value!r}, expected {expected}"


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("water", 1e38, True),
        ("water", 1.1e38, False),
        ("water", -1.1e38, False),
        ("water", 10**12, True),
        ("water", 10**13, False),
        ("beds", 9, True),
        ("beds", 10, False),
    ],
)
def test_every_number_has_bounds(key: str, value: float, accepted: bool) -> None:
    """A number whose declaration states no upper limit has one all the same."""
    if accepted:
        assert GARDEN[key].check(value) == value
        return
    with pytest.raises(ValueError, match=rf"{key}=.*, expected .* at most (9|1e\+12|1e\+38)$"):
        GARDEN[key].check(value)
