"""Backward: G = P^T dY, the gradient of each named row from its whole run, and dL/dp of each lookup."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from equivcheck.arithmetic import Arithmetic, MeanDivision
from equivcheck.case import Case, Pooling
from equivcheck.formats import AnyArray, Float64Array, lowest_bit, widen
from equivcheck.oracle.expectation import Bounds
from equivcheck.oracle.lookups import TableLookups
from equivcheck.oracle.pooling import smallest_terms, trusted
from equivcheck.oracle.roundoff import BoolArray, Interval, stored
from equivcheck.oracle.sparse import Csr, Int64Array, blocks, segment_minimum, segment_sum
from equivcheck.oracle.sums import (
    BoundedSums,
    Sums,
    bounded,
    certain_infinities,
    finite,
    power_of_two,
    product_quantum,
    row_quantum,
)


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
        largest = np.max(absolute, axis=1, initial=0.0, where=np.isfinite(absolute))
        return Upstream(values, absolute, row_quantum(values), largest)


class RowGradients:
    """G of one table, block by block over the rows that are named."""

    def __init__(self, case: Case, lookups: TableLookups, upstream: Upstream, arithmetic: Arithmetic) -> None:
        self.arithmetic, self.upstream = arithmetic, upstream
        mean = case.pooling is Pooling.MEAN
        length = np.maximum(lookups.length, 1)
        weight = lookups.weight
        if mean:
            weight = (1.0 if weight is None else weight) / length[lookups.bag]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(lookups.bag, minlength=lookups.bags))]).astype(np.int64)
        self.matrix, place = Csr(indptr, lookups.column, weight, len(lookups.touched)).transposed()

        exact_scale = power_of_two(length) if mean else np.ones(lookups.bags, bool)
        bag = self.matrix.indices
        quanta = np.where(exact_scale, upstream.quantum, 0.0)[bag]
        if mean:
            quanta = _divided(quanta, length[bag], arithmetic)
        if lookups.weight is not None:
            given_weights = lookups.weight[place]
            quanta = product_quantum(quanta, given_weights)
            if mean:
                quanta = np.where(_divided(lowest_bit(given_weights), length[bag], arithmetic) > 0, quanta, 0.0)
        self.quantum = segment_minimum(quanta, self.matrix.indptr)
        given = np.ones(len(bag)) if lookups.weight is None else finite(np.abs(lookups.weight[place]))
        self.roundings, self.underflow = _term_errors(case, self.matrix, given, exact_scale, upstream, arithmetic)

    def block(self, start: int, stop: int) -> BoundedSums:
        """Intervals of G for named rows start..stop."""
        value, gauge = self.matrix.products(self.upstream.values, self.upstream.absolute, start, stop)
        sums = Sums(
            value=value,
            gauge=gauge,
            terms=self.matrix.counts[start:stop],
            quantum=self.quantum[start:stop],
            roundings=self.roundings[start:stop],
            underflow=self.underflow[start:stop],
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
        return matrix.products(absolute, absolute, start, stop)[1]


def _divided(quantum: Float64Array, length: Int64Array, arithmetic: Arithmetic) -> Float64Array:
    """Quantum after a division by the length that a kernel may do first; 0 where it would round a subnormal."""
    info = arithmetic.accumulator.info
    least = info.smallest_normal if arithmetic.sum_flushes else info.smallest_subnormal
    return np.where(quantum / length >= least, quantum / length, 0.0)


def _term_errors(
    case: Case,
    matrix: Csr,
    factor: Float64Array,
    exact_scale: BoolArray,
    upstream: Upstream,
    arithmetic: Arithmetic,
) -> tuple[Float64Array, Float64Array]:
    """Per run: the most roundings of one of its terms, and what underflow may lose. As for pooling, term by term.

    `factor` are |p| before MEAN divides them, since dY/L may be rounded before it meets p.
    """
    info = arithmetic.accumulator.info
    bag = matrix.indices
    per_term = np.zeros(len(bag))
    lost = np.zeros(len(bag))
    if case.per_sample_weights is not None:
        bits = case.per_sample_weights.dtype.info.precision + case.output.info.precision
        per_term += 1.0 if bits > info.precision else 0.0
        lost += info.smallest_subnormal / 2
    if case.pooling is Pooling.MEAN:
        division = 1.0 if arithmetic.mean_division is MeanDivision.DIVISION else 2.0
        per_term[~exact_scale[bag]] = division + (1.0 if case.per_sample_weights is not None else 0.0)
        # The weight, the gradient, or their product may underflow when it is divided, and meet the other factor then.
        lost += info.smallest_subnormal / 2 * (2 + factor + upstream.largest[bag])
    if arithmetic.gradient_rounding is not None:
        narrow = arithmetic.gradient_rounding.info
        per_term += narrow.unit_roundoff / info.unit_roundoff * (1 + 2 * narrow.unit_roundoff)
        lost += narrow.smallest_subnormal / 2 * np.maximum(factor, 1.0)
    if arithmetic.sum_flushes:
        small = info.smallest_normal
        lost += 2 * small * (1 + factor + (upstream.largest[bag] if case.per_sample_weights is not None else 0.0))
    roundings = -segment_minimum(-per_term, matrix.indptr)
    return np.maximum(roundings, 0.0), segment_sum(lost, matrix.indptr)


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
            interval = result.interval
            if dtype is not arithmetic.accumulator:
                interval = stored(interval, dtype, arithmetic.output_store, arithmetic.accumulator)
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
        self.absolute = np.abs(rows)
        self.quantum = row_quantum(rows)
        self.mean = case.pooling is Pooling.MEAN
        bits = case.weights.info.precision + case.output.info.precision
        self.rounded_products = 1.0 if bits > arithmetic.accumulator.info.precision else 0.0

    def block(self, which: Int64Array) -> tuple[BoundedSums, Float64Array]:
        """Sums of the lookups `which`, and their smallest |term| that is not zero."""
        info = self.arithmetic.accumulator.info
        column, bag = self.lookups.column[which], self.lookups.bag[which]
        length = np.maximum(self.lookups.length[bag], 1) if self.mean else np.ones(len(which), np.int64)
        exact_scale = power_of_two(length)
        scale = length[:, None].astype(np.float64)
        dim = self.rows.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            terms = self.rows[column] * self.upstream.values[bag]
            value = terms.sum(axis=1, keepdims=True) / scale
            sizes = np.abs(terms, out=terms)
            gauge = sizes.sum(axis=1, keepdims=True) / scale
            division = 1.0 if self.arithmetic.mean_division is MeanDivision.DIVISION else 2.0
            underflow = np.full(len(which), info.smallest_subnormal * dim)
            if self.mean:  # dY/L may be rounded before it meets the row
                underflow += info.smallest_subnormal / 2 * finite(self.absolute[column]).sum(axis=1)
            if self.arithmetic.sum_flushes:
                largest = np.max(self.absolute[column], axis=1, initial=0.0) + self.upstream.largest[bag]
                underflow += 2 * info.smallest_normal * dim * (1 + largest)
            sums = Sums(
                value=value,
                gauge=gauge,
                terms=np.full(len(which), dim),
                quantum=np.where(exact_scale, self._quantum(column, bag, length), 0.0),
                roundings=self.rounded_products + np.where(exact_scale, 0.0, division),
                underflow=underflow,
                unscaled=length.astype(np.float64),
            )
        result = bounded(
            sums, self.arithmetic.weight_gradient, self.arithmetic.accumulator, flushes=self.arithmetic.sum_flushes
        )
        result = certain_infinities(
            result, lambda: finite(sizes).sum(axis=1, keepdims=True), self.arithmetic.accumulator
        )
        nonzero = np.min(sizes, axis=1, initial=np.inf, where=sizes > 0)[:, None] / scale
        return result, nonzero

    def _quantum(self, column: Int64Array, bag: Int64Array, length: Int64Array) -> Float64Array:
        upstream = self.upstream.quantum[bag]
        return self.quantum[column] * (_divided(upstream, length, self.arithmetic) if self.mean else upstream)
