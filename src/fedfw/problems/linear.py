"""One linear layer with a familiar loss: the gradient in closed form, for many clients in two batched products.

    scores Z = W A' + b,   gradient of W = R A / m,   gradient of b = R 1 / m,

with A the samples and R the derivative of the loss by the scores: softmax(Z) - onehot for cross-entropy,
sigmoid(Z) - y for the logistic loss, 2 (Z - y) for the squared loss (over the outputs' number).

On a processor the samples are taken a piece at a time: the second product finds in the cache what the first has read.
Scores are kept with the samples along the last axis, because there are many samples and few outputs: products and
exponentials of long rows are up to twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from fedfw.gpu.softmax import can_fuse, fused_softmax_gradient
from fedfw.linalg.singular import top_singular
from fedfw.problems.base import ClientLosses, clip_factors
from fedfw.problems.known_losses import KnownLoss
from fedfw.problems.stacks import Samples, Stack, samples_of, stack_clients

_PIECE = {"cpu": 2**22, "cuda": 2**30}
"""Bytes of one client's samples that are multiplied at a time, fixed because it decides in which order sums are made.

A processor keeps these in its cache; on a GPU they bound what a conversion to float64 takes.
"""

Derivative = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps scores (b, c, m) and targets (b, m, ...) to each sample's loss (b, m) and its derivative (b, c, m).

It may overwrite the scores.
"""


def _cross_entropy(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    # As fast as torch's log_softmax and exp, and more exact.
    places = targets.unsqueeze(1)
    scores -= scores.amax(1, keepdim=True)
    wanted = scores.gather(1, places)
    weights = scores.exp_()
    total = weights.sum(1, keepdim=True)
    weights /= total
    weights.scatter_add_(1, places, _minus_one(weights.dtype, weights.device).expand_as(places))
    return total.log_().sub_(wanted).squeeze(1), weights


@cache
def _minus_one(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((1, 1, 1), -1.0, dtype=dtype, device=device)


def _logistic(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    # From exp and log1p, whose last bits do not depend on a number's place in the tensor; those of torch's sigmoid do.
    targets = targets.reshape(scores.mT.shape).mT.to(scores.dtype)
    small = scores.abs().neg_().exp_()
    losses = (small.log1p() + scores.clamp(min=0)).sub_(scores * targets).mean(1)
    weights = torch.where(scores < 0, small, 1.0).div_(small.add_(1))
    return losses, weights.sub_(targets).div_(scores.shape[1])


def _squared(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    residual = scores.sub_(targets.reshape(scores.mT.shape).mT)
    return residual.square().mean(1), residual.mul_(2 / scores.shape[1])


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
        only = stacks[0]
        plain = self._in_order and only.inputs.device.type == "cpu" and not only.padded
        self._whole = (only.inputs.flatten(2), only.targets) if plain else None  # all samples, where nothing is padded
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
        if picks is None and who is self._everyone and self._is_one_piece(x):
            return self._at_once(x)
        gradients = torch.empty_like(x)
        return self._all(x, who, picks, gradients), gradients

    def _is_one_piece(self, x: Tensor) -> bool:
        """Whether `_evaluate` would take the samples of all clients as they are and at once, on a processor."""
        if self._whole is None or self._whole[0].dtype is not x.dtype:
            return False
        numbers, most = self._whole[0].numel(), _PIECE["cpu"] // x.element_size()
        return numbers <= most * torch.get_num_threads() and numbers <= most * self.n

    def _at_once(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The values and gradients of `_evaluate`, to the bit, in fewer calls: tiny rounds are nothing but calls."""
        assert self._whole is not None
        A, y = self._whole
        losses, R = self.derivative(self._scores(x, A), y)
        values = losses.sum(1).mul_(1 / A.shape[1])
        R *= 1 / A.shape[1]
        gradients = torch.bmm(R, A).flatten(1)
        return values, torch.cat([gradients, R.sum(2)], 1) if self.bias else gradients

    def exactly(self, x: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        """Samples are converted a piece at a time."""
        gradients = torch.empty_like(x, dtype=torch.float64)
        return self._all(x.double(), who, None, gradients), gradients

    def _all(self, x: Tensor, who: Tensor, picks: Tensor | None, gradients: Tensor) -> Tensor:
        """The values (m,); ``gradients`` (m, p) is filled, unless it is empty. They are in the points' precision."""
        values, wanted = x.new_zeros(len(x)), bool(gradients.numel())
        for stack, rows, at in self._select(who):
            if at is None:
                self._evaluate(x, stack, rows, picks, values, gradients)
                continue
            places = torch.tensor(at, device=x.device)
            points, chosen = x[places], None if picks is None else picks[places]
            part_values, part_gradients = x.new_zeros(len(at)), torch.empty_like(points) if wanted else gradients
            self._evaluate(points, stack, rows, chosen, part_values, part_gradients)
            values[places] = part_values
            if wanted:
                gradients[places] = part_gradients
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
            theirs = slice(None) if at is None else torch.tensor(rows, device=x.device)
            inputs, targets, sizes = (t[theirs] for t in (stack.inputs, stack.targets, stack.sizes.to(x.device)))
            points, looked = (x, keep) if at is None else (x[at], None if keep is None else keep[at])
            A = inputs.flatten(2)
            _, R = self.derivative(self._scores(points, A), targets)
            own = torch.arange(A.shape[1], device=x.device) < sizes[:, None]
            own = own if looked is None else own & looked[:, : A.shape[1]]
            factors = clip_factors(self._sample_norms(A, R, norm), clip) * own
            R = torch.where(factors.unsqueeze(1) > 0, R * factors.unsqueeze(1), 0.0)
            if not stack.finite:  # 0 * NaN is NaN: what is not finite must not be multiplied either
                A = torch.where(factors.unsqueeze(2) > 0, A, 0.0)
            part = torch.zeros_like(points, dtype=torch.float64)
            at_once = max(1, _PIECE[x.device.type] // (8 * len(points) * f))
            for some, samples in zip(torch.split(R, at_once, 2), torch.split(A, at_once, 1), strict=True):
                part[:, : c * f] += torch.bmm(some.double(), samples.double()).flatten(1)
            if self.bias:
                part[:, c * f :] = R.sum(2, dtype=torch.float64)
            part /= (count if at is None else count[at])[:, None]
            if at is None:
                return part
            gradients[at] = part
        return gradients

    def _sample_norms(self, A: Tensor, R: Tensor, norm: str) -> Tensor:
        """(b, m): the norm of r [a, 1]' for each sample a (b, m, f) with r (b, c, m)."""
        ones = 1.0 if self.bias else 0.0
        if norm == "l2":
            lengths: Tensor = R.norm(dim=1) * (A.square().sum(2) + ones).sqrt()
            return lengths
        return R.abs().amax(1) * A.abs().amax(2).clamp(min=ones)

    def _select(self, who: Tensor) -> list[tuple[Stack, Sequence[int], list[int] | None]]:
        """(stack, rows of it, places in ``who`` or None for all in order) for the stacks that are needed."""
        all_of_them = who is self._everyone or (len(who) == self.n and torch.equal(who.cpu(), torch.arange(self.n)))
        if self._in_order and all_of_them:
            return [(self._stacks[0], range(self.n), None)]
        rows: list[list[int]] = [[] for _ in self._stacks]
        places: list[list[int]] = [[] for _ in self._stacks]
        for at, i in enumerate(who.tolist()):
            s, row = self._places[i]
            rows[s].append(row)
            places[s].append(at)
        return [(stack, r, at) for stack, r, at in zip(self._stacks, rows, places, strict=True) if r]

    def _scores(self, x: Tensor, A: Tensor) -> Tensor:
        """(b, c, m) for points (b, p) and samples (b, m, f)."""
        c, f = self.outputs, self.inputs
        # Kernels for operands that begin elsewhere than at multiples of 64 bytes add up in another order: a client's
        # weights are put there, whatever row of the points they come from.
        weights, bias = torch.split_with_sizes(x, (c * f, c), 1) if self.bias else (x, None)
        W = x.new_empty(x.shape[0], c, -(-f // 16) * 16).narrow(2, 0, f).copy_(weights.view(-1, c, f))
        if A.shape[1] == 1:  # a product with one column is another kernel for one client than for several
            scores = torch.bmm(A, W.mT).mT
            return scores if bias is None else scores.add_(bias.unsqueeze(2))
        return torch.bmm(W, A.mT) if bias is None else torch.baddbmm(bias.unsqueeze(2), W, A.mT)

    def _evaluate(
        self, x: Tensor, stack: Stack, rows: Sequence[int], picks: Tensor | None, values: Tensor, gradients: Tensor
    ) -> None:
        """Add to the zeros in ``values`` (b,) and, unless it is empty, fill ``gradients`` (b, p), for these rows."""
        c, f, wanted, device = self.outputs, self.inputs, bool(gradients.numel()), x.device.type
        lanes = torch.get_num_threads() if device == "cpu" else 1
        for clients, begin, A, y, counts in stack.pieces(rows, picks, _PIECE[device] // x.element_size(), lanes):
            A, points, value, gradient = A.to(x.dtype), x[clients], values[clients], gradients[clients]
            alone = isinstance(counts, int) and counts == A.shape[1]  # the only piece of these clients, unpadded
            if wanted and alone and self.derivative is _cross_entropy and can_fuse(A, c, y):
                fused_softmax_gradient(A, y, points, c, value, gradient)
                continue
            losses, R = self.derivative(self._scores(points, A), y)
            if isinstance(counts, int):
                share: float | Tensor = 1 / counts
                value.add_(losses.sum(1), alpha=1 / counts)
            else:
                real = torch.arange(begin, begin + A.shape[1], device=x.device) < counts[:, None]
                share = (real.to(x.dtype) / counts[:, None]).unsqueeze(1)
                value += (losses * share.squeeze(1)).sum(1)
            if wanted:
                R *= share
                put = Tensor.add_ if begin else Tensor.copy_
                put(gradient[:, : c * f], torch.bmm(R, A).flatten(1))
                if self.bias:
                    put(gradient[:, c * f :], R.sum(2))
