"""What is measured is what is judged: a prepared system computes what the adapter's run of the same case does."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from equivcheck.backends.layouts import to_numpy, to_torch
from equivcheck.backends.timed import Timed
from equivcheck.bench.point import Setting
from equivcheck.case import Case, Distribution, Feature, OptimizerKind, Regime, Traffic, Values
from equivcheck.formats import DType
from equivcheck.outcome import Forward, Update
from equivcheck.problem import materialise
from equivcheck.runner import Subject

SETTINGS = [
    Setting(),
    Setting(weighted=True),
    Setting(DType.FP32, DType.FP16, OptimizerKind.SGD),
    Setting(DType.FP32, DType.FP32, OptimizerKind.ADAGRAD),
]


def case_of(setting: Setting) -> Case:
    traffic = Traffic(6, 3, True, Distribution.ZIPF)
    features = (Feature(5, 8, traffic=traffic), Feature(20, 4, traffic=traffic))
    uniform = Values(Regime.UNIFORM)
    case = setting.case(features)
    return msgspec.structs.replace(case, weight_values=uniform, gradient_values=uniform)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.weights}-{s.output}-{s.optimizer}-{s.weighted}")
@pytest.mark.parametrize("name", ["torch:cpu", "fbgemm-cpu", "triton:cpu"])
def test_the_same_bits(name: str, setting: Setting) -> None:
    backend = Subject.load(name).backend
    assert isinstance(backend, Timed)
    case = case_of(setting)
    problem = materialise(case)
    judged = backend.run(problem).results
    prepared = backend.prepare(case)
    assert all(not bool(table.any()) for table in prepared.tables)
    with torch.no_grad():
        for table, values in zip(prepared.tables, problem.initial.tables, strict=True):
            table.copy_(to_torch(values))
    [batch] = problem.batches
    weights = None if batch.per_sample_weights is None else torch.from_numpy(batch.per_sample_weights.copy())
    tensors = (torch.from_numpy(batch.indices.copy()), torch.from_numpy(batch.offsets.copy()))
    pending = prepared.forward(*tensors, weights)
    output = to_numpy(pending.output)
    pending.backward(to_torch(batch.grad_output), retain=False)
    forward, update = judged
    assert isinstance(forward, Forward)
    assert isinstance(update, Update)
    assert np.array_equal(output, forward.output)
    for table, values in zip(prepared.tables, update.after.tables, strict=True):
        assert np.array_equal(to_numpy(table), values)


@pytest.mark.parametrize("name", ["torch:cpu", "fbgemm-cpu", "triton:cpu"])
def test_a_fresh_forward_has_a_full_backward(name: str) -> None:
    """A second step changes the tables again: nothing of the first one's is kept in its place."""
    backend = Subject.load(name).backend
    assert isinstance(backend, Timed)
    prepared = backend.prepare(case_of(Setting()))
    indices, offsets = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2, 3, 3])
    seen = []
    for _ in range(2):
        prepared.forward(indices, offsets, None).backward(torch.ones(2, 12), retain=True)
        seen.append(to_numpy(prepared.tables[0]).copy())
        indices.copy_(torch.tensor([3, 4, 2]))
    assert np.flatnonzero(seen[0].any(1)).tolist() == [0, 1]
    assert np.flatnonzero((seen[1] != seen[0]).any(1)).tolist() == [3, 4]


def test_what_says_nothing_is_not_timed() -> None:
    for name, reason in (("triton:cpu", "interpreter"), ("torch:cpu+inductor", "compiles its operations")):
        backend = Subject.load(name).backend
        assert isinstance(backend, Timed)
        assert reason in backend.timing().reason
