"""Replay of recorded findings: by file, and all of a subject, as people and machines read it."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from equivcheck import replay_findings
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.backends.registry import parse
from equivcheck.findings import Finding, load_finding
from equivcheck.replay import Result
from equivcheck.replay_findings import chosen, subject_of
from equivcheck.runner import Subject
from tests.selftest.test_findings import write

if TYPE_CHECKING:
    from tests.selftest.conftest import Engine

BUILT_IN = [finding for finding, _ in chosen(None)]


@pytest.mark.parametrize("finding", BUILT_IN, ids=lambda finding: finding.name)
def test_each_pattern_means_a_subject(finding: Finding) -> None:
    subject = subject_of(finding)
    assert fnmatchcase(subject, finding.subject)
    assert "*" not in subject
    parse(subject)


@pytest.mark.parametrize(
    ("kernel", "code", "first", "then"),
    [
        ("LosesTail", 0, "SAME tail.json", "output: not exact"),
        ("Right", 1, "FIXED after 2 runs tail.json", "remove the finding, or narrow its versions"),
        ("HalfRate", 1, "DIFFERENT after 2 runs tail.json", "in another way than recorded"),
        ("Crashes", 1, "DIFFERENT after 2 runs tail.json", "ended by SIGSEGV"),
        ("Hangs", 1, "DIFFERENT tail.json", "took longer than 1 s"),
        ("Refuses", 2, "UNSUPPORTED tail.json", "it takes no cases at all"),
        ("Absent", 2, "UNSUPPORTED tail.json", "needs a machine that nobody has"),
    ],
)
def test_replay_of_a_findings_file(
    engine: Engine, kernels: Path, kernel: str, code: int, first: str, then: str
) -> None:
    write(engine.folder)
    subject = f"--subject={kernels}:{kernel}"
    result = engine.equivcheck("replay", "tail.json", subject, "--time-limit=1", "--times=2")
    assert result.stdout.startswith(f"{first} on "), result.stdout + result.stderr
    assert then in result.stdout
    assert result.returncode == code


@pytest.mark.parametrize(
    ("kernel", "code", "then"),
    [
        ("LosesTail", 0, "it shows here, too: widen its versions"),
        ("Right", 0, "its minimal case passes here, as that says"),
        ("HalfRate", 1, "in another way than recorded"),
    ],
)
def test_a_finding_of_other_versions_says_so(engine: Engine, kernels: Path, kernel: str, code: int, then: str) -> None:
    """That a later version is right is what the finding's range says, and no error."""
    write(engine.folder, versions={"kernels": "==9.*"})
    result = engine.equivcheck("replay", "tail.json", f"--subject={kernels}:{kernel}", "--times=1")
    assert "it is recorded for *kernels.py:* with kernels ==9.*; " in result.stdout
    assert then in result.stdout
    assert result.returncode == code


def test_a_file_that_is_no_finding_is_refused(engine: Engine) -> None:
    write(engine.folder, traits=["no such trait"])
    result = engine.equivcheck("replay", "tail.json")
    assert result.returncode == 2
    assert "ERROR tail.json" in result.stdout
    assert "no such trait" in result.stdout


def test_files_and_all_findings_do_not_go_together(engine: Engine) -> None:
    for arguments in ((), ("tail.json", "--findings")):
        result = engine.equivcheck("replay", *arguments)
        assert result.returncode == 2
        assert "give either files, or --findings" in result.stderr


def test_a_process_that_ends_takes_no_other_findings_result_with_it(engine: Engine, kernels: Path) -> None:
    """Both run together at first; one ends their process, and then each runs alone."""
    findings = [load_finding(write(engine.folder, name)) for name in ("one", "two")]
    shown = list(replay_findings.replay([(f, f"{kernels}:Crashes") for f in findings], 1, 5.0))
    assert [s.result for s in shown] == [Result.DIFFERENT, Result.DIFFERENT]
    shown = list(replay_findings.replay([(f, f"{kernels}:LosesTail") for f in findings], 1, 5.0))
    assert [(s.result, s.runs) for s in shown] == [(Result.SAME, 1), (Result.SAME, 1)]


def test_every_finding_of_fbgemm_on_the_cpu_shows_as_recorded(engine: Engine) -> None:
    try:
        versions = Subject.load("fbgemm-cpu").versions
    except BackendUnavailable as missing:
        pytest.skip(str(missing))
    if not all(finding.concerns("fbgemm-cpu", versions) for finding, _ in chosen("fbgemm-cpu")):
        pytest.skip(f"the findings are of other versions than {versions}")
    result = engine.equivcheck("replay", "--findings", "--subject=fbgemm-cpu")
    assert result.returncode == 0, result.stdout + result.stderr
    number = len(chosen("fbgemm-cpu"))
    assert result.stdout.splitlines()[-1] == f"{number} findings: {number} same"
    told = json.loads(engine.equivcheck("replay", "--findings", "--subject=fbgemm-cuda", "--json").stdout)
    assert {entry["finding"] for entry in told} == {finding.name for finding, _ in chosen("fbgemm-cuda")}
