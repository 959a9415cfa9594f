"""The fast oracle gives the values of the plain one, on any case: `equivcheck.oracle.plain` is the copy to read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from equivcheck.arithmetic import Arithmetic, Sequential
from equivcheck.case import Bag, Case, Feature, Lookup, Regime, Values
from equivcheck.formats import DType, Float64Array, nearest
from equivcheck.oracle import ForwardExpectation, UpdateExpectation, expect, plain
from equivcheck.problem import materialise, program
from strategies import Menu, choices, random_case
from tests.selftest.simulated.styles import SMALL, random_case_for

MENUS = (
    choices.ANY,
    choices.BOUNDS,
    choices.VBE,
    choices.SHARING,
    choices.WEIGHTS,
    choices.POOLING,
    choices.NONFINITE,
    choices.OPTIMIZER,
)

_FP64 = Sequential(DType.FP64)
EXACT_SUMS = Arithmetic(_FP64, _FP64, _FP64, _FP64, accumulator=DType.FP64)


def same(fast: Float64Array, slow: Float64Array, gauge: float) -> None:
    """Equal up to fp64's own rounding, in any order of sums: a few hundred u of what the terms can be."""
    assert fast.shape == slow.shape
    both = np.isfinite(fast) & np.isfinite(slow)
    assert (np.isnan(fast) == np.isnan(slow)).all()
    assert (fast == slow)[~both & ~np.isnan(fast)].all()
    with np.errstate(over="ignore", invalid="ignore"):
        close = np.abs(fast - slow) <= 2.0**-40 * np.maximum(np.abs(slow), gauge)
    assert close[both].all()


def largest(*arrays: object) -> float:
    """Largest finite magnitude."""
    sizes = [np.abs(np.asarray(a, np.float64)) for a in arrays if a is not None]
    return max((float(s[np.isfinite(s)].max(initial=0.0)) for s in sizes), default=0.0)


def check(case: Case) -> None:
    """Values of every action, from the initial state."""
    problem = materialise(case)
    actions = program(case)
    expectation = expect(problem, EXACT_SUMS, [problem.initial] * len(actions))
    for (_, step), expected in zip(actions, expectation.calls, strict=True):
        batch = problem.batches[step]
        weights = 1.0 if batch.per_sample_weights is None else max(1.0, largest(batch.per_sample_weights))
        count = max(len(batch.indices), 1)
        with np.errstate(all="ignore"):
            if isinstance(expected, ForwardExpectation):
                size = largest(*problem.initial.tables) * weights * count
                for fast, slow in zip(expected.outputs, plain.outputs(problem, batch, problem.initial), strict=True):
                    same(fast.value, slow, size)
            else:
                compare_update(expected, plain.update(problem, batch, problem.initial, step))


def compare_update(expected: UpdateExpectation, slow: plain.PlainUpdate) -> None:
    """Named rows are the same ones; the plain copy, stored, is a right kernel with fp64 sums and fp64 updates."""
    for number, table in enumerate(expected.tables):
        assert [int(r) for r in table.touched] == list(slow.rows[number])
        for bounds, values in (
            (table.rows, slow.rows[number]),
            (table.momentum1, slow.momentum1[number]),
            (table.momentum2, slow.momentum2[number]),
        ):
            if bounds is None:
                continue
            found = nearest(np.asarray(list(values.values())).reshape(bounds.value.shape), bounds.dtype)
            low, high = bounds.allowed.low, bounds.allowed.high
            right = ((low <= found) & (found <= high)) | (np.isnan(low) & np.isnan(found))
            assert right[~bounds.undetermined].all()
    if expected.weight_gradient is not None:
        bounds = expected.weight_gradient
        found = nearest(slow.weight_gradient[:, None], bounds.dtype)
        right = ((bounds.allowed.low <= found) & (found <= bounds.allowed.high)) | np.isnan(bounds.allowed.low)
        assert right[~bounds.undetermined].all()


@pytest.mark.parametrize("menu", MENUS, ids=lambda menu: menu.name)
def test_fast_and_plain_oracle_agree(menu: Menu) -> None:
    for seed in range(40):
        check(random_case(seed, SMALL, menu))


def test_fast_and_plain_oracle_agree_on_nasty_values() -> None:
    for seed in range(150):
        check(random_case_for(seed))


def test_a_difference_is_seen() -> None:
    """The comparison can fail: with a lookup of another row."""
    bags = (Bag((Lookup(1, 2), Lookup(2))),)
    case = Case(features=(Feature(rows=3, dim=4, bags=bags),), weight_values=Values(Regime.NORMAL))
    problem = materialise(case)
    batch = replace(problem.batches[0], indices=np.asarray([1, 2, 2]))
    right, wrong = (plain.outputs(problem, b, problem.initial)[0] for b in (problem.batches[0], batch))
    same(right, right, largest(right))
    with pytest.raises(AssertionError):
        same(right, wrong, largest(right))
    expected = expect(problem, EXACT_SUMS).calls[1]
    assert isinstance(expected, UpdateExpectation)
    compare_update(expected, plain.update(problem, problem.batches[0], problem.initial, 0))
    with pytest.raises(AssertionError):
        compare_update(expected, plain.update(problem, batch, problem.initial, 0))
