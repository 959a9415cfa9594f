"""Lanes: how the forward's work is cut up. A lane is so many columns of one bag.

A program holds as many lanes as it has threads, whatever the tables' widths. It has to know whose they are, so lanes
are numbered segment by segment, and a span of them belongs to one segment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .layout import BagPlaces, FeatureLayout, Segment
from .tiles import LaneTile, is_captured

MOST_LANES = 2**30
"""Lanes of a segment: kernels count those in 32 bits. Longer segments are cut."""


class SegmentPointers(NamedTuple):
    """As kernels take it, int64 unless said otherwise.

    `of_span` (spans,) int32 is the segment of each span of lanes. All others are (segments,): `lane` is the number of a
    segment's first lane, `lanes_of_bag` how many each of its bags has; `dim`, `rows` and `element_base` are those of
    its feature's table; `bag`, `bags`, `output` and `stride` those of its `Segment`.
    """

    of_span: Tensor
    lane: Tensor
    lanes_of_bag: Tensor
    dim: Tensor
    rows: Tensor
    element_base: Tensor
    bag: Tensor
    bags: Tensor
    output: Tensor
    stride: Tensor


class Lanes(NamedTuple):
    """Segments, and how many lanes they have together, whole spans."""

    segments: SegmentPointers
    number: int


def lanes_of(places: BagPlaces, features: FeatureLayout, tile: LaneTile, without: frozenset[int]) -> Lanes:
    """Lanes as `tile` says, in whole spans; bags of the features `without` get none.

    The last are kept, since they do not depend on the lookups, and so that a CUDA graph can be captured after a
    warm-up: it cannot capture a copy from the host. What one has captured is kept for good: it will be read again.
    """
    key = (len(places.feature) if places.is_unpooled else None, tile.columns, tile.wide, tile.span, without)
    if key not in places.lanes:
        for old in [key for key, (_, is_captured) in places.lanes.items() if not is_captured]:
            del places.lanes[old]
        places.lanes[key] = (_numbered(places, features, tile, without), False)
    lanes: Lanes = places.lanes[key][0]
    if is_captured(places.feature.device):
        places.lanes[key] = (lanes, True)
    return lanes


def _numbered(places: BagPlaces, features: FeatureLayout, tile: LaneTile, without: frozenset[int]) -> Lanes:
    lanes_of_feature = [-(-width // tile.columns_of(width)) for width in features.widths]
    segments = [
        piece
        for segment in places.segments
        if segment.feature not in without
        for piece in _pieces(segment, MOST_LANES // lanes_of_feature[segment.feature])
    ]
    per_bag = np.asarray([lanes_of_feature[segment.feature] for segment in segments], np.int64)
    bags = np.asarray([segment.bags for segment in segments], np.int64)
    spans = -(-bags * per_bag // tile.span)
    ends = np.cumsum(spans)
    total = int(ends[-1]) if segments else 0
    numbers = np.asarray([(s.feature, s.bag, s.bags, s.output, s.stride) for s in segments], np.int64).reshape(-1, 5)
    columns_of = (
        np.stack([(ends - spans) * tile.span, per_bag, spans, *numbers.T]) if segments else np.zeros((8, 0), np.int64)
    )
    lane, lanes_of_bag, spans_of, feature, bag, count, output, stride = torch.from_numpy(columns_of).to(
        places.feature.device
    )
    of_span = torch.arange(len(segments), dtype=torch.int32, device=lane.device)
    return Lanes(
        SegmentPointers(
            of_span.repeat_interleave(spans_of, output_size=total),
            lane,
            lanes_of_bag,
            features.dims[feature],
            features.rows[feature],
            features.element_bases[feature],
            bag,
            count,
            output,
            stride,
        ),
        total * tile.span,
    )


def _pieces(segment: Segment, most: int) -> list[Segment]:
    """Segments of at most `most` bags, which together are this one; none if it has no bags."""
    return [
        Segment(
            segment.feature,
            segment.bag + first,
            min(most, segment.bags - first),
            segment.output + first * segment.stride,
            segment.stride,
        )
        for first in range(0, segment.bags, most)
    ]
