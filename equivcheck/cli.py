"""The command line: one verb a job, one file a verb in `equivcheck.commands`."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import traceback
from typing import NoReturn

import typer

from equivcheck import __version__, commands

CANNOT_TELL = 2
"""Exit code of everything that is neither right (0) nor wrong (1); also that of a wrong option."""


def application() -> typer.Typer:
    """The application, with the verbs that `equivcheck.commands` has.

    A module there offers `command`, a function with typed arguments, or `app`, a `typer.Typer` with verbs below its
    own. It imports what is heavy inside its functions.
    """
    app = typer.Typer(
        help="Is this table-batched embedding kernel right? Exit codes: 0 right, 1 wrong, 2 could not tell.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for found in pkgutil.iter_modules(commands.__path__):
        module = importlib.import_module(f"equivcheck.commands.{found.name}")
        verb = found.name.replace("_", "-")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=verb)
        else:
            app.command(verb)(module.command)
    return app


def main() -> NoReturn:
    """Run the command line. An exception of our own is no verdict on a kernel: exit code 2."""
    try:
        application()()
    except Exception:
        traceback.print_exc()
        print("equivcheck: this is an error of equivcheck itself, please report it", file=sys.stderr)
        sys.exit(CANNOT_TELL)
    sys.exit(0)


def _version(asked: bool) -> None:
    if asked:
        print(f"equivcheck {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    del version
