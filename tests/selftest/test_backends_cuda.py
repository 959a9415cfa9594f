"""On a GPU: plain PyTorch and FBGEMM against plain PyTorch on the CPU, on side streams and in captured graphs too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import msgspec
import numpy as np
import pytest
import torch

from equivcheck.backends import registry
from equivcheck.backends.driver import Inputs, drive
from equivcheck.backends.layouts import to_numpy, to_torch
from equivcheck.backends.protocol import Backend, BackendUnavailable
from equivcheck.case import (
    Bag,
    Call,
    Case,
    Feature,
    IndexType,
    Layout,
    Layouts,
    Lookup,
    Optimizer,
    OptimizerKind,
    PerSampleWeights,
    Pooling,
    Regime,
    Step,
    Values,
)
from equivcheck.formats import AnyArray, DType
from equivcheck.outcome import Forward, Guard, Outcome
from equivcheck.problem import Problem, Snapshot, materialise

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # FBGEMM 1.6.0 warns that its Adam is experimental, and in C++ about an optimization for another GPU.
    pytest.mark.filterwarnings("ignore:(?s).*(EXPERIMENTAL|TBE B200):UserWarning"),
]

FEATURES = (
    Feature(rows=5, dim=4, bags=(Bag((Lookup(0, 2), Lookup(3))), Bag(), Bag((Lookup(4),)))),
    Feature(table=0, bags=(Bag((Lookup(1), Lookup(0))), Bag((Lookup(3),)))),
    Feature(rows=7, dim=8, bags=(Bag((Lookup(2, 3), Lookup(6))), Bag((Lookup(0),)))),
)
WEIGHTS = PerSampleWeights(values=Values(Regime.UNIFORM), gradient=True)
UNIFORM = Values(Regime.UNIFORM)
ROUNDINGS = 40
"""More operations than any element here takes in fp32, on both sides together."""


def case(**changes: object) -> Case:
    base = Case(
        features=FEATURES,
        weight_values=UNIFORM,
        gradient_values=UNIFORM,
        state_values=UNIFORM,
        steps=(Step(), Step(shift=1, learning_rate=0.25)),
    )
    return msgspec.structs.replace(base, **changes)


@pytest.fixture(params=["torch:cuda", "fbgemm-cuda"])
def backend(request: pytest.FixtureRequest) -> Backend:
    try:
        return registry.build(request.param)
    except BackendUnavailable as error:
        pytest.skip(str(error))


def tensors(outcome: Outcome) -> Iterator[AnyArray]:
    for result in outcome.results:
        if isinstance(result, Forward):
            yield result.output
        else:
            yield from (*result.after.tables, *result.after.momentum1, *result.after.momentum2)
            if result.weight_gradient is not None:
                yield result.weight_gradient


def agree(backend: Backend, asked: Case) -> None:
    """Every tensor as plain PyTorch has it on the CPU, where streams and graphs are plain steps."""
    assert backend.supports(asked), backend.supports(asked).reason
    problem = materialise(asked)
    found = backend.run(problem)
    assert found.raised is None, found.raised
    plain = Call.STEPS if asked.call in (Call.SIDE_STREAM, Call.GRAPH) else asked.call
    expected = registry.build("torch:cpu").run(materialise(msgspec.structs.replace(asked, call=plain)))
    pairs = list(zip(tensors(found), tensors(expected), strict=True))
    assert pairs
    for number, (actual, truth) in enumerate(pairs):
        assert (actual.dtype, actual.shape) == (truth.dtype, truth.shape), number
        dtype = next(d for d in DType if d.numpy == truth.dtype)
        narrow = 0.0 if dtype is DType.FP32 else 4 * dtype.info.unit_roundoff
        off = np.abs(actual.astype(float) - truth.astype(float)) / np.maximum(np.abs(truth.astype(float)), 1)
        assert off.size == 0 or off.max() <= ROUNDINGS * DType.FP32.info.unit_roundoff + narrow, number
    for guard in found.guards:
        assert guard.before.tobytes() == guard.after.tobytes(), guard.name
    for step, batch in enumerate(problem.batches):
        assert {name: a.tobytes() for name, a in batch.arrays} == {
            name: a.tobytes() for name, a in found.inputs_after[step].items()
        }


@pytest.mark.parametrize("kind", OptimizerKind)
@pytest.mark.parametrize("weights", [DType.FP32, DType.FP16])
def test_every_optimizer(backend: Backend, kind: OptimizerKind, weights: DType) -> None:
    optimizer = Optimizer(kind, eps=0.125, weight_decay=0.25 if "adam" in kind else 0.0, step=3)
    agree(backend, case(optimizer=optimizer, weights=weights, per_sample_weights=WEIGHTS, steps=(Step(),)))


@pytest.mark.parametrize("pooling", [Pooling.SUM, Pooling.MEAN])
@pytest.mark.parametrize("output", [DType.FP32, DType.FP16, DType.BF16])
def test_pooling_and_output(backend: Backend, pooling: Pooling, output: DType) -> None:
    if backend.name.startswith("fbgemm") and pooling is Pooling.MEAN and output is not DType.FP32:
        return  # FBGEMM rounds dY / L to 16 bits: a finding
    agree(backend, case(pooling=pooling, output=output, steps=(Step(),)))


@pytest.mark.parametrize("call", Call)
@pytest.mark.parametrize("kind", [OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.ADAM])
def test_every_program_of_calls(backend: Backend, kind: OptimizerKind, call: Call) -> None:
    asked = case(call=call, optimizer=Optimizer(kind, eps=0.125, step=2), per_sample_weights=WEIGHTS)
    if call is Call.GRAPH and backend.name.startswith("torch"):
        assert not backend.supports(asked)
        return
    agree(backend, asked)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("indices", IndexType)
def test_layouts(backend: Backend, indices: IndexType, layout: Layout) -> None:
    gradient_only = layout in (Layout.EXPANDED, Layout.TRANSPOSED)
    layouts = Layouts(gradient=layout) if gradient_only else Layouts(layout, layout, layout, layout)
    agree(
        backend,
        case(layouts=layouts, indices=indices, per_sample_weights=msgspec.structs.replace(WEIGHTS, dtype=DType.FP16)),
    )


@dataclass
class Capturable:
    """SGD on one table, unpooled, in operations that a graph can hold; the rate is read when it is captured."""

    problem: Problem
    table: torch.Tensor
    rate: float = 0.0
    forwards: int = 0

    @property
    def device(self) -> torch.device:
        return self.table.device

    def load(self, snapshot: Snapshot, step: int) -> None:
        self.table.copy_(to_torch(snapshot.tables[0]))

    def set_learning_rate(self, rate: float) -> None:
        self.rate = rate

    def forward(self, inputs: Inputs) -> Captured:
        self.forwards += 1
        return Captured(self, inputs.indices, self.table.index_select(0, inputs.indices))

    def warnings(self) -> int | None:
        return None

    def snapshot(self) -> Snapshot:
        return Snapshot((to_numpy(self.table),))

    def restored(self) -> Self:
        return self

    def guards(self) -> tuple[Guard, ...]:
        return ()


@dataclass
class Captured:
    system: Capturable
    indices: torch.Tensor
    output: torch.Tensor

    def backward(self, gradient: torch.Tensor, retain: bool) -> torch.Tensor | None:
        self.system.table.index_add_(0, self.indices, gradient, alpha=-self.system.rate)
        return None


@pytest.mark.parametrize("call", [Call.STEPS, Call.SIDE_STREAM, Call.GRAPH])
def test_a_graph_updates_once(call: Call) -> None:
    """Warm-up leaves nothing behind, capture executes nothing, and the replay uses the step's own rate."""
    whole = Values(Regime.INTEGERS, magnitude=8)
    asked = case(features=FEATURES[:1], pooling=Pooling.NONE, call=call, weight_values=whole, gradient_values=whole)
    problem = materialise(asked)
    system = Capturable(problem, to_torch(problem.initial.tables[0]).cuda())
    found = list(tensors(drive(problem, system)))
    plain = msgspec.structs.replace(asked, call=Call.STEPS)
    expected = list(tensors(registry.build("torch:cpu").run(materialise(plain))))
    for actual, truth in zip(found, expected, strict=True):
        np.testing.assert_array_equal(actual, truth)
    assert system.forwards == (4 if call is Call.GRAPH else 2)
