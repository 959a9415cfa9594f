"""Backward: G = P^T dY, the gradient of each named row from its whole run, and dL/dp of each lookup."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from equivcheck.arithmetic import Arithmetic
from equivcheck.case import Case, Pooling
from equivcheck.formats import AnyArray, DType, Float64Array, widen
from equivcheck.oracle.expectation import Bounds
from equivcheck.oracle.lookups import TableLookups
from equivcheck.oracle.pooling import smallest_terms, trusted
from equivcheck.oracle.roundoff import Interval, stored_sum
from equivcheck.oracle.sparse import Csr, Int64Array, blocks, segment_minimum
from equivcheck.oracle.sums import BoundedSums, Sums, bounded, certain_infinities, finite, row_quantum
from equivcheck.oracle.terms import Factor, TermErrors, largest_finite, term_errors


@dataclass(frozen=True)
class Upstream:
    """dY of one table's bags, (bags, dim) in fp64, with what is derived from it once."""

    values: Float64Array
    absolute: Float64Array
    quantum: Float64Array
    largest: Float64Array

    @staticmethod
    def of(blocks_by_feature: tuple[AnyArray, ...], lookups: TableLookups, dim: int) -> Upstream:
        """Stack the features that share the table."""
        parts = [widen(blocks_by_feature[feature]) for feature, _, _ in lookups.features]
        values = parts[0] if len(parts) == 1 else np.concatenate([np.zeros((0, dim)), *parts])
        absolute = np.abs(values)
        return Upstream(values, absolute, row_quantum(values), largest_finite(absolute))


class RowGradients:
    """G of one table, block by block over the rows that are named."""

    def __init__(self, case: Case, lookups: TableLookups, upstream: Upstream, arithmetic: Arithmetic) -> None:
        self.arithmetic, self.upstream = arithmetic, upstream
        mean = case.pooling is Pooling.MEAN
        length = np.maximum(lookups.length, 1)
        weight = given = lookups.weight
        if mean:
            weight = (1.0 if weight is None else weight) / length[lookups.bag]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(lookups.bag, minlength=lookups.bags))]).astype(np.int64)
        self.matrix, place = Csr(indptr, lookups.column, weight, len(lookups.touched)).transposed()

        bag = self.matrix.indices
        lengths = length[bag] if mean else None
        errors = term_errors(
            Factor(case.output, upstream.largest[bag], upstream.quantum[bag]),
            None if given is None else Factor.of(given[place], given_type(case)),
            lengths,
            arithmetic,
            arithmetic.gradient_rounding,
        )
        self.errors = errors.summed(self.matrix.indptr)
        # p dY may overflow before L divides it.
        unscaled = np.ones(self.matrix.rows)
        if given is not None and lengths is not None:
            unscaled = np.maximum(-segment_minimum(-lengths.astype(np.float64), self.matrix.indptr), 1.0)
        self.unscaled = np.where(self.errors.overflow, np.inf, unscaled)

    def block(self, start: int, stop: int) -> BoundedSums:
        """Intervals of G for named rows start..stop."""
        value, gauge = self.matrix.products(self.upstream.values, self.upstream.absolute, start, stop)
        sums = Sums(
            value=value,
            gauge=gauge,
            terms=self.matrix.counts[start:stop],
            errors=self.errors.block(start, stop),
            unscaled=self.unscaled[start:stop],
        )
        result = bounded(
            sums, self.arithmetic.gradient, self.arithmetic.accumulator, flushes=self.arithmetic.sum_flushes
        )
        return certain_infinities(result, partial(self._finite_gauge, start, stop), self.arithmetic.accumulator)

    def smallest(self) -> Float64Array:
        """Smallest |term| of each sum that is not zero, for the leading columns."""
        return smallest_terms(self.matrix, self.upstream.values)

    def _finite_gauge(self, start: int, stop: int) -> Float64Array:
        data = None if self.matrix.data is None else finite(self.matrix.data)
        matrix = Csr(self.matrix.indptr, self.matrix.indices, data, self.matrix.columns)
        absolute = finite(self.upstream.absolute)
        return matrix.products(absolute, absolute, start, stop)[1] * self.unscaled[start:stop, None]


def given_type(case: Case) -> DType:
    """Storage type of the per-sample weights."""
    assert case.per_sample_weights is not None
    return case.per_sample_weights.dtype


def expect_weight_gradient(
    case: Case,
    tables: tuple[AnyArray, ...],
    lookups: tuple[TableLookups, ...],
    upstreams: tuple[Upstream, ...],
    frozen: tuple[bool, ...],
    count: int,
    arithmetic: Arithmetic,
) -> Bounds:
    """dL/dp_i = <w[row_i], dY[bag of i]>, MEAN divided by the length, from the weights before the update: (N, 1).

    Zero for a lookup that contributes nothing, or whose feature is frozen.
    """
    assert case.per_sample_weights is not None
    dtype = case.per_sample_weights.dtype
    shape = (count, 1)
    value, low, high = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    undetermined, smallest = np.zeros(shape, bool), np.full(shape, np.inf)
    for table, part, upstream in zip(tables, lookups, upstreams, strict=True):
        rows = widen(table[part.touched])
        products = _Products(case, rows, part, upstream, arithmetic)
        live = _live(part, frozen)
        for start, stop in blocks(len(live), rows.shape[1]):
            which = live[start:stop]
            result, terms = products.block(which)
            interval = stored_sum(result.interval, dtype, arithmetic.weight_gradient_store, arithmetic.accumulator)
            place = part.position[which]
            value[place], low[place], high[place] = result.value, interval.low, interval.high
            undetermined[place], smallest[place] = result.undetermined, terms
    allowed = Interval(low, high)
    return Bounds(dtype, value, allowed, undetermined, trusted(value, allowed, smallest))


def _live(lookups: TableLookups, frozen: tuple[bool, ...]) -> Int64Array:
    live = np.ones(len(lookups.bag), bool)
    for feature, first, last in lookups.features:
        if frozen[feature]:
            live &= (lookups.bag < first) | (lookups.bag >= last)
    return np.flatnonzero(live).astype(np.int64)


class _Products:
    """Inner products of rows and gradients, lookup by lookup."""

    def __init__(
        self, case: Case, rows: Float64Array, lookups: TableLookups, upstream: Upstream, arithmetic: Arithmetic
    ) -> None:
        self.rows, self.lookups, self.upstream, self.arithmetic = rows, lookups, upstream, arithmetic
        self.case, self.mean = case, case.pooling is Pooling.MEAN
        self.largest, self.quantum = largest_finite(np.abs(rows)), row_quantum(rows)

    def block(self, which: Int64Array) -> tuple[BoundedSums, Float64Array]:
        """Sums of the lookups `which`, and their smallest |term| that is not zero."""
        column, bag = self.lookups.column[which], self.lookups.bag[which]
        length = np.maximum(self.lookups.length[bag], 1) if self.mean else np.ones(len(which), np.int64)
        scale = length[:, None].astype(np.float64)
        dim = self.rows.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            terms = self.rows[column] * self.upstream.values[bag]
            value = terms.sum(axis=1, keepdims=True) / scale
            sizes = np.abs(terms, out=terms)
            gauge = sizes.sum(axis=1, keepdims=True) / scale
            sums = Sums(
                value=value,
                gauge=gauge,
                terms=np.full(len(which), dim),
                errors=self._errors(column, bag, length),
                unscaled=length.astype(np.float64),
            )
            sums = replace(sums, unscaled=np.where(sums.errors.overflow, np.inf, sums.unscaled))
        result = bounded(
            sums, self.arithmetic.weight_gradient, self.arithmetic.accumulator, flushes=self.arithmetic.sum_flushes
        )
        result = certain_infinities(
            result, lambda: finite(sizes).sum(axis=1, keepdims=True), self.arithmetic.accumulator
        )
        nonzero = np.min(sizes, axis=1, initial=np.inf, where=sizes > 0)[:, None] / scale
        return result, nonzero

    def _errors(self, column: Int64Array, bag: Int64Array, length: Int64Array) -> TermErrors:
        """Errors of the sums: each has as many terms as the row has columns, all with the same bounds."""
        row = Factor(self.case.weights, self.largest[column], self.quantum[column])
        gradient = Factor(self.case.output, self.upstream.largest[bag], self.upstream.quantum[bag])
        errors = term_errors(row, gradient, length if self.mean else None, self.arithmetic)
        shape = column.shape
        return TermErrors(
            np.broadcast_to(errors.roundings, shape),
            np.broadcast_to(errors.lost, shape) * self.rows.shape[1],
            errors.quantum,
            np.broadcast_to(errors.vanishing, shape),
            np.broadcast_to(errors.overflow, shape),
        )
