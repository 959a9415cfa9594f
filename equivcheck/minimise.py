"""Make a failing case smaller by trying simpler ones: what a shrinker of choices leaves, and cases from seeds.

Hypothesis shrinks the choices that led to a case, and can only make each choice smaller. This works on the case itself,
so that it can also trade: two lookups for one that is repeated, two features for one with both their bags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TypeVar

import msgspec

from equivcheck import axes
from equivcheck.case import Bag, Case, CaseError, Feature, Lookup

Part = TypeVar("Part", bound=msgspec.Struct)

NUMBERS = tuple(
    sorted({0, 1, 2, 3, 4, 5, *axes.RUN_LENGTHS, *axes.BAG_LENGTHS, *axes.LOOKUPS, *axes.BATCHES, *axes.DIMS})
)
"""Sizes that are tried before the one next to a size: thresholds lie there, and below them is the shortest run."""


def minimise(case: Case, wrong: Callable[[Case], bool], calls: int = 300) -> Case:
    """The simplest case found that is still wrong.

    Parameters
    ----------
    wrong
        Whether a case fails in the same way; called at most `calls` times, never twice with one case.

    Returns
    -------
    Case
        `case` itself if nothing simpler is wrong. It has fewer tables, features, bags, lookups or shorter JSON,
        compared in that order.
    """
    tried = {case}
    found = True
    while found:
        found = False
        size = _size(case)
        for simpler in _simpler(case):
            if simpler in tried or _size(simpler) >= size:
                continue
            if len(tried) > calls:
                return case
            tried.add(simpler)
            if wrong(simpler):
                case, found = simpler, True
                break
    return case


def _size(case: Case) -> tuple[int, ...]:
    bags = [bag for feature in case.features for bag in feature.bags]
    return (
        len(case.table_shapes),
        len(case.features),
        sum(feature.traffic is not None for feature in case.features),
        sum(len(bag.lookups) for bag in bags),
        len(bags),
        case.lookups,
        sum(bag.copies for bag in bags),
        sum(rows * dim for rows, dim in case.table_shapes),
        len(case.to_json()),
        sum(lookup.row for bag in bags for lookup in bag.lookups),
    )


def _simpler(case: Case) -> Iterator[Case]:
    """Candidates, the boldest first. What would be no valid case is left out."""
    features: Iterator[tuple[Feature, ...]] = chain(_feature_lists(case.features), _features_alone(case.features))
    for change in chain(({"features": changed} for changed in features), _settings(case)):
        try:
            yield msgspec.structs.replace(case, **change)
        except CaseError:
            continue


def _feature_lists(features: tuple[Feature, ...]) -> Iterator[tuple[Feature, ...]]:
    """With a feature less: dropped, or its bags behind those of another."""
    if len(features) > 8:
        for size in NUMBERS:
            if size < len(features):
                yield _without(features, set(range(size, len(features))))
    if len(features) > 1:
        for position in range(len(features)):
            yield _without(features, {position})
    longest = max((sum(bag.copies for bag in feature.bags) for feature in features), default=0)
    for one in range(len(features)):
        for other in range(one + 1, len(features)):
            if features[one].traffic is None and features[other].traffic is None:
                missing = longest - sum(bag.copies for bag in features[one].bags)
                padding = (Bag((), missing),) if missing else ()
                for between in ((), padding) if padding else ((),):
                    joined = _with(features[one], bags=(*features[one].bags, *between, *features[other].bags))
                    yield _without((*features[:one], joined, *features[one + 1 :]), {other})


def _without(features: tuple[Feature, ...], dropped: set[int]) -> tuple[Feature, ...]:
    """Without some features; who shared a dropped one's table takes it over."""
    kept: list[Feature] = []
    owners: dict[int, int] = {}
    for position, feature in enumerate(features):
        if position in dropped:
            continue
        owner = position if feature.table is None else feature.table
        if owner not in owners:
            owners[owner] = len(kept)
            kept.append(_with(feature, table=None, rows=features[owner].rows, dim=features[owner].dim))
        else:
            kept.append(_with(feature, table=owners[owner]))
    return tuple(kept)


def _features_alone(features: tuple[Feature, ...]) -> Iterator[tuple[Feature, ...]]:
    """With one feature simpler."""
    for position, feature in enumerate(features):
        for simpler in _one_feature(feature):
            yield (*features[:position], simpler, *features[position + 1 :])


def _one_feature(feature: Feature) -> Iterator[Feature]:
    if feature.traffic is not None:
        traffic = feature.traffic
        length, count = max(traffic.length, 1), max(traffic.bags, 1)
        for times in (length, 2 * length) if traffic.ragged else (length,):
            yield _with(feature, traffic=None, bags=(Bag((Lookup(0, times),), count),))
        yield _with(feature, traffic=None)
        for count in _smaller(traffic.bags, 0):
            yield _with(feature, traffic=_with(traffic, bags=count))
        for length in _smaller(traffic.length, 0):
            yield _with(feature, traffic=_with(traffic, length=length))
        for change in _defaults(traffic):
            yield _with(feature, traffic=_with(traffic, **change))
    bags = feature.bags
    if len(bags) > 1:
        lookups = tuple(lookup for bag in bags for lookup in bag.lookups)
        yield _with(feature, bags=(Bag(lookups),))
    for position, bag in enumerate(bags):
        for simpler in (None, *_one_bag(bag)):
            middle = () if simpler is None else (simpler,)
            yield _with(feature, bags=(*bags[:position], *middle, *bags[position + 1 :]))
    if feature.table is None:
        for rows in _smaller(feature.rows, 1):
            yield _with(feature, rows=rows)
        for dim in _smaller(feature.dim, 1):
            yield _with(feature, dim=dim)
    if feature.frozen:
        yield _with(feature, frozen=False)


def _one_bag(bag: Bag) -> Iterator[Bag]:
    for copies in _smaller(bag.copies, 1):
        yield _with(bag, copies=copies)
    if bag.lookups and bag.copies > 1:
        # One bag whose run is as long as that of all copies, or as the next smaller number that kernels care about.
        total = bag.length * bag.copies
        for times in (*_smaller(total, 1), total):
            yield Bag((Lookup(bag.lookups[0].row, times),), 1, bag.rank)
    if len(bag.lookups) > 1:
        for times in (*_smaller(bag.length, 1), bag.length):
            yield _with(bag, lookups=(Lookup(bag.lookups[0].row, times),))
    for position, lookup in enumerate(bag.lookups):
        yield _with(bag, lookups=(*bag.lookups[:position], *bag.lookups[position + 1 :]))
        others = [Lookup(0, lookup.times), *(Lookup(lookup.row, times) for times in _smaller(lookup.times, 1))]
        for simpler in others:
            yield _with(bag, lookups=(*bag.lookups[:position], simpler, *bag.lookups[position + 1 :]))
    if bag.rank:
        yield _with(bag, rank=0)


def _settings(case: Case) -> Iterator[dict[str, Any]]:
    """Changes of everything but the features: back to the default, a list by one entry less, a part by one field."""
    for change in _defaults(case):
        if "features" not in change:
            yield change
    for name in ("steps", "bad_indices", "bad_offsets", "poison"):
        entries = getattr(case, name)
        for position, entry in enumerate(entries):
            yield {name: entries[:position] + entries[position + 1 :]}
            for change in _defaults(entry):
                yield {name: (*entries[:position], _with(entry, **change), *entries[position + 1 :])}
    for name in ("optimizer", "per_sample_weights", "layouts", "weight_values", "gradient_values", "state_values"):
        part = getattr(case, name)
        if part is not None:
            for change in _defaults(part):
                yield {name: _with(part, **change)}
    for ranks in _smaller(case.ranks, 0):
        yield {"ranks": ranks}


def _defaults(part: msgspec.Struct) -> Iterator[dict[str, Any]]:
    for field in msgspec.structs.fields(part):
        if field.default is not msgspec.NODEFAULT and getattr(part, field.name) != field.default:
            yield {field.name: field.default}


def _smaller(number: int, least: int) -> Iterator[int]:
    """Ascending numbers below one, and the one next to it."""
    yield from (n for n in NUMBERS if least <= n < number - 1)
    if number > least:
        yield number - 1


def _with(part: Part, **changes: Any) -> Part:
    """A part with other fields; a shared table has no size of its own."""
    if isinstance(part, Feature) and changes.get("table") is not None:
        changes = {**changes, "rows": 1, "dim": 1}
    return msgspec.structs.replace(part, **changes)
