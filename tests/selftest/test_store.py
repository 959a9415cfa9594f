"""Saved cases: what is written is read back, and what is no saved case is refused with a sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from equivcheck import store
from equivcheck.captured import CapturedBatch, load_captured, save_captured
from equivcheck.case import Bag, Case, CaseError, Feature, Lookup
from equivcheck.store import Kind, Provenance, SavedCase
from equivcheck.verdict import Discrepancy, Status, Symptom, Tensor

CASE = Case(features=(Feature(rows=3, dim=4, bags=(Bag((Lookup(2, 5),)),)),), seed=7)
WRONG = Discrepancy(
    Tensor.ROWS,
    Symptom.OUT_OF_BOUND,
    1,
    "table 0, row 2, column 1",
    actual=0.1,
    truth=math.nan,
    low=-math.inf,
    high=5e-324,
    error=math.inf,
    bound=0.0,
    ratio=math.inf,
    ulps=3.5,
    count=4,
    detail="α",
)
PROVENANCE = Provenance(
    "./kernels/my.py:Mine", "run_length", "tests/equivalence/test_run_length.py", seed=0, slice=3, versions={"a": "1"}
)


def saved(**changes: object) -> SavedCase:
    fields = {"discrepancies": (WRONG,), "status": Status.FAILED, **changes}
    return SavedCase(CASE, Kind.SHRUNK, PROVENANCE, **fields)  # type: ignore[arg-type]


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    written = saved(failing_case=Case(seed=1), reason="why")
    read = store.load(store.save(written, tmp_path))
    assert repr(read) == repr(written)  # NaN is not equal to itself, but reads the same
    assert read.discrepancies[0].high == 5e-324


def test_the_name_tells_property_subject_and_case(tmp_path: Path) -> None:
    path = store.save(saved(), tmp_path / "new")
    assert path.name.startswith("run_length-my.py_Mine-shrunk-")
    assert store.save(saved(), tmp_path / "new") == path, "the same failure is the same file"
    other = Discrepancy(Tensor.OUTPUT, Symptom.NAN, 0, "")
    assert store.save(saved(discrepancies=(other,)), tmp_path / "new") != path, "another symptom is another file"


def test_numbers_that_json_lacks_are_written_by_name(tmp_path: Path) -> None:
    document = json.loads(store.save(saved(), tmp_path).read_text())
    recorded = document["discrepancies"][0]
    assert (recorded.get("truth", "nan"), recorded["low"]) == ("nan", "-inf")


def test_a_captured_batch_travels_with_its_case(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    batch = CapturedBatch(np.array([0, 1, 1]), np.array([0, 2, 3]))
    reference = save_captured(batch, tmp_path / "from" / "batch.safetensors")
    case = Case(features=(Feature(rows=2, dim=4),), captured=reference)
    path = store.save(SavedCase(case, Kind.DRAWN, PROVENANCE, Status.FAILED), tmp_path / "to", tmp_path / "from")
    assert np.array_equal(load_captured(reference, path.parent).indices, batch.indices)


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "case.json"
    store.write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="the disk is full"):
        store.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d.pop("equivcheck_saved_case"), 'has no "equivcheck_saved_case"'),
        (lambda d: d.update(equivcheck_saved_case=2), "has format 2; this version of equivcheck reads 1"),
        (lambda d: d.update(status="fine"), "Invalid enum value 'fine'"),
        (lambda d: d.update(extra=1), "unknown field `extra`"),
        (lambda d: d["case"].update(equivcheck_case=9), "case format 9 is not 1"),
        (lambda d: d["case"].update(seed="0"), "Expected `int`, got `str`"),
        (lambda d: d["discrepancies"][0].update(actual="x"), "Invalid enum value 'x'"),
        (lambda d: d.pop("provenance"), "missing required field `provenance`"),
    ],
)
def test_a_malformed_file_is_refused_with_a_sentence(tmp_path: Path, change: object, sentence: str) -> None:
    path = store.save(saved(), tmp_path)
    document = json.loads(path.read_text())
    change(document)  # type: ignore[operator]
    path.write_text(json.dumps(document))
    with pytest.raises(CaseError) as refused:
        store.load(path)
    assert sentence in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "truncated or of another kind"),
        (b'{"equivcheck_saved_case": 1, "case"', "truncated or of another kind"),
        (b"[1]", "holds JSON, but no object"),
        (b"\xff\xfe", "truncated or of another kind"),
        (b"[" * 100_000, "holds no JSON"),
    ],
)
def test_what_is_no_json_object_is_refused_with_a_sentence(tmp_path: Path, text: bytes, sentence: str) -> None:
    path = tmp_path / "case.json"
    path.write_bytes(text)
    with pytest.raises(CaseError, match="holds") as refused:
        store.load(path)
    assert sentence in str(refused.value)


def test_a_missing_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="cannot be read: No such file"):
        store.load(tmp_path / "none.json")
