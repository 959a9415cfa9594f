"""Backward with the optimizer: bounds of every named row and its state, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equivcheck.arithmetic import Arithmetic, Store, StoreRounding
from equivcheck.case import Case, Rounding
from equivcheck.formats import AnyArray, DType, Float64Array, widen
from equivcheck.oracle.expectation import Bounds, TableExpectation
from equivcheck.oracle.formulas import State, updated
from equivcheck.oracle.gradients import RowGradients, Upstream
from equivcheck.oracle.lookups import TableLookups
from equivcheck.oracle.optimizers import Hyper, update
from equivcheck.oracle.pooling import trusted
from equivcheck.oracle.roundoff import BoolArray, Interval, stored
from equivcheck.oracle.sparse import Int64Array, blocks

_STATE_STORE = Store()
"""States are fp32 like the arithmetic: their store is the last operation's rounding, to nearest."""


@dataclass(frozen=True)
class TableState:
    """One table before the update, with its moments; None where the optimizer has none."""

    rows: AnyArray
    momentum1: AnyArray | None
    momentum2: AnyArray | None


def expect_table(
    case: Case,
    state: TableState,
    lookups: TableLookups,
    upstream: Upstream,
    hyper: Hyper,
    arithmetic: Arithmetic,
) -> TableExpectation:
    """Bounds of the rows that `lookups` names."""
    gradients = RowGradients(case, lookups, upstream, arithmetic)
    touched, shape = lookups.touched, (len(lookups.touched), state.rows.shape[1])
    moment1, moment2 = (_columns(m, touched) for m in (state.momentum1, state.momentum2))
    store = table_store(case, arithmetic)
    stochastic = store.rounding is StoreRounding.STOCHASTIC
    rows = _Filled.of(shape, case.weights, keep_unrounded=stochastic)
    first = None if moment1 is None else _Filled.of(moment1.shape, DType.FP32)
    second = None if moment2 is None else _Filled.of(moment2.shape, DType.FP32)
    smallest = gradients.smallest()
    leading = slice(0, smallest.shape[1])
    shown = np.zeros_like(smallest)
    for start, stop in blocks(*shape):
        block = slice(start, stop)
        result = gradients.block(start, stop)
        before = State(
            widen(state.rows[touched[block]]),
            None if moment1 is None else moment1[block],
            None if moment2 is None else moment2[block],
        )
        with np.errstate(all="ignore"):
            after = update(
                hyper,
                arithmetic,
                before.rows,
                result.interval,
                result.undetermined,
                before.momentum1,
                before.momentum2,
            )
        truth = updated(hyper, before, result.value)
        poisoned = _poisoned(before, result.value)
        rows.put(block, truth.rows, after.rows, _unknown(truth.rows, after.undetermined, poisoned), store)
        shown[block] = after.gain[:, leading] * smallest[block]
        for filled, values, interval, undetermined in (
            (first, truth.momentum1, after.momentum1, after.undetermined1),
            (second, truth.momentum2, after.momentum2, after.undetermined2),
        ):
            if filled is not None and values is not None and interval is not None and undetermined is not None:
                filled.put(block, values, interval, _unknown(values, undetermined, poisoned), _STATE_STORE)
    return TableExpectation(
        touched=touched,
        rows=rows.bounds(shown),
        momentum1=None if first is None else first.bounds(_shown_moment(gradients, smallest, first.value.shape[1])),
        momentum2=None if second is None else second.bounds(_shown_moment(gradients, smallest, second.value.shape[1])),
    )


def table_store(case: Case, arithmetic: Arithmetic) -> Store:
    """How the new row is stored: stochastically where the case asks for it and storage is narrower than fp32."""
    if case.rounding is Rounding.STOCHASTIC and case.weights is not DType.FP32:
        declared = arithmetic.table_store
        return Store(StoreRounding.STOCHASTIC, declared.saturates, declared.flushes)
    return arithmetic.table_store


def _columns(moment: AnyArray | None, touched: Int64Array) -> Float64Array | None:
    if moment is None:
        return None
    values = widen(moment[touched])
    return values[:, None] if values.ndim == 1 else values


def _shown_moment(gradients: RowGradients, smallest: Float64Array, columns: int) -> Float64Array:
    """How much a moment changes at least where a term is lost: t^2, or of a row's mean, the largest t^2 / D."""
    square = np.where(np.isfinite(smallest), smallest, 0.0) ** 2
    if columns == 1:
        return np.asarray(square.max(axis=1, keepdims=True, initial=0.0) / gradients.upstream.values.shape[1])
    return square


def _poisoned(before: State, gradient: Float64Array) -> BoolArray:
    """(R, 1) rows with a NaN, or an infinite gradient or moment: a NaN of theirs is NaN in every algebraic form.

    A NaN without such an operand comes from 0/0, where another order of the gradient's sum may give no zero; or from an
    infinite weight, which decay meets as (1 - c) w or as w - c w.
    """
    bad = ~np.isfinite(gradient).all(axis=1, keepdims=True) | np.isnan(before.rows).any(axis=1, keepdims=True)
    for moment in (before.momentum1, before.momentum2):
        if moment is not None:
            bad |= ~np.isfinite(moment).all(axis=1, keepdims=True)
    return np.asarray(bad & ~np.isinf(before.rows).any(axis=1, keepdims=True))


def _unknown(truth: Float64Array, undetermined: BoolArray, poisoned: BoolArray) -> BoolArray:
    return undetermined & ~(np.isnan(truth) & poisoned)


@dataclass(frozen=True)
class _Filled:
    """Arrays of one tensor's bounds while blocks are put into them."""

    dtype: DType
    value: Float64Array
    low: Float64Array
    high: Float64Array
    undetermined: BoolArray
    unrounded: Interval | None

    @staticmethod
    def of(shape: tuple[int, ...], dtype: DType, *, keep_unrounded: bool = False) -> _Filled:
        value, low, high = np.empty(shape), np.empty(shape), np.empty(shape)
        unrounded = Interval(np.empty(shape), np.empty(shape)) if keep_unrounded else None
        return _Filled(dtype, value, low, high, np.empty(shape, bool), unrounded)

    def put(self, block: slice, truth: Float64Array, interval: Interval, undetermined: BoolArray, store: Store) -> None:
        """Store an interval. A truth that is not finite is met as such: operands were not finite, in every form."""
        certain = ~np.isfinite(truth)
        low, high = np.where(certain, truth, interval.low), np.where(certain, truth, interval.high)
        allowed = stored(Interval(low, high), self.dtype, store, DType.FP32)
        unclear = (np.isnan(allowed.low) | np.isnan(allowed.high)) & ~certain
        self.value[block], self.low[block], self.high[block] = truth, allowed.low, allowed.high
        self.undetermined[block] = undetermined | unclear
        if self.unrounded is not None:
            self.unrounded.low[block], self.unrounded.high[block] = low, high

    def bounds(self, shown: Float64Array) -> Bounds:
        allowed = Interval(self.low, self.high)
        shown = np.where(np.isnan(shown), np.inf, shown)  # no term, or none but zeros, times a gain of zero
        return Bounds(
            self.dtype,
            self.value,
            allowed,
            self.undetermined,
            trusted(self.value, allowed, shown),
            self.unrounded,
        )
