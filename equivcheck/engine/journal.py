"""The journal: what a process was doing when it ended, for whoever comes after it.

Before a subject is called, the case is written to a file; after, the file is removed (19 us together). A process that
crashes or hangs leaves its file behind. All processes of a run hold a lock on the run's folder as long as they live; a
folder that nobody locks was left behind by a run that ended, and its journals are saved cases in waiting.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from equivcheck.case import Case, CaseError
from equivcheck.isolation import first_lines
from equivcheck.store import Kind, Provenance, SavedCase
from equivcheck.verdict import Status

MOST_DEATHS = 3
"""Cases of one slice that may end the process before the rest of the slice is given up: each costs a new worker."""

_NO_TRACE = "it left no traceback: it was killed from outside, as the system does where memory runs out"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is written before a subject is called."""

    case: dict[str, Any]
    provenance: Provenance
    item: str
    time_limit: float


class Death(msgspec.Struct, frozen=True):
    """A process that ended while it ran a case, as found in its journal."""

    item: str
    saved: SavedCase


class Journal:
    """The journal of one process."""

    def __init__(self, folder: Path, worker: str, time_limit: float, terminal: int | None = None) -> None:
        """Keep the journal of `worker` in `folder`, the run's, which the caller has joined.

        Parameters
        ----------
        terminal
            Descriptor on which the traceback of a crash or hang is shown as well; none in workers, whose controller
            tells.
        """
        self._folder = folder
        self._path = folder / f"{worker}.json"
        self._time_limit = time_limit
        self._closing = contextlib.ExitStack()
        if terminal is None:
            self._trace: IO[bytes] = self._closing.enter_context((folder / f"{worker}.trace").open("ab"))
        else:  # a process that outlives this one writes the traceback to both places
            command = ["tee", str(folder / f"{worker}.trace")]
            tee = self._closing.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=terminal))
            assert tee.stdin is not None
            self._trace = tee.stdin
        faulthandler.enable(self._trace.fileno())

    def close(self) -> None:
        """Let go of the traceback's file."""
        faulthandler.disable()
        self._closing.close()

    @contextlib.contextmanager
    def watch(self, case: Case, provenance: Provenance, item: str) -> Iterator[None]:
        """Journal `case` and limit its time while the block runs; at the limit the process ends."""
        entry = Entry(msgspec.json.decode(case.to_json()), provenance, item, self._time_limit)
        self._path.write_bytes(msgspec.json.encode(entry))
        faulthandler.dump_traceback_later(self._time_limit, exit=True, file=self._trace.fileno())
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._path.unlink(missing_ok=True)

    def death_of(self, case: Case, subject: str) -> Status | None:
        """How a process of this run ended at this case, if one did."""
        try:
            return Status(_death_marker(self._folder, case, subject).read_text())
        except FileNotFoundError:
            return None


def join(folder: Path) -> IO[bytes]:
    """Make a run's folder if it is not there, and hold its lock, shared with the run's other processes.

    The lock is held until the returned file is closed, at the latest when the process ends, however it ends.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            lock = (folder / "lock").open("ab")
            fcntl.flock(lock, fcntl.LOCK_SH)
            if (folder / "lock").exists() and os.path.samestat(os.fstat(lock.fileno()), (folder / "lock").stat()):
                return lock
            lock.close()  # another run has taken the folder for one that was left behind, and removed it


def remove(folder: Path) -> None:
    """Remove a run's folder, and the journals' and the failures' folders where nothing else is in them."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
        folder.parent.parent.rmdir()


def collect(folder: Path, worker: str) -> Death | None:
    """Take the journal that `worker` left in a run's folder, and mark its case as deadly for the rest of the run.

    None if the process did not end while it ran a case, or the journal was cut off.
    """
    path = folder / f"{worker}.json"
    try:
        entry = msgspec.json.decode(path.read_bytes(), type=Entry)
        case = Case.from_builtins(entry.case)
    except (FileNotFoundError, msgspec.DecodeError, CaseError):
        path.unlink(missing_ok=True)
        return None
    path.unlink()
    trace = _trace(folder / f"{worker}.trace")
    status = Status.TIMEOUT if "Timeout (" in trace else Status.CRASHED
    what = f"took longer than {entry.time_limit:g} s" if status is Status.TIMEOUT else "ended the process"
    if not trace:
        what += f"\n{_NO_TRACE}"
    marker = _death_marker(folder, case, entry.provenance.subject)
    marker.parent.mkdir(exist_ok=True)
    marker.write_text(status.value)
    return Death(
        entry.item,
        SavedCase(case, Kind.ENDED, entry.provenance, status, f"the case {what}\n{trace}".rstrip()),
    )


def forget(journals: Path, process: int) -> None:
    """Remove the journals of a pytest that was killed on purpose, and of its workers: no case has ended them."""
    for folder in journals.glob(f"{process}-*"):
        remove(folder)


def stale(journals: Path) -> list[Death]:
    """Deaths that earlier runs left behind, whose folders are removed."""
    deaths = []
    for folder in sorted(path for path in journals.glob("*") if path.is_dir()):
        with contextlib.suppress(OSError), (folder / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            deaths += [death for path in sorted(folder.glob("*.json")) if (death := collect(folder, path.stem))]
            remove(folder)
    return deaths


def _death_marker(folder: Path, case: Case, subject: str) -> Path:
    digest = hashlib.sha256(subject.encode() + b"\n" + case.to_json()).hexdigest()[:24]
    return folder / "deaths" / digest


def _trace(path: Path) -> str:
    try:
        return first_lines(path.read_bytes())
    except FileNotFoundError:
        return ""
