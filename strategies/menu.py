"""The menu: for every axis of a case, what may be drawn. A property narrows it; a forced pair narrows it further."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from equivcheck import axes
from equivcheck.case import (
    Bag,
    BoundsCheck,
    Call,
    Case,
    Decay,
    Distribution,
    Feature,
    IndexFault,
    IndexType,
    Layout,
    Lookup,
    OffsetFault,
    Optimizer,
    OptimizerKind,
    PerSampleWeights,
    Place,
    Pooling,
    Rounding,
    Special,
)
from equivcheck.formats import DType
from strategies.data import Recipe


class Sharing(enum.Enum):
    """Whether features share tables: never, by chance, surely, and surely with a map that is not ascending."""

    NEVER = "never"
    MAYBE = "maybe"
    SURELY = "surely"
    UNSORTED = "unsorted"


class BagKind(enum.Enum):
    """How the bags of a feature are given."""

    LISTED = "listed"
    TRAFFIC = "traffic"


def ascending(edges: tuple[int, ...], between: tuple[int, ...] = (), often: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Edges and values between, ascending, so that one choice from them shrinks to the least that still fails.

    `often` may repeat values: small ones should come more often than large ones.
    """
    return tuple(sorted((*edges, *between, *often)))


_SMALL_DIMS = (4, 4, 8, 8, 4, 12, 16, 16, 24, 2, 3, 6)
ANY_DIMS = ascending(axes.DIMS, (6, 10, 16, 24, 48, 96, 192, 384), _SMALL_DIMS)
QUAD_DIMS = tuple(dim for dim in ANY_DIMS if dim % 4 == 0)
POWER_DIMS = tuple(dim for dim in ANY_DIMS if dim & (dim - 1) == 0)
TIMES = ascending(axes.RUN_LENGTHS, (3, 4, 5, 12, 24, 48, 100, 300, 768, 3000), (1,) * 16 + (2,) * 8 + (3, 3, 5, 8))
BAG_TIMES = ascending(tuple(n for n in axes.BAG_LENGTHS if n), (), TIMES)
COPIES = ascending(axes.BATCHES[1:], (3, 5, 8, 16, 100, 127, 1024), (1,) * 20 + (2,) * 3)
TRAFFIC_BAGS = ascending(axes.LOOKUPS[1:], (16, 100, 300, 2000, 4096, 16384))


@dataclass(frozen=True)
class Menu:
    """Options for every axis of a case, the simplest first: towards it a failure shrinks.

    An axis with one option is pinned. `hot` are run lengths of which the case surely has one (0: none).
    `feature_counts` are numbers of features (0: as many as the list happens to hold), `dims` and `times` lists of which
    one is drawn for the whole case.
    """

    weights: tuple[DType, ...] = (DType.FP32, DType.FP16, DType.BF16)
    output: tuple[DType, ...] = (DType.FP32, DType.FP16, DType.BF16)
    accumulation: tuple[DType, ...] = (*(DType.FP32,) * 20, DType.FP16, DType.FP64)
    indices: tuple[IndexType, ...] = (IndexType.INT64, IndexType.INT32)
    pooling: tuple[Pooling, ...] = (Pooling.SUM, Pooling.MEAN, Pooling.NONE)
    weighted: tuple[DType | None, ...] = (None, DType.FP32, DType.FP16)
    weight_gradient: tuple[bool, ...] = (False, True, True)

    optimizers: tuple[OptimizerKind, ...] = tuple(OptimizerKind)
    decay: tuple[Decay, ...] = tuple(Decay)
    adam_steps: tuple[int, ...] = axes.ADAM_STEPS
    rounding: tuple[Rounding, ...] = tuple(Rounding)
    recipes: tuple[Recipe, ...] = (*(Recipe.EXACT,) * 2, Recipe.SMOOTH, *Recipe)
    poison: tuple[tuple[Place, Special] | None, ...] = (None,)

    bounds: tuple[BoundsCheck, ...] = tuple(BoundsCheck)
    index_faults: tuple[IndexFault, ...] = tuple(IndexFault)
    offset_faults: tuple[OffsetFault, ...] = tuple(OffsetFault)

    features_most: int = 4
    feature_counts: tuple[int, ...] = (*(0,) * 150, *axes.FEATURES[2:])
    dims: tuple[tuple[int, ...], ...] = (QUAD_DIMS, ANY_DIMS)
    rows: tuple[int, ...] = ascending(axes.ROWS[1:], (3, 5, 100, 128, 300), (1, 2, 2, 3, 3, 5, 10, 16))
    rowless: tuple[bool, ...] = (*(False,) * 12, True)
    sharing: tuple[Sharing, ...] = (Sharing.NEVER, Sharing.MAYBE)
    ranks: tuple[int, ...] = (*(0,) * 6, 1, 2, 3, 8)
    kinds: tuple[BagKind, ...] = (*(BagKind.LISTED,) * 6, BagKind.TRAFFIC)
    times: tuple[tuple[int, ...], ...] = (TIMES, BAG_TIMES)
    copies: tuple[int, ...] = COPIES
    hot: tuple[int, ...] = (0,)
    traffic_bags: tuple[int, ...] = TRAFFIC_BAGS
    traffic_lengths: tuple[int, ...] = (1, 1, 2, 3, 8, 17, 33)
    distributions: tuple[Distribution, ...] = tuple(Distribution)
    frozen: tuple[bool, ...] = (*(False,) * 7, True)
    empty: tuple[bool, ...] = (*(False,) * 79, True)

    layouts: tuple[Layout, ...] = tuple(Layout)
    calls: tuple[Call, ...] = (*(Call.STEPS,) * 5, *Call)
    steps: tuple[int, ...] = (1, 2, 3)

    forced: tuple[Forced | None, ...] = (None,)

    def narrowed(self, forced: Forced) -> Menu:
        """With each axis of `forced` narrowed to what both allow; where that is nothing, this menu counts."""
        changes: dict[str, Any] = {}
        for name, options in forced.options.items():
            own = getattr(self, name)
            both = options if name in _LISTS else tuple(option for option in own if option in options)
            changes[name] = both or own
        return replace(self, **changes)

    def supported(self, supports: Callable[[Case], object]) -> Menu:
        """Without what a subject refuses already in the simplest case that has it.

        What it refuses only in combination stays. A property draws from this menu most of the time, and from the
        whole one for the rest, so that what is refused stays counted.
        """
        changes: dict[str, Any] = {}
        for name, probe in _PROBES.items():
            options = tuple(option for option in getattr(self, name) if supports(probe(option)))
            if options:
                changes[name] = options
        whole = Case(features=(Feature(dim=1, bags=(Bag((Lookup(),)),)),))
        if not supports(whole):
            changes["dims"] = tuple(part for part in self.dims if all(dim % 4 == 0 for dim in part)) or self.dims
        return replace(self, **changes)


@dataclass(frozen=True)
class Forced:
    """A combination of axes that a case surely has: a name, and the options that bring it about."""

    name: str
    options: dict[str, tuple[Any, ...]] = field(hash=False)


_LISTS = {"hot", "dims", "rows", "times", "traffic_bags", "traffic_lengths", "sharing", "kinds", "feature_counts", "ranks"}
"""Axes whose options are spelled out by a forced combination, whatever the menu has."""
_ONE = (Feature(dim=4, bags=(Bag((Lookup(),)),)),)


def _probe(axis: str) -> Callable[[Any], Case]:
    return lambda option: Case(features=_ONE, **{axis: option})


_PROBES: dict[str, Callable[[Any], Case]] = {
    **{axis: _probe(axis) for axis in ("weights", "output", "accumulation", "indices", "pooling", "rounding", "ranks")},
    "optimizers": lambda kind: Case(features=_ONE, optimizer=Optimizer(kind)),
    "bounds": lambda mode: Case(features=_ONE, bounds_check=mode),
    "calls": lambda call: Case(features=_ONE, call=call),
    "weighted": lambda dtype: Case(
        features=_ONE, per_sample_weights=None if dtype is None else PerSampleWeights(dtype)
    ),
}
_unknown = set(_PROBES) - {part.name for part in fields(Menu)}
assert not _unknown, _unknown
