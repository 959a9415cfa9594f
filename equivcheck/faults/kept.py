"""Results on disk: a line of JSON a hunt, written as they come, so that a run can be ended, resumed, and put together.

A hunt is taken for done if a line has its fault, subject, profile, seed and list of properties. What a line was hunted
with (versions, day) stands in it; after a change of sources, start another file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from equivcheck.faults.catalogue import FAULTS
from equivcheck.faults.hunt import Hunted, ordered, properties
from equivcheck.faults.worker import Request

Key: TypeAlias = tuple[str, str, str, int, tuple[str, ...]]


def read(paths: Iterable[Path]) -> list[Hunted]:
    """All results in some files, without those of faults that are no longer in the catalogue. Later lines win.

    A last line that was cut off when a run ended is left out.

    Raises
    ------
    ValueError
        If another line is no result.
    """
    found: dict[Key, Hunted] = {}
    for path in paths:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        for number, line in enumerate(lines):
            try:
                result = msgspec.json.decode(line, type=Hunted)
            except msgspec.DecodeError as error:
                if number == len(lines) - 1 and not line.endswith(b"\n"):
                    continue
                raise ValueError(f"line {number + 1} of {path} is no result of a hunt: {error}") from None
            if result.fault in FAULTS:
                found[_key(result)] = result
    return list(found.values())


def missing(requests: Iterable[Request], done: Iterable[Hunted]) -> list[Request]:
    """Requests that have no result yet."""
    known = {_key(result) for result in done if not result.error or result.kill is not None}
    return [request for request in requests if _asked(request) not in known]


def among(requests: Iterable[Request], done: Iterable[Hunted]) -> list[Hunted]:
    """The results of these requests, the latest of each, in the order of the requests."""
    known = {_key(result): result for result in done}
    return [known[_asked(request)] for request in requests if _asked(request) in known]


def append(path: Path, result: Hunted) -> None:
    """Write a result behind the others, in the place of a last line that was cut off."""
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(msgspec.json.encode(result) + b"\n")


def every_property(requests: Iterable[Request], names: tuple[str, ...]) -> Iterator[Request]:
    """Each request once for each property alone: the full matrix."""
    for request in requests:
        for name in names or tuple(properties()):
            yield msgspec.structs.replace(request, only=(name,))


def _key(result: Hunted) -> Key:
    return (result.fault, result.subject, result.profile, result.seed, result.properties)


def _asked(request: Request) -> Key:
    names = request.only or ordered(FAULTS[request.fault])
    return (request.fault, request.subject, request.profile, request.seed, tuple(names))
