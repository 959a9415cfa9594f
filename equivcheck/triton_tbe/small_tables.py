"""Forward of small tables: a histogram of each bag's rows, then a matrix product with the table on tensor cores.

A bag's output is h W, with h (rows,) the sum of its lookups' weights by row, and W the table. The histogram reads no
table, and the product reads each row once for many bags, however long they are.

Tensor cores multiply TF32, which has 11 significant bits. So a number is cut into pieces of 11, 11 and at most 2 bits,
which TF32 holds exactly; products of pieces are exact in fp32, and only their sum is rounded:

- W in 16-bit storage is one piece, in fp32 three.
- Counts up to COUNTED are one piece, sums of weights three. Longer bags are counted and multiplied part by part.
- Of the nine products of three by three pieces, those below 2^-32 of the whole are left out.

Zero times infinity is NaN, sums of weights may overflow where no product does, and pieces of tiny numbers are
subnormal. So where the table or a histogram holds anything but zeros and numbers of moderate size, a program's bags go
the other way, through `pooled`: right at every magnitude, and NaN stays in the bags that name it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .forward import pooled
from .layout import Bags, FeatureLayout
from .rounding import reciprocal, to_nearest, widened
from .tiles import Tile, launch

MOST_ROWS = 64
"""Rows up to which a table is small: the histograms of 16 bags then fit into a program's registers."""
COUNTED = 1_024
"""Lookups of a bag that one histogram holds. TF32 counts exactly up to 2^11."""
LARGEST = tl.constexpr(2.0**60)
SMALLEST = tl.constexpr(2.0**-48)
"""Moderate sizes: sums of 64 products of the largest stay below 2^127, and the third piece of the smallest (2^-71)
times the smallest is above 2^-126."""


def is_small(shape: tuple[int, int]) -> bool:
    """Whether a table of (rows, dim) is eligible."""
    return 1 <= shape[0] <= MOST_ROWS


def additions(weights: torch.dtype, weighted: bool) -> int:
    """A number K such that the error of any bag of L lookups is that of a product of length K ceil(L / K).

    Every COUNTED lookups are a product of length pieces * MOST_ROWS, in units of 2^-23 by TensorCore's k = K + K / 16;
    the sums of a histogram, at most COUNTED - 1 additions in units of 2^-24, are covered by taking twice that K.
    """
    pieces = (3 if weighted else 1) if weights is not torch.float32 else (6 if weighted else 3)
    return 2 * pieces * MOST_ROWS


def multiply(
    output: Tensor,
    weights: Tensor,
    indices: Tensor,
    per_sample_weights: Tensor | None,
    bags: Bags,
    features: FeatureLayout,
    small: Tensor,
    *,
    mean: bool,
    tile: Tile,
) -> str:
    """Write the pooled output of the bags of the features `small` (int64), whose tables are small, in fp32 arithmetic.

    Returns the path taken, with its tile. `tile.rows` and `tile.columns` are at least 16, what tensor cores take.
    """
    launch(
        _multiply,
        (triton.cdiv(bags.places.most, tile.rows), len(small), triton.cdiv(max(features.widths), tile.columns)),
        output,
        weights,
        indices,
        per_sample_weights,
        bags.pointers,
        features.pointers,
        bags.places.first,
        small,
        MEAN=mean,
        PRECISION="ieee" if torch.version.hip else "tf32",
        VECTOR=features.tables.vector,
        COUNTED=COUNTED,
        BAGS=tile.rows,
        LOOKUPS=tile.lookups,
        ROWS=MOST_ROWS,
        COLUMNS=tile.columns,
    )
    return f"forward: small tables {tile}, {COUNTED} counted"


@triton.jit
def _multiply(
    output,
    weights,
    indices,
    per_sample_weights,
    bags,
    features,
    first_bag,
    small,
    MEAN: tl.constexpr,
    PRECISION: tl.constexpr,
    VECTOR: tl.constexpr,
    COUNTED: tl.constexpr,
    BAGS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    feature = tl.load(small + tl.program_id(1))
    dim = tl.load(features.dim + feature)
    bag = tl.load(first_bag + feature) + tl.program_id(0) * BAGS
    next_feature = tl.load(first_bag + feature + 1)
    if (tl.program_id(2) * COLUMNS >= dim) | (bag >= next_feature):
        return  # a narrower table or a shorter feature than others has nothing here
    bag += tl.arange(0, BAGS)
    live = bag < next_feature
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    rows = tl.load(features.rows + feature)
    begin = tl.load(bags.begin + bag, mask=live, other=0).to(tl.int64)
    end = tl.load(bags.end + bag, mask=live, other=0).to(tl.int64)

    place = tl.load(features.element_base + feature) + row[:, None] * dim + column[None, :]
    inside = (row < rows)[:, None] & (column < dim)[None, :]
    table = widened(tl.load(weights + place, mask=inside, other=0.0), tl.float32)
    moderate = _all_moderate(table)
    total = tl.zeros((BAGS, COLUMNS), tl.float32)
    longest = tl.max(end - begin, axis=0) * moderate
    for part in range(0, longest, COUNTED):
        last = tl.minimum(end, begin + part + COUNTED)
        histogram = tl.zeros((BAGS, ROWS), tl.float32)
        for first in range(0, tl.minimum(longest - part, COUNTED), LOOKUPS):
            lookup = (begin + part + first)[:, None] + tl.arange(0, LOOKUPS)[None, :]
            named = lookup < last[:, None]
            found = tl.load(indices + lookup, mask=named, other=-1).to(tl.int64)
            hits = found[:, :, None] == row[None, None, :]
            if per_sample_weights is not None:
                weight = tl.load(per_sample_weights + lookup, mask=named, other=0.0).to(tl.float32)
                histogram += tl.sum(tl.where(hits, weight[:, :, None], 0.0), axis=1)
            else:
                histogram += tl.sum(hits.to(tl.float32), axis=1)
        moderate = tl.minimum(moderate, _all_moderate(histogram))
        total = _product(total, histogram, table, per_sample_weights is not None, weights.dtype.element_ty, PRECISION)
    if MEAN:
        total *= reciprocal(end - begin, tl.float32)[:, None]
    mask = live[:, None] & (column < dim)[None, :]
    if moderate == 0:
        total = pooled(
            weights,
            indices,
            per_sample_weights,
            begin,
            end,
            tl.full((BAGS,), rows, tl.int64),
            tl.full((BAGS,), tl.load(features.element_base + feature), tl.int64),
            tl.full((BAGS,), dim, tl.int64),
            tl.broadcast_to(column[None, :], (BAGS, COLUMNS)),
            mask,
            MEAN,
            tl.float32,
            tl.int64,
            VECTOR,
            BAGS,
            LOOKUPS,
            1,
            COLUMNS,
        )
    place = tl.multiple_of(tl.load(bags.output + bag, mask=live, other=0), VECTOR)
    tl.store(output + place[:, None] + column[None, :], to_nearest(total, output.dtype.element_ty), mask=mask)


@triton.jit
def _product(total, histogram, table, WEIGHTED: tl.constexpr, STORAGE: tl.constexpr, PRECISION: tl.constexpr):
    """`total` + histogram x table, from exact products of pieces."""
    table1 = _leading(table)
    histogram1 = _leading(histogram)
    total = tl.dot(histogram1, table1, total, input_precision=PRECISION)
    if STORAGE == tl.float32:
        table2 = _leading(table - table1)
        total = tl.dot(histogram1, table2, total, input_precision=PRECISION)
        total = tl.dot(histogram1, table - table1 - table2, total, input_precision=PRECISION)
    if WEIGHTED:
        histogram2 = _leading(histogram - histogram1)
        total = tl.dot(histogram2, table1, total, input_precision=PRECISION)
        total = tl.dot(histogram - histogram1 - histogram2, table1, total, input_precision=PRECISION)
        if STORAGE == tl.float32:
            total = tl.dot(histogram2, table2, total, input_precision=PRECISION)
    return total


@triton.jit
def _leading(values):
    """The leading 11 bits of each fp32 value: what TF32 holds."""
    return (values.to(tl.uint32, bitcast=True) & 0xFFFFE000).to(tl.float32, bitcast=True)


@triton.jit
def _all_moderate(values):
    """1 if every value is zero or of moderate size, else 0. NaN compares false and so is neither."""
    size = tl.abs(values)
    fits = (size == 0.0) | ((size >= SMALLEST) & (size <= LARGEST))
    return tl.min(tl.min(fits.to(tl.int32), axis=1), axis=0)
