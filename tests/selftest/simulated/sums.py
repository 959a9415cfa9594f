"""Sums of products in every order and manner that real kernels use, and in orders that only an adversary would."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equivcheck.arithmetic import Grouped, Sequential, Summation, TensorCore
from equivcheck.formats import DType, Float64Array, nearest, toward_zero
from tests.selftest.simulated.machine import Machine


class Order(enum.Enum):
    """In which order terms are added. The last four are chosen from the values, column by column."""

    GIVEN = "given"
    REVERSED = "reversed"
    SHUFFLED = "shuffled"
    SIGNS = "positive terms first"
    LARGEST = "largest first"
    SMALLEST = "smallest first"
    GREEDY = "each time the term that errs most in the direction of the error so far"


class Shape(enum.Enum):
    """How partial sums are joined."""

    CHAIN = "one accumulator"
    PAIRWISE = "a tree"
    BLOCKED = "chains of eight, then a chain of their sums"
    GROUPED = "groups of four in fp32, their sums in fp64"
    TENSOR_CORE = "aligned to the largest addend and truncated, sixteen at a time"


GREEDY_MOST = 24
"""Terms up to which the greedy order is sought, since that takes their square."""


@dataclass(frozen=True)
class Adder:
    """How one kernel adds."""

    machine: Machine
    order: Order = Order.GIVEN
    shape: Shape = Shape.CHAIN

    @property
    def declared(self) -> Summation:
        """What a backend that adds like this declares."""
        if self.shape is Shape.GROUPED:
            return Grouped(4, DType.FP32, DType.FP64)
        if self.shape is Shape.TENSOR_CORE:
            return TensorCore(16)
        return Sequential(self.machine.dtype)

    def products(self, left: Float64Array, right: Float64Array | None) -> Float64Array:
        """Sum over the first axis of left * right, (k, columns) each; of left alone without right."""
        with np.errstate(all="ignore"):
            exact = left if right is None else left * right
            order = self._permutation(exact)
            left = np.take_along_axis(left, order, 0)
            right = None if right is None else np.take_along_axis(np.broadcast_to(right, exact.shape), order, 0)
            if self.shape is Shape.TENSOR_CORE:
                return _tensor_core(left if right is None else left * right)
            if right is not None and self.machine.fused and self.shape is Shape.CHAIN:
                total = np.zeros(exact.shape[1:])
                for a, b in zip(left, right, strict=True):
                    total = self.machine.multiply_add(a, b, total)
                return total
            return self._joined(left if right is None else self.machine.multiply(left, right))

    def _permutation(self, terms: Float64Array) -> npt.NDArray[np.int64]:
        count = len(terms)
        match self.order:
            case Order.GIVEN:
                index = np.arange(count)
            case Order.REVERSED:
                index = np.arange(count)[::-1]
            case Order.SHUFFLED:
                index = np.random.default_rng(count).permutation(count)
            case Order.SIGNS:
                return np.argsort(-terms, axis=0, kind="stable")
            case Order.LARGEST:
                return np.argsort(-np.abs(terms), axis=0, kind="stable")
            case Order.SMALLEST:
                return np.argsort(np.abs(terms), axis=0, kind="stable")
            case Order.GREEDY:
                if count > GREEDY_MOST:
                    return np.argsort(-np.abs(terms), axis=0, kind="stable")
                return self._greedy(terms)
        return np.broadcast_to(index[:, None], terms.shape)

    def _greedy(self, terms: Float64Array) -> npt.NDArray[np.int64]:
        count, columns = terms.shape
        order = np.zeros(terms.shape, np.int64)
        free = np.ones(terms.shape, bool)
        total, lost = np.zeros(columns), np.zeros(columns)
        for place in range(count):
            exact = total + terms
            error = nearest(exact, self.machine.dtype) - exact
            gain = np.where(lost == 0, np.abs(error), np.sign(lost) * error)
            # Where nothing errs, large terms first: later additions then err more.
            gain = np.where(free, np.nan_to_num(gain) + 2.0**-60 * np.minimum(np.abs(terms), 1e30), -np.inf)
            chosen = np.argmax(gain, axis=0)
            across = np.arange(columns)
            order[place], free[chosen, across] = chosen, False
            lost = lost + error[chosen, across]
            total = nearest(exact[chosen, across], self.machine.dtype)
        return order

    def _joined(self, terms: Float64Array) -> Float64Array:
        machine = self.machine
        match self.shape:
            case Shape.PAIRWISE:
                while len(terms) > 1:
                    half = len(terms) // 2
                    pairs = machine.add(terms[:half], terms[half : 2 * half])
                    terms = np.concatenate([pairs, terms[2 * half :]])
                return machine.accumulated(terms)
            case Shape.BLOCKED:
                blocks = [machine.accumulated(terms[i : i + 8]) for i in range(0, len(terms), 8)]
                return machine.accumulated(np.asarray(blocks).reshape(len(blocks), *terms.shape[1:]))
            case Shape.GROUPED:
                groups = [machine.accumulated(terms[i : i + 4]) for i in range(0, len(terms), 4)]
                outer = np.asarray(groups).reshape(len(groups), *terms.shape[1:])
                return machine.rounded(Machine(DType.FP64).accumulated(outer))
            case _:
                return machine.accumulated(terms)


def _tensor_core(terms: Float64Array) -> Float64Array:
    """Blocks of sixteen exact products and the accumulator, aligned to the largest exponent, truncated to 24 bits."""
    total = np.zeros(terms.shape[1:])
    for start in range(0, len(terms), 16):
        addends = np.concatenate([total[None], terms[start : start + 16]])
        largest = np.max(np.abs(addends), axis=0)
        unit = np.ldexp(1.0, np.frexp(largest)[1] - 1 - 23)
        aligned = np.where(largest == 0, 0.0, np.trunc(addends / np.where(largest == 0, 1.0, unit)) * unit)
        total = toward_zero(np.where(np.isfinite(largest), aligned.sum(axis=0), addends.sum(axis=0)), DType.FP32)
    return total
