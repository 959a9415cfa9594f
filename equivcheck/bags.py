"""Bags of a Case as arrays: which rows each feature looks up, bag by bag."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equivcheck import words as w
from equivcheck.captured import CapturedBatch
from equivcheck.case import Bag, Case, CaseError, Distribution, Feature, Traffic
from equivcheck.formats import AnyArray

ZIPF_RANKS = 2**16
"""Rows that Zipf traffic names, spread evenly over the table: the tail beyond is looked up too rarely to matter."""


@dataclass(frozen=True)
class FeatureBags:
    """Lookups of one feature: `rows` (lookups,), `lengths` and `ranks` (bags,), all int64, bags sorted by rank."""

    rows: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    weights: AnyArray | None = None

    def first(self, bags: int) -> FeatureBags:
        """Only the first `bags` of each rank."""
        starts = np.searchsorted(self.ranks, self.ranks)
        return self._chosen(np.flatnonzero(np.arange(len(self.ranks)) - starts < bags), self.ranks)

    def shortened(self, lookups: int) -> FeatureBags:
        """Only the first `lookups` of each bag."""
        begins = np.cumsum(self.lengths) - self.lengths
        kept = np.arange(len(self.rows)) - np.repeat(begins, self.lengths) < lookups
        weights = None if self.weights is None else self.weights[kept]
        return FeatureBags(self.rows[kept], np.minimum(self.lengths, lookups), self.ranks, weights)

    def turned(self, places: int, ranks: int) -> FeatureBags:
        """All bags so many places further to the front, and their ranks as many up, both in a circle."""
        bags = np.roll(np.arange(len(self.lengths)), -places)
        turned = (self.ranks + places) % max(1, ranks)
        return self._chosen(bags[np.argsort(turned[bags], kind="stable")], turned)

    def padded(self, bags: int) -> FeatureBags:
        """With empty bags at the end, up to `bags`."""
        more = np.zeros(bags - len(self.lengths), np.int64)
        return FeatureBags(
            self.rows, np.concatenate([self.lengths, more]), np.concatenate([self.ranks, more]), self.weights
        )

    def rank_sizes(self, ranks: int) -> tuple[int, ...]:
        """Bags of each rank."""
        return tuple(int(n) for n in np.bincount(self.ranks, minlength=ranks))

    def _chosen(self, bags: npt.NDArray[np.int64], ranks: npt.NDArray[np.int64]) -> FeatureBags:
        """These bags, one behind another, of the given ranks of all bags."""
        lengths = self.lengths[bags]
        begins = (np.cumsum(self.lengths) - self.lengths)[bags]
        lookups = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        weights = None if self.weights is None else self.weights[lookups]
        return FeatureBags(self.rows[lookups], lengths, ranks[bags], weights)


def bags_of(case: Case, order: npt.NDArray[np.int64], captured: CapturedBatch | None) -> tuple[FeatureBags, ...]:
    """Bags of each feature, in the order of the call.

    Rows are clipped to the table, except where the table has none: then every lookup is out of bounds by intent.
    """
    features = [case.features[i] for i in order]
    tables, shapes = case.tables, case.table_shapes
    rows = [shapes[tables[i]][0] for i in order]
    if captured is not None:
        return _captured(captured, rows)
    return tuple(
        _shuffled(_feature(feature, count), w.derive(case.lookup_order, int(number)) if case.lookup_order else 0)
        for number, feature, count in zip(order, features, rows, strict=True)
    )


def _feature(feature: Feature, rows: int) -> FeatureBags:
    if feature.traffic is not None:
        return _traffic(feature.traffic, rows)
    bags = sorted(feature.bags, key=lambda bag: bag.rank)
    parts = [_listed(bag) for bag in bags]
    empty = np.zeros(0, np.int64)
    looked_up = np.concatenate([empty, *(np.tile(p, b.copies) for p, b in zip(parts, bags, strict=True))])
    copies = np.asarray([bag.copies for bag in bags], np.int64)
    lengths = np.repeat(np.asarray([len(p) for p in parts], np.int64), copies)
    ranks = np.repeat(np.asarray([bag.rank for bag in bags], np.int64), copies)
    return FeatureBags(np.minimum(looked_up, rows - 1) if rows else looked_up, lengths, ranks)


def _listed(bag: Bag) -> npt.NDArray[np.int64]:
    row = np.asarray([lookup.row for lookup in bag.lookups], np.int64)
    return np.repeat(row, np.asarray([lookup.times for lookup in bag.lookups], np.int64))


def _traffic(traffic: Traffic, rows: int) -> FeatureBags:
    key = w.derive(traffic.seed, "traffic")
    if traffic.ragged:
        lengths = w.integers(w.words(key, np.arange(traffic.bags, dtype=np.int64)), 2 * traffic.length + 1)
    else:
        lengths = np.full(traffic.bags, traffic.length, np.int64)
    positions = np.arange(int(lengths.sum()), dtype=np.int64)
    random = w.words(w.derive(key, "rows"), positions)
    ranks = np.zeros(traffic.bags, np.int64)
    if rows <= 1:
        return FeatureBags(np.zeros(len(positions), np.int64), lengths, ranks)
    uniform = (random % np.uint64(rows)).astype(np.int64)
    match traffic.distribution:
        case Distribution.UNIFORM:
            looked_up = uniform
        case Distribution.HOT:
            looked_up = np.where(w.words(w.derive(key, "hot"), positions) & np.uint64(1), 0, uniform)
        case Distribution.ZIPF:
            ranked = min(rows, ZIPF_RANKS)
            cumulative = np.cumsum(2**40 // np.arange(1, ranked + 1, dtype=np.int64))
            drawn = (random % np.uint64(cumulative[-1])).astype(np.int64)
            looked_up = np.searchsorted(cumulative, drawn, side="right") * (rows // ranked)
        case Distribution.CYCLIC:
            looked_up = positions % rows
    return FeatureBags(looked_up, lengths, ranks)


def _captured(batch: CapturedBatch, rows: list[int]) -> tuple[FeatureBags, ...]:
    bags = len(batch.offsets) - 1
    if bags % len(rows):
        raise CaseError(f"captured offsets name {bags} bags, which {len(rows)} features cannot share equally")
    size = bags // len(rows)
    features = []
    for number, count in enumerate(rows):
        offsets = batch.offsets[number * size : (number + 1) * size + 1]
        start, end = int(offsets[0]), int(offsets[-1])
        looked_up = batch.indices[start:end]
        if len(looked_up) and (looked_up.min() < 0 or looked_up.max() >= count):
            wrong = looked_up[(looked_up < 0) | (looked_up >= count)][0]
            raise CaseError(f"captured feature {number} looks up row {wrong} of a table of {count} rows")
        weights = None if batch.per_sample_weights is None else batch.per_sample_weights[start:end]
        features.append(FeatureBags(looked_up, np.diff(offsets), np.zeros(size, np.int64), weights))
    return tuple(features)


def _shuffled(bags: FeatureBags, seed: int) -> FeatureBags:
    """Lookups permuted inside each bag."""
    if seed == 0 or len(bags.rows) == 0:
        return bags
    owner = np.repeat(np.arange(len(bags.lengths)), bags.lengths)
    random = w.words(seed, np.arange(len(bags.rows), dtype=np.int64))
    return FeatureBags(bags.rows[np.lexsort((random, owner))], bags.lengths, bags.ranks, bags.weights)
