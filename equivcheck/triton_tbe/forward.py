"""Forward: every bag of every table in one launch, by gathering rows.

The work is cut into lanes: a lane pools a few columns of one bag, as many as one load of a GPU's thread brings, so that
tables of every width keep every thread busy, and no thread waits for another.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .lanes import lanes_of
from .layout import Bags, FeatureLayout
from .rounding import reciprocal, to_nearest, widened
from .tiles import LaneTile, launch

TRITON_TYPES = {torch.float16: tl.float16, torch.float32: tl.float32, torch.float64: tl.float64}
"""Triton's name of each accumulation type."""


def gather(
    output: Tensor,
    weights: Tensor,
    indices: Tensor,
    per_sample_weights: Tensor | None,
    bags: Bags,
    features: FeatureLayout,
    elsewhere: frozenset[int],
    *,
    mean: bool,
    accumulation: torch.dtype,
    tile: LaneTile,
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
        Features whose bags another kernel computes.
    """
    segments, lanes = lanes_of(bags.places, features, tile, elsewhere)
    launch(
        _gather,
        (triton.cdiv(lanes, tile.lanes),),
        output,
        weights,
        indices,
        per_sample_weights,
        bags.pointers,
        features.pointers,
        segments,
        lanes,
        UNPOOLED=bags.places.is_unpooled,
        MEAN=mean,
        ACCUMULATION=TRITON_TYPES[accumulation],
        LENGTH=tl.int32 if len(indices) < 2**31 else tl.int64,
        VECTOR=features.tables.vector,
        SPAN=tile.span,
        LANES=tile.lanes,
        LOOKUPS=tile.lookups,
        STEPS=tile.steps,
        COLUMNS=tile.columns,
        WIDE=tile.wide,
        **tile.options,
    )
    return f"forward: gather {tile}"


@triton.jit(do_not_specialize=["lanes"])
def _gather(
    output,
    weights,
    indices,
    per_sample_weights,
    bags,
    features,
    segments,
    lanes,
    UNPOOLED: tl.constexpr,
    MEAN: tl.constexpr,
    ACCUMULATION: tl.constexpr,
    LENGTH: tl.constexpr,
    VECTOR: tl.constexpr,
    SPAN: tl.constexpr,
    LANES: tl.constexpr,
    LOOKUPS: tl.constexpr,
    STEPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    live = lane < lanes
    if SPAN == LANES:  # one segment: what is read of it is the same for all lanes, and takes few registers
        segment = tl.load(segments.of_span + tl.program_id(0))
    else:
        segment = tl.load(segments.of_span + lane // SPAN, mask=live, other=0)
    if WIDE > 0:
        is_wide = tl.load(segments.dim + segment) % WIDE == 0
    else:
        is_wide: tl.constexpr = False  # type: ignore[no-redef]
    arrays, layout = (output, weights, indices, per_sample_weights), (bags, features, segments)
    place = lane, live, segment
    if is_wide:
        _write(arrays, layout, place, UNPOOLED, MEAN, ACCUMULATION, LENGTH, VECTOR, WIDE, LANES, LOOKUPS, STEPS, WIDE)
    else:
        _write(
            arrays, layout, place, UNPOOLED, MEAN, ACCUMULATION, LENGTH, VECTOR, VECTOR, LANES, LOOKUPS, STEPS, COLUMNS
        )


@triton.jit
def _write(
    arrays,
    layout,
    place,
    UNPOOLED: tl.constexpr,
    MEAN: tl.constexpr,
    ACCUMULATION: tl.constexpr,
    LENGTH: tl.constexpr,
    VECTOR: tl.constexpr,
    ROW_VECTOR: tl.constexpr,
    LANES: tl.constexpr,
    LOOKUPS: tl.constexpr,
    STEPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Pool lanes of COLUMNS columns. Their place in the output can be divided by VECTOR, that in rows by ROW_VECTOR."""
    output, weights, indices, per_sample_weights = arrays
    bags, features, segments = layout
    lane, live, segment = place
    in_segment = (lane - tl.load(segments.lane + segment)).to(tl.int32)
    lanes_of_bag = tl.load(segments.lanes_of_bag + segment).to(tl.int32)
    number = in_segment // lanes_of_bag
    live = live & (number < tl.load(segments.bags + segment))
    bag = tl.load(segments.bag + segment) + number
    dim = tl.broadcast_to(tl.multiple_of(tl.load(segments.dim + segment), ROW_VECTOR), (LANES,))
    if UNPOOLED:
        feature = tl.load(bags.feature + bag, mask=live, other=0)
        rows = tl.load(features.rows + feature)
        table = tl.load(features.element_base + feature)
    else:
        rows = tl.broadcast_to(tl.load(segments.rows + segment), (LANES,))
        table = tl.broadcast_to(tl.load(segments.element_base + segment), (LANES,))
    first = tl.load(segments.output + segment) + number * tl.load(segments.stride + segment)
    column = ((in_segment - number * lanes_of_bag) * COLUMNS)[:, None] + tl.arange(0, COLUMNS)[None, :]
    inside = live[:, None] & (column < dim[:, None])
    total = pooled(
        weights,
        indices,
        per_sample_weights,
        tl.load(bags.begin + bag, mask=live, other=0).to(tl.int64),
        tl.load(bags.end + bag, mask=live, other=0).to(tl.int64),
        rows,
        table,
        dim,
        column,
        inside,
        MEAN,
        ACCUMULATION,
        LENGTH,
        ROW_VECTOR,
        LANES,
        LOOKUPS,
        STEPS,
        COLUMNS,
    )
    stored = to_nearest(total, output.dtype.element_ty)
    tl.store(output + tl.multiple_of(first, VECTOR)[:, None] + column, stored, mask=inside)


@triton.jit
def pooled(
    weights,
    indices,
    per_sample_weights,
    begin,
    end,
    rows,
    table,
    dim,
    column,
    inside,
    MEAN: tl.constexpr,
    ACCUMULATION: tl.constexpr,
    LENGTH: tl.constexpr,
    VECTOR: tl.constexpr,
    LANES: tl.constexpr,
    LOOKUPS: tl.constexpr,
    STEPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """(lanes, columns) in `ACCUMULATION`: pooled columns `column` of the bags of lookups `begin` to `end`.

    `begin`, `end`, and the `rows`, first element `table` and `dim` of the bag's table are (lanes,); `inside` is false
    for columns that are not wanted. A lookup of no row (pruned, or in a table without rows) adds nothing, but counts in
    a mean's length, which is counted in `LENGTH`, an integer type. STEPS times LOOKUPS loads are under way at once, and
    the indices of the next ones.
    """
    WORK: tl.constexpr = tl.float64 if ACCUMULATION == tl.float64 else tl.float32
    total = tl.zeros((LANES, COLUMNS), ACCUMULATION)
    longest = tl.max((end - begin).to(LENGTH), axis=0)
    leading = begin[:, None] + tl.arange(0, LOOKUPS)[None, :]
    following = _indices_from(indices, leading, end, LOOKUPS, STEPS)
    for first in range(0, longest, STEPS * LOOKUPS):
        present = following
        following = _indices_from(indices, leading + (first + STEPS * LOOKUPS), end, LOOKUPS, STEPS)
        for step in tl.static_range(STEPS):
            lookup = leading + (first + step * LOOKUPS)
            row = present[step]
            named = (row >= 0) & (row < rows[:, None])
            start = tl.multiple_of(table[:, None] + row * dim[:, None], (VECTOR, VECTOR))
            place = weights + (start[:, :, None] + column[:, None, :])
            terms = widened(tl.load(place, mask=named[:, :, None] & inside[:, None, :], other=0.0), WORK)
            if per_sample_weights is not None:
                weight = tl.load(per_sample_weights + lookup, mask=named, other=0.0).to(WORK)
                terms = terms * weight[:, :, None]
            total += tl.sum(terms.to(ACCUMULATION), axis=1)
    if MEAN:
        total = (total.to(WORK) * reciprocal(end - begin, WORK)[:, None]).to(ACCUMULATION)
    return total


@triton.jit
def _indices_from(indices, leading, end, LOOKUPS: tl.constexpr, STEPS: tl.constexpr):
    """Tuple of STEPS tiles of indices, of lookup `leading` and so many on; -1 from a bag's `end` on."""
    found = ()
    for step in tl.static_range(STEPS):
        lookup = leading + step * LOOKUPS
        index = tl.load(indices + lookup, mask=lookup < end[:, None], other=-1)
        found += (index.to(tl.int64),)  # type: ignore[assignment]
    return found
