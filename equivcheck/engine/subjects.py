"""Which subjects a run has: asked for, or all that run here; found out once and the same in every worker."""

from __future__ import annotations

import fcntl
from functools import cache
from pathlib import Path

import msgspec

from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.recorded import Recorded
from equivcheck.recordings import Recordings, built_in_folder
from equivcheck.runner import Subject
from equivcheck.store import write_atomically


class Roster(msgspec.Struct, frozen=True):
    """Subjects and witnesses of a run.

    Attributes
    ----------
    subjects, witnesses
        Names, in order.
    versions
        Per name, what the backend says about its versions.
    broken
        Names that were asked for and do not work, with the sentence that says why.
    absent
        Backends that were not asked for and do not run here, with the sentence.
    """

    subjects: tuple[str, ...]
    witnesses: tuple[str, ...] = ()
    versions: dict[str, dict[str, str]] = {}
    broken: dict[str, str] = {}
    absent: dict[str, str] = {}


@cache
def load_subject(name: str) -> Subject:
    """The subject of that name, built once a process. Raises as `Subject.load` does."""
    return Subject.load(name)


@cache
def load_witness(name: str) -> Subject:
    """The witness of that name; where it does not run here, its recorded results, whose name says so.

    Raises
    ------
    equivcheck.backends.protocol.BackendUnavailable
        If it does not run here, and there are no recorded results.
    """
    try:
        return load_subject(name)
    except BackendUnavailable:
        folder = built_in_folder(name)
        if folder is None:
            raise
        recorded = Recorded(Recordings(folder))
        return Subject(recorded.name, recorded, recorded.versions())


def roster(asked: tuple[str, ...], witnesses: tuple[str, ...], folder: Path) -> Roster:
    """The run's roster: made by the first worker that asks, and kept in the run's folder for the others.

    Two workers could find different backends (a GPU whose memory is full), and would then collect different tests,
    which xdist refuses.
    """
    with (folder / "roster.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = read_roster(folder)
        if found is None:
            found = _find_out(asked, witnesses)
            (folder / "roster").write_bytes(msgspec.json.encode(found))
        return found


def read_roster(folder: Path) -> Roster | None:
    """The run's roster, if one was made."""
    try:
        return msgspec.json.decode((folder / "roster").read_bytes(), type=Roster)
    except FileNotFoundError:
        return None


class Extent(msgspec.Struct, frozen=True):
    """How much a run is: its slices, and the elements of the largest case that its profile allows."""

    slices: int = 0
    largest_case: int = 0


def write_extent(folder: Path, extent: Extent) -> None:
    """Write down what a process collected; all collect the same."""
    write_atomically(folder / "extent", msgspec.json.encode(extent))


def read_extent(folder: Path) -> Extent:
    """What was written down, zeros where nothing was."""
    try:
        return msgspec.json.decode((folder / "extent").read_bytes(), type=Extent)
    except FileNotFoundError:
        return Extent()


def _find_out(asked: tuple[str, ...], witnesses: tuple[str, ...]) -> Roster:
    from equivcheck.backends import registry

    absent: dict[str, str] = {}
    subjects = asked
    if not asked:
        found = registry.available()
        subjects = tuple(backend.name for backend in found if backend.runs)
        absent = {backend.name: backend.reason for backend in found if not backend.runs}
    versions: dict[str, dict[str, str]] = {}
    broken: dict[str, str] = {}
    for name in dict.fromkeys((*subjects, *witnesses)):
        try:
            versions[name] = dict((load_subject if name in subjects else load_witness)(name).versions)
        except Exception as error:  # a third party's class may raise anything
            broken[name] = str(error) or type(error).__name__
    return Roster(subjects, witnesses, versions, broken, absent)
