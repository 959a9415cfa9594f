"""The findings that come with equivcheck: each is small, true of its own case, still there, and explains no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from equivcheck import isolation
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.backends.registry import SubjectError
from equivcheck.case import Bag, Case, Feature, Lookup
from equivcheck.engine.check import Check, Unguarded
from equivcheck.engine.counts import Counts
from equivcheck.engine.replays import SAME, compare, judged_by
from equivcheck.findings import Finding, built_in_folder, explain, load_findings
from equivcheck.problem import Problem, materialise
from equivcheck.runner import Subject
from equivcheck.verdict import Discrepancy, Status, Symptom, Tensor, Verdict

FOLDER = built_in_folder()
assert FOLDER is not None
FINDINGS = load_findings([FOLDER])
CPU = [finding for finding in FINDINGS if finding.subject == "fbgemm-cpu*"]
PLAIN = Case(features=(Feature(rows=2, dim=4, bags=(Bag((Lookup(),)),)),))

every = pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.name)
on_cpu = pytest.mark.parametrize("finding", CPU, ids=lambda finding: finding.name)


def signs(finding: Finding) -> list[Discrepancy]:
    """One discrepancy of each kind that the finding explains, as large as it may be."""
    return [
        Discrepancy(sign.tensor, symptom, 0, "", ratio=sign.most_ratio, ulps=sign.most_ulps, detail=sign.says)
        for sign in finding.signs
        for symptom in sign.symptoms
    ]


def known(finding: Finding, problem: Problem, *discrepancies: Discrepancy) -> bool:
    return explain([finding], problem, Verdict(Status.FAILED, discrepancies))[0].status is Status.KNOWN


@pytest.fixture(scope="module")
def fbgemm() -> Subject:
    try:
        return Subject.load("fbgemm-cpu")
    except (BackendUnavailable, SubjectError) as missing:
        pytest.skip(f"fbgemm-cpu does not run here: {missing}")


@every
def test_its_case_is_small_and_has_its_traits(finding: Finding) -> None:
    assert finding.holds(materialise(finding.case))
    assert len(finding.case.features) <= 3
    assert finding.case.lookups <= (512 if "run>=256" in map(str, finding.traits) else 128)
    assert len(finding.case.to_json()) <= 512


@every
def test_a_plain_case_is_not_in_its_condition(finding: Finding) -> None:
    plain = materialise(PLAIN)
    assert not finding.holds(plain)
    assert not any(known(finding, plain, sign) for sign in signs(finding))


@every
def test_it_explains_its_own_symptoms(finding: Finding) -> None:
    problem = materialise(finding.case)
    assert all(known(finding, problem, sign) for sign in signs(finding))
    for end in finding.ends:
        assert explain([finding], problem, Verdict(end))[0].status is Status.KNOWN


@every
def test_it_explains_no_other_symptoms(finding: Finding) -> None:
    problem = materialise(finding.case)
    for sign in signs(finding):
        assert not known(finding, problem, sign, replace(sign, symptom=Symptom.SHAPE)), "beside what it explains"
        assert not known(finding, problem, replace(sign, symptom=Symptom.DTYPE))
        if sign.detail:
            assert not known(finding, problem, replace(sign, detail="ValueError: of another kind"))
    for tensor in set(Tensor) - {sign.tensor for sign in finding.signs}:
        wrong = Discrepancy(tensor, Symptom.OUT_OF_BOUND, 0, "", ratio=2.0, ulps=2.0)
        assert not known(finding, problem, wrong), f"wrong {tensor}"
    for end in {Status.CRASHED, Status.TIMEOUT} - set(finding.ends):
        assert explain([finding], problem, Verdict(end))[0].status is end


@on_cpu
def test_it_concerns_the_versions_that_it_was_seen_with(finding: Finding) -> None:
    """Each was replayed with FBGEMM 1.6.0, 1.7.0, 1.8.0 and 1.9.0. One showed up to 1.8.0 only."""
    for version in ("1.6.0", "1.7.0", "1.8.0"):
        assert finding.concerns("fbgemm-cpu", {"fbgemm_gpu": f"fbgemm-gpu-cpu {version}"})
    mended = finding.name == "fbgemm-cpu-unsorted-map-half-updated"
    assert finding.concerns("fbgemm-cpu", {"fbgemm_gpu": "fbgemm-gpu-cpu 1.9.0"}) is not mended
    for version in ("1.5.0", "1.10.0"):
        assert not finding.concerns("fbgemm-cpu", {"fbgemm_gpu": f"fbgemm-gpu-cpu {version}"})
    assert not finding.concerns("fbgemm-cuda", {"fbgemm_gpu": "fbgemm-gpu 1.8.0"})
    assert not finding.concerns("torch", {"torch": "2.13.0"})


@on_cpu
def test_its_case_still_fails_as_recorded(finding: Finding, fbgemm: Subject) -> None:
    if not finding.concerns(fbgemm.name, fbgemm.versions):
        pytest.skip(f"{finding.name} is of other versions than {fbgemm.versions['fbgemm_gpu']}")
    if finding.shown_by:
        check = Check(fbgemm, None, Counts(), (), Unguarded())
        verdict = judged_by(finding, check, Path.cwd())
    else:
        verdict = isolation.judge(finding.case, fbgemm.name, None, 60.0)
    assert compare(finding, verdict) == (SAME, ""), verdict
