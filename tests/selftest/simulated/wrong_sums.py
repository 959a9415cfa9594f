"""Kernels with one mistake in what they look up or how they add: outputs, row gradients, weight gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from equivcheck.arithmetic import Arithmetic
from equivcheck.case import Case, Pooling
from equivcheck.formats import AnyArray, DType, Float64Array, nearest, widen
from equivcheck.problem import Batch, Problem, Snapshot
from tests.selftest.simulated.kernel import Kernel, Lookup, Style
from tests.selftest.simulated.sums import Adder

TILE = 32
"""Lookups after which a tile ends, in the kernels that err at its edge."""


class _Narrow(Kernel):
    """Accumulates in a narrower type than it declares."""

    dtype = DType.FP16

    def __init__(self) -> None:
        super().__init__(Style(accumulator=self.dtype))

    def arithmetic(self, case: Case) -> Arithmetic:
        return Kernel().arithmetic(case)


class Fp16Accumulator(_Narrow):
    """Sums in fp16."""


class Bf16Accumulator(_Narrow):
    """Sums in bf16."""

    dtype = DType.BF16

    def adder(self, left: DType, right: DType | None) -> Adder:
        return _Bf16Adder(self.summing)


class _Bf16Adder(Adder):
    def products(self, left: Float64Array, right: Float64Array | None) -> Float64Array:
        total = np.zeros(left.shape[1:])
        for term in left if right is None else left * right:
            total = nearest(total + term, DType.BF16)
        return total


class PairAddInFp16(Kernel):
    """Adds pairs of 16-bit rows in fp16 before they are widened."""

    def bag_sum(self, case: Case, adder: Adder, rows: Float64Array, lookups: list[Lookup]) -> Float64Array:
        if case.weights is DType.FP16 and self.weights_of(lookups) is None and len(rows) > 1:
            even = len(rows) // 2 * 2
            rows = np.concatenate([nearest(rows[:even:2] + rows[1:even:2], DType.FP16), rows[even:]])
        return super().bag_sum(case, adder, rows, lookups if len(rows) == len(lookups) else lookups[: len(rows)])


class LosesLookupAtTileEdge(Kernel):
    """A bag's lookup number 32 is skipped."""

    def lookups(self, problem: Problem, batch: Batch, feature: int) -> list[Lookup]:
        found = super().lookups(problem, batch, feature)
        seen: dict[int, int] = {}
        kept = []
        for x in found:
            seen[x.bag] = seen.get(x.bag, 0) + 1
            if seen[x.bag] != TILE:
                kept.append(x)
        return kept


class DoublesLookupAtTileEdge(Kernel):
    """The last lookup of a full tile is added again."""

    def bag_sum(self, case: Case, adder: Adder, rows: Float64Array, lookups: list[Lookup]) -> Float64Array:
        if len(rows) >= TILE:
            rows, lookups = np.concatenate([rows, rows[TILE - 1 : TILE]]), [*lookups, lookups[TILE - 1]]
        return super().bag_sum(case, adder, rows, lookups)


class LosesLookupOfLongRun(Kernel):
    """A run longer than a tile loses its last lookup."""

    def run_sum(self, case: Case, lookups: list[Lookup], upstream: Float64Array) -> Float64Array:
        if len(lookups) > TILE:
            lookups, upstream = lookups[:-1], upstream[:-1]
        return super().run_sum(case, lookups, upstream)


class WeightsOfNextLookup(Kernel):
    """Per-sample weights are read one lookup too late."""

    def lookups(self, problem: Problem, batch: Batch, feature: int) -> list[Lookup]:
        found = super().lookups(problem, batch, feature)
        return [replace(x, weight=y.weight) for x, y in zip(found, [*found[1:], *found[:1]], strict=True)]


class DuplicatesTakeFirstWeight(Kernel):
    """Lookups of one row in one bag are merged, all with the first's weight."""

    def lookups(self, problem: Problem, batch: Batch, feature: int) -> list[Lookup]:
        first: dict[tuple[int, int], float | None] = {}
        found = super().lookups(problem, batch, feature)
        return [replace(x, weight=first.setdefault((x.bag, x.row), x.weight)) for x in found]


class WeightsIgnoredInGradient(Kernel):
    """Row gradients are summed without the per-sample weights."""

    def run_sum(self, case: Case, lookups: list[Lookup], upstream: Float64Array) -> Float64Array:
        return super().run_sum(case, [replace(x, weight=None) for x in lookups], upstream)


class BagsOneOff(Kernel):
    """The last lookup of a bag goes to the next."""

    def offsets(self, batch: Batch) -> list[int]:
        found = super().offsets(batch)
        inner = [max(a, b - 1) for a, b in pairwise(found[:-1])]
        return [*found[:1], *inner, *found[-1:]]


class PaddingCountedInMean(Kernel):
    """MEAN divides by a length rounded up to a multiple of four."""

    def length(self, problem: Problem, batch: Batch, start: int, stop: int) -> int:
        return -(-(stop - start) // 4) * 4


class PrunedShortenMean(Kernel):
    """MEAN divides by the lookups that contribute."""

    def length(self, problem: Problem, batch: Batch, start: int, stop: int) -> int:
        return max(int((batch.indices[start:stop] != -1).sum()), 1)


class MeanNotDividedInGradient(Kernel):
    """Row gradients of MEAN are those of SUM."""

    def run_sum(self, case: Case, lookups: list[Lookup], upstream: Float64Array) -> Float64Array:
        return super().run_sum(case, [replace(x, length=1) for x in lookups], upstream)


class MeanNotDividedInWeightGradient(Kernel):
    """Gradients of the weights of MEAN are those of SUM."""

    def inner_product(
        self, case: Case, adder: Adder, row: Float64Array, gradient: Float64Array, lookup: Lookup
    ) -> float:
        return super().inner_product(case, adder, row, gradient, replace(lookup, length=1))


class WeightGradientTimesWeight(Kernel):
    """dL/dp is multiplied by p."""

    def inner_product(
        self, case: Case, adder: Adder, row: Float64Array, gradient: Float64Array, lookup: Lookup
    ) -> float:
        return super().inner_product(case, adder, row, gradient, lookup) * (lookup.weight or 0.0)


class WeightGradientLosesColumn(Kernel):
    """The last column is left out of dL/dp."""

    def inner_product(
        self, case: Case, adder: Adder, row: Float64Array, gradient: Float64Array, lookup: Lookup
    ) -> float:
        return super().inner_product(case, adder, row[:-1], gradient[:-1], lookup)


class WeightGradientFromUpdatedRows(Kernel):
    """dL/dp is computed after the update."""

    def weight_gradient(self, problem: Problem, batch: Batch, state: Snapshot) -> AnyArray | None:
        step = next(i for i, b in enumerate(problem.batches) if b is batch)
        return super().weight_gradient(problem, batch, self.backward(problem, batch, step, state))


class FrozenGetsWeightGradient(Kernel):
    """A frozen feature's weights get their gradient all the same."""

    def weight_gradient(self, problem: Problem, batch: Batch, state: Snapshot) -> AnyArray | None:
        return super().weight_gradient(replace(problem, frozen=(False,) * len(problem.frozen)), batch, state)


class ForeignColumnBlock(Kernel):
    """A feature that shares a table takes the gradient block of that table's first feature."""

    def gradients(self, problem: Problem, batch: Batch, feature: int) -> Float64Array:
        first = problem.feature_tables.index(problem.feature_tables[feature])
        found = super().gradients(problem, batch, first)
        own = super().gradients(problem, batch, feature)
        return found if found.shape == own.shape else own


class RanksInTheWrongOrder(Kernel):
    """A variable batch's output is feature-major."""

    def assembled(self, problem: Problem, batch: Batch, blocks: list[AnyArray]) -> AnyArray:
        if batch.batch_sizes is None:
            return super().assembled(problem, batch, blocks)
        return np.concatenate([block.reshape(-1) for block in blocks])


class GradientRoundedTo16Bits(Kernel):
    """Row gradients are rounded to bf16 before the update."""

    def run_sum(self, case: Case, lookups: list[Lookup], upstream: Float64Array) -> Float64Array:
        return nearest(super().run_sum(case, lookups, upstream), DType.BF16)


class TermsRoundedToOutputType(Kernel):
    """p dY and dY/L are rounded to the output's type."""

    def __init__(self, dtype: DType = DType.FP32) -> None:
        super().__init__()
        self.dtype = dtype

    def arithmetic(self, case: Case) -> Arithmetic:
        self.dtype = case.output
        return super().arithmetic(case)

    def divided_each(self, values: Float64Array, lookups: list[Lookup]) -> Float64Array:
        return nearest(super().divided_each(values, lookups), self.dtype)


class OutputRoundedInBetween(Kernel):
    """The output is stored and loaded again after every tile."""

    def bag_sum(self, case: Case, adder: Adder, rows: Float64Array, lookups: list[Lookup]) -> Float64Array:
        weights = self.weights_of(lookups)
        terms = rows if weights is None else nearest(rows * weights, DType.FP32)
        total = np.zeros(rows.shape[1])
        for start in range(0, len(terms), TILE):
            total = nearest(total + adder.products(terms[start : start + TILE], None), case.output)
        return self.divided(total, lookups[0].length) if case.pooling is Pooling.MEAN else total


class PrunedReadsRowZero(Kernel):
    """Index -1 is repaired to row 0 like any other."""

    def repaired(self, row: int, rows: int) -> int | None:
        if rows == 0:
            return None
        return row if 0 <= row < rows else 0


class InvalidContributesNothing(Kernel):
    """An index out of bounds is left out, not repaired to row 0."""

    def repaired(self, row: int, rows: int) -> int | None:
        return row if 0 <= row < rows else None


class RepairLosesWeight(Kernel):
    """A repaired lookup weighs 1."""

    def lookups(self, problem: Problem, batch: Batch, feature: int) -> list[Lookup]:
        return [
            replace(x, weight=1.0) if x.weight is not None and x.row != batch.indices[x.position] else x
            for x in super().lookups(problem, batch, feature)
        ]


class EmptyBagsTakeRowZero(Kernel):
    """An empty bag's output is row 0."""

    def pooled(self, problem: Problem, batch: Batch, feature: int, state: Snapshot) -> Float64Array:
        found = super().pooled(problem, batch, feature, state)
        table = state.tables[problem.feature_tables[feature]]
        filled = {x.bag for x in self.lookups(problem, batch, feature)}
        if problem.case.pooling is not Pooling.NONE and len(table):
            for bag in set(range(len(found))) - filled:
                found[bag] = widen(table[0])
        return found


class NanLeaksFromUnnamedRows(Kernel):
    """Rows are picked by a product with zeros and ones: 0 * NaN is NaN."""

    def pooled(self, problem: Problem, batch: Batch, feature: int, state: Snapshot) -> Float64Array:
        found = super().pooled(problem, batch, feature, state)
        table = widen(state.tables[problem.feature_tables[feature]])
        return nearest(found + (0.0 * table).sum(axis=0), DType.FP32)


class NanLeaksThroughGradient(Kernel):
    """A run is summed under a mask of zeros and ones, so that a NaN of a foreign bag gets in."""

    def runs(self, problem: Problem, batch: Batch, table: int) -> Iterator[tuple[int, list[Lookup], Float64Array]]:
        leak = 0.0 * widen(batch.grad_output).reshape(-1)
        noise = np.nan if np.isnan(leak).any() else 0.0
        for row, lookups, upstream in super().runs(problem, batch, table):
            yield row, lookups, upstream + noise


class FirstTableTwice(Kernel):
    """Every table but the first reads the first table's rows, where they fit."""

    def pooled(self, problem: Problem, batch: Batch, feature: int, state: Snapshot) -> Float64Array:
        table = problem.feature_tables[feature]
        if table and state.tables[0].shape == state.tables[table].shape:
            tables = (*state.tables[:table], state.tables[0], *state.tables[table + 1 :])
            state = replace(state, tables=tables)
        return super().pooled(problem, batch, feature, state)


class SubnormalsFlushed(Kernel):
    """Arithmetic flushes subnormal numbers, which is not declared."""

    def __init__(self) -> None:
        super().__init__(Style(sum_flushes=True, step_flushes=True))

    def arithmetic(self, case: Case) -> Arithmetic:
        return Kernel().arithmetic(case)
