"""A table-batched embedding in plain NumPy with configurable arithmetic: right by construction.

Each part of the contract is one small method, so that a wrong kernel (`simulated.wrong`) overrides one of them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from equivcheck.arithmetic import Arithmetic, MeanDivision, Sequential, Store, StoreRounding
from equivcheck.case import Case, Optimizer, Pooling
from equivcheck.formats import AnyArray, DType, Float64Array, down, nearest, store, toward_zero, up, widen
from equivcheck.outcome import Forward, Outcome, Update
from equivcheck.problem import Action, Batch, Problem, Snapshot, output_shape, program
from tests.selftest.simulated.machine import Error, Machine
from tests.selftest.simulated.steps import Forms, State, Updater, mean_of
from tests.selftest.simulated.sums import Adder, Order, Shape


class MeanForm(enum.Enum):
    """Where MEAN divides."""

    SUM = "the sum"
    ROW = "each row, or each gradient"
    WEIGHT = "each per-sample weight"


class Stochastic(enum.Enum):
    """Which neighbour a stochastic store takes."""

    FAIR = "by chance, unbiased"
    UP = "the upper"
    DOWN = "the lower"
    AWAY = "the one farther from zero"


PLAIN = Forms()
NEAREST = Store()


@dataclass(frozen=True)
class Style:
    """How a right kernel computes."""

    accumulator: DType = DType.FP32
    order: Order = Order.GIVEN
    shape: Shape = Shape.CHAIN
    mean: MeanForm = MeanForm.SUM
    mean_division: MeanDivision = MeanDivision.RECIPROCAL
    sum_fused: bool = False
    sum_flushes: bool = False
    step_fused: bool = False
    step_flushes: bool = False
    division: float = 1.0
    square_root: float = 1.0
    power: float = 4.0
    error: Error = Error.UP
    forms: Forms = PLAIN
    wide_update: bool = False
    gradient_rounding: DType | None = None
    output_store: Store = NEAREST
    weight_gradient_store: Store = NEAREST
    table_store: Store = NEAREST
    stochastic: Stochastic = Stochastic.FAIR


@dataclass(frozen=True)
class Lookup:
    """One lookup that contributes: its place in the batch, row, weight, and its bag and the bag's length."""

    position: int
    row: int
    weight: float | None
    bag: int
    length: int


@dataclass
class Kernel:
    """Runs a problem."""

    updater: ClassVar[type[Updater]] = Updater
    style: Style = Style()
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    # What it declares
    def arithmetic(self, case: Case) -> Arithmetic:
        style = self.style
        psw = None if case.per_sample_weights is None else case.per_sample_weights.dtype
        return Arithmetic(
            pooling=self.adder(case.weights, psw).declared,
            gradient=self.adder(case.output, psw).declared,
            weight_gradient=self.adder(case.weights, case.output).declared,
            mean_square=Sequential(DType.FP64 if style.wide_update else DType.FP32),
            accumulator=style.accumulator,
            mean_division=style.mean_division,
            division=style.division,
            square_root=style.square_root,
            power=style.power,
            optimizer_flushes=style.step_flushes,
            sum_flushes=style.sum_flushes,
            gradient_rounding=style.gradient_rounding,
            output_store=style.output_store,
            weight_gradient_store=style.weight_gradient_store,
            table_store=style.table_store,
        )

    def adder(self, left: DType, right: DType | None) -> Adder:
        """How sums of products of these types are made: tensor cores take 16-bit factors only."""
        style = self.style
        shape = style.shape
        narrow = left is not DType.FP32 and right is not DType.FP32
        if shape is Shape.TENSOR_CORE and not narrow:
            shape = Shape.CHAIN
        return Adder(self.summing, style.order, shape)

    @property
    def summing(self) -> Machine:
        return Machine(self.style.accumulator, fused=self.style.sum_fused, flushes=self.style.sum_flushes)

    @property
    def updating(self) -> Updater:
        style = self.style
        machine = Machine(
            dtype=DType.FP64 if style.wide_update else DType.FP32,
            fused=style.step_fused,
            flushes=style.step_flushes,
            division=style.division,
            square_root=style.square_root,
            power=style.power,
            error=style.error,
        )
        adder = Adder(replace(machine, division=1.0, square_root=1.0), style.order)
        return self.updater(machine, adder, style.forms, style.mean_division)

    # The program
    def run(self, problem: Problem) -> Outcome:
        results: list[Forward | Update] = []
        state = problem.initial
        read = state
        with np.errstate(all="ignore"):
            for action, step in program(problem.case):
                batch = problem.batches[step]
                if action is Action.FORWARD:
                    results.append(Forward(self.forward(problem, batch, state), self.warnings(problem, batch)))
                    read = state
                else:
                    gradient = self.weight_gradient(problem, batch, self.read(state, read))
                    state = self.backward(problem, batch, step, state)
                    results.append(Update(state, gradient))
        return Outcome(tuple(results))

    def read(self, state: Snapshot, at_forward: Snapshot) -> Snapshot:
        """State that the weights' gradient reads: the one before this update."""
        return state

    def warnings(self, problem: Problem, batch: Batch) -> int | None:
        return None

    # Lookups
    def offsets(self, batch: Batch) -> list[int]:
        """Offsets clamped to 0 <= non-decreasing <= N, ending in N."""
        least, repaired = 0, []
        for offset in batch.offsets:
            least = max(least, min(max(int(offset), 0), len(batch.indices)))
            repaired.append(least)
        repaired[-1] = len(batch.indices)
        return repaired

    def lookups(self, problem: Problem, batch: Batch, feature: int) -> list[Lookup]:
        """What a feature looks up, bag by bag; without pooling each lookup is a bag."""
        offsets = self.offsets(batch)
        rows = len(problem.initial.tables[problem.feature_tables[feature]])
        first = sum(batch.bags[:feature])
        found = []
        for bag in range(batch.bags[feature]):
            start, stop = offsets[first + bag], offsets[first + bag + 1]
            for position in range(start, stop):
                row = self.repaired(int(batch.indices[position]), rows)
                if row is None:
                    continue
                weight = None if batch.per_sample_weights is None else float(batch.per_sample_weights[position])
                if problem.case.pooling is Pooling.NONE:
                    found.append(Lookup(position, row, weight, position - offsets[first], 1))
                else:
                    found.append(Lookup(position, row, weight, bag, self.length(problem, batch, start, stop)))
        return found

    def repaired(self, row: int, rows: int) -> int | None:
        """Row 0 for what is out of bounds; None for what contributes nothing."""
        if rows == 0 or row == -1:
            return None
        return row if 0 <= row < rows else 0

    def length(self, problem: Problem, batch: Batch, start: int, stop: int) -> int:
        """What MEAN divides by."""
        return stop - start

    # Forward
    def forward(self, problem: Problem, batch: Batch, state: Snapshot) -> AnyArray:
        blocks = [self.pooled(problem, batch, feature, state) for feature in range(len(problem.dims))]
        computed = self.style.accumulator
        stored = [self.stored(block, problem.case.output, self.style.output_store, computed) for block in blocks]
        return self.assembled(problem, batch, stored)

    def assembled(self, problem: Problem, batch: Batch, blocks: list[AnyArray]) -> AnyArray:
        """Output from the blocks of the features."""
        if problem.case.pooling is Pooling.NONE:
            whole = np.zeros(output_shape(problem, batch), problem.case.output.numpy)
            start = self.offsets(batch)[0]
            whole[start:] = np.concatenate(blocks)
            return whole
        if batch.batch_sizes is None:
            return np.concatenate(blocks, axis=1)
        cuts = [np.cumsum([0, *sizes]) for sizes in batch.batch_sizes]
        parts = [
            block[cuts[f][rank] : cuts[f][rank + 1]].reshape(-1)
            for rank in range(problem.case.ranks)
            for f, block in enumerate(blocks)
        ]
        return np.concatenate(parts)

    def pooled(self, problem: Problem, batch: Batch, feature: int, state: Snapshot) -> Float64Array:
        """Output block of a feature in the accumulator's type."""
        case, table = problem.case, state.tables[problem.feature_tables[feature]]
        count = batch.bags[feature]
        if case.pooling is Pooling.NONE:
            first = sum(batch.bags[:feature])
            offsets = self.offsets(batch)
            count = offsets[first + batch.bags[feature]] - offsets[first]
        result = np.zeros((count, table.shape[1]))
        adder = self.adder(case.weights, None if case.per_sample_weights is None else case.per_sample_weights.dtype)
        for bag, lookups in _grouped(self.lookups(problem, batch, feature), "bag"):
            rows = self.converted(widen(table[[x.row for x in lookups]]))
            result[bag] = self.bag_sum(case, adder, rows, lookups)
        return result

    def converted(self, values: Float64Array) -> Float64Array:
        """Operands in the accumulator's type."""
        return nearest(values, self.style.accumulator)

    def bag_sum(self, case: Case, adder: Adder, rows: Float64Array, lookups: list[Lookup]) -> Float64Array:
        """Pooled row of one bag."""
        weights = self.weights_of(lookups)
        length = lookups[0].length
        mean = case.pooling is Pooling.MEAN
        if mean and self.style.mean is MeanForm.ROW:
            rows = self.divided(rows, length)
        if mean and self.style.mean is MeanForm.WEIGHT:
            weights = self.divided(np.ones((len(lookups), 1)) if weights is None else weights, length)
        total = adder.products(rows, weights)
        if mean and self.style.mean is MeanForm.SUM:
            total = self.divided(total, length)
        return total

    def weights_of(self, lookups: list[Lookup]) -> Float64Array | None:
        """Per-sample weights (k, 1), or None."""
        if not lookups or lookups[0].weight is None:
            return None
        return self.converted(np.asarray([[x.weight] for x in lookups], np.float64))

    def divided(self, values: Float64Array, length: int) -> Float64Array:
        """Values / length."""
        return mean_of(self.summing, self.style.mean_division, values, length)

    # Backward
    def gradients(self, problem: Problem, batch: Batch, feature: int) -> Float64Array:
        """Gradient dY of a feature's bags (without pooling: of its lookups)."""
        gradient = widen(batch.grad_output)
        if problem.case.pooling is Pooling.NONE:
            first = sum(batch.bags[:feature])
            offsets = self.offsets(batch)
            return gradient[offsets[first] : offsets[first + batch.bags[feature]]]
        column = sum(problem.dims[:feature])
        dim = problem.dims[feature]
        if batch.batch_sizes is None:
            return gradient[:, column : column + dim]
        parts, place = [np.zeros((0, dim))], 0
        for rank in range(problem.case.ranks):
            for f, width in enumerate(problem.dims):
                size = batch.batch_sizes[f][rank] * width
                if f == feature:
                    parts.append(gradient[place : place + size].reshape(-1, width))
                place += size
        return np.concatenate(parts)

    def runs(self, problem: Problem, batch: Batch, table: int) -> Iterator[tuple[int, list[Lookup], Float64Array]]:
        """Each named row of a table with its lookups and their bags' gradients (k, dim)."""
        lookups, upstream = [], []
        for feature, owner in enumerate(problem.feature_tables):
            if owner == table:
                gradient = self.gradients(problem, batch, feature)
                for x in self.lookups(problem, batch, feature):
                    lookups.append(x)
                    upstream.append(gradient[x.bag])
        places: dict[int, list[int]] = {}
        for place, x in enumerate(lookups):
            places.setdefault(x.row, []).append(place)
        for row, chosen in places.items():
            yield row, [lookups[i] for i in chosen], np.asarray([upstream[i] for i in chosen])

    def run_sum(self, case: Case, lookups: list[Lookup], upstream: Float64Array) -> Float64Array:
        """Gradient of one row from its run."""
        adder = self.adder(case.output, None if case.per_sample_weights is None else case.per_sample_weights.dtype)
        terms, weights = self.converted(upstream), self.weights_of(lookups)
        if case.pooling is Pooling.MEAN:
            if self.style.mean is MeanForm.WEIGHT:
                ones = np.ones((len(lookups), 1)) if weights is None else weights
                weights = self.divided_each(ones, lookups)
            elif self.style.mean is MeanForm.ROW or weights is None:
                terms = self.divided_each(terms, lookups)
            else:
                terms, weights = self.divided_each(self.summing.multiply(terms, weights), lookups), None
        if self.style.gradient_rounding is not None:
            if weights is not None and self.style.mean is MeanForm.WEIGHT:
                terms, weights = self.summing.multiply(terms, weights), None
            terms = nearest(terms, self.style.gradient_rounding)
        return adder.products(terms, weights)

    def divided_each(self, values: Float64Array, lookups: list[Lookup]) -> Float64Array:
        """Each lookup's value by its bag's length."""
        return np.asarray([self.divided(v, x.length) for v, x in zip(values, lookups, strict=True)])

    def backward(self, problem: Problem, batch: Batch, step: int, state: Snapshot) -> Snapshot:
        """State after the update."""
        tables = [t.copy() for t in state.tables]
        first = [m.copy() for m in state.momentum1]
        second = [m.copy() for m in state.momentum2]
        for table in range(len(tables)):
            runs = list(self.runs(problem, batch, table))
            if not runs:
                continue
            rows = [row for row, _, _ in runs]
            gradient = np.asarray([self.run_sum(problem.case, x, dy) for _, x, dy in runs])
            before = State(
                widen(tables[table][rows]),
                _columns(first[table][rows]) if first else None,
                _columns(second[table][rows]) if second else None,
            )
            self.write(problem, batch, step, rows, before, gradient, tables[table], first, second, table)
        return Snapshot(tuple(tables), tuple(first), tuple(second))

    def write(
        self,
        problem: Problem,
        batch: Batch,
        step: int,
        rows: list[int],
        before: State,
        gradient: Float64Array,
        table: AnyArray,
        first: list[AnyArray],
        second: list[AnyArray],
        number: int,
    ) -> None:
        """Update `rows` in place."""
        case = problem.case
        if not self.style.wide_update:
            gradient = nearest(gradient, DType.FP32)
        rate = self.rate(batch)
        after = self.updated(case.optimizer, rate, self.time(case, step), before, gradient)
        computed = DType.FP64 if self.style.wide_update else DType.FP32
        table[rows] = self.stored(after.rows, case.weights, self.row_store(case), computed)
        for moments, values in ((first, after.momentum1), (second, after.momentum2)):
            if values is not None:
                moments[number][rows] = store(values, DType.FP32).reshape(moments[number][rows].shape)

    def rate(self, batch: Batch) -> float:
        return batch.learning_rate

    def time(self, case: Case, step: int) -> int:
        """Adam's t."""
        return case.optimizer.step + step

    def updated(self, optimizer: Optimizer, rate: float, time: int, before: State, gradient: Float64Array) -> State:
        return self.updating.update(optimizer, rate, time, before, gradient)

    def row_store(self, case: Case) -> Store:
        """How rows are stored: stochastically where the case asks for it and storage is narrow."""
        if case.rounding.value == "stochastic" and case.weights is not DType.FP32:
            return replace(self.style.table_store, rounding=StoreRounding.STOCHASTIC)
        return self.style.table_store

    # dL/dp
    def weight_gradient(self, problem: Problem, batch: Batch, state: Snapshot) -> AnyArray | None:
        case = problem.case
        spec = case.per_sample_weights
        if spec is None or not spec.gradient:
            return None
        result = np.zeros(len(batch.indices))
        adder = self.adder(case.weights, case.output)
        for feature, table in enumerate(problem.feature_tables):
            if problem.frozen[feature]:
                continue
            gradient = self.converted(self.gradients(problem, batch, feature))
            for x in self.lookups(problem, batch, feature):
                row = self.converted(widen(state.tables[table][x.row]))
                result[x.position] = self.inner_product(case, adder, row, gradient[x.bag], x)
        return self.stored(result, spec.dtype, self.style.weight_gradient_store, self.style.accumulator)

    def inner_product(
        self, case: Case, adder: Adder, row: Float64Array, gradient: Float64Array, lookup: Lookup
    ) -> float:
        """Inner product <w, dY>, by the length in MEAN."""
        mean = case.pooling is Pooling.MEAN
        if mean and self.style.mean is MeanForm.ROW:
            row = self.divided(row, lookup.length)
        if mean and self.style.mean is MeanForm.WEIGHT:
            gradient = self.divided(gradient, lookup.length)
        total = adder.products(row[:, None], gradient[:, None])
        if mean and self.style.mean is MeanForm.SUM:
            total = self.divided(total, lookup.length)
        return float(total[0])

    # Stores
    def stored(self, values: Float64Array, dtype: DType, how: Store, computed: DType) -> AnyArray:
        """Values of the type `computed`, rounded into a storage type."""
        match StoreRounding.NEAREST if dtype is computed else how.rounding:  # its own type leaves nothing to round
            case StoreRounding.NEAREST:
                rounded = nearest(values, dtype)
            case StoreRounding.TRUNCATE:
                rounded = toward_zero(values, dtype)
            case StoreRounding.STOCHASTIC:
                rounded = self.chosen(values, dtype)
        if how.saturates:
            clipped = np.clip(rounded, -dtype.info.maximum, dtype.info.maximum)
            rounded = np.where(np.isfinite(values), clipped, rounded)  # what is infinite already stays so
        if how.flushes:
            rounded = np.where(np.abs(rounded) < dtype.info.smallest_normal, 0.0, rounded)
        return store(rounded, dtype)

    def chosen(self, values: Float64Array, dtype: DType) -> Float64Array:
        """One of the two neighbours."""
        low, high = down(values, dtype), up(values, dtype)
        match self.style.stochastic:
            case Stochastic.UP:
                return high
            case Stochastic.DOWN:
                return low
            case Stochastic.AWAY:
                return np.where(values > 0, high, low)
            case Stochastic.FAIR:
                share = np.where(high > low, (values - low) / np.where(high > low, high - low, 1.0), 0.0)
                return np.where(self.random.random(values.shape) < share, high, low)


def _columns(moment: AnyArray) -> Float64Array:
    values = widen(moment)
    return values[:, None] if values.ndim == 1 else values


def _grouped(lookups: list[Lookup], key: str) -> Iterator[tuple[int, list[Lookup]]]:
    groups: dict[int, list[Lookup]] = {}
    for x in lookups:
        groups.setdefault(getattr(x, key), []).append(x)
    yield from groups.items()
