"""The functions of `softmax.c`."""

PART: int

def gradients(*numbers: float) -> int:
    """Fill losses and gradients of some clients; returns the first that was refused, or -1.

    ``numbers`` are the first job, the end of the last one, and what `fedfw.cpu.softmax.softmax_gradient` hands over.
    """
