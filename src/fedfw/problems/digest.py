"""Fingerprints of problems, as short texts: a checkpoint keeps them, so that only the
same run goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedfw.sets.product import Product

if TYPE_CHECKING:
    from fedfw.problems.problem import Problem

_WRITTEN_OUT = 8
"""Entries up to which a tensor is written out; larger ones are described by type, shape and
digest."""


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Return sixteen digits that change with any type, shape or entry of the tensors, and with
    their order.

    Examples
    --------
    >>> import torch
    >>> (
    ...     digest_of([torch.zeros(2)]) == digest_of([torch.zeros(2)]),
    ...     digest_of([torch.zeros(2)]) == digest_of([]),
    ... )
    (True, False)
    """
    digest = hashlib.sha256()
    for tensor in _dense_parts(tensors):
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _dense_parts(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the tensors; of a sparse one its shape, row pointers, columns and values."""
    for tensor in tensors:
        if tensor.is_sparse_csr:
            yield torch.tensor(tensor.shape)
            yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        else:
            yield tensor


def text_of(value: Any) -> str:
    """Return a value as a text that is the same in every process, and another one for another
    value.

    Functions are described by their names, because what they do cannot be compared.

    Examples
    --------
    >>> import torch, fedfw
    >>> (
    ...     text_of(fedfw.L1Ball(2.0)),
    ...     text_of(torch.tensor([0.5, 0.25])),
    ...     text_of(torch.nn.functional.mse_loss),
    ... )
    ('L1Ball(r=2.0)', '[0.5, 0.25]', 'mse_loss')
    """
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, Tensor):
        if value.numel() <= _WRITTEN_OUT:
            return repr(value.tolist())
        return f"{value.dtype} {tuple(value.shape)} {digest_of([value])}"
    # A product is described by its sets, whatever it derives from them.
    if isinstance(value, Product):
        value = value.sets
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{key}: {text_of(entry)}" for key, entry in sorted(value.items()))
            + "}"
        )
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return "[" + ", ".join(map(text_of, value)) + "]"
    if isinstance(value, nn.Module):  # a loss with its weights and settings
        settings = {name: entry for name, entry in vars(value).items() if not name.startswith("_")}
        return f"{type(value).__name__} {text_of(settings | dict(value.named_buffers()))}"
    if is_dataclass(value) and not isinstance(value, type):
        described = ", ".join(
            f"{f.name}={text_of(getattr(value, f.name))}" for f in fields(value) if f.init
        )
        return f"{type(value).__name__}({described})"
    if isinstance(value, partial):
        return f"{text_of(value.func)} {text_of(value.args)} {text_of(value.keywords)}"
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return repr(value)


def describe_model(model: nn.Module, loss: Any, l2: float, weights: Any) -> dict[str, str]:
    """Return texts by name that describe a problem without its data: model, loss, l2 and weights.

    Parameters
    ----------
    model : nn.Module
        It is described by its structure and by tensors that are not trained: the start is compared
        apart.
    loss : callable
        The loss, with its settings where it is a module.
    l2 : float
        Of the term l2/2 ||x||^2.
    weights : Tensor, sequence of float or None
        Of the clients.
    """
    structure = [
        f"{name} {type(module).__name__} "
        f"{'' if isinstance(module, nn.ParameterDict) else module.extra_repr()}"
        for name, module in model.named_modules()
    ]
    shapes = [f"{name} {tuple(p.shape)} {p.requires_grad}" for name, p in model.named_parameters()]
    structure_bytes = torch.frombuffer(
        bytearray("\n".join(structure + shapes).encode()), dtype=torch.uint8
    )
    frozen = [p for p in model.parameters() if not p.requires_grad]
    return {
        "model": f"{type(model).__name__} "
        f"{digest_of([structure_bytes, *frozen, *model.buffers()])}",
        "loss": text_of(loss),
        "l2": repr(float(l2)),
        "weights": text_of(weights),
    }


def describe_problem(problem: Problem, *, private: bool = False) -> dict[str, str]:
    """Return all that changes the losses of a problem, as texts by name, with the data by digest.

    Clients that are plain functions have no data that could be compared: they are described by
    their number.

    Parameters
    ----------
    problem : Problem
        Any.
    private : bool
        Whether to leave out digests of data, test data included: a digest lets anybody who reads it
        test a guess of the data. Only the numbers of samples, which are public, are described.

    Examples
    --------
    >>> import fedfw
    >>> describe_problem(fedfw.testing.two_quadratics())["weights"]
    '[0.5, 0.5]'
    >>> problem = fedfw.load_problem("digits", clients=3)
    >>> sorted(set(describe_problem(problem)) - set(describe_problem(problem, private=True)))
    ['data', 'test data']
    """
    described = {
        **describe_model(problem.model, problem.loss, problem.l2, problem.weights),
        "convex": repr(problem.convex),
        **({"precision": "bfloat16"} if problem.mixed else {}),
        **({"gradients": "each client by itself"} if problem.separate else {}),
    }
    if private:
        return described | {"samples": text_of(problem.losses.sizes)}
    # One digest a tensor: ranks hash their own, and all of them together are the same however they
    # are divided.
    digests = [digest_of([tensor]) for tensor in problem.losses.data()]
    if problem.losses.countable:
        digests = [
            digest for of_rank in problem.ranks.all_gather_object(digests) for digest in of_rank
        ]
    test_digest = problem.test_digest
    if problem.test_data is not None and not problem.tests_split:
        test_digest = digest_of(problem.test_data)
    data = hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]
    return described | {"data": data, "test data": test_digest}
