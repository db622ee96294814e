"""A decoder-only transformer for characters: no biases, and norms without gain, so that every
parameter is a matrix.
"""

from math import sqrt

import torch
from torch import Tensor, nn

from fedfw.data import Data
from fedfw.models.kinds import require


def transformer(data: Data, *, width: int = 128, depth: int = 4, heads: int = 4) -> nn.Module:
    """Return a small transformer for the next character of a text."""
    require(data, "sequences")
    assert data.classes is not None
    return Transformer(data.classes, data.shape[0], width, depth, heads)


class Transformer(nn.Module):
    """Scores of the next character after each character of a window.

    Parameters
    ----------
    characters : int
        How many kinds of characters there are.
    context : int
        The longest window.
    width : int
        Of the numbers that stand for a character; divisible by ``heads``.
    depth : int
        Blocks of attention and a perceptron.
    heads : int
        Of the attention.

    Examples
    --------
    >>> import torch
    >>> model = Transformer(65, 96, width=16, depth=1, heads=2)
    >>> model(torch.zeros(3, 96, dtype=torch.int64)).shape
    torch.Size([3, 65, 96])
    """

    def __init__(self, characters: int, context: int, width: int, depth: int, heads: int) -> None:
        """Make embedding, positions, blocks and head; norms have no weights, so that every
        parameter is a matrix.
        """
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Parameter(torch.randn(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.RMSNorm(width, elementwise_affine=False)
        # All characters are nearly as likely at the start.
        self.head = _matrix(width, characters, scale=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map characters (samples, length) in int64 to scores (samples, characters, length)."""
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        scores: Tensor = self.head(self.norm(self.blocks(x)))
        return scores.mT  # torch's cross-entropy has the classes on the second axis


class Block(nn.Module):
    """Causal attention, then a perceptron; each sees a norm of its inputs and adds its outputs to
    them.
    """

    def __init__(self, width: int, heads: int) -> None:
        """Make the matrices of attention (q, k, v, out) and of the dense part (up, down)."""
        super().__init__()
        if width % heads:
            raise ValueError(f"width={width}, expected a multiple of heads={heads}")
        self.heads = heads
        self.norm = nn.RMSNorm(width, elementwise_affine=False)
        self.q, self.k, self.v, self.out = (_matrix(width, width) for _ in range(4))
        self.softmax = nn.Softmax(-1)
        self.up = _matrix(width, 4 * width)
        self.gelu = nn.GELU()
        self.down = _matrix(4 * width, width)

    def extra_repr(self) -> str:
        return f"heads={self.heads}"

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.attention(self.norm(x)))
        more: Tensor = self.down(self.gelu(self.up(self.norm(x))))
        return x + more

    def attention(self, x: Tensor) -> Tensor:
        """Return softmax(Q K' / sqrt(width of a head)) V in every head, each character with itself
        and those before it.

        torch's own function for it has no rule for stacks of clients on a CPU, and for windows of
        96 it is slower on a GPU as well (an H200's step of ten clients takes 6.2 instead of 5.4
        ms).
        """
        samples, length, width = x.shape
        q, k, v = (
            matrix(x).view(samples, length, self.heads, -1).transpose(1, 2)
            for matrix in (self.q, self.k, self.v)
        )
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.mT / sqrt(width / self.heads)).masked_fill(later, -torch.inf)
        mixed: Tensor = self.softmax(scores) @ v
        return mixed.transpose(1, 2).reshape(samples, length, width)


def _matrix(inputs: int, outputs: int, scale: float = 1.0) -> nn.Linear:
    matrix = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(matrix.weight, std=scale / sqrt(inputs))
    return matrix
