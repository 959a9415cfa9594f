"""The fewest bytes that a forward or backward moves between a device's memory and its cores.

Fewest means that every distinct row is read once a phase, however many lookups name it; everything else is read or
written exactly once. A kernel cannot do with less where its caches are cold, and they are flushed before each
measurement. What a system moves beyond that (sorting, workspaces, rows read again) is its own affair: it lowers its
share of the bandwidth. The bytes by lookups, which count a row each time it is named, are given beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from equivcheck.bench.point import Point, Setting

_INDEX = 8
"""Bytes of an index, and of an offset: int64."""
_PER_SAMPLE_WEIGHT = 4


@dataclass(frozen=True)
class Bytes:
    """Fewest bytes, and bytes by lookups."""

    fewest: int
    by_lookups: int

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.fewest + other.fewest, self.by_lookups + other.by_lookups)


@dataclass(frozen=True)
class Counts:
    """Of one batch: lookups of each table, and how many distinct rows they name."""

    lookups: Sequence[int]
    distinct: Sequence[int]


def forward(point: Point, setting: Setting, counts: Counts) -> Bytes:
    """Rows + indices + offsets + per-sample weights, read; output, written.

    sum_t rows_t D_t w  +  8 N  +  8 (T B + 1)  +  4 N if weighted  +  B sum_t D_t o, where w and o are the bytes of an
    element of the tables and of the output, N all lookups, and rows_t the distinct rows, or the lookups.
    """
    return _both(point, setting, counts, setting.weights.numpy.itemsize, 0)


def backward(point: Point, setting: Setting, counts: Counts) -> Bytes:
    """Output gradient, indices, offsets, per-sample weights, read; rows and their states, read and written.

    As `forward`, with the output's gradient for the output, and 2 (D_t w + s_t) for D_t w, where s_t are the bytes of
    a row's optimizer state.
    """
    each = 2 * (setting.weights.numpy.itemsize + setting.element_state_bytes)
    return _both(point, setting, counts, each, 2 * setting.row_state_bytes)


def _both(point: Point, setting: Setting, counts: Counts, element: int, row: int) -> Bytes:
    lookups = sum(counts.lookups)
    inputs = lookups * (_INDEX + _PER_SAMPLE_WEIGHT * setting.weighted) + (len(point.rows) * point.batch + 1) * _INDEX
    dense = point.batch * sum(point.dims) * setting.output.numpy.itemsize
    per_row = [dim * element + row for dim in point.dims]

    def rows(named: Sequence[int]) -> int:
        return sum(count * size for count, size in zip(named, per_row, strict=True))

    return Bytes(rows(counts.distinct) + inputs + dense, rows(counts.lookups) + inputs + dense)
