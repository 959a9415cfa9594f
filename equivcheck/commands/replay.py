"""`equivcheck replay`: run saved cases and recorded findings again."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equivcheck.engine.options import DEFAULT_TIME_LIMIT

if TYPE_CHECKING:
    from equivcheck.findings import Finding
    from equivcheck.replay import Replay
    from equivcheck.replay_findings import Shown

_TIMES = 10
"""Runs of a case: one that fails every fifth time is seen with a probability of 89 %."""
AS_IT_SHOULD, NOT, CANNOT_TELL = 0, 1, 2


@dataclass(frozen=True)
class _Line:
    """What is printed about one file or finding, and what it means for the exit code."""

    what: str
    subject: str
    result: str
    text: list[str]
    exit_code: int


def command(
    files: Annotated[list[Path] | None, typer.Argument(help="Saved cases, cases by themselves, findings.")] = None,
    findings: Annotated[bool, typer.Option("--findings", help="All findings of --subject, or of all.")] = False,
    subject: Annotated[str | None, typer.Option(help="Run on this backend, not on the recorded one.")] = None,
    times: Annotated[int, typer.Option(min=1, help="Runs of each, which may fail only sometimes.")] = _TIMES,
    time_limit: Annotated[float, typer.Option(help="Seconds that a run may take.")] = DEFAULT_TIME_LIMIT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")] = False,
) -> None:
    """Run saved cases and findings again: FIXED, SAME, DIFFERENT, UNSUPPORTED or ERROR.

    Each run has a process of its own. A saved case should be FIXED; a finding should be the SAME as it is recorded.
    Exit code 0: all are as they should be. 1: something is not. 2: could not tell.
    """
    import json

    if findings == bool(files):
        raise typer.BadParameter("give either files, or --findings for those that come with equivcheck")
    lines = []
    replayed = _all_findings if findings else partial(_files, files or [])
    for line in replayed(subject, times, time_limit):
        lines.append(line)
        if not as_json:
            print("\n".join(line.text), flush=True)
    if as_json:
        key = "finding" if findings else "file"
        told = [{key: line.what, "subject": line.subject, "result": line.result, "text": line.text} for line in lines]
        print(json.dumps(told, indent=2))
    elif findings:
        counts = Counter(line.result for line in lines)
        print(f"{len(lines)} findings: " + ", ".join(f"{number} {result}" for result, number in counts.most_common()))
    codes = {line.exit_code for line in lines}
    raise typer.Exit(NOT if NOT in codes else CANNOT_TELL if CANNOT_TELL in codes or not codes else AS_IT_SHOULD)


def _files(files: list[Path], subject: str | None, times: int, time_limit: float) -> Iterator[_Line]:
    from equivcheck import store
    from equivcheck.case import CaseError
    from equivcheck.findings import FindingError, load_finding
    from equivcheck.replay import Result, load, replay
    from equivcheck.replay_findings import replay as replay_findings
    from equivcheck.replay_findings import subject_of

    for path in files:
        try:
            if "equivcheck_finding" in store.read_object(path):
                finding = load_finding(path)
                [shown] = replay_findings([(finding, subject or subject_of(finding))], times, time_limit)
                yield _Line(str(path), shown.subject, shown.result, _about_finding(path, shown), _code(shown))
                continue
            done = replay(load(path, subject), path.parent, times, time_limit)
        except (CaseError, FindingError) as error:
            yield _Line(str(path), subject or "", Result.ERROR, [f"ERROR {path}", f"  {error}"], CANNOT_TELL)
            continue
        wrong = done.result in (Result.SAME, Result.DIFFERENT)
        code = NOT if wrong else AS_IT_SHOULD if done.result is Result.FIXED else CANNOT_TELL
        yield _Line(str(path), done.saved.provenance.subject, done.result, _about_case(path, done), code)


def _all_findings(subject: str | None, times: int, time_limit: float) -> Iterator[_Line]:
    """A line a finding, under each other as in a table."""
    from equivcheck.engine.check import describe
    from equivcheck.replay import Result
    from equivcheck.replay_findings import chosen, replay

    wanted = chosen(subject)
    if not wanted:
        print(f"equivcheck: no finding is of {subject}; equivcheck backends lists subjects", file=sys.stderr)
    longest = max((len(finding.name) for finding, _ in wanted), default=0)
    system = max((len(name) for _, name in wanted), default=0)
    for shown in replay(wanted, times, time_limit):
        same = shown.result is Result.SAME
        said = describe(shown.verdict) if same else shown.message.partition("\n")[0]
        often = f" ({shown.runs} runs)" if shown.runs > 1 else ""
        text = f"{shown.result.upper():<11} {shown.finding.name:<{longest}} {shown.subject:<{system}} {said}{often}"
        yield _Line(shown.finding.name, shown.subject, shown.result, [text], _code(shown))


def _code(shown: Shown) -> int:
    return NOT if shown.wrong else CANNOT_TELL if shown.open else AS_IT_SHOULD


def _about_finding(path: Path, shown: Shown) -> list[str]:
    """How a finding shows, in lines, the first of which says it."""
    from equivcheck.engine.show import failure

    finding: Finding = shown.finding
    often = f" after {shown.runs} runs" if shown.runs > 1 else ""
    lines = [f"{shown.result.upper()}{often} {path} on {shown.subject}", f"  {finding.title}"]
    lines += [f"  {line}" for line in shown.message.splitlines()]
    if shown.verdict.discrepancies or shown.wrong:
        lines += [f"  {line}" for line in failure(finding.case, shown.verdict)]
    return lines


def _about_case(path: Path, done: Replay) -> list[str]:
    """The result of one file in lines, the first of which says it."""
    from equivcheck import store
    from equivcheck.engine.show import failure
    from equivcheck.replay import Result
    from equivcheck.verdict import Status

    saved, result = done.saved, done.result
    case = saved.failing_case or saved.case
    often = "" if done.hits == done.runs else f" in {done.hits} of {done.runs} runs"
    lines = [f"{result.upper()}{often} {path} on {saved.provenance.subject}"]
    if result is not Result.FIXED:
        lines += [f"  {line}" for line in failure(case, done.verdict)]
    if result is not Result.SAME and saved.status is not Status.PASSED:
        lines += ["  what was recorded:", *(f"    {line}" for line in failure(case, store.as_verdict(saved)))]
    return lines
