"""What a right kernel may give: per tensor the fp64 value, the interval that is allowed, and where it is exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equivcheck.formats import DType, Float64Array
from equivcheck.oracle.roundoff import BoolArray, Interval
from equivcheck.problem import Problem, Snapshot


@dataclass(frozen=True)
class Bounds:
    """Allowed values of one block of a tensor, of shape (rows, columns).

    Attributes
    ----------
    dtype
        Storage type of the tensor.
    value
        The truth, not rounded.
    allowed
        Stored values that are allowed: `low` <= x <= `high`, or NaN where both ends are NaN.
    undetermined
        Elements whose value and finiteness are not judged.
    trusted
        For the leading columns: whether a lost lookup would show.
    before_store
        Where the store rounds stochastically: what is rounded.
    """

    dtype: DType
    value: Float64Array
    allowed: Interval
    undetermined: BoolArray
    trusted: BoolArray
    before_store: Interval | None = None

    @property
    def exact(self) -> BoolArray:
        """Elements with a single allowed value."""
        return np.asarray(self.allowed.low == self.allowed.high)


@dataclass(frozen=True)
class CallExpectation:
    """Whether a call must, or may, raise. After that the state is as before, and nothing else is judged."""

    must_raise: bool
    may_raise: bool


@dataclass(frozen=True)
class ForwardExpectation:
    """Output blocks per feature, and how many bounds-check warnings may be counted."""

    call: CallExpectation
    outputs: tuple[Bounds, ...]
    output_shape: tuple[int, ...]
    warnings: tuple[int, int]


@dataclass(frozen=True)
class TableExpectation:
    """Rows that are named, ascending, with their weights and states; all others keep every byte."""

    touched: npt.NDArray[np.int64]
    rows: Bounds
    momentum1: Bounds | None = None
    momentum2: Bounds | None = None


@dataclass(frozen=True)
class UpdateExpectation:
    """State after a backward, and (N, 1) weight gradients where they are asked for."""

    call: CallExpectation
    before: Snapshot
    tables: tuple[TableExpectation, ...]
    weight_gradient: Bounds | None


@dataclass(frozen=True)
class InputExpectation:
    """Per input of a step, the arrays that it may equal element by element: as given, or as repaired."""

    given: npt.NDArray[np.integer]
    repaired: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Expectation:
    """One entry for each action of the case's program, and what may happen to the indices and offsets of each step."""

    problem: Problem
    calls: tuple[ForwardExpectation | UpdateExpectation, ...]
    indices: tuple[InputExpectation, ...]
    offsets: tuple[InputExpectation, ...]
