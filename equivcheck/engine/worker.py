"""What a process that runs slices holds: options, roster, findings, journal."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path

import pytest

from equivcheck import isolation, runner
from equivcheck.case import Case
from equivcheck.engine import machine
from equivcheck.engine.check import EndedBefore
from equivcheck.engine.journal import Journal, join
from equivcheck.engine.options import Options, options_of, terminal_of
from equivcheck.engine.placement import place
from equivcheck.engine.subjects import Roster, roster
from equivcheck.findings import Finding, built_in_folder, load_findings
from equivcheck.runner import Run, Subject
from equivcheck.store import Provenance
from equivcheck.verdict import Verdict

_WORKER = pytest.StashKey["Worker"]()


def worker_of(config: pytest.Config) -> Worker:
    """The worker that a pytest process is; made when it is first asked for."""
    if _WORKER not in config.stash:
        options = options_of(config)
        sent = getattr(config, "workerinput", None)
        name = "main" if sent is None else sent["workerid"]
        config.stash[_WORKER] = worker = Worker(options, name, Path(options.here), terminal_of(config))
        config.add_cleanup(worker.close)
    return config.stash[_WORKER]


class Worker:
    """One process of a run: an xdist worker, or pytest itself.

    Everything is made when it is first needed, so that a pytest run without properties pays nothing.
    """

    def __init__(self, options: Options, name: str, here: Path, terminal: int | None) -> None:
        """Make a worker.

        Parameters
        ----------
        name
            Of the xdist worker, or `main`.
        here
            Where the run was started.
        terminal
            File descriptor of what people watch; None in xdist's workers.
        """
        self.options = options
        self.name = name
        self.here = here
        self._terminal = terminal
        self._closing = ExitStack()

    def close(self) -> None:
        """Let go of the files that are open."""
        self._closing.close()

    @cached_property
    def roster(self) -> Roster:
        """Subjects and witnesses."""
        place(self.name, os.environ)  # no subject has been loaded, so CUDA has not started
        self._closing.enter_context(join(self.options.run_folder))
        return roster(self.options.subjects, self.options.witnesses, self.options.run_folder)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Recorded findings: the built-in ones and those of the user's folders."""
        built_in = built_in_folder()
        own = tuple(Path(folder) for folder in self.options.findings)
        return load_findings(((built_in,) if built_in else ()) + own)

    @cached_property
    def journal(self) -> Journal:
        """The journal of this process."""
        journal = Journal(self.options.run_folder, self.name, self.options.time_limit, self._terminal)
        self._closing.callback(journal.close)
        return journal

    def findings_on(self, subject: Subject) -> tuple[Finding, ...]:
        """The findings that concern a subject."""
        return tuple(f for f in self.findings if f.concerns(subject.name, subject.versions))

    def provenance(
        self, subject: Subject, property_name: str, file: Path, slice_number: int | None = None, witness: str = ""
    ) -> Provenance:
        """Where the cases of a slice come from."""
        return Provenance(
            subject=subject.name,
            property=property_name,
            file=str(file.relative_to(self.here)) if file.is_relative_to(self.here) else file.name,
            witness=witness,
            profile=self.options.profile,
            seed=self.options.seed,
            slice=slice_number,
            versions={**_versions(), **subject.versions},
            commit=commit(self.here),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )


@dataclass(frozen=True)
class JournalGuard:
    """Runs cases with journal and time limit, each dangerous one in a process of its own.

    `folder` is where a captured batch's file lies.
    """

    worker: Worker
    provenance: Provenance
    item: str
    folder: Path | None = None

    def run(self, case: Case, subject: Subject, findings: tuple[Finding, ...]) -> Run:
        """Run `case`, unless a process of this run ended at it before.

        Raises
        ------
        EndedBefore
            If one did.
        """
        status = self.worker.journal.death_of(case, subject.name)
        if status is not None:
            raise EndedBefore(status)
        return runner.run(
            case,
            subject,
            folder=self.folder,
            findings=findings,
            watch=lambda watched: self.worker.journal.watch(watched, self.provenance, self.item),
            isolate=self._isolated,
        )

    def _isolated(self, case: Case, subject: str, folder: Path | None) -> Verdict:
        return isolation.judge(case, subject, folder, self.worker.options.time_limit)


_versions = lru_cache(maxsize=1)(machine.versions)


@lru_cache(maxsize=1)
def commit(folder: Path) -> str:
    """The checkout's commit, with a plus sign if files differ from it; empty outside of one."""
    try:
        command = ("git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*")
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
