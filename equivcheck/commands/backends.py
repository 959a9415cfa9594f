"""`equivcheck backends`: what runs here, and why the rest does not; and what a device of PyTorch's has."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

_WIDTH = 300
"""Columns where no terminal has a width of its own: nothing is cut off."""


def command(
    operators: Annotated[
        str | None, typer.Option(metavar="torch:DEVICE", help="Try what plain PyTorch asks of a device, one by one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")] = False,
) -> None:
    """List the backends: which run here, with their versions, and why the others do not."""
    rows = _backends() if operators is None else _operators(operators)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    if operators is None:
        _print(
            ("backend", "runs here", "with, or why not"),
            [(row["name"], "yes" if row["runs"] else "no", _versions(row) or row["reason"]) for row in rows],
        )
        print("A backend of your own: equivcheck new-backend DIR, or --subject ./file.py:Class (docs/backends.md).")
        return
    _print(
        ("operator", "types", "on the device", "asked for by", "evidence"),
        [
            (row["operator"], ", ".join(row["dtypes"]), row["state"], _few(row["asked_for_by"]), row["detail"])
            for row in rows
        ],
    )


def _backends() -> list[dict[str, Any]]:
    from equivcheck.backends import registry
    from equivcheck.runner import Subject

    return [
        {
            "name": found.name,
            "runs": found.runs,
            "versions": dict(Subject.load(found.name).versions) if found.runs else {},
            "reason": found.reason,
        }
        for found in registry.available()
    ]


def _operators(subject: str) -> list[dict[str, Any]]:
    from equivcheck.backends import registry
    from equivcheck.backends.protocol import BackendUnavailable
    from equivcheck.backends.torch_operators import evidence

    try:
        parsed = registry.parse(subject)
    except registry.SubjectError as error:
        raise typer.BadParameter(str(error)) from None
    if parsed.name != "torch" or parsed.variants:
        raise typer.BadParameter(f"{subject!r} is no device of PyTorch's; write torch:DEVICE, such as torch:cpu")
    try:
        found = evidence(parsed.argument or "cpu").rows()
    except BackendUnavailable as error:
        raise typer.BadParameter(str(error)) from None
    return [
        {
            "operator": observed.operator,
            "dtypes": list(observed.dtypes),
            "state": observed.state.value,
            "asked_for_by": list(asking),
            "detail": observed.detail,
        }
        for observed, asking in found
    ]


def _print(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns[:-1]:
        table.add_column(name, no_wrap=True)
    table.add_column(columns[-1])
    for row in rows:
        table.add_row(*row)
    wide = None if sys.stdout.isatty() else _WIDTH
    Console(width=wide, highlight=False, markup=False, emoji=False).print(table)


def _versions(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in row["versions"].items())


def _few(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{parts[0]}, and {len(parts) - 1} more"
