"""Memory that runs out: the case is tried once more with everything freed, then reported; the process goes on."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from equivcheck import runner
from equivcheck.backends.memory import Memory, ran_out
from equivcheck.case import Bag, Case, Feature, Lookup
from equivcheck.engine.check import describe
from equivcheck.outcome import Outcome
from equivcheck.problem import Problem
from equivcheck.runner import Subject
from equivcheck.verdict import Status
from tests.selftest import kernels as ks

if TYPE_CHECKING:
    from tests.selftest.conftest import Engine

CASE = Case((Feature(rows=2, dim=4, bags=(Bag((Lookup(0, 3),)),)),))


class Kept(np.ndarray):
    """An array that can be asked whether it is gone."""


class Shares(ks.Right):
    """Runs out as long as what its first call allocated is still there."""

    def __init__(self) -> None:
        self.calls = 0
        self.first: weakref.ref[Kept] | None = None

    def run(self, problem: Problem) -> Outcome:
        self.calls += 1
        if self.first is None:
            large = np.zeros(10).view(Kept)
            self.first = weakref.ref(large)
            raise MemoryError("large is held by this frame")
        if self.first() is not None:
            raise MemoryError("it is still held")
        return super().run(problem)


class OnDevice(ks.Right):
    """Raises what it is given, every time."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    def run(self, problem: Problem) -> Outcome:
        self.calls += 1
        raise self.error


def test_a_case_runs_once_more_with_everything_freed() -> None:
    backend = Shares()
    gc.disable()
    try:
        run = runner.run(CASE, Subject("shares", backend))
    finally:
        gc.enable()
    assert (run.verdict.status, backend.calls) == (Status.PASSED, 2)


def test_what_runs_out_twice_is_an_error_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    freed = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(1))
    backend = OnDevice(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    run = runner.run(CASE, Subject("device", backend))
    assert (run.verdict.status, backend.calls, len(freed)) == (Status.ERROR, 2, 2)
    first = run.verdict.reason.splitlines()[0]
    assert first == "out of memory (device): OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert describe(run.verdict) == "error: out of memory (device)"
    assert run.problem is not None


def test_a_system_that_runs_out_has_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else a system raises is its answer to the case, and judged."""
    torch = pytest.importorskip("torch")
    from equivcheck.backends import driver

    subject, act, calls = Subject.load("torch:cpu"), driver._Run._act, []

    def runs_out_at_first(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return act(*arguments)

    monkeypatch.setattr(driver._Run, "_act", runs_out_at_first)
    assert runner.run(CASE, subject).verdict.status is Status.PASSED
    assert len(calls) == 3, "the forward, and once more with the backward"


def test_another_error_is_raised_once() -> None:
    backend = OnDevice(RuntimeError("no such kernel"))
    run = runner.run(CASE, Subject("device", backend))
    assert (run.verdict.status, backend.calls) == (Status.ERROR, 1)
    assert run.verdict.reason.startswith("RuntimeError: no such kernel")


def caused(error: Exception) -> Exception:
    outer = ValueError("the kernel could not be launched")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), Memory.HOST),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), Memory.HOST),
        (RuntimeError("Triton Error [CUDA]: out of memory"), Memory.DEVICE),
        (RuntimeError("CUDA error: out of memory"), Memory.DEVICE),
        (caused(RuntimeError("CUDA error: out of memory")), Memory.DEVICE),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), None),
        (ValueError("out of memory"), None),
    ],
    ids=str,
)
def test_whose_memory_ran_out(error: Exception, memory: Memory | None) -> None:
    assert ran_out(error) is memory


@pytest.mark.parametrize(("kernel", "memory"), [("EatsHost", "host"), ("EatsDevice", "device")])
def test_a_run_goes_on_in_the_same_process(engine: Engine, kernel: str, memory: str, kernels: Path) -> None:
    engine.change("max_size=3", "max_size=1")
    result = engine.run(kernel, "-n1")
    assert result.returncode == 1
    assert engine.events("ended") == [], "no process ended"
    [slice_] = engine.events("slice")
    [failure] = slice_["failures"]
    assert failure["symptom"] == f"error: out of memory ({memory})"
    assert f"error: out of memory ({memory}): " in failure["text"]
    [document] = [saved for saved in engine.saved() if saved["kind"] == "shrunk"]
    assert document["case"]["features"][0]["bags"] == [{"lookups": [[0, 3]]}]
    replayed = engine.equivcheck("replay", *(str(path) for path in engine.paths()), "--times=1")
    assert replayed.stdout.startswith("SAME"), replayed.stdout
