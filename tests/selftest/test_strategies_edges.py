"""Cases of edges: whatever the seed, they have every edge and pair that a subject takes, and little else."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import strategies
from equivcheck.case import Call, Case
from equivcheck.coverage import GOALS, Coverage, Missing
from equivcheck.engine.constants import seed_alone
from equivcheck.engine.properties import Property
from equivcheck.facts import Number
from equivcheck.facts_of_case import facts
from equivcheck.formats import DType
from strategies import Budget, Profile, choices, edges

BUDGET = Profile.DEFAULT.budget


def demanding(case: Case) -> bool:
    """A subject that takes multiples of four and no bf16, no Adam in fp16, and no graphs."""
    if any(dim % 4 for _, dim in case.table_shapes) or DType.BF16 in (case.weights, case.output):
        return False
    return case.call is not Call.GRAPH and not (case.optimizer.is_adam and case.weights is DType.FP16)


def counted(cases: tuple[Case, ...], supports: Callable[[Case], bool] = lambda case: True) -> Coverage:
    coverage = Coverage()
    for case in cases:
        coverage.add(facts(case), judged=supports(case))
    return coverage


@pytest.mark.parametrize("seed", range(5))
def test_each_edge_and_pair_is_reached_from_every_seed(seed: int) -> None:
    missing = counted(edges.covering(BUDGET, seed=seed)).missing(BUDGET.work)
    assert set(missing.values()) == {Missing.TOO_LARGE}, [goal.name for goal in missing]


def test_what_a_subject_refuses_is_counted_as_refused() -> None:
    cases = edges.covering(BUDGET, demanding)
    missing = counted(cases, demanding).missing(BUDGET.work)
    assert Missing.NOT_DRAWN not in missing.values()
    refused = {goal.name for goal, why in missing.items() if why is Missing.REFUSED}
    assert {"dim=5", "weights=bf16", "call=graph", "weights=fp16, optimizer=adam"} <= refused
    assert "weights=fp32, optimizer=adam" not in refused
    assert sum(map(demanding, cases)) > 2 * sum(not demanding(case) for case in cases) / 3


def test_two_slices_of_the_default_profile_go_through_all_cases() -> None:
    drawn: list[Case] = []
    for part in range(Profile.DEFAULT.slices):
        settings = hypothesis.settings(
            max_examples=2 * Profile.DEFAULT.examples,
            phases=[hypothesis.Phase.generate],
            database=None,
            deadline=None,
        )

        def draw(case: Case) -> None:
            drawn.append(case)

        drive = hypothesis.seed(part)(settings(hypothesis.given(strategies.edge_cases(seed=3, part=part))(draw)))
        with seed_alone():
            drive()
    assert len(drawn) == len(set(drawn))
    assert set(counted(tuple(drawn)).missing(BUDGET.work).values()) == {Missing.TOO_LARGE}


def test_a_choice_of_cases_that_goes_through_a_list_is_told_the_seed_and_the_part() -> None:
    def listed(budget: Budget, *, seed: int = 0, part: int = 0) -> SearchStrategy[Case]:
        return st.just(Case(seed=10 * seed + part))

    declared = Property("listed", lambda case, check: None, listed)
    assert repr(declared.strategy(BUDGET, seed=3, part=1)) == repr(st.just(Case(seed=31)))


def test_cases_of_edges_are_few_and_small() -> None:
    cases = edges.covering(BUDGET)
    assert len(cases) < len(GOALS) / 4
    assert median(len(case.to_json()) for case in cases) < 700
    assert edges.covering(BUDGET) == cases
    assert edges.covering(BUDGET, seed=1) != cases


def test_a_small_budget_has_all_edges_but_the_largest() -> None:
    small = Profile.QUICK.budget
    missing = counted(edges.covering(small)).missing(small.work)
    not_drawn = [goal for goal, why in missing.items() if why is Missing.NOT_DRAWN]
    assert all(goal.elements > small.work / 2 or goal.name == "hot rows>=200" for goal in not_drawn), not_drawn


def test_many_rows_are_more_than_16_bits_hold_and_thousands_are_looked_up() -> None:
    for number in range(20):
        case = strategies.random_case(number, Budget(2**20, 2**20, 2**20), choices.MANY_ROWS)
        found = facts(case)
        assert case.table_shapes[0][0] > 2**16
        assert max(found.numbers[Number.ROW_ID]) >= 2**16
        assert max(found.numbers[Number.DISTINCT_ROWS]) > 4000
