"""What a gate starts from, and all that its result depends on, as text: runs may be put together where it agrees."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from equivcheck import golden, refusals, store
from equivcheck.backends.registry import SubjectError, parse
from equivcheck.case import CaseError
from equivcheck.engine import machine, placement
from equivcheck.engine.suite import suite_folder
from equivcheck.engine.worker import commit
from equivcheck.findings import built_in_folder as findings_folder
from equivcheck.recordings import Recordings
from equivcheck.recordings import built_in_folder as recordings_folder

_CUDA = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")
"""Distributions with CUDA's runtime, on which torch's wheels depend."""


class Inputs(msgspec.Struct, frozen=True):
    """What a gate was asked for.

    Attributes
    ----------
    properties
        Files and folders of properties; the suite's where there are none.
    saved
        Files of saved cases that are run again.
    curated
        File with a case a line; None for none.
    baseline
        Folder of recordings.
    findings
        Folders of findings of the user's own.
    unsupported
        File with a reason a line for which the subject may refuse cases.
    """

    subject: str
    witnesses: tuple[str, ...] = ()
    profile: str = "thorough"
    seed: int = 0
    time_limit: float = 120.0
    shrink: bool = True
    properties: tuple[Path, ...] = ()
    saved: tuple[Path, ...] = ()
    curated: Path | None = None
    baseline: Path | None = None
    findings: tuple[Path, ...] = ()
    unsupported: Path | None = None
    faults: bool = True

    @property
    def accepted(self) -> frozenset[str] | None:
        """Reasons for which the subject may refuse cases; None where none are recorded."""
        if self.unsupported is None:
            return None
        return refusals.read(self.unsupported)

    def pinned(self, here: Path) -> dict[str, str]:
        """All that cases and results depend on: choices, versions, device, and digests of what is read."""
        found = {
            "subject": self.subject,
            "witnesses": ", ".join(self.witnesses),
            "profile": self.profile,
            "seed": str(self.seed),
            "time limit": f"{self.time_limit:g} s",
            "shrinking": "yes" if self.shrink else "no",
            "commit": commit(here),
            "device": _kinds(machine.device()),
            "driver": placement.driver(),
            "cuda": _cuda(),
            **machine.versions(),
            "subject's file": _digest(_files_of(self.subject, here)),
            "properties": _digest(self.properties or (suite_folder(),)),
            "saved cases": _digest(self.saved),
            "golden cases": _digest([self.curated] if self.curated else []),
            "findings": _digest([*filter(None, [findings_folder()]), *self.findings]),
            "baseline": str(self.baseline) if self.baseline else "",
            "baseline's digest": _digest([self.baseline / "manifest.json"] if self.baseline else []),
            "reasons to refuse": _digest([self.unsupported] if self.unsupported else []),
            "faults": "yes" if self.faults else "no",
        }
        return {name: value for name, value in found.items() if value}


def baseline_folder(name: str) -> Path:
    """The folder of recordings that a name means: a folder, or a subject that has built-in ones.

    Raises
    ------
    CaseError
        If there is none, or it holds no recordings.
    """
    path = Path(name) if Path(name).is_dir() else recordings_folder(name)
    if path is None:
        raise CaseError(
            f"baseline {name!r} is neither a folder of recordings nor a subject that has some; make one with "
            "equivcheck golden record"
        )
    Recordings(path)
    return path.resolve()


def golden_file() -> Path | None:
    """The curated cases that come with equivcheck: in the wheel, or in the checkout."""
    folder = golden.folder()
    file = folder / "cases.jsonl" if folder is not None else None
    return file if file is not None and file.is_file() else None


def saved_cases(folders: Iterable[Path]) -> tuple[tuple[Path, ...], list[str]]:
    """Files of saved cases, each name once, and a sentence for each file that holds none."""
    found: dict[str, Path] = {}
    unread = []
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            try:
                store.load(path)
            except CaseError as error:
                unread.append(f"a saved case was not run again: {error}")
            else:
                found.setdefault(path.name, path.resolve())
    return tuple(found[name] for name in sorted(found)), unread


def _files_of(subject: str, here: Path) -> list[Path]:
    """The Python file that a subject is a class of."""
    try:
        asked = parse(subject)
    except SubjectError:
        return []
    path = here / asked.name
    return [path] if asked.in_file is not None and path.is_file() else []


def _kinds(device: str) -> str:
    """A device without the number of its GPUs or cores: shards may run on more of the same kind."""
    return re.sub(r", \d+ cores$|\b\d+ x ", "", device)


def _cuda() -> str:
    for name in _CUDA:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _digest(paths: Sequence[Path]) -> str:
    """Digest of files, and of all Python and JSON files in folders, by name and contents; empty for none."""
    files: list[Path] = []
    for path in paths:
        files += sorted(p for p in path.rglob("*") if p.suffix in (".py", ".json")) if path.is_dir() else [path]
    if not files:
        return ""
    state = hashlib.sha256()
    for file in files:
        state.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return state.hexdigest()[:16]
