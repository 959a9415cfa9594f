"""Forward: every bag of every table in one launch, by gathering rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import Bags, FeatureLayout
from .rounding import reciprocal, to_nearest, widened
from .tiles import Tile, launch

TRITON_TYPES = {torch.float16: tl.float16, torch.float32: tl.float32, torch.float64: tl.float64}
"""Triton's name of each accumulation type."""


def gather(
    output: Tensor,
    weights: Tensor,
    indices: Tensor,
    per_sample_weights: Tensor | None,
    bags: Bags,
    features: FeatureLayout,
    elsewhere: Tensor | None,
    *,
    mean: bool,
    accumulation: torch.dtype,
    tile: Tile,
) -> str:
    """Write y = sum of p_i w[row_i] of every bag, divided by its length where `mean`, into `output`.

    Returns the path taken, with its tile.

    Parameters
    ----------
    output
        Flat, in the output's dtype; every element of every bag is written.
    weights
        Flat buffer of all tables.
    elsewhere
        None, or (features,) int8: not zero for features whose bags another kernel computes.
    """
    launch(
        _gather,
        (triton.cdiv(len(bags), tile.rows), triton.cdiv(max(features.widths), tile.columns)),
        output,
        weights,
        indices,
        per_sample_weights,
        bags.pointers,
        features.pointers,
        elsewhere,
        len(bags),
        MEAN=mean,
        ACCUMULATION=TRITON_TYPES[accumulation],
        VECTOR=features.tables.vector,
        BAGS=tile.rows,
        LOOKUPS=tile.lookups,
        COLUMNS=tile.columns,
    )
    return f"forward: gather {tile}"


@triton.jit(do_not_specialize=["count"])
def _gather(
    output,
    weights,
    indices,
    per_sample_weights,
    bags,
    features,
    elsewhere,
    count,
    MEAN: tl.constexpr,
    ACCUMULATION: tl.constexpr,
    VECTOR: tl.constexpr,
    BAGS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    bag = tl.program_id(0).to(tl.int64) * BAGS + tl.arange(0, BAGS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live = bag < count
    feature = tl.load(bags.feature + bag, mask=live, other=0)
    if elsewhere is not None:
        live = live & (tl.load(elsewhere + feature, mask=live, other=0) == 0)
    total, dim = pooled(
        weights,
        indices,
        per_sample_weights,
        bags,
        features,
        bag,
        feature,
        live,
        column,
        MEAN,
        ACCUMULATION,
        VECTOR,
        BAGS,
        LOOKUPS,
        COLUMNS,
    )
    store_bags(output, total, bags, bag, live, dim, column, VECTOR)


@triton.jit
def pooled(
    weights,
    indices,
    per_sample_weights,
    bags,
    features,
    bag,
    feature,
    live,
    column,
    MEAN: tl.constexpr,
    ACCUMULATION: tl.constexpr,
    VECTOR: tl.constexpr,
    BAGS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """(bags, columns) pooled rows in `ACCUMULATION`, and (bags,) dims, zero of bags that are not `live`.

    A lookup of no row (pruned, or in a table without rows) adds nothing, but counts in a mean's length.
    """
    WORK: tl.constexpr = tl.float64 if ACCUMULATION == tl.float64 else tl.float32
    dim = tl.multiple_of(tl.load(features.dim + feature, mask=live, other=0), VECTOR)
    rows = tl.load(features.rows + feature, mask=live, other=0)
    table = tl.load(features.element_base + feature, mask=live, other=0)
    begin = tl.load(bags.begin + bag, mask=live, other=0).to(tl.int64)
    end = tl.load(bags.end + bag, mask=live, other=0).to(tl.int64)
    total = tl.zeros((BAGS, COLUMNS), ACCUMULATION)
    # Bags that are narrower than this program's columns have nothing to loop over.
    longest = tl.max(tl.where(tl.min(column, axis=0) < dim, end - begin, 0), axis=0)
    inside = (column[None, :] < dim[:, None])[:, None, :]
    leading = begin[:, None] + tl.arange(0, LOOKUPS)[None, :]
    for first in range(0, longest, LOOKUPS):
        lookup = leading + first
        row = tl.load(indices + lookup, mask=lookup < end[:, None], other=-1).to(tl.int64)
        named = (row >= 0) & (row < rows[:, None])
        start = tl.multiple_of(table[:, None] + row * dim[:, None], (VECTOR, VECTOR))
        place = weights + (start[:, :, None] + column[None, None, :])
        terms = widened(tl.load(place, mask=named[:, :, None] & inside, other=0.0), WORK)
        if per_sample_weights is not None:
            weight = tl.load(per_sample_weights + lookup, mask=named, other=0.0).to(WORK)
            terms = terms * weight[:, :, None]
        total += tl.sum(terms.to(ACCUMULATION), axis=1)
    if MEAN:
        total = (total.to(WORK) * reciprocal(end - begin, WORK)[:, None]).to(ACCUMULATION)
    return total, dim


@triton.jit
def store_bags(output, total, bags, bag, live, dim, column, VECTOR: tl.constexpr):
    """Round each bag's sums to the output's type and write them where the bag belongs."""
    place = tl.multiple_of(tl.load(bags.output + bag, mask=live, other=0), VECTOR)
    stored = to_nearest(total, output.dtype.element_ty)
    tl.store(output + place[:, None] + column[None, :], stored, mask=column[None, :] < dim[:, None])
