"""What a gate comes to, as `DIR/result.json`: a versioned document for machines, from which every page is made.

A field never changes its meaning within a format; a reader ignores fields that it does not know. `docs/gate.md` says
what each is for, and `docs/result.schema.json` is its JSON schema.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import msgspec

from equivcheck.case import CaseError
from equivcheck.engine.counts import Counts, TypeCounts
from equivcheck.engine.events import CaseCompared, CaseRerun, FaultTried, FindingReplayed
from equivcheck.store import write_atomically
from equivcheck.verdict import Status

FORMAT_VERSION = 1
FILE = "result.json"
NO_PROPERTIES = {
    "saved": "a case that failed before",
    "golden": "a golden case",
    "baseline": "a recorded case",
    "first": "a case that runs before the properties",
}
"""Sources of failures that are no properties, in words."""


class Answer(enum.StrEnum):
    """Whether the build can go live."""

    RIGHT = "right"
    WRONG = "wrong"
    CANNOT_TELL = "could not tell"

    @property
    def exit_code(self) -> int:
        """0, 1, 2."""
        return list(Answer).index(self)


class Failure(msgspec.Struct, frozen=True):
    """One thing that was wrong.

    Attributes
    ----------
    source
        The property, or one of `NO_PROPERTIES`.
    symptom, status
        What was wrong and how.
    saved, worst
        Files of the shrunk and the worst case, relative to the result where they lie in its folder.
    replay
        The command that runs it again.
    text
        Case, values and bounds, as a person reads them.
    case
        The case.
    script
        A stand-alone script that shows the failure, where one can be written.
    """

    source: str
    subject: str
    symptom: str
    status: Status
    saved: str
    worst: str
    replay: str
    text: str
    case: dict[str, Any] = {}
    script: str = ""


class PropertyResult(msgspec.Struct):
    """A property on a subject: slices done of those planned, what was counted, and what is doubtful about it."""

    name: str
    subject: str
    slices: int
    planned: int
    failed: int
    seconds: float
    counts: Counts
    doubt: str = ""


class Baseline(msgspec.Struct):
    """Today's results beside recorded ones.

    Attributes
    ----------
    folder, subject, device, date, versions
        Of the recordings.
    cases
        By agreement: bit-equal, within bounds, outside, and so on.
    elements, equal, above, ulps
        Elements compared, of equal bits, above the recorded ones, and by distance in ulps: of the cases that are
        bit-equal, within bounds or outside. Where one of the two raised, or was wrong before, nothing has drifted.
    changed
        Every case in which a bit changed, within bounds or not.
    """

    folder: str
    subject: str = ""
    device: str = ""
    date: str = ""
    versions: dict[str, str] = {}
    cases: dict[str, int] = msgspec.field(default_factory=dict)
    elements: int = 0
    equal: int = 0
    above: int = 0
    ulps: dict[str, int] = msgspec.field(default_factory=dict)
    changed: list[CaseCompared] = msgspec.field(default_factory=list)


class CoverageResult(msgspec.Struct):
    """What the cases exercised: per goal the cases drawn and judged, per path the cases; the line that sums it up."""

    cases: int = 0
    drawn: dict[str, int] = {}
    judged: dict[str, int] = {}
    paths: dict[str, int] = {}
    line: str = ""
    largest_case: int = 0


class Result(msgspec.Struct):
    """A gate's run, or several that were merged.

    Attributes
    ----------
    answer, exit_code, sentence
        Right (0), wrong (1) or could not tell (2), and why in a sentence.
    reasons
        All that speaks against right, a sentence each.
    notes
        What a reader should know beside, a sentence each.
    finished
        Whether every test ran. A run that was ended early is a valid result of what it did.
    pinned
        All that the result depends on: subject, versions, device, driver, commit, seed, profile, digests of inputs.
    subject_versions
        Per subject and witness, as it says itself.
    shards
        The shards that are in it, as (i, n).
    tests, done, missing
        How many tests there are in these shards and were done, and the keys of those that were not.
    started, seconds
        UTC; time of all parts together.
    judged
        Cases that say something about the subject. `statuses` counts all by status.
    types
        Cases by the type of the tables, with the worst errors as shares of their bounds, in the classes that
        `ratio_edges` bounds from above; the last class is above all.
    """

    equivcheck_result: int
    answer: Answer
    exit_code: int
    sentence: str
    reasons: list[str]
    notes: list[str]
    finished: bool
    subject: str
    witnesses: list[str]
    pinned: dict[str, str]
    subject_versions: dict[str, dict[str, str]]
    shards: list[tuple[int, int]]
    tests: int
    done: int
    missing: list[str]
    started: str
    seconds: float
    budget: float
    judged: int
    statuses: dict[str, int]
    properties: list[PropertyResult]
    ratio_edges: list[float]
    types: dict[str, TypeCounts]
    coverage: CoverageResult
    failures: list[Failure]
    findings: list[FindingReplayed]
    reruns: list[CaseRerun]
    baseline: Baseline | None
    faults: list[FaultTried]
    unsupported: dict[str, int]
    new_unsupported: list[str]

    @property
    def counts(self) -> Counts:
        """Counts over all properties."""
        from equivcheck.engine.counts import merged

        return merged(part.counts for part in self.properties)


def write(result: Result, folder: Path) -> None:
    """Write `folder/result.json` at once, never half."""
    write_atomically(folder / FILE, msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def read(path: Path) -> Result:
    """Read a result from its file, or from the folder of a gate.

    Raises
    ------
    CaseError
        If there is none, or of another format.
    """
    file = path / FILE if path.is_dir() else path
    try:
        data = file.read_bytes()
        version = msgspec.json.decode(data).get("equivcheck_result")
        if version != FORMAT_VERSION:
            raise CaseError(f"{file} has format {version!r}; this version of equivcheck reads {FORMAT_VERSION}")
        return msgspec.json.decode(data, type=Result)
    except OSError as error:
        raise CaseError(f"{file} cannot be read: {error.strerror}; equivcheck gate --out writes it") from None
    except (msgspec.DecodeError, AttributeError) as error:
        raise CaseError(f"{file} holds no result of a gate: {error}") from None


def schema() -> bytes:
    """The JSON schema of the document."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Result)), indent=1) + b"\n"
