"""Which lookups count, after bounds checking: the sparse matrix P of the contract, table by table.

P has a row for every bag of the features that share the table (without pooling: for every lookup) and a column for
every row of the table that is named. Its entries are the per-sample weights, duplicates kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equivcheck.case import BoundsCheck, Case, Pooling
from equivcheck.formats import Float64Array, widen
from equivcheck.problem import Batch, Problem

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Repair:
    """A batch's inputs with what bounds checking makes of them.

    Attributes
    ----------
    rows
        (N,) the row each lookup names, or -1 where it contributes nothing.
    indices, offsets
        The inputs as a repair in place would leave them.
    invalid, rowless, pruned
        Numbers of indices repaired to row 0, of lookups into tables without rows, and of indices -1.
    offsets_wrong
        Whether the offsets were malformed.
    """

    rows: Int64Array
    indices: Int64Array
    offsets: Int64Array
    invalid: int
    rowless: int
    pruned: int
    offsets_wrong: bool

    def must_raise(self, case: Case) -> bool:
        """FATAL refuses what the other modes repair."""
        return case.bounds_check is BoundsCheck.FATAL and bool(self.invalid or self.offsets_wrong)

    def may_raise(self, case: Case) -> bool:
        """An index of -1 may raise in every mode, and so may FATAL on a table without rows."""
        return bool(self.pruned) or (case.bounds_check is BoundsCheck.FATAL and bool(self.rowless))


@dataclass(frozen=True)
class TableLookups:
    """P of one table.

    Attributes
    ----------
    table
        Number of the table.
    touched
        (U,) rows that are named, ascending.
    column
        (n,) per contributing lookup, its row as a position in `touched`.
    bag
        (n,) per contributing lookup, its bag, counted over the features that share the table. Ascending.
    bags
        Number of bags.
    weight
        (n,) per-sample weights in fp64, or None.
    length
        (bags,) lookups of each bag, those that contribute nothing included: what MEAN divides by.
    position
        (n,) per contributing lookup, its place in the batch.
    features
        (feature, first bag, one past the last bag) of each feature that shares the table.
    """

    table: int
    touched: Int64Array
    column: Int64Array
    bag: Int64Array
    bags: int
    weight: Float64Array | None
    length: Int64Array
    position: Int64Array
    features: tuple[tuple[int, int, int], ...]


def repair(problem: Problem, batch: Batch) -> Repair:
    """Apply the contract's table of bounds checking.

    Offsets become the running maximum of their values clipped to [0, N], and the last becomes N.
    """
    raw_indices, raw_offsets = batch.indices.astype(np.int64), batch.offsets.astype(np.int64)
    total = len(raw_indices)
    offsets = np.maximum.accumulate(np.clip(raw_offsets, 0, total))
    offsets[-1] = total
    # The first offset may be wrong without a repair: lookups before it belong to no bag.
    offsets_wrong = bool((offsets != raw_offsets).any() or raw_offsets[0] != 0)

    edges = offsets[np.cumsum([0, *batch.bags])]
    rows_of_feature = np.asarray([len(problem.initial.tables[t]) for t in problem.feature_tables], np.int64)
    limit = np.full(total, -1, np.int64)  # lookups that belong to no bag have no table
    covered = np.repeat(rows_of_feature, np.diff(edges))
    limit[edges[0] : edges[-1]] = covered
    inside = limit >= 0
    rowless = inside & (limit == 0)
    pruned = inside & ~rowless & (raw_indices == -1)
    invalid = inside & ~rowless & ((raw_indices >= limit) | (raw_indices < -1))
    rows = np.where(invalid, 0, raw_indices)
    rows[~inside | rowless | pruned] = -1
    return Repair(
        rows=rows,
        indices=np.where(invalid | rowless, 0, raw_indices),
        offsets=offsets,
        invalid=int(invalid.sum()),
        rowless=int(rowless.sum()),
        pruned=int(pruned.sum()),
        offsets_wrong=offsets_wrong,
    )


def table_lookups(problem: Problem, batch: Batch, repaired: Repair) -> tuple[TableLookups, ...]:
    """P of every table."""
    first_bag = np.cumsum([0, *batch.bags])
    weights = None if batch.per_sample_weights is None else widen(batch.per_sample_weights)
    result = []
    for table in range(len(problem.initial.tables)):
        positions, bags, lengths, features, count = [], [], [], [], 0
        for feature, owner in enumerate(problem.feature_tables):
            if owner != table:
                continue
            offsets = repaired.offsets[first_bag[feature] : first_bag[feature + 1] + 1]
            start, stop = int(offsets[0]), int(offsets[-1])
            sizes = np.diff(offsets)
            if problem.case.pooling is Pooling.NONE:
                sizes = np.ones(stop - start, np.int64)
            positions.append(np.arange(start, stop, dtype=np.int64))
            bags.append(np.repeat(np.arange(count, count + len(sizes), dtype=np.int64), sizes))
            lengths.append(sizes)
            features.append((feature, count, count + len(sizes)))
            count += len(sizes)
        position, bag, length = (_joined(parts) for parts in (positions, bags, lengths))
        counts = repaired.rows[position] >= 0
        if not counts.all():
            position, bag = position[counts], bag[counts]
        touched, column = _compact(repaired.rows[position], len(problem.initial.tables[table]))
        weight = None if weights is None else weights[position]
        result.append(TableLookups(table, touched, column, bag, count, weight, length, position, tuple(features)))
    return tuple(result)


def _joined(parts: list[Int64Array]) -> Int64Array:
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])


def _compact(rows: Int64Array, table_rows: int) -> tuple[Int64Array, Int64Array]:
    """Distinct rows, ascending, and each lookup's position among them.

    A mark per row of the table where that is small beside the lookups, since it is four times as fast as a sort.
    """
    if table_rows > 16 * len(rows) + 1024:
        touched, column = np.unique(rows, return_inverse=True)
        return touched, column.astype(np.int64)
    marked = np.zeros(table_rows, bool)
    marked[rows] = True
    touched = np.flatnonzero(marked).astype(np.int64)
    place = np.zeros(table_rows, np.int64)
    place[touched] = np.arange(len(touched))
    return touched, place[rows]
