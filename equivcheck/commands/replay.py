"""`equivcheck replay`: run saved cases again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equivcheck.engine.options import DEFAULT_TIME_LIMIT

if TYPE_CHECKING:
    from equivcheck.replay import Replay

_TIMES = 10
"""Runs of a case: one that fails every fifth time is seen with a probability of 89 %."""


def command(
    files: Annotated[list[Path], typer.Argument(help="Saved cases, or cases by themselves.")],
    subject: Annotated[str | None, typer.Option(help="Run on this backend, not on the recorded one.")] = None,
    times: Annotated[int, typer.Option(min=1, help="Runs of each case, which may fail only sometimes.")] = _TIMES,
    time_limit: Annotated[float, typer.Option(help="Seconds that a run may take.")] = DEFAULT_TIME_LIMIT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")] = False,
) -> None:
    """Run saved cases again: FIXED, SAME, DIFFERENT, UNSUPPORTED or ERROR.

    Each run has a process of its own. Exit code 0: all fixed. 1: something is still wrong. 2: could not tell.
    """
    import json

    from equivcheck.case import CaseError
    from equivcheck.replay import Result, load, replay

    results: list[str] = []
    objects: list[dict[str, Any]] = []
    for path in files:
        try:
            done = replay(load(path, subject), path.parent, times, time_limit)
            results.append(done.result)
            lines = _lines(path, done)
        except CaseError as error:
            results.append(Result.ERROR)
            lines = [f"ERROR {path}", f"  {error}"]
        if as_json:
            objects.append({"file": str(path), "result": results[-1], "text": lines})
        else:
            print("\n".join(lines), flush=True)
    if as_json:
        print(json.dumps(objects, indent=2))
    wrong = {Result.SAME, Result.DIFFERENT} & set(results)
    raise typer.Exit(1 if wrong else 2 if set(results) - {Result.FIXED} else 0)


def _lines(path: Path, done: Replay) -> list[str]:
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
