"""`equivcheck backends`: what runs here, and why the rest does not."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")] = False,
) -> None:
    """List the backends: which run here, with their versions, and why the others do not."""
    from rich.console import Console
    from rich.table import Table

    from equivcheck.backends import registry
    from equivcheck.runner import Subject

    rows: list[dict[str, Any]] = [
        {
            "name": found.name,
            "runs": found.runs,
            "versions": dict(Subject.load(found.name).versions) if found.runs else {},
            "reason": found.reason,
        }
        for found in registry.available()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("backend", no_wrap=True)
    table.add_column("runs here", no_wrap=True)
    table.add_column("with, or why not")
    for row in rows:
        versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        table.add_row(row["name"], "yes" if row["runs"] else "no", versions or row["reason"])
    Console(highlight=False, markup=False, emoji=False).print(table)
    print("A backend of your own: --subject ./file.py:Class, or an entry point of the group equivcheck.backends.")
