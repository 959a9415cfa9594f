"""A planted fault shrinks to the case that one would write by hand: the fewest tables, bags and lookups that show it.

Faults are predicates on a case and its problem; two of them are small kernels in NumPy that compute wrongly. Each is
looked for from two seeds, or with -m soak from eight. Hypothesis shrinks first, `minimise` what it leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase

import strategies
from equivcheck.case import Bag, Case, Feature, Lookup, Pooling, Rounding
from equivcheck.facts import Number
from equivcheck.facts_of_case import facts
from equivcheck.formats import DType, Float64Array, widen
from equivcheck.minimise import minimise
from equivcheck.problem import Problem, materialise, split_by_feature
from equivcheck.traits import holds

Wrong = Callable[[Case], bool]
SETTINGS = hypothesis.settings(
    max_examples=4000,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Fault:
    """A planted fault, the features and tables that it takes at least, and what the shrunk case must still have."""

    wrong: Wrong
    features: int = 1
    tables: int = 1
    exactly: Callable[[Case], bool] = lambda case: True
    cases: Callable[[], hypothesis.strategies.SearchStrategy[Case]] = strategies.cases


def has(*traits: str) -> Wrong:
    """Whether a case has all of the traits."""
    return lambda case: holds(traits, facts(case))


def most(number: Number, expected: float) -> Callable[[Case], bool]:
    """Whether the largest number of a case is the expected one."""
    return lambda case: max(facts(case).numbers[number]) == expected


def loses_the_tail_of_long_bags(case: Case) -> bool:
    """A forward that leaves out what is left over after blocks of four lookups, once a bag has more than eight."""
    if case.pooling is not Pooling.SUM or case.ranks or case.bad_indices or case.bad_offsets:
        return False
    problem = materialise(case)
    return any(_lost_tail(problem, feature) for feature in range(len(problem.dims)))


def _lost_tail(problem: Problem, feature: int) -> bool:
    batch, table = problem.batches[0], widen(problem.initial.tables[problem.feature_tables[feature]])
    first = sum(batch.bags[:feature])
    for bag in range(first, first + batch.bags[feature]):
        rows = batch.indices[batch.offsets[bag] : batch.offsets[bag + 1]]
        if len(table) and len(rows) > 8 and table[rows[len(rows) // 4 * 4 :]].sum(axis=0).any():
            return True
    return False


def updates_by_the_last_lookup(case: Case) -> bool:
    """A backward in which each lookup of a row overwrites the others': G is the last one's gradient, not the sum."""
    if case.ranks or case.pooling is not Pooling.SUM or case.bad_indices or case.bad_offsets:
        return False
    problem = materialise(case)
    batch = problem.batches[0]
    blocks = split_by_feature(batch.grad_output, problem, batch)
    summed: dict[tuple[int, int], Float64Array] = {}
    last: dict[tuple[int, int], Float64Array] = {}
    for feature, table in enumerate(problem.feature_tables):
        first = sum(batch.bags[:feature])
        for bag, gradient in enumerate(widen(blocks[feature])):
            for row in batch.indices[batch.offsets[first + bag] : batch.offsets[first + bag + 1]].tolist():
                with np.errstate(over="ignore", invalid="ignore"):
                    summed[table, row] = summed.get((table, row), np.zeros_like(gradient)) + gradient
                last[table, row] = gradient
    return any(np.not_equal(summed[key], last[key]).any() for key in summed)


FAULTS = {
    "a run longer than a block": Fault(has("run>=257"), exactly=most(Number.RUN, 257)),
    "a run longer than a warp, rounded stochastically": Fault(
        has("run>=33", "rounding=stochastic", "weights!=fp32"),
        exactly=lambda case: most(Number.RUN, 33)(case) and case.weights is DType.FP16,
        cases=strategies.stochastic_cases,
    ),
    "a bag longer than 32": Fault(has("bag>=33"), exactly=most(Number.BAG, 33)),
    "the tail of a bag": Fault(loses_the_tail_of_long_bags, exactly=most(Number.BAG, 9)),
    "one update a lookup": Fault(updates_by_the_last_lookup, exactly=lambda case: case.lookups == 2),
    "a mean over an empty bag": Fault(
        has("pooling=mean", "bag empty"), exactly=lambda case: case.rounding is Rounding.NEAREST
    ),
    "a width that is no multiple of four": Fault(has("dim not multiple of 4"), exactly=most(Number.DIM, 1)),
    "a weight gradient of a repeated row": Fault(
        has("psw gradient", "row repeated in a bag"),
        exactly=lambda case: case.lookups == 2,
        cases=strategies.weights_cases,
    ),
    "two updates of a shared table": Fault(
        has("row in several features"), features=2, exactly=lambda case: case.lookups == 2
    ),
    "a map that is not ascending": Fault(
        has("unsorted sharing", "optimizer=exact_adagrad", "lookups>=1"),
        features=3,
        tables=2,
        cases=strategies.sharing_cases,
    ),
    "columns of a wider neighbour": Fault(has("wider table after a narrower"), features=2, tables=2),
    "a variable batch with an empty rank": Fault(
        has("empty rank", "indices=int32", "lookups>=1"), exactly=most(Number.RANKS, 2), cases=strategies.vbe_cases
    ),
    "more features than a word has bits": Fault(
        has("features>=33"), features=33, tables=33, exactly=lambda case: case.lookups <= 33
    ),
    "an index repaired to a row in use": Fault(
        has("index out of bounds", "bounds=warning", "lookups>=1"),
        cases=strategies.bounds_cases,
        exactly=lambda case: case.lookups == 1,
    ),
}


def check(fault: Fault, shrunk: Case) -> None:
    text = shrunk.to_json().decode()
    assert fault.wrong(shrunk), text
    assert len(shrunk.features) == fault.features, text
    assert len(shrunk.table_shapes) == fault.tables, text
    assert fault.exactly(shrunk), text
    if fault.features <= 3:
        listed = [bag for feature in shrunk.features for bag in feature.bags]
        assert all(feature.traffic is None for feature in shrunk.features), text
        assert len(listed) <= 2, text
        assert sum(len(bag.lookups) for bag in listed) <= 3, text
        assert len(text) < 300, text


def shrink(fault: Fault, seed: int) -> Case:
    found = hypothesis.find(fault.cases(), fault.wrong, settings=SETTINGS, random=Random(seed))
    return minimise(found, fault.wrong)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_shrinks_to_the_case_that_shows_it(name: str, seed: int) -> None:
    check(FAULTS[name], shrink(FAULTS[name], seed))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3, 9))
@pytest.mark.parametrize("name", FAULTS)
def test_so_it_does_from_other_seeds(name: str, seed: int) -> None:
    check(FAULTS[name], shrink(FAULTS[name], seed))


@pytest.mark.parametrize(
    "name", ["a run longer than a block", "the tail of a bag", "a weight gradient of a repeated row"]
)
def test_a_case_from_a_seed_shrinks_without_hypothesis(name: str) -> None:
    fault = FAULTS[name]
    drawn = next(case for case in map(strategies.random_case, range(10_000)) if fault.wrong(case))
    check(fault, minimise(drawn, fault.wrong, calls=2000))


def test_hypothesis_alone_leaves_one_table_and_few_lookups() -> None:
    fault = FAULTS["a weight gradient of a repeated row"]
    shrunk = hypothesis.find(fault.cases(), fault.wrong, settings=SETTINGS, random=Random(1))
    assert len(shrunk.table_shapes) == 1
    assert shrunk.lookups == 2


def test_minimising_keeps_to_its_calls_and_asks_for_no_case_twice() -> None:
    asked: list[Case] = []

    def wrong(case: Case) -> bool:
        asked.append(case)
        return case.lookups > 5

    start = Case(features=(Feature(bags=(Bag((Lookup(0, 4000),), 3), Bag((Lookup(), Lookup())))),) * 5)
    minimise(start, wrong, calls=7)
    assert len(asked) == len(set(asked)) == 7
    assert minimise(start, wrong).to_json() == b'{"equivcheck_case":1,"features":[{"bags":[{"lookups":[[0,6]]}]}]}'
    assert minimise(start, lambda case: False) is start


def test_without_a_fault_the_simplest_case_is_all_defaults() -> None:
    simplest = hypothesis.find(strategies.cases(), lambda case: True, settings=SETTINGS, random=Random(1))
    assert simplest.to_json() == b'{"equivcheck_case":1,"features":[{"dim":4,"bags":[{"lookups":[[0,1]]}]}]}'
