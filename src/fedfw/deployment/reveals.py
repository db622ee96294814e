"""Leaks of the choices in an owner's file, with the numbers of the leakage study
(docs/studies/leakage.md).
"""

from dataclasses import dataclass

from fedfw.report.tables import aligned


@dataclass(frozen=True)
class Leak:
    """A kind of message, and what it revealed to the study's attacker of a client with one image.

    Parameters
    ----------
    shared : str
        What is shared, in words.
    names : tuple of str
        What the study calls it, in the table of searches and in that of closed forms.
    psnr : float
        Of the images that the search found, their median, in dB.
    recovered : int
        How many per cent of them are recovered, which means found at 25 dB or more.
    cosine : float or None
        Between the sample and what a linear model's message gives away of it, the least; None where
        that is nothing.
    """

    shared: str
    names: tuple[str, str]
    psnr: float
    recovered: int
    cosine: float | None


LEAKS = (
    Leak("gradients or models", ("gradient", "gradient"), 45.6, 100, 1.0),
    Leak("atoms of l2", ("l2", "l2:10"), 25.8, 60, 1.0),
    Leak("atoms of group", ("group, each parameter", "group:10"), 12.6, 0, 1.0),
    Leak("atoms of nuclear", ("nuclear, each parameter", "nuclear:10"), 12.6, 0, 1.0),
    Leak("atoms of linf (like box)", ("linf", "linf:10"), 12.8, 0, 0.492765),
    Leak("atoms of ksparse:k=100", ("ksparse:100", "ksparse:k=100,r=10"), 12.3, 0, 0.199676),
    Leak("atoms of l1 (like simplex)", ("l1", "l1:10"), 12.3, 0, None),
)
"""From the most to the least."""
GUESS = 14.2
"""PSNR of a guess that looks at no message, in dB."""
SAMPLES = ((1, 45.6), (8, 13.9), (64, 12.4))
"""How many samples a gradient has, and the PSNR of what the search finds in it, in dB."""


SAMPLES_SENTENCE = (
    "A search for the images behind a gradient reaches "
    + ", ".join(f"{psnr} dB with {count}" for count, psnr in SAMPLES)
    + f" images in it; a guess that looks at nothing reaches {GUESS} dB."
)
"""The effect of more samples in a gradient."""
PROMISE_SENTENCE = (
    "A server that chooses the model can isolate single samples whatever these limits are: only "
    "the privacy budget is a promise."
)
"""The limit of every choice but the privacy budget."""


def leak_table(width: int | None = None) -> str:
    """Return the table of `LEAKS` as text, whose lines have at most so many columns if that is
    given.

    Examples
    --------
    >>> print(leak_table())  # doctest: +ELLIPSIS
    what the server sees        images recovered (median)  the sample (linear model)
    gradients or models         100 % (45.6 dB)            exactly (cosine 1.000000)
    ...
    atoms of l1 (like simplex)  0 % (12.3 dB)              one coordinate
    """
    rows = [("what the server sees", "images recovered (median)", "the sample (linear model)")]
    for leak in LEAKS:
        if leak.cosine is None:
            sample = "one coordinate"
        elif leak.cosine == 1:
            sample = f"exactly (cosine {leak.cosine:.6f})"
        else:
            sample = f"in part (cosine {leak.cosine:.6f})"
        rows.append((leak.shared, f"{leak.recovered} % ({leak.psnr} dB)", sample))
    return aligned(rows, width=width)
