"""Hunt one fault: run the properties on it, with cases as the suite draws them, until one fails."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from equivcheck.case import Case
from equivcheck.engine.check import CaseFailed, Check, NotJudged, Unguarded
from equivcheck.engine.constants import seed_alone
from equivcheck.engine.counts import Counts
from equivcheck.engine.hunt import budget_of, examples_of, our_profile
from equivcheck.engine.properties import Property, Slice, property_of
from equivcheck.engine.suite import PREFIX, suite_folder
from equivcheck.faults.catalogue import by_name, faulty
from equivcheck.faults.fault import Fault
from equivcheck.minimise import minimise
from equivcheck.runner import Run, Subject, error_verdict

MINIMAL_CALLS = 150
"""Cases that are tried while a killing case is made smaller: about ten seconds in the interpreter."""

Watch = Callable[[str, int, Case], None]
"""Told before each case: the property, how many cases came before it, and the case."""


class Kill(msgspec.Struct, frozen=True):
    """How a fault was first seen.

    Attributes
    ----------
    property, slice
        Which property failed, and in which of its slices.
    cases, before
        Cases of that property up to and with the killing one; cases of the properties that ran before and passed.
    seconds
        From the first case of the first property on.
    symptom
        Tensor and symptom of the worst discrepancy, or the status.
    case
        The killing case as it was drawn, or made smaller.
    """

    property: str
    slice: int
    cases: int
    before: int
    seconds: float
    symptom: str
    case: dict[str, Any]
    minimal: bool = False


class Hunted(msgspec.Struct, frozen=True):
    """What a hunt came to: a kill, or the properties and cases that saw nothing.

    Attributes
    ----------
    cases, seconds
        Of all properties that ran.
    properties
        Which were to run, in this order.
    versions, day
        Of what is below the fault, and the day of the hunt.
    """

    fault: str
    subject: str
    profile: str
    seed: int
    kill: Kill | None
    cases: int
    seconds: float
    properties: tuple[str, ...] = ()
    error: str = ""
    versions: dict[str, str] = {}
    day: str = ""


class _Killed(BaseException):
    """Ends a slice at its first failure. Hypothesis lets what is no Exception pass, and does not run the case again."""

    def __init__(self, case: Case, failed: CaseFailed) -> None:
        super().__init__()
        self.case, self.failed = case, failed


@cache
def properties() -> dict[str, Property]:
    """The suite's properties by name, without those that need a witness, in the order of their files."""
    found = {}
    for path in sorted(suite_folder().glob(f"{PREFIX}*.py")):
        for declared in _declared(path):
            if not declared.with_witness:
                found[declared.name] = declared
    return found


def ordered(fault: Fault) -> tuple[str, ...]:
    """All properties, those that look for this fault first."""
    return (*fault.order, *(name for name in properties() if name not in fault.order))


def first_kill(
    name: str,
    subject: str,
    profile: str,
    *,
    seed: int = 0,
    only: tuple[str, ...] = (),
    minimal: bool = False,
    watch: Watch = lambda property_, cases, case: None,
) -> Hunted:
    """Run properties on a fault until one fails: all slices that the profile has of each, as `equivcheck check` does.

    Parameters
    ----------
    only
        Properties to run, in this order; by default all, in the order of the fault's class.
    minimal
        Whether the killing case is made smaller.
    """
    fault = by_name(name)
    backend = faulty(fault, subject)
    hunting = Hunting(Subject(f"{backend.name} with {name}", backend), profile, seed, watch)
    names = only or ordered(fault)
    kill = None
    for chosen in names:
        kill = hunting.kill(properties()[chosen])
        if kill is not None:
            break
    if kill is not None and minimal:
        kill = hunting.smaller(kill)
    day = datetime.now(UTC).date().isoformat()
    versions = {part: str(version) for part, version in backend.versions().items()}  # PyTorch's is no plain str
    return Hunted(name, subject, profile, seed, kill, hunting.cases, hunting.seconds, names, "", versions, day)


@dataclass
class Hunting:
    """Runs properties on one subject and counts."""

    subject: Subject
    profile: str
    seed: int
    watch: Watch = lambda property_, cases, case: None
    cases: int = 0
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.started

    def kill(self, declared: Property) -> Kill | None:
        """The first failure of a property, in slices as a run of the suite has them."""
        before = self.cases
        for number in range(our_profile(self.profile).slices):
            try:
                self._slice(declared, number, before)
            except _Killed as killed:
                symptom = type(killed.failed).__name__
                data = msgspec.json.decode(killed.case.to_json())
                return Kill(declared.name, number, self.cases - before, before, self.seconds, symptom, data)
        return None

    def smaller(self, kill: Kill) -> Kill:
        """The kill with a case that is as small as trying simpler ones makes it, with the same symptom."""
        declared = properties()[kill.property]

        def wrong(case: Case) -> bool:
            try:
                self._run(declared, case)
            except CaseFailed as failed:
                return type(failed).__name__ == kill.symptom
            except NotJudged:
                return False
            return False

        case = minimise(Case.from_json(msgspec.json.encode(kill.case)), wrong, MINIMAL_CALLS)
        return msgspec.structs.replace(kill, case=msgspec.json.decode(case.to_json()), minimal=True)

    def _slice(self, declared: Property, number: int, before: int) -> None:
        import hypothesis
        from hypothesis.errors import Unsatisfiable

        profile = our_profile(self.profile)
        backend = self.subject.backend

        def example(case: Case) -> None:
            self.watch(declared.name, self.cases - before, case)
            self.cases += 1
            try:
                self._run(declared, case)
            except NotJudged:
                hypothesis.reject()
            except CaseFailed as failed:
                raise _Killed(case, failed) from None

        settings = hypothesis.settings(
            max_examples=examples_of(backend, profile.examples * declared.examples),
            phases=[hypothesis.Phase.generate],
            database=None,
            deadline=None,
            print_blob=False,
            suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
        )
        strategy = declared.strategy(budget_of(backend, profile.budget), backend.supports, seed=self.seed, part=number)
        part = Slice(self.subject.name, number)
        drive: Any = hypothesis.seed(part.seed(self.seed, declared.name))(settings(hypothesis.given(strategy)(example)))
        try:
            with seed_alone():
                drive()
        except Unsatisfiable:
            return

    def _run(self, declared: Property, case: Case) -> None:
        """Run the property on a case. An exception of any other kind is a failure too: of the property or the truth."""
        check = Check(self.subject, None, Counts(), (), Unguarded(), counting=False)
        try:
            declared.body(case, check)
        except (CaseFailed, NotJudged):
            raise
        except Exception as error:
            verdict = error_verdict(error)
            raise CaseFailed(Run(case, self.subject.name, verdict)) from error


def _declared(path: Path) -> Iterator[Property]:
    spec = importlib.util.spec_from_file_location(f"equivcheck_hunted_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for value in vars(module).values():
        declared = property_of(value)
        if declared is not None:
            yield declared
