"""Strategies: what they draw is a valid case within its budget, the same from the same seed, and small."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

import strategies
from equivcheck.bags import bags_of
from equivcheck.case import BoundsCheck, Call, Case, IndexType, Pooling
from equivcheck.facts import Flag, Number
from equivcheck.facts_of_case import facts
from equivcheck.formats import DType
from equivcheck.problem import materialise
from equivcheck.traits import holds
from equivcheck.words import permutation
from strategies import Budget, Menu, Profile, choices
from strategies.chooser import SeededChooser
from strategies.data import EPS, LEARNING_RATES, Recipe
from strategies.menu import Forced

MENUS = {menu.name: menu for menu in vars(choices).values() if isinstance(menu, Menu)}
STRATEGIES: dict[str, Callable[[], SearchStrategy[Case]]] = {
    name: getattr(strategies, name) for name in strategies.__all__ if name == "cases" or name.endswith("_cases")
}


def sizes(case: Case) -> Budget:
    """Elements that the first step of a case takes."""
    order = permutation(case.feature_order, len(case.features))
    features = bags_of(case, order, None)
    dims = [case.table_shapes[case.tables[position]][1] for position in order]
    longest = max(len(feature.lengths) for feature in features)
    bags = [len(feature.lengths) if case.ranks else longest for feature in features]
    own = [len(feature.lengths) for feature in features]
    return Budget(
        work=max(1, sum((len(f.rows) + b) * d for f, b, d in zip(features, own, dims, strict=True))),
        tables=max(1, sum(rows * dim for rows, dim in case.table_shapes)),
        output=max(1, sum(b * d for b, d in zip(bags, dims, strict=True))),
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_strategy_draws_cases_that_materialise_and_survive_json(name: str) -> None:
    @seed(1)
    @settings(max_examples=40, database=None, deadline=None, phases=[Phase.generate])
    @given(STRATEGIES[name](Budget(2**12, 2**12, 2**12)))  # type: ignore[call-arg]
    def check(case: Case) -> None:
        assert Case.from_json(case.to_json()) == case
        materialise(case)

    check()


@pytest.mark.parametrize("name", MENUS)
def test_each_menu_gives_valid_cases_from_seeds_within_the_budget(name: str) -> None:
    budget = Budget()
    for number in range(150):
        taken = sizes(strategies.random_case(number, budget, MENUS[name]))
        # A bag of MEAN is filled up to a power of two, at most twice its length.
        assert taken.work <= 2 * budget.work
        assert taken.output <= 2 * budget.output
        assert taken.tables <= 2 * budget.tables


@pytest.mark.soak
def test_twenty_thousand_cases_materialise() -> None:
    for number in range(20_000):
        materialise(strategies.random_case(number))


@pytest.mark.parametrize("size", [1, 64, 2**10])
def test_small_budgets_are_kept_too(size: int) -> None:
    for number in range(150):
        case = strategies.random_case(number, Budget(size, size, size))
        taken = sizes(case)
        # The narrowest table of a menu, and what a forced pair adds, are drawn however small the budget is.
        assert taken.work <= 2 * size + 200 * len(case.features), case.to_json()


def test_a_seed_names_a_case() -> None:
    assert strategies.random_case(7) == strategies.random_case(7)
    assert len({strategies.random_case(number) for number in range(200)}) == 200
    chooser = SeededChooser(3)
    assert {chooser.position(2, 5) for _ in range(100)} == {2, 3, 4, 5}


def test_cases_without_lookups_are_at_most_two_in_a_hundred() -> None:
    without = sum(case.lookups == 0 for case in map(strategies.random_case, range(2000)))
    assert 0 < without <= 40


def test_a_usual_case_is_half_a_kilobyte() -> None:
    written = [len(strategies.random_case(number).to_json()) for number in range(500)]
    assert median(written) <= 600


@pytest.mark.parametrize("forced", strategies.PAIRS, ids=lambda forced: str(forced.name))
def test_a_forced_pair_is_in_every_case_that_is_asked_for_it(forced: Forced) -> None:
    menu = replace(choices.ANY, forced=(forced,), recipes=(Recipe.EXACT,), empty=(False,))
    for number in range(6):
        case = strategies.random_case(number, menu=menu)
        found = facts(case)
        for axis in ("weights", "output", "rounding", "pooling"):
            if axis in forced.options:
                assert getattr(case, axis) in forced.options[axis]
        if "hot" in forced.options:
            shortest = next(run for run in range(1, 4097) if run in forced.options["hot"])
            assert max(found.numbers[Number.RUN]) >= shortest, case.to_json()
        if "bounds" in forced.options:
            assert case.bounds_check in forced.options["bounds"]
            assert (case.ranks > 0) == forced.name.endswith(("vbe, weighted", "vbe, unweighted"))
        if forced.name.startswith("unsorted"):
            assert Flag.UNSORTED_SHARING in found.flags
        if forced.name.endswith("shared"):
            assert Flag.SHARING in found.flags
        if forced.name.endswith("alone"):
            assert Flag.SHARING not in found.flags


def test_a_menu_says_which_forced_options_are_no_neighbours() -> None:
    forced = Forced("gap", {"weights": (DType.FP32, DType.BF16)})
    with pytest.raises(ValueError, match=r"'gap'.*are not neighbours among the options of weights"):
        _ = Menu(forced=(forced,)).pinned


def test_a_subject_s_menu_leaves_out_what_it_refuses_alone() -> None:
    def supports(case: Case) -> bool:
        multiple = all(dim % 4 == 0 for _, dim in case.table_shapes)
        return multiple and case.weights is not DType.BF16 and case.call is not Call.GRAPH

    menu = choices.ANY.supported(supports)
    drawn = [strategies.random_case(number, menu=menu) for number in range(200)]
    assert all(map(supports, drawn))
    assert any(case.weights is DType.FP16 for case in drawn)


def test_most_cases_for_a_subject_are_ones_that_it_takes_and_the_rest_is_drawn_too() -> None:
    taken: list[bool] = []

    @seed(1)
    @settings(max_examples=300, database=None, deadline=None, phases=[Phase.generate])
    @given(strategies.cases(supports=lambda case: case.indices is IndexType.INT32))
    def draw(case: Case) -> None:
        taken.append(case.indices is IndexType.INT32)

    draw()
    assert 0.7 < sum(taken) / len(taken) < 1


def test_exact_cases_keep_the_conditions_of_exactness() -> None:
    for number in range(300):
        case = strategies.random_case(number, menu=choices.EXACT)
        if case.pooling is Pooling.MEAN:
            assert Flag.UNEVEN_BAG not in facts(case).flags, case.to_json()
        if holds(["regime weights=revealing"], facts(case)):
            assert min(dim for _, dim in case.table_shapes) >= 4
            assert case.lookups <= 2**12


def test_hyper_parameters_are_the_ones_of_the_design() -> None:
    assert {0.0, 2.0**-27, 2.0**-3, 1.0} <= set(EPS)
    assert {0.0, 0.5, 2.0**-24, 100.0} <= set(LEARNING_RATES)


def test_steps_have_batches_of_one_size_with_other_lengths() -> None:
    """What a system keeps for the next batch of the same shape is then wrong for it."""
    other = more = 0
    for number in range(300):
        case = strategies.random_case(number, menu=choices.STEPS)
        first, *later = materialise(case).batches
        for batch in later:
            same = batch.offsets.shape == first.offsets.shape and batch.batch_sizes == first.batch_sizes
            moved = same and bool((batch.offsets != first.offsets).any())
            other += moved
            more += moved and len(batch.indices) == len(first.indices)
    assert other > 100
    assert more > 20


def test_bounds_cases_check_bounds() -> None:
    drawn = [strategies.random_case(number, menu=choices.BOUNDS) for number in range(200)]
    assert all(case.bounds_check is not BoundsCheck.NONE for case in drawn)
    assert sum(bool(case.bad_indices or case.bad_offsets) for case in drawn) > 100


def test_profiles_grow() -> None:
    for smaller, larger in pairwise(Profile):
        assert smaller.budget.within(larger.budget) == smaller.budget
        assert smaller.examples * smaller.slices < larger.examples * larger.slices


def test_a_budget_is_positive() -> None:
    with pytest.raises(ValueError, match="budget's work is 0; a case has at least one element"):
        Budget(work=0)


def test_another_package_of_this_name_has_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "__init__.py").write_text("", "utf-8")
    ours = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "strategies"}
    for name in ours:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    other = importlib.import_module("strategies")
    assert not hasattr(other, "__equivcheck__")
    assert ours["strategies"].__equivcheck__ == 1
    monkeypatch.delitem(sys.modules, "strategies")
    sys.modules.update(ours)


def test_drawing_needs_no_health_check_to_be_silenced() -> None:
    @seed(2)
    @settings(max_examples=60, database=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(strategies.cases())
    def check(case: Case) -> None:
        assert case.features

    check()
