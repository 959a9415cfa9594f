"""What a subject did with a Problem, as NumPy arrays; and whether it takes a Case at all."""

from __future__ import annotations

from dataclasses import dataclass, field

from equivcheck.formats import AnyArray
from equivcheck.problem import Snapshot


@dataclass(frozen=True)
class Support:
    """Whether a backend takes a Case. `reason` is a sentence where it does not."""

    supported: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.supported


SUPPORTED = Support(True)


def unsupported(reason: str) -> Support:
    """A refusal with its reason."""
    return Support(False, reason)


@dataclass(frozen=True)
class Forward:
    """Result of a forward.

    Attributes
    ----------
    output
        In the output's dtype.
    warnings
        Bounds-check warnings counted, where the system counts them.
    after
        State found after the call, where the program has no backward that would show it.
    """

    output: AnyArray
    warnings: int | None = None
    after: Snapshot | None = None


@dataclass(frozen=True)
class Update:
    """State after a backward, and the gradient of the per-sample weights (N,) in their dtype, where asked for."""

    after: Snapshot
    weight_gradient: AnyArray | None = None


@dataclass(frozen=True)
class Raised:
    """A call that raised: its position in the program, the exception's type and text, and the state found after.

    `after` is None where the state cannot be read any more: a device assert takes the CUDA context with it.
    """

    position: int
    kind: str
    message: str
    after: Snapshot | None


@dataclass(frozen=True)
class Guard:
    """Poisoned memory around a buffer that the subject was handed: bytes written before the call, bytes found after."""

    name: str
    before: AnyArray
    after: AnyArray


@dataclass(frozen=True)
class Outcome:
    """Everything that can be judged.

    Attributes
    ----------
    results
        One Forward or Update for each action of `problem.program(case)`, in order; fewer where `raised` is set.
    inputs_after
        Per step, the caller's tensors after the last call, by the names of `Batch.arrays`.
    guards
        Memory around the buffers.
    paths
        Names of the kernels or paths that the subject says it took.
    vacuous
        Why a run without a discrepancy shows nothing about the subject, as a sentence: the optional path that the
        subject stands for was not taken. Empty otherwise.
    """

    results: tuple[Forward | Update, ...]
    inputs_after: tuple[dict[str, AnyArray], ...] = ()
    raised: Raised | None = None
    guards: tuple[Guard, ...] = ()
    paths: tuple[str, ...] = ()
    vacuous: str = ""
    device: str = "cpu"
    notes: dict[str, str] = field(default_factory=dict)
