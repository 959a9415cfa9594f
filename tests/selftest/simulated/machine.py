"""One floating-point unit: correctly rounded operations in a given type, on fp64 arrays that hold numbers of that type.

Rounding an fp64 result to fp32 or fp16 is one rounding, not two: 53 bits are more than 2 * 24 + 2 (Figueroa, *When is
double rounding innocuous?*, SIGNUM Newsletter 30 (1995)). A fused multiply-add needs more; it goes through the exact
sum's rounding to odd (Boldo and Melquiond, *Emulation of FMA and correctly rounded sums*, 2008).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from equivcheck.formats import DType, Float64Array, down, nearest, up


class Error(enum.Enum):
    """How an operation that is not correctly rounded errs: up, down, or now this way, now that."""

    UP = 1.0
    DOWN = -1.0
    MIXED = 0.0


@dataclass(frozen=True)
class Machine:
    """Arithmetic in one type.

    Attributes
    ----------
    dtype
        Type of operands and results.
    fused
        Whether a product that is added is not rounded before.
    flushes
        Whether subnormal operands and results become zero.
    division, square_root, power
        Relative errors in u of fp32: with 1 the operation is correctly rounded, with more it errs as far as it may.
    error
        In which direction.
    """

    dtype: DType = DType.FP32
    fused: bool = False
    flushes: bool = False
    division: float = 1.0
    square_root: float = 1.0
    power: float = 1.0
    error: Error = Error.UP

    def rounded(self, exact: Float64Array) -> Float64Array:
        """Nearest number of the type, flushed where it is subnormal."""
        return self.kept(nearest(exact, self.dtype))

    def kept(self, values: Float64Array) -> Float64Array:
        """An operand or result as the unit sees it."""
        if not self.flushes:
            return values
        return np.asarray(np.where(np.abs(values) < self.dtype.info.smallest_normal, 0.0 * values, values))

    def add(self, a: Float64Array, b: Float64Array) -> Float64Array:
        return self.rounded(self.kept(a) + self.kept(b))

    def subtract(self, a: Float64Array, b: Float64Array) -> Float64Array:
        return self.add(a, -b)

    def multiply(self, a: Float64Array, b: Float64Array) -> Float64Array:
        return self.rounded(self.kept(a) * self.kept(b))

    def multiply_add(self, a: Float64Array, b: Float64Array, c: Float64Array) -> Float64Array:
        """Sum a b + c: with one rounding where the unit is fused, else with two."""
        if not self.fused or self.dtype is DType.FP64:
            return self.add(self.multiply(a, b), c)
        return self.rounded(_odd_sum(self.kept(a) * self.kept(b), self.kept(c)))

    def divide(self, a: Float64Array, b: Float64Array) -> Float64Array:
        return self._erring(self.kept(a) / self.kept(b), self.division)

    def sqrt(self, a: Float64Array) -> Float64Array:
        return self._erring(np.sqrt(self.kept(a)), self.square_root)

    def pow(self, base: float, exponent: int) -> Float64Array:
        return self._erring(np.asarray(float(base) ** exponent), self.power)

    def accumulated(self, terms: Float64Array) -> Float64Array:
        """Sum over the first axis, one term after the other."""
        if not len(terms):
            return np.zeros(terms.shape[1:])
        if not self.flushes:
            native = terms.astype(self.dtype.numpy)
            return np.asarray(np.add.accumulate(native, axis=0)[-1], np.float64)
        total = self.kept(terms[0])
        for term in terms[1:]:
            total = self.add(total, term)
        return total

    def _erring(self, exact: Float64Array, units: float) -> Float64Array:
        """A number of the type within `units` u of the exact result, as far from it as there is."""
        right = self.rounded(exact)
        if units <= 1.0 or self.dtype is DType.FP64:
            return right
        direction = self.error.value or np.where(np.arange(exact.size).reshape(exact.shape) % 2, 1.0, -1.0)
        # 2^-40 keeps fp64's own rounding from passing the limit.
        end = exact + direction * units * self.dtype.info.unit_roundoff * np.abs(exact) * (1 - 2.0**-40)
        far = np.where(end > exact, down(end, self.dtype), up(end, self.dtype))
        beyond = np.where(end > exact, far >= exact, far <= exact)
        return self.kept(np.where(beyond & np.isfinite(far), far, right))


def _odd_sum(a: Float64Array, b: Float64Array) -> Float64Array:
    """Sum a + b of fp64 numbers, rounded to odd: what is lost leaves its trace in the last bit."""
    total = a + b
    part = total - a
    lost = (a - (total - part)) + (b - part)
    inexact = np.isfinite(total) & np.isfinite(lost) & (lost != 0)
    even = (total.view(np.int64) if total.ndim else total.reshape(1).view(np.int64).reshape(())) % 2 == 0
    towards = np.where(lost > 0, np.inf, -np.inf)
    return np.where(inexact & even, np.nextafter(total, towards), total)
