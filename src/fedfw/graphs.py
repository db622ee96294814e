"""Means to keep a GPU busy with small pieces of work: several streams, and launches without
Python.
"""

import gc
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
Result = TypeVar("Result")
_SEEN_BEFORE = 3
"""Calls with the same shapes before they are recorded: libraries choose kernels and set up
workspaces in them.
"""
_MOST_RECORDINGS = 16
"""Different shapes that are recorded; the rest is computed as it comes."""


@dataclass(frozen=True)
class _Recording(Generic[Result]):
    graph: torch.cuda.CUDAGraph
    places: tuple[Tensor, ...]
    results: Result


class Replayed(Generic[Result]):
    """A function of CUDA tensors whose work depends on nothing but their shapes, kept as CUDA
    graphs.

    The tensors in what it returns are overwritten by the next call: copy what is to stay.

    Parameters
    ----------
    function : callable
        Takes tensors and returns some, or an object that holds some.
    most : int
        How many different shapes are recorded.
    """

    given: tuple[Tensor, ...] = ()
    """The inputs of the last call, in places that its results did not overwrite."""

    def __init__(self, function: Callable[..., Result], most: int = _MOST_RECORDINGS) -> None:
        """Keep a function; nothing is recorded before it has run."""
        self._function = function
        self._recordings: dict[tuple[torch.Size, ...], _Recording[Result]] = {}
        self._seen: Counter[tuple[torch.Size, ...]] = Counter()
        self._recordings_left = most
        # One pool for all of them: they never run at the same time, and no caller keeps their
        # results.
        self._memory = torch.cuda.graph_pool_handle()
        self._stream: torch.cuda.Stream | None = None

    @property
    def gave_up(self) -> bool:
        """Return whether nothing is recorded, now or later."""
        return not self._recordings and self._recordings_left == 0

    @property
    def ready(self) -> bool:
        """Return whether something is recorded, so that a call takes the host no time to speak
        of.
        """
        return bool(self._recordings)

    def __call__(self, *inputs: Tensor) -> Result:
        """Return the function's results: the first calls with these shapes run it, one records it
        as a CUDA graph, and later ones replay this graph, which overwrites the last results.
        """
        self.given = inputs
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self._recordings:
            self._seen[shapes] += 1
            if self._seen[shapes] <= _SEEN_BEFORE or self._recordings_left == 0:
                return self._function(*inputs)
            # Streams and recordings are the current device's.
            with torch.cuda.device(inputs[0].device):
                if not self._can_be_recorded(inputs):
                    self._recordings_left = 0  # never tried again
                    return self._function(*inputs)
                self._recordings[shapes] = self._record(inputs)
            self._recordings_left -= 1
        recording = self._recordings[shapes]
        for place, tensor in zip(recording.places, inputs, strict=True):
            place.copy_(tensor, non_blocking=True)
        self.given = recording.places
        recording.graph.replay()
        return recording.results

    def _can_be_recorded(self, inputs: tuple[Tensor, ...]) -> bool:
        """Return whether the function runs without making the host wait for the GPU; if it waited
        while it is recorded, the recording would break off and leave CUDA libraries unusable.

        The trial runs on the stream of the recording, because libraries allocate what they need for
        a stream at its first use, which must not happen while it is recorded.
        """
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls this mode a prototype
            torch.cuda.set_sync_debug_mode("error")  # a wait raises RuntimeError
            self._stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(self._stream):
                    self._function(*inputs)
            except RuntimeError:
                return False
            finally:
                torch.cuda.set_sync_debug_mode(mode)
                torch.cuda.current_stream().wait_stream(self._stream)
        return True

    def _record(self, inputs: tuple[Tensor, ...]) -> _Recording[Result]:
        """Record the function as a CUDA graph, on copies of the inputs that replays write to."""
        places = tuple(tensor.clone() for tensor in inputs)
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()  # it might free a device's memory, which ends a recording
        try:
            with torch.cuda.graph(graph, pool=self._memory, stream=self._stream):
                results = self._function(*places)
        finally:
            if collects:
                gc.enable()
        return _Recording(graph, places, results)


def on_streams(each: Callable[..., Pair], count: int) -> Callable[..., list[Pair]]:
    """Return the function that applies ``each``, which takes one client's tensors, to each row of
    stacks (b, ...), with ``count`` clients at the same time on CUDA streams of their own.
    """
    streams: list[torch.cuda.Stream] = []

    def together(*stacks: Tensor) -> list[Pair]:
        """Run the function for each row of the stacks, side by side; the current stream waits for
        all.
        """
        here = torch.cuda.current_stream()
        for _ in range(count - len(streams)):
            streams.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        for stream in streams:
            stream.wait_stream(here)
        results = []
        for index, tensors in enumerate(zip(*stacks, strict=True)):
            with torch.cuda.stream(streams[index % count]):
                results.append(each(*tensors))
        for stream in streams:
            here.wait_stream(stream)
        return results

    return together
