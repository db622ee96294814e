"""A run's configuration: every field is a flag of ``fedfw run`` and a key of its TOML file."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedfw.parsing import parse_number


def _option(default: Any, help_: str) -> Any:
    return field(default=default, metadata={"help": help_})


@dataclass(frozen=True)
class RunConfig:
    """See the help of each field; None means the default said there."""

    dataset: str = _option("digits", "see 'fedfw data list'")
    data_dir: str | None = _option(
        None, "folder of the data sets that are files ($FEDFW_DATA, or a cache in your home)"
    )
    model: str | None = _option(
        None,
        "mclr, logistic, linear, completion, mlp, cnn, cnn-cifar; see 'fedfw models' (by the data)",
    )
    l2: float = _option(0.0, "adds l2/2 ||x||^2 to every client's loss")
    clients: int = _option(10, "number of clients")
    partition: str | None = _option(
        None,
        "who holds what: iid, labels:K, labels:K,unequal, dirichlet:ALPHA, writer, user, client (by the data)",
    )
    weights: str = _option("equal", "how clients count: equal, or by their samples")
    algorithm: str = _option("fedfw+", "see 'fedfw algorithms'")
    constraint: str | None = _option(
        None,
        "constraint set, such as l1:10 or ksparse:k=79,r=1; see 'fedfw sets' (l1:30; networks l2:10 each)",
    )
    per_parameter: bool = _option(False, "one set for each parameter tensor instead of one for all")
    schedule: str | None = _option(
        None,
        "convex, nonconvex, stochastic, constant:ETA, linear-decay:ETA (by the problem; networks linear-decay:0.05)",
    )
    penalty: float | str | None = _option(
        None, "lam_0, auto, or a multiple such as auto:3 (on polytopes auto:0.001; else auto:0.1 with momentum, auto)"
    )
    momentum: float | None = _option(
        None, "weight of past gradients (0.9 for networks or with no algorithm named, else 0)"
    )
    anchor_every: int | None = _option(None, "rounds between anchors of fedfw-anchored (20)")
    lr: float | str | None = _option(
        None, "step size of the projected baselines: a number, auto (1/smoothness) or a multiple such as auto:4"
    )
    eta: float | None = _option(None, "parameter of the proximal step of feddr and fedadmm")
    alpha: float | None = _option(None, "relaxation of feddr, below 2")
    mu: float | None = _option(None, "pull to the server's model: fedavg with it is FedProx (0)")
    server_lr: float | None = _option(None, "server's step size of fedda (1)")
    rounds: int = _option(100, "number of rounds")
    participation: float | int = _option(1.0, "probability that a client takes part (0.5), or how many do (5)")
    local_steps: int = _option(1, "steps of a client a round")
    batch_size: int | None = _option(None, "samples of a gradient (all)")
    tol: float | None = _option(None, "stop when the loss is proven to be this close to the optimum")
    eval_every: int = _option(1, "rounds between evaluations")
    privacy: str | None = _option(
        None, "differential privacy of every client's samples, such as eps=4,delta=1e-5 (see docs/privacy.md)"
    )
    seed: int = _option(0, "fixes data split, start, attendance and minibatches")
    device: str = _option("cpu", "cpu or cuda")
    out: str | None = _option(None, "run folder (a new one under runs/)")

    def to_toml(self) -> str:
        """The configuration as TOML; fields that are None are left out."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return "".join(f"{_key(name)} = {json.dumps(value)}\n" for name, value in values if value is not None)


DEMO_CHOICES = (
    *("dataset", "data_dir", "model", "clients", "partition", "algorithm", "constraint", "per_parameter", "schedule"),
    *("penalty", "momentum", "lr", "rounds", "participation", "local_steps", "batch_size", "privacy", "seed"),
)
"""The fields of the configuration that the demonstration knows."""
DEMO_DEFAULTS: dict[str, Any] = {"clients": 3, "rounds": 5, "algorithm": "fedfw", "partition": "iid"}


def _key(name: str) -> str:
    return name.replace("_", "-")


def read_config(path: Path) -> RunConfig:
    """A configuration from a TOML file; unknown keys and wrong types are refused."""
    return merge(RunConfig(), read_table(path), str(path))


def read_table(path: Path) -> dict[str, Any]:
    """The keys and values of a TOML file."""
    if not path.is_file():
        raise ValueError(f"no configuration file {path}")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None


def merge(config: RunConfig, table: dict[str, Any], source: str) -> RunConfig:
    """The configuration with the given keys changed."""
    known = {_key(f.name): f for f in fields(RunConfig)}
    changes = {}
    for key, value in table.items():
        if key not in known:
            raise ValueError(f"{source}: unknown key {key!r}, expected one of {', '.join(known)}")
        changes[known[key].name] = _typed(key, value, str(known[key].type), source)
    return replace(config, **changes)


def _typed(key: str, value: Any, annotation: str, source: str) -> Any:
    allowed = annotation.split(" | ")
    if allowed == ["bool"] and value in ("true", "false"):
        return value == "true"
    if (isinstance(value, str) and "str" not in allowed) or (
        key in ("penalty", "participation", "lr") and isinstance(value, str)
    ):
        value = parse_number(value)
    kind = {bool: "bool", int: "int", float: "float", str: "str", type(None): "None"}.get(type(value))
    if kind == "int" and "int" not in allowed and "float" in allowed:
        return float(value)
    if kind not in allowed:
        raise ValueError(f"{source}: {key} = {value!r}, expected {annotation.replace(' | None', '')}")
    return value
