"""Where everything lies: tables in one buffer, and bags in the output.

All tables share one flat buffer, so that one launch reaches every table through one pointer. Rows are numbered through
all tables, elements too; both numbers are 64-bit, since tables together pass 2^31 elements easily. An element's number
also finds its element-wise optimizer state, a row's number its row-wise state and its place in the sort of `transpose`.
Narrow tables are numbered before wide ones: runs of rows of like width then stand together.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64
"""Elements: tables start at multiples of it, so that rows of the usual widths can be loaded in 16-byte pieces."""
NARROW = 32
"""Columns up to which tables are of one class of width: a warp has as many threads."""
VECTOR = 8
"""Elements that the compiler may load at once: eight of 16 bits are 16 bytes, the widest load of a GPU's thread."""


class TablePointers(NamedTuple):
    """As kernels take it: (tables,) int64, by rising `row_base`."""

    dim: Tensor
    row_base: Tensor
    element_base: Tensor


class FeaturePointers(NamedTuple):
    """As kernels take it: (features,) int64, of each feature's table and of the feature itself."""

    dim: Tensor
    rows: Tensor
    row_base: Tensor
    element_base: Tensor


class BagPointers(NamedTuple):
    """As kernels take it: (bags,) each; lookups `begin` to `end` (excluded) are a bag's."""

    begin: Tensor
    end: Tensor
    feature: Tensor
    output: Tensor


@dataclass(frozen=True)
class TableLayout:
    """Tables in their buffer.

    Attributes
    ----------
    shapes
        (rows, dim) of each table.
    row_bases, element_bases
        Number of each table's first row and first element.
    rows, elements
        How many rows and elements there are numbers for: the sizes of the buffers.
    """

    shapes: tuple[tuple[int, int], ...]
    row_bases: tuple[int, ...]
    element_bases: tuple[int, ...]
    rows: int
    elements: int

    @classmethod
    def build(cls, shapes: Sequence[tuple[int, int]], spacing: int = 0) -> TableLayout:
        """Place tables one behind another, with `spacing` rows that belong to nobody before and after each."""
        row = element = 0
        row_bases, element_bases = [0] * len(shapes), [0] * len(shapes)
        for table in sorted(range(len(shapes)), key=lambda table: width_class(shapes[table][1])):
            rows, dim = shapes[table]
            row += spacing
            element = _round_up(element + spacing * dim)
            row_bases[table] = row
            element_bases[table] = element
            row += rows
            element += rows * dim
            row += spacing
            element += spacing * dim
        return cls(tuple(shapes), tuple(row_bases), tuple(element_bases), row, _round_up(element))

    @cached_property
    def widest(self) -> int:
        """Largest dim."""
        return max(dim for _, dim in self.shapes)

    @cached_property
    def width_classes(self) -> tuple[tuple[int, int], ...]:
        """(widest dim, first row's number) of each class of tables of like width, in the order of their rows."""
        classes: dict[int, tuple[int, int]] = {}
        for (_, dim), row in zip(self.shapes, self.row_bases, strict=True):
            widest, first = classes.get(width_class(dim), (dim, row))
            classes[width_class(dim)] = (max(widest, dim), min(first, row))
        return tuple(classes[key] for key in sorted(classes))

    @cached_property
    def vector(self) -> int:
        """Elements by which every row's start and every dim can be divided: what loads may rely on."""
        return math.gcd(VECTOR, *(dim for _, dim in self.shapes))

    def rows_of(self, buffer: Tensor, table: int) -> Tensor:
        """The (rows,) view of a table in a buffer with one value a row."""
        start = self.row_bases[table]
        return buffer[start : start + self.shapes[table][0]]

    def elements_of(self, buffer: Tensor, table: int) -> Tensor:
        """The (rows, dim) view of a table in a buffer with one value an element."""
        rows, dim = self.shapes[table]
        start = self.element_bases[table]
        return buffer[start : start + rows * dim].view(rows, dim)


class FeatureLayout:
    """What kernels look up by feature, as int64 tensors (features,) on the device: its table's numbers, and columns.

    `dims`, `rows`, `row_bases`, `element_bases` are those of the feature's table; `columns` is where the feature's
    block starts in a row of the output.
    """

    def __init__(self, tables: TableLayout, feature_tables: Sequence[int], device: torch.device) -> None:
        self.tables = tables
        self.feature_tables = tuple(feature_tables)
        self.widths = tuple(tables.shapes[t][1] for t in self.feature_tables)
        self.total_width = sum(self.widths)

        def column(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        self.dims = column(self.widths)
        self.rows = column([tables.shapes[t][0] for t in self.feature_tables])
        self.row_bases = column([tables.row_bases[t] for t in self.feature_tables])
        self.element_bases = column([tables.element_bases[t] for t in self.feature_tables])
        self.columns = torch.cumsum(self.dims, 0) - self.dims
        # A table without rows has the number of the next one's first row, and stands before it.
        by_row = sorted(range(len(tables.shapes)), key=lambda table: (tables.row_bases[table], tables.shapes[table][0]))
        self.table_pointers = TablePointers(
            column([tables.shapes[t][1] for t in by_row]),
            column([tables.row_bases[t] for t in by_row]),
            column([tables.element_bases[t] for t in by_row]),
        )
        edges = [0, *(first for _, first in tables.width_classes[1:]), tables.rows]
        self.class_rows = column(edges)
        """(classes + 1,): rows of class c have numbers from `class_rows[c]` up to the next, excluded."""
        self.rows_of_classes = tuple(np.diff(edges).tolist())

    def __len__(self) -> int:
        return len(self.feature_tables)

    @property
    def pointers(self) -> FeaturePointers:
        """What kernels take."""
        return FeaturePointers(self.dims, self.rows, self.row_bases, self.element_bases)


@dataclass(frozen=True)
class Segment:
    """Consecutive bags of one feature whose outputs are evenly spaced: `stride` elements, from element `output`."""

    feature: int
    bag: int
    bags: int
    output: int
    stride: int


@dataclass(frozen=True)
class BagPlaces:
    """Where bags belong, for one shape of batch: (bags,) tensors, feature-major like the offsets.

    `feature` (int32) is each bag's feature; `output` (int64) the element of the flat output where its columns start.
    Feature f's bags are `first[f]` to `first[f + 1]`, a tensor (features + 1,); no feature has more than `most`.
    `segments` say the same on the host. Where bags are single lookups (`unpooled`), only `feature` knows whose.
    `lanes` is kept by `lanes_of`.
    """

    feature: Tensor
    output: Tensor
    output_shape: tuple[int, ...]
    first: Tensor
    most: int
    segments: tuple[Segment, ...]
    is_unpooled: bool = False
    lanes: dict[Hashable, Any] = field(default_factory=dict, repr=False)


def fixed_batch(features: FeatureLayout, batch_size: int) -> BagPlaces:
    """Bags of a fixed batch: bag (f, b) goes to row b, columns of f, of a (batch size, sum of dims) output."""
    device = features.dims.device
    feature = torch.arange(len(features), device=device, dtype=torch.int32)
    sample = torch.arange(batch_size, device=device)
    output = features.columns[:, None] + sample[None, :] * features.total_width
    columns = np.cumsum([0, *features.widths])
    return BagPlaces(
        feature.repeat_interleave(batch_size),
        output.reshape(-1),
        (batch_size, features.total_width),
        torch.arange(len(features) + 1, device=device) * batch_size,
        batch_size,
        tuple(
            Segment(f, f * batch_size, batch_size, int(columns[f]), features.total_width) for f in range(len(features))
        ),
    )


def variable_batch(features: FeatureLayout, sizes: Sequence[Sequence[int]]) -> BagPlaces:
    """Bags of a variable batch, `sizes[feature][rank]` of each: the output is flat and rank-major.

    For each rank, each feature, each sample: the feature's columns.
    """
    device = features.dims.device
    counts = np.asarray(sizes, np.int64).reshape(len(features), -1)  # (features, ranks)
    dims = np.asarray(features.widths, np.int64)[:, None]
    blocks = (counts * dims).T  # (ranks, features), in the output's order
    starts = (np.cumsum(blocks) - blocks.reshape(-1)).reshape(blocks.shape).T  # (features, ranks), in bag order
    bags = counts.reshape(-1)
    first = np.cumsum(bags) - bags
    sample = np.arange(bags.sum()) - np.repeat(first, bags)
    feature = np.repeat(np.arange(len(features)), counts.sum(axis=1))
    output = np.repeat(starts.reshape(-1), bags) + sample * dims[feature, 0]
    places = zip(first.tolist(), bags.tolist(), starts.reshape(-1).tolist(), strict=True)
    of_feature = np.repeat(np.arange(len(features)), counts.shape[1]).tolist()
    return BagPlaces(
        torch.from_numpy(feature.astype(np.int32)).to(device),
        torch.from_numpy(output).to(device),
        (int(blocks.sum()),),
        torch.from_numpy(np.cumsum([0, *counts.sum(axis=1)])).to(device),
        int(counts.sum(axis=1).max()),
        tuple(Segment(f, *place, features.widths[f]) for f, place in zip(of_feature, places, strict=True)),
    )


@dataclass(frozen=True)
class Bags:
    """The bags of one call: lookups `begins[k]` to `ends[k]` (excluded) are bag k's, all tensors (bags,)."""

    places: BagPlaces
    begins: Tensor
    ends: Tensor
    lookups: int

    @classmethod
    def pooled(cls, places: BagPlaces, offsets: Tensor, lookups: int) -> Bags:
        """Bags as the offsets (bags + 1,) say."""
        return cls(places, offsets[:-1], offsets[1:], lookups)

    @classmethod
    def unpooled(cls, pooled: Bags, features: FeatureLayout) -> Bags:
        """One bag a lookup, as pooling NONE wants it: lookup i goes to row i of a (lookups, dim) output.

        A lookup outside all bags is an empty bag of the first feature.
        """
        count, dim = pooled.lookups, features.widths[0]
        owner = pooled.owner
        position = torch.arange(count, device=owner.device)
        inside = owner >= 0
        if len(pooled.places.feature):
            feature = torch.where(inside, pooled.places.feature[owner.clamp(min=0)], 0)
        else:
            feature = torch.zeros(count, dtype=torch.int32, device=owner.device)
        places = BagPlaces(
            feature.to(torch.int32),
            position * dim,
            (count, dim),
            pooled.places.first,
            pooled.places.most,
            (Segment(0, 0, count, 0, dim),),
            is_unpooled=True,
            lanes=pooled.places.lanes,
        )
        return cls(places, position, position + inside.to(position.dtype), count)

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def pointers(self) -> BagPointers:
        """What kernels take."""
        return BagPointers(self.begins, self.ends, self.places.feature, self.places.output)

    @property
    def lengths(self) -> Tensor:
        """(bags,) lookups of each."""
        return self.ends - self.begins

    def lane_lengths(self, features: FeatureLayout, columns: int) -> Tensor:
        """(lanes,) lookups of each lane of `columns` columns."""
        lanes = (features.dims + (columns - 1)) // columns
        return self.lengths.repeat_interleave(lanes[self.places.feature.long()])

    @cached_property
    def owner(self) -> Tensor:
        """(lookups,) int64: the bag of each lookup, -1 where it belongs to none.

        Offsets never decrease, so the owner is the last bag that begins at the lookup or before it: the empty bags
        that begin there too come first.
        """
        position = torch.arange(self.lookups, device=self.begins.device, dtype=self.begins.dtype)
        if not len(self):
            return torch.full_like(position, -1, dtype=torch.int64)
        owner = torch.searchsorted(self.begins, position, right=True) - 1
        inside = (owner >= 0) & (position < self.ends[owner.clamp(min=0)])
        return torch.where(inside, owner, -1)


def width_class(dim: int) -> int:
    """Class of tables whose rows are updated by one launch: dims of one power of two, all narrow ones together."""
    return (max(NARROW, dim) - 1).bit_length()


def _round_up(number: int) -> int:
    return -(-number // ALIGNMENT) * ALIGNMENT
