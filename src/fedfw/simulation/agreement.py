"""What ranks that share a run must agree on, and what is said where they do not."""

import zlib

from torch import Tensor

from fedfw.ranks import Ranks
from fedfw.rounds.fingerprint import Fingerprint
from fedfw.rounds.options import Options


def refuse_different_runs(ranks: Ranks, run: Fingerprint, options: Options) -> None:
    """Raise an error where ranks were given different runs, such as models whose start was drawn without a seed."""
    looked_at = {name: repr(getattr(options, name)) for name in ("tol", "eval_every", "certify")}
    each = ranks.exchange({**run, **looked_at})
    differing = [name for name in each[0] if any(theirs.get(name) != each[0][name] for theirs in each)]
    if differing:
        raise ValueError(
            f"ranks were given different runs: {', '.join(differing)} differ, expected the same on every rank. "
            "A model's start is the same after torch.manual_seed on every rank"
        )


def refuse_drift(ranks: Ranks, t: int, xbar: Tensor) -> None:
    """Raise an error where ranks, all of which take the server's step of round t, hold different bits after it."""
    if ranks.size == 1:
        return
    held = [int(digest) for (digest,) in ranks.numbers(zlib.crc32(xbar.cpu().numpy().tobytes()))]
    if len(set(held)) > 1:
        raise RuntimeError(
            f"round {t}: ranks hold different models (digests {held}), expected one: they need the same version of "
            "torch, the same kind of processor and as many threads"
        )
