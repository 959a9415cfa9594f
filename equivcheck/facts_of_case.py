"""The facts of a case, computed once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, pairwise
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from equivcheck import one_pass
from equivcheck import words as w
from equivcheck.bags import FeatureBags, bags_of
from equivcheck.captured import CapturedBatch
from equivcheck.case import BoundsCheck, Call, Case, IndexFault, OffsetFault, OptimizerKind, PerSampleWeights, Step
from equivcheck.facts import Choice, Facts, Flag, Number
from equivcheck.oracle.lookups import Repair, repair
from equivcheck.problem import Batch, Problem, materialise

HOT_RUN = 33
"""A row is hot from this run length on: longer than a warp."""
MANY_ROWS = 1000
WIDE = 1024
"""A table is wide above this: FBGEMM's CUDA TBE then takes another forward."""
SHORT_BAG = 8
"""Bags are short up to this length on average: that forward then gives `WARP` of them to a warp."""
WARP = 32

_POSITIVE = (OffsetFault.BEYOND_END, OffsetFault.PLUS_ONE, OffsetFault.LARGEST)
"""What leaves a first offset that is above zero."""

_KNOWN: WeakKeyDictionary[Problem, Facts] = WeakKeyDictionary()
"""Every finding asks for the facts of the same problem, and coverage once more."""


def facts(case: Case, problem: Problem | None = None) -> Facts:
    """Facts of a case, computed once a problem; 0.3 ms typically.

    A captured batch needs its `problem`, which holds the arrays.
    """
    if problem is None or problem.case is not case:
        return _computed(case, problem)
    found = _KNOWN.get(problem)
    if found is None:
        _KNOWN[problem] = found = _computed(case, problem)
    return found


def _computed(case: Case, problem: Problem | None) -> Facts:
    order = w.permutation(case.feature_order, len(case.features))
    captured = None
    if case.captured is not None:
        if problem is None:
            raise ValueError("the case names a captured batch; give its problem, which holds the arrays")
        batch = problem.batches[0]
        captured = CapturedBatch(batch.indices.astype(np.int64), batch.offsets.astype(np.int64))
    features = _with_repaired_rows(case, bags_of(case, order, captured))
    numbered = case.tables
    tables = [numbered[i] for i in order]
    numbers: dict[Number, tuple[float, ...]] = {}
    flags = {*_structure(case, tables, features), *_lookups(case, tables, features, numbers), *_settings(case)}
    flags.update(_later_steps(case, features))
    if case.bad_offsets:
        always = case.bounds_check is BoundsCheck.IGNORE
        batches = (problem or materialise(case)).batches
        if not all(one_pass.repairs(batch.offsets, len(batch.indices), always=always) for batch in batches):
            flags.add(Flag.RACING_OFFSETS)
    if case.bad_offsets and problem is not None:
        repaired = [repair(problem, batch) for batch in problem.batches]
        lengths = [np.diff(found.offsets) for found in repaired]
        numbers[Number.BAG] = _distinct(np.concatenate([np.asarray(numbers[Number.BAG]), *lengths]))
        if any(_in_several_features(problem, *pair) for pair in zip(problem.batches, repaired, strict=True)):
            flags.add(Flag.IN_SEVERAL_FEATURES)
        flags -= {Flag.UNEVEN_BAG, Flag.LONE_LOOKUPS}
        flags.update(
            _of((Flag.UNEVEN_BAG, any(map(_uneven, lengths))), (Flag.LONE_LOOKUPS, any(map(_lone_lookups, lengths))))
        )
    _sizes(case, features, numbers)
    return Facts(numbers, _choices(case, tables), frozenset(flags))


def _sizes(case: Case, features: tuple[FeatureBags, ...], numbers: dict[Number, tuple[float, ...]]) -> None:
    shapes = case.table_shapes
    bags = {len(f.lengths) for f in features}
    dims = {dim for _, dim in shapes}
    optimizer = case.optimizer
    numbers |= {
        Number.BATCH: tuple(bags) if case.ranks else (max(bags),),
        Number.STEP_LOOKUPS: tuple({_kept_lookups(case, features, step) for step in case.steps}),
        Number.FEATURES: (len(features),),
        Number.TABLES: (len(shapes),),
        Number.ROWS: tuple({rows for rows, _ in shapes}),
        Number.DIM: tuple(dims),
        Number.DIM_RATIO: (max(dims) / min(dims),),
        Number.TABLE_ELEMENTS: (max(rows * dim for rows, dim in shapes),),
        Number.RANKS: (case.ranks,),
        Number.STEPS: (len(case.steps),),
        Number.ADAM_STEP: (optimizer.step,) if optimizer.is_adam else (),
        Number.LEARNING_RATE: (optimizer.learning_rate,),
        Number.EPS: (optimizer.eps,) if _has_state(case) else (),
        Number.WEIGHT_DECAY: (optimizer.weight_decay,),
    }


def _structure(case: Case, tables: list[int], features: tuple[FeatureBags, ...]) -> Iterator[Flag]:
    """Of maps, tables, bags and ranks."""
    unsorted = tables != sorted(tables)
    shared = len(set(tables)) < len(tables)
    changes = sum(a != b for a, b in pairwise(tables)) + 1
    rows, dims = zip(*case.table_shapes, strict=True)
    without = [count == 0 for count in rows]
    padded = max(len(f.lengths) for f in features) if not case.ranks else 0
    lengths = [f.lengths for f in features]
    empty = [bool((part == 0).any()) or len(part) < padded for part in lengths]
    cuts = {step.lookups for step in case.steps}
    of_steps = [part if cut is None else np.minimum(part, cut) for part in lengths for cut in cuts]
    yield from _of(
        (Flag.SHARING, shared),
        (Flag.UNSORTED_MAP, unsorted),
        (Flag.UNSORTED_SHARING, shared and unsorted),
        (Flag.INTERLEAVED_SHARING, changes > len(set(tables))),
        (Flag.LONE_FEATURE, any(len(list(group)) == 1 for _, group in groupby(tables))),
        (Flag.TABLE_WITHOUT_ROWS, any(without)),
        (Flag.FIRST_TABLE_WITHOUT_ROWS, without[0]),
        (Flag.MIDDLE_TABLE_WITHOUT_ROWS, any(without[1:-1])),
        (Flag.LAST_TABLE_WITHOUT_ROWS, without[-1]),
        (Flag.ALL_TABLES_WITHOUT_ROWS, all(without)),
        (Flag.BAG_EMPTY, any(empty)),
        (Flag.FIRST_BAG_EMPTY, any(len(part) and part[0] == 0 for part in lengths)),
        (Flag.MIDDLE_BAG_EMPTY, any(bool((part[1:-1] == 0).any()) for part in lengths)),
        (Flag.LAST_BAG_EMPTY, any(len(part) < padded or (len(part) and part[-1] == 0) for part in lengths)),
        (Flag.ALL_BAGS_EMPTY, any(empty) and not any(len(f.rows) for f in features)),
        (Flag.RAGGED, any(len(part) > 1 and part.min() != part.max() for part in lengths)),
        (Flag.UNEVEN_BAG, any(map(_uneven, of_steps))),
        (Flag.LONE_LOOKUPS, any(map(_lone_lookups, of_steps))),
        (Flag.FEATURE_WITHOUT_LOOKUPS, any(len(f.rows) == 0 for f in features)),
        (Flag.MIXED_DIMS, len(set(dims)) > 1),
        (Flag.DIMS_ASCENDING, any(a < b for a, b in pairwise(dims))),
        (Flag.DIMS_DESCENDING, any(a > b for a, b in pairwise(dims))),
        (Flag.DIM_NOT_MULTIPLE_OF_4, any(dim % 4 for dim in dims)),
        (Flag.PADDED_DIM, min(dims) < 1 << (max(dims) - 1).bit_length()),
        (Flag.VBE, case.ranks > 0),
        (Flag.WIDE_SHORT, any(_wide_and_short(case, tables, features, step.bags) for step in case.steps)),
    )
    if case.bad_offsets:
        bags = sum(map(len, lengths)) if case.ranks else padded * len(lengths)
        positions = {bad.position % (bags + 1) for bad in case.bad_offsets}
        first = [bad.fault for bad in case.bad_offsets if bad.position % (bags + 1) == 0]
        yield from _of(
            (Flag.FIRST_OFFSET_MALFORMED, 0 in positions),
            (Flag.FIRST_OFFSET_POSITIVE, bool(first) and first[-1] in _POSITIVE),
            (Flag.LAST_OFFSET_MALFORMED, bags in positions),
        )
    if case.ranks:
        sizes = np.asarray([f.rank_sizes(case.ranks) for f in features])
        yield from _of(
            (Flag.EMPTY_RANK, bool((sizes.sum(axis=0) == 0).any())),
            (Flag.FEATURE_EMPTY_IN_RANK, bool((sizes == 0).any())),
            (Flag.LAST_FEATURE_LONG, any(_last_is_long(sizes, step.bags) for step in case.steps)),
            (Flag.FEW_SAMPLES, any(0 < _kept(sizes, step.bags).sum() < len(features) for step in case.steps)),
        )


def _lookups(
    case: Case, tables: list[int], features: tuple[FeatureBags, ...], numbers: dict[Number, tuple[float, ...]]
) -> Iterator[Flag]:
    """Of runs and of rows. Lookups are sorted by table and row: what is equal to its neighbour belongs to one run."""
    counts = [rows for rows, _ in case.table_shapes]
    rows = np.concatenate([f.rows for f in features])
    lengths = np.concatenate([f.lengths for f in features])
    numbers[Number.LOOKUPS] = (len(rows),)
    numbers[Number.BAG] = _distinct(lengths)
    if not len(rows):
        numbers[Number.DISTINCT_ROWS] = numbers[Number.HOT_ROWS] = (0,)
        return
    per_feature = [len(f.rows) for f in features]
    table_of = np.repeat(np.asarray(tables), per_feature)
    stride = int(rows.max()) + 1
    keys = table_of * stride + rows
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    ends = np.flatnonzero(keys[1:] != keys[:-1])
    runs = np.diff(ends, prepend=-1, append=len(keys) - 1)
    touched = keys[np.append(ends, len(keys) - 1)] // stride
    distinct = np.bincount(touched, minlength=len(counts)).tolist()
    numbers[Number.RUN] = _distinct(runs)
    numbers[Number.DISTINCT_ROWS] = (len(runs),)
    numbers[Number.HOT_ROWS] = (int((runs >= HOT_RUN).sum()),)
    numbers[Number.ROW_ID] = (stride - 1,)
    yield from _of(
        (Flag.LOOKUP_WITHOUT_ROWS, any(n and not counts[t] for n, t in zip(per_feature, tables, strict=True))),
        (Flag.LONG_AND_SHORT_RUNS, bool(runs.max() >= HOT_RUN and runs.min() <= 2)),
        (Flag.EVERY_ROW_TOUCHED, any(n > 1 and n == count for n, count in zip(distinct, counts, strict=True))),
        (Flag.ONE_OF_MANY_TOUCHED, any(n == 1 and c >= MANY_ROWS for n, c in zip(distinct, counts, strict=True))),
        (Flag.LAST_ROW_TOUCHED, bool((np.asarray(counts)[table_of] - 1 == rows).any())),
    )
    if len(runs) < len(keys):
        # The sort is stable, so that lookups of one row stay in the order of bags, and those of features.
        repeats = keys[1:] == keys[:-1]
        bag_of = np.repeat(np.arange(len(lengths)), lengths)[order]
        feature_of = np.repeat(np.arange(len(features)), per_feature)[order]
        yield from _of(
            (Flag.REPEATED, True),
            (Flag.REPEATED_IN_BAG, bool((repeats & (bag_of[1:] == bag_of[:-1])).any())),
            (Flag.IN_SEVERAL_BAGS, bool((repeats & (bag_of[1:] != bag_of[:-1])).any())),
            (Flag.IN_SEVERAL_FEATURES, bool((repeats & (feature_of[1:] != feature_of[:-1])).any())),
        )


def _settings(case: Case) -> Iterator[Flag]:
    """Of everything that is not structure."""
    psw = case.per_sample_weights
    faults = {bad.fault for bad in case.bad_indices}
    rates = {case.optimizer.learning_rate if s.learning_rate is None else s.learning_rate for s in case.steps}
    return _of(
        (Flag.PSW, psw is not None),
        (Flag.PSW_GRADIENT, psw is not None and psw.gradient),
        (Flag.FROZEN, any(f.frozen for f in case.features)),
        (Flag.TRAFFIC, any(f.traffic is not None for f in case.features)),
        (Flag.CAPTURED, case.captured is not None),
        (Flag.BACKWARD, case.call is not Call.FORWARD_ONLY),
        (Flag.STATE, _has_state(case)),
        (Flag.INDEX_OUT_OF_BOUNDS, bool(faults - {IndexFault.PRUNED})),
        (Flag.PRUNED, IndexFault.PRUNED in faults),
        (Flag.MALFORMED_OFFSETS, bool(case.bad_offsets)),
        (Flag.RATE_CHANGES, len(rates) > 1),
    )


def _later_steps(case: Case, features: tuple[FeatureBags, ...]) -> Iterator[Flag]:
    """Of how steps after the first differ. Bags are shorter, or turned, where some have other lengths for it."""
    later = case.steps[1:]
    return _of(
        (Flag.LATER_STEP_SHIFTED, any(step.shift for step in later)),
        (Flag.LATER_STEP_SMALLER, any(step.bags is not None for step in later)),
        (Flag.LATER_STEP_SHORTENED, any(_is_shortened(case, features, step) for step in later)),
        (Flag.LATER_STEP_TURNED, any(_is_turned(case, features, step) for step in later)),
    )


def _choices(case: Case, tables: list[int]) -> dict[Choice, tuple[str, ...]]:
    psw, layouts = case.per_sample_weights, case.layouts
    chosen = {
        Choice.WEIGHTS: (case.weights,),
        Choice.OUTPUT: (case.output,),
        Choice.ACCUMULATION: (case.accumulation,),
        Choice.INDICES: (case.indices,),
        Choice.POOLING: (case.pooling,),
        Choice.PSW: (psw.dtype if psw is not None else "none",),
        Choice.OPTIMIZER: (case.optimizer.kind,),
        Choice.DECAY: (case.optimizer.decay,),
        Choice.ROUNDING: (case.rounding,),
        Choice.BOUNDS: (case.bounds_check,),
        Choice.INDEX_FAULT: tuple({bad.fault for bad in case.bad_indices}),
        Choice.OFFSET_FAULT: tuple({bad.fault for bad in case.bad_offsets}),
        Choice.CALL: (case.call,),
        Choice.POISON: tuple({poison.place for poison in case.poison}),
        Choice.POISON_VALUE: tuple({poison.value for poison in case.poison}),
        Choice.REGIME_WEIGHTS: (case.weight_values.regime,),
        Choice.REGIME_GRADIENT: (case.gradient_values.regime,),
        Choice.REGIME_STATE: (case.state_values.regime,) if _has_state(case) else (),
        Choice.REGIME_PSW: _regime(psw),
        Choice.LAYOUT_INDICES: (layouts.indices,),
        Choice.LAYOUT_OFFSETS: (layouts.offsets,),
        Choice.LAYOUT_PSW: (layouts.per_sample_weights,) if psw is not None else (),
        Choice.LAYOUT_GRADIENT: (layouts.gradient,),
        Choice.DISTRIBUTION: tuple({f.traffic.distribution for f in case.features if f.traffic is not None}),
        Choice.MAP: (str(tables).replace(" ", ""),) if len(tables) <= 4 else (),
    }
    return {axis: tuple(str(option) for option in options) for axis, options in chosen.items()}


def _with_repaired_rows(case: Case, features: tuple[FeatureBags, ...]) -> tuple[FeatureBags, ...]:
    """The features with row 0 in place of what a bounds check repairs to it."""
    beyond = [bad.position for bad in case.bad_indices if bad.fault is not IndexFault.PRUNED]
    counts = [len(f.rows) for f in features]
    if not beyond or not sum(counts) or case.bounds_check not in (BoundsCheck.IGNORE, BoundsCheck.WARNING):
        return features
    rows = np.concatenate([f.rows for f in features])
    rows[np.asarray(beyond) % len(rows)] = 0
    parts = np.split(rows, np.cumsum(counts)[:-1])
    return tuple(replace(f, rows=part) for f, part in zip(features, parts, strict=True))


def _in_several_features(problem: Problem, batch: Batch, repaired: Repair) -> bool:
    """Whether a row is named by lookups of several features, with offsets as they are repaired."""
    edges = repaired.offsets[np.cumsum((0, *batch.bags))]
    feature = np.repeat(np.arange(len(batch.bags)), np.diff(edges))
    rows = repaired.rows[edges[0] : edges[-1]]
    keys = np.stack([np.asarray(problem.feature_tables)[feature], rows, feature])[:, rows >= 0]
    return bool(np.unique(keys, axis=1).shape[1] > np.unique(keys[:2], axis=1).shape[1])


def _uneven(lengths: npt.NDArray[np.int64]) -> bool:
    """Whether a length is not a power of two (nor 0)."""
    return bool((lengths & (lengths - 1)).any())


def _lone_lookups(lengths: npt.NDArray[np.int64]) -> bool:
    """Whether a warp's bags, one after the other, have one lookup each; the last is followed by the first (a turn)."""
    others = np.flatnonzero(np.concatenate([lengths, lengths]) != 1)
    gaps = np.diff(np.concatenate([[-1], others, [2 * len(lengths)]])) - 1
    return len(lengths) >= WARP and bool(gaps.max() >= WARP)


def _last_is_long(sizes: npt.NDArray[np.int64], kept: int | None) -> bool:
    """Whether twice the last feature's bags are more than the longest feature's and one, in a variable batch.

    Then a copy of twice too many of its offsets overruns an array of them that is padded to the longest feature. A
    step may have `kept` only so many bags a rank.
    """
    bags = _kept(sizes, kept).sum(axis=1)
    return bool(2 * bags[-1] > bags.max() + 1)


def _kept(sizes: npt.NDArray[np.int64], kept: int | None) -> npt.NDArray[np.int64]:
    """Bags per feature and rank, of which a step may keep only so many."""
    return sizes if kept is None else np.minimum(sizes, kept)


def _kept_bags(case: Case, features: tuple[FeatureBags, ...], step: Step) -> list[FeatureBags]:
    """Bags of a step, which may keep only so many of each feature and rank; padded to one number without ranks."""
    kept = [feature if step.bags is None else feature.first(step.bags) for feature in features]
    if case.ranks:
        return kept
    most = max(len(feature.lengths) for feature in kept)
    return [feature.padded(most) for feature in kept]


def _kept_lookups(case: Case, features: tuple[FeatureBags, ...], step: Step) -> int:
    """Lookups of a step, which may keep only so many of each bag."""
    kept = [
        np.minimum(feature.lengths, step.lookups) if step.lookups is not None else feature.lengths
        for feature in _kept_bags(case, features, step)
    ]
    return int(sum(lengths.sum() for lengths in kept))


def _is_shortened(case: Case, features: tuple[FeatureBags, ...], step: Step) -> bool:
    """Whether a step keeps fewer lookups of some bag than it has."""
    return step.lookups is not None and any(
        bool((feature.lengths > step.lookups).any()) for feature in _kept_bags(case, features, step)
    )


def _is_turned(case: Case, features: tuple[FeatureBags, ...], step: Step) -> bool:
    """Whether turning the bags of a step, once they are shortened, changes the lengths or the ranks in their order."""
    if not step.turn:
        return False
    for feature in _kept_bags(case, features, step):
        kept = feature if step.lookups is None else feature.shortened(step.lookups)
        turned = kept.turned(step.turn, case.ranks)
        if not np.array_equal(kept.lengths, turned.lengths) or not np.array_equal(kept.ranks, turned.ranks):
            return True
    return False


def _wide_and_short(case: Case, tables: list[int], features: tuple[FeatureBags, ...], kept: int | None) -> bool:
    """Whether a feature of a wide table has lookups in a step, but few: `SHORT_BAG` a bag, empty bags included."""
    batch = max(len(f.lengths[:kept]) for f in features)
    return any(
        case.table_shapes[table][1] > WIDE and 0 < f.lengths[:kept].sum() <= SHORT_BAG * batch
        for table, f in zip(tables, features, strict=True)
    )


def _regime(psw: PerSampleWeights | None) -> tuple[str, ...]:
    return () if psw is None else (psw.values.regime,)


def _has_state(case: Case) -> bool:
    return case.optimizer.kind is not OptimizerKind.SGD


def _distinct(counts: npt.NDArray[np.int64]) -> tuple[float, ...]:
    return tuple(np.unique(counts).tolist())


def _of(*flags: tuple[Flag, bool]) -> Iterator[Flag]:
    return (flag for flag, holds in flags if holds)
