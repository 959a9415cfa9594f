"""`equivcheck new-backend`: a package with a backend of one's own, which passes the suite as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

_TEMPLATES = Path(__file__).with_name("templates") / "new_backend"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder; its name is the backend's.")],
) -> None:
    """Write a package with a backend of your own: a class behind four methods, and its entry point."""
    name = folder.name.lower().replace("_", "-")
    if not _NAME.fullmatch(name):
        raise typer.BadParameter(f"{folder.name!r} is no name of a package; write one such as my-tbe")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise typer.BadParameter(f"{folder} exists and is not empty; name a new folder")
    for path in write(folder, name):
        print(path)
    print(f"Next: pip install -e {folder}; equivcheck check --subject {name}")


def write(folder: Path, name: str) -> list[Path]:
    """Write the package's files into `folder`, and return them."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    package = name.replace("-", "_")
    named = "".join(part.capitalize() for part in name.split("-"))
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for template in sorted(environment.list_templates()):
        file = template.removesuffix(".jinja").replace("backend.py", f"{package}.py")
        path = folder / file
        values = {"name": name, "package": package, "class": named}
        path.write_text(environment.get_template(template).render(values))
        written.append(path)
    return written
