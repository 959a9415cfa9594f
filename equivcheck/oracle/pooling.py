"""Forward: Y = P W, and the bound of every output element."""

from __future__ import annotations

from functools import partial

import numpy as np

from equivcheck.arithmetic import Arithmetic
from equivcheck.case import Pooling
from equivcheck.formats import AnyArray, DType, Float64Array, widen
from equivcheck.oracle.expectation import Bounds
from equivcheck.oracle.lookups import TableLookups
from equivcheck.oracle.roundoff import BoolArray, Interval, stored_sum
from equivcheck.oracle.sparse import Csr, blocks, segment_minimum
from equivcheck.oracle.sums import Sums, bounded, certain_infinities, finite, row_quantum
from equivcheck.oracle.terms import Factor, largest_finite, term_errors
from equivcheck.problem import Problem

TRUST_ELEMENTS = 2**18
"""Lookup-elements on which trust is measured: all of a small case, the leading columns of a large one."""


def expect_outputs(
    problem: Problem, table: AnyArray, lookups: TableLookups, arithmetic: Arithmetic
) -> dict[int, Bounds]:
    """Bounds of the output block of each feature that shares the table: feature -> (bags, dim)."""
    case = problem.case
    matrix = Csr(
        np.concatenate([[0], np.cumsum(np.bincount(lookups.bag, minlength=lookups.bags))]).astype(np.int64),
        lookups.column,
        lookups.weight,
        len(lookups.touched),
    )
    rows = widen(table[lookups.touched])
    bounds = _Pooled(problem, lookups, matrix, rows, arithmetic).bounds(case.output)
    return {
        feature: Bounds(
            dtype=case.output,
            value=bounds.value[first:last],
            allowed=bounds.allowed[first:last],
            undetermined=bounds.undetermined[first:last],
            trusted=bounds.trusted[first:last],
        )
        for feature, first, last in lookups.features
    }


class _Pooled:
    """The pooled sums of one table."""

    def __init__(
        self, problem: Problem, lookups: TableLookups, matrix: Csr, rows: Float64Array, arithmetic: Arithmetic
    ) -> None:
        self.problem, self.lookups, self.matrix, self.rows = problem, lookups, matrix, rows
        self.arithmetic = arithmetic
        self.absolute_rows = np.abs(rows)
        self.mean = problem.case.pooling is Pooling.MEAN
        length = np.maximum(lookups.length, 1)
        self.scale = length.astype(np.float64) if self.mean else np.ones(lookups.bags)
        spec, largest = problem.case.per_sample_weights, largest_finite(self.absolute_rows)
        row = Factor(problem.case.weights, largest[lookups.column], row_quantum(rows)[lookups.column])
        weight = None if spec is None or lookups.weight is None else Factor.of(lookups.weight, spec.dtype)
        lengths = length[lookups.bag] if self.mean else None
        self.errors = term_errors(row, weight, lengths, arithmetic).summed(matrix.indptr)
        self.unscaled = np.where(self.errors.overflow, np.inf, self.scale)

    def bounds(self, dtype: DType) -> Bounds:
        """Everything, block by block."""
        shape = (self.lookups.bags, self.rows.shape[1])
        value, low, high = np.empty(shape), np.empty(shape), np.empty(shape)
        undetermined = np.empty(shape, bool)
        for start, stop in blocks(*shape):
            sums = self._sums(start, stop)
            result = bounded(
                sums, self.arithmetic.pooling, self.arithmetic.accumulator, flushes=self.arithmetic.sum_flushes
            )
            result = certain_infinities(result, partial(self._finite_gauge, start, stop), self.arithmetic.accumulator)
            interval = stored_sum(result.interval, dtype, self.arithmetic.output_store, self.arithmetic.accumulator)
            value[start:stop], low[start:stop], high[start:stop] = result.value, interval.low, interval.high
            undetermined[start:stop] = result.undetermined
        allowed = Interval(low, high)
        smallest = smallest_terms(self.matrix, self.rows) / self.scale[:, None]
        return Bounds(dtype, value, allowed, undetermined, trusted(value, allowed, smallest))

    def _finite_gauge(self, start: int, stop: int) -> Float64Array:
        data = None if self.matrix.data is None else finite(self.matrix.data)
        matrix = Csr(self.matrix.indptr, self.matrix.indices, data, self.matrix.columns)
        rows = finite(self.absolute_rows)
        return matrix.products(rows, rows, start, stop)[1]

    def _sums(self, start: int, stop: int) -> Sums:
        matrix, scale, errors = self.matrix, self.scale[start:stop], self.errors.block(start, stop)
        value, gauge = matrix.products(self.rows, self.absolute_rows, start, stop)
        with np.errstate(over="ignore", invalid="ignore"):
            return Sums(
                value=value / scale[:, None] if self.mean else value,
                gauge=gauge / scale[:, None] if self.mean else gauge,
                terms=matrix.counts[start:stop],
                errors=errors,
                unscaled=self.unscaled[start:stop],
            )


def smallest_terms(matrix: Csr, dense: Float64Array) -> Float64Array:
    """Smallest |term| that is not zero, for the leading columns: (rows, columns) of which TRUST_ELEMENTS are made."""
    columns = max(1, min(dense.shape[1], TRUST_ELEMENTS // max(len(matrix.indices), 1)))
    terms = np.abs(dense[:, :columns])[matrix.indices]
    if matrix.data is not None:
        terms = terms * np.abs(matrix.data)[:, None]
    return segment_minimum(np.where(terms > 0, terms, np.inf), matrix.indptr)


def trusted(value: Float64Array, allowed: Interval, smallest: Float64Array) -> BoolArray:
    """Whether a lost lookup would show, on the leading columns: the bound is below the smallest |term|.

    That a single stored value is allowed is not enough: in 16 bits the sum without a small term may be stored as the
    same. The bound is the distance from the truth, so that it holds what the store itself rounds away.
    """
    value = value[:, : smallest.shape[1]]
    low, high = (end[:, : smallest.shape[1]] for end in (allowed.low, allowed.high))
    with np.errstate(invalid="ignore"):
        bound = np.maximum(high - value, value - low)
        # A value that is certainly NaN or infinite is judged as such, whatever its terms.
        return np.asarray(~np.isfinite(value) | (bound < smallest))
