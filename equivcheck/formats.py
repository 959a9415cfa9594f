"""Floating-point formats: their constants, and rounding into them without leaving fp64.

Every function maps fp64 arrays to fp64 arrays that hold only values of the format, so that a result can be compared
with a kernel's output after widening. Constants follow IEEE 754-2019, table 3.5, and for bf16 the same layout with an
8-bit significand.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

Float64Array: TypeAlias = npt.NDArray[np.float64]
AnyArray: TypeAlias = npt.NDArray[np.generic]


class DType(enum.StrEnum):
    """Storage and accumulation types of a table-batched embedding."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP64 = "fp64"

    @property
    def info(self) -> Format:
        """Constants of this type."""
        return _FORMATS[self]

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype of arrays of this type (bf16: that of ml-dtypes)."""
        return _NUMPY[self]


@dataclass(frozen=True)
class Format:
    """Constants of a binary floating-point format.

    `precision` counts the bits of the significand, the hidden one included; `minimum_exponent` is that of the
    smallest normal number.
    """

    precision: int
    minimum_exponent: int
    maximum: float

    @property
    def unit_roundoff(self) -> float:
        """Half the distance from 1 to the next larger number: the relative error of rounding to nearest."""
        return 2.0**-self.precision

    @property
    def smallest_normal(self) -> float:
        """Smallest positive normal number."""
        return 2.0**self.minimum_exponent

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive number, also called eta."""
        return 2.0 ** (self.minimum_exponent - self.precision + 1)


_FORMATS = {
    DType.FP64: Format(53, -1022, float(np.finfo(np.float64).max)),
    DType.FP32: Format(24, -126, float(np.finfo(np.float32).max)),
    DType.FP16: Format(11, -14, 65504.0),
    DType.BF16: Format(8, -126, (2 - 2.0**-7) * 2.0**127),
}
_NUMPY: dict[DType, np.dtype[np.generic]] = {
    DType.FP64: np.dtype(np.float64),
    DType.FP32: np.dtype(np.float32),
    DType.FP16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
}
_FRACTION = np.int64(2**52 - 1)


def widen(array: AnyArray) -> Float64Array:
    """Exact fp64 copy of an array of any of the formats."""
    with np.errstate(invalid="ignore"):  # a kernel may leave a signalling NaN
        return array.astype(np.float64)


def store(values: Float64Array, dtype: DType) -> AnyArray:
    """Array of `dtype` holding `values` rounded to nearest, ties to even."""
    if dtype is DType.BF16:  # ml-dtypes rounds fp64 to fp32 first: twice is not once
        values = nearest(values, dtype)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return values.astype(dtype.numpy)


def nearest(values: Float64Array, dtype: DType) -> Float64Array:
    """Round to nearest, ties to even; beyond the largest number plus half a unit, to infinity."""
    if dtype is DType.FP64:
        return values
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype is not DType.BF16:
            return values.astype(dtype.numpy).astype(np.float64)
        return _overflow_to_infinity(_on_grid(values, dtype.info, np.rint), dtype.info)


def down(values: Float64Array, dtype: DType) -> Float64Array:
    """Round towards minus infinity."""
    return _directed(values, dtype, np.floor)


def up(values: Float64Array, dtype: DType) -> Float64Array:
    """Round towards plus infinity."""
    return _directed(values, dtype, np.ceil)


def toward_zero(values: Float64Array, dtype: DType) -> Float64Array:
    """Truncate; beyond the largest number, the largest number."""
    if dtype is DType.FP64:
        return values
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        truncated = _on_grid(values, dtype.info, np.trunc)
    return np.where(np.isfinite(values), np.clip(truncated, -dtype.info.maximum, dtype.info.maximum), values)


def representable(values: Float64Array, dtype: DType) -> npt.NDArray[np.bool_]:
    """Whether each value is a finite number of the format."""
    return np.asarray(np.isfinite(values) & (nearest(values, dtype) == values))


def lowest_bit(values: Float64Array) -> Float64Array:
    """Largest power of two that divides each value: its quantum. Infinity for zero and infinities, NaN for NaN.

    A sum of multiples of q is a multiple of q, so the smallest quantum of the terms tells on which grid every partial
    sum lies, whatever the order. Clearing the lowest bit of the significand's field and subtracting gives that bit;
    where the field is zero, the value is a power of two itself. (fp64's own subnormals do not occur here.)
    """
    bits = np.ascontiguousarray(values).view(np.int64)
    field = bits & _FRACTION
    with np.errstate(invalid="ignore"):
        quantum = np.abs(values - (bits & (bits - 1)).view(np.float64))
    quantum = np.where(field == 0, np.abs(values), quantum)
    quantum[values == 0] = np.inf
    return quantum


def _on_grid(values: Float64Array, format_: Format, rounding: np.ufunc) -> Float64Array:
    """Apply `rounding` to each value in units of its last place. Scaling by powers of two is exact in fp64 here."""
    _, exponent = np.frexp(values)
    unit = np.maximum(exponent - 1, format_.minimum_exponent) - format_.precision + 1
    rounded = np.ldexp(rounding(np.ldexp(values, -unit)), unit)
    return np.asarray(np.where(np.isfinite(values), rounded, values))


def _overflow_to_infinity(values: Float64Array, format_: Format) -> Float64Array:
    return np.where(np.abs(values) > format_.maximum, np.copysign(np.inf, values), values)


def _directed(values: Float64Array, dtype: DType, rounding: np.ufunc) -> Float64Array:
    if dtype is DType.FP64:
        return values
    maximum = dtype.info.maximum
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded = _on_grid(values, dtype.info, rounding)
    # Directed rounding overflows to infinity only in its own direction (IEEE 754-2019, 7.4).
    if rounding is np.floor:
        rounded = np.where(rounded < -maximum, -np.inf, rounded)
        return np.where((rounded > maximum) & np.isfinite(values), maximum, rounded)
    rounded = np.where(rounded > maximum, np.inf, rounded)
    return np.where((rounded < -maximum) & np.isfinite(values), -maximum, rounded)
