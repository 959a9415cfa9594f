"""Cases: what is written is what is read, and what is wrong is said in a sentence."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from equivcheck.captured import CapturedBatch, load_captured, save_captured
from equivcheck.case import (
    Bag,
    Captured,
    Case,
    CaseError,
    Decay,
    Feature,
    Lookup,
    Optimizer,
    OptimizerKind,
    PerSampleWeights,
    Pooling,
    Step,
    Values,
)
from equivcheck.formats import DType
from equivcheck.problem import materialise


def test_the_default_case_is_almost_nothing() -> None:
    assert Case().to_json() == b'{"equivcheck_case":1}'


def test_a_case_survives_json() -> None:
    case = Case(
        features=(Feature(rows=10, dim=4, bags=(Bag((Lookup(3, 2),), copies=5),)), Feature(table=0)),
        weights=DType.FP16,
        per_sample_weights=PerSampleWeights(values=Values(magnitude=3), gradient=True),
        optimizer=Optimizer(OptimizerKind.ROWWISE_ADAGRAD, eps=2.0**-27, decay=Decay.L2, weight_decay=0.125),
        steps=(Step(), Step(learning_rate=0.25, shift=1)),
    )
    assert Case.from_json(case.to_json()) == case
    assert Case.from_json(case.to_json()).digest == case.digest


def test_what_is_at_its_default_is_not_written() -> None:
    written = json.loads(Case(pooling=Pooling.MEAN).to_json())
    assert written == {"equivcheck_case": 1, "pooling": "mean"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "equivcheck_case"),
        ("[]", "equivcheck_case"),
        ('{"equivcheck_case":1,"features":[', "truncated"),
        ('{"equivcheck_case":2}', "format 2"),
        ('{"equivcheck_case":true}', "format True"),
        ('{"equivcheck_case":"1"}', "format '1'"),
        ('{"equivcheck_case":1,"seeds":1}', "unknown field `seeds`"),
        ('{"equivcheck_case":1,"seed":"1"}', "Expected `int`, got `str` - at `$.seed`"),
        ('{"equivcheck_case":1,"seed":NaN}', "malformed"),
        ('{"equivcheck_case":1,"seed":-1}', "seed is -1"),
        ('{"equivcheck_case":1,"seed":1.5}', "Expected `int`"),
        ('{"equivcheck_case":1,"weights":"fp8"}', "fp8"),
        ('{"equivcheck_case":1,"weights":"fp64"}', "fp64"),
        ('{"equivcheck_case":1,"optimizer":{"eps":1e-8}}', "fp32 does not hold exactly"),
        ('{"equivcheck_case":1,"optimizer":{"eps":1e999}}', "out of range"),
        ('{"equivcheck_case":1,"optimizer":{"beta1":1.0}}', "beta1 is 1.0"),
        ('{"equivcheck_case":1,"optimizer":{"learning_rate":-1.0}}', "may not be negative"),
        ('{"equivcheck_case":1,"optimizer":{"weight_decay":0.5}}', "decays only with a decay mode"),
        ('{"equivcheck_case":1,"features":[]}', "no features"),
        ('{"equivcheck_case":1,"steps":[]}', "no steps"),
        ('{"equivcheck_case":1,"features":[{"table":0}]}', "shares the table"),
        ('{"equivcheck_case":1,"features":[{},{"table":0,"dim":2}]}', "gives rows or dim"),
        ('{"equivcheck_case":1,"features":[{"dim":0}]}', "dim is 0"),
        ('{"equivcheck_case":1,"features":[{"bags":[{"lookups":[[0,0]]}]}]}', "times is 0"),
        ('{"equivcheck_case":1,"features":[{"bags":[{"rank":1}]}]}', "rank 1"),
        ('{"equivcheck_case":1,"features":[{},{"dim":2}],"pooling":"none"}', "widths [1, 2]"),
        ('{"equivcheck_case":1,"bad_indices":[{"fault":"rows"}]}', "bounds_check is none"),
        ('{"equivcheck_case":1,"layouts":{"indices":"transposed"}}', "only gradients"),
        ('{"equivcheck_case":1,"captured":{"file":"../x","sha256":""}}', "plain file name"),
        ('{"equivcheck_case":1,"captured":{"file":"/etc/passwd","sha256":""}}', "plain file name"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_malformed_case_is_refused_with_a_sentence(text: str, says: str) -> None:
    with pytest.raises(CaseError, match=r"\w") as error:
        Case.from_json(text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_text_is_refused() -> None:
    with pytest.raises(CaseError, match="not a case"):
        Case.from_json(b"\xff\xfe\x00\x01")


def test_a_huge_file_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(CaseError, match="over the limit"):
        Case.from_json(b" " * (16 * 2**20 + 1))


@pytest.mark.parametrize(
    "case",
    [
        Case(features=(Feature(rows=2**40, dim=2**20),)),
        Case(features=(Feature(bags=(Bag((Lookup(0, 2**62),)),)),)),
        Case(features=(Feature(bags=(Bag(copies=2**62),)),)),
        Case(features=(Feature(rows=2**40, dim=1, bags=(Bag((Lookup(),)),)),)),
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_allocated(case: Case) -> None:
    with pytest.raises(CaseError, match="needs about"):
        materialise(case)


def _captured(folder: Path) -> Captured:
    batch = CapturedBatch(np.asarray([1, 0, 2]), np.asarray([0, 1, 3]), np.asarray([1, 2, 3], np.float32))
    return save_captured(batch, folder / "batch.safetensors")


def test_a_captured_batch_is_looked_up_as_it_was_saved(tmp_path: Path) -> None:
    case = Case(
        features=(Feature(rows=3), Feature(rows=3)),
        captured=_captured(tmp_path),
        per_sample_weights=PerSampleWeights(),
    )
    batch = materialise(case, tmp_path).batches[0]
    np.testing.assert_array_equal(batch.indices, [1, 0, 2])
    np.testing.assert_array_equal(batch.offsets, [0, 1, 3])
    assert batch.per_sample_weights is not None
    np.testing.assert_array_equal(batch.per_sample_weights, [1, 2, 3])


def test_a_captured_batch_with_another_hash_is_refused(tmp_path: Path) -> None:
    reference = _captured(tmp_path)
    path = tmp_path / "batch.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CaseError, match="has SHA-256"):
        load_captured(reference, tmp_path)


def test_a_captured_batch_that_is_missing_or_a_link_is_refused(tmp_path: Path) -> None:
    reference = _captured(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(CaseError, match="not a file beside the case"):
        load_captured(reference, elsewhere)
    (elsewhere / "batch.safetensors").symlink_to(tmp_path / "batch.safetensors")
    with pytest.raises(CaseError, match="not a file beside the case"):
        load_captured(reference, elsewhere)


def test_captured_arrays_of_other_types_are_refused(tmp_path: Path) -> None:
    batch = CapturedBatch(np.asarray([0.5]), np.asarray([0, 1]))
    reference = save_captured(batch, tmp_path / "batch.safetensors")
    with pytest.raises(CaseError, match="float64"):
        load_captured(reference, tmp_path)


def test_captured_offsets_that_do_not_rise_are_refused(tmp_path: Path) -> None:
    batch = CapturedBatch(np.asarray([0, 0]), np.asarray([0, 2, 1]))
    reference = save_captured(batch, tmp_path / "batch.safetensors")
    with pytest.raises(CaseError, match="do not rise"):
        load_captured(reference, tmp_path)


def test_captured_rows_beyond_the_table_are_refused(tmp_path: Path) -> None:
    case = Case(features=(Feature(rows=2), Feature(rows=2)), captured=_captured(tmp_path))
    with pytest.raises(CaseError, match="row 2 of a table of 2 rows"):
        materialise(case, tmp_path)


def test_a_captured_case_without_its_folder_says_so(tmp_path: Path) -> None:
    case = Case(features=(Feature(rows=3),), captured=_captured(tmp_path))
    with pytest.raises(CaseError, match="give the folder"):
        materialise(case)


def test_parts_are_immutable() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Case().seed = 1  # type: ignore[misc]
    assert msgspec.structs.replace(Case(), seed=1).seed == 1
