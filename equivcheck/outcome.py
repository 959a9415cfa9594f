"""What a subject did with a Problem, as NumPy arrays; and whether it takes a Case at all."""

from __future__ import annotations

import enum
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


class Promise(enum.StrEnum):
    """What PyTorch promises its users about a device, whichever it is; see docs/devices.md. The value names the breach.

    The names are those of `equivcheck.verdict.Symptom`.
    """

    FELL_BACK = "silent fall-back to the CPU"
    DOWN_CAST = "silent down-cast"
    DTYPE_CHANGED = "other dtype on the device"
    STRIDES_CHANGED = "other strides on the device"
    HOST_POINTER = "host pointer handed over"
    LAGGING_COPY = "lagging copy"
    REUSED_BUFFER = "reused buffer"


@dataclass(frozen=True)
class Breach:
    """A promise that the device broke: where it showed, and the evidence as a sentence."""

    promise: Promise
    where: str
    detail: str


@dataclass(frozen=True)
class Transfers:
    """What crossed between host and device: copies, bytes, and seconds.

    The seconds are those of the calls: a copy to the host waits until its source has been computed.
    """

    copies: int = 0
    to_device_bytes: int = 0
    to_host_bytes: int = 0
    to_device_seconds: float = 0.0
    to_host_seconds: float = 0.0


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
    device
        Where it ran: a GPU by its UUID.
    vacuous
        Why a run without a discrepancy shows nothing about the subject, as a sentence: the optional path that the
        subject stands for was not taken. Empty otherwise.
    breaches
        Promises that the device broke around this case.
    transfers
        What crossed between host and device, where the backend measures it.
    """

    results: tuple[Forward | Update, ...]
    inputs_after: tuple[dict[str, AnyArray], ...] = ()
    raised: Raised | None = None
    guards: tuple[Guard, ...] = ()
    paths: tuple[str, ...] = ()
    vacuous: str = ""
    device: str = "cpu"
    notes: dict[str, str] = field(default_factory=dict)
    breaches: tuple[Breach, ...] = ()
    transfers: Transfers | None = None
