"""A table-batched embedding in NumPy's fp32, and its mistakes that Triton's interpreter cannot make.

The interpreter runs programs one after the other and computes with IEEE's arithmetic; so threads that race, units that
flush subnormals, and tensor cores are simulated here. The kernel is right without a mistake: SGD and row-wise Adagrad,
SUM and MEAN, fixed batches. Each part is a small method, which a mistake overrides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from equivcheck.arithmetic import Arithmetic, Sequential
from equivcheck.backends.protocol import Backend
from equivcheck.case import BoundsCheck, Call, Case, Decay, OptimizerKind, Pooling, Rounding
from equivcheck.faults.fault import Fault, Kind, Subtlety, Wrap
from equivcheck.formats import DType, nearest, store, toward_zero, widen
from equivcheck.outcome import SUPPORTED, Forward, Outcome, Support, Update, unsupported
from equivcheck.problem import Action, Batch, Problem, Snapshot, program

Fp32Array: TypeAlias = npt.NDArray[np.float32]

_CALLS = (Call.STEPS, Call.OUTSTANDING, Call.RETAINED, Call.RATE_CHANGED, Call.FORWARD_ONLY)


@dataclass(frozen=True)
class Lookup:
    """One lookup that contributes: its place in the batch, feature, bag, columns, row, weight, and bag's length."""

    position: int
    feature: int
    bag: int
    columns: slice
    row: int
    weight: np.float32 | None
    length: int


class Kernel:
    """Right. Rows are gathered, weighted and added one by one; each row is updated once from its run."""

    name = "simulated"

    def supports(self, case: Case) -> Support:
        """Plain cases: what the mistakes need."""
        if case.optimizer.kind not in (OptimizerKind.SGD, OptimizerKind.ROWWISE_ADAGRAD):
            return unsupported("the simulated kernel has SGD and row-wise Adagrad")
        if case.optimizer.decay is not Decay.NONE:
            return unsupported("the simulated kernel has no decay")
        if case.pooling is Pooling.NONE or case.ranks:
            return unsupported("the simulated kernel pools fixed batches")
        if case.accumulation is not DType.FP32:
            return unsupported("the simulated kernel accumulates in fp32")
        if case.rounding is Rounding.STOCHASTIC:
            return unsupported("the simulated kernel rounds to nearest")
        if case.bounds_check is not BoundsCheck.NONE or case.bad_indices:
            return unsupported("the simulated kernel checks no bounds")
        if case.per_sample_weights is not None and case.per_sample_weights.gradient:
            return unsupported("the simulated kernel has no gradient of the weights")
        return SUPPORTED if case.call in _CALLS else unsupported(f"the simulated kernel has no {case.call}")

    def arithmetic(self, case: Case) -> Arithmetic:
        """fp32 throughout, correctly rounded, the same bits in every run."""
        return Arithmetic(pooling=Sequential(DType.FP32))

    def versions(self) -> dict[str, str]:
        """NumPy's."""
        return {"numpy": np.__version__}

    def run(self, problem: Problem) -> Outcome:
        """See `Backend`."""
        results: list[Forward | Update] = []
        state = problem.initial
        with np.errstate(all="ignore"):
            for action, step in program(problem.case):
                batch = problem.batches[step]
                if action is Action.FORWARD:
                    alone = state if problem.case.call is Call.FORWARD_ONLY else None
                    results.append(Forward(self.forward(problem, batch, state), after=alone))
                else:
                    state = self.backward(problem, batch, state)
                    results.append(Update(state))
        return Outcome(tuple(results))

    def lookups(self, problem: Problem, batch: Batch) -> Iterator[Lookup]:
        """All lookups of rows that exist, bag by bag."""
        edges = np.cumsum([0, *problem.dims])
        mean = problem.case.pooling is Pooling.MEAN
        place = 0
        for feature, bags in enumerate(batch.bags):
            rows = len(problem.initial.tables[problem.feature_tables[feature]])
            for bag in range(bags):
                start, stop = int(batch.offsets[place]), int(batch.offsets[place + 1])
                place += 1
                for position in range(start, stop):
                    row = int(batch.indices[position])
                    weights = batch.per_sample_weights
                    weight = None if weights is None else np.float32(weights[position])
                    if 0 <= row < rows:
                        columns = slice(int(edges[feature]), int(edges[feature + 1]))
                        yield Lookup(position, feature, bag, columns, row, weight, stop - start if mean else 1)

    def forward(self, problem: Problem, batch: Batch, state: Snapshot) -> Any:
        """Pooled rows (B, sum of dims)."""
        bags: dict[tuple[int, int], list[Lookup]] = {}
        for lookup in self.lookups(problem, batch):
            bags.setdefault((lookup.feature, lookup.bag), []).append(lookup)
        output = self.buffer((batch.bags[0] if batch.bags else 0, sum(problem.dims)))
        for (feature, bag), found in bags.items():
            table = state.tables[problem.feature_tables[feature]]
            terms = [self.term(self.loaded(table[x.row]), x) for x in found]
            total = self.total(terms)
            output[bag, found[0].columns] = self.scaled(total, found[0].length)
        return store(widen(output), problem.case.output)

    def backward(self, problem: Problem, batch: Batch, state: Snapshot) -> Snapshot:
        """One update of each row."""
        runs: dict[tuple[int, int], list[Lookup]] = {}
        for lookup in self.lookups(problem, batch):
            runs.setdefault((problem.feature_tables[lookup.feature], lookup.row), []).append(lookup)
        tables = tuple(table.copy() for table in state.tables)
        moments = tuple(moment.copy() for moment in state.momentum1)
        rate = np.float32(batch.learning_rate)
        for (table, row), run in self.updates(runs):
            gradients = [np.asarray(batch.grad_output[x.bag, x.columns]).astype(np.float32) for x in run]
            terms = [self.scaled(self.term(g, x), x.length) for g, x in zip(gradients, run, strict=True)]
            gradient = self.total(terms)
            if moments:
                moments[table][row] += self.mean_square(gradient)
                divisor = self.root(moments[table][row]) + np.float32(problem.case.optimizer.eps)
                step = (rate / divisor) * gradient
            else:
                step = self.product(rate, gradient)
            old = np.asarray(tables[table][row]).astype(np.float32)
            tables[table][row] = store(widen(self.sum(old, -step)), problem.case.weights)
        return Snapshot(tables, moments, state.momentum2)

    # The parts that mistakes override
    def buffer(self, shape: tuple[int, int]) -> Fp32Array:
        """Memory for the output, zero."""
        return np.zeros(shape, np.float32)

    def loaded(self, row: Any) -> Fp32Array:
        """A row as the arithmetic gets it."""
        return np.asarray(row).astype(np.float32)

    def updates(self, runs: dict[tuple[int, int], list[Lookup]]) -> Iterator[tuple[tuple[int, int], list[Lookup]]]:
        """(table, row) and lookups of every update."""
        yield from runs.items()

    def term(self, values: Fp32Array, lookup: Lookup) -> Fp32Array:
        """A row, or a gradient, times the lookup's weight."""
        return values if lookup.weight is None else self.product(lookup.weight, values)

    def total(self, terms: list[Fp32Array]) -> Fp32Array:
        """Sum of the terms, in their order."""
        total = np.zeros_like(terms[0])
        for term in terms:
            total = self.sum(total, term)
        return total

    def scaled(self, values: Fp32Array, length: int) -> Fp32Array:
        """Divided by the length of a bag."""
        return values if length == 1 else self.product(np.float32(1) / np.float32(length), values)

    def sum(self, left: Fp32Array, right: Fp32Array) -> Fp32Array:
        """Sum, rounded once."""
        return left + right

    def product(self, factor: np.float32, values: Fp32Array) -> Fp32Array:
        """Product, rounded once."""
        return np.asarray(factor * values, np.float32)

    def mean_square(self, gradient: Fp32Array) -> np.float32:
        """Mean of G^2."""
        total = np.float32(0)
        for square in gradient * gradient:
            total = np.float32(total + square)
        return np.float32(total / np.float32(len(gradient)))

    def root(self, value: np.float32) -> np.float32:
        """Square root, rounded once."""
        return np.float32(np.sqrt(value))


class _Racing(Kernel):
    """Keeps a state between runs, as the timing of threads does."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)


class _LostUpdates(_Racing):
    """Two threads add to one row without an atomic: now and then one of the sums is lost."""

    def total(self, terms: list[Fp32Array]) -> Fp32Array:
        kept = [term for term in terms[1:] if self._random.random() >= 0.02]
        return super().total([terms[0], *kept])


class _OrderOfAtomics(_Racing):
    """Atomics add in the order of arrival, though the path is declared deterministic."""

    def total(self, terms: list[Fp32Array]) -> Fp32Array:
        return super().total([terms[i] for i in self._random.permutation(len(terms))])


class _HalfPrecisionAtomics(Kernel):
    """Atomics add in fp16."""

    def total(self, terms: list[Fp32Array]) -> Fp32Array:
        total = np.zeros(terms[0].shape, np.float16)
        for term in terms:
            total = total + term.astype(np.float16)
        return total.astype(np.float32)


class _TileOfTheBagBefore(Kernel):
    """A tile in shared memory is read before it is written: lookup 33 is what lookup 1 was."""

    def total(self, terms: list[Fp32Array]) -> Fp32Array:
        return super().total([terms[i - 32] if i == 32 else term for i, term in enumerate(terms)])


class _OutputNotCleared(_Racing):
    """Empty bags show what the buffer's last user left."""

    def buffer(self, shape: tuple[int, int]) -> Fp32Array:
        return np.full(shape, self._random.standard_normal(), np.float32)


class _FlushesSums(Kernel):
    """Sums flush subnormal results."""

    def sum(self, left: Fp32Array, right: Fp32Array) -> Fp32Array:
        return _flushed(left + right)


class _FlushesProducts(Kernel):
    """Products flush subnormal factors and results."""

    def product(self, factor: np.float32, values: Fp32Array) -> Fp32Array:
        return _flushed(super().product(factor, _flushed(values)))


class _Tf32Operands(Kernel):
    """Tensor cores get rows with 11 bits."""

    def loaded(self, row: Any) -> Fp32Array:
        return np.asarray((super().loaded(row).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32))


class _TensorCoreSums(Kernel):
    """Tensor cores align addends to the largest and cut them: sums of sixteen lose up to 2^-23 each."""

    def total(self, terms: list[Fp32Array]) -> Fp32Array:
        total = np.zeros(terms[0].shape)
        for start in range(0, len(terms), 16):
            addends = np.stack([total, *(term.astype(np.float64) for term in terms[start : start + 16])])
            largest = np.abs(addends).max(axis=0)
            if not np.isfinite(largest).all():
                total = addends.sum(axis=0)
                continue
            unit = np.ldexp(1.0, np.frexp(np.where(largest == 0, 1.0, largest))[1] - 1 - 23)
            total = toward_zero((np.trunc(addends / unit) * unit).sum(axis=0), DType.FP32)
        return total.astype(np.float32)


class _ApproximateRoot(Kernel):
    """The root comes from a reciprocal root good to 2^-21."""

    def root(self, value: np.float32) -> np.float32:
        return np.float32(np.float64(np.sqrt(value)) * (1 + 2.0**-21))


class _WarpOfColumns(Kernel):
    """The mean of G^2 is reduced within a warp: columns from 32 on are left out."""

    def mean_square(self, gradient: Fp32Array) -> np.float32:
        return super().mean_square(np.where(np.arange(len(gradient)) < 32, gradient, np.float32(0)))


class _Bf16Terms(Kernel):
    """Terms go through bf16 registers."""

    def term(self, values: Fp32Array, lookup: Lookup) -> Fp32Array:
        return nearest(widen(super().term(values, lookup)), DType.BF16).astype(np.float32)


def _flushed(values: Fp32Array) -> Fp32Array:
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.float32(0), values)


def _instead(kernel: type[Kernel]) -> Wrap:
    def wrap(inner: Backend) -> Backend:
        return kernel()

    return wrap


def _fault(
    name: str, kind: Kind, kernel: type[Kernel], subtlety: Subtlety, report: str = "", first: tuple[str, ...] = ()
) -> Fault:
    what = (kernel.__doc__ or "").strip()
    return Fault(name, kind, what, subtlety, wrap=_instead(kernel), report=report, simulated=True, first=first)


_TRITON = "https://github.com/triton-lang/triton"

FAULTS: tuple[Fault, ...] = (
    _fault("race-loses-a-sum", Kind.RACES, _LostUpdates, Subtlety.FEW, f"{_TRITON}/issues/558"),
    _fault("order-of-atomics", Kind.RACES, _OrderOfAtomics, Subtlety.BITS),
    _fault("atomics-in-fp16", Kind.RACES, _HalfPrecisionAtomics, Subtlety.BITS),
    _fault("tile-of-the-bag-before", Kind.RACES, _TileOfTheBagBefore, Subtlety.EDGE),
    _fault("output-not-cleared", Kind.UNWRITTEN, _OutputNotCleared, Subtlety.EDGE),
    _fault("sums-flushed", Kind.HARDWARE, _FlushesSums, Subtlety.EDGE),
    _fault("products-flushed", Kind.HARDWARE, _FlushesProducts, Subtlety.EDGE),
    _fault("rows-in-tf32", Kind.HARDWARE, _Tf32Operands, Subtlety.BITS, f"{_TRITON}/issues/8407"),
    _fault("tensor-core-sums", Kind.HARDWARE, _TensorCoreSums, Subtlety.BITS, first=("optimizer_state",)),
    _fault("root-of-a-reciprocal-root", Kind.HARDWARE, _ApproximateRoot, Subtlety.BITS),
    _fault(
        "warp-of-columns", Kind.OPTIMIZER, _WarpOfColumns, Subtlety.EDGE, "https://github.com/pytorch/FBGEMM/pull/2509"
    ),
    _fault("terms-through-bf16", Kind.ACCUMULATOR, _Bf16Terms, Subtlety.BITS),
)
