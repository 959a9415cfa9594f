"""One wrong element in any tensor of a right outcome is seen, and a case that could show nothing is no pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from equivcheck.case import (
    BadIndex,
    Bag,
    BoundsCheck,
    Case,
    Feature,
    IndexFault,
    Lookup,
    Optimizer,
    OptimizerKind,
    PerSampleWeights,
    Regime,
    Values,
)
from equivcheck.compare import judge
from equivcheck.formats import AnyArray, DType, widen
from equivcheck.outcome import Forward, Guard, Outcome, Update
from equivcheck.problem import Problem, materialise
from equivcheck.verdict import Status
from tests.selftest.simulated.kernel import Kernel

Change = Callable[[Outcome], Outcome]


def problem() -> Problem:
    """Adam on a table whose last rows nobody names; one index is repaired, so that warnings are counted."""
    bags = (Bag((Lookup(0), Lookup(1), Lookup(1))), Bag((Lookup(2),)))
    return materialise(
        Case(
            features=(Feature(rows=6, dim=4, bags=bags),),
            optimizer=Optimizer(OptimizerKind.ADAM),
            per_sample_weights=PerSampleWeights(gradient=True),
            weight_values=Values(Regime.NORMAL),
            gradient_values=Values(Regime.NORMAL),
            bounds_check=BoundsCheck.WARNING,
            bad_indices=(BadIndex(IndexFault.ROWS, 3),),
        )
    )


def right(given: Problem) -> Outcome:
    """A right kernel's outcome, with everything that a backend can report."""
    outcome = Kernel().run(given)
    forward, update = outcome.results
    assert isinstance(forward, Forward)
    inputs = tuple({name: array.copy() for name, array in batch.arrays} for batch in given.batches)
    guard = Guard("around", np.full(8, 255, np.uint8), np.full(8, 255, np.uint8))
    return replace(outcome, results=(replace(forward, warnings=1), update), inputs_after=inputs, guards=(guard,))


def changed(array: AnyArray, *position: int) -> AnyArray:
    """A copy with one element moved by an eighth and more."""
    result = array.copy()
    result[position] = result[position] * result.dtype.type(2) + result.dtype.type(1)
    return result


def forward(change: Callable[[Forward], Forward]) -> Change:
    def apply(outcome: Outcome) -> Outcome:
        found, update = outcome.results
        assert isinstance(found, Forward)
        return replace(outcome, results=(change(found), update))

    return apply


def update(change: Callable[[Update], Update]) -> Change:
    def apply(outcome: Outcome) -> Outcome:
        found, after = outcome.results
        assert isinstance(after, Update)
        return replace(outcome, results=(found, change(after)))

    return apply


def state(name: str, *position: int) -> Change:
    def change(found: Update) -> Update:
        arrays = getattr(found.after, name)
        return replace(found, after=replace(found.after, **{name: (changed(arrays[0], *position),)}))

    return update(change)


def zero_without_sign(found: Update) -> Update:
    table = found.after.tables[0].copy()
    table[5, 1] = 0.0
    return replace(found, after=replace(found.after, tables=(table,)))


def weight_gradient(found: Update) -> Update:
    assert found.weight_gradient is not None
    return replace(found, weight_gradient=changed(found.weight_gradient, 1))


CHANGES: dict[str, Change] = {
    "output": forward(lambda f: replace(f, output=changed(f.output, 0, 3))),
    "output below": forward(lambda f: replace(f, output=(widen(f.output) - 1).astype(f.output.dtype))),
    "output type": forward(lambda f: replace(f, output=f.output.astype(np.float64))),
    "row": state("tables", 1, 3),
    "momentum1": state("momentum1", 1, 2),
    "momentum2": state("momentum2", 1, 2),
    "weight gradient": update(weight_gradient),
    "untouched row": state("tables", 5, 0),
    "untouched momentum1": state("momentum1", 5, 0),
    "guard": lambda outcome: replace(
        outcome, guards=(Guard("around", outcome.guards[0].before, np.zeros(8, np.uint8)),)
    ),
    "offsets": lambda outcome: replace(
        outcome, inputs_after=({**outcome.inputs_after[0], "offsets": changed(outcome.inputs_after[0]["offsets"], 1)},)
    ),
    "gradient": lambda outcome: replace(
        outcome,
        inputs_after=(
            {**outcome.inputs_after[0], "grad_output": changed(outcome.inputs_after[0]["grad_output"], 0, 1)},
        ),
    ),
    "warnings": forward(lambda f: replace(f, warnings=0)),
    "missing backward": lambda outcome: replace(outcome, results=outcome.results[:1]),
}


def test_the_right_outcome_passes() -> None:
    given = problem()
    assert judge(given, Kernel().arithmetic(given.case), right(given)).status is Status.PASSED


@pytest.mark.parametrize("name", CHANGES)
def test_one_wrong_element_is_seen(name: str) -> None:
    given = problem()
    outcome = CHANGES[name](right(given))
    assert judge(given, Kernel().arithmetic(given.case), outcome).status is Status.FAILED


def test_a_lost_sign_of_an_untouched_zero_is_seen() -> None:
    given = problem()
    table = given.initial.tables[0].copy()
    table[5, 1] = -0.0
    given = replace(given, initial=replace(given.initial, tables=(table,)))
    outcome = right(given)
    arithmetic = Kernel().arithmetic(given.case)
    assert judge(given, arithmetic, outcome).status is Status.PASSED
    assert judge(given, arithmetic, update(zero_without_sign)(outcome)).status is Status.FAILED


def test_an_exact_zero_may_have_either_sign() -> None:
    given = materialise(
        Case(features=(Feature(rows=2, dim=2, bags=(Bag((Lookup(0),)),)),), weight_values=Values(Regime.ZEROS))
    )
    outcome = Kernel().run(given)
    found, after = outcome.results
    assert isinstance(found, Forward)
    negative = replace(outcome, results=(replace(found, output=-np.abs(found.output)), after))
    for either in (outcome, negative):
        assert judge(given, Kernel().arithmetic(given.case), either).status is not Status.FAILED


@pytest.mark.parametrize(("stored", "status"), [(1.0, Status.PASSED), (1 + 2.0**-7, Status.FAILED)])
def test_the_other_side_of_a_tie_is_seen(stored: float, status: Status) -> None:
    """1 + 2^-8 lies in the middle of two bf16 numbers, of which 1 is even."""
    case = Case(
        features=(Feature(rows=1, dim=1, bags=(Bag((Lookup(0),)),)),),
        weights=DType.BF16,
        optimizer=Optimizer(learning_rate=1.0),
        weight_values=Values(Regime.CONSTANT),
    )
    given = materialise(case)
    batch = replace(given.batches[0], grad_output=np.full((1, 1), -(2.0**-8), np.float32))
    given = replace(given, batches=(batch,))
    outcome = Kernel().run(given)
    after = outcome.results[1]
    assert isinstance(after, Update)
    table = np.full((1, 1), stored).astype(DType.BF16.numpy)
    after = replace(after, after=replace(after.after, tables=(table,)))
    outcome = replace(outcome, results=(outcome.results[0], after))
    assert judge(given, Kernel().arithmetic(case), outcome).status is status


def test_an_overflow_on_the_way_is_not_blamed() -> None:
    """3e38 + 3e38 - 3e38 - 3e38: zero in one order, infinity or NaN in others."""
    bags = (Bag(tuple(Lookup(row) for row in range(4))),)
    given = materialise(Case(features=(Feature(rows=4, dim=1, bags=bags),), optimizer=Optimizer(learning_rate=0.0)))
    table = np.asarray([[3e38], [3e38], [-3e38], [-3e38]], np.float32)
    given = replace(given, initial=replace(given.initial, tables=(table,)))
    kernel = Kernel()
    outcome = kernel.run(given)
    found = outcome.results[0]
    assert isinstance(found, Forward)
    assert not np.isfinite(found.output).all()
    assert judge(given, kernel.arithmetic(given.case), outcome).status is not Status.FAILED


def test_a_case_that_could_show_nothing_is_not_passed() -> None:
    """A 16-bit output beside a tie is one of two numbers with or without a lookup of 2^-26."""
    bags = tuple(Bag((Lookup(0), Lookup(1))) for _ in range(20))
    case = Case(
        features=(Feature(rows=2, dim=8, bags=bags),), output=DType.BF16, optimizer=Optimizer(learning_rate=0.0)
    )
    given = materialise(case)
    table = np.full((2, 8), 2.0**-26, np.float32)
    table[0] = 1 + 2.0**-8
    given = replace(given, initial=replace(given.initial, tables=(table,)))
    kernel = Kernel()
    assert judge(given, kernel.arithmetic(case), kernel.run(given)).status is Status.MISTRUSTED
