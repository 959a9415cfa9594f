"""Large tables, on the CPU with smaller ones: rows lie apart, and what 32 bits would do is seen."""

from __future__ import annotations

import runpy
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from equivcheck.arithmetic import Arithmetic
from equivcheck.backends.large import ELSEWHERE, SIGNED, UNSIGNED, Large, changed_rows, far_apart
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.case import BoundsCheck, Case
from equivcheck.engine.suite import suite_folder
from equivcheck.findings import built_in_folder, load_findings
from equivcheck.outcome import SUPPORTED, Support
from equivcheck.runner import Subject, run
from equivcheck.verdict import Status, Tensor
from strategies import Budget, random_case

SPREAD = runpy.run_path(str(suite_folder() / "test_large_tables.py"))["SPREAD"]
ELEMENTS = 2**16


def drawn(number: int) -> list[Case]:
    return [random_case(seed, Budget(2**10, 2**10, 2**10), SPREAD) for seed in range(number)]


@pytest.mark.parametrize("name", ["fbgemm-cpu", "triton:cpu"])
def test_right_kernels_are_right_on_spread_rows(name: str) -> None:
    try:
        subject = Subject.load(name)
    except BackendUnavailable as missing:
        pytest.skip(str(missing))
    backend: Any = subject.backend
    backend.timing = lambda: SUPPORTED
    large = Subject(name, Large(backend, ELEMENTS, anywhere=True), subject.versions)
    folder = built_in_folder()
    assert folder is not None
    known = [finding for finding in load_findings([folder]) if finding.concerns(name, subject.versions)]
    verdicts = [run(case, large, findings=known).verdict for case in drawn(60 if name == "fbgemm-cpu" else 12)]
    statuses = Counter(verdict.status for verdict in verdicts)
    assert not {*statuses} - {Status.PASSED, Status.MISTRUSTED, Status.KNOWN, Status.UNSUPPORTED}, verdicts
    assert statuses[Status.PASSED] >= len(verdicts) // 4


class Wrapping:
    """A plain system in NumPy; row numbers of the first table wrap at `wrap` in what is read or in what is written."""

    name = "wrapping"
    device = torch.device("cpu")

    def __init__(self, reads: int = 2**40, writes: int = 2**40) -> None:
        self.reads, self.writes = reads, writes

    def supports(self, case: Case) -> Support:
        return SUPPORTED

    def arithmetic(self, case: Case) -> Arithmetic:
        return Arithmetic()

    def timing(self) -> Support:
        return SUPPORTED

    def prepare(self, case: Case) -> _Prepared:
        return _Prepared(case, self)

    def run(self, problem: Any) -> Any:
        raise AssertionError("only large tables are run here")

    def versions(self) -> dict[str, str]:
        return {}


class _Prepared:
    def __init__(self, case: Case, backend: Wrapping) -> None:
        self.device = torch.device("cpu")
        self.tables = [torch.zeros(shape) for shape in case.table_shapes]
        self.states: list[list[torch.Tensor]] = []
        self.rate = 0.0
        self.backend = backend

    def set_learning_rate(self, rate: float) -> None:
        self.rate = rate

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor, per_sample_weights: torch.Tensor | None) -> Any:
        table, rows = self.tables[0], indices % self.backend.reads
        looked = torch.nn.functional.embedding_bag(rows, table, offsets, mode="sum", include_last_offset=True)
        return _Pending(self, indices, offsets, looked)


class _Pending:
    def __init__(self, prepared: _Prepared, indices: torch.Tensor, offsets: torch.Tensor, output: torch.Tensor) -> None:
        self.prepared, self.indices, self.offsets, self.output = prepared, indices, offsets, output

    def backward(self, gradient: torch.Tensor, retain: bool) -> torch.Tensor | None:
        bags = torch.repeat_interleave(torch.arange(len(self.offsets) - 1), self.offsets.diff())
        found = torch.zeros(len(self.prepared.tables[0]), gradient.shape[1])
        found.index_add_(0, self.indices % self.prepared.backend.writes, gradient[bags])
        self.prepared.tables[0].sub_(self.prepared.rate * found)
        return None


SIMPLE = Case.from_json(
    b'{"equivcheck_case":1,"features":[{"rows":4,"dim":4,"bags":[{"lookups":[[0,1],[3,2]]},{"lookups":[[1,1]]},'
    b'{"lookups":[[2,3]]}]}],"seed":5}'
)


def judged(backend: Wrapping) -> Any:
    return run(SIMPLE, Subject("wrapping", Large(backend, ELEMENTS, anywhere=True), {})).verdict


def test_a_wrapped_read_and_a_wrapped_write_are_seen() -> None:
    assert judged(Wrapping()).status is Status.PASSED
    wrap = ELEMENTS // 4 - 1
    read, written = judged(Wrapping(reads=wrap)), judged(Wrapping(writes=wrap))
    assert Tensor.OUTPUT in {d.tensor for d in read.discrepancies}
    assert {Tensor.ROWS, Tensor.GUARDS} & {d.tensor for d in written.discrepancies}


def test_a_write_into_a_row_of_nobodys_is_told_by_its_number() -> None:
    verdict = judged(Wrapping(writes=ELEMENTS // 4 - 5))
    (guard,) = [d for d in verdict.discrepancies if d.tensor is Tensor.GUARDS]
    assert "rows 4 of table 0" in guard.where


def test_rows_lie_around_what_32_bits_hold() -> None:
    rows = (UNSIGNED + 2**20) // 64
    for count in (1, 2, 7, 33):
        found = far_apart(count, rows, 64, 3)
        assert len(set(found.tolist())) == count
        assert found[-1] == rows - 1
        assert (np.diff(found) > 0).all()
    assert {UNSIGNED // 64, UNSIGNED // 64 - 1, SIGNED // 64, SIGNED // 64 - 1, 0} < set(far_apart(10, rows, 64, 0))
    assert far_apart(5, 5, 4, 1).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="cannot be spread"):
        far_apart(6, 5, 4, 1)


def test_every_element_is_looked_at() -> None:
    table = torch.full((100, 6), 0.75)
    assert not changed_rows(table, 0.75).size
    table[0, 0], table[57, 5], table[99, 5] = 0.5, float("nan"), -0.75
    assert changed_rows(table, 0.75).tolist() == [0, 57, 99]
    assert changed_rows(table[:, 0].contiguous(), 0.75).tolist() == [0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bounds_check": BoundsCheck.WARNING}, "bounds check"),
        ({"ranks": 1}, "variable batches"),
        ({"feature_order": 1}, "another order"),
    ],
)
def test_what_is_not_tried_is_said(changes: dict[str, Any], reason: str) -> None:
    import msgspec

    support = Large(Wrapping(), anywhere=True).supports(msgspec.structs.replace(SIMPLE, **changes))
    assert not support
    assert reason in support.reason
    assert Large(Wrapping()).supports(SIMPLE).reason == ELSEWHERE


def test_a_subject_without_readable_states_is_refused() -> None:
    plain = Subject.load("torch:cpu").backend
    assert "filled on its device" in Large(plain, ELEMENTS, anywhere=True).supports(SIMPLE).reason
