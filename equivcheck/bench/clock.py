"""How long a call takes: on the device, launched from the host, and on the host itself.

A call that is measured repeatedly finds other inputs and a flushed cache each time: the inputs are
written, then a buffer larger than the cache is overwritten, as `triton.testing.do_bench` does. Neither is in the time.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from equivcheck.bench.result import Machine, Method, Times


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Procedure:
    """What is measured, and what comes before it.

    Attributes
    ----------
    load
        Writes the inputs of repetition i.
    ready
        Runs the forward that a backward needs. Not before a graph's replay: a captured backward holds on to the tensors
        of the forward before its capture.
    call
        What is measured.
    """

    call: Callable[[], object]
    load: Callable[[int], object] = lambda repetition: None
    ready: Callable[[], object] = _nothing

    def before(self, repetition: int) -> None:
        """Everything up to the call."""
        self.load(repetition)
        self.ready()


_FLUSHED = 256_000_000
"""Bytes, as in `triton.testing.do_bench`: five times an H200's L2 cache of 50 MB."""
_FLUSHED_ON_CPU = 64_000_000
_COPIED = 2**30
_LEAST, _MOST = 12, 200
"""Repetitions: with fewer than a hundred, the 99th percentile is the longest."""


class Clock(Protocol):
    """The clock of a device. All times are in microseconds."""

    method: Method

    def device_times(self, procedure: Procedure, seconds: float) -> tuple[Times, Method, str]:
        """Time on the device; and by what, and why by no better."""
        ...

    def launched_times(self, procedure: Procedure, seconds: float) -> Times | None:
        """Time between events around a launch from the host."""
        ...

    def host_times(self, procedure: Procedure, seconds: float) -> Times | None:
        """Time until the call returns, the device idle before."""
        ...

    def step_times(self, procedure: Procedure, seconds: float) -> Times:
        """Time until the device is idle again, the device idle before."""
        ...

    def machine(self) -> Machine:
        """Bandwidth of a copy, and what an empty graph takes."""
        ...


def clock_of(device: torch.device) -> Clock:
    """The clock of a device: CUDA's events, or the wall's."""
    return CudaClock(device) if device.type == "cuda" else WallClock()


def summary(values: Sequence[float]) -> Times:
    """Median, 99th percentile and least of times in microseconds."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Times(median, ordered[math.ceil(0.99 * len(ordered)) - 1], ordered[0], len(ordered))


def _repetitions(seconds: float, once: float) -> int:
    return max(_LEAST, min(_MOST, int(seconds / max(once, 1e-7))))


class CudaClock:
    """Events of CUDA, around replays of a graph where one can be captured."""

    method = Method.GRAPH

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cache = torch.empty(_FLUSHED // 4, dtype=torch.int32, device=device)

    def device_times(self, procedure: Procedure, seconds: float) -> tuple[Times, Method, str]:
        """Between events around a replay of a graph that holds the call once; else around the launched call."""
        try:
            graph = self._captured(procedure)
        except RuntimeError as error:
            torch.cuda.synchronize(self._device)
            reason = f"no graph could be captured: {str(error).partition(chr(10))[0]}"
            return self.launched_times(procedure, seconds), Method.EVENTS, reason
        replayed = replace(procedure, call=graph.replay, ready=_nothing)
        return self._spans(replayed, seconds), Method.GRAPH, ""

    def launched_times(self, procedure: Procedure, seconds: float) -> Times:
        """See `Clock`."""
        return self._spans(procedure, seconds)

    def host_times(self, procedure: Procedure, seconds: float) -> Times:
        """See `Clock`."""
        return self._walls(procedure, seconds, waits=False)

    def step_times(self, procedure: Procedure, seconds: float) -> Times:
        """See `Clock`."""
        return self._walls(procedure, seconds, waits=True)

    def machine(self) -> Machine:
        """A copy of 1 GiB counts twice, read and written. The floor is a graph's that writes four bytes."""
        source = torch.zeros(_COPIED // 4, dtype=torch.int32, device=self._device)
        target = torch.empty_like(source)
        copied = self._spans(Procedure(lambda: target.copy_(source)), 0.05)
        small = source[:1]
        floor, _, _ = self.device_times(Procedure(small.zero_), 0.02)
        return Machine(2 * _COPIED / copied.median * 1e6, floor.median, _FLUSHED)

    def _spans(self, procedure: Procedure, seconds: float) -> Times:
        started = time.perf_counter()
        self._run(procedure, 3)
        once = (time.perf_counter() - started) / 3
        return summary(self._run(procedure, _repetitions(seconds, once)))

    def _run(self, procedure: Procedure, number: int) -> list[float]:
        pairs = [(_event(), _event()) for _ in range(number)]
        for repetition, (start, end) in enumerate(pairs):
            procedure.before(repetition)
            self._cache.zero_()
            start.record()
            procedure.call()
            end.record()
        torch.cuda.synchronize(self._device)
        return [1e3 * start.elapsed_time(end) for start, end in pairs]

    def _walls(self, procedure: Procedure, seconds: float, *, waits: bool) -> Times:
        def once(repetition: int) -> float:
            procedure.before(repetition)
            self._cache.zero_()
            torch.cuda.synchronize(self._device)
            started = time.perf_counter()
            procedure.call()
            returned = time.perf_counter()
            torch.cuda.synchronize(self._device)
            return 1e6 * ((time.perf_counter() if waits else returned) - started)

        return _until(once, seconds)

    def _captured(self, procedure: Procedure) -> torch.cuda.CUDAGraph:
        """The call in a graph. Its forward, if it has one before it, runs on the same stream, as autograd wants it.

        `torch.cuda.graph` would also collect garbage and empty the allocator's cache, 0.1 s each time.
        """
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch types its attributes only
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            procedure.before(0)
            procedure.call()  # what a system allocates or compiles at its first call on a stream
            procedure.before(0)
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            collects = gc.isenabled()
            gc.disable()  # freeing a tensor of another graph would break the capture
            try:
                graph.capture_begin()
                try:
                    procedure.call()
                finally:
                    graph.capture_end()
            finally:
                if collects:
                    gc.enable()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        return graph


class WallClock:
    """The host's clock, for systems that run on the host: there is no device time apart from the host's."""

    method = Method.WALL

    def __init__(self) -> None:
        self._cache = torch.empty(_FLUSHED_ON_CPU // 4, dtype=torch.int32)

    def device_times(self, procedure: Procedure, seconds: float) -> tuple[Times, Method, str]:
        """The time of the call."""
        return self.step_times(procedure, seconds), Method.WALL, "this system runs on the host"

    def launched_times(self, procedure: Procedure, seconds: float) -> None:
        """Nothing is launched."""

    def host_times(self, procedure: Procedure, seconds: float) -> None:
        """The host is the device."""

    def step_times(self, procedure: Procedure, seconds: float) -> Times:
        """See `Clock`."""

        def once(repetition: int) -> float:
            procedure.before(repetition)
            self._cache.zero_()
            started = time.perf_counter()
            procedure.call()
            return 1e6 * (time.perf_counter() - started)

        return _until(once, seconds)

    def machine(self) -> Machine:
        """A copy of 64 MB counts twice, read and written."""
        target = torch.empty_like(self._cache)
        copied = self.step_times(Procedure(lambda: target.copy_(self._cache)), 0.05)
        return Machine(2 * _FLUSHED_ON_CPU / copied.median * 1e6, 0.0, _FLUSHED_ON_CPU)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch types its attributes only


def _until(once: Callable[[int], float], seconds: float) -> Times:
    """So many repetitions as fit, by the first two, which are not counted."""
    started = time.perf_counter()
    for repetition in range(2):
        once(repetition)
    each = (time.perf_counter() - started) / 2
    return summary([once(repetition) for repetition in range(_repetitions(seconds, each))])
