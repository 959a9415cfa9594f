"""The clocks: what is in a time and what is not. CUDA's is driven with a device that only counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from equivcheck.bench.clock import CudaClock, Procedure, WallClock, summary
from equivcheck.bench.result import Method


@dataclass
class Device:
    """Simulated time in milliseconds, and what was done."""

    now: float = 0.0
    done: list[str] = field(default_factory=list)
    refuses: str = ""
    capturing: bool = False

    def work(self, name: str, milliseconds: float) -> None:
        self.done.append(f"captured {name}" if self.capturing else name)
        self.now += 0.0 if self.capturing else milliseconds


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    simulated = Device()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = simulated.now
            simulated.done.append("event")

        def elapsed_time(self, end: Event) -> float:
            return end.at - self.at

    class Stream:
        def __init__(self, device: torch.device) -> None:
            del device

        def wait_stream(self, other: Stream) -> None:
            del other

    class Graph:
        def capture_begin(self) -> None:
            if simulated.refuses:
                raise RuntimeError(simulated.refuses)
            simulated.capturing = True

        def capture_end(self) -> None:
            simulated.capturing = False

        def replay(self) -> None:
            simulated.work("replay", 2.0)

    @contextmanager
    def stream(of: Stream) -> Iterator[None]:
        del of
        yield

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: simulated.done.append("wait"))
    return simulated


@pytest.fixture
def clock(device: Device, monkeypatch: pytest.MonkeyPatch) -> CudaClock:
    made = CudaClock(torch.device("cpu"))

    class Cache:
        def zero_(self) -> None:
            device.work("flush", 5.0)

    monkeypatch.setattr(made, "_cache", Cache())
    return made


@pytest.fixture
def procedure(device: Device) -> Procedure:
    return Procedure(
        call=lambda: device.work("backward", 3.0),
        load=lambda repetition: device.work(f"load {repetition}", 1.0),
        ready=lambda: device.work("forward", 7.0),
    )


def test_a_launched_time_holds_the_call_alone(device: Device, clock: CudaClock, procedure: Procedure) -> None:
    times = clock.launched_times(procedure, 0.0)
    assert (times.median, times.p99, times.least) == (3000.0, 3000.0, 3000.0)
    assert device.done[:6] == ["load 0", "forward", "flush", "event", "backward", "event"]
    assert "load 1" in device.done


def test_a_replay_needs_no_forward_and_flushes_the_cache(
    device: Device, clock: CudaClock, procedure: Procedure
) -> None:
    times, method, reason = clock.device_times(procedure, 0.0)
    assert (times.median, method, reason) == (2000.0, Method.GRAPH, "")
    begun = device.done.index("captured backward")
    # A warm-up before the capture, then a forward whose backward is captured for the first time.
    assert device.done[:begun] == ["load 0", "forward", "backward", "load 0", "forward", "wait"]
    assert device.done[begun + 1 :][:5] == ["load 0", "flush", "event", "replay", "event"]
    assert "forward" not in device.done[begun:]


def test_where_no_graph_can_be_captured_events_are_taken_and_the_reason_is_kept(
    device: Device, clock: CudaClock, procedure: Procedure
) -> None:
    device.refuses = "operation not permitted when stream is capturing\nand more"
    times, method, reason = clock.device_times(procedure, 0.0)
    assert (times.median, method) == (3000.0, Method.EVENTS)
    assert reason == "no graph could be captured: operation not permitted when stream is capturing"


def test_the_host_returns_before_the_device_is_idle(device: Device, clock: CudaClock, procedure: Procedure) -> None:
    clock.host_times(procedure, 0.0)
    assert device.done[:6] == ["load 0", "forward", "flush", "wait", "backward", "wait"]
    assert clock.step_times(procedure, 0.0).repetitions >= 12


def test_the_copy_bandwidth_counts_what_is_read_and_written(device: Device, clock: CudaClock) -> None:
    clock._spans = lambda procedure, seconds: summary([1000.0])  # type: ignore[method-assign]
    assert clock.machine().copy_bandwidth == pytest.approx(2 * 2**30 / 1e-3)


def test_a_wall_clock_times_the_call_alone() -> None:
    seen: list[str] = []
    procedure = Procedure(lambda: seen.append("call"), lambda n: seen.append(f"load {n}"), lambda: seen.append("ready"))
    times, method, _ = WallClock().device_times(procedure, 0.0)
    assert method is Method.WALL
    assert seen[:3] == ["load 0", "ready", "call"]
    assert times.repetitions == 12
    assert 0 <= times.least <= times.median <= times.p99


@pytest.mark.parametrize(
    ("values", "median", "p99"),
    [([4.0], 4.0, 4.0), ([1.0, 3.0], 2.0, 3.0), ([float(n) for n in range(1, 201)], 100.5, 198.0)],
)
def test_median_and_99th_percentile(values: list[float], median: float, p99: float) -> None:
    found = summary(values[::-1])
    assert (found.median, found.p99, found.least, found.repetitions) == (median, p99, min(values), len(values))
