"""One linear layer with a familiar loss: the gradient in closed form, for many clients in two
batched products.

    scores Z = W A' + b,   gradient of W = R A / m,   gradient of b = R 1 / m,

with A the samples and R the derivative of the loss by the scores: softmax(Z) - onehot for
cross-entropy, sigmoid(Z) - y for the logistic loss, 2 (Z - y) for the squared loss (over the
outputs' number).

Softmax regression in float32 has kernels of its own (`fedfw.cpu.softmax`, `fedfw.gpu.softmax`).
Else, on a processor, samples are taken a piece at a time: the second product finds in the cache
what the first has read. Scores are kept with the samples along the last axis, because there are
many samples and few outputs: products and exponentials of long rows are up to twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from fedfw.cpu.softmax import is_compiled, is_compiled_for, softmax_gradient
from fedfw.gpu.softmax import can_fuse, fused_softmax_gradient
from fedfw.linalg.singular import top_singular
from fedfw.problems.base import LOST_SQUARE, ClientLosses, clip_factors, times_factors
from fedfw.problems.known_losses import KnownLoss
from fedfw.problems.stacks import Group, Samples, Stack, samples_of, stack_clients

_PIECE = {"cpu": 2**20, "cuda": 2**30}
"""Bytes of one client's samples that are multiplied at a time, fixed because it decides in which
order sums are made.

A processor's core keeps these in its own cache; on a GPU they bound what a conversion to float64
takes.
"""
_PER_WEIGHT = 4
"""Numbers of samples in a piece for each weight at least, because every piece reads all weights."""
_CONVERTED = {"cpu": 2**22, "cuda": 2**30}
"""Bytes of samples of all clients that are converted to float64 at a time, where gradients are
clipped.
"""

Derivative = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps scores (b, c, m) and targets (b, m, ...) to each sample's loss (b, m) and its derivative (b,
c, m).

It may overwrite the scores.
"""


def _cross_entropy(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    places = targets.unsqueeze(1)
    logarithms = scores.log_softmax(1)
    losses = logarithms.gather(1, places).squeeze(1).neg_()
    weights = logarithms.exp_()
    return losses, weights.scatter_add_(
        1, places, _minus_one(weights.dtype, weights.device).expand_as(places)
    )


@cache
def _minus_one(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((1, 1, 1), -1.0, dtype=dtype, device=device)


def _logistic(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    # From exp and log1p, whose last bits do not depend on a number's place in the tensor; those of
    # torch's sigmoid do.
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
    # The largest eigenvalue that the loss's second derivative by the scores can have, from the
    # number of outputs.
    _cross_entropy: lambda outputs: 1 / 2,
    _logistic: lambda outputs: 1 / (4 * outputs),
    _squared: lambda outputs: 2 / outputs,
}


def is_plain(model: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a model is of this kind and nothing else: hooks, parametrizations and a new forward
    change what it does.

    Parametrizations change the type; old-style spectral norms, weight norms and pruning are hooks,
    and leave parameters in another order when they are removed.
    """
    own = vars(model)
    hooks = any(
        own[f"_{when}_hooks"] for when in ("forward", "forward_pre", "backward", "backward_pre")
    )
    for_all = nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
    names = tuple(model._parameters)
    others = names != ("weight", "bias") if kind is nn.Linear else names not in ((), ("weight",))
    held = model._modules and kind is not nn.Sequential
    return type(model) is kind and not (
        hooks or for_all or others or held or model._buffers or "forward" in own
    )


def closed_form(model: nn.Module, known: KnownLoss | None, targets: Tensor) -> Derivative | None:
    """The loss's derivative by the scores when the model is one plain linear layer; see
    `closed_form_of`.
    """
    if not is_plain(model, nn.Linear) or not all(p.requires_grad for p in model.parameters()):
        return None
    return closed_form_of(known, targets)


def closed_form_of(known: KnownLoss | None, targets: Tensor) -> Derivative | None:
    """The derivative by the scores of a plain loss that has a closed form; None for others.

    For cross-entropy ``targets`` (m, ...), one client's, must be class numbers.
    """
    if known is None or known.options or known.ignored is not None:
        return None
    if known.kind.classes and targets.is_floating_point():
        return None
    return (
        _CLOSED_FORMS.get(known.kind.function)
        if targets.ndim == (1 if known.kind.classes else 2)
        else None
    )


class LinearLosses(ClientLosses):
    """Losses of one linear layer with a loss whose derivative is known in closed form."""

    sizes: Tensor

    def __init__(
        self, model: nn.Linear, derivative: Derivative, stacks: list[Stack], sizes: Tensor
    ) -> None:
        self.outputs, self.inputs = model.weight.shape
        self.bias = model.bias is not None
        self.model, self.derivative, self._stacks = model, derivative, stacks
        self.sizes, self.n = sizes, len(sizes)
        self._in_order = len(stacks) == 1 and torch.equal(stacks[0].who.cpu(), torch.arange(self.n))
        self.plain_kernels = self._in_order
        fits = derivative is _cross_entropy and all(
            prod(s.inputs.shape[2:]) == self.inputs for s in stacks
        )
        self._compiled = fits and all(is_compiled_for(s.inputs, s.targets, s.sizes) for s in stacks)
        # Where a client stands: which stack, which row of it.
        self._places = {
            int(i): (s, row)
            for s, stack in enumerate(stacks)
            for row, i in enumerate(stack.who.tolist())
        }

    @classmethod
    def of(cls, model: nn.Linear, derivative: Derivative, clients: list[Samples]) -> LinearLosses:
        sizes = torch.tensor([len(x) for x, _ in clients])
        return cls(model, derivative, stack_clients(clients, may_pad=True), sizes)

    def data(self) -> Iterator[Tensor]:
        return samples_of(self._stacks)

    def to(self, device: torch.device) -> LinearLosses:
        stacks = [stack.to(device) for stack in self._stacks]
        return LinearLosses(self.model, self.derivative, stacks, self.sizes)

    def value(self, x: Tensor, who: Tensor) -> Tensor:
        return self._all(x, who, None, x.new_empty(0))

    def value_and_gradient(
        self, x: Tensor, who: Tensor, picks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return self.weighted(x, who, picks, 1.0, x.dtype)

    def weighted(
        self,
        x: Tensor,
        who: Tensor,
        picks: Tensor | None,
        factors: float | Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        if dtype is torch.float32 and self._may_use_kernel(
            x
        ):  # which rounds points in float64 itself, and multiplies
            gradients = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
            return self._all(x, who, picks, gradients, factors), gradients
        x = x.to(dtype)
        gradients = torch.empty_like(x)
        return times_factors(self._all(x, who, picks, gradients), gradients, factors)

    def exactly(self, x: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        """Samples are converted a piece at a time."""
        gradients = torch.empty_like(x, dtype=torch.float64)
        return self._all(x.double(), who, None, gradients), gradients

    def _all(
        self,
        x: Tensor,
        who: Tensor,
        picks: Tensor | None,
        gradients: Tensor,
        factors: float | Tensor = 1.0,
    ) -> Tensor:
        """The values (m,); ``gradients`` (m, p) is filled, unless it is empty, and both have its
        precision.

        Factors, one or (m,), are for compiled code alone (`_may_use_kernel`).
        """
        values, wanted = gradients.new_zeros(len(x)), bool(gradients.numel())
        for stack, rows, at in self._select(who):
            if at is None:
                self._evaluate(x, stack, rows, picks, values, gradients, factors)
                continue
            places = torch.tensor(at, device=x.device)
            points, chosen = x[places], None if picks is None else picks[places]
            some = factors[places] if isinstance(factors, Tensor) else factors
            part_values = values.new_zeros(len(at))
            part_gradients = gradients.new_empty(points.shape) if wanted else gradients
            self._evaluate(points, stack, rows, chosen, part_values, part_gradients, some)
            values[places] = part_values
            if wanted:
                gradients[places] = part_gradients
        return values

    def smoothness(self) -> Tensor:
        """The loss's largest curvature times the largest eigenvalue of A'A/m (to a thousandth), A
        with its ones.
        """
        largest = torch.empty(self.n, dtype=torch.float64)
        for stack in self._stacks:
            for i, inputs, size in zip(
                stack.who.tolist(), stack.inputs, stack.sizes.tolist(), strict=True
            ):
                A = inputs[:size].flatten(1)
                if self.bias:
                    A = torch.cat([A, A.new_ones(size, 1)], 1)
                largest[i] = float(top_singular(A[None], tol=1e-3).value[0]) ** 2 / size
        return _CURVATURE[self.derivative](self.outputs) * largest

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        """A sample's gradient is r a', with r by the scores: its norm is a product, and no gradient
        is written out.
        """
        gradients = torch.empty_like(x, dtype=torch.float64)
        for stack, rows, at in self._select(who):
            theirs = slice(None) if at is None else torch.tensor(rows, device=x.device)
            inputs, targets, sizes = (
                t[theirs] for t in (stack.inputs, stack.targets, stack.sizes.to(x.device))
            )
            points, looked = (
                (x, keep) if at is None else (x[at], None if keep is None else keep[at])
            )
            A = inputs.flatten(2)
            losses, R = self.derivative(scores_of(*self._weights_of(points), A), targets)
            counts = torch.arange(A.shape[1], device=x.device) < sizes[:, None]
            counts = counts if looked is None else counts & looked[:, : A.shape[1]]
            part = self._clipped_sums(A, R, counts & losses.isfinite(), norm, clip, stack.finite)
            part /= (count if at is None else count[at])[:, None]
            if at is None:
                return part
            gradients[at] = part
        return gradients

    def _clipped_sums(
        self, A: Tensor, R: Tensor, counts: Tensor, norm: str, clip: float, finite: bool
    ) -> Tensor:
        """Return the sums (b, p) in float64 of the clipped r a' of samples a (b, m, f) with r (b,
        c, m).

        Only those samples are added that ``counts`` (b, m) names. ``finite`` says that no a has a
        NaN or an infinity.
        """
        (b, m, f), c = A.shape, R.shape[1]
        sums = torch.zeros(b, c * f + (c if self.bias else 0), dtype=torch.float64, device=A.device)
        at_once = max(1, _CONVERTED[A.device.type] // (8 * b * f))
        for begin in range(0, m, at_once):
            some = slice(begin, begin + at_once)
            samples, slopes = A[:, some].double(), R[:, :, some].double()
            factors = (
                clip_factors(self._sample_norms(samples, slopes, norm), clip) * counts[:, some]
            )
            used = factors > 0
            slopes = torch.where(used.unsqueeze(1), slopes * factors.unsqueeze(1), 0.0)
            if not finite:  # 0 * NaN is NaN: what is not finite must not be multiplied either
                samples = torch.where(used.unsqueeze(2), samples, 0.0)
            sums[:, : c * f] += torch.bmm(slopes, samples).flatten(1)
            if self.bias:
                sums[:, c * f :] += slopes.sum(2)
        return sums

    def _sample_norms(self, A: Tensor, R: Tensor, norm: str) -> Tensor:
        """Return (b, m): the norm of r [a, 1]' for each sample a (b, m, f) with r (b, c, m), all in
        float64.
        """
        ones = 1.0 if self.bias else 0.0
        if norm == "l2":
            # What squares lose by underflow is added, so that no norm is too small.
            rows = (R.square().sum(1) + R.shape[1] * LOST_SQUARE).sqrt()
            columns = (A.square().sum(2) + (ones + A.shape[2] * LOST_SQUARE)).sqrt()
            return rows * columns
        return R.abs().amax(1) * A.abs().amax(2).clamp(min=ones)

    def _select(self, who: Tensor) -> list[tuple[Stack, Sequence[int], list[int] | None]]:
        """(stack, rows of it, places in ``who`` or None for all in order) for the stacks that are
        needed.
        """
        all_of_them = who is self._everyone or (
            len(who) == self.n and torch.equal(who.cpu(), torch.arange(self.n))
        )
        if self._in_order and all_of_them:
            return [(self._stacks[0], range(self.n), None)]
        rows: list[list[int]] = [[] for _ in self._stacks]
        places: list[list[int]] = [[] for _ in self._stacks]
        for at, i in enumerate(who.tolist()):
            s, row = self._places[i]
            rows[s].append(row)
            places[s].append(at)
        return [
            (stack, r, at) for stack, r, at in zip(self._stacks, rows, places, strict=True) if r
        ]

    def _weights_of(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """W (b, c, f) and the bias (b, c, 1), where there is one, of points (b, p)."""
        c, f = self.outputs, self.inputs
        W, bias = torch.split_with_sizes(x, (c * f, c), 1) if self.bias else (x, None)
        return aligned(W.view(-1, c, f)), None if bias is None else bias.unsqueeze(2)

    def _evaluate(
        self,
        x: Tensor,
        stack: Stack,
        rows: Sequence[int],
        picks: Tensor | None,
        values: Tensor,
        gradients: Tensor,
        factors: float | Tensor,
    ) -> None:
        """Fill ``values`` (b,) and, unless it is empty, ``gradients`` (b, p), for these rows."""
        if values.dtype is torch.float32 and self._may_use_kernel(x):
            clients = torch.arange(len(rows)) if isinstance(rows, range) else torch.tensor(rows)
            samples = stack.inputs, stack.targets, stack.sizes
            softmax_gradient(
                *samples, clients, picks, x, self.outputs, self.bias, factors, values, gradients
            )
            return
        assert not isinstance(factors, Tensor)
        assert factors == 1
        c, wanted = self.outputs, bool(gradients.numel())
        lanes = torch.get_num_threads() if x.device.type == "cpu" else 1
        W, bias = self._weights_of(x)
        most = max(
            _PIECE[x.device.type] // x.element_size(), _PER_WEIGHT * self.outputs * self.inputs
        )
        for group in stack.groups(rows, picks, most, lanes):
            own = group.clients
            _, A, y = group.pieces[0]
            fits = (
                self.derivative is _cross_entropy
                and isinstance(group.counts, int)
                and len(group.pieces) == 1
            )
            if wanted and fits and A.dtype is x.dtype and can_fuse(A, c, y):
                fused_softmax_gradient(A, y, x[own], c, values[own], gradients[own])
                continue
            theirs = None if bias is None else bias[own]
            values[own], slopes = self._of_group(W[own], theirs, group, wanted)
            if wanted:
                gradients[own] = slopes

    def _may_use_kernel(self, x: Tensor) -> bool:
        """Whether compiled code is for points x (b, p): it is on this machine, and does not
        differentiate.
        """
        return self._compiled and is_compiled() and x.is_cpu and not x.requires_grad

    def _of_group(
        self, W: Tensor, bias: Tensor | None, group: Group, wanted: bool = True
    ) -> tuple[Tensor, Tensor]:
        """The values (b,) and, where they are wanted, the gradients (b, p) of a group's clients at
        these weights.
        """
        found: list[Tensor] = []
        slopes = sums = W  # of W and of the bias, once a piece was looked at
        for begin, A, y in group.pieces:
            A = A if A.dtype is W.dtype else A.to(W.dtype)
            losses, R = self.derivative(scores_of(W, bias, A), y)
            if isinstance(group.counts, Tensor):
                real = (
                    torch.arange(begin, begin + A.shape[1], device=A.device) < group.counts[:, None]
                )
                losses, R = losses * real, R.mul_(real.unsqueeze(1))
            found.append(losses)
            if wanted:
                slopes = slopes.baddbmm_(R, A) if begin else torch.bmm(R, A)
                if bias is not None:
                    sums = sums.add_(R.sum(2)) if begin else R.sum(2)
        values = (found[0] if len(found) == 1 else torch.cat(found, 1)).sum(1).mul_(group.share)
        if not wanted:
            return values, sums
        gradients = slopes.flatten(1) if bias is None else torch.cat([slopes.flatten(1), sums], 1)
        return values, gradients.mul_(
            group.share if isinstance(group.share, float) else group.share.unsqueeze(1)
        )


def aligned(W: Tensor) -> Tensor:
    """A copy of clients' matrices (b, c, f) whose rows begin at multiples of 64 bytes, whatever
    they come from.

    Kernels for operands that begin elsewhere add up in another order: a client alone would have
    other bits.
    """
    b, c, f = W.shape
    return W.new_empty(b, c, -(-f // 16) * 16).narrow(2, 0, f).copy_(W)


def scores_of(W: Tensor, bias: Tensor | None, A: Tensor) -> Tensor:
    """(b, c, m) for weights (b, c, f), the bias (b, c, 1) and samples (b, m, f)."""
    if (
        A.shape[1] == 1
    ):  # a product with one column is another kernel for one client than for several
        scores = torch.bmm(A, W.mT).mT
        return scores if bias is None else scores.add_(bias)
    return torch.bmm(W, A.mT) if bias is None else torch.baddbmm(bias, W, A.mT)
