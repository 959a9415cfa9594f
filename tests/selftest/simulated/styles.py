"""Right kernels by the thousand: a style for a case from a seed, and cases small enough to judge thousands of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import msgspec
import numpy as np

from equivcheck.arithmetic import MeanDivision, Store, StoreRounding
from equivcheck.case import BoundsCheck, Case, Decay, Optimizer, OptimizerKind, Regime, Values
from equivcheck.formats import AnyArray, DType, store
from equivcheck.problem import Problem, Snapshot
from strategies import Budget, choices, random_case
from tests.selftest.simulated.kernel import MeanForm, Stochastic, Style
from tests.selftest.simulated.machine import Error
from tests.selftest.simulated.steps import (
    CorrectionForm,
    DecayForm,
    Forms,
    MeanSquareForm,
    MomentForm,
    SquareForm,
    StepForm,
)
from tests.selftest.simulated.sums import Order, Shape

T = TypeVar("T")

SMALL = Budget(work=2**10, tables=2**11, output=2**10)
"""A hundredth of a usual case: a bound does not care about size, and thousands of cases do."""


def random_style(case: Case, seed: int) -> Style:
    """A right kernel's style, of those that make sense for the case. Seed 0 is the plainest."""
    rng = np.random.default_rng(seed)

    def one(*options: T) -> T:
        return options[int(rng.integers(len(options)))]

    if seed == 0:
        return Style()
    accumulator = one(*(DType.FP32,) * 8, DType.FP64, DType.FP16 if case.weights is DType.FP16 else DType.FP32)
    shape = one(Shape.CHAIN, Shape.CHAIN, Shape.PAIRWISE, Shape.BLOCKED)
    if accumulator is DType.FP32:
        shape = one(shape, shape, shape, Shape.GROUPED, Shape.TENSOR_CORE)
    narrow_table, narrow_output = case.weights is not DType.FP32, case.output is not DType.FP32
    psw = case.per_sample_weights
    narrow_weight = psw is not None and psw.dtype is not DType.FP32
    flushes = one(False, False, False, True)
    erring = one(False, False, True)
    return Style(
        accumulator=accumulator,
        order=one(*Order),
        shape=shape,
        mean=one(*MeanForm),
        mean_division=one(*MeanDivision),
        sum_fused=one(False, True),
        sum_flushes=flushes and shape in (Shape.CHAIN, Shape.PAIRWISE, Shape.BLOCKED) and accumulator is DType.FP32,
        step_fused=one(False, True),
        step_flushes=flushes,
        division=one(2.0, 4.0) if erring else 1.0,
        square_root=one(2.0, 6.0) if erring else 1.0,
        error=one(*Error),
        forms=Forms(
            one(*StepForm),
            one(*DecayForm),
            one(*MomentForm),
            one(*SquareForm),
            one(*CorrectionForm),
            one(*MeanSquareForm),
        ),
        wide_update=accumulator is DType.FP64 and one(False, True),
        gradient_rounding=one(DType.FP16, DType.BF16) if one(*(False,) * 9, True) else None,
        output_store=_store(one, narrow_output),
        table_store=_store(one, narrow_table),
        stochastic=one(*Stochastic),
        weight_gradient_store=_store(one, narrow_weight),
    )


def _store(one: object, narrow: bool) -> Store:
    assert callable(one)
    rounding = StoreRounding.NEAREST
    if narrow:
        rounding = one(StoreRounding.NEAREST, StoreRounding.NEAREST, StoreRounding.TRUNCATE)
    return Store(rounding, saturates=one(False, False, False, True), flushes=one(False, False, False, True))


_DATA = tuple(
    Values(*spec)
    for spec in (
        (Regime.UNIFORM,),
        (Regime.UNIFORM, 1, -140),
        (Regime.UNIFORM, 1, -126),
        (Regime.UNIFORM, 1, -75),
        (Regime.UNIFORM, 1, -24),
        (Regime.UNIFORM, 1, -14),
        (Regime.UNIFORM, 1, 15),
        (Regime.UNIFORM, 1, 62),
        (Regime.UNIFORM, 1, 100),
        (Regime.CONSTANT, 3, -149),
        (Regime.CONSTANT, 1, 20),
        (Regime.CONSTANT, 7, 0),
        (Regime.INTEGERS, 8, 0),
        (Regime.INTEGERS, 100, -140),
        (Regime.INTEGERS, 3, 12),
        (Regime.SIGNS,),
        (Regime.NORMAL,),
        (Regime.SAME_SIGN,),
        (Regime.WIDE,),
        (Regime.OUTLIER,),
        (Regime.CANCELLING,),
        (Regime.REVEALING,),
        (Regime.SUBNORMAL,),
        (Regime.ZEROS,),
        (Regime.NEAR_OVERFLOW,),
        (Regime.MIXED,),
    )
)
_RATES = (0.5, 1.0, 2.0**-24, 0.0, 100.0, 7.0, 3.0, 2.0**20, float(np.float32(0.1)), float(np.float32(1e-3)))
_EPS = (0.0, 2.0**-27, 2.0**-3, 1.0, float(np.float32(1e-8)), 2.0**-140, 3.0)
_DECAYS = (0.0, 0.125, float(np.float32(0.01)), 2.0**-20, 1.0, 3.0)


def random_case_for(seed: int) -> Case:
    """A case of `strategies.random_case`, two in three with nastier values and hyper-parameters than a kernel meets.

    Sums stay what they are; values, optimizer and accumulation are drawn again.
    """
    rng = np.random.default_rng(seed)

    def one(*options: T) -> T:
        return options[int(rng.integers(len(options)))]

    menus = (choices.WEIGHTS, choices.POOLING, choices.SHARING, choices.VBE, choices.STEPS)
    case = random_case(seed, SMALL, one(choices.ANY, choices.ANY, choices.ANY, *menus))
    if case.bounds_check is BoundsCheck.FATAL:
        case = replace_fields(case, bounds_check=BoundsCheck.IGNORE)
    if one(True, False, False):
        return case
    kind = one(*OptimizerKind)
    adam = kind in (OptimizerKind.ADAM, OptimizerKind.PARTIAL_ROWWISE_ADAM)
    decay = one(*Decay) if kind is OptimizerKind.ROWWISE_ADAGRAD else Decay.NONE
    optimizer = Optimizer(
        kind,
        one(*_RATES),
        0.0 if kind is OptimizerKind.SGD else one(*_EPS),
        beta1=one(0.875, float(np.float32(0.9)), 0.0, float(np.float32(0.1)), 1 - 2.0**-24) if adam else 0.875,
        beta2=one(0.984375, float(np.float32(0.999)), 0.0, float(np.float32(0.3))) if adam else 0.984375,
        decay=decay,
        weight_decay=one(*_DECAYS) if adam or decay is not Decay.NONE else 0.0,
        step=one(1, 1, 2, 7, 1000, 2**24 + 1, 2**31 - 10) if adam else 1,
    )
    weights = case.per_sample_weights
    if weights is not None:
        weights = replace_fields(weights, values=one(*_DATA), gradient=True)
    return replace_fields(
        case,
        optimizer=optimizer,
        weight_values=one(*_DATA),
        gradient_values=one(*_DATA),
        state_values=Values(Regime.ZEROS) if one(True, False) else one(*_DATA),
        per_sample_weights=weights,
    )


def replace_fields(part: T, **changes: object) -> T:
    """A copy of a part of a Case with other fields."""
    return msgspec.structs.replace(part, **changes)  # type: ignore[type-var]


def scrambled(problem: Problem, seed: int) -> Problem:
    """The problem with values of all magnitudes side by side, element by element: zeros, subnormals, ones, the largest.

    Regimes are kinder: all elements of a tensor, or of a row, are of one kind.
    """
    rng = np.random.default_rng(seed)

    def wild(array: AnyArray, positive: bool = False) -> AnyArray:
        info = next(d for d in DType if d.numpy == array.dtype).info
        least, most = info.minimum_exponent - info.precision + 1, int(np.frexp(info.maximum)[1]) - 1
        kinds = rng.integers(0, 7, array.shape)
        near = rng.integers(0, most + 1 if rng.integers(2) else 4)
        exponents = np.choose(
            kinds,
            [
                rng.integers(-3, 3, array.shape),
                rng.integers(-3, 3, array.shape),
                rng.integers(least, info.minimum_exponent + 3, array.shape),
                rng.integers(least, most, array.shape),
                np.full(array.shape, -near),
                np.full(array.shape, near),
                np.zeros(array.shape, np.int64),
            ],
        )
        significands = np.where(rng.integers(2, size=array.shape), 1.0, 1 + rng.random(array.shape))
        values = np.ldexp(significands, exponents) * np.where(rng.random(array.shape) < 0.1, 0.0, 1.0)
        values = values if positive else values * rng.choice([-1.0, 1.0], array.shape)
        result = store(np.clip(values, -info.maximum, info.maximum), next(d for d in DType if d.numpy == array.dtype))
        return np.where(np.isfinite(array.astype(np.float64)), result, array)

    adagrad = not problem.case.optimizer.is_adam
    initial = problem.initial
    batches = tuple(
        replace(
            batch,
            grad_output=wild(batch.grad_output),
            per_sample_weights=None if batch.per_sample_weights is None else wild(batch.per_sample_weights),
        )
        for batch in problem.batches
    )
    snapshot = Snapshot(
        tuple(wild(t) for t in initial.tables),
        tuple(wild(m, adagrad) for m in initial.momentum1),
        tuple(wild(m, True) for m in initial.momentum2),
    )
    return replace(problem, initial=snapshot, batches=batches)
