"""Features, bags and lookups: the structure of a case, drawn inside a size budget.

A feature is a table of its own or a reference back to an earlier one's, and a list of bags; a bag is a list of
(row, times) and a number of copies. Run lengths and bag lengths follow, so that they cannot disagree, and every
feature, bag and lookup can be deleted alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from equivcheck.case import Bag, Distribution, Feature, Lookup, Traffic
from strategies.budget import Budget
from strategies.chooser import Axis, Chooser, draw_up_to, smallest
from strategies.menu import BagKind, Sharing

_ROW_IDS = (*(0,) * 6, *(1,) * 3, 2, 2, 3, 5, 9, 62, 63, 64, 999, 4095, 2**62, 2**62)
"""Rows to look up, before they are clipped to the table; the largest is every table's last row."""
_REFERENCES = (None, None, 0, 0, 1, 2)
_BAG_COUNTS = (0, 1, 1, 1, 2, 2, 2, 3, 4, 6)
_LOOKUP_COUNTS = (0, 0, 1, 1, 1, 2, 2, 3)


@dataclass(frozen=True)
class Plan:
    """What was decided for the whole case before its features are drawn; fields are those of `Menu`."""

    dims: Axis[int]
    rows: Axis[int]
    times: Axis[int]
    copies: Axis[int]
    kinds: Axis[BagKind]
    traffic_bags: Axis[int]
    traffic_lengths: Axis[int]
    distributions: Axis[Distribution]
    frozen: Axis[bool]
    sharing: Sharing
    feature_parts: tuple[int, ...]
    feature_count: int
    ranks: int
    hot: int
    widest: int
    rowless: bool
    one_dim: bool
    power_dims: bool
    round_lengths: bool
    spread: Axis[bool]
    longest_uneven: int
    most_lookups: int


def features(chooser: Chooser, plan: Plan, budget: Budget) -> tuple[Feature, ...]:
    """Features of a case; shrinks towards one table of one row and one column without bags."""
    drawing = _Drawing(chooser, plan, budget)
    drawn = chooser.several(drawing.feature, plan.feature_parts)
    return _repeated(_shared([f for f in drawn if f is not None], chooser, plan), plan)


class _Drawing:
    """Draws features one after another, and keeps count of the room that is left."""

    def __init__(self, chooser: Chooser, plan: Plan, budget: Budget) -> None:
        self._chooser = chooser
        self._choose = chooser.choose
        self._several = chooser.several
        self._plan = plan
        self._work = budget.work
        self._tables = budget.tables
        self._output = budget.output
        self._lookups = plan.most_lookups
        self._rows = self._dim = 1
        self._sum_of_dims = 0
        self._longest = 1
        self._bags = 0
        self._owners: list[tuple[int, int, int]] = []
        self._count = 0
        self._hot = plan.hot

    def feature(self) -> Feature | None:
        """A feature, or None where there is no room for another.

        The same choices are made for every kind of feature, used or not: Hypothesis holds the case with the fewest
        choices for the simplest, and a reference shall not be simpler than a table.
        """
        plan = self._plan
        reference = self._choose(_REFERENCES) if plan.sharing is not Sharing.NEVER else None
        limit = self._dim_limit()
        rows, dim = self._table(limit)
        owner = None
        if reference is not None and self._owners:
            owner, rows, dim = self._owners[reference % len(self._owners)]
        if self._count and (dim > limit or (owner is None and dim > self._tables)):
            return None
        if owner is None:
            self._owners.append((self._count, rows, dim))
            self._tables -= rows * dim
        self._rows, self._dim = rows, dim
        self._count += 1
        self._sum_of_dims += dim
        self._bags = 0
        kind = plan.kinds.draw(self._chooser)
        listed = kind is BagKind.LISTED or plan.ranks > 1 or self._hot
        traffic = None if listed else self._traffic()
        if traffic is None:
            bags = self._list_of_bags()
        elif rows <= 1 and not traffic.ragged:  # a shrinker gets here, but not from traffic to a list
            bags, traffic = (Bag((Lookup(0, traffic.length),), traffic.bags),), None
        else:
            bags = ()
        self._longest = max(self._longest, self._bags)
        frozen = plan.frozen.draw(self._chooser)
        if owner is not None:
            return Feature(table=owner, bags=bags, traffic=traffic, frozen=frozen)
        return Feature(rows=rows, dim=dim, bags=bags, traffic=traffic, frozen=frozen)

    def _dim_limit(self) -> int:
        """Widest table that leaves room for its output, and for what the case surely has."""
        plan = self._plan
        work, output = self._work // 2, self._output // self._longest - self._sum_of_dims
        if self._hot:
            work, output = work // self._hot, min(output, self._output // self._hot)
        if plan.kinds.least > 0 or len(plan.kinds.options) == 1:  # traffic for sure
            work //= smallest(plan.traffic_bags) * smallest(plan.traffic_lengths) * 2
        return max(min(work, output, plan.widest), 0 if self._count else 1)

    def _table(self, limit: int) -> tuple[int, int]:
        """Rows and width."""
        plan = self._plan
        dim = draw_up_to(plan.dims, self._chooser, min(limit, max(1, self._tables // smallest(plan.rows))))
        if plan.power_dims:
            dim = 1 << dim.bit_length() - 1
        if plan.one_dim and self._owners:
            dim = self._owners[0][2]
        rows = min(draw_up_to(plan.rows, self._chooser, self._tables // dim), max(1, self._tables // dim))
        return (0 if plan.rowless and self._choose((False, False, True)) else rows), dim

    def _list_of_bags(self) -> tuple[Bag, ...]:
        hot = (self._hot_bag(),) if self._hot else ()
        return (*hot, *(bag for bag in self._several(self._bag, _BAG_COUNTS) if bag is not None))

    def _hot_bag(self) -> Bag:
        """A run of the length asked for: inside one bag, or one lookup in each of many bags."""
        hot, self._hot = self._hot, 0
        row = max(self._rows - 1, 0)  # the last, which other lookups seldom name
        rounded = self._plan.round_lengths and hot > self._plan.longest_uneven
        spread = self._plan.spread.draw(self._chooser) or (rounded and hot & (hot - 1) != 0)
        if spread:
            self._spend(1, hot)
            return Bag((Lookup(row),), copies=hot)
        self._spend(hot, 1)
        return Bag((Lookup(row, hot),))

    def _bag(self) -> Bag | None:
        plan = self._plan
        rank = self._choose(tuple(range(plan.ranks))) if plan.ranks > 1 else 0
        lookups = tuple(self._several(self._lookup, _LOOKUP_COUNTS))
        if plan.round_lengths:
            lookups = _rounded(lookups)
        length = sum(lookup.times for lookup in lookups)
        most = min(
            self._work // ((length + 1) * self._dim),
            self._output // self._sum_of_dims - self._bags,
            self._lookups // max(1, length),
        )
        if most < 1:
            return None
        copies = draw_up_to(plan.copies, self._chooser, most)
        self._spend(length, copies)
        return Bag(lookups, copies, rank)

    def _lookup(self) -> Lookup:
        row = min(self._choose(_ROW_IDS), max(self._rows - 1, 0))
        # A third of the room at most, so that the bag's other lookups, and rounding up its length, fit.
        most = min(self._work // (3 * self._dim), self._lookups // 6)
        return Lookup(row, draw_up_to(self._plan.times, self._chooser, most))

    def _traffic(self) -> Traffic:
        plan = self._plan
        most = min(self._work // (2 * self._dim), self._output // self._sum_of_dims, self._lookups)
        bags = min(draw_up_to(plan.traffic_bags, self._chooser, most), max(1, most))
        length = min(draw_up_to(plan.traffic_lengths, self._chooser, most // bags), max(1, most // bags))
        ragged = self._choose((False, True))
        if plan.round_lengths:
            length, ragged = 1 << length.bit_length() - 1, False
        ragged = ragged and 2 * length * bags <= most
        self._spend((2 if ragged else 1) * length, bags)
        # Bit by bit, so that traffic takes more choices than a list of one lookup, and is not the simpler one.
        seed = sum(self._choose((0, 1)) << bit for bit in range(4))
        return Traffic(bags, length, ragged, plan.distributions.draw(self._chooser), seed)

    def _spend(self, length: int, copies: int) -> None:
        self._work -= (length + 1) * copies * self._dim
        self._lookups -= length * copies
        self._bags += copies


def _rounded(lookups: tuple[Lookup, ...]) -> tuple[Lookup, ...]:
    """With the last one repeated until the bag's length is a power of two: 1/length is then exact."""
    length = sum(lookup.times for lookup in lookups)
    missing = (1 << max(length - 1, 0).bit_length()) - length
    if not length or not missing:
        return lookups
    last = lookups[-1]
    return (*lookups[:-1], Lookup(last.row, last.times + missing))


def _shared(drawn: list[Feature], chooser: Chooser, plan: Plan) -> list[Feature]:
    """With what `plan.sharing` is sure to want: a reference, and for a map that is not ascending a table between."""
    unsorted = plan.sharing is Sharing.UNSORTED
    if not unsorted and plan.sharing is not Sharing.SURELY:
        return drawn
    bags = (Bag((Lookup(),)),)
    which = chooser.choose(
        (0, 1)
    )  # also where it is not used: one kind of sharing shall not be simpler for its choices
    if unsorted and sum(feature.table is None for feature in drawn) < 2:
        drawn = [*drawn, Feature(rows=drawn[0].rows, dim=drawn[0].dim, bags=bags)]
    owners = [position for position, feature in enumerate(drawn) if feature.table is None]
    if unsorted:
        return [*drawn, Feature(table=0, bags=bags)]
    if len(owners) == len(drawn):
        return [*drawn, Feature(table=owners[which % len(owners)], bags=bags)]
    return drawn


def _repeated(drawn: list[Feature], plan: Plan) -> tuple[Feature, ...]:
    """In turn, up to the number of features asked for: tables are repeated as tables, references as references."""
    return tuple(drawn[position % len(drawn)] for position in range(max(len(drawn), plan.feature_count)))
