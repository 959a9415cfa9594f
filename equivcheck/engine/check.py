"""Check: what a property calls. It runs a case on the subject, judges it, counts it, and raises what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from equivcheck import findings as known
from equivcheck import runner
from equivcheck.case import Case, Pooling
from equivcheck.coverage import Coverage
from equivcheck.engine.counts import Counts, add
from equivcheck.facts_of_case import facts
from equivcheck.findings import FAILURES, Finding
from equivcheck.formats import AnyArray
from equivcheck.outcome import Forward, Update
from equivcheck.problem import program
from equivcheck.runner import Run, Subject
from equivcheck.verdict import Discrepancy, Status, Symptom, Tensor, Verdict


class NotJudged(Exception):
    """The subject does not take a case, so a property has nothing to say about it. Counted, and no failure."""


class EndedBefore(NotJudged):
    """A process of this run ended at this case before: it is counted as CRASHED or TIMEOUT, and not run again."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.value)
        self.status = status


class CaseFailed(Exception):
    """A case failed. Every symptom has a subclass of its own, since Hypothesis tells failures apart by type."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.verdict.reason or describe(run.verdict))
        self.run = run


def describe(verdict: Verdict) -> str:
    """A failure in a few words: the tensor and the symptom of its worst discrepancy, or the status."""
    if verdict.discrepancies:
        worst = verdict.discrepancies[0]
        return f"{worst.tensor.value}: {worst.symptom.value}"
    if verdict.status is Status.ERROR:
        return f"error: {verdict.reason.partition(':')[0]}"
    return verdict.status.value


@cache
def failure_type(symptom: str) -> type[CaseFailed]:
    """The exception type of a symptom."""
    return type(symptom, (CaseFailed,), {})


class Guard(Protocol):
    """What keeps a process's deaths from going unnoticed."""

    def run(self, case: Case, subject: Subject, findings: tuple[Finding, ...]) -> Run:
        """Run a case on a subject with journal and time limit, or tell how the process ended at it before."""
        ...


class Unguarded:
    """No journal and no time limit: for a process that is itself watched."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def run(self, case: Case, subject: Subject, findings: tuple[Finding, ...]) -> Run:
        """Run a case."""
        return runner.run(case, subject, folder=self._folder, findings=findings)


@dataclass
class Check:
    """Runs cases for one property on one subject.

    Attributes
    ----------
    subject
        What is judged.
    witness
        What it is compared with, in a property that asked for one.
    counts, coverage
        Where everything is counted, until the first failure.
    findings
        Recorded faults of the subject.
    guard
        Journal and time limit.
    """

    subject: Subject
    witness: Subject | None
    counts: Counts
    findings: tuple[Finding, ...]
    guard: Guard
    coverage: Coverage = field(default_factory=Coverage)
    counting: bool = True

    def __call__(self, case: Case) -> Run:
        """Run `case` on the subject, judge every tensor, and return the run.

        A failure that a recorded finding explains is counted as KNOWN and returned; `Run.right` is then False.

        Raises
        ------
        NotJudged
            If the subject refuses the case. The engine counts it and draws another.
        CaseFailed
            A subclass for each symptom, if something is wrong.
        """
        try:
            run = self.run(case, self.subject)
        except EndedBefore as ended:
            if self.counting:
                self.counts.count(Verdict(ended.status))
            raise
        if self.counting:
            self._count(run)
        if run.verdict.status is Status.UNSUPPORTED:
            raise NotJudged(run.verdict.reason)
        if run.verdict.status in FAILURES:
            raise failure_type(describe(run.verdict))(run)
        return run

    def run(self, case: Case, on: Subject) -> Run:
        """Run `case` on any subject and judge it, without counting or raising: for witnesses."""
        return self.guard.run(case, on, self.findings if on is self.subject else ())

    def fail(self, run: Run, *discrepancies: Discrepancy) -> None:
        """Say that a relation does not hold; `run` is the run that is blamed.

        Returns only if recorded findings explain every discrepancy.

        Raises
        ------
        CaseFailed
            A subclass for each symptom.
        """
        verdict = Verdict(Status.FAILED, discrepancies, run.verdict.reports)
        names: tuple[str, ...] = ()
        if run.problem is not None:
            verdict, names = known.explain(self.findings, run.problem, verdict)
        if self.counting:
            for name in names:
                add(self.counts.findings, name)
        if verdict.status is Status.FAILED:
            raise failure_type(describe(verdict))(replace(run, verdict=verdict, findings=names))

    def same_bits(self, first: Run, second: Run, sentence: str) -> None:
        """Require that two runs of the subject gave the same bits in every result.

        Compared are outputs, weight gradients, tables and state after each action; not where a run was not right.

        Parameters
        ----------
        sentence
            What must hold, for the report, such as "int32 and int64 indices agree".
        """
        if not first.right or not second.right or first.outcome is None or second.outcome is None:
            self.share(f"compared: {sentence}", 0, 1)
            return
        self.share(f"compared: {sentence}", 1, 1)
        found = []
        for action, (one, other) in enumerate(zip(first.outcome.results, second.outcome.results, strict=True)):
            for tensor, name, left, right in _pairs(one, other):
                if tensor is Tensor.OUTPUT:
                    start = _first_judged(first, action)
                    left, right = left[start:], right[start:]
                difference = different(tensor, left, right, action=action, name=name, sentence=sentence)
                if difference is not None:
                    found.append(difference)
        if found:
            self.fail(second, *found)

    def share(self, name: str, hits: int, of: int) -> None:
        """Count `hits` out of `of` under a name, for the summary: elements that were bit-equal, pairs that came up."""
        if self.counting:
            self.counts.share(name, hits, of)

    def distances(self, name: str, found: Mapping[str, int]) -> None:
        """Count elements by their distance from a witness (`equivcheck.drift`), under a name, for reports."""
        if self.counting:
            self.counts.distances(name, found)

    def _count(self, run: Run) -> None:
        self.counts.count_type(run.case.weights, run.verdict)  # the first failure too, which is drawn, not shrunk
        if run.verdict.status in FAILURES:
            return
        self.counts.count(run.verdict)
        self.counts.subject_seconds += run.subject_seconds
        self.counts.judge_seconds += run.judge_seconds
        if run.outcome is not None:
            add(self.counts.devices, run.outcome.device)
            if run.outcome.transfers is not None:
                self.counts.transfers.add(run.outcome.transfers)
        for name in run.findings:
            add(self.counts.findings, name)
        if run.case.captured is not None and run.problem is None:
            return  # refused, so its lookups were never read
        judged = run.verdict.status is not Status.UNSUPPORTED
        paths = run.outcome.paths if run.outcome is not None else ()
        self.coverage.add(facts(run.case, run.problem), judged=judged, paths=paths)


def different(
    tensor: Tensor, actual: AnyArray, expected: AnyArray, *, action: int = -1, name: str = "", sentence: str = ""
) -> Discrepancy | None:
    """The first element at which two arrays differ in a bit, as a discrepancy; None if they are the same.

    -0 equals +0 and NaN equals NaN (the rule for exact data). Shapes and dtypes must agree.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        detail = f"{actual.dtype} of shape {actual.shape}, expected {expected.dtype} of shape {expected.shape}"
        symptom = Symptom.SHAPE if actual.shape != expected.shape else Symptom.DTYPE
        return Discrepancy(tensor, symptom, action, name, detail="; ".join(filter(None, [sentence, detail])))
    left, right = actual.astype(np.float64), expected.astype(np.float64)
    wrong = ~((left == right) | (np.isnan(left) & np.isnan(right)))
    if not wrong.any():
        return None
    position = tuple(int(i) for i in np.argwhere(wrong)[0])
    value, truth = float(left[position]), float(right[position])
    where = f"{name or tensor.value}, element {', '.join(map(str, position))}"
    return Discrepancy(
        tensor,
        Symptom.NOT_EXACT,
        action,
        where,
        actual=value,
        truth=truth,
        low=truth,
        high=truth,
        error=abs(value - truth),
        bound=0.0,
        ratio=float("inf"),
        count=int(wrong.sum()),
        detail=sentence,
    )


def _first_judged(run: Run, action: int) -> int:
    """First output row that is judged: without pooling, lookups before the first offset belong to no bag."""
    if run.problem is None or run.case.pooling is not Pooling.NONE:
        return 0
    batch = run.problem.batches[program(run.case)[action][1]]
    return int(np.clip(batch.offsets[0], 0, len(batch.indices)))


def _pairs(one: Forward | Update, other: Forward | Update) -> Iterator[tuple[Tensor, str, AnyArray, AnyArray]]:
    """Arrays of two results of the same action."""
    if isinstance(one, Forward) and isinstance(other, Forward):
        yield Tensor.OUTPUT, "output", one.output, other.output
    if isinstance(one, Update) and isinstance(other, Update):
        for tensor, name in (
            (Tensor.ROWS, "tables"),
            (Tensor.MOMENTUM1, "momentum1"),
            (Tensor.MOMENTUM2, "momentum2"),
        ):
            arrays = zip(getattr(one.after, name), getattr(other.after, name), strict=True)
            for number, (left, right) in enumerate(arrays):
                yield tensor, f"{name} of table {number}" if name != "tables" else f"table {number}", left, right
        if one.weight_gradient is not None and other.weight_gradient is not None:
            yield Tensor.WEIGHT_GRADIENT, "weight gradient", one.weight_gradient, other.weight_gradient
