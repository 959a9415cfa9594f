"""Two runs: ratios where they are comparable, and a sentence where they are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from equivcheck.bench.compare import NotComparable, as_lines, compared
from equivcheck.bench.medians import Quantity, ratio
from equivcheck.bench.point import Kind, Point, Setting
from equivcheck.bench.result import (
    Document,
    Judged,
    Machine,
    Measured,
    Method,
    Phase,
    Provenance,
    Row,
    System,
    Times,
    load,
    save,
    schema,
)
from equivcheck.bench.table import as_markdown, headings
from equivcheck.case import CaseError, Distribution
from equivcheck.formats import DType
from equivcheck.verdict import Status

replace = msgspec.structs.replace
POINT = Point("few_tables/a", Kind.FEW_TABLES, (40,), (8,), (3,), 4)
JUDGED = Judged(Status.PASSED, "0123")


def times(median: float) -> Times:
    return Times(median, 2 * median, median / 2, 100)


def phase(median: float, method: Method = Method.GRAPH, launched: float = 50.0) -> Phase:
    reason = "" if method is Method.GRAPH else "no graph could be captured: no"
    return Phase(times(median), method, reason, times(launched), times(30.0), 1000, 2000, 0.5)


def measured(scale: float = 1.0, **changed: Any) -> Measured:
    found = Measured(phase(10 * scale), phase(20 * scale), phase(30 * scale), times(60 * scale), 10**6, 10**5)
    return replace(found, **changed)


def row(subject: Measured | None, witness: Measured | None = None, point: Point = POINT) -> Row:
    of_witness = None if witness is None else System(JUDGED, witness)
    return Row(point, System(JUDGED, subject), of_witness, 12, 6, 3)


def document(*rows: Row, witness: str = "") -> Document:
    made = Provenance(
        "2026-11-30T12:00:00+00:00", "abc", "NVIDIA H200", "580.1", "13.0", "Linux", {"torch": "2.11"}, {}, {}, "bench"
    )
    return Document(1, "triton", witness, Setting(), made, Machine(4e12, 3.0, 256), rows)


def test_ratios_are_before_over_after() -> None:
    lines = as_lines(compared(document(row(measured(2.0))), document(row(measured()))))
    assert "few_tables/a: forward 2.00, backward 2.00, both 2.00, step 2.00" in lines
    assert "forward: median 2.00, 2.00 to 2.00" in lines


def test_versions_that_differ_are_named_and_no_obstacle() -> None:
    before = document(row(measured()))
    after = replace(before, provenance=replace(before.provenance, versions={"torch": "2.13"}, driver="590"))
    lines = as_lines(compared(before, after))
    assert "torch: 2.11 before, 2.13 after" in lines
    assert "driver: 580.1 before, 590 after" in lines


def test_another_device_type_or_optimizer_is_refused() -> None:
    before = document(row(measured()))
    other = replace(before, provenance=replace(before.provenance, device="NVIDIA B200"))
    with pytest.raises(NotComparable, match="the device is NVIDIA H200 before and NVIDIA B200 after; measure both"):
        compared(before, other)
    with pytest.raises(NotComparable, match="the table type is fp16 before and fp32 after"):
        compared(before, replace(before, setting=Setting(weights=DType.FP32)))
    with pytest.raises(NotComparable, match="the per-sample weights is False before and True after"):
        compared(before, replace(before, setting=Setting(weighted=True)))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"batch": 8}, "few_tables/a has batch 4 before and 8 after"),
        ({"distribution": Distribution.ZIPF}, 'has distribution "uniform" before and "zipf" after'),
        ({"rows": (20,)}, r"has rows \[40\] before and \[20\] after"),
        ({"ragged": True}, "has ragged false before and true after"),
    ],
)
def test_another_batch_distribution_or_table_is_refused(changed: dict[str, Any], sentence: str) -> None:
    after = row(measured(), point=replace(POINT, **changed))
    with pytest.raises(NotComparable, match=sentence):
        compared(document(row(measured())), document(after))


def test_times_of_a_graph_and_of_events_are_refused() -> None:
    after = row(measured(backward=phase(20.0, Method.EVENTS)))
    with pytest.raises(NotComparable, match="the backward of few_tables/a was measured by graph before and by events"):
        compared(document(row(measured())), document(after))


def test_runs_without_a_common_point_are_refused() -> None:
    with pytest.raises(NotComparable, match="no point was measured in both"):
        compared(document(row(measured())), document(row(None)))


def test_a_ratio_compares_like_with_like() -> None:
    both = row(measured(), measured(1.5))
    assert ratio(both, Quantity.FORWARD) == 1.5
    # One in a graph, the other not: both between events.
    mixed = row(measured(), measured(forward=phase(45.0, Method.EVENTS, launched=40.0)))
    assert ratio(mixed, Quantity.FORWARD) == 40.0 / 50.0
    assert ratio(mixed, Quantity.BACKWARD) == 1.0
    assert ratio(row(None, measured()), Quantity.FORWARD) is None


def test_a_page_marks_what_no_graph_measured() -> None:
    page = as_markdown(document(row(measured(forward=phase(45.0, Method.EVENTS)), measured()), witness="fbgemm-cuda"))
    assert "45.0*" in page
    assert "* measured between events" in page
    assert "triton: no graph could be captured: no: few_tables/a" in page
    assert "copy bandwidth 4,000 GB/s in this run" in "\n".join(headings(document()))


def test_a_document_is_read_as_it_was_written_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    save(document(row(measured())), path)
    assert load(path) == document(row(measured()))
    assert [found.name for found in tmp_path.iterdir()] == ["bench.json"]
    save(replace(document(), equivcheck_bench=7), path)
    with pytest.raises(CaseError, match="has version 7; this version reads 1"):
        load(path)
    path.write_text("{}")
    with pytest.raises(CaseError, match="has no equivcheck_bench"):
        load(path)
    path.write_text("[")
    with pytest.raises(CaseError, match="holds no result of equivcheck bench"):
        load(path)
    with pytest.raises(CaseError, match="cannot be read"):
        load(tmp_path / "nowhere.json")


def test_the_schema_in_the_docs_is_the_documents() -> None:
    documented = Path(__file__).parents[2] / "docs" / "bench.schema.json"
    assert documented.read_bytes() == schema(), "write it anew: equivcheck.bench.result.schema()"
