"""Run one Case on one subject and judge it: the only place where a backend is called."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from equivcheck.arithmetic import Arithmetic
from equivcheck.backends.memory import ran_out, release
from equivcheck.backends.protocol import Backend, isolation
from equivcheck.case import Case, CaseError
from equivcheck.compare import TRUSTED_TENSORS, judge
from equivcheck.findings import FAILURES, Finding, explain
from equivcheck.outcome import Outcome
from equivcheck.problem import Problem, materialise
from equivcheck.verdict import Status, Verdict

_FRAMES = 12
"""Innermost frames of a traceback that are kept."""

Watch = Callable[[Case], AbstractContextManager[None]]
"""Guards a call of a subject: journal before, time limit during, journal removed after."""

Isolate = Callable[[Case, str, Path | None], Verdict]
"""Judges a case on the subject of a name in a process of its own."""


@dataclass(frozen=True)
class Subject:
    """A configured backend under the name by which it was asked for, and what it says about its versions."""

    name: str
    backend: Backend
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def recorded(self) -> bool:
        """Whether its results were recorded, and it has some for whole cases only."""
        return "recorded" in self.versions

    @staticmethod
    def load(name: str) -> Subject:
        """The backend of that name.

        Raises
        ------
        equivcheck.backends.registry.SubjectError
            If there is none.
        equivcheck.backends.protocol.BackendUnavailable
            If it cannot run here.
        """
        from equivcheck.backends import registry

        with _quiet():
            backend = registry.build(name)
            return Subject(name, backend, {key: str(version) for key, version in backend.versions().items()})


@dataclass(frozen=True)
class Run:
    """One Case on one subject, with everything that was made on the way.

    `outcome` and `arithmetic` are None where the subject did not run; `findings` names those that explain the failure.
    """

    case: Case
    subject: str
    verdict: Verdict
    problem: Problem | None = None
    arithmetic: Arithmetic | None = None
    outcome: Outcome | None = None
    findings: tuple[str, ...] = ()
    subject_seconds: float = 0.0
    judge_seconds: float = 0.0

    @property
    def right(self) -> bool:
        """Whether the subject ran and nothing was wrong: the runs whose results may be compared with others'."""
        return self.verdict.status in (Status.PASSED, Status.MISTRUSTED)

    @property
    def exact(self) -> bool:
        """Whether every judged element had one allowed value: then every right kernel gives the same bits."""
        sums = (report for report in self.verdict.reports if report.tensor in TRUSTED_TENSORS)
        return self.right and all(report.exact == report.judged for report in sums)

    @property
    def deterministic(self) -> bool:
        """Whether the subject declares that another run gives the same bits, and was right in this one."""
        return self.right and self.arithmetic is not None and self.arithmetic.deterministic


def run(
    case: Case,
    subject: Subject,
    *,
    folder: Path | None = None,
    findings: Iterable[Finding] = (),
    watch: Watch = lambda case: nullcontext(),
    isolate: Isolate | None = None,
) -> Run:
    """Run `case` on `subject` and judge every tensor.

    Parameters
    ----------
    folder
        Where a captured batch's file lies.
    findings
        Recorded findings; a failure that they explain is KNOWN.
    watch
        Entered around the calls of the subject, not around the truth and the comparison.
    isolate
        Judges a case in a process of its own; used where the backend asks for it, or a finding says that the case may
        end the process.

    Returns
    -------
    Run
        UNSUPPORTED with the subject's reason, or ERROR with the traceback where the subject or its adapter raised.
        Where memory ran out, all is freed and the case runs once more first: others may use the same device.

    Raises
    ------
    CaseError
        If the case does not materialise.
    """
    relevant = tuple(finding for finding in findings if finding.concerns(subject.name, subject.versions))
    found = _once(case, subject, folder, relevant, watch, isolate)
    if isinstance(found, _Raised) and ran_out(found.error):
        release(found.error)
        found = _once(case, subject, folder, relevant, watch, isolate)
    if not isinstance(found, _Raised):
        return _explained(found, relevant)
    result = Run(case, subject.name, error_verdict(found.error), found.problem)
    if ran_out(found.error):
        release(found.error)
    return result


@dataclass(frozen=True)
class _Raised:
    """What a subject or its adapter raised, and the problem, if it had come to that."""

    error: Exception
    problem: Problem | None


def _once(
    case: Case,
    subject: Subject,
    folder: Path | None,
    relevant: tuple[Finding, ...],
    watch: Watch,
    isolate: Isolate | None,
) -> Run | _Raised:
    problem: Problem | None = None
    start = time.perf_counter()
    try:
        with watch(case), _quiet():
            support = subject.backend.supports(case)
            if not support:
                return Run(case, subject.name, Verdict(Status.UNSUPPORTED, reason=support.reason or "no reason given"))
            problem = materialise(case, folder)
            alone = isolate is not None and (
                isolation(subject.backend, case) != "" or any(f.dangerous and f.holds(problem) for f in relevant)
            )
            if not alone:
                arithmetic = subject.backend.arithmetic(case)
                start = time.perf_counter()
                outcome = subject.backend.run(problem)
        if isolate is not None and alone:
            # Not under this process's watch: the other one limits the time itself, from when it has started.
            return Run(case, subject.name, isolate(case, subject.name, folder), problem)
    except CaseError:
        raise
    except Exception as error:
        return _Raised(error, problem)
    ran = time.perf_counter()
    verdict = judge(problem, arithmetic, outcome)
    judged = time.perf_counter()
    return Run(case, subject.name, verdict, problem, arithmetic, outcome, (), ran - start, judged - ran)


def error_verdict(error: Exception) -> Verdict:
    """The verdict where an adapter, a property or equivcheck itself raised: type and text, then the traceback.

    Memory that ran out is named before, whatever type the system has for it.
    """
    first = str(error).partition("\n")[0]
    trace = "".join(traceback.format_exception(error, limit=-_FRAMES))
    memory = ran_out(error)
    kind = "" if memory is None else f"out of memory ({memory}): "
    return Verdict(Status.ERROR, reason=f"{kind}{type(error).__name__}: {first}\n{trace}".rstrip())


def _explained(result: Run, findings: tuple[Finding, ...]) -> Run:
    if result.problem is None or result.verdict.status not in FAILURES:
        return result
    verdict, names = explain(findings, result.problem, result.verdict)
    return replace(result, verdict=verdict, findings=names)


@contextmanager
def _quiet() -> Iterator[None]:
    """No NumPy or Python warning of a subject becomes an error: Triton's interpreter warns of an overflow in fp32."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
