"""Trust: an element counts only if a lost lookup would show in it, by its bound and its smallest term alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from equivcheck.case import Bag, Case, Feature, Lookup, Optimizer, Regime, Values
from equivcheck.compare import judge
from equivcheck.formats import DType, store
from equivcheck.problem import Problem, materialise
from equivcheck.verdict import Tensor, Verdict
from tests.selftest.simulated.kernel import Kernel

DIM = 8


def problem(first: float, second: float, output: DType, rate: float = 1.0, weights: DType = DType.FP32) -> Problem:
    """Two bags of two lookups, of rows of `first` and of `second`."""
    bag = Bag((Lookup(0), Lookup(1)))
    case = Case(
        features=(Feature(rows=2, dim=DIM, bags=(bag, bag)),),
        output=output,
        weights=weights,
        optimizer=Optimizer(learning_rate=rate),
        gradient_values=Values(Regime.CONSTANT),
    )
    table = store(np.repeat([[first], [second]], DIM, axis=1), weights)
    given = materialise(case)
    return replace(given, initial=replace(given.initial, tables=(table,)))


def verdict(given: Problem) -> Verdict:
    """Of a right kernel."""
    kernel = Kernel()
    return judge(given, kernel.arithmetic(given.case), kernel.run(given))


def shares(given: Problem, tensor: Tensor) -> tuple[int, int, int]:
    """How many elements are judged, have one allowed value, and are trusted."""
    (found,) = (report for report in verdict(given).reports if report.tensor is tensor)
    return found.judged, found.exact, found.trusted


@pytest.mark.parametrize("output", [DType.FP16, DType.BF16])
def test_ends_that_are_stored_as_one_value_are_not_trusted_for_that(output: DType) -> None:
    # 0.1 + 1e-6: both ends, and 0.1 alone, are stored as the same 16-bit number.
    all_ = 2 * DIM
    assert shares(problem(0.1, 1e-6, output), Tensor.OUTPUT) == (all_, all_, 0)
    assert shares(problem(0.1, 1e-6, DType.FP32), Tensor.OUTPUT) == (all_, 0, all_)


def test_what_the_store_rounds_away_of_an_exact_sum_counts() -> None:
    # 4096 + 1 is exact in fp32, and stored as 4096 in fp16, with or without the lookup of 1.
    assert shares(problem(4096.0, 1.0, DType.FP16), Tensor.OUTPUT) == (2 * DIM, 2 * DIM, 0)
    assert shares(problem(4096.0, 8.0, DType.FP16), Tensor.OUTPUT) == (2 * DIM, 2 * DIM, 2 * DIM)


def test_a_sum_without_terms_has_none_to_lose() -> None:
    assert shares(problem(0.0, 0.0, DType.FP16), Tensor.OUTPUT) == (2 * DIM, 2 * DIM, 2 * DIM)


def test_rows_that_the_update_cannot_move_are_not_trusted() -> None:
    # A step of 2^-20 or less vanishes beside 2048 in fp16; a rate of zero moves nothing.
    for rate, weights in ((2.0**-20, DType.FP16), (0.0, DType.FP32)):
        judged, exact, trusted = shares(problem(2048.0, 2048.0, DType.FP32, rate, weights), Tensor.ROWS)
        assert exact == judged == 2 * DIM
        assert trusted == 0
    judged, _, trusted = shares(problem(2.0, 2.0, DType.FP32), Tensor.ROWS)
    assert trusted == judged


def test_a_certain_nan_is_judged_as_such() -> None:
    assert shares(problem(float("nan"), 1.0, DType.FP16), Tensor.OUTPUT) == (2 * DIM, 0, 2 * DIM)
