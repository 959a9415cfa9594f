"""`equivcheck merge`: put the shards of one gate together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

CANNOT_TELL = 2


def command(
    folders: Annotated[list[Path], typer.Argument(help="Folders of the shards: what each machine's --out was.")],
    out: Annotated[Path, typer.Option(help="Folder for the whole.")],
    unsupported: Annotated[Path | None, typer.Option(help="File with a reason a line that it may refuse for.")] = None,
) -> None:
    """Merge shards: one result and one report, of what one machine would have run.

    Exit code 0: right. 1: wrong. 2: could not tell, as where a shard is missing or the shards are of different runs.
    """
    from equivcheck.case import CaseError
    from equivcheck.gate import pages
    from equivcheck.gate.merge import merge

    try:
        result = merge(folders, out, unsupported)
    except CaseError as error:
        print(f"COULD NOT TELL: {error}", file=sys.stderr)
        raise typer.Exit(CANNOT_TELL) from None
    print("\n".join([*pages.tell_github(result), result.sentence, *(f"  {reason}" for reason in result.reasons[1:])]))
    print(out / "report.html")
    raise typer.Exit(result.exit_code)
