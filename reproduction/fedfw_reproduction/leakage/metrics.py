"""How close a reconstruction comes, and how close a guess comes that knows nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from torch import Tensor

BEST_PSNR = 100.0
"""What equal images score, in place of infinity."""


def psnr(images: Tensor, truth: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of images in [0, 1]: (..., c, h, w) -> (...)."""
    error = (images.clamp(0, 1) - truth).double().square().mean((-3, -2, -1))
    return (-10 * error.clamp(min=10 ** (-BEST_PSNR / 10)).log10()).float()


def ssim(images: Tensor, truth: Tensor) -> Tensor:
    """Structural similarity with its Gaussian window: (..., c, h, w) -> (...).

    Reference: Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment" (2004).
    """
    shape = images.shape[:-3]
    x, y = (t.clamp(0, 1).reshape(-1, 1, *t.shape[-2:]).double() for t in (images, truth))
    half = (min(11, *x.shape[-2:]) - 1) // 2
    line = torch.exp(
        -torch.arange(-half, half + 1, dtype=torch.float64, device=x.device).square() / (2 * 1.5**2)
    )
    window = torch.outer(line, line)[None, None] / line.sum() ** 2

    def mean(t: Tensor) -> Tensor:
        return nnf.conv2d(t, window)

    mx, my = mean(x), mean(y)
    vx, vy, cov = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    score = (2 * mx * my + c1) * (2 * cov + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    return score.mean((-3, -2, -1)).reshape(*shape, -1).mean(-1).float()


def matched(images: Tensor, truth: Tensor) -> Tensor:
    """The images (b, c, h, w) of a batch in the order that fits the truth best: a batch has none of
    its own.
    """
    if len(images) == 1:
        return images
    from scipy.optimize import linear_sum_assignment

    cost = torch.cdist(images.flatten(1), truth.flatten(1)).square()
    rows, columns = linear_sum_assignment(cost.cpu().numpy())
    ordered = torch.empty_like(images)
    ordered[torch.as_tensor(columns)] = images[torch.as_tensor(rows)]
    return ordered


def trivial_guesses(truth: Tensor, public: Tensor) -> dict[str, Tensor]:
    """Images (k, c, h, w) that use no observation: the mean of public images, and the public image
    that is nearest.

    The nearest one is chosen by looking at the truth (k, c, h, w): no attacker could do better with
    these images.
    """
    nearest = torch.cdist(truth.flatten(1), public.flatten(1)).argmin(1)
    return {
        "mean image": public.mean(0, keepdim=True).expand_as(truth),
        "nearest public image": public[nearest],
    }
