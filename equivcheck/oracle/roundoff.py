"""Rounding: intervals that hold whatever a kernel may compute, and what they become when stored.

Two facts carry everything. An operation that is good to relative error c u gives a result within c u |exact| + eta/2
(eta/2 covers underflow; Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., section 2.1). And rounding
to nearest is monotone: if the value before a store lies in [low, high], the stored one lies in [fl(low), fl(high)],
which also says when it may be infinite. Endpoints are computed in fp64; each widening includes 2^-51 of the endpoint,
four times what fp64 itself may be off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from equivcheck.arithmetic import Store, StoreRounding
from equivcheck.formats import DType, Float64Array, down, nearest, representable, toward_zero, up

BoolArray: TypeAlias = npt.NDArray[np.bool_]

_OWN_ERROR = 2.0**-51
_FP32 = DType.FP32.info
_U, _ETA = _FP32.unit_roundoff, _FP32.smallest_subnormal
_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class Interval:
    """All values from `low` to `high`, element by element. NaN at both ends: certainly NaN.

    Where the ends are equal, the value is exact: known without error, though not always a number of fp32.
    """

    low: Float64Array
    high: Float64Array

    def __getitem__(self, rows: slice) -> Interval:
        return Interval(self.low[rows], self.high[rows])


def point(value: Float64Array | float) -> Interval:
    """The interval that holds one value."""
    array = np.asarray(value, np.float64)
    return Interval(array, array)


def hull(first: Interval, second: Interval) -> Interval:
    """Smallest interval around both."""
    return Interval(np.minimum(first.low, second.low), np.maximum(first.high, second.high))


def widened(interval: Interval, relative: float, absolute: Float64Array | float) -> Interval:
    """Ends moved outwards by relative |end| + absolute. Infinite ends stay."""
    low = np.minimum(np.abs(interval.low), _LARGEST) * relative + absolute
    high = np.minimum(np.abs(interval.high), _LARGEST) * relative + absolute
    return Interval(interval.low - low, interval.high + high)


class Fp32Operations:
    """The operations of an optimizer in fp32, on intervals: each returns what any right kernel may hold after it.

    A result that is exact and a number of fp32 stays exact. Every interval also holds the unrounded result, so that
    fused multiply-adds and wider intermediate types are included.

    Parameters
    ----------
    division, square_root
        Relative errors in u: `equivcheck.arithmetic.Arithmetic`.
    flushes
        Whether subnormal operands and results may become zero.
    shape
        Of the elements that are updated.
    sharp
        Whether quotients, roots and what `shifted` adds are rounded to nearest, where they are declared to be, instead
        of being off by as much as that may change. An end then moves only by what rounding it changes. Every order of
        the operations that kernels use must have a form in the formula: none hides in another's room.

    Attributes
    ----------
    overflow
        Elements for which some intermediate result passed the largest number of fp32: whether a kernel then goes on
        with infinity depends on its algebraic form.
    """

    def __init__(
        self, division: float, square_root: float, flushes: bool, shape: tuple[int, ...], *, sharp: bool = False
    ) -> None:
        self.division = division
        self.square_root = square_root
        self.tiny = _FP32.smallest_normal if flushes else _ETA / 2
        self.flushes = flushes
        self.sharp = sharp and not flushes
        self.overflow: BoolArray = np.zeros(shape, bool)

    def note(self, size: Float64Array) -> None:
        """Mark elements for which an intermediate result of another algebraic form may be as large as `size`."""
        self.overflow = self.overflow | ((size > _FP32.maximum) & np.isfinite(size))

    def add(self, a: Interval, b: Interval) -> Interval:
        """Sum a + b."""
        # Sums do not underflow: a subnormal sum of fp32 numbers is exact (Hauser 1996; Higham, problem 2.19).
        return self.rounded(self.exact_add(a, b))

    def rounded(self, total: Interval) -> Interval:
        """What a sum from `exact_add` becomes when it is rounded."""
        return self._rounded(total, 1.0, 0.0)

    def subtract(self, a: Interval, b: Interval) -> Interval:
        """Difference a - b."""
        return self.add(a, negated(b))

    def shifted(self, root: Interval, eps: Interval) -> Interval:
        """Sum of a root and eps, which adding zero or next to nothing leaves as it is."""
        return self._to_nearest(self.exact_add(root, eps)) if self.sharp else self.add(root, eps)

    def multiply(self, a: Interval, b: Interval) -> Interval:
        """Product a b."""
        return self._rounded(self._exact_product(a, b), 1.0, self._underflow(a, b))

    def scale(self, a: Interval, factor: Interval) -> Interval:
        """Product of a and a factor that is not negative: half the work of `multiply`."""
        low = a.low * np.where(a.low < 0, factor.high, factor.low)
        high = a.high * np.where(a.high < 0, factor.low, factor.high)
        return self._rounded(self._known_product(Interval(low, high), a, factor), 1.0, self._underflow(a, factor))

    def square(self, a: Interval) -> Interval:
        """Square of a; where a may be zero, from zero."""
        first, second = a.low * a.low, a.high * a.high
        low = np.where((a.low < 0) & (a.high > 0), 0.0, np.minimum(first, second))
        exact = self._known_product(Interval(low, np.maximum(first, second)), a, a)
        return positive(self._rounded(exact, 1.0, self._underflow(a, a)))

    def divide(self, a: Interval, b: Interval) -> Interval:
        """Quotient a / b for b that is not negative; where b may be zero, the ends are infinite or NaN."""
        if self.flushes:  # a subnormal divisor may become zero
            b = Interval(np.where(_subnormal(b), 0.0, b.low), b.high)
        low = a.low / np.where(a.low < 0, b.low, b.high)
        high = a.high / np.where(a.high < 0, b.high, b.low)
        if self.division <= 1.0:
            known = (low == high) & (low * b.low == a.low) & representable(low, DType.FP32)
            known = known & self._unflushed(a) & self._unflushed(b)
        else:
            known = np.zeros(np.shape(low), bool)
        exact = _slackened(Interval(low, high), known)
        if self.sharp and self.division <= 1.0:
            return self._to_nearest(exact)
        absolute: Float64Array | float = self.tiny
        if self.flushes:  # a subnormal dividend may become zero, and the quotient with it
            absolute = self.tiny + np.where(_subnormal(a), _FP32.smallest_normal / b.low, 0.0)
        return self._rounded(exact, max(self.division, 1.0), absolute)

    def sqrt(self, a: Interval) -> Interval:
        """Square root of what is not negative."""
        low, high = np.sqrt(np.maximum(a.low, 0.0)), np.sqrt(a.high)
        if self.square_root <= 1.0:
            known = (low == high) & (low * low == a.low) & representable(low, DType.FP32) & self._unflushed(a)
        else:
            known = np.zeros(np.shape(low), bool)
        exact = _slackened(Interval(low, high), known)
        if self.sharp and self.square_root <= 1.0:
            return positive(self._to_nearest(exact))
        tiny = np.sqrt(self.tiny) if self.flushes else 0.0
        return positive(self._rounded(exact, max(self.square_root, 1.0), tiny))

    def exact_add(self, a: Interval, b: Interval) -> Interval:
        """Sum a + b before its rounding, but after flushing: a subnormal operand or result may be zero."""
        low, high = a.low + b.low, a.high + b.high
        known = (low == high) & (a.low == a.high) & (_sum_error(a.low, b.low, low) == 0)
        total = _slackened(Interval(low, high), known)
        if not self.flushes:
            return total
        lost = np.where(_subnormal(a), _FP32.smallest_normal, 0.0) + np.where(_subnormal(b), _FP32.smallest_normal, 0.0)
        total = widened(total, 0.0, lost)
        small = _subnormal(total)
        return Interval(
            np.where(small, np.minimum(total.low, 0.0), total.low),
            np.where(small, np.maximum(total.high, 0.0), total.high),
        )

    def _exact_product(self, a: Interval, b: Interval) -> Interval:
        products = (a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high)
        low = np.minimum(np.minimum(products[0], products[1]), np.minimum(products[2], products[3]))
        high = np.maximum(np.maximum(products[0], products[1]), np.maximum(products[2], products[3]))
        return self._known_product(Interval(low, high), a, b)

    def _known_product(self, product: Interval, a: Interval, b: Interval) -> Interval:
        """Exact where both factors are numbers of fp32: 24 and 24 bits fit into 53."""
        known = product.low == product.high
        if known.any():
            known = known & (a.low == a.high) & (b.low == b.high)
            known = known & representable(a.low, DType.FP32) & representable(b.low, DType.FP32)
            known = known & ((np.abs(product.low) >= 2.0**-1000) | (a.low == 0) | (b.low == 0))
            known = known & self._unflushed(a) & self._unflushed(b)
        return _slackened(product, known)

    def _unflushed(self, a: Interval) -> BoolArray | bool:
        return ~_subnormal(a) if self.flushes else True

    def _underflow(self, a: Interval, b: Interval) -> Float64Array | float:
        """Absolute error of a product: eta/2, or where subnormals are flushed, what flushing an operand loses."""
        if not self.flushes:
            return self.tiny
        small = _FP32.smallest_normal
        lost = np.where(_subnormal(a), _magnitude(b), 0.0) + np.where(_subnormal(b), _magnitude(a), 0.0)
        return small + small * lost

    def _to_nearest(self, exact: Interval) -> Interval:
        """The interval and what its numbers are rounded to. It stays in, for kernels that go on with more bits."""
        self._note_overflow(exact)
        # What passes the largest number stays finite, as in `_rounded`: such elements are marked.
        low, high = (np.where(np.abs(x) > _FP32.maximum, x, nearest(x, DType.FP32)) for x in (exact.low, exact.high))
        return Interval(np.minimum(exact.low, low), np.maximum(exact.high, high))

    def _note_overflow(self, interval: Interval) -> None:
        if _extent(interval) > _FP32.maximum:
            ends = np.maximum(np.abs(interval.low), np.abs(interval.high))
            self.overflow = self.overflow | ((ends > _FP32.maximum) & np.isfinite(ends))

    def _rounded(self, interval: Interval, units: float, absolute: Float64Array | float) -> Interval:
        self._note_overflow(interval)
        result = widened(interval, units * _U * (1 + 2.0**-20), absolute)
        known = interval.low == interval.high
        if not known.any():
            return result
        known = known & representable(interval.low, DType.FP32)
        if self.flushes:
            known = known & ((np.abs(interval.low) >= _FP32.smallest_normal) | (interval.low == 0))
        return Interval(np.where(known, interval.low, result.low), np.where(known, interval.high, result.high))


def negated(a: Interval) -> Interval:
    """-a."""
    return Interval(-a.high, -a.low)


def positive(a: Interval) -> Interval:
    """Without what lies below zero."""
    return Interval(np.maximum(a.low, 0.0), a.high)


def stored(interval: Interval, dtype: DType, store: Store, computed: DType) -> Interval:
    """What an interval becomes in storage of `dtype`, from a value computed in `computed` (or wider).

    Into 16 bits, both the direct rounding and the one through `computed` are allowed, and from fp64 the one through
    fp32: PyTorch's and FBGEMM's C++ half types convert a double through a float, by design (c10/util/Half.h).
    """
    # The last operation in `computed` rounds to nearest; a store of that type has nothing left to round.
    rounding = StoreRounding.NEAREST if dtype is computed else store.rounding
    if rounding is StoreRounding.NEAREST:
        low, high = nearest(interval.low, dtype), nearest(interval.high, dtype)
        through = DType.FP32 if computed is DType.FP64 else computed
        if dtype in (DType.FP16, DType.BF16) and through is not dtype:
            twice = Interval(
                nearest(nearest(interval.low, through), dtype), nearest(nearest(interval.high, through), dtype)
            )
            low, high = np.minimum(low, twice.low), np.maximum(high, twice.high)
    elif rounding is StoreRounding.TRUNCATE:
        low, high = toward_zero(interval.low, dtype), toward_zero(interval.high, dtype)
        if computed is not DType.FP64:
            # What is truncated was rounded to `computed`, perhaps up to a number of `dtype`: 1.99999999 to 2.
            low = np.minimum(low, toward_zero(nearest(interval.low, computed), dtype))
            high = np.maximum(high, toward_zero(nearest(interval.high, computed), dtype))
    else:
        # Rounding to `computed` first changes nothing: it is monotone and keeps the neighbours, which it holds exactly.
        low, high = down(interval.low, dtype), up(interval.high, dtype)
    if store.saturates:  # what overflows, not what is infinite already
        low = np.where(interval.low < np.inf, np.minimum(low, dtype.info.maximum), low)
        high = np.where(interval.high > -np.inf, np.maximum(high, -dtype.info.maximum), high)
    if store.flushes:
        small = dtype.info.smallest_normal
        low = np.where((low > 0) & (low < small), 0.0, low)
        high = np.where((high < 0) & (high > -small), 0.0, high)
    return Interval(low, high)


def stored_sum(interval: Interval, dtype: DType, store: Store, accumulator: DType) -> Interval:
    """What an interval of sums becomes in storage. They are rounded to `accumulator`: their own type rounds nothing."""
    if dtype is accumulator and not (store.saturates or store.flushes):
        return interval
    return stored(interval, dtype, store, accumulator)


def _slackened(interval: Interval, known: BoolArray) -> Interval:
    """Add fp64's own error where the ends are not known to be exact."""
    if known.all():
        return interval
    wider = widened(interval, _OWN_ERROR, 0.0)
    if not known.any():
        return wider
    return Interval(np.where(known, interval.low, wider.low), np.where(known, interval.high, wider.high))


def _sum_error(a: Float64Array, b: Float64Array, total: Float64Array) -> Float64Array:
    """Rounding error of fl(a + b): TwoSum (Knuth, *The Art of Computer Programming* 2, 4.2.2, theorem B)."""
    part = total - a
    return np.asarray((a - (total - part)) + (b - part))


def _extent(a: Interval) -> float:
    """Largest |end|, ignoring NaN."""
    return max(
        -float(np.fmin.reduce(a.low, axis=None, initial=0.0)), float(np.fmax.reduce(a.high, axis=None, initial=0.0))
    )


def _magnitude(a: Interval) -> Float64Array:
    return np.maximum(np.abs(a.low), np.abs(a.high))


def _subnormal(a: Interval) -> BoolArray:
    """Whether the interval holds a subnormal number of fp32 other than zero."""
    small = _FP32.smallest_normal
    return np.asarray((a.low < small) & (a.high > -small) & ((a.low != 0) | (a.high != 0)))
