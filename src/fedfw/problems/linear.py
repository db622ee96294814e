"""One linear layer with a familiar loss: the gradient in closed form, for many clients in two
batched products.

    scores Z = W A' + b,   gradient of W = R A / m,   gradient of b = R 1 / m,

with A the samples and R the derivative of the loss by the scores: softmax(Z) - onehot for
cross-entropy, sigmoid(Z) - y for the logistic loss, 2 (Z - y) for the squared loss (over the
outputs' number).

Softmax regression in float32 has kernels of its own (`fedfw.cpu.softmax`, `fedfw.gpu.softmax`).
Else, on a processor, samples are taken a piece at a time: the second product finds in the cache
what the first has read (`scores.py` says how scores lie in memory).
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from fedfw.cpu.softmax import is_compiled, is_compiled_for, softmax_gradient
from fedfw.gpu.softmax import can_fuse, fused_softmax_gradient
from fedfw.linalg.singular import top_singular
from fedfw.problems.base import times_factors
from fedfw.problems.clipping import LOST_SQUARE, clip_factors
from fedfw.problems.glm import FAMILIES
from fedfw.problems.scores import CURVATURE, Derivative, aligned, cross_entropy, scores_of
from fedfw.problems.stacks import Piece, Rows, Samples, Stack, StackedLosses, stack_clients

_PIECE = {"cpu": 2**21, "cuda": 2**30}
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
_WEIGHTED = {family.derivative: family.curvature for family in FAMILIES.values()}
"""Of losses whose targets have a weight for each row: the curvature of a row of weight 1."""


class LinearLosses(StackedLosses):
    """Losses of one linear layer with a loss whose derivative is known in closed form."""

    def __init__(
        self, model: nn.Linear, derivative: Derivative, stacks: list[Stack], sizes: Tensor
    ) -> None:
        """Keep the stacks, and find out if the compiled kernel fits all of them."""
        super().__init__(stacks, sizes)
        self.outputs, self.inputs = model.weight.shape
        self.bias = model.bias is not None
        self.model = model
        self.derivative = derivative
        in_order = len(stacks) == 1 and torch.equal(stacks[0].who.cpu(), torch.arange(self.n))
        # With one stack in order no rows are selected: full gradients are the same kernels always.
        self.plain_kernels = in_order
        # Inputs of other shapes are features that other layers would have to make.
        fits = derivative is cross_entropy and all(
            prod(s.inputs.shape[2:]) == self.inputs for s in stacks
        )
        self._compiled = fits and all(is_compiled_for(s.inputs, s.targets, s.sizes) for s in stacks)

    @classmethod
    def of(cls, model: nn.Linear, derivative: Derivative, clients: list[Samples]) -> LinearLosses:
        sizes = torch.tensor([len(x) for x, _ in clients])
        return cls(model, derivative, stack_clients(clients, may_pad=True), sizes)

    def on_stacks(self, stacks: list[Stack], sizes: Tensor) -> LinearLosses:
        return LinearLosses(self.model, self.derivative, stacks, sizes)

    def value(self, x: Tensor, who: Tensor) -> Tensor:
        return self._all(x, who, None, x.new_empty(len(x), 0))

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
        """Return the losses (m,) and gradients (m, p) of the clients ``who`` at x (m, p), times the
        factors, in a dtype; ``picks`` are the samples of minibatches, None for all.
        """
        # The compiled kernel takes x in float64 as it is, and multiplies by the factors on the way.
        if dtype is torch.float32 and self._may_use_kernel(x):
            gradients = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
            return self._all(x, who, picks, gradients, factors), gradients
        x = x.to(dtype)
        gradients = torch.empty_like(x)
        return times_factors(self._all(x, who, picks, gradients), gradients, factors)

    def exactly(self, x: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `value_and_gradient` does on all samples, computed in float64 a piece at a
        time.
        """
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
        """Return the values (m,) of the clients ``who`` at x (m, p), and fill ``gradients`` (m, p)
        unless it is empty; both have its precision.

        Factors, one or (m,), are for compiled code alone (`_may_use_kernel`).
        """
        values = gradients.new_zeros(len(x))
        selected = self.select(who)
        for stack, positions, rows in selected:
            if len(selected) == 1:  # all clients, in their order
                self._evaluate(x, stack, rows, picks, values, gradients, factors)
                return values
            points = x[positions]
            chosen = None if picks is None else picks[positions]
            part_factors = factors[positions] if isinstance(factors, Tensor) else factors
            part_values = values.new_zeros(len(positions))
            part_gradients = gradients.new_empty(len(positions), gradients.shape[1])
            self._evaluate(points, stack, rows, chosen, part_values, part_gradients, part_factors)
            values[positions] = part_values
            gradients[positions] = part_gradients
        return values

    def smoothness(self) -> Tensor | None:
        """Return L_i (n,), the loss's largest curvature times the largest eigenvalue of A'A/m, to a
        thousandth; None where the curvature has no bound.
        """
        weighted = self.derivative in _WEIGHTED
        if weighted:
            curvature = _WEIGHTED[self.derivative]
        else:
            curvature = CURVATURE[self.derivative](self.outputs)
        if curvature is None:
            return None
        largest = torch.empty(self.n, dtype=torch.float64)
        for stack in self._stacks:
            clients = zip(stack.inputs, stack.targets, stack.sizes.tolist(), strict=True)
            for i, (inputs, targets, size) in zip(stack.who.tolist(), clients, strict=True):
                A = inputs[:size].flatten(1)
                if self.bias:
                    A = torch.cat([A, A.new_ones(size, 1)], 1)
                # Column 1 of the targets is the weight of each row.
                if weighted:
                    A = A * targets[:size, 1:2].to(A.dtype).sqrt()
                largest[i] = float(top_singular(A[None], tol=1e-3).value[0]) ** 2 / size
        return curvature * largest

    def clipped_gradient(
        self, x: Tensor, who: Tensor, keep: Tensor | None, norm: str, clip: float, count: Tensor
    ) -> Tensor:
        """Return each client's sum of clipped gradients of samples, divided by ``count`` (m,), in
        float64 (m, p).
        """
        # A sample's gradient is r a', with r by the scores: its norm is a product of norms, and no
        # gradient of a sample is written out.
        gradients = torch.empty_like(x, dtype=torch.float64)
        for stack, positions, rows in self.select(who):
            sizes = stack.sizes.to(x.device)[rows]
            A = stack.inputs[rows].flatten(2)
            scores = scores_of(*self._weights_of(x[positions]), A)
            losses, R = self.derivative(scores, stack.targets[rows])
            counts = torch.arange(A.shape[1], device=x.device) < sizes[:, None]
            if keep is not None:
                counts &= keep[positions, : A.shape[1]]
            sums = self._clipped_sums(A, R, counts & losses.isfinite(), norm, clip, stack.finite)
            gradients[positions] = sums / count[positions][:, None]
        return gradients

    def _clipped_sums(
        self, A: Tensor, R: Tensor, counts: Tensor, norm: str, clip: float, finite: bool
    ) -> Tensor:
        """Return the sums (b, p) in float64 of the clipped r a' of samples a (b, m, f) with r (b,
        c, m).

        Only those samples are added that ``counts`` (b, m) names. ``finite`` says that no a has a
        NaN or an infinity.
        """
        b, m, f = A.shape
        c = R.shape[1]
        sums = torch.zeros(b, c * f + (c if self.bias else 0), dtype=torch.float64, device=A.device)
        at_once = max(1, _CONVERTED[A.device.type] // (8 * b * f))
        for begin in range(0, m, at_once):
            part = slice(begin, begin + at_once)
            samples = A[:, part].double()
            slopes = R[:, :, part].double()
            factors = (
                clip_factors(self._sample_norms(samples, slopes, norm), clip) * counts[:, part]
            )
            is_used = factors > 0
            slopes = torch.where(is_used.unsqueeze(1), slopes * factors.unsqueeze(1), 0.0)
            if not finite:  # 0 * NaN is NaN: what is not finite must not be multiplied either
                samples = torch.where(is_used.unsqueeze(2), samples, 0.0)
            sums[:, : c * f] += torch.bmm(slopes, samples).flatten(1)
            if self.bias:
                sums[:, c * f :] += slopes.sum(2)
        return sums

    def _sample_norms(self, A: Tensor, R: Tensor, norm: str) -> Tensor:
        """Return (b, m): the norm of r [a, 1]' for each sample a (b, m, f) with r (b, c, m), all in
        float64.
        """
        bias_input = 1.0 if self.bias else 0.0
        if norm == "l2":
            # What squares lose by underflow is added, so that no norm is too small.
            rows = (R.square().sum(1) + R.shape[1] * LOST_SQUARE).sqrt()
            columns = (A.square().sum(2) + (bias_input + A.shape[2] * LOST_SQUARE)).sqrt()
            return rows * columns
        return R.abs().amax(1) * A.abs().amax(2).clamp(min=bias_input)

    def _weights_of(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return W (b, c, f) and the bias (b, c, 1), where there is one, of points (b, p)."""
        c = self.outputs
        f = self.inputs
        W, bias = torch.split_with_sizes(x, (c * f, c), 1) if self.bias else (x, None)
        return aligned(W.view(-1, c, f)), None if bias is None else bias.unsqueeze(2)

    def _evaluate(
        self,
        x: Tensor,
        stack: Stack,
        rows: Rows,
        picks: Tensor | None,
        values: Tensor,
        gradients: Tensor,
        factors: float | Tensor,
    ) -> None:
        """Fill ``values`` (b,), which are zero, and ``gradients`` (b, p), unless they are empty,
        for the clients in these rows of a stack at x (b, p).
        """
        if values.dtype is torch.float32 and self._may_use_kernel(x):
            clients = torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            samples = stack.inputs, stack.targets, stack.sizes
            softmax_gradient(
                *samples, clients, picks, x, self.outputs, self.bias, factors, values, gradients
            )
            return
        assert not isinstance(factors, Tensor)
        assert factors == 1  # other factors are for the kernel alone, see `_all`
        gradients.zero_()
        padded = stack.padded and picks is None
        total = stack.inputs.shape[1] if picks is None else picks.shape[1]
        fits = self.derivative is cross_entropy and not padded and bool(gradients.numel())
        W, bias = self._weights_of(x)
        lanes = torch.get_num_threads() if x.device.type == "cpu" else 1
        numbers_at_once = max(
            _PIECE[x.device.type] // x.element_size(), _PER_WEIGHT * self.outputs * self.inputs
        )
        for part, pieces in stack.pieces(rows, len(x), picks, numbers_at_once, lanes):
            _, A, y = pieces[0]
            is_whole = fits and len(pieces) == 1 and A.dtype is x.dtype
            if is_whole and can_fuse(A, self.outputs, y):
                fused_softmax_gradient(
                    A,
                    y,
                    x[part],
                    self.outputs,
                    values[part],
                    gradients[part],
                )
                continue
            bias_of_piece = None if bias is None else bias[part]
            counts = stack.sizes.to(x.device)[rows][part] if padded else None
            for piece in pieces:
                self._add(
                    W[part],
                    bias_of_piece,
                    piece,
                    counts,
                    values[part],
                    gradients[part],
                )
            share = 1 / total if counts is None else 1 / counts.double()
            values[part], gradients[part] = times_factors(values[part], gradients[part], share)

    def _may_use_kernel(self, x: Tensor) -> bool:
        """Return whether compiled code is for points x (b, p): it is on this machine, and does not
        differentiate.
        """
        return self._compiled and is_compiled() and x.is_cpu and not x.requires_grad

    def _add(
        self,
        W: Tensor,
        bias: Tensor | None,
        piece: Piece,
        counts: Tensor | None,
        values: Tensor,
        gradients: Tensor,
    ) -> None:
        """Add a piece's sums to ``values`` (b,) and ``gradients`` (b, p), unless they are empty.

        Where there are ``counts`` (b,), samples beyond them are padding.
        """
        begin, A, targets = piece
        A = A.to(W.dtype)
        losses, R = self.derivative(scores_of(W, bias, A), targets)
        if counts is not None:
            real = torch.arange(begin, begin + A.shape[1], device=A.device) < counts[:, None]
            losses = losses * real
            # Padding has neither a loss nor a slope.
            R = R.mul_(real.unsqueeze(1))
        values += losses.sum(1)
        if gradients.numel():
            cut = self.outputs * self.inputs
            gradients[:, :cut] += torch.bmm(R, A).flatten(1)
            if bias is not None:
                gradients[:, cut:] += R.sum(2)
