"""What a run of the bench writes down: one JSON document, versioned; docs/bench.schema.json is its JSON schema."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from equivcheck.bench.point import Point, Setting
from equivcheck.case import CaseError
from equivcheck.store import write_atomically
from equivcheck.verdict import Status

FORMAT_VERSION = 1


class Method(enum.StrEnum):
    """How device time was taken: replays of a CUDA graph between events, launches between events, or a wall clock."""

    GRAPH = "graph"
    EVENTS = "events"
    WALL = "wall"


class _Part(msgspec.Struct, frozen=True):
    """Immutable. A field never changes its meaning within a format; a reader ignores fields that it does not know."""


class Times(_Part, frozen=True):
    """Of so many repetitions, in microseconds. `p99` is the smallest that 99 % do not exceed."""

    median: float
    p99: float
    least: float
    repetitions: int


class Phase(_Part, frozen=True):
    """A forward, a backward, or both.

    Attributes
    ----------
    device
        Time on the device, by `method`; `reason` says why it is not the graph's.
    launched
        Between events around a call from the host: what the device waits for launches is in it. None on the CPU.
    host
        Until the call returns to the host, on an idle device. None on the CPU.
    fewest_bytes, bytes_by_lookups
        See `equivcheck.bench.traffic`.
    share
        Of the copy bandwidth: fewest bytes / median device time / bandwidth.
    """

    device: Times
    method: Method
    reason: str
    launched: Times | None
    host: Times | None
    fewest_bytes: int
    bytes_by_lookups: int
    share: float


class Measured(_Part, frozen=True):
    """One system at one point.

    Attributes
    ----------
    step
        A forward and a backward on the host's clock, the device idle before and after.
    table_bytes, peak_bytes
        Memory of tables and states, and the most that a step held beside the tables and inputs. Zero where the device
        does not say.
    """

    forward: Phase
    backward: Phase
    both: Phase
    step: Times
    table_bytes: int
    peak_bytes: int


class Judged(_Part, frozen=True):
    """The suite's verdict on the sibling of a point, the case's digest, and the worst that was found."""

    status: Status
    case: str
    detail: str = ""


class System(_Part, frozen=True):
    """A subject at a point: judged, and measured if it was right. `error` says why it was not measured though right."""

    judged: Judged
    measured: Measured | None = None
    error: str = ""


class Agreement(_Part, frozen=True):
    """Subject and witness on the first batch at full size, from the same tables.

    Attributes
    ----------
    equal_outputs, equal_rows
        Share of bit-equal elements: of the outputs, and of a sample of the updated rows.
    largest, bound
        Largest difference of outputs, and the bound on it: see `equivcheck.bench.agreement`.
    """

    equal_outputs: float
    equal_rows: float
    largest: float
    bound: float

    @property
    def within(self) -> bool:
        """Whether the outputs differ by no more than rounding explains. NaN does not."""
        return self.largest <= self.bound


class Row(_Part, frozen=True):
    """One point.

    Attributes
    ----------
    lookups, distinct
        Of the first batch: lookups, and the distinct rows that they name, all tables together.
    longest_run
        Lookups of the row that is named most.
    """

    point: Point
    subject: System
    witness: System | None
    lookups: int = 0
    distinct: int = 0
    longest_run: int = 0
    agreement: Agreement | None = None

    @property
    def run_length(self) -> float:
        """Mean lookups of a named row."""
        return self.lookups / self.distinct if self.distinct else 0.0


class Provenance(_Part, frozen=True):
    """Where and when, on what, with what. `subject` and `witness` are versions as the backends give them."""

    date: str
    commit: str
    device: str
    driver: str
    cuda: str
    host: str
    versions: dict[str, str]
    subject: dict[str, str]
    witness: dict[str, str]
    command: str


class Machine(_Part, frozen=True):
    """Measured in the same run: bandwidth of a copy (read + written, bytes a second), and an empty graph's time."""

    copy_bandwidth: float
    floor: float
    flushed_bytes: int


class Document(_Part, frozen=True):
    """A run. `left_out` are points that the budget or an interrupt left unmeasured."""

    equivcheck_bench: int
    subject: str
    witness: str
    setting: Setting
    provenance: Provenance
    machine: Machine
    rows: tuple[Row, ...]
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0


def schema() -> bytes:
    """JSON schema of the document: what docs/bench.schema.json holds."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Document)), indent=1) + b"\n"


def load(path: Path) -> Document:
    """Read a document.

    Raises
    ------
    CaseError
        If it is none, or of another version.
    """
    try:
        data = path.read_bytes()
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("equivcheck_bench")
        if version is None or bytes(version) != str(FORMAT_VERSION).encode():
            found = "no equivcheck_bench" if version is None else f"version {bytes(version).decode()}"
            raise CaseError(f"{path} has {found}; this version reads {FORMAT_VERSION} of equivcheck bench's bench.json")
        return msgspec.json.decode(data, type=Document)
    except OSError as error:
        raise CaseError(f"{path} cannot be read: {error.strerror}; give a bench.json") from None
    except msgspec.DecodeError as error:
        raise CaseError(f"{path} holds no result of equivcheck bench: {error}") from None


def save(document: Document, path: Path) -> None:
    """Write a document at once or not at all: a run that is killed keeps the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
