"""Recorded results: what is written is read again, and today's results are told apart from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import strategies
from equivcheck.arithmetic import Arithmetic, Grouped, MeanDivision, Store, StoreRounding, TensorCore
from equivcheck.case import (
    BadIndex,
    Bag,
    BoundsCheck,
    Case,
    CaseError,
    Feature,
    IndexFault,
    Lookup,
    Optimizer,
    OptimizerKind,
    PerSampleWeights,
    Pooling,
    Regime,
    Step,
    Values,
)
from equivcheck.formats import DType
from equivcheck.outcome import Forward, Outcome, Update
from equivcheck.problem import Snapshot, materialise
from equivcheck.recorded import Recorded
from equivcheck.recordings import Provenance, Record, Recordings, named_rows, write
from equivcheck.runner import Subject, run
from equivcheck.verdict import Status
from equivcheck.verification import Agreement, record, verify

UNIFORM = Values(Regime.UNIFORM)
FEATURES = (
    Feature(rows=7, dim=4, bags=(Bag((Lookup(1, 2), Lookup(5))), Bag())),
    Feature(rows=3, dim=8, bags=(Bag((Lookup(2),)),)),
)
BASE = Case(features=FEATURES, weight_values=UNIFORM, gradient_values=UNIFORM, state_values=UNIFORM)
CASES = (
    BASE,
    Case(
        features=FEATURES,
        weights=DType.BF16,
        output=DType.BF16,
        optimizer=Optimizer(OptimizerKind.ADAM, eps=0.125),
        per_sample_weights=PerSampleWeights(DType.FP16, UNIFORM, gradient=True),
        weight_values=UNIFORM,
        gradient_values=UNIFORM,
        steps=(Step(), Step(shift=1)),
    ),
    Case(
        features=FEATURES,
        pooling=Pooling.MEAN,
        optimizer=Optimizer(OptimizerKind.ROWWISE_ADAGRAD, eps=1.0),
        bounds_check=BoundsCheck.WARNING,
        bad_indices=(BadIndex(IndexFault.ROWS, 1),),
        weight_values=UNIFORM,
    ),
)
PROVENANCE = Provenance("torch:cpu", {"torch": "2"}, device="a processor", date="2026-11-30")


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject.load("torch:cpu")


@pytest.fixture(scope="module")
def records(subject: Subject) -> list[Record]:
    found, refused = record(CASES, subject)
    assert not refused
    return found


def same(one: Outcome, other: Outcome) -> bool:
    def arrays(outcome: Outcome) -> list[bytes]:
        found = []
        for result in outcome.results:
            if isinstance(result, Forward):
                found.append(result.output)
            else:
                found += [*result.after.tables, *result.after.momentum1, *result.after.momentum2]
                found += [] if result.weight_gradient is None else [result.weight_gradient]
        return [f"{array.dtype} {array.shape}".encode() + array.tobytes() for array in found]

    return arrays(one) == arrays(other)


def test_what_is_written_is_read_again(tmp_path: Path, records: list[Record]) -> None:
    write(tmp_path, PROVENANCE, records)
    recordings = Recordings(tmp_path)
    assert recordings.cases == CASES
    assert recordings.provenance == PROVENANCE
    for written in records:
        assert same(recordings.outcome(materialise(written.case)), written.outcome)
        assert recordings.arithmetic(written.case) == written.arithmetic
        entry = recordings.entry(written.case)
        assert entry is not None
        assert entry.status is written.status is Status.PASSED
        assert [w for w in entry.warnings if w is not None] == [
            r.warnings for r in written.outcome.results if isinstance(r, Forward) and r.warnings is not None
        ]


@pytest.mark.parametrize(
    "arithmetic",
    [
        Arithmetic(),
        Arithmetic(pooling=Grouped(4, DType.FP32, DType.FP64), mean_division=MeanDivision.DIVISION, division=4.0),
        Arithmetic(gradient=TensorCore(64), table_store=Store(StoreRounding.STOCHASTIC, saturates=True)),
        Arithmetic(gradient_rounding=DType.FP16, accumulator=DType.FP64, deterministic=False),
        Arithmetic(weight_gradient_store=Store(StoreRounding.TRUNCATE, flushes=True)),
    ],
)
def test_every_arithmetic_comes_back(tmp_path: Path, records: list[Record], arithmetic: Arithmetic) -> None:
    write(tmp_path, PROVENANCE, [replace(records[0], arithmetic=arithmetic)])
    assert Recordings(tmp_path).arithmetic(CASES[0]) == arithmetic


def test_named_rows_are_those_of_every_step_and_of_repairs() -> None:
    assert [rows.tolist() for rows in named_rows(materialise(CASES[0]))] == [[1, 5], [2]]
    assert [rows.tolist() for rows in named_rows(materialise(CASES[1]))] == [[1, 2, 5, 6], [0, 2]]
    assert [rows.tolist()[:1] for rows in named_rows(materialise(CASES[2]))] == [[0], [0]]


def test_todays_build_gives_the_same_bits(tmp_path: Path, records: list[Record], subject: Subject) -> None:
    write(tmp_path, PROVENANCE, records)
    results = list(verify(Recordings(tmp_path), subject))
    assert [result.agreement for result in results] == [Agreement.BIT_EQUAL] * 3
    assert all(result.equal == result.elements > 0 for result in results)


def changed(given: Record, by: float, row: int) -> Record:
    """The record with one element of a row of table 0 off by a share of itself."""
    first, update = given.outcome.results
    assert isinstance(update, Update)
    table = np.array(update.after.tables[0])
    table[row, 0] *= 1 + by
    after = Snapshot((table, *update.after.tables[1:]), update.after.momentum1, update.after.momentum2)
    return replace(given, outcome=replace(given.outcome, results=(first, replace(update, after=after))))


def test_other_bits_within_the_bounds_are_no_disagreement(
    tmp_path: Path, records: list[Record], subject: Subject
) -> None:
    write(tmp_path, PROVENANCE, [changed(records[2], 2.0**-23, 1)])
    (result,) = verify(Recordings(tmp_path), subject)
    assert result.agreement is Agreement.WITHIN
    assert result.elements - result.equal == 1


def test_a_record_that_was_wrong_is_not_held_against_todays_build(
    tmp_path: Path, records: list[Record], subject: Subject
) -> None:
    write(tmp_path, PROVENANCE, [replace(changed(records[0], 0.5, 1), status=Status.FAILED)])
    (result,) = verify(Recordings(tmp_path), subject)
    assert result.agreement is Agreement.NOT_COMPARED


def test_a_wrong_build_is_outside(tmp_path: Path, records: list[Record]) -> None:
    write(tmp_path, PROVENANCE, records[:1])

    class Wrong:
        """Gives the recorded results with one element of the output doubled."""

        def __init__(self, inner: Recorded) -> None:
            self.inner, self.name = inner, "wrong"
            self.supports, self.arithmetic, self.versions = inner.supports, inner.arithmetic, inner.versions

        def run(self, problem: object) -> Outcome:
            outcome = self.inner.run(problem)  # type: ignore[arg-type]
            first = outcome.results[0]
            assert isinstance(first, Forward)
            output = np.array(first.output)
            output[0, 0] *= 2
            return replace(outcome, results=(replace(first, output=output), *outcome.results[1:]))

    wrong = Wrong(Recorded(Recordings(tmp_path)))
    (result,) = verify(Recordings(tmp_path), Subject("wrong", wrong))
    assert result.agreement is Agreement.OUTSIDE
    assert result.verdict.status is Status.FAILED


def test_a_write_to_a_row_that_no_lookup_names_is_not_hidden(tmp_path: Path, records: list[Record]) -> None:
    write(tmp_path, PROVENANCE, [changed(records[0], 0.5, 3)])
    update = Recordings(tmp_path).outcome(materialise(CASES[0])).results[1]
    assert isinstance(update, Update)
    assert np.isnan(update.after.tables[0][[0, 2, 3, 4, 6]]).all()
    assert not np.isnan(update.after.tables[0][[1, 5]]).any()


def test_recordings_are_a_backend(tmp_path: Path, records: list[Record]) -> None:
    write(tmp_path, PROVENANCE, records)
    backend = Recorded(Recordings(tmp_path))
    subject = Subject(backend.name, backend, backend.versions())
    assert subject.name == "torch:cpu (recorded)"
    assert subject.versions["recorded"] == "2026-11-30 on a processor"
    assert run(CASES[0], subject).verdict.status is Status.PASSED
    assert run(Case(), subject).verdict.reason == "no result of torch:cpu is recorded for this case"


def test_damage_is_noticed(tmp_path: Path, records: list[Record]) -> None:
    write(tmp_path, PROVENANCE, records)
    part = tmp_path / "part-00.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(bytes(data))
    with pytest.raises(CaseError, match="SHA-256"):
        Recordings(tmp_path).outcome(materialise(CASES[0]))
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"equivcheck_recording": 1', '"equivcheck_recording": 9'))
    with pytest.raises(CaseError, match="format 9"):
        Recordings(tmp_path)
    with pytest.raises(CaseError, match="holds no recordings"):
        Recordings(tmp_path / "nowhere")


def test_a_case_that_materialises_otherwise_is_not_compared(tmp_path: Path, records: list[Record]) -> None:
    write(tmp_path, PROVENANCE, records)
    problem = materialise(CASES[0])
    other = replace(problem, initial=Snapshot(tuple(table + 1 for table in problem.initial.tables)))
    with pytest.raises(CaseError, match="other arrays"):
        Recordings(tmp_path).outcome(other)


def test_curated_cases_reach_more_than_as_many_drawn_ones() -> None:
    from equivcheck.coverage import reached
    from equivcheck.curation import curate
    from equivcheck.facts_of_case import facts

    small = strategies.Budget(2**10, 2**10, 2**10)
    drawn = [strategies.random_case(seed, small) for seed in range(300)]
    chosen = curate([BASE], [drawn[:150], drawn[150:]], 30)
    assert len(chosen) == len(set(chosen)) == 30
    assert chosen[0] == BASE
    goals = [{goal for case in cases for goal in reached(facts(case))} for cases in (chosen, drawn[:30])]
    assert len(goals[0]) > len(goals[1])
    assert chosen == curate([BASE], [drawn[:150], drawn[150:]], 30)
