"""The oracle's values: against exact rational arithmetic, PyTorch's autograd in fp64, and examples worked by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from equivcheck.arithmetic import Arithmetic
from equivcheck.case import (
    Bag,
    BoundsCheck,
    Case,
    Decay,
    Feature,
    Lookup,
    Optimizer,
    OptimizerKind,
    PerSampleWeights,
    Pooling,
    Regime,
    Values,
)
from equivcheck.formats import DType, Float64Array, nearest, widen
from equivcheck.oracle import Bounds, ForwardExpectation, UpdateExpectation, expect
from equivcheck.problem import Batch, Problem, materialise, split_by_feature
from strategies import choices, random_case
from tests.selftest.simulated.styles import SMALL, replace_fields

BAGS = (Bag((Lookup(1), Lookup(2, 2))), Bag(), Bag((Lookup(0), Lookup(1), Lookup(3))))


def first_step(problem: Problem) -> tuple[ForwardExpectation, UpdateExpectation]:
    """Expectation of the first forward and backward."""
    forward, update = expect(problem, Arithmetic(), [problem.initial] * 2).calls[:2]
    assert isinstance(forward, ForwardExpectation)
    assert isinstance(update, UpdateExpectation)
    return forward, update


def example(**fields: object) -> Problem:
    """A table of four rows and two columns, three bags; one of them empty, one with a duplicate."""
    features = (Feature(rows=4, dim=2, bags=BAGS),)
    return materialise(Case(features=features, **fields))  # type: ignore[arg-type]


# Exact rational arithmetic
def exact_outputs(problem: Problem, batch: Batch) -> list[list[Fraction]]:
    """Output of the single feature, bag by bag."""
    result = []
    for bag in range(batch.bags[0]):
        start, stop = batch.offsets[bag], batch.offsets[bag + 1]
        total = [Fraction(0)] * problem.dims[0]
        for i in range(start, stop):
            weight = Fraction(1) if batch.per_sample_weights is None else Fraction(float(batch.per_sample_weights[i]))
            row = problem.initial.tables[0][batch.indices[i]]
            total = [t + weight * Fraction(float(x)) for t, x in zip(total, row, strict=True)]
        divisor = stop - start if problem.case.pooling is Pooling.MEAN and stop > start else 1
        result.append([t / int(divisor) for t in total])
    return result


def exact_gradients(problem: Problem, batch: Batch) -> dict[int, list[Fraction]]:
    """G of each named row."""
    result: dict[int, list[Fraction]] = {}
    for bag in range(batch.bags[0]):
        start, stop = batch.offsets[bag], batch.offsets[bag + 1]
        for i in range(start, stop):
            weight = Fraction(1) if batch.per_sample_weights is None else Fraction(float(batch.per_sample_weights[i]))
            if problem.case.pooling is Pooling.MEAN:
                weight /= int(stop - start)
            old = result.get(int(batch.indices[i]), [Fraction(0)] * problem.dims[0])
            upstream = [Fraction(float(g)) for g in batch.grad_output[bag]]
            result[int(batch.indices[i])] = [o + weight * g for o, g in zip(old, upstream, strict=True)]
    return result


def close(fast: Float64Array, exact: list[list[Fraction]], gauge: float) -> None:
    """Within fp64's own roundings."""
    for row, expected in zip(fast, exact, strict=True):
        for found, value in zip(row, expected, strict=True):
            assert abs(Fraction(float(found)) - value) <= Fraction(gauge) * Fraction(2) ** -48


@pytest.mark.parametrize("pooling", [Pooling.SUM, Pooling.MEAN])
@pytest.mark.parametrize("weighted", [None, DType.FP16, DType.FP32])
@pytest.mark.parametrize("seed", range(5))
def test_outputs_and_sgd_against_fractions(pooling: Pooling, weighted: DType | None, seed: int) -> None:
    uniform = Values(Regime.UNIFORM)
    weights = None if weighted is None else PerSampleWeights(weighted, uniform, gradient=True)
    problem = example(
        pooling=pooling, per_sample_weights=weights, weight_values=uniform, gradient_values=uniform, seed=seed
    )
    batch = problem.batches[0]
    forward, update = first_step(problem)
    close(forward.outputs[0].value, exact_outputs(problem, batch), 8.0)
    gradients = exact_gradients(problem, batch)
    rate = Fraction(batch.learning_rate)
    table = update.tables[0]
    rows = [
        [Fraction(float(w)) - rate * g for w, g in zip(problem.initial.tables[0][row], gradients[row], strict=True)]
        for row in sorted(gradients)
    ]
    assert table.touched.tolist() == sorted(gradients)
    close(table.rows.value, rows, 8.0)
    # And what is allowed holds the exact value, rounded once.
    for bounds, exact in ((forward.outputs[0], exact_outputs(problem, batch)), (table.rows, rows)):
        rounded = nearest(np.asarray([[float(x) for x in row] for row in exact]), bounds.dtype)
        assert ((bounds.allowed.low <= rounded) & (rounded <= bounds.allowed.high)).all()


@pytest.mark.parametrize("decay", [Decay.NONE, Decay.DECOUPLED])
def test_row_wise_moment_against_fractions(decay: Decay) -> None:
    uniform = Values(Regime.UNIFORM)
    optimizer = Optimizer(
        OptimizerKind.ROWWISE_ADAGRAD, decay=decay, weight_decay=0.125 if decay is Decay.DECOUPLED else 0.0
    )
    problem = example(optimizer=optimizer, weight_values=uniform, gradient_values=uniform, state_values=uniform)
    _, update = first_step(problem)
    gradients = exact_gradients(problem, problem.batches[0])
    moments = [
        [Fraction(float(problem.initial.momentum1[0][row])) + sum((g * g for g in gradients[row]), Fraction(0)) / 2]
        for row in sorted(gradients)
    ]
    assert update.tables[0].momentum1 is not None
    close(update.tables[0].momentum1.value, moments, 8.0)


# PyTorch's autograd in fp64
def _torch_step(problem: Problem) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor | None]:
    """Outputs, gradients of the tables, and of the weights, by `embedding_bag` and autograd."""
    batch, case = problem.batches[0], problem.case
    tables = [torch.tensor(widen(t), requires_grad=True) for t in problem.initial.tables]
    weights = None
    if batch.per_sample_weights is not None:
        weights = torch.tensor(widen(batch.per_sample_weights), requires_grad=True)
    outputs = []
    first = np.cumsum([0, *batch.bags])
    for feature, table in enumerate(problem.feature_tables):
        offsets = torch.tensor(batch.offsets[first[feature] : first[feature + 1] + 1].astype(np.int64))
        start, stop = int(offsets[0]), int(offsets[-1])
        pooled = torch.nn.functional.embedding_bag(
            torch.tensor(batch.indices[start:stop].astype(np.int64)),
            tables[table],
            offsets - start,
            mode="sum",
            per_sample_weights=None if weights is None else weights[start:stop],
            include_last_offset=True,
        )
        if case.pooling is Pooling.MEAN:
            pooled = pooled / (offsets[1:] - offsets[:-1]).clamp(min=1)[:, None]
        outputs.append(pooled)
    upstream = split_by_feature(batch.grad_output, problem, batch)
    loss = torch.stack([(o * torch.tensor(widen(g))).sum() for o, g in zip(outputs, upstream, strict=True)]).sum()
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = [torch.zeros_like(t) if t.grad is None else t.grad for t in tables]
    return outputs, gradients, None if weights is None else weights.grad


@pytest.mark.parametrize("menu", [choices.WEIGHTS, choices.SHARING, choices.VBE, choices.POOLING], ids=lambda m: m.name)
def test_against_autograd(menu: object) -> None:
    compared = 0
    for seed in range(40):
        case = random_case(seed, SMALL, menu)  # type: ignore[arg-type]
        case = replace_fields(
            case,
            optimizer=Optimizer(learning_rate=0.5),
            weight_values=Values(Regime.NORMAL),
            gradient_values=Values(Regime.NORMAL),
            bad_indices=(),
            bad_offsets=(),
            bounds_check=BoundsCheck.NONE,
            poison=(),
        )
        if case.pooling is Pooling.NONE or any(rows == 0 for rows, _ in case.table_shapes):
            continue
        problem = materialise(case)
        forward, update = first_step(problem)
        outputs, gradients, of_weights = _torch_step(problem)
        for bounds, output in zip(forward.outputs, outputs, strict=True):
            np.testing.assert_allclose(bounds.value, output.detach().numpy(), rtol=1e-11, atol=1e-11)
        for table, gradient, weights in zip(update.tables, gradients, problem.initial.tables, strict=True):
            expected = widen(weights) - 0.5 * gradient.numpy()
            np.testing.assert_allclose(table.rows.value, expected[table.touched], rtol=1e-11, atol=1e-11)
        if update.weight_gradient is not None and of_weights is not None and not any(problem.frozen):
            found = update.weight_gradient.value[:, 0]
            np.testing.assert_allclose(found, of_weights.numpy(), rtol=1e-11, atol=1e-11)
        compared += 1
    assert compared > 20


# By hand
def rows_of(bounds: Bounds | None) -> list[list[float]]:
    assert bounds is not None
    return [[float(x) for x in row] for row in bounds.value]


ONE = Values(Regime.CONSTANT)
"""All values 1."""


def test_sum_by_hand() -> None:
    forward, update = first_step(example(weight_values=ONE, gradient_values=ONE))
    assert rows_of(forward.outputs[0]) == [[3, 3], [0, 0], [3, 3]]
    # Rows 0 and 3 once; row 1 in two bags; row 2 twice. The rate is 1/2.
    assert rows_of(update.tables[0].rows) == [[0.5, 0.5], [0, 0], [0, 0], [0.5, 0.5]]
    assert update.tables[0].rows.exact.all()
    assert forward.outputs[0].exact.all()


def test_mean_by_hand() -> None:
    forward, update = first_step(example(weight_values=ONE, gradient_values=ONE, pooling=Pooling.MEAN))
    assert rows_of(forward.outputs[0]) == [[1, 1], [0, 0], [1, 1]]
    found = np.asarray(rows_of(update.tables[0].rows))[:, 0]
    np.testing.assert_allclose(found, [1 - 1 / 6, 1 - 2 / 6, 1 - 2 / 6, 1 - 1 / 6])


def test_weight_gradient_by_hand() -> None:
    weights = PerSampleWeights(values=Values(Regime.CONSTANT, 3), gradient=True)
    two = Values(Regime.CONSTANT, 2)
    forward, update = first_step(example(weight_values=two, gradient_values=ONE, per_sample_weights=weights))
    assert rows_of(forward.outputs[0]) == [[18, 18], [0, 0], [18, 18]]
    assert update.weight_gradient is not None
    assert update.weight_gradient.value[:, 0].tolist() == [4.0] * 6  # <(2, 2), (1, 1)>, without the weight 3


def test_row_wise_adagrad_by_hand() -> None:
    """m = 3 + mean(1, 1) = 4 in rows looked up once; m = 3 + 4 = 7 where the run is 2. w = 1 - 1/2 / sqrt(m) G."""
    optimizer = Optimizer(OptimizerKind.ROWWISE_ADAGRAD)
    state = Values(Regime.CONSTANT, 3)
    _, update = first_step(example(weight_values=ONE, gradient_values=ONE, state_values=state, optimizer=optimizer))
    table = update.tables[0]
    assert rows_of(table.momentum1) == [[4], [7], [7], [4]]
    assert rows_of(table.rows)[0] == [0.75, 0.75]
    np.testing.assert_allclose(rows_of(table.rows)[1], [1 - 1 / np.sqrt(7)] * 2)
    assert table.rows.exact[[0, 3]].all()  # the root and the division are exact
    assert not table.rows.exact[[1, 2]].any()


def test_decay_by_hand() -> None:
    """wd = 1/2, lr = 1/2, w = 1, G = 1: L2 has G + wd w = 3/2 in the moment; decoupled 1 - 1/4 of w is kept."""
    fields = {"weight_values": ONE, "gradient_values": ONE, "state_values": Values(Regime.ZEROS)}
    for decay, moment, row in (
        (Decay.L2, 9 / 4, (1 - (0.5 / 1.5) * 0.5) - 0.5 / 1.5),
        (Decay.DECOUPLED, 1.0, 0.75 - 0.5),
    ):
        optimizer = Optimizer(OptimizerKind.ROWWISE_ADAGRAD, decay=decay, weight_decay=0.5)
        _, update = first_step(example(optimizer=optimizer, **fields))
        assert rows_of(update.tables[0].momentum1)[0] == [moment]
        np.testing.assert_allclose(rows_of(update.tables[0].rows)[0], [row, row])


def test_adam_by_hand() -> None:
    """t = 1 from zero moments: the bias-corrected moments are G and G^2, the direction G / |G| = 1."""
    optimizer = Optimizer(OptimizerKind.ADAM)
    fields = {"weight_values": ONE, "gradient_values": ONE, "optimizer": optimizer}
    _, update = first_step(example(**fields))
    table = update.tables[0]
    assert rows_of(table.momentum1)[0] == [0.125, 0.125]
    assert rows_of(table.momentum2)[0] == [0.015625, 0.015625]
    np.testing.assert_allclose(rows_of(table.rows), 0.5)


def test_partial_row_wise_adam_has_one_second_moment_a_row() -> None:
    optimizer = Optimizer(OptimizerKind.PARTIAL_ROWWISE_ADAM)
    _, update = first_step(example(gradient_values=ONE, optimizer=optimizer))
    assert rows_of(update.tables[0].momentum2) == [[1 / 64], [4 / 64], [4 / 64], [1 / 64]]
