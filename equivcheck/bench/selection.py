"""Which points a run measures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from equivcheck.bench.point import Kind, Point
from equivcheck.bench.shards import points_of, shipped
from equivcheck.bench.sweep import sweep
from equivcheck.case import CaseError


@dataclass(frozen=True)
class Wanted:
    """What was asked for.

    Attributes
    ----------
    shards
        Shard files; none for those that come with equivcheck.
    kinds
        Names of classes; none for all.
    name
        A part of the points' names.
    quick
        The first point of each class.
    batch
        Of the shards, or None.
    """

    shards: tuple[Path, ...] = ()
    kinds: tuple[str, ...] = ()
    name: str = ""
    quick: bool = False
    batch: int | None = None


def select(wanted: Wanted) -> tuple[Point, ...]:
    """Points in the order of measurement: the shards' behind the first of each class.

    Raises
    ------
    CaseError
        If a class does not exist, no point is left, or a shard file is wrong.
    """
    kinds = [_kind(name) for name in wanted.kinds] or list(Kind)
    points = list(sweep())
    of_shards = [point for path in wanted.shards or shipped() for point in points_of(path, wanted.batch)]
    if len({point.name for point in of_shards}) < len(of_shards):
        raise CaseError("two shard files have one name; name them differently, since points are named after them")
    first = len({point.kind for point in points})
    points[first:first] = of_shards
    points = [point for point in points if point.kind in kinds and wanted.name in point.name]
    if wanted.quick:
        points = [next(point for point in points if point.kind is kind) for kind in _there(points)]
    if not points:
        raise CaseError(f"no point of {', '.join(kinds)} has {wanted.name!r} in its name; see docs/bench.md")
    return tuple(points)


def _there(points: list[Point]) -> list[Kind]:
    return list(dict.fromkeys(point.kind for point in points))


def _kind(name: str) -> Kind:
    try:
        return Kind(name)
    except ValueError:
        raise CaseError(f"class {name!r} does not exist; there are {', '.join(Kind)}") from None
