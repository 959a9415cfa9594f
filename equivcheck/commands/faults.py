"""`equivcheck faults`: show that the suite sees faults, and how soon."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equivcheck.engine.options import PROFILES

if TYPE_CHECKING:
    from equivcheck.faults.hunt import Hunted
    from equivcheck.faults.worker import Request


def command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Faults; by default all that this machine can show.")
    ] = None,
    subject: Annotated[str, typer.Option(help="The right backend that faults are put into.")] = "triton",
    kind: Annotated[list[str] | None, typer.Option("--class", help="Only this class; repeatable.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="Only this property, in this order; repeatable.")
    ] = None,
    profile: Annotated[str, typer.Option(help=f"How much: {', '.join(PROFILES)}.")] = "default",
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    minimal: Annotated[bool, typer.Option("--minimal", help="Make killing cases smaller.")] = False,
    unseen: Annotated[bool, typer.Option("--all", help="Hunt those that cannot be seen here, too.")] = False,
    workers: Annotated[int, typer.Option("--workers", "-n", help="Processes; 0 takes one a core.")] = 0,
    limit: Annotated[float, typer.Option(help="Seconds for one fault.")] = 900.0,
    listing: Annotated[bool, typer.Option("--list", help="Name the faults and do nothing else.")] = False,
    every: Annotated[bool, typer.Option("--matrix", help="Each property alone on each fault.")] = False,
    shard: Annotated[str, typer.Option(help="Part i of n of the faults, as i/n.")] = "1/1",
    results: Annotated[
        list[Path] | None, typer.Option(help="Keep results in this file, and take up what it has; more are read.")
    ] = None,
    hunting: Annotated[bool, typer.Option("--hunt/--no-hunt", help="Hunt, or show what is kept.")] = True,
    markdown: Annotated[Path | None, typer.Option(help="Fill in the tables of this page.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the results as JSON to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")] = False,
) -> None:
    """Run the properties on each fault until one sees it.

    Exit code 0: everything that can be seen here was seen. 1: a fault was not, or one was that cannot be. 2: could not
    tell.
    """
    from equivcheck.faults import kept, tables
    from equivcheck.faults.catalogue import FAULTS, by_name
    from equivcheck.faults.fault import FaultError, Kind
    from equivcheck.faults.hunt import properties as all_properties
    from equivcheck.faults.matrix import Matrix, chosen
    from equivcheck.faults.worker import Request

    if listing:
        for fault in FAULTS.values():
            print(f"{fault.name:34} {fault.kind.name.lower():16} {fault.injection:17} {fault.what}")
        return
    if profile not in PROFILES:
        raise typer.BadParameter(f"profile {profile!r} does not exist; there are {', '.join(PROFILES)}")
    for one in kind or []:
        if one.upper() not in Kind.__members__:
            raise typer.BadParameter(f"there is no class {one!r}; there are {', '.join(k.name.lower() for k in Kind)}")
    for one in properties or []:
        if one not in all_properties():
            raise typer.BadParameter(f"there is no property {one!r}; there are {', '.join(all_properties())}")
    try:
        for name in names or []:
            by_name(name)
        kept_results = kept.read(results or [])
        part, parts = _shard(shard)
    except (FaultError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    compiled = _compiles(subject)
    faults = chosen(names or [], kind or [], subject, compiled=compiled, all_=unseen)[part - 1 :: parts]
    if not faults:
        raise typer.BadParameter(f"no fault fits {subject} and what was asked for; equivcheck faults --list names all")
    only = tuple(properties or [])
    requests = [
        Request(fault.name, subject, profile, seed, () if every else only, minimal and not every) for fault in faults
    ]
    if every:
        requests = list(kept.every_property(requests, only))
    waiting = kept.missing(requests, kept_results)
    if hunting and waiting:
        for result in _hunted(waiting, len(requests), workers, limit, results[0] if results else None):
            kept_results.append(result)
    wanted = kept.among(requests, kept_results)
    if every:
        if markdown is None:
            print(tables.by_property(wanted))
        else:
            _fill(markdown, "matrix", tables.by_property(wanted))
        raise typer.Exit(2 if len(wanted) < len(requests) or any(found.error for found in wanted) else 0)
    matrix = Matrix(compiled)
    for result in wanted:
        matrix.add(result)
    if markdown is not None:
        _fill(markdown, "compiled" if compiled else "interpreted", tables.first_kills(wanted, compiled=compiled))
    if output is not None:
        output.write_text(matrix.to_json())
    if as_json:
        sys.stdout.write(matrix.to_json())
    else:
        for row in matrix.rows():
            print(" | ".join(row))
        print(matrix.line())
    raise typer.Exit(2 if len(wanted) < len(requests) else matrix.exit_code)


def _hunted(requests: list[Request], in_all: int, workers: int, limit: float, keep: Path | None) -> Iterator[Hunted]:
    """Hunt, keep each result at once, and tell it with the time so far and the time that may be left."""
    from equivcheck.faults import kept
    from equivcheck.faults.matrix import told
    from equivcheck.faults.pool import hunt

    started, done = time.monotonic(), in_all - len(requests)
    for number, result in enumerate(hunt(requests, workers or len(os.sched_getaffinity(0)), limit), 1):
        if keep is not None:
            kept.append(keep, result)
        seconds = time.monotonic() - started
        left = seconds / number * (len(requests) - number)
        print(
            f"{done + number}/{in_all}, {seconds:.0f} s, some {left:.0f} s left: {told(result)}",
            file=sys.stderr,
            flush=True,
        )
        yield result


def _fill(page: Path, block: str, text: str) -> None:
    """Put tables into a page's block; a page that does not exist is made."""
    from equivcheck.faults.tables import filled

    start = page.read_text("utf-8") if page.exists() else f"<!-- faults: {block} -->\n<!-- faults: end -->\n"
    try:
        page.write_text(filled(start, block, text), "utf-8")
    except ValueError as error:
        raise typer.BadParameter(f"{page}: {error}") from None


def _shard(text: str) -> tuple[int, int]:
    part, slash, parts = text.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise ValueError(f"shard {text!r} is not i/n, such as 1/4")
    return int(part), int(parts)


def _compiles(subject: str) -> bool:
    """Whether a subject's kernels are compiled here."""
    from equivcheck.backends import registry

    parsed = registry.parse(subject)
    if parsed.argument:
        return parsed.argument == "cuda"
    said = os.environ.get("TRITON_INTERPRET")
    if said is not None:
        return said == "0"
    from equivcheck.engine.placement import installed

    return bool(installed())
