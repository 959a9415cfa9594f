"""Points: the sweep, their siblings, limits, and the fewest bytes."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from equivcheck.bench import traffic
from equivcheck.bench.point import Kind, Point, Setting, limited, table_bytes, tables_of
from equivcheck.bench.selection import Wanted, select
from equivcheck.bench.sibling import ELEMENTS, sibling
from equivcheck.bench.sweep import sweep
from equivcheck.case import CaseError, Distribution, OptimizerKind
from equivcheck.formats import DType
from equivcheck.problem import materialise
from equivcheck.runner import Subject, run
from equivcheck.verdict import Status

SETTING = Setting()
POINTS = sweep()


def test_every_class_has_four_points_or_more_and_comes_first_once() -> None:
    counts = Counter(point.kind for point in POINTS)
    assert set(counts) == set(Kind) - {Kind.SHARDS}
    assert min(counts.values()) >= 4
    assert len(POINTS) >= 40
    assert len({point.name for point in POINTS}) == len(POINTS)
    assert len({point.kind for point in POINTS[: len(counts)]}) == len(counts)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_a_point_fits_a_gpu_and_fbgemm(point: Point) -> None:
    assert len(point.rows) == len(point.dims) == len(point.lengths)
    assert table_bytes(point, SETTING) < 20e9
    assert all(dim % 4 == 0 for dim in point.dims)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_a_sibling_keeps_what_decides_and_is_small(point: Point) -> None:
    case = sibling(point, SETTING)
    assert [dim for _, dim in case.table_shapes] == list(point.dims)
    assert (case.weights, case.output, case.optimizer.kind) == (SETTING.weights, SETTING.output, SETTING.optimizer)
    per_sample = sum(length * dim for length, dim in zip(point.lengths, point.dims, strict=True))
    elements = sum(f.traffic.bags * f.traffic.length * f.dim for f in case.features if f.traffic is not None)
    assert elements <= ELEMENTS + 2 * per_sample * (elements < 2 * ELEMENTS)
    for feature, rows, length in zip(case.features, point.rows, point.lengths, strict=True):
        traffic_ = feature.traffic
        assert traffic_ is not None
        assert traffic_.distribution is point.distribution
        assert traffic_.ragged is point.ragged
        assert 2 <= traffic_.bags <= point.batch
        # Lookups for each row are the point's, or as many as there are; or so few that a row is rarely named twice.
        lookups = traffic_.bags * traffic_.length
        wanted = point.batch * length / rows
        found = lookups / feature.rows
        assert found == pytest.approx(min(wanted, lookups), rel=0.6) or found <= 1 / 4


@pytest.mark.parametrize("name", ["long_runs/run2048", "small_dims/D4", "mixed_dims/rows4..1M", "long_bags/L64-ragged"])
def test_a_sibling_passes_on_plain_pytorch(name: str) -> None:
    [point] = [point for point in POINTS if point.name == name]
    assert run(sibling(point, SETTING), Subject.load("torch:cpu")).verdict.status is Status.PASSED


def test_limits_cut_and_say_so() -> None:
    point = Point("p", Kind.SHARDS, (1000, 10), (8, 8), (1, 1), 64)
    assert limited(point, SETTING, None, None, 10**9) == point
    cut = limited(point, SETTING, 100, 16, 10**9)
    assert (cut.rows, cut.batch) == ((100, 10), 16)
    assert cut.notes == (
        "batch 16 instead of 64: --batch-limit",
        "tables of more than 100 rows have 100: --rows-limit",
    )


def test_short_memory_cuts_the_largest_tables_to_what_just_fits() -> None:
    point = Point("p", Kind.SHARDS, (1000, 500, 10), (8, 8, 8), (1, 1, 1), 64)
    memory = table_bytes(point, SETTING) // 2
    cut = limited(point, SETTING, None, None, memory)
    assert cut.rows[0] == cut.rows[1]
    assert cut.rows[2] == 10
    larger = msgspec.structs.replace(cut, rows=(cut.rows[0] + 1, cut.rows[1] + 1, 10))
    assert table_bytes(cut, SETTING) <= memory < table_bytes(larger, SETTING)
    assert "over the memory's share" in cut.notes[0]


@pytest.mark.parametrize("kind", list(OptimizerKind))
@pytest.mark.parametrize("weights", [DType.FP16, DType.FP32])
def test_bytes_of_tables_are_those_of_a_materialised_case(kind: OptimizerKind, weights: DType) -> None:
    point = Point("p", Kind.SHARDS, (7, 3), (8, 4), (1, 1), 2)
    setting = Setting(weights=weights, optimizer=kind)
    initial = materialise(tables_of(point, setting)).initial
    arrays = (*initial.tables, *initial.momentum1, *initial.momentum2)
    assert table_bytes(point, setting) == sum(array.nbytes for array in arrays)


def test_the_fewest_bytes_by_hand() -> None:
    point = Point("p", Kind.SHARDS, (100, 100), (4, 8), (2, 1), 3)
    counts = traffic.Counts(lookups=(6, 3), distinct=(2, 3))
    inputs = 8 * 9 + 8 * 7
    dense = 3 * 12 * 4
    assert traffic.forward(point, SETTING, counts) == traffic.Bytes(
        (2 * 4 + 3 * 8) * 2 + inputs + dense, (6 * 4 + 3 * 8) * 2 + inputs + dense
    )
    # Rows and their one fp32 of state are read and written.
    assert traffic.backward(point, SETTING, counts).fewest == 2 * ((2 * 4 + 3 * 8) * 2 + 5 * 4) + inputs + dense
    adam = Setting(weights=DType.FP32, output=DType.FP16, optimizer=OptimizerKind.ADAM, weighted=True)
    assert traffic.backward(point, adam, counts).fewest == 2 * 32 * 12 + inputs + 9 * 4 + dense // 2


def test_selection_by_class_name_and_quick() -> None:
    assert {point.kind for point in select(Wanted(kinds=("few_tables",)))} == {Kind.FEW_TABLES}
    assert [point.name for point in select(Wanted(name="run2048-D32"))] == ["long_runs/run2048-D32"]
    assert len(select(Wanted(quick=True))) == len(Kind)
    every = select(Wanted())
    assert sum(point.kind is Kind.SHARDS for point in every) == 4
    assert [point.distribution for point in every if "dlrm" in point.name] == [Distribution.ZIPF, Distribution.UNIFORM]
    with pytest.raises(CaseError, match="class 'tiny' does not exist; there are small_dims"):
        select(Wanted(kinds=("tiny",)))
    with pytest.raises(CaseError, match="no point of"):
        select(Wanted(name="nowhere"))


def test_names_of_types_are_checked() -> None:
    assert Setting.named("fp32", "fp16", "adam", weighted=True) == Setting(
        DType.FP32, DType.FP16, OptimizerKind.ADAM, True
    )
    with pytest.raises(CaseError, match="weights 'fp64' do not exist; there are fp32, fp16, bf16"):
        Setting.named("fp64", "fp32", "adam", weighted=False)
    with pytest.raises(CaseError, match="optimizer 'sgd' does not exist; there are exact_sgd"):
        Setting.named("fp32", "fp32", "sgd", weighted=False)
