"""Rounding of single terms, p x / L, before they are summed: how often, what underflow loses, and where it is exact.

Per-sample weight p, value x (an element of a row, or of a gradient) and length L of a bag meet in any order: p x first,
x/L first, p/L first, or L last of all. Every bound here holds for all of them. With e what one operation loses at most
beside its relative error (eta/2 by underflow, or the smallest normal number N where subnormals are flushed):

- p x loses e; (p/L) x loses e |x| + e; (x/L) p loses e |p| + e; the sum divided by L loses e.
- a factor that is converted to the accumulator's type loses e times the other factor.
- a flushed factor loses N times the other factor, but only if it may be subnormal: its quantum is below N (L N where
  MEAN may divide it first).

Products are exact, whatever the order, where p/L and x/L are: their quanta are at least eta (N where flushed), and so
are numbers of the accumulator's type as the quanta of whole sums are (`equivcheck.oracle.sums`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from equivcheck.arithmetic import Arithmetic
from equivcheck.formats import DType, Float64Array, Format, lowest_bit
from equivcheck.oracle.roundoff import BoolArray
from equivcheck.oracle.sparse import Int64Array, segment_minimum, segment_sum


@dataclass(frozen=True)
class Factor:
    """One factor of every term: its storage type, largest finite magnitude (n,) and quantum (n,)."""

    dtype: DType
    size: Float64Array
    quantum: Float64Array

    @staticmethod
    def of(values: Float64Array, dtype: DType) -> Factor:
        """Factor of per-sample weights, one a term."""
        return Factor(dtype, np.where(np.isfinite(values), np.abs(values), 0.0), lowest_bit(values))


@dataclass(frozen=True)
class TermErrors:
    """Of every term (n,), or (1,) where all have the same; or of every sum.

    Attributes
    ----------
    roundings
        In units of the accumulator's u.
    lost
        Absolute error by underflow and flushing.
    quantum
        A power of two that divides the term and every intermediate result; 0 where one of them may be rounded.
    vanishing
        Whether a factor may become zero, so that an infinity meets it as NaN.
    overflow
        Whether a factor or a rounded term may pass the largest number of its narrower type.
    """

    roundings: Float64Array
    lost: Float64Array
    quantum: Float64Array
    vanishing: BoolArray
    overflow: BoolArray

    def block(self, start: int, stop: int) -> TermErrors:
        """Of the terms, or sums, start..stop."""
        return TermErrors(*(getattr(self, f.name)[start:stop] for f in fields(self)))

    def summed(self, indptr: Int64Array) -> TermErrors:
        """Of sums over segments of terms: most roundings, total loss, common quantum, and whether any term may."""
        count = int(indptr[-1])

        def most(values: npt.NDArray[Any]) -> Float64Array:
            if not values.any():  # the usual case
                return np.zeros(len(indptr) - 1)
            return np.maximum(-segment_minimum(-np.broadcast_to(values.astype(np.float64), (count,)), indptr), 0.0)

        lost = np.zeros(len(indptr) - 1)
        if self.lost.any():
            lost = segment_sum(np.broadcast_to(self.lost, (count,)), indptr)
        quantum = segment_minimum(self.quantum, indptr)
        return TermErrors(most(self.roundings), lost, quantum, most(self.vanishing) > 0, most(self.overflow) > 0)


def term_errors(
    x: Factor,
    p: Factor | None,
    length: Int64Array | None,
    arithmetic: Arithmetic,
    narrow: DType | None = None,
) -> TermErrors:
    """Errors of p x / L; p None stands for ones, and `length` None for no division.

    Parameters
    ----------
    narrow
        A type to which x/L, or the whole term, is rounded by design.
    """
    info = arithmetic.accumulator.info
    least = info.smallest_normal if arithmetic.sum_flushes else info.smallest_subnormal
    if p is None and length is None and narrow is None and not arithmetic.sum_flushes and _holds(info, x.dtype.info):
        none = np.zeros(1)
        return TermErrors(none, none, x.quantum, none > 0, none > 0)
    factors = [x] if p is None else [x, p]
    scale = np.ones(1) if length is None else length.astype(np.float64)
    weight = np.ones(1) if p is None else p.size
    with np.errstate(over="ignore", invalid="ignore"):
        quantum = x.quantum / scale if p is None else x.quantum / scale * p.quantum
        exact = (x.quantum / scale >= least) & (1 / scale >= least)
        if p is not None:
            exact &= p.quantum / scale >= least
        inexact_length = np.zeros(1, bool) if length is None else (length & (length - 1)) != 0
        exact &= ~inexact_length
        vanishing = np.zeros(1, bool)
        if p is not None:
            vanishing = (x.quantum / scale < least) | (p.quantum / scale < least)

        roundings = _roundings(x, p, inexact_length, arithmetic)
        if length is not None:
            roundings = roundings + np.where(scale > 1 / info.unit_roundoff, np.where(inexact_length, 1.0, 0.0), 0.0)
        e = info.smallest_subnormal / 2
        lost = np.zeros(1)
        if p is not None:
            lost = lost + e
        if length is not None:
            lost = lost + e * (1 + weight + (x.size if p is not None else 0.0))
        overflow = np.zeros(1, bool)
        for factor, other in zip(factors, (weight, x.size), strict=False):
            if not _holds(info, factor.dtype.info):
                lost = lost + e * other
                overflow = overflow | (factor.size > info.maximum)
        if arithmetic.sum_flushes:
            small = info.smallest_normal
            lost = lost + 3 * small
            for factor, other in zip(factors, (weight, x.size), strict=False):
                lost = lost + np.where(factor.quantum < small * scale, 2 * small * other, 0.0)
        if narrow is not None:
            rounded = narrow.info
            roundings = roundings + rounded.unit_roundoff / info.unit_roundoff * (1 + 2 * rounded.unit_roundoff)
            lost = lost + rounded.smallest_subnormal / 2 * np.maximum(weight, 1.0)
            units = 1 / rounded.unit_roundoff
            if p is not None:
                vanishing = vanishing | (x.quantum / scale < rounded.smallest_subnormal)
            exact &= (x.size <= x.quantum * units) & (x.quantum / scale >= rounded.smallest_subnormal)
            exact &= (x.size * weight / scale <= quantum * units) & (quantum >= rounded.smallest_subnormal)
            overflow = overflow | (np.maximum(weight, 1.0) * x.size / scale > rounded.maximum)
    return TermErrors(roundings, lost, np.where(exact, quantum, 0.0), vanishing, overflow)


def largest_finite(absolute: Float64Array) -> Float64Array:
    """(rows,) largest finite magnitude of each row."""
    return np.asarray(np.max(absolute, axis=1, initial=0.0, where=np.isfinite(absolute)))


def _roundings(x: Factor, p: Factor | None, inexact_length: BoolArray, arithmetic: Arithmetic) -> Float64Array:
    """Conversions; the product, where its bits do not fit, or those of p/L; a division, or reciprocal and product."""
    info = arithmetic.accumulator.info
    roundings = float(x.dtype.info.precision > info.precision)
    division = arithmetic.mean_division.roundings
    if p is None:
        return roundings + np.where(inexact_length, division, 0.0)
    roundings += float(p.dtype.info.precision > info.precision)
    product = x.dtype.info.precision + p.dtype.info.precision > info.precision
    return roundings + float(product) + np.where(inexact_length, division + float(not product), 0.0)


def _holds(wide: Format, narrow: Format) -> bool:
    """Whether `wide` holds every number of `narrow`."""
    return (
        wide.precision >= narrow.precision
        and wide.smallest_subnormal <= narrow.smallest_subnormal
        and wide.maximum >= narrow.maximum
    )
