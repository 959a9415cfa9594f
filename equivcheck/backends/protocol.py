"""The protocol of a backend: an implementation of TBE, seen from outside.

A backend gets a Problem and returns an Outcome; it never sees the truth.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from equivcheck.arithmetic import Arithmetic
from equivcheck.case import Case
from equivcheck.outcome import Outcome, Support
from equivcheck.problem import Problem


@runtime_checkable
class Backend(Protocol):
    """A configured TBE implementation.

    A class that implements this is built without arguments, or with the text behind the colon in its subject's name
    (`torch:cuda`), plus one string for each `+variant`. See docs/backends.md.
    """

    name: str

    def supports(self, case: Case) -> Support:
        """Whether the system takes this case. What it refuses is unsupported; what it computes wrongly is not."""
        ...

    def arithmetic(self, case: Case) -> Arithmetic:
        """The rounding that the system declares for this case."""
        ...

    def run(self, problem: Problem) -> Outcome:
        """Run the program of the case from the initial state.

        An exception that the system under test raises is caught and returned as `Outcome.raised`; any other escapes.
        """
        ...

    def versions(self) -> dict[str, str]:
        """Names and versions of what is under test: packages, device, driver."""
        ...
