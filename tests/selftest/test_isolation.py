"""A process of its own judges a case; one that found nothing wrong judges the next, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from equivcheck.case import Bag, BoundsCheck, Case, Feature, Lookup
from equivcheck.isolation import judge
from equivcheck.verdict import Status

ROOT = Path(__file__).parents[2]
CASE = Case(features=(Feature(rows=2, dim=4, bags=(Bag((Lookup(),)),)),))
ENDS, WRONG_LATER = 7, 8
"""Seeds of cases at which the kernel ends its process, and is wrong unless it is the process's first."""

KERNEL = f"""
import os, sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, {str(ROOT)!r})
from equivcheck.outcome import SUPPORTED
from tests.selftest.kernels import Right


class Telling(Right):
    judged = 0

    def supports(self, case):
        return SUPPORTED

    def run(self, problem):
        with Path(__file__).with_name("told").open("a") as told:
            print(os.getpid(), file=told)
        Telling.judged += 1
        if problem.case.seed == {ENDS}:
            os.abort()
        outcome = super().run(problem)
        if problem.case.seed == {WRONG_LATER} and Telling.judged > 1:
            return replace(outcome, results=())
        return outcome
"""


class Judged:
    """Judges cases by seed, and knows in which processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "telling.py").write_text(KERNEL)

    def __call__(self, case: Case) -> Status:
        return judge(case, f"{self.folder / 'telling.py'}:Telling", None, 60.0).status

    @property
    def processes(self) -> list[int]:
        """Numbers of the processes, one a run, from 0 in the order in which they were first seen."""
        seen = (self.folder / "told").read_text().split()
        return [list(dict.fromkeys(seen)).index(process) for process in seen]


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    return Judged(tmp_path)


def test_a_process_that_found_nothing_wrong_judges_the_next_case(judged: Judged) -> None:
    assert [judged(replace(CASE, seed=seed)) for seed in (1, 2, 3)] == [Status.PASSED] * 3
    assert judged.processes[1:] == [judged.processes[1]] * 2


def test_a_process_that_ended_is_followed_by_another(judged: Judged) -> None:
    found = [judged(replace(CASE, seed=seed)) for seed in (1, ENDS, 2)]
    assert found == [Status.PASSED, Status.CRASHED, Status.PASSED]
    first, ending, again, after = judged.processes
    assert (first, ending) == (0, 0)
    assert again == 1, "an end is told only if a process that has judged nothing ends, too"
    assert after == 2


def test_what_only_a_used_process_finds_is_not_told(judged: Judged) -> None:
    assert [judged(replace(CASE, seed=seed)) for seed in (1, WRONG_LATER)] == [Status.PASSED] * 2
    assert judged.processes == [0, 0, 1]


def test_a_fatal_bounds_check_is_the_last_case_of_its_process(judged: Judged) -> None:
    fatal = replace(CASE, bounds_check=BoundsCheck.FATAL)
    assert judged(fatal) is Status.PASSED
    assert judged(CASE) is Status.PASSED
    assert judged.processes == [0, 1]
