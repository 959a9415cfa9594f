"""`equivcheck golden`: results of real systems, recorded once and compared with for years."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Record a subject's results on curated cases, and verify that today's build still gives them.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RIGHT, WRONG, CANNOT_TELL = 0, 1, 2

_GOLDEN = Path("golden")
_DRAWN = 60
"""Cases that are drawn for each that is taken, from each property's menu."""

_Cases = Annotated[Path, typer.Option(help="File with a case a line.")]


_Workers = Annotated[str, typer.Option("--workers", "-n", help="Processes, or auto.")]


@app.command()
def curate(
    cases: _Cases = _GOLDEN / "cases.jsonl",
    number: Annotated[int, typer.Option(min=1, help="Cases to choose.")] = 320,
    shards: Annotated[Path, typer.Option(help="Folder of shard files, scaled cases of which come first.")] = _GOLDEN
    / "shards",
) -> None:
    """Choose cases by coverage: every axis and edge that small cases have, and the shards, scaled down."""
    import strategies
    from equivcheck.case import Case
    from equivcheck.curation import curate as choose
    from equivcheck.shards import load_shard, scaled_cases
    from strategies.choices import MENUS

    given = [case for path in sorted(shards.glob("*.json")) for case in scaled_cases(load_shard(path))]
    small = strategies.Budget(2**12, 2**12, 2**12)
    each = _DRAWN * -(-number // len(MENUS))

    def drawn(menu: int) -> list[Case]:
        found = (strategies.random_case(seed * len(MENUS) + menu, small, MENUS[menu]) for seed in range(each))
        return [case for case in dict.fromkeys(found) if _everywhere(case)]

    chosen = choose(given, [drawn(menu) for menu in range(len(MENUS))], number)
    cases.parent.mkdir(parents=True, exist_ok=True)
    cases.write_bytes(b"".join(case.to_json() + b"\n" for case in chosen))
    print(f"{len(chosen)} cases, {cases.stat().st_size:,} bytes, in {cases}")


@app.command()
def record(
    subject: Annotated[str, typer.Option(help="The backend whose results are recorded.")],
    cases: _Cases = _GOLDEN / "cases.jsonl",
    out: Annotated[Path | None, typer.Option(help="Folder; default: golden/recordings/SUBJECT.")] = None,
    workers: _Workers = "auto",
) -> None:
    """Run the curated cases on a subject and keep what it gives."""
    from equivcheck import recordings
    from equivcheck.golden import read_cases
    from equivcheck.runner import Subject
    from equivcheck.surviving import record_surviving

    loaded = Subject.load(subject)
    records, refused = record_surviving(read_cases(cases), subject, _findings(), _processes(workers))
    folder = out or _GOLDEN / "recordings" / subject
    recordings.write(folder, _provenance(subject, dict(loaded.versions)), records)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{len(records)} results of {subject}, {size:,} bytes, in {folder}")
    for status, count in Counter(str(r.status) for r in records).most_common():
        print(f"  {count:>5} {status}")
    for reason, count in sorted(refused.items(), key=lambda item: -item[1]):
        print(f"  {count:>5} not recorded: {reason}")


@app.command()
def unsupported(
    subject: Annotated[str, typer.Option(help="The backend whose refusals are recorded.")],
    drawn: Annotated[int, typer.Option(min=1, help="Cases to draw beside the curated ones; none is run.")] = 20_000,
    also: Annotated[list[Path] | None, typer.Option(help="A gate's unsupported.txt, added.")] = None,
    out: Annotated[Path | None, typer.Option(help="File; default: golden/unsupported/SUBJECT.txt.")] = None,
) -> None:
    """Record the reasons for which a subject refuses cases: the gate cannot tell where it meets another."""
    from equivcheck import refusals
    from equivcheck.backends.protocol import BackendUnavailable
    from equivcheck.backends.registry import SubjectError
    from equivcheck.runner import Subject

    try:
        backend = Subject.load(subject).backend
    except (SubjectError, BackendUnavailable) as error:
        raise typer.BadParameter(str(error)) from None
    found = refusals.survey(backend, refusals.drawn(drawn))
    path = out or _GOLDEN / refusals.FOLDER / refusals.file_name(backend.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    met = [reason for file in also or () for reason in refusals.read(file) if reason not in found]
    path.write_text(refusals.as_text([*found, *met]))
    print(f"{len(found) + len(met)} reasons of {backend.name} in {path}")
    for reason, count in found.most_common():
        print(f"  {count:>6} {reason}")
    for reason in met:
        print(f"  {'':>6} {reason}")


@app.command()
def verify(
    subject: Annotated[str, typer.Option(help="The backend that is verified.")],
    recorded: Annotated[str, typer.Option(help="Whose recordings: a subject's name or a folder.")] = "fbgemm-cuda",
    workers: _Workers = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")] = False,
) -> None:
    """Run the recorded cases on today's build and compare: bit-equal, within bounds, or outside.

    Exit code 0: nothing is outside. 1: something is. 2: could not tell.
    """
    import json

    from equivcheck.case import CaseError
    from equivcheck.recordings import Recordings, built_in_folder
    from equivcheck.runner import Subject
    from equivcheck.surviving import verify_surviving
    from equivcheck.verification import Agreement

    folder = Path(recorded) if Path(recorded).is_dir() else built_in_folder(recorded)
    if folder is None:
        raise typer.BadParameter(f"{recorded!r} is neither a folder of recordings nor a subject that has some")
    try:
        found = Recordings(folder)
        Subject.load(subject)  # settles how Triton runs, which the other processes take over
        results = verify_surviving(found, subject, _findings(), _processes(workers))
    except CaseError as error:
        print(f"equivcheck: {error}", file=sys.stderr)
        raise typer.Exit(CANNOT_TELL) from None
    counts = Counter(result.agreement for result in results)
    elements, equal = sum(r.elements for r in results), sum(r.equal for r in results)
    outside = [result for result in results if result.agreement is Agreement.OUTSIDE]
    if as_json:
        print(json.dumps(_as_json(found, subject, counts, elements, equal, outside), indent=2))
    else:
        where = found.provenance
        print(f"{subject} beside {where.subject} as recorded {where.date} on {where.device or 'an unknown device'}")
        for agreement in Agreement:
            print(f"  {counts[agreement]:>5} {agreement}")
        share = f"{100 * equal / elements:.2f} %" if elements else "none"
        print(f"  {share} of {elements:,} compared elements have the same bits")
        for result in outside:
            print(f"outside: {result.verdict.status} {result.case.to_json().decode()}")
    compared = len(results) - counts[Agreement.UNSUPPORTED] - counts[Agreement.NOT_RUN]
    raise typer.Exit(WRONG if outside else RIGHT if compared else CANNOT_TELL)


def _processes(workers: str) -> int:
    """How many processes to run at a time: a number, or as many as cores and a GPU's memory are enough for."""
    import os

    from equivcheck.engine import placement

    if workers == "auto":
        return placement.automatic(os.environ) or len(os.sched_getaffinity(0))
    if not workers.isdecimal() or int(workers) < 1:
        raise typer.BadParameter(f"--workers is {workers!r}; give a number of processes such as 4, or auto")
    return int(workers)


def _as_json(found: Any, subject: str, counts: Any, elements: int, equal: int, outside: list[Any]) -> dict[str, Any]:
    import msgspec

    return {
        "subject": subject,
        "recorded": msgspec.to_builtins(found.provenance),
        "cases": {str(agreement): count for agreement, count in counts.items()},
        "elements": elements,
        "bit_equal_elements": equal,
        "outside": [msgspec.json.decode(result.case.to_json()) for result in outside],
    }


def _everywhere(case: Any) -> bool:
    """Whether FBGEMM's CUDA TBE takes a case and survives it, and any machine can run it: no streams, no graphs."""
    from equivcheck.backends.fbgemm import FbgemmCuda
    from equivcheck.case import Call

    if case.call in (Call.SIDE_STREAM, Call.GRAPH):
        return False
    return bool(FbgemmCuda.takes(case)) and not FbgemmCuda.danger(case)


def _findings() -> tuple[Any, ...]:
    from equivcheck.findings import built_in_folder, load_findings

    folder = built_in_folder()
    return load_findings([folder]) if folder is not None else ()


def _provenance(subject: str, versions: dict[str, str]) -> Any:
    from datetime import UTC, datetime

    from equivcheck.engine import machine, placement
    from equivcheck.engine.worker import commit
    from equivcheck.recordings import Provenance

    return Provenance(
        subject=subject,
        versions={**machine.versions(), **versions},
        device=machine.device(),
        driver=placement.driver(),
        commit=commit(Path.cwd()),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
