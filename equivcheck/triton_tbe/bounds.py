"""Bounds check: what happens to indices and offsets that point outside.

Repairs are made in copies: the caller's tensors stay as they are.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from equivcheck.case import BoundsCheck

from .layout import Bags, FeatureLayout
from .tiles import flat, launch


class OutOfBounds(IndexError):
    """FATAL bounds check: an index or offset points outside. Nothing was changed."""


def checked_offsets(offsets: Tensor, lookups: int, mode: BoundsCheck) -> tuple[Tensor, Tensor]:
    """Offsets that rise from at least 0 to `lookups`, and how many had to be changed, a tensor ().

    They become the running maximum of their values clipped to [0, lookups], and the last becomes `lookups`. A first
    offset above 0 counts as wrong too, but stays: lookups before it belong to no bag.

    Raises
    ------
    OutOfBounds
        In mode FATAL, where any is wrong.
    """
    repaired = offsets.clamp(0, lookups).cummax(0).values
    repaired[-1:] = lookups
    wrong = (repaired != offsets).sum() + (repaired[:1] != 0).sum()
    if mode is BoundsCheck.FATAL and int(wrong):
        raise OutOfBounds(
            f"{int(wrong)} of {len(offsets)} offsets are wrong: they start at {int(offsets[0])}, end at "
            f"{int(offsets[-1])}, and may decrease between; give offsets that rise from 0 to the {lookups} lookups"
        )
    return repaired, wrong


def checked_indices(indices: Tensor, bags: Bags, features: FeatureLayout, mode: BoundsCheck) -> tuple[Tensor, Tensor]:
    """Indices with row 0 in place of those outside their table, and how many those were, a tensor ().

    Index -1 is a pruned lookup, not a wrong one, and in a table without rows no index can be repaired: both stay, and
    contribute nothing.

    Raises
    ------
    OutOfBounds
        In mode FATAL.
    """
    repaired = indices.clone()
    wrong = indices.new_zeros(len(indices))
    size = flat(indices.device)
    launch(
        _check_indices,
        (triton.cdiv(len(indices), size),),
        repaired,
        wrong,
        bags.owner,
        bags.pointers,
        features.pointers,
        len(indices),
        SIZE=size,
    )
    count = wrong.sum()
    if mode is BoundsCheck.FATAL and int(count):
        position = int(wrong.nonzero()[0])
        raise OutOfBounds(
            f"{int(count)} indices lie outside their table, the first at position {position}: "
            f"{int(indices[position])}; give rows of the table, or -1 for pruned ones"
        )
    return repaired, count


@triton.jit(do_not_specialize=["lookups"])
def _check_indices(indices, wrong, owner, bags, features, lookups, SIZE: tl.constexpr):
    lookup = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    live = lookup < lookups
    bag = tl.load(owner + lookup, mask=live, other=-1)
    owned = bag >= 0
    feature = tl.load(bags.feature + bag, mask=owned, other=0)
    rows = tl.load(features.rows + feature, mask=owned, other=0)
    row = tl.load(indices + lookup, mask=live, other=-1).to(tl.int64)
    outside = ((row < -1) | (row >= rows)) & (rows > 0)
    tl.store(indices + lookup, 0, mask=outside)
    tl.store(wrong + lookup, 1, mask=outside)
