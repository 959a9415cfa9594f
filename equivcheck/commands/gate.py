"""`equivcheck gate`: whether a build can go live."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from equivcheck.engine.options import DEFAULT_TIME_LIMIT, PROFILES

CANNOT_TELL = 2
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def command(
    subject: Annotated[str, typer.Option(help="The backend that is to go live.")],
    out: Annotated[Path, typer.Option(help="Folder for the result, the report and the saved cases.")],
    witness: Annotated[list[str] | None, typer.Option(help="A backend to compare with; repeatable.")] = None,
    baseline: Annotated[str | None, typer.Option(help="Recordings to compare with: a folder, or a subject.")] = None,
    profile: Annotated[str, typer.Option(help=f"How much: {', '.join(PROFILES)}.")] = "thorough",
    budget: Annotated[str, typer.Option(help="Time for all of it: 90s, 10m, 2h; 0 for no limit.")] = "0",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the run.")] = 0,
    shard: Annotated[str, typer.Option(help="i/n: the i-th of n machines; see equivcheck merge.")] = "1/1",
    again: Annotated[list[Path] | None, typer.Option(help="A folder of saved cases to run again; repeatable.")] = None,
    suite: Annotated[list[Path] | None, typer.Option(help="Properties of your own, in place of the suite's.")] = None,
    golden: Annotated[bool, typer.Option(help="Run the curated cases first.")] = True,
    faults: Annotated[bool, typer.Option(help="Show by faults put in that the gate can fail.")] = True,
    findings: Annotated[list[Path] | None, typer.Option(help="A folder of findings of your own; repeatable.")] = None,
    unsupported: Annotated[Path | None, typer.Option(help="File with a reason a line that it may refuse for.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds that a case may take.")] = DEFAULT_TIME_LIMIT,
    workers: Annotated[str, typer.Option("--workers", "-n", help="Processes, or auto.")] = "auto",
    shrink: Annotated[bool, typer.Option(help="Shrink failing cases before they are saved.")] = True,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew where an earlier run was ended.")] = False,
) -> None:
    """Can this build go live? The suite within a budget, and one page to read: OUT/report.html.

    Exit code 0: right. 1: wrong. 2: could not tell, and a sentence says why.
    """
    from equivcheck.case import CaseError
    from equivcheck.gate import pages
    from equivcheck.gate.inputs import Inputs, accepted_file, baseline_folder, golden_file, saved_cases
    from equivcheck.gate.run import Gate

    if profile not in PROFILES:
        raise typer.BadParameter(f"profile {profile!r} does not exist; there are {', '.join(PROFILES)}")
    seconds, part = _seconds(budget), _shard(shard)
    for folder in (*(again or []), *(findings or [])):
        if not folder.is_dir():
            raise typer.BadParameter(f"{folder} is no folder")
    for path in (*(suite or []), *([unsupported] if unsupported else [])):
        if not path.exists():
            raise typer.BadParameter(f"{path} does not exist")
    saved, unread = saved_cases(again or [])
    try:
        gate = Gate(
            Inputs(
                subject=subject,
                witnesses=tuple(witness or ()),
                profile=profile,
                seed=seed,
                time_limit=time_limit,
                shrink=shrink,
                properties=tuple(path.resolve() for path in suite or ()),
                saved=saved,
                curated=golden_file() if golden else None,
                baseline=baseline_folder(baseline) if baseline else None,
                findings=tuple(findings or ()),
                unsupported=unsupported or accepted_file(subject),
                faults=faults,
            ),
            out,
            budget=seconds,
            shard=part,
            workers=workers,
            fresh=fresh,
            notes=unread,
        )
        result = gate.run()
    except CaseError as error:
        print(f"COULD NOT TELL: {error}", file=sys.stderr)
        raise typer.Exit(CANNOT_TELL) from None
    for line in pages.tell_github(result):
        print(line)
    print(f"{result.sentence}")
    for reason in result.reasons[1:]:
        print(f"  {reason}")
    for note in result.notes:
        print(f"  note: {note}")
    print(f"{out / 'report.html'}")
    raise typer.Exit(result.exit_code)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise typer.BadParameter(f"budget {text!r} is no time; write 90s, 10m or 2h")
    return float(found[1]) * _UNITS[found[2]]


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise typer.BadParameter(f"shard {text!r} is none; write i/n with i from 1 to n, such as 2/4")
    return int(found[1]), int(found[2])
