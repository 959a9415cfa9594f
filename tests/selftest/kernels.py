"""Kernels for tests of the engine, by file and class: a right one in NumPy, and what can be wrong with one.

Not a test. It is a subject such as a user writes, `kernels.py:Right`.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from equivcheck.arithmetic import Arithmetic
from equivcheck.case import Case, OptimizerKind
from equivcheck.outcome import SUPPORTED, Forward, Outcome, Support, Update, unsupported
from equivcheck.problem import Action, Batch, Problem, Snapshot, program

Floats = npt.NDArray[np.float32]


class Right:
    """SUM over fp32 tables, SGD, one table a feature."""

    name = "right"

    def supports(self, case: Case) -> Support:
        if case.optimizer.kind is not OptimizerKind.SGD:
            return unsupported("it has SGD only")
        plain = Case()
        settings = ("weights", "output", "accumulation", "pooling", "per_sample_weights", "rounding", "bounds_check")
        if any(getattr(case, name) != getattr(plain, name) for name in (*settings, "ranks", "call")):
            return unsupported("it has the default settings only")
        return unsupported("it has no frozen features") if any(f.frozen for f in case.features) else SUPPORTED

    def arithmetic(self, case: Case) -> Arithmetic:
        return Arithmetic()

    def versions(self) -> dict[str, str]:
        return {"kernels": "1.2.3"}

    def run(self, problem: Problem) -> Outcome:
        tables = [table.astype(np.float32) for table in problem.initial.tables]
        results: list[Forward | Update] = []
        for action, step in program(problem.case):
            batch = problem.batches[step]
            if action is Action.FORWARD:
                results.append(Forward(self.forward(problem, batch, tables)))
            else:
                self.backward(problem, batch, tables)
                results.append(Update(Snapshot(tuple(table.copy() for table in tables))))
        inputs = tuple({name: array.copy() for name, array in batch.arrays} for batch in problem.batches)
        return Outcome(tuple(results), inputs)

    def forward(self, problem: Problem, batch: Batch, tables: list[Floats]) -> Floats:
        output = np.zeros((batch.bags[0], sum(problem.dims)), np.float32)
        for feature, bag, rows, columns in lookups(problem, batch):
            for row in rows:
                output[bag, columns] += tables[problem.feature_tables[feature]][row]
        return output

    def backward(self, problem: Problem, batch: Batch, tables: list[Floats]) -> None:
        gradients = [np.zeros_like(table) for table in tables]
        for feature, bag, rows, columns in lookups(problem, batch):
            for row in rows:
                gradients[problem.feature_tables[feature]][row] += batch.grad_output[bag, columns]
        for table, gradient in zip(tables, gradients, strict=True):
            named = gradient.any(axis=1)
            table[named] -= np.float32(batch.learning_rate) * gradient[named]


def lookups(problem: Problem, batch: Batch) -> Iterator[tuple[int, int, list[int], slice]]:
    """(feature, bag, rows, columns) of every bag; no rows where the table has none."""
    edges = np.cumsum([0, *problem.dims])
    bag = 0
    for feature, count in enumerate(batch.bags):
        for number in range(count):
            rows = batch.indices[batch.offsets[bag] : batch.offsets[bag + 1]].tolist()
            if not len(problem.initial.tables[problem.feature_tables[feature]]):
                rows = []
            yield feature, number, rows, slice(edges[feature], edges[feature + 1])
            bag += 1


def longest(problem: Problem) -> int:
    """Length of the longest bag."""
    return int(np.diff(problem.batches[0].offsets).max(initial=0))


class LosesTail(Right):
    """Loses the third lookup of a bag and all behind it in the forward."""

    def forward(self, problem: Problem, batch: Batch, tables: list[Floats]) -> Floats:
        output = super().forward(problem, batch, tables)
        for feature, bag, rows, columns in lookups(problem, batch):
            for row in rows[2:]:
                output[bag, columns] -= tables[problem.feature_tables[feature]][row]
        return output


class HalfRate(Right):
    """Takes half the learning rate where a bag has two lookups or more."""

    def backward(self, problem: Problem, batch: Batch, tables: list[Floats]) -> None:
        before = [table.copy() for table in tables]
        super().backward(problem, batch, tables)
        if longest(problem) >= 2:
            for table, old in zip(tables, before, strict=True):
                table -= (table - old) / 2


class TwoFaults(LosesTail, HalfRate):
    """Both."""


class Crashes(Right):
    """Ends its process at bags of three."""

    def run(self, problem: Problem) -> Outcome:
        if longest(problem) == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().run(problem)


class OnAGpu(Right):
    """Says that it is on a GPU, and that cases with an odd number of lookups need a process of their own."""

    def versions(self) -> dict[str, str]:
        return {"gpu": "none"}

    def isolation(self, case: Case) -> str:
        return "its lookups are odd in number" if case.lookups % 2 else ""


class Noted(Right):
    """Writes the lengths of every case's bags down, in `noted.txt`."""

    def run(self, problem: Problem) -> Outcome:
        with Path("noted.txt").open("a") as notes:
            notes.write(f"{np.diff(problem.batches[0].offsets).tolist()}\n")
        return super().run(problem)


class NotedCrash(Noted):
    """The same, and ends its process at two bags of three."""

    def run(self, problem: Problem) -> Outcome:
        outcome = super().run(problem)
        if np.diff(problem.batches[0].offsets).tolist() == [3, 3]:
            os.kill(os.getpid(), signal.SIGSEGV)
        return outcome


class Killed(Right):
    """Its process is killed at bags of three, as the kernel does where memory runs out."""

    def run(self, problem: Problem) -> Outcome:
        if longest(problem) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(problem)


class CrashesAlways(Right):
    """Ends its process at every case with a lookup."""

    def run(self, problem: Problem) -> Outcome:
        if longest(problem):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().run(problem)


class EatsHost(Right):
    """Allocates more of the host's memory at bags of three than there is: a limit is set, so that the test is small."""

    def run(self, problem: Problem) -> Outcome:
        if longest(problem) == 3:
            before = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (2**33, before[1]))
            try:
                np.ones(2**31)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, before)
        return super().run(problem)


class EatsDevice(Right):
    """Runs the device out of memory at bags of three, as PyTorch's allocator says it."""

    def run(self, problem: Problem) -> Outcome:
        import torch

        if longest(problem) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 256.00 GiB.")
        return super().run(problem)


class Hangs(Right):
    """Never ends at bags of three."""

    def run(self, problem: Problem) -> Outcome:
        while longest(problem) == 3:
            time.sleep(1)
        return super().run(problem)


class Waits(Right):
    """At bags of three, waits as long as there is a file named `wait` beside the process."""

    def run(self, problem: Problem) -> Outcome:
        while longest(problem) == 3 and Path("wait").exists():
            time.sleep(0.05)
        return super().run(problem)


class Raises(Right):
    """Its adapter raises at bags of three."""

    def run(self, problem: Problem) -> Outcome:
        if longest(problem) == 3:
            raise RuntimeError("no path for bags of three")
        return super().run(problem)


class Refuses(Right):
    """Supports nothing."""

    def supports(self, case: Case) -> Support:
        return unsupported("it takes no cases at all")


class Sometimes(LosesTail):
    """Loses lookups every third time, as counted in a file beside the process."""

    def forward(self, problem: Problem, batch: Batch, tables: list[Floats]) -> Floats:
        path = Path("sometimes.count")
        times = int(path.read_text()) if path.exists() else 0
        path.write_text(str(times + 1))
        kind = Right if times % 3 else LosesTail
        return kind.forward(self, problem, batch, tables)


class Absent(Right):
    """Does not work here."""

    def __init__(self) -> None:
        raise ValueError("this kernel needs a machine that nobody has")


class Warns(Right):
    """Overflows and warns on the way, and is right."""

    def run(self, problem: Problem) -> Outcome:
        import warnings

        warnings.warn("this kernel is old", DeprecationWarning, stacklevel=1)
        np.float32(1e38) * np.full(1, 1e38, np.float32)
        return super().run(problem)
