"""Record results in processes of their own: a case that ends its process takes no other case's result with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from equivcheck import isolation
from equivcheck.case import Case
from equivcheck.findings import Finding
from equivcheck.recordings import Record
from equivcheck.runner import Subject
from equivcheck.verdict import Verdict
from equivcheck.verification import record

_CASES_A_PROCESS = 64
_SECONDS_A_CASE = 2.0
"""On average, in a process; a Triton kernel that is compiled for a case takes about as long."""


def record_surviving(
    cases: Iterable[Case], subject: str, findings: Sequence[Finding] = ()
) -> tuple[list[Record], Counter[str]]:
    """Run cases on the subject of a name, many to a process; where one ends, look for the case in its halves.

    Returns
    -------
    records
        Of the cases that were run, in order.
    refused
        The reasons for which the others have none, and how many: refusals, cases that are known to end the process
        and were not tried, and those that did end it.
    """
    records: list[Record] = []
    refused: Counter[str] = Counter()
    rest = iter(cases)
    waiting = list(iter(lambda: tuple(islice(rest, _CASES_A_PROCESS)), ()))[::-1]
    while waiting:
        part = waiting.pop()
        answer = isolation.call(_record, (part, subject, tuple(findings)), _SECONDS_A_CASE * len(part))
        if not isinstance(answer, Verdict):
            records += answer[0]
            refused.update(answer[1])
        elif len(part) == 1:
            refused[answer.reason.partition("\n")[0]] += 1
        else:
            middle = len(part) // 2
            waiting += [part[middle:], part[:middle]]
    return records, refused


def _record(
    cases: tuple[Case, ...], subject: str, findings: tuple[Finding, ...]
) -> tuple[list[Record], dict[str, int]]:
    return record(cases, Subject.load(subject), findings)
