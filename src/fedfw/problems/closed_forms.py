"""The losses that evaluate a model fastest: in closed form where there is one."""

from __future__ import annotations

import torch.nn.functional as nnf
from torch import nn

from fedfw.problems.base import ClientLosses
from fedfw.problems.completion import CompletionLosses, MatrixCompletion
from fedfw.problems.composed import RegularisedLosses
from fedfw.problems.cox import CoxLosses
from fedfw.problems.glm import family_of
from fedfw.problems.linear import LinearLosses
from fedfw.problems.modules import ModelAndLoss, ModuleLosses
from fedfw.problems.scores import closed_form, is_plain
from fedfw.problems.sparse import SparseLosses
from fedfw.problems.stacks import Samples
from fedfw.problems.structure import features_of, is_linear
from fedfw.problems.survival import efron_likelihood, partial_likelihood

NOT_SPARSE = (
    "sparse inputs need torch.nn.Linear with cross-entropy, the logistic or the squared loss, all "
    "without options: give others dense ones"
)


def fastest_losses(
    clients: list[Samples], evaluated: ModelAndLoss, layer: nn.Linear | None, l2: float
) -> ClientLosses:
    """Return the losses of clients with these samples, plus l2/2 ||x||^2, in the fastest form that
    evaluates them.

    ``layer`` is the only trained layer of a model that is linear in it, and gives the model's
    outputs (`fedfw.problems.structure.linear_layer`).
    """
    losses = _losses_without_term(clients, evaluated, layer)
    if evaluated.mixed and not isinstance(losses, ModuleLosses):
        raise ValueError(
            f"mixed=True changes nothing for {type(evaluated.model).__name__}, whose gradient has "
            "a closed form, expected a network"
        )
    return RegularisedLosses(losses, l2) if l2 else losses


def _losses_without_term(
    clients: list[Samples], evaluated: ModelAndLoss, layer: nn.Linear | None
) -> ClientLosses:
    """Return the losses without the l2 term: in closed form for linear layers, matrix completion
    and Cox's loss, else by differentiating the model.
    """
    model, loss, shapes, known, per, _ = evaluated
    sparse = clients[0][0].is_sparse_csr
    if layer is not None and all(p.requires_grad for p in layer.parameters()):
        family = family_of(loss)
        if family is None:
            derivative = closed_form(known, clients[0][1])
        else:
            derivative = family.derivative
        if derivative is not None and per == "sample":
            if sparse and family is not None:
                raise ValueError(NOT_SPARSE)
            if sparse:
                return SparseLosses(layer, derivative, clients)
            features = [(features_of(model, layer, x), y) for x, y in clients]
            return LinearLosses.of(layer, derivative, features)
    if sparse:
        raise ValueError(NOT_SPARSE)
    squared = known is not None and not known.options and known.kind.function is nnf.mse_loss
    if isinstance(model, MatrixCompletion) and is_linear(model) and squared and per == "sample":
        return CompletionLosses.of(model, clients)
    if is_plain(model, nn.Linear) and len(shapes) == 1:
        if loss is partial_likelihood:
            return CoxLosses.of(clients, "breslow")
        if loss is efron_likelihood:
            return CoxLosses.of(clients, "efron")
    return ModuleLosses.of(clients, evaluated)
