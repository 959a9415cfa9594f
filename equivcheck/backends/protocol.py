"""The protocol of a backend: an implementation of TBE, seen from outside.

A backend gets a Problem and returns an Outcome; it never sees the truth.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from equivcheck.arithmetic import Arithmetic
from equivcheck.case import Case
from equivcheck.outcome import Outcome, Support
from equivcheck.problem import Problem


class BackendUnavailable(RuntimeError):
    """The backend exists but cannot run on this machine. The message is a sentence that says what is missing."""


@runtime_checkable
class Backend(Protocol):
    """A configured TBE implementation.

    A class that implements this is built without arguments for a bare name, and otherwise with the text behind the
    colon in its subject's name (`torch:cuda`; the empty string where there is none) and one string for each
    `+variant`. It raises `BackendUnavailable` where it cannot run, and ValueError with a sentence for an argument or
    variant that it does not know. See docs/backends.md.
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


@runtime_checkable
class Isolating(Protocol):
    """A backend whose system, by design, may end its process on some cases: FBGEMM's fatal bounds check on CUDA does.

    Kernels that end their process by mistake are findings, and need no word from the backend.
    """

    def isolation(self, case: Case) -> str:
        """Why this case needs a process of its own, as a sentence; empty where it needs none."""
        ...


def isolation(backend: Backend, case: Case) -> str:
    """Why `backend` wants a process of its own for this case; empty where it does not, or never says."""
    return backend.isolation(case) if isinstance(backend, Isolating) else ""
