"""`equivcheck faults`: show that the suite sees faults, and how soon."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from equivcheck.engine.options import PROFILES


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
    output: Annotated[Path | None, typer.Option(help="Write the results as JSON to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")] = False,
) -> None:
    """Run the properties on each fault until one sees it.

    Exit code 0: everything that can be seen here was seen. 1: a fault was not, or one was that cannot be. 2: could not
    tell.
    """
    from equivcheck.faults.catalogue import FAULTS, by_name
    from equivcheck.faults.fault import FaultError, Kind
    from equivcheck.faults.hunt import properties as all_properties
    from equivcheck.faults.matrix import Matrix, chosen, told
    from equivcheck.faults.pool import hunt
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
    except FaultError as error:
        raise typer.BadParameter(str(error)) from None
    compiled = _compiles(subject)
    faults = chosen(names or [], kind or [], subject, compiled=compiled, all_=unseen)
    if not faults:
        raise typer.BadParameter(f"no fault fits {subject} and what was asked for; equivcheck faults --list names all")
    matrix = Matrix(compiled)
    requests = [Request(fault.name, subject, profile, seed, tuple(properties or []), minimal) for fault in faults]
    for result in hunt(requests, workers or len(os.sched_getaffinity(0)), limit):
        matrix.add(result)
        print(f"{len(matrix.results)}/{len(faults)} {told(result)}", file=sys.stderr, flush=True)
        if output is not None:
            output.write_text(matrix.to_json())
    if as_json:
        sys.stdout.write(matrix.to_json())
    else:
        for row in matrix.rows():
            print(" | ".join(row))
        print(matrix.line())
    raise typer.Exit(matrix.exit_code)


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
