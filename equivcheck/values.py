"""The values of one tensor, by regime. Only operations whose bits are the same everywhere (docs/numerics.md).

Allowed are integer operations, ldexp, +, -, * and casts: NumPy's exp, log, power and its distributions give other
bits on other processors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from equivcheck import words as w
from equivcheck.case import Regime, Special, Values
from equivcheck.formats import AnyArray, DType, Float64Array, store

_MIXED = (Regime.UNIFORM, Regime.INTEGERS, Regime.WIDE, Regime.SUBNORMAL, Regime.SAME_SIGN, Regime.ZEROS)
REVEALING_PRECISION = {DType.FP32: 12, DType.FP16: 11, DType.BF16: 8}
"""Bits of the integers that show a narrow accumulator: all of a 16-bit type's, half of fp32's (docs/numerics.md)."""


def fill(values: Values, shape: tuple[int, int], dtype: DType, key: int, *, positive: bool = False) -> AnyArray:
    """Array of `shape` (rows, columns) and `dtype`: element k in row-major order depends on the key and k alone.

    Parameters
    ----------
    positive
        Take absolute values: for second moments and Adagrad's sums.
    """
    rows, columns = shape
    positions = np.arange(rows * columns, dtype=np.int64).reshape(shape)
    exact = _regime(values.regime, values, positions, dtype, key)
    if positive:
        exact = np.abs(exact)
    return store(np.clip(exact, -dtype.info.maximum, dtype.info.maximum), dtype)


def special(value: Special) -> float:
    """The NaN or infinity that a poison names."""
    return float(value.value)


def _regime(regime: Regime, values: Values, positions: npt.NDArray[np.int64], dtype: DType, key: int) -> Float64Array:
    rows, columns = positions.shape
    random = w.words(key, positions)
    sign = 1.0 - 2.0 * (random & np.uint64(1)).astype(np.float64)
    scale = float(np.ldexp(float(values.magnitude), values.exponent))
    unit = np.ldexp((random >> np.uint64(40)).astype(np.float64), -24)  # uniform in [0, 1), 24 bits
    format_ = dtype.info
    match regime:
        case Regime.SIGNS:
            return sign * scale
        case Regime.INTEGERS:
            whole = w.integers(random, 2 * values.magnitude + 1) - values.magnitude
            return _scaled(whole, values.exponent)
        case Regime.REVEALING:
            half = 2 ** (REVEALING_PRECISION[dtype] - 1)
            return _scaled(w.integers(random, half) + half, values.exponent)
        case Regime.UNIFORM:
            return sign * unit * scale
        case Regime.SAME_SIGN:
            return (0.5 + unit / 2) * scale
        case Regime.NORMAL:
            # Irwin-Hall: four uniforms on [0, 2^16) have mean 2^17 and deviation 2^16 / sqrt(3).
            fields = sum((random >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(4))
            return np.ldexp(np.asarray(fields).astype(np.float64) - 2.0**17, -16) * 1.75 * scale
        case Regime.WIDE:
            least, most = max(-27, format_.minimum_exponent), min(100, 14 if dtype is DType.FP16 else 100)
            exponent = w.integers(w.words(key ^ 1, positions), most - least + 1) + least
            return np.asarray(sign * np.ldexp(1 + unit, exponent))
        case Regime.CONSTANT:
            return np.full(positions.shape, scale)
        case Regime.OUTLIER:
            array = sign * unit * scale
            array[:1, columns // 2 : columns // 2 + 1] = 2.0**14 if dtype is DType.FP16 else 2.0**30
            return array
        case Regime.CANCELLING:
            whole = w.integers(random, 9) - 4
            large = 2 ** REVEALING_PRECISION[dtype]
            whole[:1], whole[-1:] = large, -large
            return _scaled(whole, values.exponent)
        case Regime.SUBNORMAL:
            most = 2 ** (format_.precision - 1) - 1
            return sign * (w.integers(random, most) + 1).astype(np.float64) * format_.smallest_subnormal
        case Regime.ZEROS:
            return sign * 0.0
        case Regime.NEAR_OVERFLOW:
            return sign * format_.maximum * (1 - unit / 2)
        case Regime.MIXED:
            which = w.integers(w.words(key ^ 2, np.arange(rows, dtype=np.int64)), len(_MIXED))
            parts = [_regime(r, values, positions, dtype, key) for r in _MIXED]
            return np.asarray(np.choose(which[:, None], parts)) if rows else parts[0]


def _scaled(whole: npt.NDArray[np.int64], exponent: int) -> Float64Array:
    return np.asarray(np.ldexp(whole.astype(np.float64), exponent))
