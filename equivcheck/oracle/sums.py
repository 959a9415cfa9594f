"""Bounds of sums of products, in any order: outputs, row gradients and weight gradients.

With S = sum |terms| (the gauge), k additions and c further roundings of each term,

    A = S (sum over stages of k_s u_s  +  c u)  +  c n eta / 2

(Jeannerod and Rump 2013 for the sums; Higham, *Accuracy and Stability*, section 3.1, for products of (1 + delta)).
Where all terms are multiples of one power of two q and S <= 2^24 q (2^p q for an accumulator of precision p), every
partial sum in every order is such a multiple and has at most p bits: the result is exact, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equivcheck.arithmetic import Grouped, Summation, TensorCore
from equivcheck.formats import DType, Float64Array, lowest_bit
from equivcheck.oracle.roundoff import BoolArray, Interval
from equivcheck.oracle.sparse import blocks
from equivcheck.oracle.terms import TermErrors

_SECOND_ORDER = 1 + 2.0**-9
"""Factor that covers products of (1 + delta) beyond first order while k u < 2^-10; larger sums get k u itself."""


@dataclass(frozen=True)
class Sums:
    """Sums of products with everything that a bound needs. Rows are bags, runs or lookups.

    Attributes
    ----------
    value, gauge
        (rows, columns) the truth and S, in fp64.
    terms
        (rows,) numbers of terms.
    errors
        Of each sum's terms: their quantum (infinity where all are zero), roundings beside the additions, and so on.
    unscaled
        (rows,) by how much the sum is larger before MEAN divides it: what overflows first. Infinity where a term may.
    """

    value: Float64Array
    gauge: Float64Array
    terms: npt.NDArray[np.int64]
    errors: TermErrors
    unscaled: Float64Array


@dataclass(frozen=True)
class BoundedSums:
    """An interval for each sum as a kernel holds it in its accumulator; `undetermined` where it may overflow."""

    value: Float64Array
    interval: Interval
    undetermined: BoolArray


def bounded(sums: Sums, summation: Summation, accumulator: DType, *, flushes: bool) -> BoundedSums:
    """Interval of every sum under a declared arithmetic."""
    info = accumulator.info
    relative = summation.error(sums.terms) + sums.errors.roundings * info.unit_roundoff
    if isinstance(summation, Grouped) and summation.outer.info.precision > info.precision:
        # The outer sum is rounded to the accumulator's type; that of a single group is of the inner type already.
        relative = relative + np.where(sums.terms > summation.group, info.unit_roundoff, 0.0)
    relative = np.where(relative < 2.0**-10, relative * _SECOND_ORDER, relative * (1 + relative))
    relative = relative + (sums.terms + 4) * 2.0**-53  # the oracle's own fp64 sums
    with np.errstate(over="ignore", invalid="ignore"):
        # What truncates may lose all of eta where rounding to nearest loses half of it.
        underflow = sums.errors.lost * (2 if isinstance(summation, TensorCore) else 1)
        radius = sums.gauge * relative[:, None] + underflow[:, None]
        least = info.smallest_normal if flushes else info.smallest_subnormal
        limit = np.where(sums.errors.quantum >= least, sums.errors.quantum * summation.exact_units, -1.0)
        alone = (sums.terms <= 1) & (sums.errors.roundings == 0) & (sums.errors.lost == 0)
        exact = ((sums.gauge <= limit[:, None]) | alone[:, None]) & np.isfinite(sums.value)
        low = np.where(exact, sums.value, sums.value - radius)
        high = np.where(exact, sums.value, sums.value + radius)
        largest = info.maximum / (sums.unscaled * (1 + relative))
        undetermined = (sums.gauge >= largest[:, None]) & np.isfinite(sums.gauge)
        undetermined |= np.isinf(sums.unscaled)[:, None] & ~np.isnan(sums.value)
    infinite = ~np.isfinite(sums.value)
    if infinite.any():
        low, high = np.where(infinite, sums.value, low), np.where(infinite, sums.value, high)
        undetermined |= np.isinf(sums.value) & sums.errors.vanishing[:, None]
    return BoundedSums(sums.value, Interval(low, high), undetermined)


def certain_infinities(
    result: BoundedSums, finite_gauge: Callable[[], Float64Array], accumulator: DType
) -> BoundedSums:
    """Sums that hold an infinity: certain, unless their finite terms may overflow to the other one."""
    infinite = np.isinf(result.value)
    if not infinite.any():
        return result
    may_overflow = infinite & (finite_gauge() >= accumulator.info.maximum / 2)
    return BoundedSums(result.value, result.interval, result.undetermined | may_overflow)


def row_quantum(rows: Float64Array) -> Float64Array:
    """(rows,) largest power of two that divides all finite elements of a row; infinity where all are zero."""
    quantum = np.full(len(rows), np.inf)
    for start, stop in blocks(*rows.shape):
        np.fmin.reduce(lowest_bit(rows[start:stop]), axis=1, initial=np.inf, out=quantum[start:stop])
    return quantum


def finite(values: Float64Array) -> Float64Array:
    """The values with zero for what is not finite."""
    return np.where(np.isfinite(values), values, 0.0)


def power_of_two(lengths: npt.NDArray[np.int64]) -> BoolArray:
    """Whether dividing by each length only moves the exponent."""
    return np.asarray((lengths & (lengths - 1)) == 0)
