"""Lanes: how the forward's work is cut up. A lane is so many columns of one bag.

A program holds as many lanes as it has threads, whatever the tables' widths. It has to know whose they are, so lanes
are numbered segment by segment, and each span of them belongs to one segment and says what a program wants to know:
looking its segment up first would cost every program the wait for one more load.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .layout import BagPlaces, FeatureLayout, Segment
from .tiles import is_captured

MOST_LANES = 2**30
"""Lanes of a segment: kernels count those in 32 bits. Longer segments are cut."""


class SpanPointers(NamedTuple):
    """As kernels take it, (spans,) int64 each: of each span, what its segment is.

    `lane` is the number of the segment's first lane, `lanes_of_bag` how many each of its bags has; `dim`, `rows` and
    `element_base` are those of its feature's table; `bag`, `bags`, `output` and `stride` those of its `Segment`.
    """

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
    """Spans, and how many lanes they have together."""

    spans: SpanPointers
    number: int


def lanes_of(places: BagPlaces, features: FeatureLayout, columns: int, span: int, without: frozenset[int]) -> Lanes:
    """Lanes of `columns` columns, in spans of `span`; bags of the features `without` get none.

    The last are kept, since they do not depend on the lookups, and so that a CUDA graph can be captured after a
    warm-up: it cannot capture a copy from the host. What one has captured is kept for good: it will be read again.
    """
    key = (len(places.feature) if places.is_unpooled else None, columns, span, without)
    if key not in places.lanes:
        for old in [key for key, (_, is_captured) in places.lanes.items() if not is_captured]:
            del places.lanes[old]
        places.lanes[key] = (_numbered(places, features, columns, span, without), False)
    lanes: Lanes = places.lanes[key][0]
    if is_captured(places.feature.device):
        places.lanes[key] = (lanes, True)
    return lanes


def _numbered(places: BagPlaces, features: FeatureLayout, columns: int, span: int, without: frozenset[int]) -> Lanes:
    lanes_of_feature = [-(-width // columns) for width in features.widths]
    segments = [
        piece
        for segment in places.segments
        if segment.feature not in without
        for piece in _pieces(segment, MOST_LANES // lanes_of_feature[segment.feature])
    ]
    table = [features.feature_tables[segment.feature] for segment in segments]
    layout = features.tables
    per_bag = np.asarray([lanes_of_feature[segment.feature] for segment in segments], np.int64)
    bags = np.asarray([segment.bags for segment in segments], np.int64)
    spans = -(-bags * per_bag // span)
    ends = np.cumsum(spans)
    columns_of = (
        (ends - spans) * span,
        per_bag,
        [layout.shapes[t][1] for t in table],
        [layout.shapes[t][0] for t in table],
        [layout.element_bases[t] for t in table],
        [segment.bag for segment in segments],
        bags,
        [segment.output for segment in segments],
        [segment.stride for segment in segments],
    )
    both = np.asarray([*columns_of, spans], np.int64).reshape(len(columns_of) + 1, len(segments))
    *values, counts = torch.from_numpy(both).to(places.feature.device)
    total = int(spans.sum())
    repeated = torch.stack(values).repeat_interleave(counts, dim=1, output_size=total)
    return Lanes(SpanPointers(*repeated), total * span)


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
