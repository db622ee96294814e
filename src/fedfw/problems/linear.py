"""One linear layer with a familiar loss: the gradient in closed form, for all clients in two batched products.

    scores Z = A W' + b,   gradient of W = R' A / m,   gradient of b = R' 1 / m,

with A the samples and R the derivative of the loss by the scores: softmax(Z) - onehot for cross-entropy,
sigmoid(Z) - y for the logistic loss, 2 (Z - y) for the squared loss (over the outputs' number).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from fedfw.gpu.softmax import can_fuse, fused_softmax_gradient
from fedfw.linalg.singular import top_singular
from fedfw.problems.base import ClientLosses, clip_factors
from fedfw.problems.known_losses import KnownLoss
from fedfw.problems.stacks import Samples, Stack, samples_of, stack_clients

_CONVERTED_FLOATS = {"cpu": 2**19, "cuda": 2**28}
"""How many numbers of samples are converted to float64 at a time: a processor keeps these in its cache."""

Derivative = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps scores (b, m, c) and targets (b, m, ...) to each sample's loss (b, m) and its derivative (b, m, c).

It may overwrite the scores.
"""


def _cross_entropy(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    # torch's softmax is several times slower than its parts when the last axis is as short as a number of classes.
    places = targets.unsqueeze(2)
    highest = scores.amax(2, keepdim=True)
    wanted = scores.gather(2, places)
    weights = scores.sub_(highest).exp_()
    total = weights.sum(2, keepdim=True)
    losses = total.log() + highest - wanted
    weights /= total
    weights.scatter_add_(2, places, weights.new_full((1, 1, 1), -1.0).expand_as(places))
    return losses.squeeze(2), weights


def _logistic(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    targets = targets.reshape(scores.shape).to(scores.dtype)
    outputs = scores.shape[2]
    losses = nnf.binary_cross_entropy_with_logits(scores, targets, reduction="none").mean(2)
    return losses, (scores.sigmoid() - targets) / outputs


def _squared(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    residual = scores - targets.reshape(scores.shape)
    return residual.square().mean(2), residual * (2 / scores.shape[2])


_CLOSED_FORMS: dict[Callable[..., Tensor], Derivative] = {
    nnf.cross_entropy: _cross_entropy,
    nnf.binary_cross_entropy_with_logits: _logistic,
    nnf.mse_loss: _squared,
}


_CURVATURE: dict[Derivative, Callable[[int], float]] = {
    # The largest eigenvalue that the loss's second derivative by the scores can have, from the number of outputs.
    _cross_entropy: lambda outputs: 1 / 2,
    _logistic: lambda outputs: 1 / (4 * outputs),
    _squared: lambda outputs: 2 / outputs,
}


def is_plain(model: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a model is of this kind and nothing else: hooks, parametrizations and a new forward change what it does.

    Parametrizations change the type; old-style spectral norms, weight norms and pruning are hooks.
    """
    own = vars(model)
    hooks = any(own[f"_{when}_hooks"] for when in ("forward", "forward_pre", "backward", "backward_pre"))
    added = model._buffers or model._modules or not model._parameters.keys() <= {"weight", "bias"}
    return type(model) is kind and not (hooks or added or "forward" in own)


def closed_form(model: nn.Module, known: KnownLoss | None, targets: Tensor) -> Derivative | None:
    """The loss's derivative when the model is one plain linear layer and the loss a plain one with a closed form.

    For cross-entropy ``targets`` (m, ...), one client's, must be class numbers.
    """
    if known is None or known.options or known.ignored is not None:
        return None
    if not is_plain(model, nn.Linear) or not all(p.requires_grad for p in model.parameters()):
        return None
    if known.kind.classes and targets.is_floating_point():
        return None
    return _CLOSED_FORMS.get(known.kind.function) if targets.ndim == (1 if known.kind.classes else 2) else None


class LinearLosses(ClientLosses):
    """Losses of one linear layer with a loss whose derivative is known in closed form."""

    def __init__(self, model: nn.Linear, derivative: Derivative, stacks: list[Stack], sizes: Tensor) -> None:
        self.outputs, self.inputs = model.weight.shape
        self.bias = model.bias is not None
        self.model, self.derivative, self._stacks = model, derivative, stacks
        self.sizes, self.n = sizes, len(sizes)
        self._in_order = len(stacks) == 1 and torch.equal(stacks[0].who.cpu(), torch.arange(self.n))
        self.plain_kernels = self._in_order
        # Where a client stands: which stack, which row of it.
        self._places = {int(i): (s, row) for s, stack in enumerate(stacks) for row, i in enumerate(stack.who.tolist())}

    @classmethod
    def of(cls, model: nn.Linear, derivative: Derivative, clients: list[Samples]) -> LinearLosses:
        sizes = torch.tensor([len(x) for x, _ in clients])
        return cls(model, derivative, stack_clients(clients, may_pad=True), sizes)

    def data(self) -> Iterator[Tensor]:
        return samples_of(self._stacks)

    def to(self, device: torch.device) -> LinearLosses:
        stacks = [stack.to(device) for stack in self._stacks]
        assert self.sizes is not None
        return LinearLosses(self.model, self.derivative, stacks, self.sizes)

    def value(self, x: Tensor, who: Tensor) -> Tensor:
        return self._all(x, who, None, x.new_empty(0))

    def value_and_gradient(self, x: Tensor, who: Tensor, picks: Tensor | None) -> tuple[Tensor, Tensor]:
        gradients = torch.empty_like(x)
        return self._all(x, who, picks, gradients), gradients

    def exactly(self, x: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        """Some samples at a time, because they are converted on the way."""
        x = x.double()
        values, gradients, c, f = x.new_zeros(len(x)), torch.zeros_like(x), self.outputs, self.inputs
        for stack, rows, at in self._select(who):
            points, sizes = x if at is None else x[at], stack.sizes if rows is None else stack.sizes[rows]
            value, gradient = points.new_zeros(len(points)), torch.zeros_like(points)
            longest = stack.inputs.shape[1]
            at_once = max(1, _CONVERTED_FLOATS[x.device.type] // (len(points) * f))
            for begin in range(0, longest, at_once):
                piece = slice(begin, min(begin + at_once, longest))
                A, y = stack.inputs[:, piece], stack.targets[:, piece]
                A, y = (A, y) if rows is None else (A[rows], y[rows])
                A, y = A.flatten(2).double(), y.double() if y.is_floating_point() else y
                scores = torch.bmm(A, points[:, : c * f].view(-1, c, f).mT)
                if self.bias:
                    scores += points[:, c * f :].unsqueeze(1)
                losses, R = self.derivative(scores, y)
                real = torch.arange(piece.start, piece.stop, device=x.device) < sizes[:, None]
                share = real.double() / sizes[:, None]
                value += (losses * share).sum(1)
                R *= share.unsqueeze(2)
                gradient[:, : c * f] += torch.bmm(R.mT, A).flatten(1)
                if self.bias:
                    gradient[:, c * f :] += R.sum(1)
            if at is None:
                return value, gradient
            values[at], gradients[at] = value, gradient
        return values, gradients

    def _all(self, x: Tensor, who: Tensor, picks: Tensor | None, gradients: Tensor) -> Tensor:
        """The values (m,); ``gradients`` (m, p) is filled, unless it is empty."""
        values, wanted = x.new_empty(len(x)), bool(gradients.numel())
        for stack, rows, at in self._select(who):
            everyone = rows is None
            inputs = stack.inputs if everyone else stack.inputs[rows]
            targets = stack.targets if everyone else stack.targets[rows]
            if picks is not None:
                chosen = picks if at is None else picks[at]
                each = torch.arange(len(chosen), device=x.device)[:, None]
                inputs, targets = inputs[each, chosen], targets[each, chosen]
                sizes = None
            else:
                sizes = (stack.sizes if everyone else stack.sizes[rows]) if stack.padded else None
            points = x if at is None else x[at]
            if at is None:
                self._evaluate(points, inputs, targets, sizes, values, gradients)
            else:
                part_values, part_gradients = values[at], torch.empty_like(points) if wanted else gradients
                self._evaluate(points, inputs, targets, sizes, part_values, part_gradients)
                values[at] = part_values
                if wanted:
                    gradients[at] = part_gradients
        return values

    def smoothness(self) -> Tensor:
        """The loss's largest curvature times the largest eigenvalue of A'A/m (to a thousandth), A with its ones."""
        largest = torch.empty(self.n, dtype=torch.float64)
        for stack in self._stacks:
            for i, inputs, size in zip(stack.who.tolist(), stack.inputs, stack.sizes.tolist(), strict=True):
                A = inputs[:size].flatten(1)
                if self.bias:
                    A = torch.cat([A, A.new_ones(size, 1)], 1)
                largest[i] = float(top_singular(A[None], tol=1e-3).value[0]) ** 2 / size
        return _CURVATURE[self.derivative](self.outputs) * largest

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        """A sample's gradient is r a', with r by the scores: its norm is a product, and no gradient is written out."""
        gradients, c, f = torch.empty_like(x, dtype=torch.float64), self.outputs, self.inputs
        for stack, rows, at in self._select(who):
            inputs, targets, sizes = (
                (t if rows is None else t[rows]) for t in (stack.inputs, stack.targets, stack.sizes.to(x.device))
            )
            points, looked = (x, keep) if at is None else (x[at], None if keep is None else keep[at])
            A = inputs.flatten(2)
            scores = torch.bmm(A, points[:, : c * f].view(-1, c, f).mT)
            if self.bias:
                scores += points[:, c * f :].unsqueeze(1)
            _, R = self.derivative(scores, targets)
            own = torch.arange(A.shape[1], device=x.device) < sizes[:, None]
            own = own if looked is None else own & looked[:, : A.shape[1]]
            factors = clip_factors(self._sample_norms(A, R, norm), clip) * own
            R = torch.where(factors.unsqueeze(2) > 0, R * factors.unsqueeze(2), 0.0)
            if not stack.finite:  # 0 * NaN is NaN: what is not finite must not be multiplied either
                A = torch.where(factors.unsqueeze(2) > 0, A, 0.0)
            part = torch.zeros_like(points, dtype=torch.float64)
            at_once = max(1, _CONVERTED_FLOATS[x.device.type] // (len(points) * f))
            for some, theirs in zip(torch.split(R, at_once, 1), torch.split(A, at_once, 1), strict=True):
                part[:, : c * f] += torch.bmm(some.double().mT, theirs.double()).flatten(1)
            if self.bias:
                part[:, c * f :] = R.sum(1, dtype=torch.float64)
            part /= (count if at is None else count[at])[:, None]
            if at is None:
                return part
            gradients[at] = part
        return gradients

    def _sample_norms(self, A: Tensor, R: Tensor, norm: str) -> Tensor:
        """(b, m): the norm of r [a, 1]' for each sample a (b, m, f) with r (b, m, c)."""
        ones = 1.0 if self.bias else 0.0
        if norm == "l2":
            lengths: Tensor = R.norm(dim=2) * (A.square().sum(2) + ones).sqrt()
            return lengths
        return R.abs().amax(2) * A.abs().amax(2).clamp(min=ones)

    def _select(self, who: Tensor) -> list[tuple[Stack, Tensor | None, Tensor | None]]:
        """(stack, rows of it or None for all, places in ``who`` or None for all) for the stacks that are needed."""
        all_of_them = who is self._everyone or (len(who) == self.n and torch.equal(who.cpu(), torch.arange(self.n)))
        if self._in_order and all_of_them:
            return [(self._stacks[0], None, None)]
        rows: list[list[int]] = [[] for _ in self._stacks]
        places: list[list[int]] = [[] for _ in self._stacks]
        for at, i in enumerate(who.tolist()):
            s, row = self._places[i]
            rows[s].append(row)
            places[s].append(at)
        device = who.device
        return [
            (stack, torch.tensor(r, device=device), torch.tensor(at, device=device))
            for stack, r, at in zip(self._stacks, rows, places, strict=True)
            if r
        ]

    def _evaluate(
        self, x: Tensor, inputs: Tensor, targets: Tensor, sizes: Tensor | None, values: Tensor, gradients: Tensor
    ) -> None:
        """Fill ``values`` (b,) and, unless it is empty, ``gradients`` (b, p)."""
        c, f = self.outputs, self.inputs
        A = inputs.flatten(2)
        W = x[:, : c * f].view(-1, c, f)
        wanted = bool(gradients.numel()) and sizes is None and self.derivative is _cross_entropy
        if wanted and can_fuse(A, c, targets):
            fused_softmax_gradient(A, targets, x, c, values, gradients)
            return
        scores = torch.bmm(A, W.mT)
        if self.bias:
            scores += x[:, c * f :].unsqueeze(1)
        losses, R = self.derivative(scores, targets)
        if sizes is None:
            values.copy_(losses.mean(1))
            R *= 1 / A.shape[1]
        else:
            real = torch.arange(A.shape[1], device=x.device) < sizes[:, None]
            share = real.to(x.dtype) / sizes[:, None]
            values.copy_((losses * share).sum(1))
            R *= share.unsqueeze(2)
        if not gradients.numel():
            return
        gradients[:, : c * f] = torch.bmm(R.mT, A).flatten(1)
        if self.bias:
            gradients[:, c * f :] = R.sum(1)
