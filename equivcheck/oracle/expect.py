"""Problem x Arithmetic -> Expectation, action by action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from equivcheck.arithmetic import Arithmetic
from equivcheck.case import BoundsCheck
from equivcheck.oracle.expectation import (
    Bounds,
    CallExpectation,
    Expectation,
    ForwardExpectation,
    InputExpectation,
    UpdateExpectation,
)
from equivcheck.oracle.gradients import Upstream, expect_weight_gradient
from equivcheck.oracle.lookups import Repair, TableLookups, repair, table_lookups
from equivcheck.oracle.optimizers import Hyper
from equivcheck.oracle.pooling import expect_outputs
from equivcheck.oracle.updates import TableState, expect_table
from equivcheck.problem import Action, Batch, Problem, Snapshot, output_shape, program, split_by_feature


def expect(problem: Problem, arithmetic: Arithmetic, befores: Sequence[Snapshot] | None = None) -> Expectation:
    """What a right kernel of this arithmetic may give.

    Parameters
    ----------
    befores
        The kernel's own state before each action, so that errors of several steps do not pile up; shorter where the
        kernel raised. Needed where more than one backward is run; otherwise the initial state.

    Raises
    ------
    ValueError
        If `befores` is left out though the case updates more than once.
    """
    actions = program(problem.case)
    if befores is None:
        if sum(action is Action.BACKWARD for action, _ in actions) > 1:
            raise ValueError("the case updates more than once; give the kernel's state before each action")
        befores = [problem.initial] * len(actions)
    views = [_StepView(problem, batch, arithmetic) for batch in problem.batches]
    calls = tuple(
        views[step].forward(before) if action is Action.FORWARD else views[step].update(before, step)
        for (action, step), before in zip(actions, befores, strict=False)
    )
    return Expectation(
        problem=problem,
        calls=calls,
        indices=tuple(InputExpectation(v.batch.indices, v.repaired.indices) for v in views),
        offsets=tuple(InputExpectation(v.batch.offsets, v.repaired.offsets) for v in views),
    )


class _StepView:
    """One step's lookups, shared by its forward and its backwards."""

    def __init__(self, problem: Problem, batch: Batch, arithmetic: Arithmetic) -> None:
        self.problem, self.batch, self.arithmetic = problem, batch, arithmetic
        self.repaired: Repair = repair(problem, batch)
        self.lookups: tuple[TableLookups, ...] = table_lookups(problem, batch, self.repaired)
        self.call = CallExpectation(self.repaired.must_raise(problem.case), self.repaired.may_raise(problem.case))

    def forward(self, before: Snapshot) -> ForwardExpectation:
        """Output and warnings from the tables as they are."""
        by_feature: dict[int, Bounds] = {}
        with np.errstate(all="ignore"):
            for lookups in self.lookups:
                table = before.tables[lookups.table]
                by_feature |= expect_outputs(self.problem, table, lookups, self.arithmetic)
        outputs = tuple(by_feature[feature] for feature in range(len(self.problem.dims)))
        shape = output_shape(self.problem, self.batch)
        return ForwardExpectation(self.call, outputs, shape, self._warnings())

    def update(self, before: Snapshot, step: int) -> UpdateExpectation:
        """Rows, states and weight gradients from the state as it is."""
        case, problem = self.problem.case, self.problem
        gradient = split_by_feature(self.batch.grad_output, problem, replace(self.batch, offsets=self.repaired.offsets))
        hyper = Hyper(case.optimizer, self.batch.learning_rate, case.optimizer.step + step)
        upstreams = [Upstream.of(gradient, part, before.tables[part.table].shape[1]) for part in self.lookups]
        with np.errstate(all="ignore"):
            tables = tuple(
                expect_table(case, _table_state(before, part.table), part, upstream, hyper, self.arithmetic)
                for part, upstream in zip(self.lookups, upstreams, strict=True)
            )
            weight_gradient = None
            if case.per_sample_weights is not None and case.per_sample_weights.gradient:
                weight_gradient = expect_weight_gradient(
                    case,
                    before.tables,
                    self.lookups,
                    tuple(upstreams),
                    problem.frozen,
                    len(self.batch.indices),
                    self.arithmetic,
                )
        return UpdateExpectation(self.call, before, tables, weight_gradient)

    def _warnings(self) -> tuple[int, int]:
        """Fewest and most warnings: one for each repaired index, at least one for malformed offsets.

        Not at most so many: FBGEMM's first bounds check counts a bag with each thread of a warp.
        """
        if self.problem.case.bounds_check is not BoundsCheck.WARNING:
            return 0, 0
        invalid = self.repaired.invalid
        if self.repaired.offsets_wrong:
            return max(invalid, 1), np.iinfo(np.int64).max
        return invalid, invalid + self.repaired.rowless


def _table_state(before: Snapshot, table: int) -> TableState:
    return TableState(
        before.tables[table],
        before.momentum1[table] if before.momentum1 else None,
        before.momentum2[table] if before.momentum2 else None,
    )
