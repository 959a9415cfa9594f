"""A case for each edge and pair that coverage counts, whatever the seed: chance alone misses a dozen in 3,000 cases.

For a goal, the menu is narrowed to what brings it about, and cases are drawn from seeds until one has it. A case that
has several counts for all of them, so that some 200 cases have everything that a subject takes.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec
from hypothesis import strategies as st

from equivcheck import words
from equivcheck.case import (
    BoundsCheck,
    Call,
    Case,
    Decay,
    Distribution,
    Feature,
    IndexFault,
    IndexType,
    Layout,
    OffsetFault,
    OptimizerKind,
    Place,
    Pooling,
    Regime,
    Rounding,
    Special,
    Values,
)
from equivcheck.coverage import GOALS, Goal, reached
from equivcheck.facts import Choice, Facts, Flag, Number
from equivcheck.facts_of_case import facts
from equivcheck.formats import DType
from strategies import whole
from strategies.budget import Budget, Profile
from strategies.chooser import SeededChooser
from strategies.data import Recipe
from strategies.menu import ANY_DIMS, PROBED, UPDATING, BagKind, Menu, Sharing, Supports

SHARES = 2
"""Slices that go through all goals together, each through every second case."""
MOST_DRAWN = 400
"""Cases that are drawn for a goal, in search of one that has it."""
MOST_REFUSED = 8
"""Of those that have it, as many as the subject refuses before the goal is given up."""

Options = dict[str, Any]
"""What to replace of a menu."""

_MENU = Menu(forced=(None,))


def edge_cases(
    budget: Budget = Profile.DEFAULT.budget, *, supports: Supports | None = None, seed: int = 0, part: int = 0
) -> st.SearchStrategy[Case]:
    """Every edge and pair within the budget that a subject takes, gone through by `SHARES` parts together.

    Hypothesis draws no case twice, so that it takes each one before it ends. Another seed, and further parts, have
    other cases of the same edges.
    """
    found = _known(budget, supports, words.derive(seed, "edges", part // SHARES))
    return st.sampled_from(found[part % SHARES :: SHARES])


def covering(budget: Budget, supports: Supports | None = None, seed: int = 0) -> tuple[Case, ...]:
    """Cases that together have every goal, the shortest first: towards it a failure shrinks.

    Of goals that the subject takes in no case, there are cases that it refuses, so that this is counted.
    """
    taken = supports or (lambda case: True)
    menu = _MENU if supports is None else _MENU.supported(supports)
    had: set[str] = set()
    refused: set[str] = set()
    hopeless: set[str] = set()
    cases = []
    for goal in GOALS:  # single traits come before combinations
        traits = {part.name for part in goal.traits}
        if goal.name in had or goal.elements > budget.work or (goal.name in refused and hopeless & traits):
            continue
        most_refused = 1 if hopeless & traits else MOST_REFUSED
        found = _drawn(goal, menu, budget, taken, words.derive(seed, goal.name), most_refused)
        if found is None:
            continue
        case, of_case, is_taken = found
        if is_taken or goal.name not in refused:
            cases.append(case)
            (had if is_taken else refused).update(reached(of_case))
        if not is_taken and len(traits) == 1:
            hopeless |= traits
    return tuple(sorted(cases, key=lambda case: len(case.to_json())))


_known = lru_cache(maxsize=1)(covering)
"""A process that goes through several parts for one subject makes their list once. A method is equal to itself."""


def _drawn(
    goal: Goal, menu: Menu, budget: Budget, supports: Supports, seed: int, most_refused: int
) -> tuple[Case, Facts, bool] | None:
    """The first case of a goal that the subject takes, or else refuses; its facts; and which."""
    options: Options = {}
    for part in goal.traits:
        options |= _options(part.name)
    narrowed = _narrowed(menu, options)
    refused = None
    left = most_refused
    for number in range(MOST_DRAWN):
        try:
            case = whole.case(SeededChooser(words.derive(seed, number)), narrowed, budget)
            for part in goal.traits:
                case = _changed(case, *_split(part.name))
        except ValueError:  # a combination that no case may have
            continue
        of_case = facts(case)
        if not goal.holds(of_case):
            continue
        if supports(case):
            return case, of_case, True
        refused = refused or (case, of_case, False)
        left -= 1
        if not left:
            break
    return refused


def _narrowed(menu: Menu, options: Options) -> Menu:
    """The menu with these options, rather those that it has, too: the others are refused in the simplest case."""
    kept = dict(options)
    for axis in PROBED.intersection(options):
        kept[axis] = tuple(option for option in options[axis] if option in getattr(menu, axis)) or options[axis]
    return replace(menu, **kept)


def _options(name: str) -> Options:
    """What of a menu brings a trait about; nothing where chance does."""
    axis, value = _split(name)
    if name in _NAMED:
        return _NAMED[name]
    if axis in _NUMBERS:
        return _NUMBERS[axis](int(value))
    return _CHOICES[axis](value) if axis in _CHOICES else {}


def _split(name: str) -> tuple[str, str]:
    """Axis and value of a trait that is a comparison; of others, the name and nothing."""
    axis, _, value = re.sub(r"[<>]?=|<", "|", name, count=1).partition("|")
    return axis, value


def _changed(case: Case, axis: str, value: str) -> Case:
    """A case with the values, layout or map that a trait names: these go with every other choice."""
    if axis == Choice.MAP:
        return _mapped(case, json.loads(value))
    field = _FIELDS.get(axis)
    if field is None:
        return case
    owner, name = field
    if owner == "layouts":
        return msgspec.structs.replace(case, layouts=msgspec.structs.replace(case.layouts, **{name: Layout(value)}))
    values = Values(Regime(value))
    if owner == "case":
        return msgspec.structs.replace(case, **{name: values})
    if case.per_sample_weights is None:
        return case
    return msgspec.structs.replace(
        case, per_sample_weights=msgspec.structs.replace(case.per_sample_weights, values=values)
    )


def _mapped(case: Case, tables: list[int]) -> Case:
    """The case with copies of its first feature and their tables in this order."""
    first = case.features[0]
    owners = sorted(set(tables))
    further = [table for table in owners for _ in range(tables.count(table) - 1)]
    shared = [Feature(table=table, bags=first.bags, traffic=first.traffic) for table in further]
    numbers = [*owners, *further]
    order = next(
        seed
        for seed in itertools.count()
        if [numbers[place] for place in words.permutation(seed, len(numbers))] == tables
    )
    return msgspec.structs.replace(case, features=(*(first for _ in owners), *shared), feature_order=order)


_FIELDS: dict[str, tuple[str, str]] = {
    Choice.REGIME_WEIGHTS: ("case", "weight_values"),
    Choice.REGIME_GRADIENT: ("case", "gradient_values"),
    Choice.REGIME_STATE: ("case", "state_values"),
    Choice.REGIME_PSW: ("per_sample_weights", "values"),
    Choice.LAYOUT_INDICES: ("layouts", "indices"),
    Choice.LAYOUT_OFFSETS: ("layouts", "offsets"),
    Choice.LAYOUT_PSW: ("layouts", "per_sample_weights"),
    Choice.LAYOUT_GRADIENT: ("layouts", "gradient"),
}

_ALONE: Options = {"feature_counts": (0,), "feature_parts": (1,), "sharing": (Sharing.NEVER,)}
_WEIGHTED: Options = {"weighted": (DType.FP32, DType.FP16)}
_VARIABLE: Options = {"ranks": (1, 2, 3), "pooling": (Pooling.SUM, Pooling.MEAN)}
_ROWLESS: Options = {"rowless": (True,), "feature_parts": (3, 4)}
_UNEVEN_DIMS = tuple(dim for dim in ANY_DIMS if dim % 4)
_STATE: Options = {"optimizers": tuple(OptimizerKind)[1:]}
_CHECKED = tuple(BoundsCheck)[1:]


def _traffic(bags: Iterable[int], lengths: tuple[int, ...] = (1,), **options: Any) -> Options:
    """One feature with bags of traffic."""
    sizes: Options = {"traffic_bags": tuple(bags), "traffic_lengths": lengths, "hot": (0,)}
    return {"kinds": (BagKind.TRAFFIC,), "ranks": (0,), **sizes, **_ALONE, **options}


def _batch(bags: int) -> Options:
    return _traffic((bags,)) if bags else {"empty": (True,), "kinds": (BagKind.LISTED,), "hot": (0,), **_ALONE}


def _cyclic(rows: int, times: int) -> Options:
    """Each of so many rows, so often."""
    return _traffic((rows * times,), rows=(rows,), distributions=(Distribution.CYCLIC,), rowless=(False,))


_NUMBERS: dict[str, Callable[[int], Options]] = {
    Number.RUN: lambda n: {"hot": (n,), "feature_counts": (0,)} if n > 1 else {},
    Number.LOOKUPS: lambda n: _traffic((n,)) if n else {"empty": (True,)},
    Number.BAG: lambda n: _traffic((1, 2), (n,)) if n else {"empty": (True,)},
    Number.BATCH: _batch,
    Number.FEATURES: lambda n: {"feature_counts": (n,), "feature_parts": (1, min(n, 2)), "hot": (0,)},
    Number.ROWS: lambda n: {"rows": (n,)} if n else {"rowless": (True,)},
    Number.DIM: lambda n: {"dims": ((n,),), "hot": (0,)},
    Number.DISTINCT_ROWS: lambda n: _cyclic(n, 1),
    Number.HOT_ROWS: lambda n: _cyclic(n, 33),
    Number.DIM_RATIO: lambda n: {"dims": ((1, 2, 4, 512, 1024),), "feature_parts": (3, 4), "hot": (0,)},
    Number.ADAM_STEP: lambda n: {"adam_steps": (n,), "optimizers": tuple(OptimizerKind)[3:]},
    Number.RANKS: lambda n: {"ranks": (n,)},
    Number.STEPS: lambda n: {"steps": (n,)},
}
_CHOICES: dict[str, Callable[[str], Options]] = {
    Choice.WEIGHTS: lambda value: {"weights": (DType(value),)},
    Choice.OUTPUT: lambda value: {"output": (DType(value),)},
    Choice.ACCUMULATION: lambda value: {"accumulation": (DType(value),)},
    Choice.INDICES: lambda value: {"indices": (IndexType(value),)},
    Choice.POOLING: lambda value: {"pooling": (Pooling(value),)},
    Choice.PSW: lambda value: {"weighted": (None if value == "none" else DType(value),)},
    Choice.OPTIMIZER: lambda value: {"optimizers": (OptimizerKind(value),)},
    Choice.DECAY: lambda value: {"decay": (Decay(value),), "optimizers": (OptimizerKind.ROWWISE_ADAGRAD,)},
    Choice.ROUNDING: lambda value: {"rounding": (Rounding(value),)},
    Choice.BOUNDS: lambda value: {"bounds": (BoundsCheck(value),)},
    Choice.INDEX_FAULT: lambda value: {
        "bounds": _CHECKED,
        "index_faults": (IndexFault(value),),
        "index_counts": (1,),
    },
    Choice.OFFSET_FAULT: lambda value: {
        "bounds": _CHECKED,
        "offset_faults": (OffsetFault(value),),
        "offset_counts": (1,),
    },
    Choice.CALL: lambda value: {"calls": (Call(value),)},
    Choice.POISON: lambda value: {"poison": tuple((Place(value), special) for special in Special), **_WEIGHTED},
    Choice.POISON_VALUE: lambda value: {"poison": tuple((place, Special(value)) for place in Place), **_WEIGHTED},
    Choice.REGIME_WEIGHTS: lambda value: {"recipes": (Recipe.ANY,)},
    Choice.REGIME_GRADIENT: lambda value: {"recipes": (Recipe.ANY,)},
    Choice.REGIME_STATE: lambda value: {"recipes": (Recipe.ANY,), **_STATE},
    Choice.REGIME_PSW: lambda value: {"recipes": (Recipe.ANY,), **_WEIGHTED},
    Choice.LAYOUT_PSW: lambda value: _WEIGHTED,
    Choice.DISTRIBUTION: lambda value: _traffic((9, 33, 100), (1, 3), distributions=(Distribution(value),)),
    Choice.MAP: lambda value: {"sizes": (32,), "hot": (0,), **_ALONE},
}
_NAMED: dict[str, Options] = {
    "not dim>=32": {"widest": (31,)},
    "not lookups>=33": _traffic((1, 2, 7, 8, 9, 31, 32)),
    "learning rate>=100": {"recipes": (Recipe.SMOOTH,)},
    Flag.ALL_BAGS_EMPTY: {"empty": (True,), "kinds": (BagKind.LISTED,)},
    Flag.ALL_TABLES_WITHOUT_ROWS: {"rowless": (True,), **_ALONE},
    Flag.FIRST_TABLE_WITHOUT_ROWS: _ROWLESS,
    Flag.MIDDLE_TABLE_WITHOUT_ROWS: _ROWLESS,
    Flag.LAST_TABLE_WITHOUT_ROWS: _ROWLESS,
    Flag.ONE_OF_MANY_TOUCHED: _traffic((1,), rows=(1000, 4097), rowless=(False,)),
    Flag.DIM_NOT_MULTIPLE_OF_4: {"dims": (_UNEVEN_DIMS,)},
    Flag.FEW_SAMPLES: {"feature_counts": (31, 33), **_VARIABLE},
    Flag.VBE: _VARIABLE,
    f"not {Flag.VBE}": {"ranks": (0,)},
    Flag.SHARING: {"sharing": (Sharing.SURELY,)},
    f"not {Flag.SHARING}": {"sharing": (Sharing.NEVER,)},
    Flag.UNSORTED_SHARING: {"sharing": (Sharing.UNSORTED,)},
    Flag.PSW: _WEIGHTED,
    f"not {Flag.PSW}": {"weighted": (None,)},
    Flag.BACKWARD: {"calls": UPDATING},
    Flag.REPEATED: {"rows": (1, 2, 3), "rowless": (False,)},
    f"not {Flag.REPEATED}": {"rows": (4097,), "rowless": (False,), "distributions": (Distribution.CYCLIC,)},
}
