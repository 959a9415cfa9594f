"""The small case by which a point is judged before it is measured: a wrong kernel has no speed.

A sibling has all of the point's tables, with their widths, the types, the optimizer, pooling and distribution. Its
batch is cut to what the oracle does in about a second. Rows are cut with the lookups, so that runs stay as long as the
point's, which decides which path a backward takes, as far as the cut batch has so many lookups.
"""

from __future__ import annotations

import msgspec

from equivcheck.bench.point import Point, Setting
from equivcheck.case import Case, Feature, Optimizer, Regime, Traffic, Values

ELEMENTS = 2**20
"""Looked-up elements of a sibling. The oracle takes 0.3 s for so many (measured 2026-11-30)."""
_LARGEST_BATCH = 512
_SPARSEST = 8
"""Rows for each lookup at most: runs are then of one lookup, as with more rows."""


def sibling(point: Point, setting: Setting) -> Case:
    """The case. Two bags a table at least; where even they have too many elements, bags are shorter."""
    per_sample = sum(length * dim for length, dim in zip(point.lengths, point.dims, strict=True))
    batch = max(min(point.batch, 2), min(point.batch, _LARGEST_BATCH, ELEMENTS // per_sample))
    shorter = max(1.0, batch * per_sample / ELEMENTS)
    features = []
    for number, (rows, dim, length) in enumerate(zip(point.rows, point.dims, point.lengths, strict=True)):
        cut = max(1, round(length / shorter))
        lookups = batch * cut
        kept = round(rows * lookups / (point.batch * length))
        traffic = Traffic(batch, cut, point.ragged, point.distribution, seed=number)
        features.append(Feature(max(1, min(rows, kept, _SPARSEST * lookups)), dim, traffic=traffic))
    case = setting.case(tuple(features))
    uniform = Values(Regime.UNIFORM)
    return msgspec.structs.replace(
        case,
        optimizer=Optimizer(setting.optimizer, learning_rate=2.0**-6, eps=2.0**-27),
        weight_values=uniform,
        gradient_values=uniform,
        state_values=Values(Regime.SAME_SIGN),
    )
