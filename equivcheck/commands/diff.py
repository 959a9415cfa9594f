"""`equivcheck diff`: what changed between two builds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

SAME, CHANGED, CANNOT_TELL = 0, 1, 2


def command(
    first: Annotated[Path, typer.Argument(help="Folder of a gate, its result.json, or a folder of recordings.")],
    second: Annotated[Path, typer.Argument(help="The other, of the same kind.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")] = False,
) -> None:
    """Compare two results of a gate, or two recordings, and say what changed.

    Exit code 0: nothing. 1: something. 2: could not tell. A mark stands before what got worse.
    """
    import msgspec

    from equivcheck.case import CaseError
    from equivcheck.engine.show import shares
    from equivcheck.gate.diff import difference

    try:
        found = difference(first, second)
    except CaseError as error:
        print(f"equivcheck: {error}", file=sys.stderr)
        raise typer.Exit(CANNOT_TELL) from None
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        worse = sum(change.worse for change in found.changes)
        print(f"{len(found.changes)} changes from {first} to {second}, {worse} for the worse")
        kind = ""
        for change in found.changes:
            if change.kind != kind:
                kind = change.kind
                print(f"{kind}:")
            how = f"{change.before or 'not there'} -> {change.after or 'not there'}"
            print(f"{'! ' if change.worse else '  '}{change.name}: {how}")
        if found.drift is not None:
            apart = found.drift
            print(f"{shares(apart.equal, apart.elements)} of {apart.elements:,} elements have the same bits")
    raise typer.Exit(CHANGED if found.changes else SAME)
