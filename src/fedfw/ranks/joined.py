"""The ranks of a simulation that several processes share: how they find each other, exchange, and
notice a loss.

Nothing is pickled: ranks exchange tensors, and JSON texts as bytes. Texts and tensors in the host's
memory travel by gloo; tensors of GPUs travel by NCCL where every rank of a machine has a GPU of its
own, and through the host where ranks share one, which NCCL refuses.
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from fedfw.errors import RankLostError
from fedfw.ranks.base import Ranks, Tensors
from fedfw.ranks.presence import Presence, in_main_thread, process_namespace
from fedfw.ranks.queue import Queue, SharedQueue

SPIN_SECONDS = 0.1
"""How long a rank polls for the end of an exchange before it sleeps: a core that slept comes back
slowly.
"""
TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for the others in an exchange. A process that ended is noticed sooner; this
is for ranks that vanish or never come, and must be longer than any rank is busy with its clients.
"""
_yield_core = getattr(os, "sched_yield", lambda: time.sleep(0))
_stores: dict[tuple[str | None, ...], Any] = {}
_joined: Counter[tuple[str | None, ...]] = Counter()
"""The stores by which this process has met others, by their addresses, and how often."""


class _Joined(Ranks):
    """The ranks of torch's default process group."""

    def __init__(self, store: Any, nccl: bool) -> None:
        """Join the process group, and note the other ranks' process ids where they are on this
        machine.
        """
        super().__init__()
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._store = store  # where ranks leave messages; None for a group made by the caller
        self._nccl = nccl  # tensors travel between GPUs, and not through the host
        self._queues = 0  # how many were made: each has a name of its own in the store
        self._local_only: str | None = None  # why exchanges are refused now
        self.presence = Presence(store, self.rank, self.size)
        namespace = process_namespace()
        of_ranks = self.all_gather_object([namespace, os.getpid()])
        # Processes of other machines, or of another namespace, cannot be watched.
        if namespace is not None and all(theirs == namespace for theirs, _ in of_ranks):
            processes = [pid for _, pid in of_ranks]
            self.presence = Presence(store, self.rank, self.size, processes)
        self.sent = self.exchanges = 0  # the exchange above is not counted

    # --- exchanges ---

    @contextmanager
    def local_only(self, caller: str) -> Iterator[None]:
        """Refuse exchanges within, because only this rank comes here; ``caller`` is named in the
        error.
        """
        previous = self._local_only
        self._local_only = caller
        try:
            yield
        finally:
            self._local_only = previous

    def sums(self, *tensors: Tensor) -> list[Tensor]:
        """Return the tensors' sums over the ranks, by one all-reduce for each dtype."""
        totals: list[Tensor] = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            positions = [i for i, tensor in enumerate(tensors) if tensor.dtype is dtype]
            vector = torch.cat([tensors[i].flatten() for i in positions])
            pieces = torch.split(self._reduced(vector), [tensors[i].numel() for i in positions])
            for i, piece in zip(positions, pieces, strict=True):
                totals[i] = piece.view_as(tensors[i])
        return totals

    def numbers(self, *numbers: float) -> list[list[float]]:
        found: list[list[float]] = self._gathered(
            torch.tensor(numbers, dtype=torch.float64)
        ).tolist()
        return found

    def all_gather_object(self, value: Any) -> list[Any]:
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths, padded = self._pad(text)
        texts = [theirs.numpy().tobytes() for theirs in self._gathered(padded)]
        return [json.loads(text[:length]) for text, length in zip(texts, lengths, strict=True)]

    def _pad(self, x: Tensor) -> tuple[list[int], Tensor]:
        """Return the lengths of the bytes (k,) of all ranks, and those of this one as long as the
        longest.
        """
        lengths = [int(length) for (length,) in self.numbers(len(x))]
        padded = x.new_zeros(max(lengths))
        padded[: len(x)] = x
        return lengths, padded

    def broadcast_object(self, value: Any) -> Any:
        return self.all_gather_object(value if self.first else None)[0]

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> Tensors:
        """Return the first rank's tensors on every rank; the argument counts on the first rank
        alone.
        """
        packed = _packed(tensors or {})
        length = self.broadcast_object(len(packed))
        received = packed
        if not self.first:
            received = torch.empty(length, dtype=torch.uint8)
        with self._collective():
            dist.broadcast(received, src=0)
        if self.first:
            self._count(received)
        return load(received.numpy().tobytes())

    def gather_to_root(self, tensors: Mapping[str, Tensor]) -> list[Tensors]:
        """Return all ranks' tensors on the first rank, and nothing on the others."""
        packed = _packed(tensors)
        lengths, padded = self._pad(packed)
        buffers = [torch.empty_like(padded) for _ in lengths] if self.first else None
        with self._collective():
            dist.gather(padded, buffers, dst=0)
        if not self.first:
            self._count(packed)
        received = zip(buffers or [], lengths, strict=False)
        return [load(buffer[:length].numpy().tobytes()) for buffer, length in received]

    def queue(self) -> Queue:
        """Return a new queue of tasks, which all ranks must ask for in the same order."""
        if self._store is None:
            raise ValueError(
                "join_ranks found a process group that was there before it: its ranks cannot share "
                "tasks"
            )
        self._queues += 1
        return SharedQueue(self._store, f"fedfw/queue/{self._queues}", self._validate_alive)

    def _gathered(self, x: Tensor) -> Tensor:
        """Return the tensors (size, ...) of all ranks, which have one shape."""
        tensor = x if self._by_nccl(x) else x.cpu()
        self._count(x)
        with self._collective():
            of_ranks = [torch.empty_like(tensor) for _ in range(self.size)]
            self._wait_for(dist.all_gather(of_ranks, tensor.contiguous(), async_op=True), tensor)
        return torch.stack(of_ranks).to(x.device)

    def _reduced(self, x: Tensor) -> Tensor:
        """Return the sum over ranks of x, which is overwritten."""
        tensor = x if self._by_nccl(x) else x.cpu()
        with self._collective():
            self._wait_for(dist.all_reduce(tensor, async_op=True), tensor)
        self._count(x)
        return tensor.to(x.device)

    def _wait_for(self, work: Any, x: Tensor) -> None:
        """Wait for an exchange of x: by polling at first, because a core that slept comes back
        slowly.
        """
        until = time.monotonic() + (
            0.0 if self._by_nccl(x) else SPIN_SECONDS
        )  # a GPU's queue waits, and not the host
        while time.monotonic() < until and not work.is_completed():
            _yield_core()
        work.wait()

    def _count(self, given: Tensor) -> None:
        self.sent += given.nbytes
        self.exchanges += 1

    def _by_nccl(self, x: Tensor) -> bool:
        return x.is_cuda and self._nccl

    # --- ranks that are gone ---

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Run an exchange; if it fails because another rank ended, the error says which rank and,
        where known, why.
        """
        if self._local_only is not None:
            raise ValueError(
                f"{self._local_only} runs on rank {self.rank} alone, expected that it asks for "
                "nothing of all clients, such as a loss or a gradient: other ranks would have to "
                "help with it"
            )
        try:
            yield
        except RuntimeError as error:
            first_line = str(error).strip().partition("\n")[0]
            raise self._lost(first_line) from error

    def _validate_alive(self) -> None:
        """Raise an error if another rank is gone."""
        if self.presence.is_one_gone():
            raise self._lost("another rank is gone")

    def _lost(self, otherwise: str) -> RankLostError:
        """Return the error for a rank that is gone, which says ``otherwise`` where nothing better
        is known.
        """
        why = self.presence.describe_loss() or otherwise
        return RankLostError(f"rank {self.rank} of {self.size}: {why}")

    def end_on_signal(self, *signal_and_frame: object) -> None:
        """End this rank at SIGTERM: torchrun sends it to all ranks when one is gone, clusters when
        time is up.
        """
        why = self.presence.describe_loss()
        raise RankLostError(
            f"rank {self.rank} of {self.size} was ended from outside (SIGTERM){why and f': {why}'}"
        )


def _packed(tensors: Mapping[str, Tensor]) -> Tensor:
    """Tensors by name as bytes, in the format of safetensors."""
    held = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return torch.frombuffer(bytearray(save(held)), dtype=torch.uint8)


def launched() -> bool:
    """Return whether this process was started as one of several ranks, by torchrun for example."""
    return dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) > 1


def _new_store() -> tuple[Any, int, int]:
    """Return an empty store, the number of this rank, and the number of ranks.

    Ranks that join again meet at the store of the first time, which is kept for that: a new one at
    the same address might be looked for while the old one is still there.
    """
    variables = tuple(
        os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    )
    if variables not in _stores:
        _stores[variables] = next(rendezvous("env://"))
    store, rank, size = _stores[variables]
    _joined[variables] += 1
    empty_store = dist.PrefixStore(  # type: ignore[attr-defined]
        f"fedfw/{_joined[variables]}", store
    )
    return empty_store, rank, size


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Join the processes that ``torchrun`` started; a process that was started alone stays so.

    Yields
    ------
    Ranks
        To be given to `fedfw.Problem` or `fedfw.load_problem`. Simulations of that problem are then
        shared.

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
        yield Ranks()
        return
    began = not dist.is_initialized()
    store = None
    nccl = torch.cuda.is_available() and torch.cuda.device_count() >= int(
        os.environ.get("LOCAL_WORLD_SIZE", "1")
    )
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if began:
        store, rank, size = _new_store()
        backend = "gloo"
        if nccl:
            backend = "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    ranks: _Joined | None = None
    try:
        ranks = _Joined(store, nccl)
        if began and in_main_thread():
            signal.signal(signal.SIGTERM, ranks.end_on_signal)
        yield ranks
        if began:
            # A barrier: the first rank may keep the store, which others may still read.
            ranks.numbers(0.0)
    except RankLostError:
        raise
    except BaseException as error:
        if ranks is not None:
            ranks.presence.leave(f"{type(error).__name__}: {error}")
        raise
    finally:
        if began and in_main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if began:
            dist.destroy_process_group()
