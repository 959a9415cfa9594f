"""`equivcheck check`: judge the kernels that run here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from equivcheck.engine.options import DEFAULT_TIME_LIMIT, PROFILES


def command(
    properties: Annotated[list[str] | None, typer.Argument(help="Properties to check, such as run_length.")] = None,
    subject: Annotated[list[str] | None, typer.Option(help="A backend to judge; repeatable. Default: all.")] = None,
    witness: Annotated[list[str] | None, typer.Option(help="A backend to compare with; repeatable.")] = None,
    profile: Annotated[str, typer.Option(help=f"How much: {', '.join(PROFILES)}.")] = "default",
    seed: Annotated[str, typer.Option(help="Seed of the run, or random.")] = "0",
    failures: Annotated[Path, typer.Option(help="Where failing cases are saved.")] = Path("failures"),
    findings: Annotated[list[Path] | None, typer.Option(help="A folder of findings of your own; repeatable.")] = None,
    events: Annotated[Path | None, typer.Option(help="Keep what happens as JSON lines.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds that a case may take.")] = DEFAULT_TIME_LIMIT,
    workers: Annotated[str, typer.Option("--workers", "-n", help="Processes, or auto.")] = "auto",
    shrink: Annotated[bool, typer.Option(help="Shrink failing cases before they are saved.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")] = False,
) -> None:
    """Judge kernels: generated cases against an fp64 truth with proven bounds.

    Exit code 0: right. 1: wrong, and failing cases are saved. 2: could not tell.
    """
    from equivcheck.engine.child import Child, Request
    from equivcheck.engine.suite import files
    from equivcheck.report.progress import follow
    from equivcheck.report.result import CANNOT_TELL, conclude, show
    from equivcheck.report.result import as_json as to_json

    try:
        paths = files(properties or [])
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None
    if profile not in PROFILES:
        raise typer.BadParameter(f"profile {profile!r} does not exist; there are {', '.join(PROFILES)}")
    options = [
        *(f"--subject={name}" for name in subject or []),
        *(f"--witness={name}" for name in witness or []),
        *(f"--equivcheck-findings={folder}" for folder in findings or []),
        f"--equivcheck-profile={profile}",
        f"--equivcheck-seed={seed}",
        f"--equivcheck-failures={failures}",
        f"--equivcheck-time-limit={time_limit}",
        *([] if shrink else ["--equivcheck-no-shrink"]),
    ]
    with Child(Request(tuple(paths), tuple(options), workers), events) as child:
        try:
            summary = follow(child)
        except KeyboardInterrupt:
            print("COULD NOT TELL: interrupted", file=sys.stderr)
            raise typer.Exit(CANNOT_TELL) from None
        conclusion = conclude(summary, child.exit_status, child.log)
    if as_json:
        sys.stdout.write(to_json(summary, conclusion))
    else:
        show(summary, conclusion)
    raise typer.Exit(conclusion.exit_code)
