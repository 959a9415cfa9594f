"""`equivcheck check`: judge the kernels that run here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from equivcheck.engine.options import DEFAULT_TIME_LIMIT, PROFILES


def command(
    properties: Annotated[list[str] | None, typer.Argument(help="Such as run_length.")] = None,
    subject: Annotated[list[str] | None, typer.Option(help="Judge it (repeatable).")] = None,
    witness: Annotated[list[str] | None, typer.Option(help="Compare with it.")] = None,
    profile: Annotated[str, typer.Option(help="quick, thorough, deep.")] = "default",
    seed: Annotated[str, typer.Option(help="A number, or random.")] = "0",
    failures: Annotated[Path, typer.Option(help="Folder of saved cases.", show_default=False)] = Path("failures"),
    findings: Annotated[list[Path] | None, typer.Option(help="Folder of your own.")] = None,
    events: Annotated[Path | None, typer.Option(help="Keep JSON lines.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds a case.")] = DEFAULT_TIME_LIMIT,
    workers: Annotated[str, typer.Option("--workers", "-n", help="Processes, or auto.")] = "auto",
    shrink: Annotated[bool, typer.Option(help="Or save as drawn.", show_default=False)] = True,
    cases: Annotated[int | None, typer.Option(min=1, help="Soak: so many.")] = None,
    hours: Annotated[float | None, typer.Option(help="Soak: for so long.")] = None,
    coverage: Annotated[bool, typer.Option("--coverage", help="Show it in full.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a machine.")] = False,
) -> None:
    """Judge kernels: generated cases against an fp64 truth with proven bounds.

    Exit code 0: right. 1: wrong, and failing cases are saved. 2: could not tell.
    """
    if cases is not None or hours is not None:
        raise typer.Exit(soak(subject or [], cases, hours, seed, workers, time_limit, failures, coverage, as_json))
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
        if coverage:
            largest = summary.collected.largest_case if summary.collected is not None else 0
            for name in summary.subjects:
                print(f"{name}: {summary.of(name)[2].render(largest)}\n")
        show(summary, conclusion)
    raise typer.Exit(conclusion.exit_code)


def soak(
    subjects: list[str],
    cases: int | None,
    hours: float | None,
    seed: str,
    workers: str,
    time_limit: float,
    failures: Path,
    coverage: bool,
    as_json: bool,
) -> int:
    """Soak each subject and print what was found. Exit code 0: no alarm. 1: alarms. 2: nothing was judged."""
    import os
    import secrets
    import tempfile
    import time

    import msgspec

    from equivcheck.backends import registry
    from equivcheck.case import Case
    from equivcheck.coverage import Coverage
    from equivcheck.soak import CHUNK, SIZES, SLOW_CHUNK, Plan, Soaked, as_text
    from equivcheck.soak import soak as run

    names = subjects or [backend.name for backend in registry.available() if backend.runs]
    first = secrets.randbelow(2**32) if seed == "random" else int(seed)
    processes = len(os.sched_getaffinity(0)) if workers == "auto" else max(1, int(workers))
    found: list[Soaked] = []

    def progress(soaked: Soaked) -> None:
        alarms = f", {len(soaked.alarms)} alarms" if soaked.alarms else ""
        print(f"{soaked.subject}: {soaked.cases:,} cases{alarms}", file=sys.stderr, flush=True)

    for name in names:
        started = time.perf_counter()
        seconds = None if hours is None else 3600 * hours / len(names)
        chunk = SLOW_CHUNK if name.startswith(("triton", "torchrec")) else CHUNK
        with tempfile.TemporaryDirectory(prefix="equivcheck-soak-") as folder:
            plan = Plan(name, first, cases, seconds, processes, chunk, time_limit, coverage)
            soaked = run(plan, Path(folder), progress)
        found.append(soaked)
        if not as_json:
            print("\n".join(as_text(soaked, time.perf_counter() - started)))
            if coverage:
                print(f"coverage: {Coverage.from_builtins(soaked.coverage).render(SIZES)}")
        for alarm in soaked.alarms:
            path = failures / f"soak-{name.replace(':', '-').replace('/', '-')}-{alarm.seed}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(Case.from_json(msgspec.json.encode(alarm.case)).to_json())
            print(f"equivcheck replay {path} --subject {name}", file=sys.stderr)
    if as_json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    if not sum(soaked.counts.judged for soaked in found):
        return 2
    return 1 if any(soaked.alarms for soaked in found) else 0
