"""Gradient of the per-sample weights: dL/dp_i = <w[row_i], dY[bag of i]>, divided by the bag's length in a mean.

It is computed before the update, from the weights that the update will change.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .forward import TRITON_TYPES
from .layout import Bags, FeatureLayout
from .rounding import reciprocal, to_nearest, widened
from .tiles import Tile, launch


def weight_gradient(
    result: Tensor,
    weights: Tensor,
    indices: Tensor,
    grad_output: Tensor,
    asks: Tensor | None,
    bags: Bags,
    features: FeatureLayout,
    *,
    mean: bool,
    accumulation: torch.dtype,
    tile: Tile,
) -> str:
    """Write the gradient of each lookup's weight into `result` (lookups,); 0 for a lookup of no row or bag.

    `asks` is None, or (features,) int8: zero for features whose weights have no gradient. Returns the
    path taken, with its tile.
    """
    launch(
        _weight_gradient,
        (triton.cdiv(len(result), tile.rows),),
        result,
        weights,
        indices,
        grad_output,
        asks,
        bags.owner,
        bags.pointers,
        features.pointers,
        len(result),
        MEAN=mean,
        ACCUMULATION=TRITON_TYPES[accumulation],
        VECTOR=features.tables.vector,
        LOOKUPS=tile.rows,
        COLUMNS=tile.columns,
    )
    return f"weight gradient: {tile}"


@triton.jit(do_not_specialize=["lookups"])
def _weight_gradient(
    result,
    weights,
    indices,
    grad_output,
    asks,
    owner,
    bags,
    features,
    lookups,
    MEAN: tl.constexpr,
    ACCUMULATION: tl.constexpr,
    VECTOR: tl.constexpr,
    LOOKUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    WORK: tl.constexpr = tl.float64 if ACCUMULATION == tl.float64 else tl.float32
    lookup = tl.program_id(0).to(tl.int64) * LOOKUPS + tl.arange(0, LOOKUPS)
    column = tl.arange(0, COLUMNS)
    live = lookup < lookups
    bag = tl.load(owner + lookup, mask=live, other=-1)
    owned = bag >= 0
    feature = tl.load(bags.feature + bag, mask=owned, other=0)
    row = tl.load(indices + lookup, mask=owned, other=-1).to(tl.int64)
    named = (row >= 0) & (row < tl.load(features.rows + feature, mask=owned, other=0))
    if asks is not None:
        named = named & (tl.load(asks + feature, mask=owned, other=0) != 0)
    dim = tl.multiple_of(tl.load(features.dim + feature, mask=named, other=0), VECTOR)
    element = tl.load(features.element_base + feature, mask=named, other=0) + row * dim
    place = tl.load(bags.output + bag, mask=named, other=0)
    mask = column[None, :] < dim[:, None]
    in_table = weights + tl.multiple_of(element, VECTOR)[:, None] + column[None, :]
    in_gradient = grad_output + tl.multiple_of(place, VECTOR)[:, None] + column[None, :]
    weight = widened(tl.load(in_table, mask=mask, other=0.0), WORK)
    gradient = widened(tl.load(in_gradient, mask=mask, other=0.0), WORK)
    total = tl.sum((weight * gradient).to(ACCUMULATION), axis=1)
    if MEAN:
        length = tl.load(bags.end + bag, mask=named, other=0) - tl.load(bags.begin + bag, mask=named, other=0)
        total = (total.to(WORK) * reciprocal(length, WORK)).to(ACCUMULATION)
    tl.store(result + lookup, to_nearest(total, result.dtype.element_ty), mask=live)
