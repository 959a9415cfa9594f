"""Run a slice: let Hypothesis draw cases for a property, shrink what fails, and tell it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from equivcheck.case import Case
from equivcheck.coverage import Coverage
from equivcheck.engine.check import CaseFailed, Check, EndedBefore, NotJudged, describe, failure_type
from equivcheck.engine.constants import seed_alone
from equivcheck.engine.counts import Counts, add
from equivcheck.engine.failures import Failure, Told, tell
from equivcheck.engine.properties import Property, Slice
from equivcheck.engine.worker import JournalGuard, Worker, worker_of
from equivcheck.runner import Run, Subject, error_verdict
from equivcheck.store import Provenance

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from strategies.budget import Budget

RESULT = pytest.StashKey["SliceResult | ReplayResult"]()


class SliceResult(msgspec.Struct, tag_field="kind", tag="slice"):
    """What a slice found, as it travels to the controller."""

    property: str
    subject: str
    slice: int
    counts: Counts
    witness: str = ""
    failures: list[Told] = []
    coverage: dict[str, Any] = {}


class ReplayResult(msgspec.Struct, tag_field="kind", tag="finding"):
    """What a recorded finding's minimal case did: same, fixed, different, or not applicable."""

    finding: str
    subject: str
    result: str
    message: str = ""


def run_slice(declared: Property, part: Slice, item: pytest.Item) -> None:
    """Run one slice as a pytest item. Fails, with one block of text a symptom, or skips if nothing was supported."""
    worker = worker_of(item.config)
    result = SliceResult(declared.name, part.subject, part.number, Counts(), part.witness or "")
    item.stash[RESULT] = result
    broken = worker.roster.broken
    for name in filter(None, (part.subject, part.witness)):
        if name in broken:
            pytest.fail(f"{name} does not work here: {broken[name]}", pytrace=False)
    hunt = _Hunt(declared, part, worker, item.nodeid, result.counts)
    hunt.run()
    result.coverage = hunt.coverage.to_builtins()
    for failure in hunt.failures.values():
        add(result.counts.statuses, failure.last[1].verdict.status.value)
        result.failures.append(hunt.tell(failure))
    if result.failures:
        pytest.fail("\n\n".join(told.text for told in result.failures), pytrace=False)
    if not result.counts.judged:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in result.counts.unsupported.items())
        if reasons:
            pytest.skip(f"{part.subject} supports none of the cases: {reasons}")
        pytest.fail(f"{declared.name} judged nothing on {part.subject}: its strategy drew no case", pytrace=False)


@dataclass
class _Hunt:
    property: Property
    part: Slice
    worker: Worker
    item: str
    counts: Counts
    provenance: Provenance = field(init=False)
    failures: dict[str, Failure] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)
    sometimes: bool = False

    def run(self) -> None:
        """Draw, run, and shrink. Failures are kept, by symptom, not raised."""
        import hypothesis
        from hypothesis.errors import Flaky, HypothesisException, Unsatisfiable

        from equivcheck.engine.subjects import load_subject, load_witness

        options = self.worker.options
        subject = load_subject(self.part.subject)
        self.provenance = self.worker.provenance(
            subject, self.property.name, self.property.file, self.part.number, self.part.witness or ""
        )
        check = Check(
            subject=subject,
            witness=load_witness(self.part.witness) if self.part.witness else None,
            counts=self.counts,
            findings=self.worker.findings_on(subject),
            guard=JournalGuard(self.worker, self.provenance, self.item),
            coverage=self.coverage,
        )

        def example(case: Case) -> None:
            try:
                self.property.body(case, check)
            except EndedBefore:
                return  # told already; not rejected, since Hypothesis would then draw other cases after it
            except NotJudged:
                hypothesis.reject()
            except CaseFailed as failed:
                check.counting = False
                self._keep(case, failed)
                raise
            except HypothesisException:
                raise
            except Exception as error:  # of the property, the truth, or the comparison
                check.counting = False
                verdict = error_verdict(error)
                raised = failure_type(describe(verdict))(Run(case, subject.name, verdict))
                self._keep(case, raised)
                raise raised from None

        profile = our_profile(options.profile)
        budget = budget_of(subject.backend, profile.budget)
        phases = [hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if options.shrink else [])]
        settings = hypothesis.settings(
            max_examples=examples_of(subject.backend, profile.examples * self.property.examples),
            phases=phases,
            database=None,  # saved cases replay without it
            deadline=None,  # the time limit is the journal's: it also ends a case that holds the GIL
            print_blob=False,
            # A case is as slow as its kernel, and a subject may refuse most of what is drawn.
            suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
        )
        recorded = recorded_cases(check.witness)
        drawn = self.property.strategy(budget, subject.backend.supports, seed=options.seed, part=self.part.number)
        strategy = drawn if recorded is None else recorded
        if recorded is None and getattr(subject.backend, "compiles_for_widths", False):
            strategy = of_few_widths(strategy, options.seed)
        given = hypothesis.given(strategy)(example)
        drive: Any = hypothesis.seed(self.part.seed(options.seed, self.property.name))(settings(given))
        try:
            with seed_alone():
                drive()
        except Unsatisfiable:
            pass  # every case was refused: the reasons are in the counts
        except Exception as error:
            # One CaseFailed, a group of them, or Hypothesis' word for a failure that did not repeat.
            if not self.failures:
                raise
            self.sometimes = isinstance(error, Flaky)

    def _keep(self, case: Case, failed: CaseFailed) -> None:
        name = type(failed).__name__
        if name in self.failures:
            self.failures[name].add(case, failed.run)
        else:
            self.failures[name] = Failure(name, (case, failed.run), (case, failed.run))

    def tell(self, failure: Failure) -> Told:
        """Save and describe a failure."""
        options = self.worker.options
        title = f"{self.property.name} on {self.part.subject}, slice {self.part.number}"
        return tell(
            failure,
            title + (", only sometimes" if self.sometimes else ""),
            self.property.sentence,
            self.provenance,
            options.failures_folder,
            options.shrink,
            self.worker.here,
        )


def our_profile(name: str) -> Any:
    """The profile of that name.

    Raises
    ------
    ImportError
        If the package `strategies` that Python finds is not equivcheck's.
    """
    import strategies

    if not hasattr(strategies, "__equivcheck__"):
        raise ImportError(
            f"Python finds another package named strategies, in {strategies.__path__}, before equivcheck's own; start "
            "pytest by its own command and not by python -m, or from another folder"
        )
    return strategies.Profile(name)


def recorded_cases(witness: Subject | None) -> SearchStrategy[Case] | None:
    """The cases that a witness has results for, where it is recorded; None where it runs."""
    from hypothesis import strategies as st

    cases = () if witness is None else getattr(witness.backend, "cases", ())
    return st.sampled_from(cases) if cases else None


def of_few_widths(strategy: SearchStrategy[Case], seed: int) -> SearchStrategy[Case]:
    """The strategy's cases with the widths of this run's pool, for a subject that compiles kernels for each."""
    import strategies

    widths = strategies.pool(seed)
    return strategy.map(lambda case: strategies.pooled(case, widths))


def examples_of(backend: object, asked: float) -> int:
    """Cases of a slice: what the profile and the property ask for, times the share that a backend declares.

    A backend whose cases are slow declares `examples`. It gets two cases at least: Hypothesis' first is the simplest.
    """
    share: float | None = getattr(backend, "examples", None)
    return max(1, round(asked)) if share is None else max(2, round(asked * share))


def budget_of(backend: object, budget: Budget) -> Budget:
    """The size budget of a case: the profile's, within what the backend declares as `budget`, if it does."""
    declared: Budget | None = getattr(backend, "budget", None)
    return budget if declared is None else budget.within(declared)
