"""`equivcheck bench`: how fast a TBE is, next to another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

RIGHT, WRONG, CANNOT_TELL = 0, 1, 2


def command(
    shards: Annotated[list[Path] | None, typer.Argument(help="Shard files; default: those that come along.")] = None,
    subject: Annotated[str, typer.Option(help="Measure it.")] = "triton",
    witness: Annotated[str, typer.Option(help="Compare with it.")] = "",
    out: Annotated[Path, typer.Option(help="Folder of bench.json, .md, .svg.", show_default=False)] = Path("bench"),
    kind: Annotated[list[str] | None, typer.Option("--class", help="Only this class (repeatable).")] = None,
    points: Annotated[str, typer.Option(help="Only names that hold this.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="One point a class.")] = False,
    weights: Annotated[str, typer.Option(help="fp16, fp32, bf16.")] = "fp16",
    output: Annotated[str, typer.Option(help="fp32, fp16, bf16.")] = "fp32",
    optimizer: Annotated[str, typer.Option(help="FBGEMM's name.")] = "exact_row_wise_adagrad",
    weighted: Annotated[bool, typer.Option("--weighted", help="Per-sample weights.")] = False,
    batch: Annotated[int | None, typer.Option(min=1, help="Batch of shards.")] = None,
    batch_limit: Annotated[int | None, typer.Option(min=1, help="Largest batch.")] = None,
    rows_limit: Annotated[int | None, typer.Option(min=1, help="Most rows a table.")] = None,
    budget: Annotated[float | None, typer.Option(help="Seconds for all points.")] = None,
    workers: Annotated[str, typer.Option("--workers", "-n", help="Judging processes.")] = "auto",
    compare: Annotated[tuple[Path, Path] | None, typer.Option(help="Two bench.json, before and after.")] = None,
) -> None:
    """Measure a TBE, shape by shape: every point is judged first, since a wrong kernel has no speed.

    Exit code 0: measured. 1: a kernel is wrong. 2: could not tell, or not comparable.
    """
    from equivcheck.backends.protocol import BackendUnavailable
    from equivcheck.backends.registry import SubjectError
    from equivcheck.bench.point import Setting
    from equivcheck.bench.selection import Wanted, select
    from equivcheck.case import CaseError

    if compare is not None:
        raise typer.Exit(_compare(*compare))
    try:
        setting = Setting.named(weights, output, optimizer, weighted=weighted)
        chosen = select(Wanted(tuple(shards or ()), tuple(kind or ()), points, quick, batch))
    except CaseError as error:
        raise typer.BadParameter(str(error)) from None

    from equivcheck.bench import table
    from equivcheck.bench.conclusion import conclude
    from equivcheck.bench.picture import as_svg
    from equivcheck.bench.run import CannotMeasure, Request, run

    request = Request(
        subject, witness, chosen, setting, out, rows_limit, batch_limit, budget, _workers(workers), _line(sys.argv)
    )
    try:
        document = run(request, _tell, lambda row: _tell("  ".join(filter(None, table.point_row(row, bool(witness))))))
    except (SubjectError, BackendUnavailable, CannotMeasure) as error:
        print(f"COULD NOT TELL: {error}", file=sys.stderr)
        raise typer.Exit(CANNOT_TELL) from None
    table.print_document(document)
    (out / "bench.md").write_text(table.as_markdown(document))
    (out / "bench.svg").write_text(as_svg(document))
    code, sentence = conclude(document)
    print(f"{sentence} {out / 'bench.json'}")
    raise typer.Exit(code)


def _compare(before: Path, after: Path) -> int:
    from equivcheck.bench.compare import NotComparable, as_lines, compared
    from equivcheck.bench.result import load
    from equivcheck.case import CaseError

    try:
        print("\n".join(as_lines(compared(load(before), load(after)))))
    except (CaseError, NotComparable) as error:
        print(f"COULD NOT TELL: {error}", file=sys.stderr)
        return CANNOT_TELL
    return RIGHT


def _workers(asked: str) -> int:
    import os

    cores = len(os.sched_getaffinity(0))
    if asked != "auto" and not asked.isdecimal():
        raise typer.BadParameter(f"--workers is {asked!r}; give a number, or auto")
    return min(12, max(1, cores - 1)) if asked == "auto" else max(1, int(asked))


def _line(arguments: list[str]) -> tuple[str, ...]:
    return ("equivcheck", *arguments[1:])


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
