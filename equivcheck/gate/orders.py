"""What a gate asks of the pytest that it starts, as a file; and the keys by which a test is known to both."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from equivcheck.engine.events import (
    AnyEvent,
    CaseCompared,
    CaseEnded,
    CaseRerun,
    Erred,
    FaultTried,
    FindingReplayed,
    SliceFinished,
)

SAVED, GOLDEN = "saved", "golden"
"""Sources of cases that were there before the run."""


_OWN = re.compile(r"::test_(saved|golden|recorded|fault)\[(.*)\]$")
"""pytest's names of the gate's own tests."""


class Orders(msgspec.Struct, frozen=True):
    """Which tests run in which order, and until when.

    Attributes
    ----------
    shard
        (i, n): the i-th of n, from 1.
    deadline
        Seconds since the epoch at which no further test starts; 0 for none.
    done
        Keys of tests that an earlier part of this run has done.
    saved
        Files of saved cases to run again.
    golden
        File with a curated case a line; empty for none.
    baseline
        Folder of recordings to compare with; empty for none.
    faults
        Whether faults are put in on purpose.
    tests
        File into which the keys of all tests, and of those that are this shard's, are written.
    """

    tests: str
    shard: tuple[int, int] = (1, 1)
    deadline: float = 0.0
    done: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    golden: str = ""
    baseline: str = ""
    faults: bool = True

    def mine(self, keys: list[str]) -> list[bool]:
        """Which of all tests, in order, are this shard's: every n-th. So n shards are disjoint, and all together."""
        first, number = self.shard
        return [position % number == first - 1 for position in range(len(keys))]


class Tests(msgspec.Struct, frozen=True):
    """Keys of all tests in the order in which they run, and of those of this shard."""

    every: tuple[str, ...]
    mine: tuple[str, ...]


def slice_key(property_name: str, subject: str, witness: str, number: int) -> str:
    """Key of a slice of a property."""
    return " ".join(["slice", property_name, subject, *([f"vs {witness}"] if witness else []), str(number)])


def finding_key(finding: str, subject: str) -> str:
    """Key of a recorded finding's minimal case."""
    return f"finding {finding} {subject}"


def rerun_key(source: str, name: str) -> str:
    """Key of a saved or golden case."""
    return f"{source} {name}"


def recorded_key(digest: str) -> str:
    """Key of a case of the baseline."""
    return f"recorded {digest}"


def fault_key(name: str) -> str:
    """Key of a fault that is put in."""
    return f"fault {name}"


def key_of(event: AnyEvent) -> str:
    """Key of the test that an event reports the end of; empty if it reports none."""
    match event:
        case SliceFinished():
            return slice_key(event.property, event.subject, event.witness, event.slice)
        case CaseEnded(again=False, earlier_run=False, slice=int(number)):
            return slice_key(event.property, event.subject, event.witness, number)
        case CaseEnded(again=False, earlier_run=False) if found := _OWN.search(event.test):
            return f"{found[1]} {found[2]}"
        case FindingReplayed():
            return finding_key(event.finding, event.subject)
        case CaseRerun():
            return rerun_key(event.source, event.name)
        case CaseCompared():
            return recorded_key(event.name)
        case FaultTried():
            return fault_key(event.name)
        case Erred():
            return event.test
        case _:
            return ""


def read_tests(path: Path) -> Tests | None:
    """What pytest collected, if it has come to that."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Tests)
    except FileNotFoundError:
        return None
