"""Outcome x Expectation -> Verdict."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from equivcheck.arithmetic import Arithmetic
from equivcheck.case import Pooling
from equivcheck.formats import AnyArray
from equivcheck.oracle import Expectation, ForwardExpectation, UpdateExpectation, expect
from equivcheck.outcome import Forward, Outcome, Raised, Update
from equivcheck.problem import Action, Problem, Snapshot, output_shape, program, split_by_feature
from equivcheck.tally import Tally
from equivcheck.verdict import Discrepancy, Status, Symptom, Tensor, Verdict

TRUSTED_TENSORS = (Tensor.OUTPUT, Tensor.ROWS, Tensor.MOMENTUM1, Tensor.MOMENTUM2, Tensor.WEIGHT_GRADIENT)
"""Tensors made of sums, for which a lost lookup is a meaningful question."""


def judge(problem: Problem, arithmetic: Arithmetic, outcome: Outcome) -> Verdict:
    """Expectation and comparison over the whole program, each action from the subject's own state before it."""
    malformed = _malformed(problem, outcome)
    if malformed:
        return Verdict(Status.FAILED, malformed)
    return compare(expect(problem, arithmetic, states_before(problem, outcome)), outcome)


def compare(expectation: Expectation, outcome: Outcome) -> Verdict:
    """Compare what a subject did with what a right kernel may do.

    The ladder: shape and dtype; bytes of untouched rows, states, guards and inputs; exact data bitwise; error within
    the bound; trust.
    """
    problem = expectation.problem
    malformed = _malformed(problem, outcome)
    if malformed:
        return Verdict(Status.FAILED, malformed)
    tally = Tally()
    for position, (expected, result) in enumerate(zip(expectation.calls, outcome.results, strict=False)):
        if expected.call.must_raise:
            tally.wrong(Discrepancy(Tensor.CALL, Symptom.NOT_RAISED, position, "bounds_check fatal"))
            break
        if isinstance(expected, ForwardExpectation) and isinstance(result, Forward):
            _compare_forward(tally, expectation, position, expected, result)
        elif isinstance(expected, UpdateExpectation) and isinstance(result, Update):
            _compare_update(tally, position, expected, result)
    _compare_end(tally, expectation, outcome)
    return _verdict(tally, outcome)


def _verdict(tally: Tally, outcome: Outcome) -> Verdict:
    found, reports = tally.discrepancies(), tally.reports()
    if found:
        only_raised = all(d.symptom is Symptom.RAISED for d in found)
        return Verdict(Status.ERROR if only_raised else Status.FAILED, found, reports)
    if outcome.vacuous:
        return Verdict(Status.MISTRUSTED, (), reports, outcome.vacuous)
    judged = sum(report.judged for report in reports if report.tensor in TRUSTED_TENSORS)
    trusted = sum(report.trusted for report in reports if report.tensor in TRUSTED_TENSORS)
    if not any(report.judged for report in reports) and outcome.raised is None:
        return Verdict(Status.MISTRUSTED, (), reports, "the case has no element to judge")
    if 2 * trusted < judged:
        return Verdict(
            Status.MISTRUSTED, (), reports, f"a lost lookup would show in {trusted:,} of {judged:,} elements only"
        )
    return Verdict(Status.PASSED, (), reports)


def states_before(problem: Problem, outcome: Outcome) -> list[Snapshot]:
    """The subject's state before each action that it took, or raised in."""
    states = [problem.initial]
    for result in outcome.results:
        states.append(result.after if isinstance(result, Update) else states[-1])
    return states


def _compare_forward(
    tally: Tally, expectation: Expectation, position: int, expected: ForwardExpectation, result: Forward
) -> None:
    problem = expectation.problem
    step = program(problem.case)[position][1]
    batch = replace(problem.batches[step], offsets=expectation.offsets[step].repaired)
    kind = "lookup" if problem.case.pooling is Pooling.NONE else "bag"
    for feature, (bounds, block) in enumerate(
        zip(expected.outputs, split_by_feature(result.output, problem, batch), strict=True)
    ):
        tally.compare(Tensor.OUTPUT, position, bounds, block, partial(_in_feature, feature, kind))
    if result.after is not None:
        _same_state(tally, position, problem.initial, result.after, "after a forward alone")
    if result.warnings is not None:
        least, most = expected.warnings
        tally.judged(Tensor.WARNINGS, 1)
        if not least <= result.warnings <= most:
            tally.wrong(
                Discrepancy(
                    Tensor.WARNINGS,
                    Symptom.COUNT,
                    position,
                    "bounds-check warnings",
                    actual=float(result.warnings),
                    truth=float(least),
                    low=float(least),
                    high=float(most),
                )
            )


def _compare_update(tally: Tally, position: int, expected: UpdateExpectation, result: Update) -> None:
    after, before = result.after, expected.before
    for number, table in enumerate(expected.tables):
        for tensor, bounds, new, old in (
            (Tensor.ROWS, table.rows, after.tables[number], before.tables[number]),
            (Tensor.MOMENTUM1, table.momentum1, _at(after.momentum1, number), _at(before.momentum1, number)),
            (Tensor.MOMENTUM2, table.momentum2, _at(after.momentum2, number), _at(before.momentum2, number)),
        ):
            if bounds is None or new is None or old is None:
                continue
            touched = new[table.touched]
            tally.compare(
                tensor,
                position,
                bounds,
                touched[:, None] if touched.ndim == 1 else touched,
                partial(_in_table, number, table.touched),
            )
            kept = np.ones(len(new), bool)
            kept[table.touched] = False
            tally.same_bytes(Tensor.UNTOUCHED, position, f"{tensor} of table {number}", old, new, kept)
    if expected.weight_gradient is not None and result.weight_gradient is not None:
        block = result.weight_gradient[:, None]
        tally.compare(Tensor.WEIGHT_GRADIENT, position, expected.weight_gradient, block, lambda r, _: f"lookup {r}")


def _in_feature(feature: int, kind: str, row: int, column: int) -> str:
    return f"feature {feature}, {kind} {row}, column {column}"


def _in_table(table: int, touched: npt.NDArray[np.int64], row: int, column: int) -> str:
    return f"table {table}, row {touched[row]}, column {column}"


def _at(arrays: tuple[AnyArray, ...], number: int) -> AnyArray | None:
    return arrays[number] if arrays else None


def _compare_end(tally: Tally, expectation: Expectation, outcome: Outcome) -> None:
    """What is judged once: how the program ended, guards, and the caller's inputs."""
    problem, actions = expectation.problem, program(expectation.problem.case)
    if outcome.raised is not None:
        _compare_raised(tally, expectation, outcome.raised, states_before(problem, outcome)[-1])
    elif len(outcome.results) < len(actions):
        tally.wrong(
            Discrepancy(
                Tensor.CALL,
                Symptom.MISSING,
                len(outcome.results),
                f"{len(outcome.results)} of {len(actions)} actions have a result",
            )
        )
    for guard in outcome.guards:
        tally.same_bytes(Tensor.GUARDS, -1, guard.name, guard.before, guard.after, None)
    for step, after in enumerate(outcome.inputs_after):
        for name, given in problem.batches[step].arrays:
            if name not in after:
                continue
            if name in ("indices", "offsets"):
                allowed = (expectation.indices if name == "indices" else expectation.offsets)[step]
                tally.repaired(step, name, allowed, after[name])
            else:
                tally.same_bytes(Tensor.INPUTS, -1, f"{name} of step {step}", given, after[name], None)


def _compare_raised(tally: Tally, expectation: Expectation, raised: Raised, before: Snapshot) -> None:
    """A call may raise where the contract lets it, and then changes nothing of the state `before` it."""
    if raised.position >= len(expectation.calls):
        tally.wrong(
            Discrepancy(Tensor.CALL, Symptom.RAISED, raised.position, "", detail=f"{raised.kind}: {raised.message}")
        )
        return
    expected = expectation.calls[raised.position]
    call = expected.call
    if not (call.may_raise or (call.must_raise and isinstance(expected, ForwardExpectation))):
        tally.wrong(
            Discrepancy(Tensor.CALL, Symptom.RAISED, raised.position, "", detail=f"{raised.kind}: {raised.message}")
        )
        return
    tally.judged(Tensor.CALL, 1)
    if raised.after is not None:
        _same_state(tally, raised.position, before, raised.after, "after the call raised")


def _same_state(tally: Tally, position: int, before: Snapshot, after: Snapshot, when: str) -> None:
    for name in ("tables", "momentum1", "momentum2"):
        for number, (old, new) in enumerate(zip(getattr(before, name), getattr(after, name), strict=True)):
            tally.same_bytes(Tensor.UNTOUCHED, position, f"{name} {number} {when}", old, new, None)


def _malformed(problem: Problem, outcome: Outcome) -> tuple[Discrepancy, ...]:
    """Broken promises of the device, shapes and dtypes first: nothing else can be compared without them."""
    found = [
        Discrepancy(Tensor.DEVICE, Symptom[breach.promise.name], -1, breach.where, detail=breach.detail)
        for breach in outcome.breaches
    ]
    case = problem.case

    def same(
        tensor: Tensor, position: int, where: str, array: AnyArray, like: tuple[tuple[int, ...], np.dtype[np.generic]]
    ) -> None:
        shape, dtype = like
        if array.shape != shape:
            found.append(
                Discrepancy(tensor, Symptom.SHAPE, position, where, detail=f"shape {array.shape}, not {shape}")
            )
        elif array.dtype != dtype:
            found.append(
                Discrepancy(tensor, Symptom.DTYPE, position, where, detail=f"dtype {array.dtype}, not {dtype}")
            )

    def same_state(tensor_of: dict[str, Tensor], position: int, after: Snapshot) -> None:
        for name, tensor in tensor_of.items():
            initial, arrays = getattr(problem.initial, name), getattr(after, name)
            if len(arrays) != len(initial):
                detail = f"{len(arrays)} arrays, not {len(initial)}"
                found.append(Discrepancy(tensor, Symptom.MISSING, position, name, detail=detail))
                continue
            for number, (array, like) in enumerate(zip(arrays, initial, strict=True)):
                same(tensor, position, f"{name} of table {number}", array, (like.shape, like.dtype))

    names = {"tables": Tensor.ROWS, "momentum1": Tensor.MOMENTUM1, "momentum2": Tensor.MOMENTUM2}
    actions = program(case)
    for position, ((action, step), result) in enumerate(zip(actions, outcome.results, strict=False)):
        batch = problem.batches[step]
        if (action is Action.FORWARD) != isinstance(result, Forward):
            found.append(Discrepancy(Tensor.CALL, Symptom.MISSING, position, f"result of a {action.value}"))
        elif isinstance(result, Forward):
            if result.after is not None:
                same_state(names, position, result.after)
            like = (output_shape(problem, batch), case.output.numpy)
            same(Tensor.OUTPUT, position, "output", result.output, like)
        elif isinstance(result, Update):
            same_state(names, position, result.after)
            weights = case.per_sample_weights
            if weights is not None and weights.gradient:
                if result.weight_gradient is None:
                    found.append(Discrepancy(Tensor.WEIGHT_GRADIENT, Symptom.MISSING, position, "no gradient"))
                else:
                    like = ((len(batch.indices),), weights.dtype.numpy)
                    same(Tensor.WEIGHT_GRADIENT, position, "gradient", result.weight_gradient, like)
    if outcome.raised is not None and outcome.raised.after is not None:
        same_state(names, outcome.raised.position, outcome.raised.after)
    return tuple(found)
