"""What happens in a run, as typed events. The terminal, the JSON lines and every later report are subscribers.

One event is one line of JSON, told apart by `event`. A reader ignores events and fields that it does not know; a field
never changes its meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from equivcheck.engine.counts import Counts
from equivcheck.engine.failures import Told
from equivcheck.verdict import Status

FORMAT_VERSION = 1


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """Base of all events."""


class Started(Event, frozen=True, tag="started"):
    """A run began. `options` are those that decide what it does; `versions` those of the machine and of equivcheck."""

    options: dict[str, Any]
    versions: dict[str, str]
    device: str
    commit: str
    time: str
    format: int = FORMAT_VERSION


class Collected(Event, frozen=True, tag="collected"):
    """The slices are known. `largest_case` is the number of elements that the profile allows a case.

    `versions` per subject and witness, as the backends say; `broken` and `absent` backends with their sentence.
    """

    slices: int
    subjects: tuple[str, ...]
    witnesses: tuple[str, ...] = ()
    versions: dict[str, dict[str, str]] = {}
    broken: dict[str, str] = {}
    absent: dict[str, str] = {}
    largest_case: int = 0


class SliceFinished(Event, frozen=True, tag="slice"):
    """A slice ended. `outcome` is passed, failed or skipped; `message` says why, unless `failures` do."""

    property: str
    subject: str
    slice: int
    outcome: str
    seconds: float
    counts: Counts
    failures: tuple[Told, ...] = ()
    witness: str = ""
    message: str = ""
    worker: str = ""
    coverage: dict[str, Any] = {}


class CaseEnded(Event, frozen=True, tag="ended"):
    """A process ended at a case, or a case took too long. `again` says whether the rest of its slice is run.

    `test` is pytest's name of the test.
    """

    property: str
    subject: str
    slice: int | None
    failure: Told
    again: bool
    earlier_run: bool = False
    witness: str = ""
    test: str = ""


class FindingReplayed(Event, frozen=True, tag="finding"):
    """A finding's minimal case ran: same, fixed or different; or it is not applicable, since a variant refuses it."""

    finding: str
    subject: str
    result: str
    message: str = ""


class Planned(Event, frozen=True, tag="planned"):
    """What a gate is going to run: all tests by key, those of them that are this shard's, and what both follow from.

    `pinned` is everything on which the cases and their results depend, as text; runs may be merged where it agrees.
    """

    pinned: dict[str, str]
    every: tuple[str, ...]
    mine: tuple[str, ...]
    shard: tuple[int, int] = (1, 1)
    budget: float = 0.0


class CaseRerun(Event, frozen=True, tag="rerun"):
    """A case that was there before the run was judged: a saved failure, or a golden case. `name` is its file's."""

    source: str
    name: str
    subject: str
    status: Status
    seconds: float = 0.0
    reason: str = ""
    failure: Told | None = None
    recorded: str = ""


class CaseCompared(Event, frozen=True, tag="compared"):
    """A recorded case ran again, beside its recorded result. `ulps` counts elements by distance."""

    name: str
    subject: str
    agreement: str
    elements: int = 0
    equal: int = 0
    above: int = 0
    ulps: dict[str, int] = {}
    status: Status = Status.PASSED
    reason: str = ""
    failure: Told | None = None


class FaultTried(Event, frozen=True, tag="fault"):
    """A fault was put in on purpose: whether it was seen, after how many cases, and how it showed.

    `control` is a sentence where the same cases failed without the fault; `refused` one where no case can show it.
    """

    name: str
    title: str
    subject: str
    caught: bool
    cases: int
    symptom: str = ""
    control: str = ""
    refused: str = ""


class Erred(Event, frozen=True, tag="erred"):
    """A test of a gate's own did not come to a result: its key, and what pytest says."""

    test: str
    message: str


class Stopped(Event, frozen=True, tag="stopped"):
    """A gate ended before its tests did, after so many seconds; `reason` is a sentence."""

    reason: str
    seconds: float = 0.0


class Finished(Event, frozen=True, tag="finished"):
    """The run ended with pytest's exit status; `problems` are sentences about properties as a whole."""

    exit_status: int
    seconds: float
    problems: tuple[str, ...] = ()


AnyEvent = (
    Started
    | Collected
    | SliceFinished
    | CaseEnded
    | FindingReplayed
    | Planned
    | CaseRerun
    | CaseCompared
    | FaultTried
    | Erred
    | Stopped
    | Finished
)
Subscriber = Callable[[AnyEvent], None]
_decoder = msgspec.json.Decoder(AnyEvent)


def to_line(event: AnyEvent) -> bytes:
    """One line of JSON, with its end."""
    return msgspec.json.encode(event) + b"\n"


def from_line(line: bytes) -> AnyEvent | None:
    """The event of a line; None if this version does not know it, or the line was cut off."""
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None
