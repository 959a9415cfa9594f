"""Faults as wrappers around any backend: what it is given is changed before, or what it returns after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np

from equivcheck.arithmetic import Arithmetic
from equivcheck.backends.protocol import Backend
from equivcheck.case import Call, Case, Pooling, Step
from equivcheck.faults.fault import Fault, Kind, Subtlety, Wrap
from equivcheck.formats import AnyArray, DType, nearest, store, widen
from equivcheck.outcome import Forward, Outcome, Support, Update
from equivcheck.problem import Action, Problem, Snapshot, program

Before = Callable[[Problem], Problem]
After = Callable[[Backend, Problem, Outcome], Outcome]


class Around:
    """A backend whose problems, or outcomes, are changed on the way.

    Attributes
    ----------
    name
        The inner backend's.
    """

    def __init__(self, inner: Backend, before: Before | None = None, after: After | None = None) -> None:
        self.name = inner.name
        self.inner, self._before, self._after = inner, before, after

    def supports(self, case: Case) -> Support:
        """See `Backend`."""
        return self.inner.supports(case)

    def arithmetic(self, case: Case) -> Arithmetic:
        """As the right backend declares."""
        return self.inner.arithmetic(case)

    def run(self, problem: Problem) -> Outcome:
        """See `Backend`."""
        outcome = self.inner.run(problem if self._before is None else self._before(problem))
        return outcome if self._after is None else self._after(self.inner, problem, outcome)

    def versions(self) -> dict[str, str]:
        """See `Backend`."""
        return self.inner.versions()


def _before(change: Before) -> Wrap:
    return lambda inner: Around(inner, before=change)


def _after(change: After) -> Wrap:
    return lambda inner: Around(inner, after=change)


# What is given
def _first_rate(problem: Problem) -> Problem:
    rate = problem.batches[0].learning_rate
    return replace(problem, batches=tuple(replace(batch, learning_rate=rate) for batch in problem.batches))


def _next_rate(problem: Problem) -> Problem:
    rates = [batch.learning_rate for batch in problem.batches]
    shifted = [*rates[1:], rates[-1]]
    batches = tuple(replace(b, learning_rate=rate) for b, rate in zip(problem.batches, shifted, strict=True))
    return replace(problem, batches=batches)


def _rows_of_first_table(problem: Problem) -> Problem:
    """Tables of the first one's shape start with its rows."""
    tables = problem.initial.tables
    same = tuple(tables[0].copy() if table.shape == tables[0].shape else table for table in tables)
    return replace(problem, initial=replace(problem.initial, tables=same))


# What is returned
def _forwards(outcome: Outcome, change: Callable[[AnyArray], AnyArray]) -> Outcome:
    results = tuple(replace(r, output=change(r.output)) if isinstance(r, Forward) else r for r in outcome.results)
    return replace(outcome, results=results)


def _updates(outcome: Outcome, change: Callable[[int, Update], Update]) -> Outcome:
    results = tuple(change(i, r) if isinstance(r, Update) else r for i, r in enumerate(outcome.results))
    return replace(outcome, results=results)


def _inputs(outcome: Outcome, name: str, change: Callable[[AnyArray], AnyArray]) -> Outcome:
    after = tuple({k: change(v) if k == name else v for k, v in step.items()} for step in outcome.inputs_after)
    return replace(outcome, inputs_after=after)


def _sorted_indices(inner: Backend, problem: Problem, outcome: Outcome) -> Outcome:
    return _inputs(outcome, "indices", np.sort)


def _normalised_weights(inner: Backend, problem: Problem, outcome: Outcome) -> Outcome:
    return _inputs(outcome, "per_sample_weights", lambda weights: (widen(weights) / 2).astype(weights.dtype))


def _scaled_gradient(inner: Backend, problem: Problem, outcome: Outcome) -> Outcome:
    if problem.case.pooling is not Pooling.MEAN:
        return outcome
    return _inputs(outcome, "grad_output", lambda gradient: (widen(gradient) / 2).astype(gradient.dtype))


def _wide_output(inner: Backend, problem: Problem, outcome: Outcome) -> Outcome:
    return _forwards(outcome, lambda output: output.astype(np.float32))


def _output_through(dtype: DType) -> After:
    def change(inner: Backend, problem: Problem, outcome: Outcome) -> Outcome:
        def narrowed(output: AnyArray) -> AnyArray:
            with np.errstate(all="ignore"):
                return store(nearest(widen(output), dtype), problem.case.output)

        return _forwards(outcome, narrowed)

    return change


def _stale_output(inner: Backend, problem: Problem, outcome: Outcome) -> Outcome:
    results = list(outcome.results)
    forwards = [i for i, result in enumerate(results) if isinstance(result, Forward)]
    for earlier, later in pairwise(forwards):
        old, new = outcome.results[earlier], results[later]
        assert isinstance(old, Forward)
        assert isinstance(new, Forward)
        if old.output.shape == new.output.shape:
            results[later] = replace(new, output=old.output)
    return replace(outcome, results=tuple(results))


def _features_swapped(inner: Backend, problem: Problem, outcome: Outcome) -> Outcome:
    """The last two features' blocks, where they are equally wide."""
    dims, case = problem.dims, problem.case
    if len(dims) < 2 or dims[-1] != dims[-2] or case.ranks or case.pooling is Pooling.NONE:
        return outcome
    width = dims[-1]

    def change(output: AnyArray) -> AnyArray:
        parts = output[:, : -2 * width], output[:, -width:], output[:, -2 * width : -width]
        return np.concatenate(parts, axis=1)

    return _forwards(outcome, change)


def _last_column_kept(inner: Backend, problem: Problem, outcome: Outcome) -> Outcome:
    """Widths of 4 k + 1 keep their last column's weights."""

    def change(action: int, update: Update) -> Update:
        before = _state_before(problem, outcome, action)
        tables = [table.copy() for table in update.after.tables]
        for old, new in zip(before.tables, tables, strict=True):
            if new.shape[1] % 4 == 1 and new.shape[1] > 4:
                new[:, -1] = old[:, -1]
        return replace(update, after=replace(update.after, tables=tuple(tables)))

    return _updates(outcome, change)


def _zeros_lose_sign(inner: Backend, problem: Problem, outcome: Outcome) -> Outcome:
    """Every row of a table is rewritten, itself plus zero."""

    def change(action: int, update: Update) -> Update:
        tables = tuple((widen(table) + 0.0).astype(table.dtype) for table in update.after.tables)
        return replace(update, after=replace(update.after, tables=tables))

    return _updates(outcome, change)


def _warnings_kept(inner: Backend, problem: Problem, outcome: Outcome) -> Outcome:
    """The count of warnings is not reset between forwards."""
    total = 0
    results: list[Forward | Update] = []
    for result in outcome.results:
        if isinstance(result, Forward) and result.warnings is not None:
            total += result.warnings
            results.append(replace(result, warnings=total))
        else:
            results.append(result)
    return replace(outcome, results=tuple(results))


def _forward_writes(inner: Backend, problem: Problem, outcome: Outcome) -> Outcome:
    """A forward without a backward zeroes the first row of each table."""
    results: list[Forward | Update] = []
    for result in outcome.results:
        if isinstance(result, Forward) and result.after is not None:
            tables = [table.copy() for table in result.after.tables]
            for table in tables:
                table[:1] = 0
            result = replace(result, after=replace(result.after, tables=tuple(tables)))
        results.append(result)
    return replace(outcome, results=tuple(results))


def _weight_gradient_after_update(inner: Backend, problem: Problem, outcome: Outcome) -> Outcome:
    """Gradients of the first step's weights come from the rows after its update."""
    spec, case = problem.case.per_sample_weights, problem.case
    first = next((i for i, r in enumerate(outcome.results) if isinstance(r, Update)), None)
    if spec is None or not spec.gradient or first is None or case.call is not Call.STEPS:
        return outcome
    update = outcome.results[first]
    assert isinstance(update, Update)
    again = inner.run(_one_step(problem, 0, update.after)).results
    late = [result for result in again if isinstance(result, Update)]
    if not late:
        return outcome
    return _updates(outcome, lambda i, u: replace(u, weight_gradient=late[0].weight_gradient) if i == first else u)


class _MomentsForgotten(Around):
    """Every step starts from the initial moments."""

    def run(self, problem: Problem) -> Outcome:
        if problem.case.call is not Call.STEPS or len(problem.batches) == 1:
            return self.inner.run(problem)
        results: list[Forward | Update] = []
        tables = problem.initial.tables
        outcome = Outcome(())
        for step in range(len(problem.batches)):
            outcome = self.inner.run(_one_step(problem, step, replace(problem.initial, tables=tables)))
            results.extend(outcome.results)
            last = outcome.results[-1]
            if outcome.raised is not None or not isinstance(last, Update):
                break
            tables = last.after.tables
        return Outcome(tuple(results), guards=outcome.guards, raised=outcome.raised)


def _one_step(problem: Problem, step: int, initial: Snapshot) -> Problem:
    """One step of a problem by itself, from another state."""
    case, optimizer = problem.case, problem.case.optimizer
    alone = msgspec.structs.replace(
        case, steps=(Step(),), optimizer=msgspec.structs.replace(optimizer, step=optimizer.step + step)
    )
    return replace(problem, case=alone, initial=initial, batches=(problem.batches[step],))


def _state_before(problem: Problem, outcome: Outcome, action: int) -> Snapshot:
    earlier = [result.after for result in outcome.results[:action] if isinstance(result, Update)]
    return earlier[-1] if earlier else problem.initial


class _Reseeded:
    """Stochastic rounding takes other random numbers at every run."""

    def __init__(self) -> None:
        self._runs = 0

    def __call__(self, problem: Problem) -> Problem:
        self._runs += 1
        return replace(problem, case=msgspec.structs.replace(problem.case, seed=problem.case.seed + self._runs))


def _second_backward_ignored(inner: Backend, problem: Problem, outcome: Outcome) -> Outcome:
    """A second backward of a step through a retained graph changes nothing."""
    seen: set[int] = set()
    results = list(outcome.results)
    for position, (action, step) in enumerate(program(problem.case)[: len(results)]):
        result = results[position]
        if action is Action.BACKWARD and isinstance(result, Update):
            if step in seen:
                changed = replace(outcome, results=tuple(results))
                results[position] = replace(result, after=_state_before(problem, changed, position))
            seen.add(step)
    return replace(outcome, results=tuple(results))


_FBGEMM = "https://github.com/pytorch/FBGEMM"
_GROSS, _EDGE, _FEW, _BITS = Subtlety.GROSS, Subtlety.EDGE, Subtlety.FEW, Subtlety.BITS

FAULTS: tuple[Fault, ...] = (
    Fault(
        "rate-of-the-first-step",
        Kind.STATE,
        "The learning rate is captured at the first step.",
        _EDGE,
        wrap=_before(_first_rate),
    ),
    Fault(
        "rate-of-the-next-step",
        Kind.STATE,
        "The learning rate is read after it was set for the next step.",
        _EDGE,
        wrap=_before(_next_rate),
    ),
    Fault(
        "moments-forgotten", Kind.STATE, "Every step starts from the initial moments.", _EDGE, wrap=_MomentsForgotten
    ),
    Fault(
        "rows-of-the-first-table",
        Kind.SHARING,
        "Tables of the first one's shape are read from its buffer.",
        _EDGE,
        wrap=_before(_rows_of_first_table),
    ),
    Fault(
        "indices-sorted-in-place",
        Kind.LAYOUT,
        "The caller's indices are sorted in place.",
        _FEW,
        wrap=_after(_sorted_indices),
    ),
    Fault(
        "weights-scaled-in-place",
        Kind.LAYOUT,
        "The caller's per-sample weights are scaled in place.",
        _EDGE,
        wrap=_after(_normalised_weights),
        report="https://github.com/meta-pytorch/torchrec/pull/2809",
    ),
    Fault(
        "gradient-divided-in-place",
        Kind.LAYOUT,
        "A mean divides the caller's gradient in place.",
        _EDGE,
        wrap=_after(_scaled_gradient),
    ),
    Fault(
        "output-dtype-fp32",
        Kind.LAYOUT,
        "The output is fp32 whatever was asked for.",
        _EDGE,
        wrap=_after(_wide_output),
        report="https://github.com/meta-pytorch/torchrec/pull/3856",
    ),
    Fault(
        "output-through-bf16",
        Kind.ROUNDING,
        "The output is rounded to bf16 on its way.",
        _BITS,
        wrap=_after(_output_through(DType.BF16)),
    ),
    Fault(
        "stale-output",
        Kind.UNWRITTEN,
        "A later forward of the same shape returns the buffer of the one before.",
        _EDGE,
        wrap=_after(_stale_output),
        first=("steps",),
    ),
    Fault(
        "features-swapped",
        Kind.SHARING,
        "The last two features of equal width change places in the output.",
        _EDGE,
        wrap=_after(_features_swapped),
    ),
    Fault(
        "last-column-not-updated",
        Kind.WIDTH,
        "Widths of 4 k + 1 keep the weights of their last column.",
        _EDGE,
        wrap=_after(_last_column_kept),
    ),
    Fault(
        "zeros-lose-their-sign",
        Kind.WIDTH,
        "Every row of a table is rewritten as itself plus zero.",
        _BITS,
        wrap=_after(_zeros_lose_sign),
        first=("untouched",),
    ),
    Fault(
        "warnings-not-reset",
        Kind.BOUNDS,
        "The count of warnings goes on from one forward to the next.",
        _EDGE,
        wrap=_after(_warnings_kept),
    ),
    Fault(
        "forward-alone-writes",
        Kind.CALLS,
        "A forward without a backward writes the first row of each table.",
        _EDGE,
        wrap=_after(_forward_writes),
    ),
    Fault(
        "weight-gradient-after-update",
        Kind.WEIGHT_GRADIENT,
        "dL/dp is taken from the rows after the update.",
        _EDGE,
        wrap=_after(_weight_gradient_after_update),
        report="https://github.com/meta-pytorch/torchrec/pull/4602",
    ),
    Fault(
        "second-backward-ignored",
        Kind.CALLS,
        "A second backward through a retained graph changes nothing.",
        _EDGE,
        wrap=_after(_second_backward_ignored),
    ),
    Fault(
        "random-numbers-not-seeded",
        Kind.STOCHASTIC,
        "Stochastic rounding takes other numbers at every run.",
        _BITS,
        wrap=lambda inner: Around(inner, before=_Reseeded()),
        report=f"{_FBGEMM}/pull/493",
    ),
)
