"""What a device has of the operators that plain PyTorch asks for: evidence, gathered once in a child process.

A case consists of parts: how it looks rows up, what it stores, how it steps. Each part is a few operators, and
`torch_probe` runs each part on the device, operator by operator. A case is unsupported where an operator of its parts
is missing; an operator that answers from the CPU without saying so is a broken promise.
"""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import msgspec

from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.case import Case, Decay, OptimizerKind, Pooling, Rounding
from equivcheck.formats import DType
from equivcheck.outcome import Breach, Promise

_SECONDS = 600.0
"""For the child: a device that compiles each operator when it is first met takes minutes."""


class Lookup(NamedTuple):
    """Lookups and their gradient. `weights` is the type of the per-sample weights, or empty."""

    pooling: Pooling
    weights: str
    accumulation: DType
    indices: str

    def __str__(self) -> str:
        weighted = f", {self.weights} per-sample weights" if self.weights else ""
        return f"lookup: {self.pooling} in {self.accumulation}, {self.indices}{weighted}"


class Output(NamedTuple):
    """Rounding of the output."""

    dtype: DType
    accumulation: DType

    def __str__(self) -> str:
        return f"output: {self.accumulation} to {self.dtype}"


class Storage(NamedTuple):
    """Reading and writing rows."""

    dtype: DType
    accumulation: DType
    stochastic: bool

    def __str__(self) -> str:
        how = ", stochastic" if self.stochastic else ""
        return f"storage: {self.dtype}, in {self.accumulation}{how}"


class Step(NamedTuple):
    """An optimizer's step."""

    kind: OptimizerKind
    decay: Decay
    decays: bool
    accumulation: DType

    def __str__(self) -> str:
        decay = "" if not self.decays else f", weight decay {self.decay}".removesuffix(" none")
        return f"step: {self.kind} in {self.accumulation}{decay}"


Part = Lookup | Output | Storage | Step


class State(enum.StrEnum):
    """What an operator did."""

    RUNS = "runs"
    MISSING = "missing"
    FELL_BACK = "falls back to the CPU"
    OTHER_DTYPE = "returns another dtype"


class Observed(msgspec.Struct, frozen=True, order=True):
    """An operator with its types on a device: what it did, and the evidence where it did not run."""

    operator: str
    dtypes: tuple[str, ...]
    state: State
    detail: str = ""


class Evidence(msgspec.Struct, frozen=True):
    """What was observed on a device, by part. `unavailable` says why nothing could be."""

    device: str
    observed: dict[str, tuple[Observed, ...]] = {}
    unavailable: str = ""

    def missing(self, needed: tuple[Part, ...]) -> str:
        """A sentence about an operator that is missing; empty where none is."""
        for part in needed:
            for found in self.observed.get(str(part), ()):
                if found.state is State.MISSING:
                    types = f" of {', '.join(found.dtypes)}" if found.dtypes else ""
                    return f"{self.device} does not have {found.operator}{types} ({part})"
        return ""

    def breaches(self, needed: tuple[Part, ...]) -> tuple[Breach, ...]:
        """Promises that operators of these parts break."""
        promises = {State.FELL_BACK: Promise.FELL_BACK, State.OTHER_DTYPE: Promise.DTYPE_CHANGED}
        found = {
            observed: Breach(promises[observed.state], observed.operator, observed.detail)
            for part in needed
            for observed in self.observed.get(str(part), ())
            if observed.state in promises
        }
        return tuple(found.values())

    def rows(self) -> list[tuple[Observed, tuple[str, ...]]]:
        """Each operator with its types once, and the parts that ask for it; what does not run comes first."""
        asking: dict[Observed, list[str]] = {}
        for part, observed in self.observed.items():
            for found in observed:
                asking.setdefault(found, []).append(part)
        ordered = sorted(asking, key=lambda found: (found.state is State.RUNS, found))
        return [(found, tuple(asking[found])) for found in ordered]


def parts(case: Case) -> tuple[Part, ...]:
    """What a case asks a device for."""
    weights = "" if case.per_sample_weights is None else case.per_sample_weights.dtype.value
    optimizer = case.optimizer
    stochastic = case.rounding is Rounding.STOCHASTIC and case.weights is not DType.FP32
    return (
        Lookup(case.pooling, weights, case.accumulation, case.indices.value),
        Output(case.output, case.accumulation),
        Storage(case.weights, case.accumulation, stochastic),
        Step(optimizer.kind, optimizer.decay, optimizer.weight_decay != 0, case.accumulation),
    )


def all_parts() -> tuple[Part, ...]:
    """Every part that a case can have on this system."""
    wide = (DType.FP32, DType.FP64)
    narrow = (DType.FP32, DType.FP16, DType.BF16)
    adams = (OptimizerKind.ADAM, OptimizerKind.PARTIAL_ROWWISE_ADAM)
    steps = [
        *((kind, Decay.NONE, False) for kind in OptimizerKind),
        *((kind, Decay.NONE, True) for kind in adams),
        *((OptimizerKind.ROWWISE_ADAGRAD, decay, True) for decay in Decay if decay is not Decay.NONE),
    ]
    return (
        *(Lookup(*part) for part in product(Pooling, ("", "fp32", "fp16"), wide, ("int64", "int32"))),
        *(Output(*part) for part in product(narrow, wide)),
        *(Storage(*part) for part in product(narrow, wide, (False, True)) if not (part[2] and part[0] is DType.FP32)),
        *(Step(*step, accumulation) for step, accumulation in product(steps, wide)),
    )


@lru_cache(maxsize=8)
def evidence(device: str) -> Evidence:
    """What the device shows in a child process; once a process.

    Raises
    ------
    BackendUnavailable
        If the device is not here, or the child ended before it had answered.
    """
    command = (sys.executable, "-P", "-m", "equivcheck.backends.torch_probe", device)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=environment)
        found = msgspec.json.decode(child.stdout.rpartition("\n")[2], type=Evidence)
    except subprocess.TimeoutExpired as error:
        raise BackendUnavailable(f"trying the operators of {device!r} took longer than {_SECONDS:g} s") from error
    except msgspec.DecodeError as error:
        printed = [line for line in child.stderr.splitlines() if line.strip() and not line.startswith("USDT:")]
        last = printed[-1] if printed else "it printed nothing"
        raise BackendUnavailable(
            f"the process that tried the operators of {device!r} ended with exit code {child.returncode}: {last}"
        ) from error
    if found.unavailable:
        raise BackendUnavailable(found.unavailable)
    return found
