"""The ranks of a simulation that several processes share: how they find each other, exchange, and
notice a loss.

Nothing is pickled: ranks exchange tensors, and JSON texts as bytes. Texts and tensors in the host's
memory travel by gloo; tensors of GPUs travel by NCCL where every rank of a machine has a GPU of its
own, and through the host where ranks share one, which NCCL refuses.
"""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from fedfw.errors import RankLostError
from fedfw.ranks.base import Ranks, Tensors
from fedfw.ranks.queue import Queue, SharedQueue

_LAST_WORDS = 2.0
"""Seconds that a rank that lost another one waits to hear which of them are left."""
_LONGEST_WORDS = 300
"""Characters of the reason that a rank sends when it ends: JSON takes up to twelve bytes for each.
"""
_ENDED = "fedfw/ended"
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
        places = self.all_gather_object([process_namespace(), os.getpid()])
        visible = places[0][0] is not None and all(place == places[0][0] for place, _ in places)
        # Processes of other machines, or of another namespace, cannot be watched.
        if visible:
            self._processes = [pid for _, pid in places]
        else:
            self._processes = []
        self.sent = self.exchanges = 0  # from here on

    # --- exchanges ---

    @contextmanager
    def local_only(self, who: str) -> Iterator[None]:
        """Refuse exchanges within: not all ranks come here."""
        before = self._local_only
        self._local_only = who
        try:
            yield
        finally:
            self._local_only = before

    def sums(self, *tensors: Tensor) -> list[Tensor]:
        """Return the tensors' sums over the ranks, by one all-reduce for each dtype."""
        found: list[Tensor] = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [i for i, tensor in enumerate(tensors) if tensor.dtype is dtype]
            flat = torch.cat([tensors[i].flatten() for i in places])
            pieces = torch.split(self._reduced(flat), [tensors[i].numel() for i in places])
            for i, piece in zip(places, pieces, strict=True):
                found[i] = piece.view_as(tensors[i])
        return found

    def numbers(self, *numbers: float) -> list[list[float]]:
        found: list[list[float]] = self._gathered(
            torch.tensor(numbers, dtype=torch.float64)
        ).tolist()
        return found

    def all_gather_object(self, value: Any) -> list[Any]:
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(theirs.numpy().tobytes()) for theirs in self._each(text)]

    def _each(self, x: Tensor) -> list[Tensor]:
        """Return the tensor (k, ...) of every rank, with a k of its own each."""
        counts = [int(count) for (count,) in self.numbers(len(x))]
        padded = x.new_zeros(max(counts), *x.shape[1:])
        padded[: len(x)] = x
        return [
            theirs[:count] for theirs, count in zip(self._gathered(padded), counts, strict=True)
        ]

    def broadcast_object(self, value: Any) -> Any:
        return self.all_gather_object(value if self.first else None)[0]

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> Tensors:
        """Return the first rank's tensors on every rank."""
        mine = _packed(tensors or {})
        length = self.broadcast_object(len(mine))
        received = mine
        if not self.first:
            received = torch.empty(length, dtype=torch.uint8)
        with self._collective():
            dist.broadcast(received, src=0)
        if self.first:
            self._count(received)
        return load(received.numpy().tobytes())

    def gather_to_root(self, tensors: Mapping[str, Tensor]) -> list[Tensors]:
        """Return all ranks' tensors on the first rank, and nothing on the others."""
        mine = _packed(tensors)
        lengths = [int(length) for (length,) in self.numbers(len(mine))]
        if not self.first:
            with self._collective():
                dist.send(mine, dst=0)
            self._count(mine)
            return []
        buffers = [mine, *(torch.empty(length, dtype=torch.uint8) for length in lengths[1:])]
        for sender in range(1, self.size):
            with self._collective():
                dist.recv(buffers[sender], src=sender)
        return [load(theirs.numpy().tobytes()) for theirs in buffers]

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
        if self._by_nccl(x):
            mine = x
        else:
            mine = x.cpu()
        self._count(x)
        with self._collective():
            everyones = [torch.empty_like(mine) for _ in range(self.size)]
            self._wait_for(dist.all_gather(everyones, mine.contiguous(), async_op=True), mine)
        return torch.stack(everyones).to(x.device)

    def _reduced(self, x: Tensor) -> Tensor:
        """Return the sum over ranks of x, which is overwritten."""
        if self._by_nccl(x):
            mine = x
        else:
            mine = x.cpu()
        with self._collective():
            self._wait_for(dist.all_reduce(mine, async_op=True), mine)
        self._count(x)
        return mine.to(x.device)

    def _wait_for(self, work: Any, x: Tensor) -> None:
        """Wait for an exchange of x: awake at first, because a processor that was put to sleep
        comes back slowly.
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
        """Return an exchange that fails because another rank is gone says which one, and why if
        that is known.
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
            raise RankLostError(
                f"rank {self.rank} of {self.size}: {self._gone() or first_line}"
            ) from error

    def _gone(self) -> str:
        """Return which ranks ended and why; the empty text where no rank has left a message."""
        if self._store is None:
            return ""
        if _in_main_thread():
            signal.signal(
                signal.SIGTERM, signal.SIG_IGN
            )  # torchrun ends all ranks now: first a word of why
        self.leave("lost contact with another rank", lost=True)
        words: dict[int, dict[str, Any]] = {}
        until = time.monotonic() + _LAST_WORDS
        while len(words) < self.size and time.monotonic() < until:
            for other in set(range(self.size)) - words.keys():
                message = self._exit_message(other)
                if message:
                    with suppress(ValueError):
                        words[other] = json.loads(message)
            time.sleep(0.05)
        ended = [
            f"rank {other} ended: {said['why']}"
            for other, said in sorted(words.items())
            if not said["lost"]
        ]
        silent = ", ".join(str(other) for other in range(self.size) if other not in words)
        if silent:
            died = [f"rank {silent} is gone: its process or its machine ended without a word"]
        else:
            died = []
        return "; ".join([*ended, *died])

    def _exit_message(self, other: int) -> bytes:
        """Return what a rank said when it ended; nothing where it has not said so."""
        with suppress(RuntimeError):  # the store may be on a machine that is gone
            if self._store is not None and self._store.check([f"{_ENDED}/{other}"]):
                said: bytes = self._store.get(f"{_ENDED}/{other}")
                return said
        return b""

    def _is_one_gone(self) -> bool:
        """Return whether another rank has said that it ends, or its process is gone, where that can
        be seen from here.
        """
        if any(self._exit_message(other) for other in range(self.size) if other != self.rank):
            return True
        return any(has_ended(pid) for pid in self._processes)

    def _validate_alive(self) -> None:
        """Raise an error if another rank is gone."""
        if self._is_one_gone():
            raise RankLostError(
                f"rank {self.rank} of {self.size}: {self._gone() or 'another rank is gone'}"
            )

    def end_on_signal(self, *signal_and_frame: object) -> None:
        """End this rank at SIGTERM: torchrun sends it to all ranks when one is gone, clusters when
        time is up.
        """
        why = self._gone()
        raise RankLostError(
            f"rank {self.rank} of {self.size} was ended from outside (SIGTERM){why and f': {why}'}"
        )

    def leave(self, why: str, lost: bool = False) -> None:
        """Tell the others why this rank ends before its work is done."""
        words = json.dumps({"why": why[:_LONGEST_WORDS], "lost": lost})
        if self._store is not None:
            with suppress(RuntimeError):  # the store may be on a machine that is gone
                self._store.set(f"{_ENDED}/{self.rank}", words)


def _in_main_thread() -> bool:
    """Return whether signals can be handled here."""
    return threading.current_thread() is threading.main_thread()


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
    """Return a store without entries, the number of this rank, and how many there are.

    Ranks that join again meet at the store of the first time, which is kept for that: a new one at
    the same address might be looked for while the old one is still there.
    """
    address = tuple(
        os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    )
    if address not in _stores:
        _stores[address] = next(rendezvous("env://"))
    store, rank, size = _stores[address]
    _joined[address] += 1
    apart = dist.PrefixStore(f"fedfw/{_joined[address]}", store)  # type: ignore[attr-defined]
    return apart, rank, size


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
        if began and _in_main_thread():
            signal.signal(signal.SIGTERM, ranks.end_on_signal)
        yield ranks
        if began:
            ranks.numbers(
                0.0
            )  # no rank leaves while others may still ask: the first rank may keep the store
    except RankLostError:
        raise
    except BaseException as error:
        if ranks is not None:
            ranks.leave(f"{type(error).__name__}: {error}")
        raise
    finally:
        if began and _in_main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if began:
            dist.destroy_process_group()


def has_ended(pid: int) -> bool:
    """Return whether a process of this machine is gone, or has ended and waits for its parent."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in "ZX"


def process_namespace() -> str | None:
    """Return what two processes have in common that see each other in /proc; None where there is no
    /proc.
    """
    with suppress(OSError):
        if os.readlink("/proc/self") == str(
            os.getpid()
        ):  # else it shows the processes of another namespace
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return boot + os.readlink("/proc/self/ns/pid")
    return None
