"""Soak: what it counts, where its cases come from, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

import strategies
from equivcheck.case import Case
from equivcheck.engine.subjects import load_subject
from equivcheck.outcome import SUPPORTED, Support
from equivcheck.runner import Subject
from equivcheck.soak import SIGNATURES, Plan, Ratios, Soaked, _Drawing, as_text, draw, soak
from strategies import choices

KERNELS = Path(__file__).with_name("kernels.py")


def test_quantiles_are_of_bounded_cases_rounded_up() -> None:
    ratios = Ratios(exact=7)
    for number in range(100):
        ratios.count(number / 1000)
    assert (ratios.bounded, ratios.worst) == (100, 0.099)
    assert ratios.quantile(0.5) == 0.05
    assert ratios.quantile(0.99) == 0.10
    assert ratios.quantile(0.01) == 0.0
    assert Ratios().quantile(0.5) == 0.0


def test_ratios_of_chunks_add_up() -> None:
    one, other = Ratios(1), Ratios(2)
    one.count(0.25)
    other.count(1.0)
    one.merge(other)
    assert (one.exact, one.bounded, one.worst, one.quantile(0.5), one.quantile(1.0)) == (3, 2, 1.0, 0.25, 1.0)


def test_a_soak_tells_errors_by_tensor_and_type(tmp_path: Path) -> None:
    plan = Plan("torch:cpu", cases=200, processes=1, chunk=100)
    told: list[int] = []
    found = soak(plan, tmp_path, lambda soaked: told.append(soaked.cases))
    assert told == [100, 200]
    assert (found.cases, found.alarms, found.first, found.last) == (200, [], 0, 200)
    assert {"output fp16", "output fp32", "updated rows bf16", "momentum1 fp32"} <= set(found.ratios)
    output = found.ratios["output fp32"]
    assert output.bounded > 0
    assert 0 < output.quantile(0.5) <= output.worst <= 1
    lines = list(as_text(found, 1.0))
    (row,) = (line for line in lines if line.startswith("output fp32"))
    assert row.split()[2:4] == [str(output.exact), str(output.bounded)]


def test_time_ends_a_soak_within_a_chunk(tmp_path: Path) -> None:
    found = soak(Plan(f"{KERNELS}:Right", seconds=10.0, processes=1, chunk=10**6), tmp_path)
    assert 0 < found.cases < 10**5
    assert found.last < 10**6


def test_a_wrong_kernel_is_an_alarm_with_its_case(tmp_path: Path) -> None:
    found = soak(Plan(f"{KERNELS}:LosesTail", cases=400, processes=1), tmp_path)
    assert found.alarms
    alarm = found.alarms[0]
    assert draw(alarm.seed, alarm.subject)[1] == alarm.menu
    assert f"ALARM seed {alarm.seed}" in "\n".join(as_text(found, 1.0))


class _Compiles:
    """Takes everything, and compiles."""

    name = "compiles"
    compiles_for_widths = True

    def supports(self, case: Case) -> Support:
        return SUPPORTED


def _types(case: Case) -> tuple[object, ...]:
    weights = case.per_sample_weights
    optimizer = (case.optimizer.kind, case.optimizer.decay)
    return case.weights, case.output, case.accumulation, case.rounding, optimizer, weights and weights.dtype


def test_compiled_kernels_get_types_and_widths_from_a_pool() -> None:
    drawing = _Drawing(Subject("compiles", _Compiles()))  # type: ignore[arg-type]
    number = len(choices.MENUS) - 1
    drawn = [drawing.case(seed)[0] for seed in range(4 * SIGNATURES * number)]
    assert {dim for case in drawn for _, dim in case.table_shapes} <= set(strategies.pool(0))
    any_case = drawn[::number]  # of the first menu
    assert len({_types(case) for case in any_case}) <= SIGNATURES
    assert len({case.weights for case in any_case}) == 3
    assert len({case.to_json() for case in any_case}) > 0.9 * len(any_case)


def test_other_kernels_get_any() -> None:
    drawing = _Drawing(load_subject(f"{KERNELS}:Right"))
    widths = {dim for seed in range(600) for _, dim in drawing.case(seed)[0].table_shapes}
    assert len(widths) > 10


@pytest.mark.parametrize("name", ["any", "optimizer"])
def test_a_signature_leaves_one_option_of_what_is_compiled(name: str) -> None:
    menu = next(menu for menu in choices.MENUS if menu.name == name)
    narrowed = strategies.signature(menu, 3)
    assert len(narrowed.weights) == len(narrowed.output) == len(narrowed.optimizers) == 1
    assert narrowed.recipes == menu.recipes
    assert strategies.signature(menu, 3).weights == narrowed.weights
    assert len({strategies.signature(menu, key).optimizers for key in range(40)}) == len(menu.optimizers)


def test_soaks_of_several_chunks_are_counted_together() -> None:
    one, other = Soaked("x", first=0, last=10), Soaked("x", first=10, last=30, seconds=2.0)
    one.merge(other)
    assert (one.last, one.seconds) == (30, 2.0)


def test_there_may_be_more_processes_than_chunks(tmp_path: Path) -> None:
    soaked = soak(Plan("torch:cpu", cases=3, processes=3, chunk=2), tmp_path)
    assert (soaked.cases, soaked.last) == (3, 3)
