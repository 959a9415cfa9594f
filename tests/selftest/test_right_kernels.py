"""Simulated kernels that are right by construction are never blamed, and come close to what the bounds allow.

The quick part runs with every test; `pytest -m soak tests/selftest/test_right_kernels.py` judges 100,000 and more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from equivcheck.arithmetic import Arithmetic, MeanDivision, Store, StoreRounding
from equivcheck.case import (
    Bag,
    Case,
    Decay,
    Feature,
    Lookup,
    Optimizer,
    OptimizerKind,
    PerSampleWeights,
    Place,
    Poison,
    Pooling,
    Regime,
    Special,
    Values,
)
from equivcheck.compare import judge
from equivcheck.formats import AnyArray, DType, Float64Array, widen
from equivcheck.oracle import Bounds, ForwardExpectation, UpdateExpectation, expect
from equivcheck.outcome import Forward, Update
from equivcheck.problem import Problem, materialise
from equivcheck.verdict import Status, Tensor
from strategies import Menu, choices, random_case
from tests.selftest.simulated.kernel import Kernel, MeanForm, Style
from tests.selftest.simulated.steps import CorrectionForm, Forms, MeanSquareForm, SquareForm, StepForm
from tests.selftest.simulated.styles import SMALL, random_case_for, random_style, scrambled
from tests.selftest.simulated.sums import Order

STYLES = 3
"""Kernels that each case is judged with."""


def from_menu(menu: Menu) -> Callable[[int], Problem]:
    """Problems of a menu, by seed."""
    return lambda seed: materialise(random_case(seed, SMALL, menu))


SOURCES: dict[str, Callable[[int], Problem]] = {
    "any values": lambda seed: materialise(random_case_for(seed)),
    "values of all magnitudes": lambda seed: scrambled(materialise(random_case_for(seed)), seed),
    "exact": from_menu(choices.EXACT),
    "optimizers": from_menu(choices.OPTIMIZER),
    "not finite": from_menu(choices.NONFINITE),
}


def blamed(make: Callable[[int], Problem], seeds: range) -> list[str]:
    """What is wrong with right kernels: nothing."""
    found = []
    for seed in seeds:
        problem = make(seed)
        for number in range(STYLES):
            kernel = Kernel(random_style(problem.case, seed * STYLES + number))
            verdict = judge(problem, kernel.arithmetic(problem.case), kernel.run(problem))
            if verdict.status is Status.FAILED:
                found.append(f"seed {seed}, style {seed * STYLES + number}: {verdict.discrepancies[0]}")
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_right_kernels_are_not_blamed(source: str) -> None:
    assert blamed(SOURCES[source], range(120)) == []


def test_a_store_may_flush_numbers_of_its_own_type() -> None:
    """fp32 is stored as fp32: nothing is rounded, but a subnormal output, row or dL/dp may become zero."""
    subnormal, flush = Values(Regime.SUBNORMAL), Store(flushes=True)
    weights = PerSampleWeights(gradient=True, values=Values(Regime.CONSTANT))
    problem = one_bag([[2.0**-130, 1.0]], 1, per_sample_weights=weights, gradient_values=subnormal)
    style = Style(output_store=flush, weight_gradient_store=flush, table_store=flush)
    verdict = judge(problem, Kernel(style).arithmetic(problem.case), Kernel(style).run(problem))
    assert verdict.status is not Status.FAILED
    assert judge(problem, Arithmetic(), Kernel(style).run(problem)).status is Status.FAILED


def test_the_weight_gradient_has_a_store_of_its_own() -> None:
    """The output is truncated to fp16, dL/dp rounded to nearest; and the other way round."""
    weights = PerSampleWeights(DType.FP16, gradient=True, values=Values(Regime.CONSTANT))
    smooth = Values(Regime.UNIFORM)
    problem = one_bag(
        [[1.0 + 2.0**-11 * 1.5] * 8], 1, output=DType.FP16, per_sample_weights=weights, gradient_values=smooth
    )
    truncating = Store(StoreRounding.TRUNCATE)
    for style in (Style(output_store=truncating), Style(weight_gradient_store=truncating)):
        kernel = Kernel(style)
        declared, outcome = kernel.arithmetic(problem.case), kernel.run(problem)
        assert judge(problem, declared, outcome).status is not Status.FAILED
        exchanged = replace(
            declared, output_store=declared.weight_gradient_store, weight_gradient_store=declared.output_store
        )
        assert judge(problem, exchanged, outcome).status is Status.FAILED


@pytest.mark.parametrize("kind", [OptimizerKind.ROWWISE_ADAGRAD, OptimizerKind.PARTIAL_ROWWISE_ADAM])
@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("exponent", [-72, -70, -66, -60])
def test_squares_may_be_divided_before_they_are_summed(kind: OptimizerKind, flushes: bool, exponent: int) -> None:
    """sum(G^2 / D): each quotient underflows, where that of sum(G^2) / D underflows once."""
    case = Case(
        features=(Feature(rows=16, dim=64, bags=tuple(Bag((Lookup(row),)) for row in range(16))),),
        gradient_values=Values(Regime.SAME_SIGN, 1, exponent),
        optimizer=Optimizer(kind, eps=2.0**-10),
    )
    problem = materialise(case)
    kernel = Kernel(Style(forms=Forms(mean_square=MeanSquareForm.FIRST), step_flushes=flushes))
    verdict = judge(problem, kernel.arithmetic(case), kernel.run(problem))
    assert verdict.status is not Status.FAILED, verdict.discrepancies[0]


@pytest.mark.parametrize(("beta1", "status"), [(0.5, Status.PASSED), (0.75, Status.FAILED)])
def test_lerp_may_meet_an_infinite_gradient(beta1: float, status: Status) -> None:
    """torch.lerp is G - b1 (G - m) up to b1 = 1/2: a first moment of NaN, where the formula has infinity."""
    case = Case(
        features=(Feature(rows=8, dim=4, bags=tuple(Bag((Lookup(row),)) for row in range(8))),),
        optimizer=Optimizer(OptimizerKind.ADAM, beta1=beta1),
        poison=(Poison(Place.GRADIENT, Special.INF),),
    )
    problem = materialise(case)
    outcome = Kernel().run(problem)
    forward, update = outcome.results
    assert isinstance(update, Update)
    moment = update.after.momentum1[0].copy()
    assert np.isinf(moment).sum() == 1
    moment[np.isinf(moment)] = np.nan
    after = replace(update.after, momentum1=(moment,))
    verdict = judge(problem, Arithmetic(), replace(outcome, results=(forward, replace(update, after=after))))
    assert verdict.status is status


@pytest.mark.soak
@pytest.mark.parametrize("part", range(70))
@pytest.mark.parametrize("source", SOURCES)
def test_many_right_kernels_are_not_blamed(source: str, part: int) -> None:
    """5 sources, 70 parts, 100 cases, 3 kernels: 105,000."""
    assert blamed(SOURCES[source], range(1000 + 100 * part, 1100 + 100 * part)) == []


# How close right kernels come: the worst order on the worst data for sums, all forms together for updates.
def one_bag(rows: list[list[float]], lookups: int, **fields: object) -> Problem:
    """One bag that looks up each row once, with the rows' values given."""
    table = np.asarray(rows, np.float32)
    bags = (Bag(tuple(Lookup(row) for row in range(lookups))),)
    case = Case(features=(Feature(rows=len(rows), dim=len(rows[0]), bags=bags),), **fields)  # type: ignore[arg-type]
    problem = materialise(case)
    return replace(problem, initial=replace(problem.initial, tables=(table.astype(case.weights.numpy),)))


def worst_ratio(problem: Problem, style: Style, tensor: Tensor) -> float:
    """Worst error as a share of its bound."""
    kernel = Kernel(style)
    verdict = judge(problem, kernel.arithmetic(problem.case), kernel.run(problem))
    assert verdict.status is not Status.FAILED
    return next(report.worst_ratio for report in verdict.reports if report.tensor is tensor)


@pytest.mark.parametrize("length", [2, 8, 100, 3000])
def test_the_bound_of_a_sum_is_reached(length: int) -> None:
    """1 + u + u + ...: each addition is a tie that loses u, the sum of |terms| is hardly more than 1."""
    u = 2.0**-24
    problem = one_bag([[1.0], *[[u]] * (length - 1)], length)
    ratio = worst_ratio(problem, Style(order=Order.LARGEST), Tensor.OUTPUT)
    assert ratio > 0.97


def test_the_bound_of_a_product_is_reached() -> None:
    """(1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 lies in the middle of two numbers."""
    weights = PerSampleWeights(values=Values(Regime.CONSTANT, 4097 - 1, -12))
    problem = one_bag([[1 + 2.0**-12]], 1, per_sample_weights=weights)
    batch = replace(problem.batches[0], per_sample_weights=np.asarray([1 + 2.0**-12], np.float32))
    assert worst_ratio(replace(problem, batches=(batch,)), Style(), Tensor.OUTPUT) > 0.97


def test_the_bound_of_a_mean_is_approached() -> None:
    """Two additions, and a division or two roundings, each at its worst at once: searched among 4,000 sums of three."""
    rng = np.random.default_rng(1)
    problem = one_bag((1 + rng.random((3, 4000))).tolist(), 3, pooling=Pooling.MEAN)
    greedy = Style(order=Order.GREEDY)
    divides = replace(greedy, mean_division=MeanDivision.DIVISION)
    assert worst_ratio(problem, replace(divides, mean=MeanForm.WEIGHT), Tensor.OUTPUT) > 0.7
    assert worst_ratio(problem, divides, Tensor.OUTPUT) > 0.6
    assert worst_ratio(problem, greedy, Tensor.OUTPUT) > 0.55


def test_the_bound_of_a_mean_square_is_reached() -> None:
    """G = 1, 2^-12, 2^-12, ...: squares are 1 and u, and each addition loses u."""
    bags = (Bag((Lookup(0),)),)
    optimizer = Optimizer(OptimizerKind.ROWWISE_ADAGRAD)
    problem = materialise(Case(features=(Feature(rows=1, dim=64, bags=bags),), optimizer=optimizer))
    gradient = np.full((1, 64), 2.0**-12, np.float32)
    gradient[0, 0] = 1.0
    problem = replace(problem, batches=(replace(problem.batches[0], grad_output=gradient),))
    assert worst_ratio(problem, Style(order=Order.LARGEST), Tensor.MOMENTUM1) > 0.97


def test_the_bound_of_a_run_is_reached() -> None:
    """Gradient 1, u, u, ... of one row; SGD with a rate of one leaves -G in a row of zeros."""
    count, u = 64, 2.0**-24
    bags = tuple(Bag((Lookup(0),)) for _ in range(count))
    case = Case(
        features=(Feature(rows=1, dim=1, bags=bags),),
        optimizer=Optimizer(learning_rate=1.0),
        weight_values=Values(Regime.ZEROS),
    )
    problem = materialise(case)
    gradient = np.full((count, 1), u, np.float32)
    gradient[0] = 1.0
    problem = replace(problem, batches=(replace(problem.batches[0], grad_output=gradient),))
    assert worst_ratio(problem, Style(order=Order.LARGEST), Tensor.ROWS) > 0.97


def test_the_bound_of_a_weight_gradient_is_reached() -> None:
    weights = PerSampleWeights(gradient=True, values=Values(Regime.CONSTANT))
    u = 2.0**-24
    problem = one_bag([[1.0, *[u] * 15]], 1, per_sample_weights=weights, weights=DType.BF16, output=DType.BF16)
    batch = replace(problem.batches[0], grad_output=np.ones((1, 16)).astype(DType.BF16.numpy))
    problem = replace(problem, batches=(batch,))
    assert worst_ratio(problem, Style(order=Order.LARGEST), Tensor.WEIGHT_GRADIENT) > 0.97


OPTIMIZERS = (
    Optimizer(),
    Optimizer(OptimizerKind.ROWWISE_ADAGRAD, 0.125, 2.0**-10),
    Optimizer(OptimizerKind.ROWWISE_ADAGRAD, 0.125, 2.0**-10, decay=Decay.L2, weight_decay=0.125),
    Optimizer(OptimizerKind.ROWWISE_ADAGRAD, 0.125, 2.0**-10, decay=Decay.DECOUPLED, weight_decay=0.125),
    Optimizer(OptimizerKind.ADAGRAD, 0.125, 2.0**-10),
    Optimizer(OptimizerKind.ADAM, 0.125, 2.0**-10, step=3),
    Optimizer(OptimizerKind.ADAM, 0.125, 2.0**-10, step=3, weight_decay=0.125),
    Optimizer(OptimizerKind.PARTIAL_ROWWISE_ADAM, 0.125, 2.0**-10, step=3),
)


def optimizer_problem(optimizer: Optimizer, seed: int = 1) -> Problem:
    """Smooth values, single lookups: what is not exact comes from the update alone."""
    bags = tuple(Bag((Lookup(row),)) for row in range(40))
    smooth = Values(Regime.UNIFORM)
    return materialise(
        Case(
            features=(Feature(rows=40, dim=24, bags=bags),),
            optimizer=optimizer,
            weight_values=smooth,
            gradient_values=smooth,
            state_values=smooth,
            seed=seed,
        )
    )


def blocks(problem: Problem, arithmetic: Arithmetic) -> Iterator[tuple[Tensor, Bounds]]:
    """Bounds of the first update."""
    expected = expect(problem, arithmetic).calls[1]
    assert isinstance(expected, UpdateExpectation)
    table = expected.tables[0]
    for tensor, bounds in (
        (Tensor.ROWS, table.rows),
        (Tensor.MOMENTUM1, table.momentum1),
        (Tensor.MOMENTUM2, table.momentum2),
    ):
        if bounds is not None:
            yield tensor, bounds


def filled(problem: Problem, kernels: int) -> dict[Tensor, Float64Array]:
    """How much of each interval before its store all kernels together fill, from 0 to 1; their errors are declared."""
    lows: dict[Tensor, Float64Array] = {}
    highs: dict[Tensor, Float64Array] = {}
    arithmetic = None
    for seed in range(kernels):
        style = replace(
            random_style(problem.case, seed + 1),
            accumulator=DType.FP32,
            gradient_rounding=None,
            sum_flushes=False,
            step_flushes=False,
            wide_update=False,
            division=4.0,
            square_root=6.0,
        )
        kernel = Kernel(replace(style, output_store=Style().output_store, table_store=Style().table_store))
        arithmetic = arithmetic or kernel.arithmetic(problem.case)
        outcome = kernel.run(problem)
        update = outcome.results[1]
        assert isinstance(update, Update)
        arrays: dict[Tensor, tuple[AnyArray, ...]] = {
            Tensor.ROWS: update.after.tables,
            Tensor.MOMENTUM1: update.after.momentum1,
            Tensor.MOMENTUM2: update.after.momentum2,
        }
        for tensor, parts in arrays.items():
            if parts:
                values = widen(parts[0])
                lows[tensor] = np.minimum(lows.get(tensor, values), values)
                highs[tensor] = np.maximum(highs.get(tensor, values), values)
    assert arithmetic is not None
    result = {}
    for tensor, bounds in blocks(problem, arithmetic):
        spread = (highs[tensor] - lows[tensor]).reshape(bounds.value.shape)
        width = bounds.allowed.high - bounds.allowed.low
        result[tensor] = np.where(width > 0, spread / np.where(width > 0, width, 1.0), 1.0)
    return result


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: f"{o.kind.name}-{o.decay}-{o.weight_decay}")
def test_updates_fill_their_intervals(optimizer: Optimizer) -> None:
    """All forms and errors together reach half of what is allowed and more, and a quarter on an average.

    Means of squares of smooth data stay far below their bound, which is for the worst data (see above).
    """
    shares = filled(optimizer_problem(optimizer), 60)
    if optimizer.kind is OptimizerKind.ROWWISE_ADAGRAD:
        shares.pop(Tensor.MOMENTUM1)
    for tensor, share in shares.items():
        assert share.max() > 0.5, tensor
        assert share.mean() > (0.1 if tensor is Tensor.MOMENTUM2 else 0.2), tensor


def test_the_attack_reaches_every_tensor() -> None:
    """Judged elements of each tensor, hundreds of them by a bound, few undetermined: the attack is not vacuous."""
    judged: dict[Tensor, list[int]] = {}
    for seed in range(90):
        problem = SOURCES["any values"](seed)
        kernel = Kernel(random_style(problem.case, seed))
        for report in judge(problem, kernel.arithmetic(problem.case), kernel.run(problem)).reports:
            counts = judged.setdefault(report.tensor, [0, 0, 0])
            for place, count in enumerate((report.judged, report.exact, report.undetermined)):
                counts[place] += count
    for tensor in (Tensor.OUTPUT, Tensor.ROWS, Tensor.MOMENTUM1, Tensor.MOMENTUM2, Tensor.WEIGHT_GRADIENT):
        total, exact, undetermined = judged[tensor]
        assert total - exact > (50 if tensor is Tensor.WEIGHT_GRADIENT else 300), tensor
        assert undetermined < total / 3, tensor


def test_kernels_of_one_problem_differ() -> None:
    """Orders, forms and errors lead to other bits: there is something to judge."""
    problem = optimizer_problem(OPTIMIZERS[2])
    seen = set()
    for seed in range(12):
        forward, update = Kernel(random_style(problem.case, seed)).run(problem).results
        assert isinstance(forward, Forward)
        assert isinstance(update, Update)
        seen.add(update.after.tables[0].tobytes())
    assert len(seen) > 6
    assert isinstance(expect(problem, Arithmetic()).calls[0], ForwardExpectation)


# One form may be exact where another rounds.
def one_row(optimizer: Optimizer, gradient: list[float], moment: list[float]) -> Problem:
    """One row of ones, its gradient, and its second moment (Adagrad: its sum)."""
    count = len(gradient)
    problem = materialise(
        Case(
            features=(Feature(rows=1, dim=count, bags=(Bag((Lookup(0),)),)),),
            optimizer=optimizer,
            weight_values=Values(Regime.ZEROS),
        )
    )
    state = np.asarray([moment], np.float32)
    changed = {"momentum2" if optimizer.is_adam else "momentum1": (state,)}
    initial = replace(problem.initial, **changed)
    batch = replace(problem.batches[0], grad_output=np.asarray([gradient], np.float32))
    return replace(problem, initial=initial, batches=(batch,))


PARTS = [part / 128 for part in range(1, 256)]
UP_TO_ONE = PARTS[:128]
NO_THIRDS = [part / 128 for part in range(1, 256) if part % 3]
"""Their squares, like 49, leave one when 3 divides them."""
BY_CHANCE = {
    "lr / d = 7 / 7, but lr (G / 7)": one_row(
        Optimizer(OptimizerKind.ADAGRAD, 7.0), PARTS, [49 - g * g for g in PARTS]
    ),
    "(lr G) / 5 beside (lr / 5) G and lr (G / 5)": one_row(
        Optimizer(OptimizerKind.ADAGRAD, float(np.float32(0.3))), PARTS, [25 - g * g for g in PARTS]
    ),
    "m / d = 1, but (lr / d) m": one_row(Optimizer(OptimizerKind.ADAM, beta1=0.0, beta2=0.0), PARTS, [0.0] * 255),
    "G G is exact, but not (1-b) G": one_row(
        Optimizer(OptimizerKind.ADAM, beta2=float(np.float32(0.3))), PARTS, [2.0] * 255
    ),
    "lr / d = 7 / 7, but lr (m / 7)": one_row(
        Optimizer(OptimizerKind.ADAM, 7.0, beta1=0.0, beta2=0.75), NO_THIRDS, [(49 - g * g) / 3 for g in NO_THIRDS]
    ),
    "m / c = 3 p and lr / d = 3 / 3, but not lr / c": one_row(
        Optimizer(OptimizerKind.ADAM, 3.0, beta1=0.375, beta2=0.75),
        [3 * p for p in UP_TO_ONE],
        [3 * (1 - p * p) for p in UP_TO_ONE],
    ),
}


@pytest.mark.parametrize("name", BY_CHANCE)
def test_forms_that_are_exact_by_chance(name: str) -> None:
    problem = BY_CHANCE[name]
    states = set()
    for step, square, correction in product(StepForm, SquareForm, CorrectionForm):
        kernel = Kernel(Style(forms=Forms(step=step, square=square, correction=correction), power=0.0))
        outcome = kernel.run(problem)
        assert judge(problem, kernel.arithmetic(problem.case), outcome).status is not Status.FAILED
        update = outcome.results[1]
        assert isinstance(update, Update)
        arrays = (*update.after.tables, *update.after.momentum1, *update.after.momentum2)
        states.add(b"".join(array.tobytes() for array in arrays))
    assert len(states) > 1
