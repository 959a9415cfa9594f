"""`equivcheck gate`: whether a build can go live."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from equivcheck.engine.options import DEFAULT_TIME_LIMIT, PROFILES

CANNOT_TELL = 2
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def _option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """An option whose help is one line: a help that fits a screen is read."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


def _flag(name: str, text: str) -> Any:
    return typer.Option(name, help=text)


def command(
    subject: Annotated[str, _option("NAME", "The backend that is to go live.")],
    out: Annotated[Path, _option("DIR", "For the result, report and cases.")],
    witness: Annotated[list[str] | None, _option("NAME", "Compare with this backend; repeatable.")] = None,
    baseline: Annotated[str | None, _option("DIR", "Compare with these recordings.")] = None,
    profile: Annotated[str, _option("NAME", ", ".join(PROFILES) + ".")] = "thorough",
    budget: Annotated[str, _option("TIME", "For all of it: 90s, 10m; 0: no limit.")] = "0",
    seed: Annotated[int, _option("N", "Seed of the run.", min=0)] = 0,
    shard: Annotated[str, _option("I/N", "The I-th of N machines (merge).")] = "1/1",
    again: Annotated[list[Path] | None, _option("DIR", "Saved cases to run again; repeatable.")] = None,
    suite: Annotated[list[Path] | None, _option("PATH", "Properties of your own, not the suite's.")] = None,
    findings: Annotated[list[Path] | None, _option("DIR", "Findings of your own; repeatable.")] = None,
    unsupported: Annotated[Path | None, _option("FILE", "Reasons that it may refuse for.")] = None,
    time_limit: Annotated[float, _option("SECS", "That a case may take.")] = DEFAULT_TIME_LIMIT,
    workers: Annotated[str, _option("N", "Processes.", "--workers", "-n")] = "auto",
    no_golden: Annotated[bool, _flag("--no-golden", "Leave the curated cases out.")] = False,
    no_faults: Annotated[bool, _flag("--no-faults", "Put no faults in.")] = False,
    no_shrink: Annotated[bool, _flag("--no-shrink", "Save failing cases as drawn.")] = False,
    fresh: Annotated[bool, _flag("--fresh", "Take no ended run up.")] = False,
) -> None:
    """Can this build go live? The suite within a budget, and one page to read: OUT/report.html.

    Exit code 0: right. 1: wrong. 2: could not tell, and a sentence says why.
    """
    from equivcheck.case import CaseError
    from equivcheck.engine.placement import driver
    from equivcheck.gate import pages
    from equivcheck.gate.inputs import Inputs, baseline_folder, golden_file, saved_cases
    from equivcheck.gate.run import Gate
    from equivcheck.refusals import recorded_file

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
                shrink=not no_shrink,
                properties=tuple(path.resolve() for path in suite or ()),
                saved=saved,
                curated=None if no_golden else golden_file(),
                baseline=baseline_folder(baseline) if baseline else None,
                findings=tuple(findings or ()),
                unsupported=unsupported or recorded_file(subject, on_gpu=driver() != ""),
                faults=not no_faults,
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
