"""A verdict on one case: a status, what exactly was wrong, and counts of what was judged."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Status(enum.StrEnum):
    """Result of one case on one subject. Only PASSED is a pass; the others are counted and shown."""

    PASSED = "passed"
    FAILED = "failed"
    MISTRUSTED = "mistrusted"
    UNSUPPORTED = "unsupported"
    KNOWN = "known"
    ERROR = "error"
    CRASHED = "crashed"
    TIMEOUT = "timeout"


class Tensor(enum.StrEnum):
    """What was judged."""

    OUTPUT = "output"
    ROWS = "updated rows"
    MOMENTUM1 = "momentum1"
    MOMENTUM2 = "momentum2"
    WEIGHT_GRADIENT = "weight gradient"
    UNTOUCHED = "untouched rows"
    GUARDS = "guards"
    INPUTS = "inputs"
    WARNINGS = "warnings"
    CALL = "call"
    DEVICE = "device"


class Symptom(enum.StrEnum):
    """Kind of a discrepancy."""

    SHAPE = "shape"
    DTYPE = "dtype"
    BYTES = "bytes changed"
    NOT_EXACT = "not exact"
    OUT_OF_BOUND = "out of bound"
    NAN = "unexpected NaN"
    NOT_NAN = "NaN expected"
    INFINITE = "unexpected infinity"
    FINITE = "infinity expected"
    COUNT = "count"
    RAISED = "raised"
    NOT_RAISED = "did not raise"
    MISSING = "missing"
    STATISTIC = "statistic"
    FELL_BACK = "silent fall-back to the CPU"
    DOWN_CAST = "silent down-cast"
    DTYPE_CHANGED = "other dtype on the device"
    STRIDES_CHANGED = "other strides on the device"
    HOST_POINTER = "host pointer handed over"
    LAGGING_COPY = "lagging copy"
    REUSED_BUFFER = "reused buffer"


@dataclass(frozen=True)
class Discrepancy:
    """The worst wrong element of one tensor after one action.

    Attributes
    ----------
    tensor, symptom
        What was wrong and how: together they name the failure.
    action
        Position in the program of the case; -1 for what is judged once at the end.
    where
        The element in words, such as "table 0, row 3, column 1".
    actual, truth
        The kernel's value and the unrounded truth.
    low, high
        What was allowed.
    error, bound, ratio
        |actual - truth|, the bound of it, and their quotient (infinity where the bound is zero).
    ulps
        The error in units of the storage's last place at the truth.
    count
        Wrong elements of this tensor.
    """

    tensor: Tensor
    symptom: Symptom
    action: int
    where: str
    actual: float = float("nan")
    truth: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    error: float = float("nan")
    bound: float = float("nan")
    ratio: float = float("nan")
    ulps: float = float("nan")
    count: int = 1
    detail: str = ""


@dataclass(frozen=True)
class TensorReport:
    """Counts over the elements of one tensor: judged, exact (one value allowed), trusted, undetermined, wrong; and the
    worst error as a share of its bound among those judged with a bound.
    """  # noqa: D205

    tensor: Tensor
    judged: int = 0
    exact: int = 0
    trusted: int = 0
    undetermined: int = 0
    wrong: int = 0
    worst_ratio: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """Status, what was wrong (worst first), counts per tensor, and a sentence for statuses that need one."""

    status: Status
    discrepancies: tuple[Discrepancy, ...] = ()
    reports: tuple[TensorReport, ...] = ()
    reason: str = ""
