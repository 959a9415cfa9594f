"""Runs the program of a case on a system that torch tensors can drive, and writes down everything that came of it.

An adapter implements `System` and `Pending`: load a state, forward, backward, read the state back. How the calls follow
each other, what memory the inputs lie in, on which stream and in whose graph, is the same for all systems and written
here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch

from equivcheck.backends.cuda import asks_for_assert, checked, identity, watched
from equivcheck.backends.layouts import Placed, place, to_numpy
from equivcheck.backends.memory import ran_out
from equivcheck.case import Call
from equivcheck.formats import AnyArray
from equivcheck.outcome import (
    SUPPORTED,
    Breach,
    Forward,
    Guard,
    Outcome,
    Promise,
    Raised,
    Support,
    Update,
    unsupported,
)
from equivcheck.problem import Action, Batch, Problem, Snapshot, program


@dataclass(frozen=True)
class Inputs:
    """The caller's tensors of one step, in the layouts of the case: (N,), (bags + 1,), (N,) or None, and dL/dY."""

    batch: Batch
    indices: torch.Tensor
    offsets: torch.Tensor
    per_sample_weights: torch.Tensor | None
    gradient: torch.Tensor


class Pending(Protocol):
    """A forward whose backward has not run, or may run again."""

    @property
    def output(self) -> torch.Tensor:
        """The pooled output, in the output's dtype."""
        ...

    def backward(self, gradient: torch.Tensor, retain: bool) -> torch.Tensor | None:
        """Update the tables. Returns this backward's gradient of the per-sample weights, where they ask for one."""
        ...


class System(Protocol):
    """Tables and optimizer state that live in torch tensors, and the calls that use them."""

    @property
    def device(self) -> torch.device:
        """Where the inputs have to lie."""
        ...

    def load(self, snapshot: Snapshot, step: int) -> None:
        """Write every row and every state; the next forward is that of step number `step` of the case."""
        ...

    def set_learning_rate(self, rate: float) -> None:
        """The rate of forwards from now on."""
        ...

    def forward(self, inputs: Inputs) -> Pending:
        """Look the batch up."""
        ...

    def warnings(self) -> int | None:
        """Bounds-check warnings of the last forward, where the system counts them."""
        ...

    def snapshot(self) -> Snapshot:
        """Copies of every row and every state."""
        ...

    def restored(self) -> Self:
        """A new instance, made from what this one saves."""
        ...

    def guards(self) -> tuple[Guard, ...]:
        """Memory around the tables and states, where the system lets the caller place them."""
        ...


def drive(problem: Problem, system: System, paths: tuple[str, ...] = ()) -> Outcome:
    """Run the program of `problem.case` on `system`, which holds the initial state.

    Where a kernel takes the context of a GPU with it, the process ends: every later case would fail in it. A case that
    may ask for a device assert is its adapter's to look at (`cuda.checked`).

    On the CPU everything runs on one thread (and the caller's number of threads is set again afterwards): test cases
    are small, a run of the suite already has a process a core, and a sum split over threads adds in another order on
    another machine.
    """
    with watched(system.device):
        outcome = _driven(problem, system, paths)
    if outcome.raised is not None and outcome.raised.after is None and not asks_for_assert(problem.case):
        checked(outcome, system.device, ())
    return outcome


def supports_call(call: Call, device: torch.device) -> Support:
    """Whether the device has what a call needs: streams and graphs belong to CUDA."""
    if device.type != "cuda" and call in (Call.SIDE_STREAM, Call.GRAPH):
        what = "non-default streams" if call is Call.SIDE_STREAM else "graph capture"
        return unsupported(f"{what} belong to CUDA; this subject runs on {device}")
    return SUPPORTED


def elsewhere(name: str, tensor: torch.Tensor, device: torch.device) -> list[Breach]:
    """A breach if a tensor did not come back on the device that its inputs were on."""
    if tensor.device.type == device.type:
        return []
    return [Breach(Promise.FELL_BACK, name, f"it came back on {tensor.device}, and its inputs were on {device}")]


def scattered(name: str, tensor: torch.Tensor) -> list[Breach]:
    """A breach if an output did not come back contiguous, as the modules that this suite is about return it.

    Not for gradients: autograd may give one the strides of the tensor that it belongs to.
    """
    if tensor.is_contiguous():
        return []
    detail = f"shape {tuple(tensor.shape)} came back with strides {tensor.stride()}, which is not contiguous"
    return [Breach(Promise.STRIDES_CHANGED, name, detail)]


def _driven(problem: Problem, system: System, paths: tuple[str, ...]) -> Outcome:
    run = _Run(problem, system)
    try:
        with _one_thread(), torch.enable_grad(), _stream(problem, system.device):
            run.go()
    except RuntimeError:
        if not run.lost:  # streams cannot be joined any more where the context is lost
            raise
    return Outcome(
        results=tuple(run.results),
        inputs_after=tuple(run.after.get(step, {}) for step in range(len(problem.batches))),
        raised=run.raised,
        guards=(*run.guards, *(() if run.lost else run.system.guards())),
        paths=paths,
        device=identity(system.device),
        notes=run.notes,
        breaches=tuple(run.breaches),
    )


@dataclass
class _Run:
    """One run of a program, with what it has found so far."""

    problem: Problem
    system: System
    results: list[Forward | Update] = field(default_factory=list)
    after: dict[int, dict[str, AnyArray]] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    raised: Raised | None = None
    notes: dict[str, str] = field(default_factory=dict)
    breaches: list[Breach] = field(default_factory=list)

    @property
    def lost(self) -> bool:
        """Whether the device's memory cannot be read any more."""
        return self.raised is not None and self.raised.after is None

    def go(self) -> None:
        calls = [_Call(self.problem, batch, self.system.device) for batch in self.problem.batches]
        actions = program(self.problem.case)
        last = {step: position for position, (_, step) in enumerate(actions)}
        for position, (action, step) in enumerate(actions):
            try:
                self.results.append(self._act(action, step, calls[step]))
            except Exception as error:  # whatever the system raises is its answer
                if ran_out(error):  # but for this, after which the runner frees memory and tries once more
                    raise
                self.raised = self._raised(position, error)
            if self.raised is not None:
                for number, call in enumerate(calls):
                    if number not in self.after:
                        self._read(number, call)
                return
            if last[step] == position:
                self._read(step, calls[step])

    def _act(self, action: Action, step: int, call: _Call) -> Forward | Update:
        case, rate = self.problem.case, call.inputs.batch.learning_rate
        if action is Action.FORWARD:
            self.system.set_learning_rate(rate)
            if case.call is Call.GRAPH:
                call.capture(self.system, step)
            else:
                call.pending = self.system.forward(call.inputs)
            name = f"output of step {step}"
            self.breaches += elsewhere(name, call.taken.output, self.system.device)
            self.breaches += scattered(name, call.taken.output)
            output = to_numpy(call.taken.output)
            if case.call is Call.RATE_CHANGED:
                self.system.set_learning_rate(2 * rate + 1)
            after = self.system.snapshot() if case.call is Call.FORWARD_ONLY else None
            return Forward(output, self.system.warnings(), after)
        if case.call is not Call.GRAPH:  # where forward and backward are one graph, both have run
            call.weight_gradient = call.taken.backward(call.inputs.gradient, retain=case.call is Call.RETAINED)
        if case.call is Call.RESTORED:
            self.guards.extend(self.system.guards())
            self.system = self.system.restored()
        gradient: AnyArray | None = None
        if call.weight_gradient is not None:
            self.breaches += elsewhere(f"weight gradient of step {step}", call.weight_gradient, self.system.device)
            gradient = to_numpy(call.weight_gradient)
        return Update(self.system.snapshot(), gradient)

    def _raised(self, position: int, error: Exception) -> Raised:
        after: Snapshot | None = None
        try:
            after = self.system.snapshot()
        except Exception as lost:  # a device assert takes the CUDA context with it, and all memory
            self.notes["state after"] = f"could not be read: {type(lost).__name__}: {lost}"
        return Raised(position, type(error).__name__, str(error), after)

    def _read(self, step: int, call: _Call) -> None:
        try:
            found = {placed.name: placed.read() for placed in call.placed}
        except RuntimeError as lost:
            if self.raised is None:
                raise
            self.notes[f"inputs of step {step} after"] = f"could not be read: {lost}"
            return
        self.after[step] = {name: values for name, (values, _) in found.items()}
        self.guards.extend(
            Guard(f"{name} of step {step}", guard.before, guard.after) for name, (_, guard) in found.items()
        )


class _Call:
    """The tensors of one step, and its forward once it has run."""

    def __init__(self, problem: Problem, batch: Batch, device: torch.device) -> None:
        layouts = problem.case.layouts
        chosen = {"grad_output": layouts.gradient}
        self.placed: list[Placed] = [
            place(name, array, chosen.get(name) or getattr(layouts, name), device) for name, array in batch.arrays
        ]
        tensors = {placed.name: placed.tensor for placed in self.placed}
        weights = tensors.get("per_sample_weights")
        spec = problem.case.per_sample_weights
        if weights is not None and spec is not None and spec.gradient:
            weights.requires_grad_()
        self.inputs = Inputs(batch, tensors["indices"], tensors["offsets"], weights, tensors["grad_output"])
        self.pending: Pending | None = None
        self.weight_gradient: torch.Tensor | None = None

    @property
    def taken(self) -> Pending:
        """The forward that has run."""
        if self.pending is None:
            raise AssertionError("a backward came before its forward: the program of the case is wrong")
        return self.pending

    def capture(self, system: System, step: int) -> None:
        """Forward and backward in one CUDA graph, replayed once.

        Capturing needs a warm-up on another stream (PyTorch, *CUDA semantics*, CUDA graphs); the state and the inputs
        that it changed are then written again. Capturing itself executes nothing.
        """
        state = system.snapshot()
        rate = self.inputs.batch.learning_rate
        main, side = torch.cuda.current_stream(system.device), _side_stream(system.device)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            system.forward(self.inputs).backward(self.inputs.gradient, retain=False)
        main.wait_stream(side)
        for placed in self.placed:
            placed.restore()
        system.load(state, step)
        system.set_learning_rate(rate)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.pending = system.forward(self.inputs)
            self.weight_gradient = self.pending.backward(self.inputs.gradient, retain=False)
        graph.replay()
        torch.cuda.synchronize(system.device)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # 0.1 us, measured on 2026-11-30
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _stream(problem: Problem, device: torch.device) -> Iterator[None]:
    """The stream of the case. A side stream first waits for the default one, where the state was loaded."""
    if problem.case.call is not Call.SIDE_STREAM:
        yield
        return
    main, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        yield
    main.wait_stream(side)


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch types its attributes only
