"""Run many cases in processes of their own: a case that ends its process takes no other case's result with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from equivcheck import isolation
from equivcheck.case import Case
from equivcheck.findings import Finding
from equivcheck.recordings import Record, Recordings
from equivcheck.runner import Subject
from equivcheck.verdict import Verdict
from equivcheck.verification import Agreement, Comparison, record, verify

_CASES_A_PROCESS = 64
_SECONDS_A_CASE = 2.0
"""On average, in a process; a Triton kernel that is compiled for a case takes about as long."""
_PARTS_A_WORKER = 3
"""So that workers with cheap cases take over from those with dear ones."""

Answer = TypeVar("Answer")


def record_surviving(
    cases: Iterable[Case], subject: str, findings: Sequence[Finding] = (), workers: int = 1
) -> tuple[list[Record], Counter[str]]:
    """Run cases on the subject of a name, many to a process; where one ends, look for the case in its halves.

    Parameters
    ----------
    workers
        Processes at a time.

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
    for _, answer in _answers(_record, cases, (subject, tuple(findings)), workers):
        if isinstance(answer, Verdict):
            refused[answer.reason.partition("\n")[0]] += 1
        else:
            records += answer[0]
            refused.update(answer[1])
    return records, refused


def verify_surviving(
    recordings: Recordings, subject: str, findings: Sequence[Finding] = (), workers: int = 1
) -> list[Comparison]:
    """As `verification.verify`, on the subject of a name and in processes of their own; one that ends is OUTSIDE."""
    found: list[Comparison] = []
    arguments = (recordings.folder, subject, tuple(findings))
    for part, answer in _answers(_verify, recordings.cases, arguments, workers):
        if isinstance(answer, Verdict):
            found.append(Comparison(part[0], Agreement.OUTSIDE, 0, 0, answer))
        else:
            found += answer
    return found


def _answers(
    function: Callable[..., Answer], cases: Iterable[Case], arguments: tuple[object, ...], workers: int
) -> Iterator[tuple[tuple[Case, ...], Answer | Verdict]]:
    """Parts of the cases, in order, with what `function` gave for each; a Verdict only where one case ended it."""
    every = tuple(cases)
    share = -(-len(every) // (_PARTS_A_WORKER * workers)) if workers > 1 else len(every)
    size = max(1, min(_CASES_A_PROCESS, share))
    parts = [every[start : start + size] for start in range(0, len(every), size)]

    def answers(part: tuple[Case, ...]) -> list[tuple[tuple[Case, ...], Answer | Verdict]]:
        answer = isolation.call(function, (part, *arguments), _SECONDS_A_CASE * len(part))
        if not isinstance(answer, Verdict) or len(part) == 1:
            return [(part, answer)]
        middle = len(part) // 2
        return [*answers(part[:middle]), *answers(part[middle:])]

    with ThreadPoolExecutor(workers) as pool:  # its threads wait for processes
        for found in pool.map(answers, parts):
            yield from found


def _record(
    cases: tuple[Case, ...], subject: str, findings: tuple[Finding, ...]
) -> tuple[list[Record], dict[str, int]]:
    return record(cases, Subject.load(subject), findings)


def _verify(cases: tuple[Case, ...], folder: Path, subject: str, findings: tuple[Finding, ...]) -> list[Comparison]:
    return list(verify(Recordings(folder), Subject.load(subject), findings, cases))
