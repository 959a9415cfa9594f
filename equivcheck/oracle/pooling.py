"""Forward: Y = P W, and the bound of every output element."""

from __future__ import annotations

from functools import partial

import numpy as np

from equivcheck.arithmetic import Arithmetic, MeanDivision
from equivcheck.case import Pooling
from equivcheck.formats import AnyArray, DType, Float64Array, lowest_bit, widen
from equivcheck.oracle.expectation import Bounds
from equivcheck.oracle.lookups import TableLookups
from equivcheck.oracle.roundoff import BoolArray, Interval, stored
from equivcheck.oracle.sparse import Csr, blocks, segment_minimum, segment_sum
from equivcheck.oracle.sums import Sums, bounded, certain_infinities, finite, power_of_two, product_quantum, row_quantum
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
        self.exact_scale = power_of_two(length) if self.mean else np.ones(lookups.bags, bool)
        self.row_quantum = row_quantum(rows)
        info = arithmetic.accumulator.info
        self.least = info.smallest_normal if arithmetic.sum_flushes else info.smallest_subnormal
        self.roundings, self.underflow = term_errors(problem, lookups, matrix, self.absolute_rows, arithmetic)

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
            interval = result.interval
            if dtype is not self.arithmetic.accumulator:  # else the accumulator is stored as it is
                interval = stored(interval, dtype, self.arithmetic.output_store, self.arithmetic.accumulator)
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
        matrix, scale = self.matrix, self.scale[start:stop]
        first, last = matrix.indptr[start], matrix.indptr[stop]
        quanta = self.row_quantum[matrix.indices[first:last]]
        if matrix.data is not None:
            weights = matrix.data[first:last]
            quanta = product_quantum(quanta, weights)
            if self.mean:  # p/L may be rounded before it meets the row
                divided = lowest_bit(weights) / np.repeat(scale, matrix.counts[start:stop])
                quanta = np.where(divided >= self.least, quanta, 0.0)
        quantum = segment_minimum(quanta, matrix.indptr[start : stop + 1] - first)
        value, gauge = matrix.products(self.rows, self.absolute_rows, start, stop)
        with np.errstate(over="ignore", invalid="ignore"):
            return Sums(
                value=value / scale[:, None] if self.mean else value,
                gauge=gauge / scale[:, None] if self.mean else gauge,
                terms=matrix.counts[start:stop],
                quantum=np.where(self.exact_scale[start:stop], quantum / scale, 0.0),
                roundings=self.roundings[start:stop],
                underflow=self.underflow[start:stop],
                unscaled=scale,
            )


def term_errors(
    problem: Problem, lookups: TableLookups, matrix: Csr, absolute: Float64Array, arithmetic: Arithmetic
) -> tuple[Float64Array, Float64Array]:
    """Per bag: roundings of each term or of the scaling, and what underflow may lose.

    A product is one rounding unless its factors' bits fit the accumulator (then it is exact and cannot underflow
    either, except with bf16). MEAN costs two (reciprocal and product) or one (division), none where the length is a
    power of two; with weights, p/L may be rounded before it meets the row, which then costs the product its exactness.
    """
    case, info = problem.case, arithmetic.accumulator.info
    terms = matrix.counts.astype(np.float64)
    weighted = case.per_sample_weights is not None
    roundings = np.zeros(matrix.rows)
    underflow = np.zeros(matrix.rows)
    largest = np.max(absolute, axis=1, initial=0.0, where=np.isfinite(absolute))
    if case.per_sample_weights is not None:
        bits = case.per_sample_weights.dtype.info.precision + case.weights.info.precision
        roundings += 1.0 if bits > info.precision else 0.0
        underflow += terms * info.smallest_subnormal / 2
    if case.pooling is Pooling.MEAN:
        inexact = ~power_of_two(np.maximum(lookups.length, 1))
        division = 1.0 if arithmetic.mean_division is MeanDivision.DIVISION else 2.0
        roundings[inexact] = division + (1.0 if weighted else 0.0)
        underflow += info.smallest_subnormal * (terms + 1)
        if matrix.data is not None:
            factors = finite(np.abs(matrix.data)) + largest[matrix.indices]
            underflow += info.smallest_subnormal / 2 * segment_sum(factors, matrix.indptr)
    if arithmetic.sum_flushes:
        small = info.smallest_normal
        underflow += 2 * small * (terms + 1)
        weights = np.ones(len(matrix.indices)) if matrix.data is None else finite(np.abs(matrix.data))
        if ((absolute > 0) & (absolute < small)).any():
            underflow += small * segment_sum(weights, matrix.indptr)
        if ((weights > 0) & (weights < small)).any():
            underflow += small * segment_sum(largest[matrix.indices], matrix.indptr)
    return roundings, underflow


def smallest_terms(matrix: Csr, dense: Float64Array) -> Float64Array:
    """Smallest |term| that is not zero, for the leading columns: (rows, columns) of which TRUST_ELEMENTS are made."""
    columns = max(1, min(dense.shape[1], TRUST_ELEMENTS // max(len(matrix.indices), 1)))
    terms = np.abs(dense[:, :columns])[matrix.indices]
    if matrix.data is not None:
        terms = terms * np.abs(matrix.data)[:, None]
    return segment_minimum(np.where(terms > 0, terms, np.inf), matrix.indptr)


def trusted(value: Float64Array, allowed: Interval, smallest: Float64Array) -> BoolArray:
    """Whether a lost lookup would show, on the leading columns: exact, or a bound below the smallest |term|."""
    columns = smallest.shape[1]
    low, high = allowed.low[:, :columns], allowed.high[:, :columns]
    with np.errstate(invalid="ignore"):
        bound = np.maximum(high - value[:, :columns], value[:, :columns] - low)
        # A value that is certainly NaN or infinite is judged as such, whatever its terms.
        return np.asarray((low == high) | np.isnan(low) | (bound < smallest))
