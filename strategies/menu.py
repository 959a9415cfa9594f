"""The menu: for every axis of a case, what may be drawn. A property narrows it; a forced pair narrows it further."""

from __future__ import annotations

import enum
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from functools import cached_property
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
from strategies.data import BETAS2, Recipe

Supports = Callable[[Case], object]
"""Whether a subject takes a case: a backend's method."""


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
# Values between are odd: what goes wrong with the rest after blocks of 2, 4 or 8 can shrink by them.
TIMES = ascending(axes.RUN_LENGTHS, (3, 4, 5, 11, 23, 45, 99, 301, 767, 3001), (1,) * 16 + (2,) * 8 + (3, 3, 5, 8))
BAG_TIMES = ascending(tuple(n for n in axes.BAG_LENGTHS if n), (), TIMES)
COPIES = ascending(axes.BATCHES[1:], (3, 5, 8, 16, 100, 127, 1024), (1,) * 20 + (2,) * 3)
ROWS = ascending((*axes.ROWS[1:], *axes.DISTINCT_ROWS), (3, 5, 100, 128, 200, 300), (1, 2, 2, 3, 3, 5, 10, 16))
TRAFFIC_BAGS = ascending(axes.LOOKUPS[1:], (16, 100, 300, 2000, 4096, 16384))
UPDATING = tuple(call for call in Call if call is not Call.FORWARD_ONLY)
CALLS = (*(Call.STEPS,) * 12, *UPDATING, Call.FORWARD_ONLY)

_FOR_OPTIMIZERS = (Recipe.ROOTS, Recipe.STILL)
"""Data that show what an optimizer does, and hardly anything else."""


@dataclass(frozen=True, repr=False)
class Menu:
    """Options for every axis of a case, the simplest first: towards it a failure shrinks.

    An axis with one option is pinned. `hot` are run lengths of which the case surely has one (0: none), in one bag, or
    `spread` over as many. `feature_parts` are lengths of the list of features, `feature_counts` numbers up to which it
    is repeated (0: not).
    `dims` and `times` are lists of which one is drawn for the whole case, `widest` is the limit of its dims. `forced`
    are combinations of which one is drawn for the case, or None. In a MEAN of exact data, bags have lengths that are
    powers of two, so that dividing rounds nothing; only a run of `hot` lookups up to `longest_uneven` may be a bag.

    Steps are of the whole batch first, and smaller ones later, or `growing`: the whole batch comes last.
    Smaller ones have `kept` so many lookups of each bag, or all (None).

    `sizes` are parts of the budget that a case may use: most cases are small, so that a second holds many of them.
    """

    name: str = "any"
    weights: tuple[DType, ...] = (DType.FP32, DType.FP16, DType.BF16)
    output: tuple[DType, ...] = (DType.FP32, DType.FP16, DType.BF16)
    accumulation: tuple[DType, ...] = (*(DType.FP32,) * 20, DType.FP16, DType.FP64)
    indices: tuple[IndexType, ...] = (IndexType.INT64, IndexType.INT32)
    pooling: tuple[Pooling, ...] = (Pooling.SUM, Pooling.MEAN, Pooling.NONE)
    weighted: tuple[DType | None, ...] = (None, DType.FP32, DType.FP16)
    weight_gradient: tuple[bool, ...] = (False, True, True)

    optimizers: tuple[OptimizerKind, ...] = tuple(OptimizerKind)
    decay: tuple[Decay, ...] = tuple(Decay)
    adam_steps: tuple[int, ...] = ascending(axes.ADAM_STEPS, (100, 5000))
    beta2: tuple[float, ...] = BETAS2
    rounding: tuple[Rounding, ...] = tuple(Rounding)
    recipes: tuple[Recipe, ...] = (
        *(Recipe.EXACT,) * 3,
        *(Recipe.SMOOTH,) * 2,
        *(recipe for recipe in tuple(Recipe)[2:] if recipe not in _FOR_OPTIMIZERS),
    )
    poison: tuple[tuple[Place, Special] | None, ...] = (None,)

    bounds: tuple[BoundsCheck, ...] = tuple(BoundsCheck)
    index_faults: tuple[IndexFault, ...] = tuple(IndexFault)
    offset_faults: tuple[OffsetFault, ...] = tuple(OffsetFault)
    index_counts: tuple[int, ...] = (0, 0, 1, 1, 2, 3)
    offset_counts: tuple[int, ...] = (0, 0, 0, 1, 1, 2)
    offset_positions: tuple[int, ...] = (0, 0, 1, 2, 3, 5, 7, 31, 63, 255, 1000)

    feature_parts: tuple[int, ...] = (1, 1, 1, 2, 2, 3, 4)
    feature_counts: tuple[int, ...] = (*(0,) * 150, *axes.FEATURES[2:])
    sizes: tuple[int, ...] = (32, 32, 32, 8, 8, 1)
    dims: tuple[tuple[int, ...], ...] = (QUAD_DIMS, ANY_DIMS)
    widest: tuple[int, ...] = (*(2**31,) * 15, 31)
    rows: tuple[int, ...] = ascending(
        (*axes.ROWS[1:], *axes.DISTINCT_ROWS), (3, 5, 100, 128, 200, 300), (1, 2, 2, 3, 3, 5, 10, 16)
    )
    rowless: tuple[bool, ...] = (*(False,) * 12, True)
    sharing: tuple[Sharing, ...] = (*(Sharing.NEVER,) * 10, *(Sharing.MAYBE,) * 4, Sharing.SURELY, Sharing.UNSORTED)
    orders: tuple[int, ...] = tuple(range(12))
    ranks: tuple[int, ...] = (*(0,) * 6, 1, 2, 3, 8)
    kinds: tuple[BagKind, ...] = (*(BagKind.LISTED,) * 6, BagKind.TRAFFIC)
    times: tuple[tuple[int, ...], ...] = (TIMES, BAG_TIMES)
    copies: tuple[int, ...] = COPIES
    hot: tuple[int, ...] = (*(0,) * 8 * len(TIMES), *TIMES)
    spread: tuple[bool, ...] = (False, True)
    longest_uneven: int = 0
    traffic_bags: tuple[int, ...] = TRAFFIC_BAGS
    traffic_lengths: tuple[int, ...] = (1, 1, 2, 3, 8, 17, 33)
    distributions: tuple[Distribution, ...] = tuple(Distribution)
    frozen: tuple[bool, ...] = (*(False,) * 7, True)
    empty: tuple[bool, ...] = (*(False,) * 79, True)

    layouts: tuple[Layout, ...] = tuple(Layout)
    calls: tuple[Call, ...] = CALLS
    steps: tuple[int, ...] = (1, 2, 3)
    growing: tuple[bool, ...] = (False,)
    kept: tuple[int | None, ...] = (None, 1, 2, 0)

    forced: tuple[Forced | None, ...] = (None,)

    def __repr__(self) -> str:
        """The name alone: Hypothesis prints strategies, and the options fill a screen."""
        return f"Menu({self.name!r})"

    @cached_property
    def pinned(self) -> tuple[dict[str, tuple[int, int]], ...]:
        """For each of `forced`, per axis that it pins, the first and last position of what it allows.

        An axis that has none of it is left alone: the menu counts.
        """
        return tuple({} if forced is None else self._pins(forced) for forced in self.forced)

    def _pins(self, forced: Forced) -> dict[str, tuple[int, int]]:
        pins = {}
        for name, allowed in forced.options.items():
            positions = [i for i, option in enumerate(getattr(self, name)) if option in allowed]
            if positions:
                if positions != list(range(positions[0], positions[-1] + 1)):
                    raise ValueError(
                        f"forced {forced.name!r}: {allowed} are not neighbours among the options of {name}"
                    )
                pins[name] = (positions[0], positions[-1])
        return pins

    def supported(self, supports: Supports) -> Menu:
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
    options: dict[str, Container[Any]] = field(hash=False)


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
PROBED = frozenset(_PROBES)
"""Axes of which a subject's menu has only what it takes in the simplest case."""
