"""Recorded results as a backend: what stands in for a system that does not run here.

It takes the cases that it has a result for, and gives what the system gave then.
"""

from __future__ import annotations

from equivcheck.arithmetic import Arithmetic
from equivcheck.case import Case
from equivcheck.outcome import SUPPORTED, Outcome, Support, unsupported
from equivcheck.problem import Problem
from equivcheck.recordings import Recordings


class Recorded:
    """The recorded results of a subject.

    Attributes
    ----------
    cases
        The cases that there are results for: a property that compares with this backend draws from them.
    """

    def __init__(self, recordings: Recordings) -> None:
        self._recordings = recordings
        self.name = f"{recordings.provenance.subject} (recorded)"
        self.cases = recordings.cases

    def supports(self, case: Case) -> Support:
        """Whether there is a result."""
        if self._recordings.entry(case) is not None:
            return SUPPORTED
        return unsupported(f"no result of {self._recordings.provenance.subject} is recorded for this case")

    def arithmetic(self, case: Case) -> Arithmetic:
        """What the subject declared then."""
        return self._recordings.arithmetic(case)

    def run(self, problem: Problem) -> Outcome:
        """The result that was recorded."""
        return self._recordings.outcome(problem)

    def versions(self) -> dict[str, str]:
        """What was recorded, where and when."""
        found = self._recordings.provenance
        return found.versions | {"recorded": f"{found.date or 'no date'} on {found.device or 'an unknown device'}"}
