"""A Case materialised: the arrays that a TBE is called with. A pure function of the Case, the same bits everywhere."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from equivcheck import words as w
from equivcheck.bags import FeatureBags, bags_of
from equivcheck.captured import load_captured
from equivcheck.case import (
    Call,
    Case,
    CaseError,
    IndexFault,
    Layout,
    OffsetFault,
    OptimizerKind,
    Place,
    Pooling,
)
from equivcheck.formats import AnyArray, DType
from equivcheck.values import fill, special

DEFAULT_LIMIT = 4 * 2**30
"""Bytes that a Problem may take: a sixth of a 24 GiB machine, so that truth, bounds and a kernel's copies fit too."""


class Action(enum.Enum):
    """What is done next with a subject."""

    FORWARD = "forward"
    BACKWARD = "backward"


def program(case: Case) -> tuple[tuple[Action, int], ...]:
    """Forwards and backwards of a Case in order, each with its step.

    STEPS, RATE_CHANGED, RESTORED, SIDE_STREAM and GRAPH: forward and backward of each step. FORWARD_ONLY: forwards
    alone. OUTSTANDING: all forwards, then all backwards in the same order. RETAINED: each step's backward twice.
    """
    forward, backward = Action.FORWARD, Action.BACKWARD
    steps = range(len(case.steps))
    match case.call:
        case Call.FORWARD_ONLY:
            return tuple((forward, step) for step in steps)
        case Call.OUTSTANDING:
            return (*((forward, step) for step in steps), *((backward, step) for step in steps))
        case Call.RETAINED:
            return tuple((action, step) for step in steps for action in (forward, backward, backward))
        case _:
            return tuple((action, step) for step in steps for action in (forward, backward))


@dataclass(frozen=True)
class Snapshot:
    """Tables (rows, dim) in their storage dtype, and optimizer state in fp32, one array a table.

    `momentum1` is Adagrad's sum (row-wise: (rows,)) or Adam's first moment; `momentum2` Adam's second moment (partial
    row-wise: (rows,)). Without such a state the tuple is empty.
    """

    tables: tuple[AnyArray, ...]
    momentum1: tuple[AnyArray, ...] = ()
    momentum2: tuple[AnyArray, ...] = ()


@dataclass(frozen=True)
class Batch:
    """The inputs of one step.

    Attributes
    ----------
    indices
        (N,) int32 or int64.
    offsets
        (bags + 1,) of the same type, feature-major; in a variable batch, ranks lie inside the feature.
    bags
        Bags of each feature.
    batch_sizes
        None, or in a variable batch, per feature, the bags of each rank.
    per_sample_weights
        (N,) fp32 or fp16, or None.
    grad_output
        In the output's dtype: (B, sum of the features' dims); flat and rank-major in a variable batch; (N, dim)
        without pooling.
    learning_rate
        Exact in fp32.
    """

    indices: npt.NDArray[np.integer]
    offsets: npt.NDArray[np.integer]
    bags: tuple[int, ...]
    batch_sizes: tuple[tuple[int, ...], ...] | None
    per_sample_weights: AnyArray | None
    grad_output: AnyArray
    learning_rate: float

    @property
    def arrays(self) -> Iterator[tuple[str, AnyArray]]:
        """Names and arrays of the inputs."""
        yield "indices", self.indices
        yield "offsets", self.offsets
        if self.per_sample_weights is not None:
            yield "per_sample_weights", self.per_sample_weights
        yield "grad_output", self.grad_output


@dataclass(frozen=True, eq=False)
class Problem:
    """A Case with its arrays. Two of them are told apart by identity; `digest` compares their arrays.

    Per feature, in the order of the call: `feature_tables` its table, `dims` its width, `frozen` whether its
    per-sample weights get no gradient.
    """

    case: Case
    feature_tables: tuple[int, ...]
    dims: tuple[int, ...]
    frozen: tuple[bool, ...]
    initial: Snapshot
    batches: tuple[Batch, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names, dtypes, shapes and bytes of all arrays: equal where a Case materialised equally."""
        state = hashlib.sha256()
        for name, array in self._arrays():
            state.update(f"{name} {array.dtype.name} {array.shape} ".encode())
            state.update(np.ascontiguousarray(array).tobytes())
        return state.hexdigest()

    def _arrays(self) -> Iterator[tuple[str, AnyArray]]:
        for name in ("tables", "momentum1", "momentum2"):
            for number, array in enumerate(getattr(self.initial, name)):
                yield f"{name}[{number}]", array
        for step, batch in enumerate(self.batches):
            for name, array in batch.arrays:
                yield f"{name}[{step}]", array


def materialise(case: Case, folder: Path | None = None, limit: int = DEFAULT_LIMIT) -> Problem:
    """Arrays of a Case.

    Parameters
    ----------
    folder
        Where a captured batch's file lies.
    limit
        Bytes that the arrays may take; the need is computed before anything is allocated.

    Raises
    ------
    CaseError
        If the arrays would be too large, an int32 index cannot hold them, or a captured batch does not fit.
    """
    _check_size(case, limit)
    order = w.permutation(case.feature_order, len(case.features))
    numbered, shapes = case.tables, case.table_shapes
    tables = tuple(numbered[i] for i in order)
    captured = None
    if case.captured is not None:
        if folder is None:
            raise CaseError(f"the case names the captured batch {case.captured.file!r}; give the folder that holds it")
        captured = load_captured(case.captured, folder)
    features = bags_of(case, order, captured)
    batches = tuple(_batch(case, step, features, tables, captured is not None) for step in range(len(case.steps)))
    initial = _initial(case)
    _poison_tables(case, initial, features, batches, tables)
    for array in (*initial.tables, *initial.momentum1, *initial.momentum2, *(a for b in batches for _, a in b.arrays)):
        array.flags.writeable = False
    return Problem(
        case=case,
        feature_tables=tables,
        dims=tuple(shapes[t][1] for t in tables),
        frozen=tuple(case.features[i].frozen for i in order),
        initial=initial,
        batches=batches,
    )


def split_by_feature(array: AnyArray, problem: Problem, batch: Batch) -> tuple[AnyArray, ...]:
    """The block of each feature in an output or its gradient: (bags, dim), or (lookups, dim) without pooling.

    Bags (lookups) are in the order of the offsets.
    """
    if problem.case.pooling is Pooling.NONE:
        edges = np.cumsum([0, *batch.bags])
        cuts = np.clip(np.asarray(batch.offsets)[edges], 0, len(batch.indices))
        return tuple(array[cuts[f] : cuts[f + 1]] for f in range(len(problem.dims)))
    if batch.batch_sizes is None:
        edges = np.cumsum([0, *problem.dims])
        return tuple(array[:, edges[f] : edges[f + 1]] for f in range(len(problem.dims)))
    blocks: list[list[AnyArray]] = [[] for _ in problem.dims]
    position = 0
    for rank in range(len(batch.batch_sizes[0])):
        for feature, dim in enumerate(problem.dims):
            size = batch.batch_sizes[feature][rank]
            blocks[feature].append(array[position : position + size * dim].reshape(size, dim))
            position += size * dim
    return tuple(np.concatenate(parts) for parts in blocks)


def output_shape(problem: Problem, batch: Batch) -> tuple[int, ...]:
    """Shape of the output of one step."""
    return _output_shape(problem.case, problem.dims, batch.bags, batch.batch_sizes, len(batch.indices))


def _output_shape(
    case: Case,
    dims: tuple[int, ...],
    bags: tuple[int, ...],
    batch_sizes: tuple[tuple[int, ...], ...] | None,
    lookups: int,
) -> tuple[int, ...]:
    if case.pooling is Pooling.NONE:
        return (lookups, dims[0])
    if batch_sizes is not None:
        return (sum(count * dim for count, dim in zip(bags, dims, strict=True)),)
    return (bags[0], sum(dims))


def _check_size(case: Case, limit: int) -> None:
    shapes = case.table_shapes
    table = sum(rows * dim for rows, dim in shapes)
    state = 0 if case.optimizer.kind is OptimizerKind.SGD else (2 if case.optimizer.is_adam else 1)
    most_bags = max(sum(b.copies for b in f.bags) + (f.traffic.bags if f.traffic else 0) for f in case.features)
    dims = sum(shapes[t][1] for t in case.tables)
    rows = case.lookups if case.pooling is Pooling.NONE else most_bags
    # 8 bytes an index, offset or fp64 value while tables are made; 4 a state's and a gradient's element.
    need = table * (8 + 4 * state) + len(case.steps) * (case.lookups * 24 + most_bags * len(case.features) * 16)
    need += len(case.steps) * rows * dims * 12
    if need > limit:
        raise CaseError(
            f"the case needs about {need:,} bytes, over the limit of {limit:,}; make it smaller or raise it"
        )


def _batch(
    case: Case, number: int, features: tuple[FeatureBags, ...], tables: tuple[int, ...], captured: bool
) -> Batch:
    step = case.steps[number]
    kept = [feature.first(step.bags) for feature in features] if step.bags is not None else list(features)
    if not case.ranks:
        most = max(len(feature.lengths) for feature in kept)
        kept = [feature.padded(most) for feature in kept]
    if step.lookups is not None:
        kept = [feature.shortened(step.lookups) for feature in kept]
    if step.turn:
        kept = [feature.turned(step.turn, case.ranks) for feature in kept]
    shapes = case.table_shapes
    rows = [
        (feature.rows + step.shift) % shapes[table][0] if shapes[table][0] and step.shift else feature.rows
        for feature, table in zip(kept, tables, strict=True)
    ]
    indices = np.concatenate(rows)
    lengths = np.concatenate([feature.lengths for feature in kept])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    bags = tuple(len(feature.lengths) for feature in kept)
    sizes = tuple(f.rank_sizes(case.ranks) for f in kept) if case.ranks else None
    dims = tuple(shapes[t][1] for t in tables)
    key = w.derive(case.seed, number, step.seed)

    owner = np.repeat(np.arange(len(kept)), [len(r) for r in rows])
    dtype: np.dtype[np.signedinteger] = np.dtype(case.indices.value)
    shape = _output_shape(case, dims, bags, sizes, len(indices))
    _write_bad_indices(case, indices, np.asarray([shapes[t][0] for t in tables])[owner], dtype)
    _write_bad_offsets(case, offsets, dtype)
    if (len(indices) and not _fits(indices, dtype)) or not _fits(offsets, dtype):
        raise CaseError(f"an index or offset is outside {dtype.name}; ask for int64 indices")

    weights = None
    if case.per_sample_weights is not None:
        given = [feature.weights for feature in kept]
        if captured and all(part is not None for part in given):
            weights = np.concatenate([p for p in given if p is not None]).astype(case.per_sample_weights.dtype.numpy)
        else:
            column = (len(indices), 1)
            spec = case.per_sample_weights
            weights = fill(spec.values, column, spec.dtype, w.derive(key, "per_sample_weights"))[:, 0]
    gradient = _gradient(case, shape, bags, sizes, dims, key)
    for poison in case.poison:
        if poison.place is Place.GRADIENT and gradient.size:
            gradient.reshape(-1)[poison.position % gradient.size] = special(poison.value)
        if poison.place is Place.PER_SAMPLE_WEIGHT and weights is not None and len(weights):
            weights[poison.position % len(weights)] = special(poison.value)
    if case.layouts.gradient is Layout.EXPANDED and gradient.size:
        gradient[...] = gradient.reshape(-1)[0]
    rate = case.optimizer.learning_rate if step.learning_rate is None else step.learning_rate
    return Batch(indices.astype(dtype), offsets.astype(dtype), bags, sizes, weights, gradient, rate)


def _gradient(
    case: Case,
    shape: tuple[int, ...],
    bags: tuple[int, ...],
    sizes: tuple[tuple[int, ...], ...] | None,
    dims: tuple[int, ...],
    key: int,
) -> AnyArray:
    """Gradient of the output, made feature by feature so that deleting a feature leaves the others' values alone."""
    if case.pooling is Pooling.NONE:
        return fill(case.gradient_values, (shape[0], shape[1]), case.output, w.derive(key, "gradient"))
    blocks = [
        fill(case.gradient_values, (count, dim), case.output, w.derive(key, "gradient", feature))
        for feature, (count, dim) in enumerate(zip(bags, dims, strict=True))
    ]
    if sizes is None:
        return np.ascontiguousarray(np.concatenate(blocks, axis=1))
    starts = [np.cumsum([0, *ranks]) for ranks in sizes]
    parts = [
        block[starts[f][rank] : starts[f][rank + 1]].reshape(-1)
        for rank in range(len(sizes[0]))
        for f, block in enumerate(blocks)
    ]
    return np.concatenate(parts)


def _write_bad_indices(
    case: Case, indices: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], dtype: np.dtype[np.signedinteger]
) -> None:
    limits = np.iinfo(dtype)
    for bad in case.bad_indices:
        if len(indices):
            position = bad.position % len(indices)
            indices[position] = {
                IndexFault.ROWS: min(rows[position], limits.max),
                IndexFault.ROWS_PLUS_ONE: min(rows[position] + 1, limits.max),
                IndexFault.PRUNED: -1,
                IndexFault.MINUS_TWO: -2,
                IndexFault.LARGEST: limits.max,
                IndexFault.SMALLEST: limits.min,
            }[bad.fault]


def _write_bad_offsets(case: Case, offsets: npt.NDArray[np.int64], dtype: np.dtype[np.signedinteger]) -> None:
    if len(offsets) == 1:  # of no bag: nothing reads it, and a check may pass over it
        return
    limits = np.iinfo(dtype)
    good = offsets.copy()
    for bad in case.bad_offsets:
        position = bad.position % len(offsets)
        offsets[position] = {
            OffsetFault.NEGATIVE: -1,
            OffsetFault.DECREASING: good[position - 1] - 1 if position else -1,
            OffsetFault.BEYOND_END: good[-1] + 7,
            OffsetFault.PLUS_ONE: good[position] + 1,
            OffsetFault.SMALLEST: limits.min,
            OffsetFault.LARGEST: limits.max,
        }[bad.fault]


def _fits(array: npt.NDArray[np.int64], dtype: np.dtype[np.signedinteger]) -> bool:
    limits = np.iinfo(dtype)
    return bool(array.min() >= limits.min and array.max() <= limits.max)


def _initial(case: Case) -> Snapshot:
    kind = case.optimizer.kind
    rowwise1 = kind is OptimizerKind.ROWWISE_ADAGRAD
    rowwise2 = kind is OptimizerKind.PARTIAL_ROWWISE_ADAM

    def state(name: str, rowwise: bool, positive: bool) -> tuple[AnyArray, ...]:
        arrays = []
        for number, (rows, dim) in enumerate(case.table_shapes):
            key = w.derive(case.seed, name, number)
            array = fill(case.state_values, (rows, 1 if rowwise else dim), DType.FP32, key, positive=positive)
            arrays.append(array[:, 0] if rowwise else array)
        return tuple(np.ascontiguousarray(a) for a in arrays)

    return Snapshot(
        tables=tuple(
            fill(case.weight_values, shape, case.weights, w.derive(case.seed, "weights", number))
            for number, shape in enumerate(case.table_shapes)
        ),
        momentum1=()
        if kind is OptimizerKind.SGD
        else state("momentum1", rowwise1, positive=not case.optimizer.is_adam),
        momentum2=state("momentum2", rowwise2, positive=True) if case.optimizer.is_adam else (),
    )


def _poison_tables(
    case: Case,
    initial: Snapshot,
    features: tuple[FeatureBags, ...],
    batches: tuple[Batch, ...],
    tables: tuple[int, ...],
) -> None:
    """Write NaN or infinities into one looked-up element, or into every row that no step names.

    Row 0 counts as named where an index out of bounds may be repaired to it.
    """
    for poison in case.poison:
        if poison.place is Place.TOUCHED_ROW:
            counts = np.cumsum([0, *(len(f.rows) for f in features)])
            if counts[-1]:
                position = poison.position % int(counts[-1])
                feature = int(np.searchsorted(counts, position, side="right")) - 1
                table = initial.tables[tables[feature]]
                row = int(features[feature].rows[position - counts[feature]])
                if row < len(table):
                    table[row, poison.position % table.shape[1]] = special(poison.value)
        if poison.place is Place.UNTOUCHED_ROWS:
            for number, table in enumerate(initial.tables):
                named = np.zeros(len(table), bool)
                named[:1] = bool(case.bad_indices)
                for batch in batches:
                    edges = np.clip(np.asarray(batch.offsets)[np.cumsum([0, *batch.bags])], 0, len(batch.indices))
                    for feature, owner in enumerate(tables):
                        if owner == number:
                            rows = np.asarray(batch.indices)[edges[feature] : edges[feature + 1]]
                            named[rows[(rows >= 0) & (rows < len(table))]] = True
                table[~named] = special(poison.value)
