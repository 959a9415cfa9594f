"""What the driver does around a system: the order of calls, rates, restored instances, exceptions, guards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pytest
import torch

from equivcheck.backends import cuda
from equivcheck.backends.driver import Inputs, drive
from equivcheck.backends.layouts import to_numpy, to_torch
from equivcheck.case import Bag, Call, Case, Feature, Lookup, PerSampleWeights, Step
from equivcheck.outcome import Guard, Outcome, Update
from equivcheck.problem import Problem, Snapshot, materialise


@dataclass
class Recorder:
    """A system that adds one to its table at every backward, and writes down what is called."""

    problem: Problem
    table: torch.Tensor
    raises_at: int | None = None
    loses_state: bool = False
    writes_beside: bool = False
    log: list[tuple[object, ...]] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def load(self, snapshot: Snapshot, step: int) -> None:
        self.log.append(("load", step))

    def set_learning_rate(self, rate: float) -> None:
        self.log.append(("rate", rate))

    def forward(self, inputs: Inputs) -> Looked:
        step = next(i for i, batch in enumerate(self.problem.batches) if batch is inputs.batch)
        self.log.append(("forward", step))
        if self.raises_at == step:
            raise FloatingPointError("the fan fell off")
        if self.writes_beside:
            inputs.indices.as_strided((1,), (1,), inputs.indices.storage_offset() - 1).fill_(1)
        return Looked(self, step, torch.full(inputs.gradient.shape, float(step)))

    def warnings(self) -> int | None:
        return len(self.log)

    def snapshot(self) -> Snapshot:
        if self.loses_state and self.raises_at is not None:
            raise RuntimeError("the context is gone")
        return Snapshot((to_numpy(self.table),))

    def restored(self) -> Self:
        self.log.append(("restored",))
        return type(self)(self.problem, self.table.clone(), log=self.log)

    def guards(self) -> tuple[Guard, ...]:
        return (Guard("table", np.zeros(1, np.uint8), np.ones(1, np.uint8)),)


@dataclass
class Looked:
    system: Recorder
    step: int
    output: torch.Tensor

    def backward(self, gradient: torch.Tensor, retain: bool) -> torch.Tensor | None:
        self.system.log.append(("backward", self.step, retain))
        self.system.table += 1
        return None


def run(call: Call = Call.STEPS, **options: object) -> tuple[Outcome, Recorder]:
    features = (Feature(rows=3, dim=2, bags=(Bag((Lookup(1),)), Bag((Lookup(2),)))),)
    steps = (Step(learning_rate=0.5), Step(learning_rate=0.25))
    problem = materialise(Case(features=features, steps=steps, call=call, per_sample_weights=PerSampleWeights()))
    system = Recorder(problem, to_torch(problem.initial.tables[0]))
    for name, value in options.items():
        setattr(system, name, value)
    return drive(problem, system, paths=("a path",)), system


FIRST, SECOND = ("rate", 0.5), ("rate", 0.25)
CALLS: dict[Call, list[tuple[object, ...]]] = {
    Call.STEPS: [FIRST, ("forward", 0), ("backward", 0, False), SECOND, ("forward", 1), ("backward", 1, False)],
    Call.FORWARD_ONLY: [FIRST, ("forward", 0), SECOND, ("forward", 1)],
    Call.OUTSTANDING: [FIRST, ("forward", 0), SECOND, ("forward", 1), ("backward", 0, False), ("backward", 1, False)],
    Call.RETAINED: [
        *(FIRST, ("forward", 0), ("backward", 0, True), ("backward", 0, True)),
        *(SECOND, ("forward", 1), ("backward", 1, True), ("backward", 1, True)),
    ],
    Call.RATE_CHANGED: [
        *(FIRST, ("forward", 0), ("rate", 2.0), ("backward", 0, False)),
        *(SECOND, ("forward", 1), ("rate", 1.5), ("backward", 1, False)),
    ],
    Call.RESTORED: [
        *(FIRST, ("forward", 0), ("backward", 0, False), ("restored",)),
        *(SECOND, ("forward", 1), ("backward", 1, False), ("restored",)),
    ],
}


@pytest.mark.parametrize("call", CALLS)
def test_the_program_is_called_in_order(call: Call) -> None:
    assert run(call)[1].log == CALLS[call]


def test_everything_found_is_in_the_outcome() -> None:
    outcome, system = run()
    assert [type(result).__name__ for result in outcome.results] == ["Forward", "Update", "Forward", "Update"]
    start = system.problem.initial.tables[0]
    updates = [result.after.tables[0] for result in outcome.results if isinstance(result, Update)]
    np.testing.assert_array_equal(np.stack(updates), np.stack([start + 1, start + 2]))
    assert [set(after) for after in outcome.inputs_after] == [
        {"indices", "offsets", "per_sample_weights", "grad_output"}
    ] * 2
    assert {guard.name for guard in outcome.guards} >= {"table", "indices of step 0", "grad_output of step 1"}
    assert outcome.paths == ("a path",)
    assert outcome.device == "cpu"


@pytest.mark.parametrize("step", [0, 1])
def test_an_exception_is_an_answer(step: int) -> None:
    outcome, system = run(raises_at=step)
    raised = outcome.raised
    assert raised is not None
    assert (raised.position, raised.kind, raised.message) == (2 * step, "FloatingPointError", "the fan fell off")
    assert len(outcome.results) == 2 * step
    assert raised.after is not None
    np.testing.assert_array_equal(raised.after.tables[0], system.problem.initial.tables[0] + step)
    assert len(outcome.inputs_after) == 2
    assert all(outcome.inputs_after)


def test_a_state_that_is_lost_with_the_exception_is_noted() -> None:
    outcome, _ = run(raises_at=0, loses_state=True)
    assert outcome.raised is not None
    assert outcome.raised.after is None
    assert outcome.notes["state after"] == "could not be read: RuntimeError: the context is gone"


def test_a_write_beside_an_input_shows() -> None:
    outcome, _ = run(writes_beside=True)
    changed = [guard.name for guard in outcome.guards if (guard.before != guard.after).any()]
    assert changed == ["indices of step 0", "indices of step 1", "table"]


def test_a_lost_context_ends_the_process_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str] = []
    monkeypatch.setattr(cuda, "end_process", reasons.append)
    run(raises_at=1, loses_state=True)
    assert reasons == []
    monkeypatch.setattr(cuda, "lost", lambda device: True)
    run(raises_at=1)
    assert reasons == []  # its state could be read, so that its context is there
    run(raises_at=1, loses_state=True)
    assert reasons == ["RuntimeError: the context is gone"]
