"""The proof that a gate can fail: which faults are put into a subject, and the cases on which they must be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec

from equivcheck import isolation, runner, verification
from equivcheck.case import Case
from equivcheck.compare import judge
from equivcheck.engine.check import EndedBefore, Guard
from equivcheck.faults.catalogue import FAULTS as CATALOGUE
from equivcheck.faults.catalogue import by_name, faulty, fits
from equivcheck.faults.fault import Fault as SourceFault
from equivcheck.faults.fault import Reach
from equivcheck.findings import Finding
from equivcheck.gate.tamper import FAULTS, Fault
from equivcheck.runner import Run, Subject
from equivcheck.verdict import Status, Verdict

AnyFault: TypeAlias = Fault | SourceFault

MOST_CASES = 40
"""Cases with a place for a fault that are tried. The faults are large, so the first few show them: three at most for
those of the Triton TBE's source, the first for nearly all others (measured 2026-11-30)."""
_MOST_DRAWN = 600
"""Cases that are drawn for it: a subject may refuse nearly all."""


def sample(subject: str) -> tuple[AnyFault, ...]:
    """The faults that are put into a subject: into its results, and into its source where the catalogue has some.

    Of the catalogue's, one for each class of real bug, of those that show in most results.
    """
    shown = [fault for fault in CATALOGUE.values() if fault.edits and not fault.variants and not fault.subtle]
    here = [fault for fault in shown if fault.reach is Reach.HERE and fits(fault, subject)]
    return (*FAULTS, *{fault.kind: fault for fault in reversed(here)}.values())


def title(fault: AnyFault) -> str:
    """What is wrong with it, in a sentence without its full stop."""
    return fault.title if isinstance(fault, Fault) else fault.what.rstrip(".")


def judged_with(fault: AnyFault, subject: Subject, time_limit: float) -> Callable[[Run], Verdict | None]:
    """What a right run comes to with the fault in it; None where it has no place for it.

    A wrong kernel runs in a process of its own: it may take the device's context with it.
    """
    if isinstance(fault, SourceFault):
        name = fault.name
        return lambda run: isolation.call(_faulty, (run.case.to_json(), subject.name, name, time_limit), time_limit)
    change = fault.change

    def tampered(run: Run) -> Verdict | None:
        assert run.problem is not None
        assert run.outcome is not None
        assert run.arithmetic is not None
        changed = change(run.problem, run.outcome)
        return None if changed is None else judge(run.problem, run.arithmetic, changed)

    return tampered


def right_runs(subject: Subject, guard: Guard, findings: Iterable[Finding]) -> Iterator[Run]:
    """Small cases of every kind that the subject takes and gets right, in the same order everywhere."""
    import strategies
    from strategies.choices import MENUS

    budget, known = strategies.Profile("quick").budget, tuple(findings)
    for seed in range(_MOST_DRAWN):
        case = strategies.random_case(seed, budget, MENUS[seed % len(MENUS)])
        if not subject.backend.supports(case):
            case = _plain(case)
        if not subject.backend.supports(case) or verification.danger(case, subject, known):
            continue
        try:
            run = guard.run(case, subject, known)
        except EndedBefore:
            continue
        if run.verdict.status is Status.PASSED and run.outcome is not None:
            yield run


def _plain(case: Case) -> Case:
    """The case with every setting at its default, for a subject that takes little else."""
    if case.ranks or case.captured is not None:
        return case
    return Case(tuple(msgspec.structs.replace(feature, frozen=False) for feature in case.features))


def _faulty(case: bytes, subject: str, fault: str, time_limit: float) -> Verdict:
    wrong = Subject(subject, faulty(by_name(fault), subject), {})
    return runner.run(Case.from_json(case), wrong, watch=lambda _: isolation.limited(time_limit)).verdict
