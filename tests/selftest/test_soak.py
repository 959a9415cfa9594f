"""Soak: what it counts, where its cases come from, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

import strategies
from equivcheck import words
from equivcheck.case import Case, Rounding
from equivcheck.engine.subjects import load_subject
from equivcheck.formats import DType
from equivcheck.outcome import SUPPORTED, Support
from equivcheck.problem import materialise
from equivcheck.runner import Subject
from equivcheck.soak import (
    ISOLATED,
    SIGNATURES,
    SIZES,
    SLOW_CHUNK,
    Plan,
    Ratios,
    Soaked,
    _Drawing,
    as_text,
    draw,
    soak,
)
from strategies import choices
from strategies.data import Recipe

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


def test_on_a_gpu_few_cases_get_a_process_of_their_own(tmp_path: Path) -> None:
    subject = f"{KERNELS}:OnAGpu"
    seeds = range(400, 1_000)
    found = soak(Plan(subject, first=seeds[0], cases=len(seeds), processes=1), tmp_path)
    supports = load_subject(subject).backend.supports
    odd = [seed for seed in seeds if (case := draw(seed, subject)[0]).lookups % 2 and supports(case)]
    run = [seed for seed in odd if words.derive(seed, "isolated") % ISOLATED == 0]
    assert len(odd) > len(run) > 0
    assert (found.left_out, found.cases) == (len(odd) - len(run), len(seeds) - len(odd) + len(run))
    assert f"{found.left_out} cases that need a process of their own were left out" in "\n".join(as_text(found, 1.0))


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


COMPILES = Subject("compiles", _Compiles())  # type: ignore[arg-type]
RUN = SIGNATURES * SLOW_CHUNK


def _compiled_for(case: Case) -> tuple[object, ...]:
    """What a signature fixes, as the case has it; the order of features may differ."""
    weights = case.per_sample_weights
    optimizer = (case.optimizer.kind, case.optimizer.decay)
    types = (case.weights, case.output, case.accumulation, case.indices, weights and weights.dtype)
    widths = tuple(sorted(case.table_shapes[table][1] for table in case.tables))
    return (*types, case.pooling, case.rounding, *optimizer, widths)


def test_compiled_kernels_get_few_signatures() -> None:
    """1,000 cases, which drawn one axis from a pool after the other had 326 of them."""
    drawing = _Drawing(COMPILES, 0)
    drawn = [drawing.case(seed) for seed in range(1000)]
    assert len({_compiled_for(case) for case, _ in drawn}) <= SIGNATURES
    assert len({case.to_json() for case, _ in drawn}) > 950
    assert {menu for _, menu in drawn} == {menu.name for menu in choices.MENUS if menu is not choices.LARGE}


def test_cases_in_a_row_have_one_signature() -> None:
    drawing = _Drawing(COMPILES, 11)
    blocks = [range(11 + k * SLOW_CHUNK, 11 + (k + 1) * SLOW_CHUNK) for k in range(SIGNATURES)]
    found = [{_compiled_for(drawing.case(seed)[0]) for seed in block} for block in blocks]
    assert set(map(len, found)) == {1}
    assert len(set.union(*found)) >= SIGNATURES - 1


def test_runs_have_other_signatures_and_one_has_the_same() -> None:
    menus = [menu for menu in choices.MENUS if menu is not choices.LARGE]
    runs = [strategies.signatures(menus, first, SIGNATURES, lambda case: True) for first in range(60)]
    every = {signature for run in runs for signature in run}
    assert len(every) > 0.9 * 60 * SIGNATURES
    for axis in ("weights", "output", "accumulation", "optimizers", "decay", "pooling", "rounding", "weighted"):
        assert {option for signature in every for option in signature.options} >= set(getattr(choices.ANY, axis))
    assert {len(signature.widths) for signature in every} >= {1, 2, 3, 4}
    assert len({width for signature in every for width in signature.widths}) > 50
    assert _Drawing(COMPILES, 5).case(400) == _Drawing(COMPILES, 5).case(400)
    assert _Drawing(COMPILES, 5).case(400) != _Drawing(COMPILES, 6).case(400)


@pytest.mark.parametrize("first", range(6))
def test_a_signature_fits_cases_of_every_menu_that_has_it(first: int) -> None:
    """Menus keep what they are for: tables are shared, rounding is stochastic; and nothing is out of range."""
    drawing = _Drawing(COMPILES, first)
    for seed in range(first, first + RUN):
        case, menu = drawing.case(seed)
        assert Case.from_json(case.to_json()) == case
        materialise(case)
        if menu == "stochastic":
            assert case.rounding is Rounding.STOCHASTIC
        if menu == "weights":
            assert case.per_sample_weights is not None
        if menu == "sharing":
            assert len(case.tables) == 4


def test_sharing_survives_signatures() -> None:
    drawings = [(first, _Drawing(COMPILES, first)) for first in range(6)]
    drawn = [drawing.case(seed) for first, drawing in drawings for seed in range(first, first + RUN)]
    shared = [len(set(case.tables)) < len(case.tables) for case, menu in drawn if menu == "sharing"]
    assert sum(shared) > 0.8 * len(shared) > 40


def test_combinations_that_a_subject_refuses_are_drawn_again() -> None:
    menus = [choices.ANY, choices.OPTIMIZER]
    found = strategies.signatures(menus, 3, 40, lambda case: case.weights is DType.FP16)
    assert all(DType.FP16 is signature.options[0] for signature in found)
    assert len(strategies.signatures(menus, 3, 40, lambda case: False)) == 40


@pytest.mark.parametrize("name", ["any", "stochastic", "small tables"])
def test_a_menu_without_a_signatures_options_does_not_have_it(name: str) -> None:
    menu = next(menu for menu in choices.MENUS if menu.name == name)
    for seed in range(50):
        (signature,) = strategies.signatures([choices.ANY], seed, 1, lambda case: True)
        narrowed = signature.narrowed(menu)
        if narrowed is None:
            assert name != "any"
            continue
        assert (narrowed.weights, narrowed.output) == (signature.options[:1], signature.options[1:2])
        assert set(narrowed.recipes) <= set(menu.recipes)
        powers = all(width & (width - 1) == 0 for width in signature.widths)
        assert powers or Recipe.SQUARES not in narrowed.recipes


def test_other_kernels_get_any() -> None:
    subject = load_subject(f"{KERNELS}:Right")
    drawing = _Drawing(subject, 0)
    widths = {dim for seed in range(600) for _, dim in drawing.case(seed)[0].table_shapes}
    assert len(widths) > 10
    menus = [menu.supported(subject.backend.supports) for menu in choices.MENUS if menu is not choices.LARGE]
    budget = strategies.Budget(SIZES, SIZES, SIZES)
    for seed in range(60):
        assert drawing.case(seed)[0] == strategies.random_case(seed, budget, menus[seed % len(menus)])


def test_soaks_of_several_chunks_are_counted_together() -> None:
    one, other = Soaked("x", first=0, last=10), Soaked("x", first=10, last=30, seconds=2.0)
    one.merge(other)
    assert (one.last, one.seconds) == (30, 2.0)


def test_there_may_be_more_processes_than_chunks(tmp_path: Path) -> None:
    soaked = soak(Plan("torch:cpu", cases=3, processes=3, chunk=2), tmp_path)
    assert (soaked.cases, soaked.last) == (3, 3)
