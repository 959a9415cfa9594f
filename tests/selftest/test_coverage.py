"""Coverage: every edge and every pair is within reach of the default profile, and what is missing is named."""

from __future__ import annotations

import json

import pytest

import strategies
from equivcheck.case import Case
from equivcheck.coverage import GOALS, Coverage, Kind, Missing
from equivcheck.facts_of_case import facts
from strategies import Profile, choices

LARGEST = Profile.DEFAULT.budget.work
DEFAULT_CASES = 3000
"""As many as the default profile runs at least on a subject, of all properties together."""


@pytest.fixture(scope="module")
def default() -> Coverage:
    coverage = Coverage()
    menus = (choices.ANY, choices.RUN_LENGTH, choices.TRAFFIC, choices.SHARING)
    for number in range(DEFAULT_CASES):
        menu = choices.ANY if number % 4 else menus[number // 4 % 4]
        coverage.add(facts(strategies.random_case(number, menu=menu)))
    return coverage


def test_the_default_profile_reaches_every_edge_and_pair_that_its_sizes_allow(default: Coverage) -> None:
    missing = default.missing(LARGEST)
    assert {goal.name: str(why) for goal, why in missing.items() if why is not Missing.TOO_LARGE} == {}
    assert {goal.name for goal in missing} == {
        *("batch=65535", "batch=65536", "batch=65537"),
        *("row id>=2^24", "row id>=2^31", "table elements>=2^31"),
    }


def test_large_cases_reach_what_the_default_leaves_out() -> None:
    coverage = Coverage()
    budget = Profile.THOROUGH.budget
    for number in range(400):
        coverage.add(facts(strategies.random_case(number, budget, choices.LARGE)))
    reached = {"batch=65535", "batch=65536", "batch=65537", "row id>=2^24"}
    assert all(coverage.judged[name] for name in reached)


def test_goals_have_names_of_their_own() -> None:
    assert len({goal.name for goal in GOALS}) == len(GOALS)
    assert all(any(goal.kind is kind for goal in GOALS) for kind in Kind)


def test_counts_travel_as_json_and_add_up() -> None:
    one, other = Coverage(), Coverage()
    one.add(facts(Case()), paths=["long", "long"])
    other.add(facts(Case()), judged=False)
    read = Coverage.from_builtins(json.loads(json.dumps(other.to_builtins())))
    assert read == other
    one.merge(read)
    assert (one.cases, one.drawn["run=1"], one.judged["run=1"], one.paths) == (2, 0, 0, {"long": 1})
    assert (one.drawn["weights=fp32"], one.judged["weights=fp32"]) == (2, 1)


def test_what_is_missing_says_why() -> None:
    coverage = Coverage()
    coverage.add(facts(Case()), judged=False)
    missing = {goal.name: why for goal, why in coverage.missing(elements=100).items()}
    assert missing["weights=fp32"] is Missing.REFUSED
    assert missing["weights=fp16"] is Missing.NOT_DRAWN
    assert missing["run=257"] is Missing.TOO_LARGE


def test_a_line_and_the_whole(default: Coverage) -> None:
    line = default.line(LARGEST)
    assert line.startswith("edges ")
    assert "6 beyond this run's sizes" in line
    whole = default.render(LARGEST).splitlines()
    assert whole[0] == line
    assert "beyond this run's sizes:" in whole
    assert "  table elements>=2^31" in whole
