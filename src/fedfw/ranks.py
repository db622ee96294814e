"""Ranks: the processes that share one simulation, and what they tell each other.

``torchrun --nproc-per-node 2 -m fedfw run ...`` starts two processes, which are called ranks 0 and 1. Each keeps the
data and the memories of some clients; what the server would be sent is added up over ranks, and every rank takes the
server's step. Sums are made in the order of the ranks or in that of torch's all-reduce, which is fixed for a number of
ranks, so the same number of ranks gives the same bits, and all ranks hold the same bits.

Nothing is pickled: ranks exchange tensors, and JSON texts as bytes. Texts travel by gloo, and so do tensors in the
host's memory; tensors of GPUs travel by NCCL where every rank of a machine has a GPU of its own, and through the host
where ranks share one, which NCCL refuses.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from fedfw.errors import RankLostError

Balance = Literal["samples", "time"]
Tensors = dict[str, Tensor]
_PATIENCE = timedelta(minutes=10)
"""How long a rank waits for the others in an exchange. A process that ended is noticed at once, because its connections
are closed; this is for machines that vanish, and must be longer than any rank is busy with its clients."""
_LAST_WORDS = 2.0
"""Seconds that a rank that lost another one waits to hear which of them are left."""
_ENDED = "fedfw/ended"


class Ranks:
    """The processes of a simulation. This class is a process alone, for which every sum is what it was given.

    Parameters
    ----------
    balance : {"samples", "time"}
        How clients are divided among ranks: by their samples, or by the time that each rank measures for a gradient,
        which suits machines of different speeds and gives up the same bits in every run.
    device : str
        Where that time is measured: cpu or cuda.

    Attributes
    ----------
    rank, size : int
        The number of this process, from 0, and how many there are.
    sent : int
        Bytes that this rank has given to exchanges so far.

    Examples
    --------
    >>> import torch
    >>> alone = Ranks()
    >>> alone.first, alone.sums(torch.ones(2))[0].tolist(), alone.exchange("here")
    (True, [1.0, 1.0], ['here'])
    """

    rank = 0
    size = 1

    def __init__(self, balance: Balance = "samples", device: str = "cpu") -> None:
        if balance not in ("samples", "time"):
            raise ValueError(f"balance={balance!r}, expected 'samples' or 'time'")
        self.balance, self.device, self.sent = balance, torch.device(device), 0

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and shows progress."""
        return self.rank == 0

    def sums(self, *tensors: Tensor) -> list[Tensor]:
        """The sums over ranks of tensors that have the same shapes everywhere, in one exchange a type."""
        return list(tensors)

    def sum_with(self, total: Tensor, numbers: Sequence[float]) -> tuple[Tensor, list[list[float]]]:
        """The sum over ranks of vectors (p,), and some numbers of every rank.

        Vectors travel by their entries that are not zero, as long as that is shorter.
        """
        return total, [list(numbers)]

    def rows(self, x: Tensor) -> tuple[Tensor, slice]:
        """The rows (n, ...) of all ranks, one rank after the other, and where those of this rank, x (m, ...), stand."""
        return x, slice(0, len(x))

    def exchange(self, value: Any) -> list[Any]:
        """What every rank says; anything that JSON can say."""
        return [value]

    def tell(self, value: Any) -> Any:
        """What rank 0 says, to all ranks; what others give is not looked at."""
        return value

    def tell_tensors(self, tensors: Mapping[str, Tensor] | None) -> Tensors:
        """The tensors of rank 0, on every rank, in the host's memory; others give None."""
        return dict(tensors or {})

    def collect(self, tensors: Mapping[str, Tensor]) -> list[Tensors]:
        """The tensors of every rank, at rank 0 and in the host's memory; an empty list at the others."""
        return [dict(tensors)]


ALONE = Ranks()
"""A process that shares its simulation with no other."""


class _Joined(Ranks):
    """The ranks of torch's default process group."""

    def __init__(self, balance: Balance, device: str, store: Any, nccl: bool) -> None:
        super().__init__(balance, device)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._store, self._nccl = store, nccl

    # --- exchanges ---

    def sums(self, *tensors: Tensor) -> list[Tensor]:
        found: list[Tensor] = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [i for i, tensor in enumerate(tensors) if tensor.dtype is dtype]
            flat = torch.cat([tensors[i].flatten() for i in places])
            pieces = torch.split(self._reduced(flat), [tensors[i].numel() for i in places])
            for i, piece in zip(places, pieces, strict=True):
                found[i] = piece.view_as(tensors[i])
        return found

    def sum_with(self, total: Tensor, numbers: Sequence[float]) -> tuple[Tensor, list[list[float]]]:
        # A zero with a sign is an entry, too: sums must have the bits that they have in one process.
        places = total.view(torch.int64 if total.itemsize == 8 else torch.int32).nonzero().flatten()
        each = self._gathered(torch.tensor([float(len(places)), *numbers], dtype=torch.float64)).tolist()
        counts, told = [int(one[0]) for one in each], [one[1:] for one in each]
        longest = max(counts)
        if longest * (8 + total.itemsize) * self.size >= 2 * total.nbytes:
            return self._reduced(total.clone()), told
        if not longest:
            return total, told
        entries = total.new_zeros(longest)
        entries[: len(places)] = total[places]
        where = torch.cat([places, places.new_zeros(longest - len(places))])
        all_entries, all_places = self._gathered(entries), self._gathered(where)
        whole = torch.zeros_like(total)
        for count, values, indices in zip(counts, all_entries, all_places, strict=True):
            whole.index_add_(0, indices[:count], values[:count])
        return whole, told

    def rows(self, x: Tensor) -> tuple[Tensor, slice]:
        counts = [int(count) for (count,) in self._gathered(torch.tensor([len(x)])).tolist()]
        padded = x.new_zeros(max(counts), *x.shape[1:])
        padded[: len(x)] = x
        begin = sum(counts[: self.rank])
        each = zip(self._gathered(padded), counts, strict=True)
        return torch.cat([one[:count] for one, count in each]), slice(begin, begin + len(x))

    def exchange(self, value: Any) -> list[Any]:
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        counts = self._gathered(torch.tensor([len(text)])).flatten().tolist()
        padded = torch.zeros(max(counts), dtype=torch.uint8)
        padded[: len(text)] = text
        each = zip(self._gathered(padded), counts, strict=True)
        return [json.loads(one[:count].numpy().tobytes()) for one, count in each]

    def tell(self, value: Any) -> Any:
        return self.exchange(value if self.first else None)[0]

    def tell_tensors(self, tensors: Mapping[str, Tensor] | None) -> Tensors:
        held = {name: tensor.detach().cpu().contiguous() for name, tensor in (tensors or {}).items()}
        forms = self.tell([(name, _name_of(tensor.dtype), list(tensor.shape)) for name, tensor in held.items()])
        for name, dtype, shape in forms:
            tensor = held[name] if self.first else torch.empty(shape, dtype=getattr(torch, dtype))
            with self._talking():
                dist.broadcast(_bytes_of(tensor), src=0)
            self.sent += tensor.nbytes if self.first else 0
            held[name] = tensor
        return held

    def collect(self, tensors: Mapping[str, Tensor]) -> list[Tensors]:
        held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        forms = self.exchange([(name, _name_of(tensor.dtype), list(tensor.shape)) for name, tensor in held.items()])
        if not self.first:
            for tensor in held.values():
                with self._talking():
                    dist.send(_bytes_of(tensor), dst=0)
                self.sent += tensor.nbytes
            return []
        found = [held]
        for sender in range(1, self.size):
            theirs = {}
            for name, dtype, shape in forms[sender]:
                theirs[name] = torch.empty(shape, dtype=getattr(torch, dtype))
                with self._talking():
                    dist.recv(_bytes_of(theirs[name]), src=sender)
            found.append(theirs)
        return found

    def _gathered(self, x: Tensor) -> Tensor:
        """The tensors (size, ...) of all ranks, which have one shape."""
        mine = x if self._by_nccl(x) else x.cpu()
        everyones = [torch.empty_like(mine) for _ in range(self.size)]
        with self._talking():
            dist.all_gather(everyones, mine.contiguous())
        self.sent += x.nbytes
        return torch.stack(everyones).to(x.device)

    def _reduced(self, x: Tensor) -> Tensor:
        """The sum over ranks of x, which is overwritten."""
        mine = x if self._by_nccl(x) else x.cpu()
        with self._talking():
            dist.all_reduce(mine)
        self.sent += x.nbytes
        return mine.to(x.device)

    def _by_nccl(self, x: Tensor) -> bool:
        return x.is_cuda and self._nccl

    # --- ranks that are gone ---

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """An exchange that fails because another rank is gone says which one, and why if that is known."""
        try:
            yield
        except RuntimeError as error:
            first_line = str(error).strip().partition("\n")[0]
            raise RankLostError(f"rank {self.rank} of {self.size}: {self._gone() or first_line}") from error

    def _gone(self) -> str:
        """Which ranks ended and why; the empty text where nobody can say."""
        if self._store is None:
            return ""
        if _in_main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends all ranks now: first a word of why
        self.leave("lost contact with another rank", lost=True)
        words: dict[int, dict[str, Any]] = {}
        until = time.monotonic() + _LAST_WORDS
        with suppress(RuntimeError):  # the store may be on a machine that is gone
            while len(words) < self.size and time.monotonic() < until:
                for other in set(range(self.size)) - words.keys():
                    if self._store.check([f"{_ENDED}/{other}"]):
                        words[other] = json.loads(self._store.get(f"{_ENDED}/{other}"))
                time.sleep(0.05)
        ended = [f"rank {other} ended: {said['why']}" for other, said in sorted(words.items()) if not said["lost"]]
        silent = ", ".join(str(other) for other in range(self.size) if other not in words)
        died = [f"rank {silent} is gone: its process or its machine ended without a word"] if silent else []
        return "; ".join([*ended, *died])

    def told_to_end(self, *signal_and_frame: object) -> None:
        """What is done at SIGTERM: torchrun sends it to all ranks when one is gone, clusters when time is up."""
        why = self._gone()
        raise RankLostError(f"rank {self.rank} of {self.size} was told to end (SIGTERM){why and f': {why}'}")

    def leave(self, why: str, lost: bool = False) -> None:
        """Tell the others why this rank ends before its work is done."""
        if self._store is not None:
            with suppress(RuntimeError):  # the store may be on a machine that is gone
                self._store.set(f"{_ENDED}/{self.rank}", json.dumps({"why": why, "lost": lost}))


def _in_main_thread() -> bool:
    """Whether signals can be handled here."""
    return threading.current_thread() is threading.main_thread()


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor, which any exchange takes."""
    return tensor.view(-1).view(torch.uint8) if tensor.numel() else torch.zeros(1, dtype=torch.uint8)


def launched() -> bool:
    """Whether this process was started as one of several ranks, by torchrun for example."""
    return dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def join_ranks(balance: Balance = "samples", device: str = "cpu") -> Iterator[Ranks]:
    """Join the processes that ``torchrun`` started; a process that was started alone stays so.

    Parameters
    ----------
    balance, device
        How clients are divided among ranks; see `Ranks`.

    Yields
    ------
    Ranks
        To be given to `fedfw.Problem` or `fedfw.load_problem`. Simulations of that problem are then shared.

    Raises
    ------
    RankLostError
        From an exchange, on all ranks that are left, when one of them ended.

    Examples
    --------
    >>> import fedfw
    >>> with fedfw.join_ranks() as ranks:
    ...     problem = fedfw.load_problem("digits", clients=10, ranks=ranks)
    ...     run = fedfw.simulate(problem, fedfw.FedFW("l1:30"), rounds=3)
    >>> len(run.history), ranks.size
    (3, 1)
    """
    if not launched():
        yield Ranks(balance, device)
        return
    began, store = not dist.is_initialized(), None
    nccl = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if began:
        store, rank, size = next(rendezvous("env://"))
        backend = "cpu:gloo,cuda:nccl" if nccl else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    ranks = _Joined(balance, device, store, nccl)
    if began and _in_main_thread():
        signal.signal(signal.SIGTERM, ranks.told_to_end)
    try:
        yield ranks
    except RankLostError:
        raise
    except BaseException as error:
        ranks.leave(f"{type(error).__name__}: {error}")
        raise
    finally:
        if began and _in_main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if began:
            dist.destroy_process_group()


def divided(loads: Sequence[float], speeds: Sequence[float]) -> list[int]:
    """Where to cut a sequence so that its parts, done at these speeds, end together as nearly as can be.

    Parameters
    ----------
    loads : sequence of float
        Of each client, positive; clients stay in order, and every part has at least one.
    speeds : sequence of float
        Of each rank, positive.

    Returns
    -------
    list of int
        Where each part begins, and the end of the last.

    Examples
    --------
    >>> divided([1, 1, 1, 1, 4, 4], speeds=[1, 1])
    [0, 4, 6]
    >>> divided([1] * 9, speeds=[2, 1])
    [0, 6, 9]
    """
    n, k = len(loads), len(speeds)
    if n < k:
        raise ValueError(f"{k} ranks for {n} clients, expected at most {n}: every rank keeps at least one client")
    upto = np.concatenate([[0.0], np.cumsum(np.asarray(loads, dtype=np.float64))])

    def cut(longest: float) -> list[int]:
        """The first ranks take what they can do in this time; the last one takes the rest."""
        cuts = [0]
        for r in range(k - 1):
            fits = int(np.searchsorted(upto, upto[cuts[-1]] + longest * speeds[r], side="right")) - 1
            cuts.append(min(max(fits, cuts[-1] + 1), n - (k - 1 - r)))
        return [*cuts, n]

    def time_of(cuts: list[int]) -> float:
        return float((np.diff(upto[cuts]) / np.asarray(speeds)).max())

    short, long = float(upto[-1]) / sum(speeds) / 2, float(upto[-1]) / min(speeds)
    best = cut(long)
    for _ in range(60):
        middle = (short + long) / 2
        cuts = cut(middle)
        best = min(best, cuts, key=time_of)
        short, long = (short, middle) if time_of(cuts) <= middle * (1 + 1e-12) else (middle, long)
    return best
