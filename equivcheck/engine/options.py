"""What a run was asked for: pytest options in, one immutable value out, the same in every worker."""

from __future__ import annotations

import argparse
import os
import secrets
import uuid
from pathlib import Path

import msgspec
import pytest

PROFILES = ("quick", "default", "thorough", "deep")
"""Names of `strategies.budget.Profile`, repeated here because importing strategies imports Hypothesis."""

DEFAULT_TIME_LIMIT = 120.0
"""Seconds a case. The slowest right case so far, in Triton's interpreter, takes 0.4 s (2.6 cases a second for a loop
over single lookups, 2026-11-30); a first kernel compiled on a GPU under load takes tens."""


_OPTIONS = pytest.StashKey["Options"]()
_TERMINAL = pytest.StashKey[int]()


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that decides what a run does.

    Attributes
    ----------
    subjects, witnesses
        Names of configured backends.
    profile, seed
        How many cases of which sizes, and from which seed each slice derives its own.
    failures
        Folder for saved cases; the journal lies in it.
    findings
        Folders of findings beside the built-in one.
    time_limit
        Seconds that a case may take.
    shrink
        Whether a failing case is shrunk before it is saved.
    run
        Name of this run, under which its workers keep their journals.
    here
        The folder that it was started from.
    """

    subjects: tuple[str, ...]
    witnesses: tuple[str, ...]
    profile: str
    seed: int
    failures: str
    findings: tuple[str, ...]
    time_limit: float
    shrink: bool
    run: str
    here: str

    @property
    def failures_folder(self) -> Path:
        """Folder for saved cases."""
        return Path(self.failures)

    @property
    def journals_folder(self) -> Path:
        """Folder with a folder for each run that is going on, or was left behind."""
        return Path(self.failures) / ".journal"

    @property
    def run_folder(self) -> Path:
        """Folder of this run's journals; it exists once a process of the run has collected a property."""
        return self.journals_folder / self.run


def add_options(parser: pytest.Parser) -> None:
    """The group `equivcheck` of pytest's options. `--profile` and `--seed` belong to other plugins."""
    group = parser.getgroup("equivcheck", "equivcheck: is this table-batched embedding kernel right?")
    group.addoption(
        "--subject",
        action="append",
        default=[],
        metavar="NAME",
        help="a backend to judge: fbgemm-cpu, torch:cpu, ./file.py:Class (repeatable; default: all available here)",
    )
    group.addoption(
        "--witness",
        action="append",
        default=[],
        metavar="NAME",
        help="a backend to compare each subject with (repeatable)",
    )
    group.addoption(
        "--equivcheck-profile",
        choices=PROFILES,
        default="default",
        help="how many cases of which sizes (default: %(default)s)",
    )
    group.addoption(
        "--equivcheck-seed",
        default="0",
        metavar="N",
        help="seed of the run, or 'random' for a fresh one (default: %(default)s)",
    )
    group.addoption(
        "--equivcheck-failures",
        default="failures",
        metavar="DIR",
        help="where failing cases are saved (default: ./%(default)s)",
    )
    group.addoption(
        "--equivcheck-events",
        default=None,
        metavar="FILE",
        help="write what happens to FILE as JSON lines",
    )
    group.addoption(
        "--equivcheck-findings",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder with findings of your own beside the built-in ones (repeatable)",
    )
    group.addoption(
        "--equivcheck-time-limit",
        type=float,
        default=DEFAULT_TIME_LIMIT,
        metavar="SECONDS",
        help="time that a case may take (default: %(default)s)",
    )
    group.addoption(
        "--equivcheck-lifeline",
        type=int,
        default=None,
        help=argparse.SUPPRESS,  # between processes of equivcheck's
    )
    group.addoption(
        "--equivcheck-no-shrink",
        action="store_true",
        help="save failing cases as drawn",
    )


def options_of(config: pytest.Config) -> Options:
    """The options of a run, read once."""
    if _OPTIONS not in config.stash:
        config.stash[_OPTIONS] = read_options(config)
    return config.stash[_OPTIONS]


def keep_terminal(config: pytest.Config) -> None:
    """Keep the standard error that people watch: while a test runs, pytest has put a file in its place."""
    config.stash[_TERMINAL] = os.dup(2)
    config.add_cleanup(lambda: os.close(config.stash[_TERMINAL]))


def terminal_of(config: pytest.Config) -> int | None:
    """Descriptor of the standard error that people watch; None in a worker of xdist."""
    return config.stash.get(_TERMINAL, None)


def encode(options: Options) -> str:
    """Options as they travel to xdist's workers."""
    return msgspec.json.encode(options).decode()


def read_options(config: pytest.Config) -> Options:
    """The options of a run; in an xdist worker, those that the controller sent.

    Raises
    ------
    ValueError
        If the seed is no number or the time limit is not positive.
    """
    sent = getattr(config, "workerinput", {}).get("equivcheck")
    if sent is not None:
        return msgspec.json.decode(sent, type=Options)
    get = config.getoption
    seed: str = get("equivcheck_seed")
    if seed != "random" and not seed.isdecimal():
        raise ValueError(f"--equivcheck-seed is {seed!r}; give a number such as 0, or random")
    limit: float = get("equivcheck_time_limit")
    if not limit > 0:
        raise ValueError(f"--equivcheck-time-limit is {limit}; give the seconds that a case may take, such as 60")
    here = Path(config.invocation_params.dir)
    return Options(
        subjects=tuple(dict.fromkeys(get("subject"))),
        witnesses=tuple(dict.fromkeys(get("witness"))),
        profile=get("equivcheck_profile"),
        seed=secrets.randbelow(2**32) if seed == "random" else int(seed),
        failures=str(here / get("equivcheck_failures")),
        findings=tuple(str(here / folder) for folder in get("equivcheck_findings")),
        time_limit=limit,
        shrink=not get("equivcheck_no_shrink"),
        run=f"{os.getpid()}-{uuid.uuid4().hex[:8]}",
        here=str(here),
    )
