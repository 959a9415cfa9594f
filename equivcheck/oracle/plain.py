"""The contract once more, in plain loops: a copy to read, and to check the fast oracle with.

Values only, in fp64, without bounds. Everything here is as slow and as obvious as possible; the optimizers' formulas
are those of `equivcheck.oracle.formulas`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equivcheck.case import Pooling
from equivcheck.formats import AnyArray, Float64Array, widen
from equivcheck.oracle.formulas import State, updated
from equivcheck.oracle.optimizers import Hyper
from equivcheck.problem import Batch, Problem, Snapshot


@dataclass(frozen=True)
class PlainUpdate:
    """State after one backward: per table the new rows and moments by row number, and dL/dp of each lookup (N,)."""

    rows: tuple[dict[int, Float64Array], ...]
    momentum1: tuple[dict[int, Float64Array], ...]
    momentum2: tuple[dict[int, Float64Array], ...]
    weight_gradient: Float64Array


@dataclass(frozen=True)
class _Lookup:
    position: int
    row: int
    weight: float


@dataclass(frozen=True)
class _Bag:
    """A bag, or without pooling a lookup: what contributes, and what MEAN divides by."""

    lookups: list[_Lookup]
    length: int


def repaired_offsets(batch: Batch) -> list[int]:
    """Offsets clamped to 0 <= non-decreasing <= N, ending in N."""
    total, least, offsets = len(batch.indices), 0, []
    for given in batch.offsets:
        least = max(least, min(max(int(given), 0), total))
        offsets.append(least)
    offsets[-1] = total
    return offsets


def outputs(problem: Problem, batch: Batch, state: Snapshot) -> list[Float64Array]:
    """Output block of each feature: (bags, dim), or (lookups, dim) without pooling."""
    result = []
    for feature, table in enumerate(problem.feature_tables):
        rows = widen(state.tables[table])
        block = []
        for bag in _bags(problem, batch, feature):
            total = np.zeros(rows.shape[1])
            for lookup in bag.lookups:
                total = total + lookup.weight * rows[lookup.row]
            block.append(total / bag.length if problem.case.pooling is Pooling.MEAN and bag.length else total)
        result.append(np.asarray(block).reshape(len(block), rows.shape[1]))
    return result


def update(problem: Problem, batch: Batch, state: Snapshot, step: int) -> PlainUpdate:
    """One backward: each named row gets one update from its whole run; dL/dp from the weights before it."""
    hyper = Hyper(problem.case.optimizer, batch.learning_rate, problem.case.optimizer.step + step)
    weight_gradient = np.zeros(len(batch.indices))
    new: tuple[list[dict[int, Float64Array]], ...] = ([], [], [])
    for table, weights in enumerate(state.tables):
        rows = widen(weights)
        gradients: dict[int, Float64Array] = {}
        for feature, owner in enumerate(problem.feature_tables):
            if owner != table:
                continue
            for bag, upstream in zip(_bags(problem, batch, feature), _upstream(problem, batch, feature), strict=True):
                for lookup in bag.lookups:
                    divisor = bag.length if problem.case.pooling is Pooling.MEAN else 1
                    term = lookup.weight * upstream / divisor
                    gradients[lookup.row] = gradients.get(lookup.row, np.zeros(len(term))) + term
                    if not problem.frozen[feature]:
                        weight_gradient[lookup.position] = float(rows[lookup.row] @ upstream) / divisor
        for part in new:
            part.append({})
        for row, gradient in sorted(gradients.items()):
            before = State(rows[row][None], _moment(state.momentum1, table, row), _moment(state.momentum2, table, row))
            after = updated(hyper, before, gradient[None])
            for part, values in zip(new, (after.rows, after.momentum1, after.momentum2), strict=True):
                if values is not None:
                    part[table][row] = values[0]
    return PlainUpdate(tuple(new[0]), tuple(new[1]), tuple(new[2]), weight_gradient)


def _bags(problem: Problem, batch: Batch, feature: int) -> list[_Bag]:
    """Bags of a feature after bounds checking, in the order of the offsets."""
    offsets, first = repaired_offsets(batch), sum(batch.bags[:feature])
    rows = len(problem.initial.tables[problem.feature_tables[feature]])
    result = []
    for bag in range(first, first + batch.bags[feature]):
        positions = range(offsets[bag], offsets[bag + 1])
        if problem.case.pooling is Pooling.NONE:
            result += [_Bag(_contributing(batch, rows, [position]), 1) for position in positions]
        else:
            result.append(_Bag(_contributing(batch, rows, list(positions)), len(positions)))
    return result


def _contributing(batch: Batch, rows: int, positions: list[int]) -> list[_Lookup]:
    """Row 0 for an index out of bounds; nothing for -1, nor for any index into a table without rows."""
    result = []
    for position in positions:
        row = int(batch.indices[position])
        if rows == 0 or row == -1:
            continue
        weight = 1.0 if batch.per_sample_weights is None else float(batch.per_sample_weights[position])
        result.append(_Lookup(position, row if 0 <= row < rows else 0, weight))
    return result


def _upstream(problem: Problem, batch: Batch, feature: int) -> list[Float64Array]:
    """Gradient of each bag's output, (dim,): a block of columns; in a variable batch, flat and rank by rank."""
    gradient, dim = widen(batch.grad_output), problem.dims[feature]
    if problem.case.pooling is Pooling.NONE:
        offsets, first = repaired_offsets(batch), sum(batch.bags[:feature])
        return list(gradient[offsets[first] : offsets[first + batch.bags[feature]]])
    if batch.batch_sizes is None:
        column = sum(problem.dims[:feature])
        return [row[column : column + dim] for row in gradient]
    result, place = [], 0
    for rank in range(problem.case.ranks):
        for other, width in enumerate(problem.dims):
            for _ in range(batch.batch_sizes[other][rank]):
                if other == feature:
                    result.append(gradient[place : place + dim])
                place += width
    return result


def _moment(moments: tuple[AnyArray, ...], table: int, row: int) -> Float64Array | None:
    """A row's moment, (1, D) or (1, 1)."""
    return np.atleast_1d(widen(moments[table][row]))[None] if moments else None
