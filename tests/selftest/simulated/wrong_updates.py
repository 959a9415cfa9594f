"""Kernels with one mistake in the update: which rows, which state, which formula, which rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np

from equivcheck.arithmetic import Store, StoreRounding
from equivcheck.case import Case, Decay, Optimizer, OptimizerKind
from equivcheck.formats import AnyArray, DType, Float64Array, down, nearest, store, toward_zero, up, widen
from equivcheck.problem import Batch, Problem, Snapshot
from tests.selftest.simulated.kernel import Kernel, Lookup
from tests.selftest.simulated.steps import State, Updater


class FrozenTableNotUpdated(Kernel):
    """A frozen feature's lookups update nothing."""

    def runs(self, problem: Problem, batch: Batch, table: int) -> Iterator[tuple[int, list[Lookup], Float64Array]]:
        tables = tuple(-1 if f else t for t, f in zip(problem.feature_tables, problem.frozen, strict=True))
        yield from super().runs(replace(problem, feature_tables=tables), batch, table)


class UpdatePerLookup(Kernel):
    """Every lookup updates its row by itself."""

    def backward(self, problem: Problem, batch: Batch, step: int, state: Snapshot) -> Snapshot:
        for table in range(len(state.tables)):
            for row, lookups, upstream in self.runs(problem, batch, table):
                for x, dy in zip(lookups, upstream, strict=True):
                    gradient = self.run_sum(problem.case, [x], dy[None])[None]
                    state = _one_row(self, problem, batch, step, state, table, row, gradient)
        return state


class UpdatePerFeature(Kernel):
    """Features that share a table update it one after the other."""

    def backward(self, problem: Problem, batch: Batch, step: int, state: Snapshot) -> Snapshot:
        for feature in range(len(problem.feature_tables)):
            alone = tuple(t if f == feature else -1 for f, t in enumerate(problem.feature_tables))
            state = super().backward(replace(problem, feature_tables=alone), batch, step, state)
        return state


def _one_row(
    kernel: Kernel, problem: Problem, batch: Batch, step: int, state: Snapshot, table: int, row: int, g: Float64Array
) -> Snapshot:
    tables, first, second = ([a.copy() for a in part] for part in (state.tables, state.momentum1, state.momentum2))
    before = State(
        widen(tables[table][[row]]),
        widen(first[table][[row]]).reshape(1, -1) if first else None,
        widen(second[table][[row]]).reshape(1, -1) if second else None,
    )
    kernel.write(problem, batch, step, [row], before, g, tables[table], first, second, table)
    return Snapshot(tuple(tables), tuple(first), tuple(second))


class NeighbourWritten(Kernel):
    """The row after the last one named is written, too."""

    def backward(self, problem: Problem, batch: Batch, step: int, state: Snapshot) -> Snapshot:
        after = super().backward(problem, batch, step, state)
        for old, new in zip(state.tables, after.tables, strict=True):
            changed = np.flatnonzero((old != new).any(axis=1))
            if len(changed) and changed[-1] + 1 < len(new):
                new[changed[-1] + 1] = new[changed[-1]]
        return after


class LastColumnsNotUpdated(Kernel):
    """Columns beyond a multiple of four keep their weights."""

    def backward(self, problem: Problem, batch: Batch, step: int, state: Snapshot) -> Snapshot:
        after = super().backward(problem, batch, step, state)
        for old, new in zip(state.tables, after.tables, strict=True):
            whole = new.shape[1] // 4 * 4
            new[:, whole:] = old[:, whole:]
        return after


class ZerosLoseTheirSign(Kernel):
    """Every row is rewritten as itself plus zero: -0 becomes 0."""

    def backward(self, problem: Problem, batch: Batch, step: int, state: Snapshot) -> Snapshot:
        after = super().backward(problem, batch, step, state)
        for new in after.tables:
            new[...] = store(widen(new) + 0.0, problem.case.weights)
        return after


class DenseUpdate(Kernel):
    """Rows that no lookup names are updated with a zero gradient."""

    def runs(self, problem: Problem, batch: Batch, table: int) -> Iterator[tuple[int, list[Lookup], Float64Array]]:
        named = set()
        for row, lookups, upstream in super().runs(problem, batch, table):
            named.add(row)
            yield row, lookups, upstream
        rows, dim = problem.initial.tables[table].shape
        for row in range(rows if named else 0):
            if row not in named:
                yield row, [], np.zeros((0, dim))

    def run_sum(self, case: Case, lookups: list[Lookup], upstream: Float64Array) -> Float64Array:
        return super().run_sum(case, lookups, upstream) if lookups else np.zeros(upstream.shape[1])


class StaleState(Kernel):
    """The optimizer's state of the step before is not kept."""

    def backward(self, problem: Problem, batch: Batch, step: int, state: Snapshot) -> Snapshot:
        initial = problem.initial
        return super().backward(problem, batch, step, replace(initial, tables=state.tables))


class OldState(Kernel):
    """Every update starts from the initial weights."""

    def backward(self, problem: Problem, batch: Batch, step: int, state: Snapshot) -> Snapshot:
        return super().backward(problem, batch, step, replace(state, tables=problem.initial.tables))


class ZeroGradientsSkipped(Kernel):
    """A row whose gradient is zero is taken for one that no lookup names."""

    def runs(self, problem: Problem, batch: Batch, table: int) -> Iterator[tuple[int, list[Lookup], Float64Array]]:
        for row, lookups, upstream in super().runs(problem, batch, table):
            if self.run_sum(problem.case, lookups, upstream).any():
                yield row, lookups, upstream


class _SquareOfMeans(Updater):
    def mean_square(self, values: Float64Array) -> Float64Array:
        return np.asarray(nearest(values.mean(axis=1, keepdims=True) ** 2, DType.FP32))


class SquareOfMeans(Kernel):
    """Row-wise moments take mean(G)^2."""

    updater = _SquareOfMeans


class _SumOfSquares(Updater):
    def mean_square(self, values: Float64Array) -> Float64Array:
        return np.asarray(nearest((values**2).sum(axis=1, keepdims=True), DType.FP32))


class SumOfSquares(Kernel):
    """Row-wise moments take the sum of G^2, not its mean."""

    updater = _SumOfSquares


class _MeanOverPaddedWidth(Updater):
    def mean_square(self, values: Float64Array) -> Float64Array:
        width = 1 << (values.shape[1] - 1).bit_length()
        return np.asarray(nearest((values**2).sum(axis=1, keepdims=True) / width, DType.FP32))


class MeanOverPaddedWidth(Kernel):
    """Row-wise moments divide by the width rounded up to a power of two."""

    updater = _MeanOverPaddedWidth


class _SquaresInFp16(Updater):
    def mean_square(self, values: Float64Array) -> Float64Array:
        squares = nearest(nearest(values, DType.FP16) ** 2, DType.FP16)
        return np.asarray(nearest(squares.mean(axis=1, keepdims=True), DType.FP32))


class SquaresInFp16(Kernel):
    """G^2 is computed in fp16, where small ones underflow."""

    updater = _SquaresInFp16


class _EpsInsideRoot(Updater):
    def divisor(self, moment: Float64Array, eps: float) -> Float64Array:
        return np.asarray(nearest(np.sqrt(nearest(moment + eps, DType.FP32)), DType.FP32))


class EpsInsideRoot(Kernel):
    """The divisor is sqrt(m + eps)."""

    updater = _EpsInsideRoot


class MomentBeforeItsUpdate(Kernel):
    """Adagrad divides by the moment as it was before."""

    def updated(self, optimizer: Optimizer, rate: float, time: int, before: State, gradient: Float64Array) -> State:
        after = super().updated(optimizer, rate, time, before, gradient)
        if optimizer.is_adam or before.momentum1 is None:
            return after
        divisor = self.updating.divisor(before.momentum1, optimizer.eps)
        return replace(after, rows=self.updating.stepped(before.rows, gradient, rate, divisor))


class UpdateRoundedFirst(Kernel):
    """The update is rounded to the storage's type before it is taken off."""

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
        super().write(problem, batch, step, rows, before, gradient, table, first, second, number)
        dtype = problem.case.weights
        optimizer, time = problem.case.optimizer, self.time(problem.case, step)
        after = self.updated(optimizer, self.rate(batch), time, before, nearest(gradient, DType.FP32))
        change = nearest(after.rows - before.rows, dtype)
        table[rows] = store(before.rows + change, dtype)


class L2ForDecoupled(Kernel):
    """Decoupled decay is done as L2."""

    def updated(self, optimizer: Optimizer, rate: float, time: int, before: State, gradient: Float64Array) -> State:
        if optimizer.decay is Decay.DECOUPLED:
            optimizer = _with(optimizer, decay=Decay.L2)
        return super().updated(optimizer, rate, time, before, gradient)


class DecoupledForL2(Kernel):
    """L2 decay is done as decoupled."""

    def updated(self, optimizer: Optimizer, rate: float, time: int, before: State, gradient: Float64Array) -> State:
        if optimizer.decay is Decay.L2:
            optimizer = _with(optimizer, decay=Decay.DECOUPLED)
        return super().updated(optimizer, rate, time, before, gradient)


class AdamDecaysAsL2(Kernel):
    """Adam's decay goes into the gradient."""

    def updated(self, optimizer: Optimizer, rate: float, time: int, before: State, gradient: Float64Array) -> State:
        if optimizer.is_adam and optimizer.weight_decay:
            gradient = nearest(gradient + optimizer.weight_decay * before.rows, DType.FP32)
            optimizer = _with(optimizer, weight_decay=0.0)
        return super().updated(optimizer, rate, time, before, gradient)


class PowersOneStepLate(Kernel):
    """Adam corrects its bias with t + 1."""

    def updated(self, optimizer: Optimizer, rate: float, time: int, before: State, gradient: Float64Array) -> State:
        return super().updated(optimizer, rate, time + 1, before, gradient)


class StepNotCounted(Kernel):
    """Adam's t stays at the first step's."""

    def time(self, case: Case, step: int) -> int:
        return case.optimizer.step


class NoBiasCorrection(Kernel):
    """Adam does not correct its bias."""

    def updated(self, optimizer: Optimizer, rate: float, time: int, before: State, gradient: Float64Array) -> State:
        return super().updated(optimizer, rate, 2**30, before, gradient)


class BetasSwapped(Kernel):
    """beta1 and beta2 are taken for each other."""

    def updated(self, optimizer: Optimizer, rate: float, time: int, before: State, gradient: Float64Array) -> State:
        swapped = _with(optimizer, beta1=optimizer.beta2, beta2=optimizer.beta1)
        return super().updated(swapped, rate, time, before, gradient)


class PartialAdamPerElement(Kernel):
    """Partial row-wise Adam divides by the root of the first column's square."""

    def updated(self, optimizer: Optimizer, rate: float, time: int, before: State, gradient: Float64Array) -> State:
        if optimizer.kind is not OptimizerKind.PARTIAL_ROWWISE_ADAM:
            return super().updated(optimizer, rate, time, before, gradient)
        whole = _with(optimizer, kind=OptimizerKind.ADAM)
        after = super().updated(whole, rate, time, before, gradient)
        assert after.momentum2 is not None
        return replace(after, momentum2=after.momentum2[:, :1])


class RateOfTheNextStep(Kernel):
    """The learning rate is read when the backward runs, after it was set for the next step."""

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
        later = problem.batches[(step + 1) % len(problem.batches)].learning_rate
        changed = replace(batch, learning_rate=later)
        super().write(problem, changed, step, rows, before, gradient, table, first, second, number)


class ZeroRateSkipsState(Kernel):
    """With a learning rate of zero nothing is done, though moments move."""

    def backward(self, problem: Problem, batch: Batch, step: int, state: Snapshot) -> Snapshot:
        return state if batch.learning_rate == 0 else super().backward(problem, batch, step, state)


class MomentsInBf16(Kernel):
    """Moments are kept in bf16."""

    def backward(self, problem: Problem, batch: Batch, step: int, state: Snapshot) -> Snapshot:
        after = super().backward(problem, batch, step, state)
        for old, new in zip((*state.momentum1, *state.momentum2), (*after.momentum1, *after.momentum2), strict=True):
            new[...] = np.where(new != old, nearest(widen(new), DType.BF16), new)
        return after


class _RowStore(Kernel):
    def chosen_store(self, values: Float64Array, dtype: DType) -> Float64Array:
        raise NotImplementedError

    def stored(self, values: Float64Array, dtype: DType, how: Store, computed: DType) -> AnyArray:
        if how.rounding is StoreRounding.STOCHASTIC or dtype is computed:
            return super().stored(values, dtype, how, computed)
        return store(self.chosen_store(values, dtype), dtype)


class Truncates(_RowStore):
    """Stores truncate."""

    def chosen_store(self, values: Float64Array, dtype: DType) -> Float64Array:
        return toward_zero(values, dtype)


class RoundsHalfAway(_RowStore):
    """Ties go away from zero."""

    def chosen_store(self, values: Float64Array, dtype: DType) -> Float64Array:
        low, high = toward_zero(values, dtype), np.where(values > 0, up(values, dtype), down(values, dtype))
        return np.where(np.abs(values - low) >= np.abs(high - values), high, low)


class Saturates(_RowStore):
    """What is out of range becomes the largest number."""

    def chosen_store(self, values: Float64Array, dtype: DType) -> Float64Array:
        largest = dtype.info.maximum
        return np.where(np.isnan(values), values, np.clip(nearest(values, dtype), -largest, largest))


class FlushesStore(_RowStore):
    """Subnormal results become zero."""

    def chosen_store(self, values: Float64Array, dtype: DType) -> Float64Array:
        rounded = nearest(values, dtype)
        return np.where(np.abs(rounded) < dtype.info.smallest_normal, 0.0, rounded)


class SecondNeighbour(Kernel):
    """Stochastic rounding may go one unit too far."""

    def chosen(self, values: Float64Array, dtype: DType) -> Float64Array:
        return up(np.nextafter(up(values, dtype), np.inf), dtype)


class RepresentableMove(Kernel):
    """Stochastic rounding adds noise to values that need none."""

    def chosen(self, values: Float64Array, dtype: DType) -> Float64Array:
        return up(np.nextafter(values, np.inf), dtype)


class SecondBackwardIgnored(Kernel):
    """A second backward through a retained graph changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[int] = set()

    def backward(self, problem: Problem, batch: Batch, step: int, state: Snapshot) -> Snapshot:
        if step in self._seen:
            return state
        self._seen.add(step)
        return super().backward(problem, batch, step, state)


def _with(optimizer: Optimizer, **changes: object) -> Optimizer:
    """Changed hyper-parameters, without the checks of a Case."""
    return msgspec.structs.replace(optimizer, **changes)


class DecayIgnored(Kernel):
    """Weight decay is ignored."""

    def updated(self, optimizer: Optimizer, rate: float, time: int, before: State, gradient: Float64Array) -> State:
        return super().updated(_with(optimizer, decay=Decay.NONE, weight_decay=0.0), rate, time, before, gradient)
