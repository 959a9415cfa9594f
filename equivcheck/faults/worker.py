"""A process that hunts faults, one a line: `python -m equivcheck.faults.worker JOURNAL`.

Requests come on standard input, results go to standard output, each a line of JSON. Before each case its property,
number and JSON are written to the journal, so that the case is known at which this process ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec


class Request(msgspec.Struct, frozen=True):
    """What to hunt, and with what."""

    fault: str
    subject: str
    profile: str
    seed: int = 0
    only: tuple[str, ...] = ()
    minimal: bool = False


class Entry(msgspec.Struct, frozen=True):
    """The journal: the case that is being run, and how many of its property came before it."""

    property: str
    cases: int
    case: str


def main(journal: Path) -> None:
    """Answer requests until there are none."""
    import torch

    from equivcheck.case import Case
    from equivcheck.faults.hunt import Hunted, first_kill

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a kernel or a library prints is no answer

    def watch(property_: str, cases: int, case: Case) -> None:
        journal.write_bytes(msgspec.json.encode(Entry(property_, cases, case.to_json().decode())))

    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=Request)
        try:
            answer = first_kill(
                request.fault,
                request.subject,
                request.profile,
                seed=request.seed,
                only=request.only,
                minimal=request.minimal,
                watch=watch,
            )
        except Exception as error:  # of the injection or the machinery: no kill
            message = f"{type(error).__name__}: {error}"
            answer = Hunted(request.fault, request.subject, request.profile, request.seed, None, 0, 0.0, (), message)
        journal.unlink(missing_ok=True)  # what ends the process from here on is no case
        answers.write(msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
