"""Findings: what they explain, what they do not, and that each is replayed in every run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from equivcheck.case import Bag, Case, Feature, Lookup
from equivcheck.engine.replays import DIFFERENT, SAME, also_without_variants, compare
from equivcheck.findings import Finding, FindingError, Sign, explain, load_finding, load_findings
from equivcheck.problem import Problem, materialise
from equivcheck.verdict import Discrepancy, Status, Symptom, Tensor, Verdict

if TYPE_CHECKING:
    from tests.selftest.conftest import Engine


def bags(*lengths: int) -> Case:
    looked_up = tuple(Bag((Lookup(0, length),) if length else ()) for length in lengths)
    return Case(features=(Feature(rows=2, dim=4, bags=looked_up),))


def document(**changes: Any) -> dict[str, Any]:
    """The finding of `kernels.py:LosesTail`."""
    return {
        "equivcheck_finding": 1,
        "title": "lookups behind the second are lost",
        "subject": "*kernels.py:*",
        "versions": {"kernels": "==1.2.*"},
        "traits": ["bag>=3"],
        "signs": [{"tensor": "output", "symptoms": ["not exact", "out of bound"]}],
        "contract": "SUM: sum over the bag of p_i * w[row_i].",
        "cause": {"system": "kernels 1.2.3", "file": "kernels.py", "lines": "80", "explanation": "it stops at two"},
        "case": json.loads(bags(3).to_json()),
        **changes,
    }


def write(folder: Path, name: str = "tail", **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document(**changes)))
    return path


@pytest.fixture
def finding(tmp_path: Path) -> Finding:
    return load_finding(write(tmp_path / "findings"))


@pytest.fixture
def problem() -> Problem:
    return materialise(bags(4))


OUTPUT = Discrepancy(Tensor.OUTPUT, Symptom.NOT_EXACT, 0, "element 0", ratio=3.0, ulps=100.0)
ROWS = Discrepancy(Tensor.ROWS, Symptom.NOT_EXACT, 1, "element 0")
FAILED = Verdict(Status.FAILED, (OUTPUT,))


def test_a_failure_with_condition_and_symptom_is_known(finding: Finding, problem: Problem) -> None:
    verdict, names = explain([finding], problem, FAILED)
    assert (verdict.status, names) == (Status.KNOWN, ("tail",))
    assert verdict.reason == "recorded as tail"


def test_without_the_condition_it_fails(finding: Finding) -> None:
    assert explain([finding], materialise(bags(2)), FAILED) == (FAILED, ())


def test_another_symptom_beside_it_still_fails(finding: Finding, problem: Problem) -> None:
    verdict, names = explain([finding], problem, Verdict(Status.FAILED, (OUTPUT, ROWS)))
    assert verdict.status is Status.FAILED
    assert verdict.discrepancies == (ROWS,), "what is explained does not stand in front"
    assert names == ("tail",)


@pytest.mark.parametrize("limit", [{"most_ulps": 99.0}, {"most_ratio": 2.0}, {"says": "another text"}])
def test_a_larger_error_than_recorded_fails(tmp_path: Path, problem: Problem, limit: dict[str, Any]) -> None:
    narrow = load_finding(write(tmp_path, signs=[{"tensor": "output", "symptoms": ["not exact"], **limit}]))
    assert explain([narrow], problem, FAILED)[0].status is Status.FAILED


def test_a_death_is_known_only_where_the_finding_says_so(tmp_path: Path, finding: Finding, problem: Problem) -> None:
    crashed = Verdict(Status.CRASHED)
    assert explain([finding], problem, crashed)[0].status is Status.CRASHED
    deadly = load_finding(write(tmp_path, ends=["crashed"]))
    assert explain([deadly], problem, crashed)[0].status is Status.KNOWN
    assert explain([deadly], problem, Verdict(Status.TIMEOUT))[0].status is Status.TIMEOUT


@pytest.mark.parametrize(
    ("subject", "version", "concerned"),
    [
        ("./kernels.py:LosesTail", "1.2.9", True),
        ("./kernels.py:LosesTail", "kernels-cpu 1.2.9", True),
        ("./kernels.py:LosesTail", "1.3", False),
        ("./kernels.py:LosesTail", "unknown", False),
        ("torch", "1.2.9", False),
    ],
)
def test_it_concerns_its_subjects_at_its_versions(
    finding: Finding, subject: str, version: str, concerned: bool
) -> None:
    assert finding.concerns(subject, {"kernels": version}) is concerned


def test_it_does_not_concern_a_subject_without_the_package(finding: Finding) -> None:
    assert not finding.concerns("./kernels.py:LosesTail", {})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"equivcheck_finding": 2}, "has format 2"),
        ({"signs": []}, "neither signs nor ends"),
        ({"signs": [{"tensor": "output", "symptoms": []}]}, "length >= 1"),
        ({"traits": []}, "length >= 1"),
        ({"traits": ["no such trait"]}, "no such trait"),
        ({"versions": {"kernels": "new"}}, "Invalid specifier: 'new'"),
        ({"ends": ["passed"]}, "a process ends in crashed or timeout"),
        ({"contract": ""}, "length >= 1"),
        ({"case": {}}, "case format None"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_a_malformed_finding_is_refused_with_a_sentence(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FindingError) as refused:
        load_finding(write(tmp_path, **changes))
    assert sentence in str(refused.value)
    assert "tail.json" in str(refused.value)


def test_two_findings_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "one")
    write(tmp_path / "two")
    with pytest.raises(FindingError, match="two findings have the name tail"):
        load_findings([tmp_path / "one", tmp_path / "two"])


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FindingError, match="which is no folder"):
        load_findings([tmp_path / "none"])


FINDINGS_TEST = """
def test_findings(recorded_finding):
    recorded_finding.must_fail_as_recorded()
"""


@pytest.fixture
def with_findings(engine: Engine) -> Engine:
    (engine.folder / "test_findings.py").write_text(FINDINGS_TEST)
    write(engine.folder / "findings")
    return engine


def test_a_finding_is_met_counted_and_keeps_the_run_green(with_findings: Engine) -> None:
    result = with_findings.run("LosesTail", "--equivcheck-findings=findings", "-n2")
    assert result.returncode == 0, result.stdout
    [slice_] = with_findings.events("slice")
    known = slice_["counts"]["statuses"]["known"]
    assert known > 0
    assert slice_["counts"]["findings"] == {"tail": known}
    assert f"findings met: tail ({known})" in result.stdout
    [replayed] = with_findings.events("finding")
    assert replayed["result"] == "same"


def test_a_finding_never_explains_another_fault(with_findings: Engine) -> None:
    result = with_findings.run("TwoFaults", "--equivcheck-findings=findings")
    assert result.returncode == 1
    failures = [failure for slice_ in with_findings.events("slice") for failure in slice_["failures"]]
    assert [failure["symptom"] for failure in failures] == ["updated rows: not exact"]


def test_a_finding_that_is_fixed_makes_the_run_red(with_findings: Engine) -> None:
    result = with_findings.run("Right", "--equivcheck-findings=findings")
    assert result.returncode == 1
    assert "its minimal case passes: remove the finding" in result.stdout


def test_a_finding_that_fails_otherwise_makes_the_run_red(with_findings: Engine) -> None:
    write(with_findings.folder / "findings", signs=[{"tensor": "momentum1", "symptoms": ["not exact"]}])
    result = with_findings.run("LosesTail", "--equivcheck-findings=findings", "test_findings.py")
    assert result.returncode == 1
    assert "its minimal case is failed in another way than recorded" in result.stdout


def test_a_finding_whose_case_lacks_its_traits_makes_the_run_red(with_findings: Engine) -> None:
    write(with_findings.folder / "findings", traits=["bag>=4"])
    result = with_findings.run("LosesTail", "--equivcheck-findings=findings", "test_findings.py")
    assert result.returncode == 1
    assert "does not have the traits that it names" in result.stdout


def test_cases_of_a_deadly_finding_run_in_processes_of_their_own(with_findings: Engine) -> None:
    write(with_findings.folder / "findings", traits=["bag=3"], signs=[], ends=["crashed"])
    with_findings.change("max_size=3", "max_size=1")
    result = with_findings.run("Crashes", "--equivcheck-findings=findings")
    assert result.returncode == 0, result.stdout
    [slice_] = with_findings.events("slice")
    assert slice_["counts"]["statuses"] == {"passed": 5, "known": 1}


def test_an_unexplained_death_in_such_a_process_fails(with_findings: Engine) -> None:
    # The finding says that it hangs; it crashes, which kills no worker and is shrunk as any failure.
    write(with_findings.folder / "findings", signs=[], ends=["timeout"])
    result = with_findings.run("Crashes", "--equivcheck-findings=findings", "test_sums.py")
    assert result.returncode == 1
    assert "sums on" in result.stdout
    assert "ended by SIGSEGV" in result.stdout
    assert {saved["kind"] for saved in with_findings.saved()} == {"shrunk"}


def test_a_finding_concerns_nobody_else(finding: Finding, problem: Problem) -> None:
    other = replace(FAILED, discrepancies=(ROWS,))
    assert explain([], problem, other) == (other, ())
    assert explain([finding], problem, other)[0].status is Status.FAILED


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("kernels*", "kernels+fast", True),
        ("kernels*", "kernels", False),  # the plain subject has to show it
        ("kernels*fast*", "kernels+fast", False),  # so has the only one that it concerns
    ],
)
def test_only_a_variant_of_what_else_shows_it_may_refuse(
    finding: Finding, pattern: str, subject: str, expected: bool
) -> None:
    concerned = msgspec.structs.replace(finding, subject=pattern)
    assert also_without_variants(concerned, subject) is expected


def test_a_replay_may_meet_another_finding_beside_its_own(finding: Finding) -> None:
    both = Verdict(Status.FAILED, (OUTPUT, ROWS))
    other = msgspec.structs.replace(finding, name="other", signs=(Sign(Tensor.ROWS, (Symptom.NOT_EXACT,)),))
    assert compare(finding, both)[0] == DIFFERENT
    assert compare(finding, both, [finding, other]) == (SAME, "")
    assert compare(finding, Verdict(Status.FAILED, (ROWS,)), [finding, other])[0] == DIFFERENT, "its own must show"
