"""A case that may end its process runs in another one, whose time is its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from equivcheck import runner
from equivcheck.backends import registry
from equivcheck.case import Bag, Case, Feature, Lookup
from equivcheck.findings import Cause, Finding
from equivcheck.runner import Subject
from equivcheck.verdict import Status, Verdict

CASE = Case(features=(Feature(rows=2, dim=4, bags=(Bag((Lookup(),)),)),))
HANGS = Finding(
    name="hangs",
    title="a lookup never ends",
    subject="torch",
    versions={},
    traits=("lookups>=1",),
    signs=(),
    ends=(Status.TIMEOUT,),
    contract="Every case ends.",
    cause=Cause("torch", "none", "1", "made up for this test"),
    case=CASE,
)


def test_a_hang_in_the_other_process_is_a_verdict_and_not_this_process_time() -> None:
    watched: list[Case] = []

    @contextmanager
    def watch(case: Case) -> Iterator[None]:
        watched.append(case)
        yield
        watched.remove(case)

    def isolate(case: Case, subject: str, folder: Path | None) -> Verdict:
        assert (case, subject, folder) == (CASE, "torch", None)
        assert not watched, "this process's time limit ends it while it waits for the other one's"
        return Verdict(Status.TIMEOUT)

    subject = Subject("torch", registry.build("torch"))
    run = runner.run(CASE, subject, findings=[HANGS], watch=watch, isolate=isolate)
    assert (run.verdict.status, run.findings) == (Status.KNOWN, ("hangs",))


@pytest.mark.parametrize("findings", [(), (HANGS,)])
def test_a_process_that_is_itself_watched_runs_every_case(findings: tuple[Finding, ...]) -> None:
    subject = Subject("torch", registry.build("torch"))
    assert runner.run(CASE, subject, findings=findings).verdict.status is Status.PASSED
