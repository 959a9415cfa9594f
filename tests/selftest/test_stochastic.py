"""Statistics of stochastic rounding: a fair and independent one passes, and each wrong one fails."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from equivcheck.case import Bag, Case, Feature, Lookup, Optimizer, Regime, Rounding, Step, Values
from equivcheck.compare import judge
from equivcheck.dependence import independent, independent_between
from equivcheck.formats import DType, Float64Array, down, nearest, up
from equivcheck.oracle import UpdateExpectation, expect
from equivcheck.oracle.sparse import Int64Array
from equivcheck.outcome import Outcome, Update
from equivcheck.problem import Problem, materialise, program
from equivcheck.stochastic import (
    Decisions,
    Statistic,
    decisions,
    elements_needed,
    unbiased,
)
from equivcheck.verdict import Status
from tests.selftest.simulated.kernel import Kernel

Chooser = Callable[[Float64Array, int], Float64Array]
"""Random numbers in [0, 1) for values (rows, columns) of the n-th store."""

ROWS, DIM = 64, 128


def problem(dtype: DType = DType.FP16) -> Problem:
    """Two tables of 64 rows, each named, and two steps."""
    bags = tuple(Bag((Lookup(row),)) for row in range(ROWS))
    feature = Feature(rows=ROWS, dim=DIM, bags=bags)
    return materialise(
        Case(
            features=(feature, feature),
            weights=dtype,
            optimizer=Optimizer(learning_rate=float(np.float32(0.01))),
            rounding=Rounding.STOCHASTIC,
            weight_values=Values(Regime.UNIFORM),
            gradient_values=Values(Regime.UNIFORM),
            steps=(Step(), Step()),
        )
    )


class ChosenBy(Kernel):
    """A kernel whose stores take their random numbers from a function."""

    def __init__(self, chooser: Chooser) -> None:
        super().__init__()
        self.chooser, self.stores = chooser, 0

    def chosen(self, values: Float64Array, dtype: DType) -> Float64Array:
        low, high = down(values, dtype), up(values, dtype)
        share = np.where(high > low, (values - low) / np.where(high > low, high - low, 1.0), 0.0)
        self.stores += 1
        return np.where(self.chooser(share, self.stores) < share, high, low)


def decided(given: Problem, outcome: Outcome) -> list[list[Decisions]]:
    """Decisions of each update and table."""
    states, result = [given.initial], []
    for found in outcome.results:
        states.append(found.after if isinstance(found, Update) else states[-1])
    expectation = expect(given, Kernel().arithmetic(given.case), states[: len(program(given.case))])
    for expected, found in zip(expectation.calls, outcome.results, strict=True):
        if isinstance(expected, UpdateExpectation) and isinstance(found, Update):
            tables = zip(expected.tables, found.after.tables, strict=True)
            result.append([decisions(table.rows, new[table.touched]) for table, new in tables])
    return result


def all_tests(given: Problem, chooser: Chooser, again: Chooser) -> list[Statistic]:
    """Bias of each update; independence of all elements of an outcome, and of two runs."""
    first, second = (decided(given, ChosenBy(c).run(given)) for c in (chooser, again))
    blocks = {f"table {t}, step {s}": part for s, step in enumerate(first) for t, part in enumerate(step)}
    tests = [test for step in first for test in unbiased(*step)]
    tests += independent(blocks)
    tests += independent_between({"a run": first[0][0]}, {"another": second[0][0]})
    return tests


def fair(seed: int) -> Chooser:
    """Independent random numbers."""
    return lambda share, store: np.random.default_rng([seed, store]).random(share.shape)


def _away_from_nearest(numbers: Chooser) -> Chooser:
    """Round to nearest, and to the other neighbour with the probability of the error."""

    def chosen(share: Float64Array, store: int) -> Float64Array:
        random = numbers(share, store)
        return np.where(share < 0.5, random, 1 - random)

    return chosen


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
def test_fair_rounding_passes(dtype: DType) -> None:
    tests = all_tests(problem(dtype), fair(1), fair(2))
    assert [test for test in tests if not test.passed] == []
    assert sum(test.elements for test in tests if test.name == "bias upwards") > 0.9 * 2 * 2 * ROWS * DIM


def test_a_fair_step_away_from_the_nearest_passes() -> None:
    tests = all_tests(problem(), _away_from_nearest(fair(1)), _away_from_nearest(fair(2)))
    assert [test for test in tests if not test.passed] == []


def _same_for_columns(seed: int) -> Chooser:
    return lambda share, store: np.repeat(np.random.default_rng([seed, store]).random((len(share), 1)), DIM, 1)


def _same_for_rows(seed: int) -> Chooser:
    return lambda share, store: np.repeat(np.random.default_rng([seed, store]).random((1, DIM)), len(share), 0)


def _same_in_lanes(seed: int) -> Chooser:
    return lambda share, store: np.tile(np.random.default_rng([seed, store]).random((len(share), 4)), DIM // 4)


def _places(numbers: Chooser, place: Callable[[Int64Array], Int64Array]) -> Chooser:
    """Random numbers of other places than an element's, row by row."""

    def chosen(share: Float64Array, store: int) -> Float64Array:
        places = place(np.arange(share.size)).reshape(share.shape)
        return np.asarray(numbers(share, store).ravel()[places])

    return chosen


def _one_further(share: Float64Array, store: int) -> Float64Array:
    """Two stores a step; the second step takes the first one's numbers, moved by one."""
    numbers = np.random.default_rng([1, store % 2]).random(share.size + 1)
    return numbers[(store - 1) // 2 :][: share.size].reshape(share.shape)


WRONG: dict[str, tuple[Chooser, Chooser, str]] = {
    "always up": (lambda s, _: np.zeros(s.shape), fair(2), "bias upwards"),
    "truncation": (lambda s, _: np.ones(s.shape), fair(2), "bias upwards"),
    "to nearest": (lambda s, _: np.full(s.shape, 0.5), fair(2), "bias of shares from 0.0 to 0.25"),
    "a bias of 0.05": (lambda s, n: np.maximum(fair(1)(s, n) - 0.05, 0), fair(2), "bias upwards"),
    "a share squared": (lambda s, n: np.sqrt(fair(1)(s, n)), fair(2), "bias upwards"),
    "coins": (lambda s, n: np.where(fair(1)(s, n) < 0.5, 0.0, 1.0), fair(2), "bias of shares from 0.0 to 0.25"),
    "one number a row": (_same_for_columns(1), fair(2), "elements of table 0, step 0 "),
    "one number a column": (_same_for_rows(1), fair(2), "elements of table 0, step 0 "),
    "four lanes": (_same_in_lanes(1), fair(2), "elements of table 0, step 0 4 apart, upwards"),
    "a period": (_places(fair(1), lambda i: i % 3001), fair(2), "elements of table 0, step 0 3,001 apart, upwards"),
    "mirrored warps": (
        _places(fair(1), lambda i: np.minimum(i, i ^ 31)),
        fair(2),
        "elements of table 0, step 0 at i and i xor 31, upwards",
    ),
    "opposite neighbours": (
        lambda s, n: np.abs(np.arange(DIM) % 2 - np.repeat(fair(1)(s, n)[:, ::2], 2, 1)),
        fair(2),
        "elements of table 0, step 0 at i and i xor 1, upwards",
    ),
    "one seed for all tables": (
        lambda s, n: fair(1)(s, (n + 1) // 2),
        fair(2),
        "elements of table 0, step 0 and table 1, step 0 0 apart, upwards",
    ),
    "one seed for all steps": (
        lambda s, n: fair(1)(s, n % 2),
        fair(2),
        "elements of table 1, step 0 and table 1, step 1 0 apart, upwards",
    ),
    "a step one number further": (
        _one_further,
        fair(2),
        "elements of table 0, step 0 and table 0, step 1 -1 apart, upwards",
    ),
    "one seed for all runs": (fair(1), fair(1), "elements of a run and another 0 apart, upwards"),
    "one seed for all tables, nearest first": (
        _away_from_nearest(lambda s, n: fair(1)(s, (n + 1) // 2)),
        fair(2),
        "elements of table 0, step 0 and table 1, step 0 0 apart, away from the nearest",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rounding_fails(name: str) -> None:
    chooser, again, which = WRONG[name]
    given = problem()
    failed = {test.name for test in all_tests(given, chooser, again) if not test.passed}
    assert any(name.startswith(which) for name in failed)
    # Each value is a neighbour: without the statistics it passes.
    kernel = ChosenBy(chooser)
    assert judge(given, kernel.arithmetic(given.case), kernel.run(given)).status is Status.PASSED


def test_one_number_that_works_away_from_zero_is_seen() -> None:
    """Methods that add random bits to a magnitude go up for positive values where they go down for negative ones."""

    class OnMagnitudes(ChosenBy):
        def chosen(self, values: Float64Array, dtype: DType) -> Float64Array:
            chosen: Float64Array = np.copysign(super().chosen(np.abs(values), dtype), values)
            return chosen

    given = problem()
    kernel = OnMagnitudes(_same_for_rows(1))
    first, _ = decided(given, kernel.run(given))[0]
    failed = {test.name for test in independent({"rows": first}) if not test.passed}
    assert failed
    assert all(name.endswith("away from zero") for name in failed)


def test_away_from_zero() -> None:
    """Up for positive values and down for negative ones cancels over both; away from zero shows it."""

    class Away(Kernel):
        def chosen(self, values: Float64Array, dtype: DType) -> Float64Array:
            return np.where(values > 0, up(values, dtype), down(values, dtype))

    given = problem()
    tests = unbiased(*decided(given, Away().run(given))[0])
    assert "bias away from zero" in {test.name for test in tests if not test.passed}


def test_power() -> None:
    """As many elements as stated see a bias; a hundredth of them need not."""
    bias = 0.1
    count = elements_needed(bias)
    rng = np.random.default_rng(3)
    share = np.full((1, count), 0.5)

    def biased(elements: int) -> bool:
        part = share[:, :elements]
        ups = rng.random(part.shape) < part + bias
        yes = np.ones(part.shape, bool)
        return not all(test.passed for test in unbiased(Decisions(yes, ups, part, part, ~yes)))

    assert all(biased(count) for _ in range(20))
    assert not all(biased(count // 100) for _ in range(20))


def test_level() -> None:
    """At a level of 1/10, fair roundings are blamed, but not more often than that."""
    rng = np.random.default_rng(4)
    blamed = 0
    for _ in range(400):
        share = rng.random((1, 300))
        ups = rng.random(share.shape) < share
        yes = np.ones(share.shape, bool)
        blamed += any(not t.passed for t in unbiased(Decisions(yes, ups, share, share, ~yes), level=0.1))
    assert 0 < blamed <= 40 + 4 * 6  # 40 expected at most, 6 their standard deviation


def fair_blocks(rng: np.random.Generator, *shapes: tuple[int, int], width: float) -> dict[str, Decisions]:
    """Right decisions, of which intervals of a width are known."""
    blocks: dict[str, Decisions] = {}
    for shape in shapes:
        share = rng.random(shape)
        low, high = np.maximum(share - width, 0.0), np.minimum(share + width, 1.0)
        negative, judged = (rng.random(shape) < part for part in (0.5, 0.9))
        blocks[f"block {len(blocks)}"] = Decisions(judged, judged & (rng.random(shape) < share), low, high, negative)
    return blocks


def test_level_of_independence() -> None:
    """At a level of 1/2, fair roundings are hardly blamed: the bound holds, and Bonferroni's correction is wide."""
    rng = np.random.default_rng(5)
    blamed = 0
    for _ in range(200):
        found = independent(fair_blocks(rng, (4, 32), (8, 12), (4, 32), width=0.01), level=0.5)
        blamed += any(not statistic.passed for statistic in found)
    assert blamed <= 100 + 4 * 7  # 100 expected at most, 7 their standard deviation


def test_blocks_of_any_shape() -> None:
    """One place, none, or none judged: nothing to blame."""
    rng = np.random.default_rng(6)
    blocks = fair_blocks(rng, (1, 1), (3, 5), (0, 4), (1, 2), width=0.0)
    nowhere = {"nowhere": Decisions(*(np.zeros((2, 2), kind) for kind in (bool, bool, float, float, bool)))}
    assert all(statistic.passed for statistic in independent({**blocks, **nowhere}))


def test_sums_are_those_of_the_pairs() -> None:
    """The transforms' sums against loops over pairs."""
    rng = np.random.default_rng(7)
    blocks = fair_blocks(rng, (2, 8), width=0.0)
    (part,) = blocks.values()
    share, up, judged = part.low.ravel(), part.up.ravel(), part.judged.ravel()
    residual = np.where(judged, up - share, 0.0)
    lags, masks = independent(blocks)

    def mean(statistic: Statistic, partner: Callable[[int], int]) -> float:
        signs = {
            "upwards": np.ones(16),
            "away from zero": np.where(part.negative.ravel(), -1.0, 1.0),
            "away from the nearest": np.where(share > 0.5, -1.0, 1.0),
        }
        sense = residual * signs[statistic.name.rsplit(", ", 1)[1]]
        pairs = [(i, partner(i)) for i in range(16) if i < partner(i) < 16 and judged[i] and judged[partner(i)]]
        assert statistic.elements == len(pairs)
        return float(np.mean([sense[i] * sense[j] for i, j in pairs]))

    lag = int(lags.name.split(" apart")[0].rsplit(" ", 1)[1])
    mask = int(masks.name.split("xor ")[1].split(",")[0])
    assert mean(lags, lambda i: i + lag) == pytest.approx(lags.found)
    assert mean(masks, lambda i: i ^ mask) == pytest.approx(masks.found)


def test_a_tensor_that_is_not_stored_stochastically_is_refused() -> None:
    given = problem(DType.FP32)
    expected = expect(given, Kernel().arithmetic(given.case), [given.initial] * 4).calls[1]
    assert isinstance(expected, UpdateExpectation)
    with pytest.raises(ValueError, match="before the store"):
        decisions(expected.tables[0].rows, given.initial.tables[0])


def test_nearest_is_no_decision() -> None:
    """Values that the type holds are not judged: they must stay."""
    given = problem()
    outcome = ChosenBy(fair(1)).run(given)
    part = decided(given, outcome)[0][0]
    after = outcome.results[1]
    assert isinstance(after, Update)
    moved = after.after.tables[0].astype(np.float64)
    assert (nearest(moved, DType.FP16) == moved).all()
    assert part.judged.mean() > 0.9
